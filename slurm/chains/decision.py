"""Whether a run continues: from its attempts and checkpoints to continue, stop with a reason, or finished; and without which nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slurm.chains import causes
from slurm.chains.attempts import Attempt

CONTINUE, STOP, FINISHED = "continue", "stop", "finished"

# No further attempt would change these.
_FINAL = {
    causes.DISK_FULL: "free some space, then submit again",
    causes.REFUSED: "fix the cause, then submit again",
    causes.CANCELLED: "it was cancelled manually; submit again to resume",
}


_NOT_USABLE = ("down", "drain", "fail", "unk", "maint", "error", "inval", "future", "reboot", "power", "blocked", "perf")


@dataclass(frozen=True)
class Limits:
    """How much failing is enough.

    Attributes:
        attempts_without_progress: in a row, none of which left a newer checkpoint; preempted ones do not count.
        failures_in_a_row: attempts in a row that failed by themselves, with progress or without.
    """

    attempts_without_progress: int = 3
    failures_in_a_row: int = 5


@dataclass(frozen=True)
class Decision:
    """What is to happen next.

    Attributes:
        reason: for `STOP`, a sentence with what to do; for `FINISHED`, what was reached; else what happened last.
    """

    verdict: str
    reason: str


def decide(
    attempts: Sequence[Attempt],
    *,
    saved_step: int,
    total_steps: int | None,
    stop_requested: bool = False,
    limits: Limits = Limits(),
    submission: int | None = None,
) -> Decision:
    """Whether a run continues.

    Args:
        attempts: all of the run, each with its end, in their order.
        saved_step: of the newest complete checkpoint, 0 where there is none.
        total_steps: of the recipe; None where no attempt came as far as to record it.
        submission: only attempts of this submission are failures to count; submitting again is a new start.
    """
    if total_steps is not None and saved_step >= total_steps:
        return Decision(FINISHED, f"finished: {saved_step} of {total_steps} steps")
    if stop_requested:
        return Decision(STOP, f"stopped by slurm.stop, step {saved_step} is saved; submit again to resume")
    recent = [attempt for attempt in attempts if submission is None or attempt.submission == submission]
    reason = _too_much(recent, limits, saved_step=saved_step)
    if reason is not None:
        return Decision(STOP, reason)
    return Decision(CONTINUE, _last_end(recent))


def _too_much(attempts: Sequence[Attempt], limits: Limits, *, saved_step: int) -> str | None:
    if not attempts or attempts[-1].end is None:
        return None
    last = attempts[-1].end
    if last.cause in _FINAL:
        return f"attempt {attempts[-1].number}: {_describe(attempts[-1])}; {_FINAL[last.cause]}; step {saved_step} is saved"
    idle = _count_last(attempts, _made_no_progress, ignored=(causes.PREEMPTED,))
    if idle >= limits.attempts_without_progress:
        return (
            f"{idle} attempts in a row saved no newer checkpoint than step {saved_step}; the last one: {_describe(attempts[-1])};"
            f" read its log, then submit again"
        )
    failures = _count_last(attempts, _failed_by_itself, ignored=(causes.PREEMPTED, causes.NODE_FAILURE, causes.REQUEUED))
    if failures >= limits.failures_in_a_row:
        return f"{failures} attempts in a row failed; the last one: {_describe(attempts[-1])}; read its log, then submit again"
    return None


def _count_last(attempts: Sequence[Attempt], is_counted: Callable[[Attempt], bool], *, ignored: tuple[str, ...]) -> int:
    """How many attempts at the end of the list are counted, without those that are nobody's fault."""
    count = 0
    for attempt in reversed(attempts):
        if attempt.end is None or attempt.end.cause in ignored:
            continue
        if not is_counted(attempt):
            break
        count += 1
    return count


def _made_no_progress(attempt: Attempt) -> bool:
    return attempt.end is not None and attempt.end.step <= attempt.start_step


def _failed_by_itself(attempt: Attempt) -> bool:
    return attempt.end is not None and attempt.end.cause in causes.OF_THE_RUN


def _last_end(attempts: Sequence[Attempt]) -> str:
    return f"attempt {attempts[-1].number}: {_describe(attempts[-1])}" if attempts else "no attempt yet"


def _describe(attempt: Attempt) -> str:
    end = attempt.end
    if end is None:
        return "no end yet"
    return f"{end.cause} ({end.detail})" if end.detail else end.cause


@dataclass(frozen=True)
class SiteNode:
    """A node of the partition as Slurm sees it.

    Attributes:
        state: as in `sinfo`: idle, mixed, down*, drained ...
        daemon_start: when its daemon was started, "" where Slurm does not say.
    """

    state: str
    gpus: int = 0
    daemon_start: str = ""

    @property
    def is_usable(self) -> bool:
        """Whether Slurm starts jobs there, now or when others have ended."""
        return not self.state.startswith(_NOT_USABLE) and "*" not in self.state  # it does not answer


@dataclass(frozen=True)
class Failure:
    """What is known of a node that failed.

    Attributes:
        count: attempts that it ended.
        daemon_start: of the node when the last of them began.
    """

    count: int
    daemon_start: str


def failures(attempts: Sequence[Attempt]) -> dict[str, Failure]:
    """The nodes that ended attempts, the one that did so last at the end."""
    found: dict[str, Failure] = {}
    for attempt in attempts:
        for node in attempt.end.bad_nodes if attempt.end else ():
            count = found.pop(node).count if node in found else 0
            found[node] = Failure(count + 1, attempt.daemon_starts.get(node, ""))
    return found


def nodes_to_exclude(failed: Mapping[str, Failure], nodes: Mapping[str, SiteNode], *, num_nodes: int) -> tuple[str, ...]:
    """The failed nodes that waiting jobs should not get.

    A node whose daemon was started anew since it failed, once, came back and is used again; one that Slurm takes for sound though it failed, or
    that failed twice, stays out.  But never so many that too few are left for the job, which would wait for ever: then those that failed
    longest ago are used again.

    Args:
        failed: as `failures` gives them.
        nodes: of the partition, those that fit the job.
        num_nodes: of the job.
    """
    excluded = [name for name, failure in failed.items() if name in nodes and not _came_back(nodes[name], failure)]
    usable = {name for name, node in nodes.items() if node.is_usable}
    while excluded and len(usable - set(excluded)) < num_nodes:
        excluded.pop(0)
    return tuple(sorted(excluded))


def _came_back(node: SiteNode, failure: Failure) -> bool:
    return (
        node.is_usable
        and failure.count == 1
        and "" not in (node.daemon_start, failure.daemon_start)
        and node.daemon_start != failure.daemon_start
    )
