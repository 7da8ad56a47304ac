"""Submit a training run to a Slurm cluster: print the plan and the exact job script; with --submit, submit it.

The run is a chain of jobs: each saves and exits before its time limit, and the next resumes from there.  The same command
again resumes a run that was stopped, and with more steps also one that has finished.  Nothing is submitted without --submit.
"""

from __future__ import annotations

from collections.abc import Sequence

from common import command
from common.command import suggested
from common.options import add_option, add_options, values_of
from recipes.rehearsal.prediction import keep_rehearsal
from recipes.rules.checks import check_run
from recipes.rules.compose import compose_recipe
from recipes.rules.inputs import read_inputs
from recipes.runs.run_dir import record_recipe
from slurm.chains.chain import ChainPlan, link_job, submit_chain
from slurm.chains.submissions import run_tag
from slurm.jobs.arguments import add_cluster_arguments, add_time_argument, cluster_of, output_directory, time_limit_of
from slurm.jobs.job import GPU
from slurm.jobs.render import render_job
from slurm.jobs.submission_plan import Submission, plan_lines, rehearsal_lines, rehearsed, require_fit
from slurm.jobs.training import training_job
from slurm.sites.site import check_site, require_runtime


def main(argv: Sequence[str] | None = None) -> int:
    """Plan, check, print; with --submit send."""
    parser = command.parser(
        __doc__,
        example="python -m slurm.submit gams/focus --cluster vega --account b25 --output runs/sl model.checkpoint=nemo/sl data.train=[data/sl] data.validation=data/heldout",
    )
    parser.add_argument("recipe", help="name of a bundled recipe, or a YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the recipe, in Hydra's grammar")
    add_option(parser, "--output", "directory of the run, on a file system that all nodes share", required=True, type=output_directory)
    add_cluster_arguments(parser)
    add_time_argument(parser)
    add_option(parser, "--name", "name of the jobs in the queue (default: the name of the output directory)")
    add_options(parser, ChainPlan)
    add_option(
        parser,
        "--rehearse",
        "execute ranks of the run on simulated GPUs first; refuse the run if that fails or exceeds memory (docs/planner.md)",
        False,
    )
    add_option(parser, "--submit", "submit the jobs", False)
    arguments = parser.parse_intermixed_args(argv)
    recipe = compose_recipe(arguments.recipe, arguments.overrides)
    inputs = read_inputs(recipe)
    recipe = check_run(recipe, inputs)
    cluster = cluster_of(arguments)
    job = training_job(
        recipe,
        recipe_argument=arguments.recipe,
        overrides=arguments.overrides,
        run_dir=arguments.output,
        cluster=cluster,
        time_limit_seconds=time_limit_of(arguments, cluster, kind=GPU),
        name=arguments.name,
    )
    run_dir = arguments.output
    longer = record_recipe(run_dir, recipe, writes=False)  # the training's own refusal, before anything waits for it
    chain = ChainPlan(**values_of(arguments, ChainPlan))
    script = render_job(link_job(job, run_dir, chain, submission=1, tag=run_tag(run_dir, 1)), cluster)
    if arguments.submit:
        require_runtime(cluster)
    checked = check_site([job], cluster, must_answer=arguments.submit)
    print("\n".join(plan_lines(Submission(recipe, inputs, job, cluster, chain, run_dir, checked))), flush=True)
    rehearsal = None
    if arguments.rehearse:
        rehearsal = rehearsed(arguments.recipe, arguments.overrides, cluster)
        require_fit(rehearsal, subject=f"recipe {recipe.name} on {cluster.name}")
        print("\n".join(rehearsal_lines(rehearsal)))
    if longer:
        print(f"\n{longer}")
    if not arguments.submit:
        print(f"\nThe script of the first job:\n\n{script}\nNothing was submitted; add --submit to submit.")
        return command.DONE
    job_ids = submit_chain(job, cluster, run_dir, chain, total_steps=recipe.total_steps)
    if not job_ids:
        print(f"the run in {run_dir} is finished; nothing was sent")
    else:
        if rehearsal is not None:
            keep_rehearsal(run_dir, rehearsal)  # jobs look for it when their first step has ended
        print(f"sent jobs {', '.join(job_ids)}; watch them with `{suggested('slurm.status', run_dir)}`")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
