"""What this project asks of Slurm: jobs in the queue, sending, cancelling, signalling; thin over its commands."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_SECONDS = 60
_ASK_AGAIN_SECONDS = 3.0
_ONLY_ASK = ("squeue", "sinfo")
# What the programs of Slurm and our own job scripts read or set: of the caller's shell, or of the job that it is in, and not meant for another job.
_OF_THE_CALLER = re.compile(
    r"(SLURMD?|SBATCH|SRUN|SALLOC|SQUEUE|SINFO|SACCT|SACCTMGR|SCANCEL|SCONTROL)_|SCION_(BY_RANK_|NODE_COPY|ADDRESS|CACHE_DIR|ENDED_JOBS|EXIT_CODE)"
)
_OF_THE_SITE = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")  # how the programs find their controller
_NO_ANSWER = re.compile(r"unable to contact|timed out|zero bytes|communication|connection|in standby|temporar", re.IGNORECASE)
_SENT = re.compile(r"(\d+)(?:;\S*)?")
_ENDED_LINE = re.compile(r"([A-Z_]+)[^|]*\|(.*)")  # CANCELLED by 1000
_TIME_LEFT = re.compile(r"(?:(\d+)-)?(\d+(?::\d+)*)")
_NODE_STATE = re.compile(r"(\S+) (\S+)")
_NODE_NAME = re.compile(r"([A-Za-z0-9][\w.-]*)")
_NODE_LINE = re.compile(r"([^|\s]+)\|([^|\s]+)\|(.*)")
_SLICE = re.compile(r"\d+g\.\d+gb")
_patience_seconds = contextvars.ContextVar("patience_seconds", default=0.0)
_QUEUE_FORMAT = "%A|%F|%K|%T|%r|%N|%x|%k"
_QUEUE_LINE = re.compile(r"(\d+)\|(\d+)\|([^|]*)\|([A-Z_]+)\|([^|]*)\|([^|]*)\|([^|]*)\|(.*)")
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
_PLAIN = {"SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "standard"}  # squeue would cut a long list of indices; times may be relative
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class QueuedJob:
    """A job that has not ended.

    Attributes:
        job_id: as in SLURM_JOB_ID; of a member of an array, ARRAY_INDEX.
        state: as in `squeue`: PENDING, RUNNING, COMPLETING, SUSPENDED ...
        reason: why it waits.
        nodes: that it runs on.
        comment: that it was sent with.
        excluded: nodes that it must not get.
    """

    job_id: str
    state: str
    reason: str
    nodes: tuple[str, ...]
    comment: str = ""
    excluded: tuple[str, ...] = ()

    @property
    def is_waiting(self) -> bool:
        """Whether it has not started."""
        return self.state in _WAITING


@dataclass(frozen=True)
class Tag:
    """The comment that jobs are sent with, by which they are found in the queue though nobody noted their ids.

    Attributes:
        comment: of the jobs; those whose comment continues after it with a slash have the tag too.
        array_index: of members of arrays, those with this index alone.
    """

    comment: str
    array_index: int | None = None

    def is_of(self, job_id: str, comment: str) -> bool:
        """Whether a job has the tag."""
        is_member = self.array_index is None or job_id.endswith(f"_{self.array_index}")
        return bool(self.comment) and is_member and f"{comment}/".startswith(f"{self.comment}/")


def own_job_id(environment: Mapping[str, str], *, is_array: bool) -> str | None:
    """The id of the job that this process is part of, for a member of an array ARRAY_INDEX; None outside of a job.

    Args:
        is_array: whether the job is one, which its own script says; variables of an array that sent it may be left in the environment.
    """
    if is_array and "SLURM_ARRAY_JOB_ID" in environment:
        return f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    return environment.get("SLURM_JOB_ID")


def send_job(script: Path, tag: Tag | None = None) -> str:
    """Give a job script to Slurm, which gets nothing of the caller's own settings of Slurm; what was left out is said.

    Args:
        tag: that the script has for its comment; on the command line accounting keeps it too.

    Returns:
        The job's id.

    Raises:
        ValueError: with Slurm's own words, where it refuses the job, or prints no id.
    """
    _warn_of_left_out(tuple(sorted(os.environ.keys() - own_environment().keys())))
    options = [f"--comment={tag.comment}"] if tag else []
    output = ask("sbatch", "--parsable", *options, str(script), new_session=True)
    ids = [job_id for (job_id,) in matching_lines(_SENT, output)]
    if not ids:
        raise ValueError(f"sbatch printed {output.strip()!r}, expected the id of the job; look for it with `squeue --me`, and cancel it")
    return ids[-1]  # a site's filter may have printed before it


def own_environment() -> dict[str, str]:
    """The variables of this process without those by which the caller's shell or job would speak to Slurm beside our script."""
    return {name: value for name, value in os.environ.items() if name in _OF_THE_SITE or not _OF_THE_CALLER.match(name)}


@functools.cache
def _warn_of_left_out(names: tuple[str, ...]) -> None:
    if names:
        print(f"{', '.join(names)} of this shell are not passed to sbatch: only the job script counts", file=sys.stderr, flush=True)


def queued_jobs(tags: Iterable[Tag]) -> list[QueuedJob]:
    """The jobs with one of the tags that wait or run, whoever they belong to, by their numbers.

    A number alone is believed nowhere: a controller that has lost its state gives numbers out again.
    """
    if not (tags := tuple(tags)):
        return []
    jobs = []
    for job_id, array, indices, state, reason, nodes, excluded, comment in ask_lines(
        _QUEUE_LINE, "squeue", "--noheader", f"--format={_QUEUE_FORMAT}"
    ):
        names = [job_id] if indices == "N/A" else [f"{array}_{index}" for index in _array_indices(indices)]
        names = [name for name in names if any(tag.is_of(name, comment) for tag in tags)]
        jobs += [QueuedJob(name, state, reason, expand_nodes(nodes), comment, expand_nodes(excluded)) for name in names]
    return sorted(jobs, key=lambda job: [int(part) for part in job.job_id.split("_")])


def _array_indices(text: str) -> Iterator[int]:
    """0-2,5%4 -> 0, 1, 2, 5; 0-198:3 -> 0, 3, 6 ... 198."""
    for part in text.partition("%")[0].split(","):
        span, _, stride = part.partition(":")
        first, _, last = span.partition("-")
        yield from range(int(first), int(last or first) + 1, int(stride or 1))


def job_state(job_id: str, tag: Tag) -> str | None:
    """The state of the job with a number and a tag, ended or not; None where Slurm has forgotten it or does not answer."""
    with contextlib.suppress(ValueError):
        words = ask("scontrol", "--oneliner", "show", "job", job_id).split()
        if f"Comment={tag.comment}" in words:
            return next(word.removeprefix("JobState=") for word in words if word.startswith("JobState="))
    with contextlib.suppress(ValueError):
        for state, submit_line in ask_lines(_ENDED_LINE, "sacct", "-n", "-P", "-X", "-j", job_id, "-o", "state,submitline"):
            if f"--comment={tag.comment}" in submit_line.split():
                return state
    return None


def seconds_left(job_id: str) -> float | None:
    """Of a job's time limit; None where Slurm does not say."""
    try:
        found = ask_lines(_TIME_LEFT, "squeue", "--noheader", f"--jobs={job_id}", "--format=%L")
    except ValueError:
        return None
    if not found:
        return None  # UNLIMITED, INVALID or nothing
    days, clock = found[-1]
    seconds = 0
    for part in clock.split(":"):
        seconds = seconds * 60 + int(part)
    return seconds + 86400 * int(days or 0)


def cancel_jobs(job_ids: Sequence[str]) -> None:
    """Cancel jobs; those that have ended are skipped.

    Raises:
        ValueError: if Slurm does not answer.
    """
    if not job_ids:
        return
    try:
        ask("scancel", *job_ids)
    except _SlurmError as error:
        if error.may_pass:
            raise


def take_back(job_ids: Sequence[str], tag: Tag) -> None:
    """Cancel the jobs of a submission that came to nothing, also one that Slurm took without that its answer came in time."""
    with contextlib.suppress(ValueError):  # no answer; a job that is left finds that it was not written down, or is cancelled already
        cancel_jobs(job_ids[::-1])  # the last first, so that none starts because the one before it is gone
        cancel_jobs([job.job_id for job in queued_jobs([tag])])


def signal_steps(job_id: str, signal_name: str) -> None:
    """Send a signal to all processes of a job's steps, not to its script."""
    ask("scancel", f"--signal={signal_name}", _own_id(job_id))


def _own_id(job_id: str) -> str:
    """The id under which a member of an array can be signalled.

    While other members wait, scancel fails for ARRAY_INDEX though it sends the signal (22.05), so it is the id that the member got when it
    started.  The last to start keeps the array's own, which would mean all of them, but then none waits.
    """
    array, underscore, _ = job_id.partition("_")
    if not underscore:
        return job_id
    own = ask_lines(_SENT, "squeue", "--noheader", f"--jobs={job_id}", "--format=%A")
    return own[-1][0] if own and own[-1][0] != array else job_id


def exclude_nodes(job_id: str, nodes: Sequence[str]) -> None:
    """Keep a waiting job off some nodes, and off no others."""
    ask("scontrol", "update", f"JobId={job_id}", f"ExcNodeList={','.join(nodes)}")


def failed_nodes(nodes: Sequence[str]) -> tuple[str, ...]:
    """Those of the nodes that Slurm has lost or taken out."""
    if not nodes:
        return ()
    lines = ask_lines(_NODE_STATE, "sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N %T")
    states = {line[0]: line[1] for line in lines}
    return tuple(node for node in nodes if states.get(node, "").startswith(("down", "fail", "drain", "unk")) or "*" in states.get(node, ""))


def partition_nodes(partition: str) -> dict[str, tuple[str, str]]:
    """State and generic resources of every node of a partition, as sinfo writes them."""
    lines = ask_lines(_NODE_LINE, "sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N|%T|%G")
    return {name: (state, resources) for name, state, resources in lines}


def gpu_count(resources: str) -> int:
    """Whole GPUs of a node from its generic resources: gpu:a100:4(S:0-1),craynetwork:2; a slice (1g.10gb) is none to a rank of NCCL."""
    count = 0
    for resource in re.sub(r"\([^)]*\)", "", resources).split(","):
        name, *rest = resource.split(":")
        if name == "gpu" and not any(_SLICE.search(part) for part in rest):
            count += next((int(part) for part in reversed(rest) if part.isdecimal()), 1)
    return count


def daemon_starts(nodes: Sequence[str]) -> dict[str, str]:
    """When the daemon of each node was started, as Slurm writes it: by the node's own clock, so only fit to see whether it changes."""
    if not nodes:
        return {}
    try:
        text = ask("scontrol", "--oneliner", "show", "node", ",".join(nodes))
    except ValueError:  # sites may hide nodes from users; a node that failed is then not let back in by itself
        return {}
    return dict(re.findall(r"NodeName=(\S+).*?SlurmdStartTime=(\S+)", text))


def expand_nodes(nodes: str) -> tuple[str, ...]:
    """The names that Slurm's short form stands for: gn[01-03] -> gn01, gn02, gn03."""
    if "[" not in nodes:
        return tuple(nodes.split(",")) if nodes else ()
    names = ask_lines(_NODE_NAME, "scontrol", "show", "hostnames", nodes)
    begins = tuple(re.findall(r"(?:^|,)([^,\[]+)", re.sub(r"\[[^]]*\]", "[", nodes)))
    return tuple(name for (name,) in names if name.startswith(begins))  # a site's script may have printed words of its own


@contextlib.contextmanager
def patient(seconds: float) -> Iterator[None]:
    """A block in which Slurm is asked again while it gives no answer, as when its controller is started anew."""
    token = _patience_seconds.set(seconds)
    try:
        yield
    finally:
        _patience_seconds.reset(token)


def matching_lines(pattern: re.Pattern[str], output: str) -> list[tuple[str, ...]]:
    """The groups of those lines that a command printed which are of a form.

    Others are skipped: `CLUSTER: name`, which some releases print though told --noheader, what a site's scripts say, and the rest of
    somebody's comment that has line breaks.
    """
    matches = map(pattern.fullmatch, map(str.strip, output.splitlines()))
    return [found.groups("") for found in matches if found]


def ask_lines(pattern: re.Pattern[str], program: str, *arguments: str) -> list[tuple[str, ...]]:
    """`matching_lines` of what a command of Slurm prints."""
    return matching_lines(pattern, ask(program, *arguments))


def ask(program: str, *arguments: str, new_session: bool = False) -> str:
    """What a command of Slurm prints; with patience for what is not a refusal.

    Args:
        new_session: keep what a terminal sends to everything that runs in it from the command.

    Raises:
        ValueError: if there is no such command, it refuses, or does not answer.
    """
    end = time.monotonic() + _patience_seconds.get()
    while True:
        try:
            return _ask_once(program, *arguments, new_session=new_session)
        except _SlurmError as error:
            if time.monotonic() > end or not error.may_pass:
                raise
            time.sleep(_ASK_AGAIN_SECONDS)


class _SlurmError(ValueError):
    """Slurm refused something, or gave no answer."""

    def __init__(self, message: str, *, may_pass: bool) -> None:
        super().__init__(message)
        self.may_pass = may_pass


def _ask_once(program: str, *arguments: str, new_session: bool) -> str:
    try:
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            env=own_environment() | (_PLAIN if program == "squeue" else {}),
            start_new_session=new_session,
        )
    except FileNotFoundError:
        raise ValueError(f"there is no {program} on this machine; run this where Slurm's commands are, on a login node") from None
    except subprocess.TimeoutExpired:
        message = f"{program} did not answer within {_TIMEOUT_SECONDS} s; try again when Slurm's controller responds"
        raise _SlurmError(message, may_pass=program != "sbatch") from None  # which may have sent the job all the same
    if done.returncode:
        message = done.stderr.strip().removeprefix(f"{program}: ").removeprefix("error: ")
        may_pass = (program in _ONLY_ASK and "invalid" not in message.lower()) or (bool(_NO_ANSWER.search(message)) and program != "sbatch")
        raise _SlurmError(f"{program} refused: {' / '.join(message.splitlines()) or f'exit code {done.returncode}'}", may_pass=may_pass)
    return done.stdout


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A block that Ctrl-C, a closed terminal or `kill` ends only behind its last line; then what came has the effect that it always has."""
    if threading.current_thread() is not threading.main_thread():  # the only one that handles signals
        yield
        return
    came: list[int] = []
    before = {ending: signal.signal(ending, lambda number, frame: came.append(number)) for ending in _ENDING}
    try:
        yield
    finally:
        for ending, handler in before.items():
            signal.signal(ending, handler)
        for number in came[:1]:
            signal.raise_signal(number)
