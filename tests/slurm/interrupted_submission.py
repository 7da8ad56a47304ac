"""A process that submits a chain and is stopped at one chosen step: before a change of a file, or while Slurm takes a job.

Steps are counted by Python's audit events, so that none is forgotten when the code that submits changes.  Each submission is a fork of this
process, as imports take longer than all the rest.

    python -m tests.slurm.interrupted_submission BASE SIGNAL ...  # prints a run's directory and its exit code, a line each

SIGTERM:sending is that signal only while Slurm takes a job.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import command
from slurm.chains.chain import ChainPlan, submit_chain
from slurm.jobs.job import Job
from slurm.sites.cluster import Cluster, load_cluster
from tests.processes import ROOT

LINKS = 2
FINISHED_NAME = "finished"
_CHANGES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "subprocess.Popen")
_WRAPPER = '#!/bin/bash\nif [ -n "${INTERRUPT:-}" ] && [ "$(basename "${@: -1}")" = "$AT" ]; then kill -"$INTERRUPT" "$PPID"; fi\nexec {real} "$@"\n'


def light_job(run_dir: Path, finished: Path) -> Job:
    return Job(
        name=run_dir.name,
        command=("bash", str(ROOT / "tests" / "slurm" / "lightest_training.sh"), str(run_dir), str(finished)),
        time_limit_seconds=600,
        log_dir=run_dir.parent,
        cpus_per_task=1,
        memory_gib=4,
    )


def cluster() -> Cluster:
    return load_cluster("local", ("account=scion", f"runtime.venv={sys.prefix}"))


def submit(run_dir: Path) -> list[str]:
    plan = ChainPlan(links=LINKS, signal_seconds=60, recording_seconds=4)
    return submit_chain(light_job(run_dir, run_dir.parent / FINISHED_NAME), cluster(), run_dir, plan)


def at_change(wanted: int, act: Callable[[], object], count: list[int]) -> None:
    """From now on, act before the change with a number; counts all."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event != "open" or (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        if event in _CHANGES and writes:
            count[0] += 1
            if count[0] == wanted:
                act()

    sys.addaudithook(hook)


def run_in_fork(function: Callable[[], int]) -> int:
    """What a function returns that runs in a process of its own; negative where a signal ended it."""
    child = os.fork()
    if child == 0:
        os.setsid()  # as a terminal's foreground process, whose signals are not for this one
        try:
            command.run(lambda argv: function())
        except SystemExit as ended:
            os._exit(int(ended.code or 0))
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def count_changes(run_dir: Path) -> int:
    count = [0]

    def body() -> int:
        at_change(-1, lambda: None, count)
        submit(run_dir)
        return count[0]

    return run_in_fork(body)


def main(argv: list[str]) -> int:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and so in every child
    base = Path(argv[0])
    (base / "bin").mkdir()
    wrapper = base / "bin" / "sbatch"
    wrapper.write_text(_WRAPPER.replace("{real}", str(shutil.which("sbatch"))))
    wrapper.chmod(0o755)
    os.environ["PATH"] = f"{wrapper.parent}:{os.environ['PATH']}"
    changes = count_changes(base / "whole")
    print(base / "whole", "nowhere", flush=True)
    for argument in argv[1:]:
        name, _, only_sending = argument.partition(":")
        number = signal.Signals[name]
        for step in range(1, 1 if only_sending else changes + 1):
            run_dir = base / f"{name}-before-{step}"

            def before_a_change(run_dir: Path = run_dir, step: int = step, number: int = number) -> int:
                at_change(step, lambda: os.kill(os.getpid(), number), [0])
                submit(run_dir)
                return 0

            print(run_dir, run_in_fork(before_a_change), flush=True)
        for link in range(1, LINKS + 1):
            run_dir = base / f"{name}-while-sending-{link}"

            def while_sending(run_dir: Path = run_dir, link: int = link, name: str = name) -> int:
                os.environ |= {"INTERRUPT": name.removeprefix("SIG"), "AT": f"link-{link}.sh"}
                submit(run_dir)
                return 0

            print(run_dir, run_in_fork(while_sending), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
