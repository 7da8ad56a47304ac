"""One batch job: what runs, on how much of a cluster, for how long.  Nothing of Slurm's syntax and nothing of a site is in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GPU, CPU = "gpu", "cpu"
_INTERACTIVE = ("bash", "interactive")  # lightning.fabric.plugins.environments.slurm: such a job's ranks would each train alone

_TIME_LIMIT = re.compile(r"(?:(?P<days>\d+)-)?(?P<hours>\d+):(?P<minutes>[0-5]\d):(?P<seconds>[0-5]\d)")
_ARRAY = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*(%[1-9]\d*)?")
_DEPENDENCY = re.compile(r"(singleton|(after|afterok|afterany|afternotok|aftercorr):\d+(:\d+)*)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Job:
    """A batch job.

    Attributes:
        name: as in `squeue`; any text without control characters and backslashes.
        command: words of what every task runs; never a shell line, so that nothing in them is interpreted.  `python` is that of the runtime.
        time_limit_seconds: asked for; Slurm counts in minutes, so it is rounded up.
        log_dir: directory of the log, on a file system that all nodes see; must exist when the job starts.
        log_name: file name of the log, in which Slurm replaces %j (job id), %x (name), %A and %a (array).
        kind: "gpu" or "cpu", the cluster's partition to run in.
        tasks_per_node: processes that srun starts on each node; for training one per GPU.
        gpus_per_task: all GPUs of a node are visible to its tasks, and a task takes the one of its local rank.
        cpus_per_task: by default an equal share of the node's, all of them for a job with as many tasks as GPUs.
        memory_gib: of each node; by default an equal share of the node's, all of it for a job that takes all GPUs or CPUs.
        dependencies: each as Slurm writes it: "afterok:17", "afterany:17:18", "singleton".
        array: indices as Slurm writes them, "0-11%4": twelve jobs, four at a time; the command reads SLURM_ARRAY_TASK_ID.
        signal_seconds_before_end: when every task gets SIGUSR1 before the time limit (up to a minute earlier, as Slurm does it).
        requeue: let Slurm start the job again under the same id after a node failed.
        outlives_nodes: the job continues without a node that fails, and starts again if the first one fails.
        exclude: nodes not to use.
        comment: by which the job is found in the queue.
        environment: variables of the job beyond those of the cluster.
        before: commands on the first node, outside the container, ahead of the step; one that fails ends the job.
        after: commands as in `before` after the step, whatever became of it; SCION_EXIT_CODE is the step's exit code.
        step_wait_seconds: for the other tasks after the first has ended; a task whose node's daemon died never says that it did.
        work_dir: the checkout, where everything runs.
        paths: files and directories outside the checkout that the commands read or write; a container sees no others.
    """

    name: str
    command: tuple[str, ...]
    time_limit_seconds: int
    log_dir: Path
    log_name: str = "%x-%j.log"
    kind: str = GPU
    num_nodes: int = 1
    tasks_per_node: int = 1
    gpus_per_task: int = 0
    cpus_per_task: int | None = None
    memory_gib: int | None = None
    dependencies: tuple[str, ...] = ()
    array: str | None = None
    signal_seconds_before_end: int | None = None
    requeue: bool = False
    outlives_nodes: bool = False
    exclude: tuple[str, ...] = ()
    comment: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    before: tuple[tuple[str, ...], ...] = ()
    after: tuple[tuple[str, ...], ...] = ()
    step_wait_seconds: int = 300
    work_dir: Path = ROOT
    paths: tuple[Path, ...] = ()

    @property
    def gpus_per_node(self) -> int:
        """GPUs that a node gives to the job."""
        return self.tasks_per_node * self.gpus_per_task

    @property
    def num_tasks(self) -> int:
        """Processes of the whole job."""
        return self.num_nodes * self.tasks_per_node


def job_problems(job: Job) -> list[str]:
    """What no cluster could run, a sentence each; empty for a sound job."""
    problems = []
    for name, value in (
        ("num_nodes", job.num_nodes),
        ("tasks_per_node", job.tasks_per_node),
        ("time_limit_seconds", job.time_limit_seconds),
        ("cpus_per_task", 1 if job.cpus_per_task is None else job.cpus_per_task),
        ("memory_gib", 1 if job.memory_gib is None else job.memory_gib),
        ("step_wait_seconds", job.step_wait_seconds),
        ("signal_seconds_before_end", 1 if job.signal_seconds_before_end is None else job.signal_seconds_before_end),
    ):
        if value < 1:
            problems.append(f"{name} is {value}; expected at least 1")
    if job.gpus_per_task < 0:
        problems.append(f"gpus_per_task is {job.gpus_per_task}; expected 0 or more")
    if job.kind not in (GPU, CPU):
        problems.append(f"kind is {job.kind!r}; expected {GPU!r} or {CPU!r}")
    if job.kind == CPU and job.gpus_per_task:
        problems.append(f"a job of the CPU partition asks for {job.gpus_per_task} GPUs per task; expected 0")
    if not job.command:
        problems.append("command is empty; expected at least one word")
    if job.signal_seconds_before_end is not None and job.signal_seconds_before_end >= job.time_limit_seconds:
        problems.append(
            f"the signal {job.signal_seconds_before_end} s before the end comes before the start of a job of {job.time_limit_seconds} s;"
            " ask for more time or for a later signal"
        )
    problems += _text_problems(job)
    return problems


def _text_problems(job: Job) -> list[str]:
    problems = []
    for name, text in (("name", job.name), ("log_dir", str(job.log_dir)), ("log_name", job.log_name)):
        if not text or "\\" in text or any(not character.isprintable() and character != "\t" for character in text):
            problems.append(
                f"{name} is {text!r}, which a #SBATCH line cannot hold; expected text without backslashes, line breaks and control characters"
            )
    if job.name in _INTERACTIVE:
        problems.append(f"name is {job.name!r}, by which Lightning recognises interactive sessions; choose another")
    if "/" in job.log_name:
        problems.append(f"log_name is {job.log_name!r}; expected a file name, with its directory in log_dir")
    if not job.log_dir.is_absolute():
        problems.append(f"log_dir is {str(job.log_dir)!r}; expected an absolute path, as nodes resolve it")
    problems += [
        f"{str(path)!r} in {name} is not an absolute path, which nodes need"
        for name, paths in (("work_dir", (job.work_dir,)), ("paths", job.paths))
        for path in paths
        if not path.is_absolute()
    ]
    if job.array is not None and not _ARRAY.fullmatch(job.array):
        problems.append(f"array is {job.array!r}; expected indices such as 0-11 or 0-11%4")
    problems += [
        f"the dependency {dependency!r} is not valid in Slurm; expected for example afterok:17, afterany:17:18 or singleton"
        for dependency in job.dependencies
        if not _DEPENDENCY.fullmatch(dependency)
    ]
    problems += [f"{node!r} in exclude is not a name of a node" for node in job.exclude if not _NODE_NAME.fullmatch(node)]
    problems += [f"{name!r} is not a name of an environment variable" for name in job.environment if not _VARIABLE.fullmatch(name)]
    words = [*job.command, *job.environment.values(), str(job.work_dir), *(word for line in (*job.before, *job.after) for word in line)]
    if any("\0" in word for word in words):
        problems.append("an argument or environment variable contains a NUL character, which cannot be passed to a program")
    return problems


def parse_time_limit(text: str) -> int:
    """Seconds of Slurm's days-hours:minutes:seconds.

    Raises:
        ValueError: for any other form; Slurm's own shorter ones mean minutes in one place and hours in another.
    """
    found = _TIME_LIMIT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"the time limit {text!r} is not of the form hours:minutes:seconds or days-hours:minutes:seconds")
    days, hours, minutes, seconds = (int(part or 0) for part in found.group("days", "hours", "minutes", "seconds"))
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def format_time_limit(seconds: int) -> str:
    """Slurm's hours:minutes:seconds, rounded up to the minutes in which it counts."""
    minutes = -(-seconds // 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"
