"""Why an attempt ended, read from its exit code and from what Slurm and the tasks wrote into its log."""

from __future__ import annotations

import re
from dataclasses import dataclass

from common import command

FINISHED = "finished"
TIME_LIMIT = "time limit"  # saved and left in time
SIGNALLED = "signalled"  # saved and left because somebody asked for it
STOPPED = "stopped"  # by slurm.stop
PREEMPTED = "preempted"
NODE_FAILURE = "node failure"
REQUEUED = "requeued"  # by a user
CANCELLED = "cancelled"  # by a user
TIMED_OUT = "killed at the time limit"  # did not save in time
OUT_OF_MEMORY = "out of memory"
DISK_FULL = "disk full"
REFUSED = "refused"  # the command refused its input, which no further attempt changes
HUNG = "hung"  # no step for too long, which the training's own watchdog ended
IN_USE = "directory in use"  # another training holds the lease
TAKEN_OVER = "taken over"  # another training has taken the lease, as when Slurm had lost the node and started the job again
DAMAGED = "damaged checkpoint"  # which is then set aside
FAILED = "failed"
VANISHED = "killed without a message"

SAVED = (FINISHED, TIME_LIMIT, SIGNALLED, STOPPED)  # ends without a failure, after a checkpoint
OF_THE_RUN = (TIMED_OUT, OUT_OF_MEMORY, DISK_FULL, REFUSED, HUNG, DAMAGED, FAILED, VANISHED)  # the others are the cluster's or somebody's

# As slurmstepd writes it for jobs and steps, perhaps behind a progress bar; without a reason somebody cancelled it.
_CANCELLED = re.compile(
    r"slurmstepd[\w.-]*: (?P<line>error: \*\*\* (?P<what>JOB|STEP) (?P<job>\d+)\S* ON \S+ CANCELLED AT \S+(?: DUE TO (?P<reason>[A-Z ]+?))?(?:,.*)? \*\*\*)"
)
_BY_REASON = {
    "TIME LIMIT": TIMED_OUT,
    "PREEMPTION": PREEMPTED,
    "NODE FAILURE": NODE_FAILURE,
    "JOB REQUEUE": REQUEUED,
    None: CANCELLED,
}
_BY_STATE = {
    "TIMEOUT": TIMED_OUT,
    "DEADLINE": TIMED_OUT,
    "PREEMPTED": PREEMPTED,
    "NODE_FAIL": NODE_FAILURE,
    "BOOT_FAIL": NODE_FAILURE,
    "REQUEUED": REQUEUED,
    "CANCELLED": CANCELLED,
    "OUT_OF_MEMORY": OUT_OF_MEMORY,
}
_NODE_FAILED = re.compile(r"srun: error: (?:Node failure on|Task launch for \S+ failed on node) (?P<nodes>[\w.,-]+)")
_TASK_FAILED = re.compile(r"srun: error: (?P<node>[\w.-]+): tasks? (?P<task>[\d,-]+): (?P<how>.+)")
_BY_EXIT_CODE = {command.IN_USE: IN_USE, command.LOST: TAKEN_OVER, command.HUNG: HUNG, command.DAMAGED: DAMAGED}
_OOM_KILLED = re.compile(r"(?:slurmstepd[\w.-]*|srun): error: .*(?:oom[-_ ]kill|Out Of Memory)", re.IGNORECASE)  # by Slurm
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|out of memory", re.IGNORECASE)
_STARTER = re.compile(
    r"^srun: (?:fatal: (?!.*(?:configuration source|[Uu]nable to contact|[Cc]onnection|[Tt]imed out)).+|.*\bmutually exclusive\b.*|(?:unrecognized|invalid) option .+)$",
    re.MULTILINE,
)  # no task began
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded|the disk (of .* )?is full")
_MESSAGE = re.compile(r"^(?:\d+: )?(?:\[rank\d+\]: )?(error: (?!\*\*\*).+|[A-Za-z_.]*(?:Error|Exception|Interrupt)\b.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Cause:
    """Why, the line that says more, and the nodes at fault."""

    name: str
    detail: str = ""
    bad_nodes: tuple[str, ...] = ()


def cause_of_clean_end(*, is_finished: bool, stop_requested: bool, seconds_left: float | None, signal_seconds: float) -> Cause:
    """Why a training ended with exit code 0.

    Args:
        seconds_left: of the job's time limit when it ended; None where Slurm did not say.
        signal_seconds: how long before the limit it was to be signalled; Slurm does so up to a minute earlier.
    """
    if is_finished:
        return Cause(FINISHED)
    if stop_requested:
        return Cause(STOPPED)
    if seconds_left is not None and seconds_left > signal_seconds + 90:
        return Cause(SIGNALLED, f"{seconds_left:.0f} s before the time limit")
    return Cause(TIME_LIMIT)


def cause_by_slurm(log: str, *, job: str | None = None) -> Cause | None:
    """What Slurm itself says that it ended the job for; None where it did not.

    Args:
        job: its SLURM_JOB_ID; None where that is not known, and lines of any job count.
    """
    if failed := _failed_nodes(log):
        return Cause(NODE_FAILURE, _line_of(log, _NODE_FAILED), failed)
    # Steps are cancelled without a reason also when a task failed, so only a job's line says that somebody cancelled it.
    for found in _CANCELLED.finditer(log):
        reason = found["reason"]
        if (reason is not None or found["what"] == "JOB") and job in (None, found["job"]):
            return Cause(_BY_REASON.get(reason, CANCELLED), found["line"].removeprefix("error: "))
    return None


def cause_of_failure(log: str, *, job: str | None = None, slurm_state: str | None = None, was_requeued: bool = False) -> Cause:
    """Why an attempt ended with another exit code, or without one.

    What Slurm did comes first, because tasks that it kills complain as well.  Then the exit code of the first task that failed and the last error
    before Slurm said so, which is that task's own; what stands elsewhere in the log, such as a warning of a library, decides nothing.

    Args:
        log: the end of the attempt's log.
        job: as in `cause_by_slurm`.
        slurm_state: the job's state, where Slurm still knows it and the job has not started again.
        was_requeued: the same job has started again since.
    """
    if (cancelled := cause_by_slurm(log, job=job)) is not None:
        return cancelled
    if slurm_state in _BY_STATE:
        return Cause(_BY_STATE[slurm_state], f"Slurm says {slurm_state}")
    if _OOM_KILLED.search(log):
        return Cause(OUT_OF_MEMORY, _line_of(log, _OOM_KILLED))
    for found in _TASK_FAILED.finditer(log):
        name = next((name for code, name in _BY_EXIT_CODE.items() if found["how"].endswith(f"exit code {code}")), None)
        if name is not None:
            return Cause(name, _with_message(f"task {found['task']} on {found['node']}", log))
    task = _TASK_FAILED.search(log)
    if task is None and (refused := _STARTER.search(log)):
        return Cause(REFUSED, refused[0])
    messages = [found[1].strip() for found in _MESSAGE.finditer(log[: task.start()] if task else log)]
    if messages and (task is None or "exit code" in task["how"]):  # a task that was killed has no last word
        if _DISK_FULL.search(messages[-1]):
            return Cause(DISK_FULL, messages[-1])
        if _OUT_OF_MEMORY.search(messages[-1]):
            return Cause(OUT_OF_MEMORY, messages[-1])
        if task and task["how"].endswith("exit code 2"):
            return Cause(REFUSED, messages[-1])
    if task:
        return Cause(FAILED, _with_message(f"task {task['task']} on {task['node']}: {task['how'].strip()}", log))
    if was_requeued:  # its first node was lost with everything that could have written about it
        return Cause(NODE_FAILURE, "Slurm started the job again")
    return Cause(FAILED if messages else VANISHED, _with_message("", log))


def _failed_nodes(log: str) -> tuple[str, ...]:
    names = [name for found in _NODE_FAILED.finditer(log) for name in found["nodes"].rstrip(".,:").split(",")]
    return tuple(dict.fromkeys(names))


def _line_of(log: str, pattern: re.Pattern[str]) -> str:
    found = pattern.search(log)
    if found is None:
        return ""
    start = log.rfind("\n", 0, found.start()) + 1
    return log[start : log.find("\n", found.end()) if "\n" in log[found.end() :] else len(log)].strip()


def _with_message(what: str, log: str) -> str:
    """What happened, with the last line that reads like an error message of ours or Python's."""
    messages = [found[1].strip() for found in _MESSAGE.finditer(log)]
    return "; ".join(part for part in (what, messages[-1] if messages else "") if part)
