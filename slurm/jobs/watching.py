"""Evaluating the checkpoints of a run as a job array: workers that share the queue of `eval.watch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.options import option, require_values
from slurm.jobs.job import Job

# Of eval.harness: what follows names files, which a job must find wherever it runs and a container must see.
PATH_OPTIONS = ("--base", "--run", "--text", "--data", "--hub", "--task-dir", "--rouge-tokenizer")
LOGS_NAME = "slurm_logs"


@dataclass(frozen=True)
class WatchPlan:
    """How many workers, and what each gets.

    Attributes:
        workers: that run at the same time.
        rounds: how often a worker that reached its time limit has a successor: jobs of the array, divided by the workers.
        signal_seconds: before the time limit a worker gives its checkpoint back and leaves.
        options: of eval.watch, for example --once.
    """

    kind: str
    workers: int = option("--workers N", "number of workers: checkpoints evaluated at the same time", 1, least=1)
    rounds: int = option("--rounds N", "number of jobs of each worker, one after the other", 1, least=1)
    gpus: int = option("--gpus N", "GPUs per worker (default: 1 if the cluster has GPUs)", 1, of_command=None)
    signal_seconds: int = option("--signal-seconds S", "seconds before the time limit at which a worker stops", 120)
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_values(self)


def watch_job(
    run_dir: Path, output: Path, harness: Sequence[str], plan: WatchPlan, *, time_limit_seconds: int, paths: Sequence[Path] = ()
) -> Job:
    """The array of workers; the command of each is the same.

    Args:
        harness: arguments of eval.harness, as `with_absolute_paths` gives them, and `paths` with them.
    """
    return Job(
        name=f"watch-{run_dir.name}",
        command=("python", "-m", "eval.watch", "--run", str(run_dir), "--output", str(output), *plan.options, "--", *harness),
        time_limit_seconds=time_limit_seconds,
        log_dir=output / LOGS_NAME,
        log_name="%A_%a.log",
        kind=plan.kind,
        gpus_per_task=plan.gpus,
        array=f"0-{plan.workers * plan.rounds - 1}%{plan.workers}",
        signal_seconds_before_end=plan.signal_seconds,
        requeue=True,  # a worker whose node failed starts again, and its checkpoint is in the queue again
        paths=(run_dir, output, *paths),
    )


def with_absolute_paths(harness: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Arguments of eval.harness as they mean the same files in any directory, and these files and folders.

    Raises:
        ValueError: naming a file or folder that is not there.
    """
    words: list[str] = []
    paths: list[Path] = []
    option = ""
    for word in harness:
        prefix = ""
        if word.startswith("--"):
            option, equals, word = word.partition("=")
            prefix = option + equals
            if not equals:
                words.append(option)
                continue
        if option in PATH_OPTIONS:
            name, equals, file = word.rpartition("=") if option == "--text" else ("", "", word)
            path = Path(file).absolute()
            if not path.exists():
                raise ValueError(f"{option} {word}: {path} does not exist; give a path that the nodes of the cluster can read")
            prefix, word = prefix + name + equals, str(path)
            paths.append(path)
        words.append(prefix + word)
    return words, paths
