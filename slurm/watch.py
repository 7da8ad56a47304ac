"""Evaluate the checkpoints of a run on a cluster as they appear: a job array of eval.watch workers that share a queue.

Prints the plan and the exact job script; with --submit, submits it.  A worker near its time limit returns its checkpoint to the queue
and exits; with --rounds another job takes its place.  What follows `--` is passed to eval.harness.  Nothing is submitted without --submit.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from common import command
from common.command import suggested
from common.options import add_option, add_options, given
from slurm.jobs.arguments import add_cluster_arguments, add_time_argument, cluster_of, output_directory, time_limit_of
from slurm.jobs.job import CPU, GPU, ROOT
from slurm.jobs.queue import send_job
from slurm.jobs.render import render_job
from slurm.jobs.watching import LOGS_NAME, WatchPlan, watch_job, with_absolute_paths
from slurm.sites.cluster import Cluster
from slurm.sites.site import check_site, require_runtime

SCRIPT_NAME = "job.sh"


def main(argv: Sequence[str] | None = None) -> int:
    """Check, print; with --submit send."""
    arguments = _parser().parse_args(argv)
    if not arguments.harness:
        raise ValueError("nothing to evaluate: give --text or --tasks after --, as for eval.harness")
    run_dir, output = arguments.run.absolute(), arguments.output
    harness, paths = with_absolute_paths(arguments.harness)
    cluster = cluster_of(arguments)
    plan = _plan(arguments, cluster)
    job = watch_job(run_dir, output, harness, plan, time_limit_seconds=time_limit_of(arguments, cluster, kind=plan.kind), paths=paths)
    script = render_job(job, cluster)
    status = _status(run_dir, output, plan.options, harness)
    if arguments.submit:
        require_runtime(cluster)
    checked = check_site([job], cluster, must_answer=arguments.submit)
    print(f"{status}\n\nchecked: {checked}")
    if not arguments.submit:
        print(f"\nThe script of the array:\n\n{script}\nNothing was submitted; add --submit to submit.")
        return command.DONE
    path = output / LOGS_NAME / SCRIPT_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, encoding="utf-8")
    print(f"sent job {send_job(path)}; watch it with `{suggested('eval.watch', '--run', run_dir, '--output', output, '--status')}`")
    return command.DONE


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__,
        example="python -m slurm.watch --cluster vega --account b25 --run runs/sl --output runs/sl_evaluations --workers 2 --time 04:00:00"
        " -- --text sl=heldout.sl.txt --tasks sl_generative --data eval_data",
    )
    add_option(parser, "--run DIR", "directory of the training run (output of recipes.train)", type=Path, required=True)
    add_option(
        parser,
        "--output DIR",
        "directory for queue, results and logs, on a file system that all nodes share",
        type=output_directory,
        required=True,
    )
    add_cluster_arguments(parser)
    add_time_argument(parser)
    add_options(parser, WatchPlan, "workers", "rounds", "gpus")
    add_option(parser, "--on-cpus", "use the CPU partition", False)
    add_options(parser, WatchPlan, "signal_seconds")
    add_option(parser, "--once", "workers exit when the queue is empty, instead of watching until the run is over", False)
    add_option(parser, "--every SECONDS", "seconds between two checks for new checkpoints (default: that of eval.watch)", type=float)
    add_option(parser, "--idle-minutes M", "minutes without a new checkpoint after which workers exit (default: never)", type=float)
    add_option(parser, "--submit", "submit the jobs", False)
    parser.add_argument("harness", nargs="*", help="after --: texts, tasks and settings, as eval.harness takes them")
    return parser


def _plan(arguments: argparse.Namespace, cluster: Cluster) -> WatchPlan:
    options = ["--once"] if arguments.once else []
    for name in ("every", "idle_minutes"):
        if (value := getattr(arguments, name)) is not None:
            options += [f"--{name.replace('_', '-')}", f"{value:g}"]
    kind = CPU if arguments.on_cpus else GPU
    gpus = int(kind == GPU and cluster.gpu.gpus_per_node > 0)
    return WatchPlan(kind, **{"gpus": gpus, **given(arguments, WatchPlan)}, options=tuple(options))


def _status(run_dir: Path, output: Path, options: Sequence[str], harness: Sequence[str]) -> str:
    """The matrix of what is evaluated, from eval.watch itself, which refuses now what its workers would refuse.

    Raises:
        ValueError: with its sentence.
    """
    only_worker = [word for word in options if word != "--once"]
    words = [sys.executable, "-m", "eval.watch", "--run", str(run_dir), "--output", str(output), "--status", *only_worker, "--", *harness]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError((done.stderr.strip().splitlines() or ["eval.watch failed without a message"])[-1].removeprefix("error: "))
    return done.stdout.rstrip()


if __name__ == "__main__":
    command.run(main)
