"""Evaluate every checkpoint of a training run as it appears: export, comparison with the original, texts and tasks.

The newest checkpoint goes first, then those that were missed.  The state of the queue is kept in files below --output, so the
command can be stopped and started at any time, and any number of them can share the work; `slurm.watch` makes them the jobs of a Slurm
array.  SIGUSR1 or SIGTERM returns the checkpoint being evaluated to the queue.  A waiting checkpoint is protected from a
training run that keeps only its newest ones.  What follows `--` is passed to eval.harness unchanged.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from common import command
from common.options import add_option
from eval.running.harness_options import add_harness_arguments
from eval.running.watched_run import WatchedRun
from recipes.runs.run_dir import CHECKPOINTS_NAME


def watch(run: WatchedRun, *, once: bool, every_seconds: float, idle_seconds: float | None) -> None:
    """Evaluate until the run is over, or with `once` until nothing waits, or until nothing has come for `idle_seconds`."""
    last_work = time.monotonic()
    while True:
        while run.evaluate_next() is not None:
            last_work = time.monotonic()
        if once or run.is_over():
            return
        if idle_seconds is not None and time.monotonic() - last_work >= idle_seconds:
            print(f"nothing to evaluate for {idle_seconds / 60:g} minutes; this worker exits", file=sys.stderr, flush=True)
            return
        time.sleep(every_seconds)


def _leave_in_time(signum: int, frame: FrameType | None) -> None:
    """Slurm's warning before the time limit: an end as by SIGTERM, but a good one."""
    os.write(2, b"asked to exit before the time limit\n")  # sys.stderr refuses who comes while it is being written to
    raise SystemExit(command.DONE)


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__, example="python -m eval.watch --run work/run --output work/evaluations -- --text sl=heldout.sl.txt --tasks completion_sl"
    )
    add_option(parser, "--run DIR", "directory of the training run (output of recipes.train)", type=Path, required=True)
    add_option(parser, "--output DIR", "folder of queue/, results/, logs/ and exports/", type=Path, required=True)
    what = parser.add_mutually_exclusive_group()
    add_option(what, "--status", "print what is done and what is waiting, and exit", False)
    add_option(what, "--release", "release the run's checkpoints that this --output holds, and exit", False)
    add_option(what, "--once", "exit when the queue is empty, instead of watching until the run is over", False)
    add_option(parser, "--retry-failed", "retry checkpoints whose evaluation failed", False)
    add_option(parser, "--keep-exports", "keep the Hugging Face folder of every checkpoint", False)
    add_option(parser, "--every SECONDS", "seconds between two checks for new checkpoints", 60, type=float)
    add_option(parser, "--idle-minutes M", "minutes without a new checkpoint after which to exit (default: never)", type=float)
    add_option(parser, "--hold-hours H", "hours that a waiting checkpoint is protected from deletion after the last check", 24, type=float)
    parser.add_argument("harness", nargs="*", help="after --: texts, tasks and settings, as eval.harness takes them")
    return parser


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what could only fail, for every checkpoint."""
    if not (arguments.run / CHECKPOINTS_NAME).is_dir():
        raise ValueError(f"{arguments.run} has no {CHECKPOINTS_NAME}; expected the output of `python -m recipes.train`")
    for name in ("every", "idle_minutes", "hold_hours"):
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            raise ValueError(f"--{name.replace('_', '-')} is {value}; it must be more than 0")
    if (arguments.status or arguments.release) and not arguments.harness:
        return
    if not {"--text", "--tasks"} & set(arguments.harness):
        raise ValueError("nothing to evaluate: give --text or --tasks after --, as for eval.harness")
    if taken := {"--model", "--output", "--run"} & set(arguments.harness):
        raise ValueError(f"{' and '.join(sorted(taken))} after --: the command sets them itself; leave them out")
    harness = argparse.ArgumentParser(prog="eval.harness")
    add_harness_arguments(harness)
    harness.parse_args(["--model", "any", "--output", "any", *arguments.harness])  # ends this command where it would end that one


def main(argv: Sequence[str] | None = None) -> int:
    """Watch; 0 if all went well, 1 if a checkpoint failed."""
    arguments = _parser().parse_args(argv)
    _check(arguments)
    run = WatchedRun(
        arguments.run,
        arguments.output,
        tuple(arguments.harness),
        keep_exports=arguments.keep_exports,
        hold_seconds=3600 * arguments.hold_hours,
    )
    if arguments.status:
        print(run.status())
        return command.DONE
    if arguments.release:
        released = run.release_all()
        print(f"released {', '.join(released)}" if released else f"{arguments.output} holds no checkpoint of {arguments.run}")
        return command.DONE
    if arguments.retry_failed:
        run.queue.retry_failed()
    before = signal.signal(signal.SIGUSR1, _leave_in_time)
    try:
        idle_seconds = None if arguments.idle_minutes is None else 60 * arguments.idle_minutes
        watch(run, once=arguments.once, every_seconds=arguments.every, idle_seconds=idle_seconds)
    finally:
        signal.signal(signal.SIGUSR1, before)
    print(run.status())
    return command.WRONG if run.queue.names("failed") else command.DONE


if __name__ == "__main__":
    command.run(main)
