"""What this project asks of Slurm: jobs in the queue, sending, cancelling, signalling; thin over its commands."""

from __future__ import annotations

import contextlib
import contextvars
import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_SECONDS = 60
_ASK_AGAIN_SECONDS = 3.0
_ONLY_ASK = ("squeue", "sinfo")
_NO_ANSWER = re.compile(r"unable to contact|timed out|zero bytes|communication|connection|in standby|temporar", re.IGNORECASE)
_patience_seconds = contextvars.ContextVar("patience_seconds", default=0.0)
_QUEUE_FORMAT = "%A|%F|%K|%T|%r|%N|%x|%k"
_QUEUE_LINE = re.compile(r"(\d+)\|(\d+)\|([^|]*)\|([A-Z_]+)\|([^|]*)\|([^|]*)\|([^|]*)\|(.*)")
_PLAIN = {"SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "standard"}  # squeue would cut a long list of indices; times may be relative


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
        return self.state == "PENDING"


@dataclass(frozen=True)
class Tag:
    """The comment that jobs are sent with, by which they are found in the queue though nobody noted their ids.

    Attributes:
        comment: of the jobs; those whose comment goes on behind it with a slash have the tag too.
        array_index: of members of arrays, those with this index alone.
    """

    comment: str
    array_index: int | None = None

    def is_of(self, job_id: str, comment: str) -> bool:
        """Whether a job has the tag."""
        is_member = self.array_index is None or job_id.endswith(f"_{self.array_index}")
        return bool(self.comment) and is_member and f"{comment}/".startswith(f"{self.comment}/")


def own_job_id(environment: Mapping[str, str]) -> str | None:
    """The id of the job that this process is part of, for a member of an array ARRAY_INDEX; None outside of a job."""
    if "SLURM_ARRAY_JOB_ID" in environment:
        return f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    return environment.get("SLURM_JOB_ID")


def send_job(script: Path, *options: str) -> str:
    """Give a job script to Slurm.

    Returns:
        The job's id.

    Raises:
        ValueError: with Slurm's own words, where it refuses the job.
    """
    return _slurm("sbatch", "--parsable", *options, str(script), new_session=True).strip().partition(";")[0]


def queued_jobs(job_ids: Iterable[str], tags: Iterable[Tag] = ()) -> list[QueuedJob]:
    """Those of the jobs that wait or run, whoever they belong to, in the order asked for; behind them others with one of the tags."""
    wanted, tags = {job_id: place for place, job_id in enumerate(job_ids)}, tuple(tags)
    if not wanted and not tags:
        return []
    # The whole queue: squeue refuses a list with an id that it has forgotten.
    output = _slurm("squeue", "--noheader", f"--format={_QUEUE_FORMAT}")
    jobs = []
    for found in map(_QUEUE_LINE.fullmatch, output.splitlines()):
        if found is None:
            continue  # the rest of somebody's comment that has line breaks
        job_id, array, indices, state, reason, nodes, excluded, comment = found.groups()
        names = [job_id] if indices == "N/A" else [f"{array}_{index}" for index in _array_indices(indices)]
        names = [name for name in names if name in wanted or any(tag.is_of(name, comment) for tag in tags)]
        jobs += [QueuedJob(name, state, reason, expand_nodes(nodes), comment, expand_nodes(excluded)) for name in names]
    return sorted(jobs, key=lambda job: wanted.get(job.job_id, len(wanted)))


def _array_indices(text: str) -> Iterator[int]:
    """0-2,5%4 -> 0, 1, 2, 5; 0-198:3 -> 0, 3, 6 ... 198."""
    for part in text.partition("%")[0].split(","):
        span, _, stride = part.partition(":")
        first, _, last = span.partition("-")
        yield from range(int(first), int(last or first) + 1, int(stride or 1))


def job_state(job_id: str) -> str | None:
    """The state of one job, ended or not; None where Slurm has forgotten it."""
    done = subprocess.run(["scontrol", "--oneliner", "show", "job", job_id], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
    for word in done.stdout.split():
        if word.startswith("JobState="):
            return word.removeprefix("JobState=")
    try:
        ended = subprocess.run(
            ["sacct", "-n", "-P", "-X", "-j", job_id, "-o", "state"], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS
        )
    except FileNotFoundError:
        return None
    states = ended.stdout.split("\n")[0].split()
    return states[0] if states and ended.returncode == 0 else None


def seconds_left(job_id: str) -> float | None:
    """Of a job's time limit; None where Slurm does not say."""
    try:
        answer = _slurm("squeue", "--noheader", f"--jobs={job_id}", "--format=%L")
    except ValueError:
        return None
    days, _, clock = answer.strip().rpartition("-")
    try:
        parts = [int(part) for part in clock.split(":")]
    except ValueError:
        return None  # UNLIMITED, INVALID or nothing
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + part
    return seconds + 86400 * int(days or 0)


def cancel_jobs(job_ids: Sequence[str]) -> None:
    """Cancel jobs; those that have ended are passed over."""
    if job_ids:
        subprocess.run(["scancel", *job_ids], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)


def take_back(job_ids: Sequence[str], tag: Tag) -> None:
    """Cancel the jobs of a submission that came to nothing, also one that Slurm took without that its answer came in time."""
    cancel_jobs(job_ids[::-1])  # the last first, so that none starts because the one before it is gone
    with contextlib.suppress(ValueError):  # no answer; a job that is left finds that it was not written down, or is cancelled already
        cancel_jobs([job.job_id for job in queued_jobs((), [tag])])


def signal_steps(job_id: str, signal_name: str) -> None:
    """Send a signal to all processes of a job's steps, not to its script."""
    _slurm("scancel", f"--signal={signal_name}", _own_id(job_id))


def _own_id(job_id: str) -> str:
    """The id under which a member of an array can be signalled.

    While other members wait, scancel fails for ARRAY_INDEX though it sends the signal (22.05), so it is the id that the member got when it
    started.  The last to start keeps the array's own, which would mean all of them, but then none waits.
    """
    array, underscore, _ = job_id.partition("_")
    if not underscore:
        return job_id
    own = _slurm("squeue", "--noheader", f"--jobs={job_id}", "--format=%A").strip()
    return own if own and own != array else job_id


def exclude_nodes(job_id: str, nodes: Sequence[str]) -> None:
    """Keep a waiting job off some nodes, and off no others."""
    _slurm("scontrol", "update", f"JobId={job_id}", f"ExcNodeList={','.join(nodes)}")


def failed_nodes(nodes: Sequence[str]) -> tuple[str, ...]:
    """Those of the nodes that Slurm has lost or taken out."""
    if not nodes:
        return ()
    output = _slurm("sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N %T")
    states = dict(line.split(None, 1) for line in output.splitlines() if line.strip())
    return tuple(node for node in nodes if states.get(node, "").startswith(("down", "fail", "drain", "unk")) or "*" in states.get(node, ""))


def partition_nodes(partition: str) -> dict[str, tuple[str, str]]:
    """State and generic resources of every node of a partition, as sinfo writes them."""
    lines = _slurm("sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N|%T|%G").splitlines()
    return {name: (state, resources) for name, state, resources in (line.strip().split("|", 2) for line in lines)}


def gpu_count(resources: str) -> int:
    """GPUs of a node from its generic resources: gpu:a100:4(S:0-1),craynetwork:2."""
    return sum(int(count) for count in re.findall(r"\bgpu(?::[^:,()]+)?:(\d+)", resources))


def daemon_start(node: str) -> float | None:
    """When a node's daemon was started, seconds since 1970; None where Slurm does not say."""
    found = re.search(r"SlurmdStartTime=(\d+-\d+-\d+T\d+:\d+:\d+)", _slurm("scontrol", "show", "node", node))
    return time.mktime(time.strptime(found[1], "%Y-%m-%dT%H:%M:%S")) if found else None


def expand_nodes(nodes: str) -> tuple[str, ...]:
    """The names that Slurm's short form stands for: gn[01-03] -> gn01, gn02, gn03."""
    if "[" not in nodes:
        return tuple(nodes.split(",")) if nodes else ()
    return tuple(_slurm("scontrol", "show", "hostnames", nodes).split())


@contextlib.contextmanager
def patient(seconds: float) -> Iterator[None]:
    """A block in which Slurm is asked again while it gives no answer, as when its controller is started anew."""
    token = _patience_seconds.set(seconds)
    try:
        yield
    finally:
        _patience_seconds.reset(token)


def _slurm(program: str, *arguments: str, new_session: bool = False) -> str:
    """What a command of Slurm prints; with patience for what is no refusal.

    Args:
        new_session: keep what a terminal sends to everything that runs in it from the command.
    """
    end = time.monotonic() + _patience_seconds.get()
    while True:
        try:
            return _slurm_once(program, *arguments, new_session=new_session)
        except _SlurmError as error:
            if time.monotonic() > end or not error.may_pass:
                raise
            time.sleep(_ASK_AGAIN_SECONDS)


class _SlurmError(ValueError):
    """Slurm refused something, or gave no answer."""

    def __init__(self, message: str, *, may_pass: bool) -> None:
        super().__init__(message)
        self.may_pass = may_pass


def _slurm_once(program: str, *arguments: str, new_session: bool) -> str:
    try:
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            env=os.environ | _PLAIN,
            start_new_session=new_session,
        )
    except FileNotFoundError:
        raise ValueError(f"there is no {program} on this machine; run this where Slurm's commands are, on a login node") from None
    except subprocess.TimeoutExpired:
        message = f"{program} gave no answer within {_TIMEOUT_SECONDS} s; try again when Slurm's controller answers"
        raise _SlurmError(message, may_pass=program != "sbatch") from None  # which may have sent the job all the same
    if done.returncode:
        message = done.stderr.strip().removeprefix(f"{program}: ").removeprefix("error: ")
        may_pass = (program in _ONLY_ASK and "invalid" not in message.lower()) or (bool(_NO_ANSWER.search(message)) and program != "sbatch")
        raise _SlurmError(f"{program} refused: {' / '.join(message.splitlines()) or f'exit code {done.returncode}'}", may_pass=may_pass)
    return done.stdout
