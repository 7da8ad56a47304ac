"""A whole piece of work as one submission: data, tokenizer, transfer, conversion, training chains, exports, evaluation, report.

One YAML file says which stages there are, what each runs and writes (docs/slurm.md).  Each stage is a job, or an array where it is
repeated over methods, seeds or steps; what is complete, by its manifest, is passed over.  Nothing is sent without --submit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common import command
from common.command import suggested
from common.tables import markdown_table
from recipes.pipelines.file import Pipeline, load_pipeline, tasks_of
from slurm.jobs.arguments import add_cluster_arguments, cluster_of
from slurm.jobs.job import format_time_limit
from slurm.stages.pipeline_jobs import StageJob
from slurm.stages.pipeline_submission import plan_pipeline, submit_pipeline


def main(argv: Sequence[str] | None = None) -> int:
    """Print the jobs of a pipeline; with --submit send them."""
    parser = command.parser(
        __doc__, prog="slurm.pipeline", example="python -m slurm.pipeline recipes/pipelines/bundled/demo.yaml --cluster local --submit"
    )
    parser.add_argument("pipeline", type=Path, help="YAML file of the pipeline")
    parser.add_argument("--submit", action="store_true", help="send it")
    add_cluster_arguments(parser)
    arguments = parser.parse_args(argv)
    pipeline, cluster = load_pipeline(arguments.pipeline), cluster_of(arguments)
    jobs = plan_pipeline(pipeline, cluster)
    print(_table(pipeline, jobs))
    if not jobs:
        print(f"\neverything is complete in {pipeline.root}")
    elif arguments.submit:
        job_ids = submit_pipeline(pipeline, cluster)
        count = sum(map(len, job_ids.values()))
        print(f"\nsent {count} jobs for {len(jobs)} stages; watch them with `{suggested('slurm.status', pipeline.root)}`")
    else:
        print("\nNothing was sent; add --submit to send it.")
    return command.DONE


def _table(pipeline: Pipeline, jobs: Sequence[StageJob]) -> str:
    planned = {job.stage: job for job in jobs}
    rows = [_row(name, len(tasks_of(pipeline, name)), planned.get(name)) for name in pipeline.stages]
    return markdown_table(["stage", "job", "after", "tasks to run", "nodes", "tasks per node", "time limit"], rows, text_columns=3)


def _row(name: str, num_tasks: int, planned: StageJob | None) -> list[str]:
    if planned is None:
        return [name, "nothing to do", "", f"0 of {num_tasks}", "", "", ""]
    job = planned.job
    kind = f"chain of {planned.chain.links}" if planned.chain else "array" if planned.is_array else "one"
    after = ", ".join(planned.waits_for)
    limit = format_time_limit(job.time_limit_seconds)
    return [name, f"{kind}, {job.kind}", after, f"{len(planned.tasks)} of {num_tasks}", str(job.num_nodes), str(job.tasks_per_node), limit]


if __name__ == "__main__":
    command.run(main)
