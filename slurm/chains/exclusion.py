"""Which nodes that failed are kept from the links that wait: those that may fail again, as long as enough others are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm.chains.attempts import Attempt

_NOT_USABLE = ("down", "drain", "fail", "unk", "maint", "error", "inval", "future", "reboot", "power", "blocked", "perf")


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
