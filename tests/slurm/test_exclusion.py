"""Which failed nodes are kept from waiting links, by what Slurm says that there is."""

from __future__ import annotations

import pytest

from slurm.chains.attempts import Attempt, End
from slurm.chains.decision import Failure, SiteNode, failures, nodes_to_exclude

IDLE, LOST, BACK = SiteNode("idle"), SiteNode("down*"), SiteNode("idle", daemon_start="later")
ONCE = Failure(1, "before")


def partition(count: int, **others: SiteNode) -> dict[str, SiteNode]:
    return {f"gn{number:02d}": IDLE for number in range(1, count + 1)} | others


def test_a_node_that_slurm_takes_for_sound_stays_out_while_there_are_others() -> None:
    """Also where the job is as large as the cluster file says that jobs may be."""
    assert nodes_to_exclude({"gn01": ONCE}, partition(3), num_nodes=2) == ("gn01",)
    assert nodes_to_exclude({"gn01": ONCE}, partition(2), num_nodes=2) == ()


@pytest.mark.parametrize("state", ["down", "down*", "idle*", "drained", "draining", "fail", "unknown", "maint", "powered_down"])
def test_nodes_that_are_away_leave_none_to_spare(state: str) -> None:
    nodes = partition(3, gn03=SiteNode(state))
    assert nodes_to_exclude({"gn01": ONCE}, nodes, num_nodes=2) == (), "or the job would wait for ever"
    assert nodes_to_exclude({"gn03": ONCE}, nodes, num_nodes=2) == ("gn03",)
    assert nodes_to_exclude({"gn03": ONCE}, nodes, num_nodes=3) == (), "it is needed when it comes back"


@pytest.mark.parametrize("state", ["idle", "mixed", "allocated", "completing", "reserved", "idle~"])
def test_nodes_that_are_busy_are_there(state: str) -> None:
    assert nodes_to_exclude({"gn01": ONCE}, partition(1, gn02=SiteNode(state)), num_nodes=1) == ("gn01",)


def test_a_node_that_came_back_is_used_again_unless_it_failed_twice() -> None:
    nodes = partition(3, gn01=BACK)
    assert nodes_to_exclude({"gn01": ONCE}, nodes, num_nodes=2) == ()
    assert nodes_to_exclude({"gn01": Failure(2, "before")}, nodes, num_nodes=2) == ("gn01",)
    assert nodes_to_exclude({"gn01": Failure(1, "later")}, nodes, num_nodes=2) == ("gn01",), "it has not been started anew since"


def test_of_many_those_that_failed_long_ago_are_used_again_first() -> None:
    failed = {"gn03": ONCE, "gn01": ONCE}
    assert nodes_to_exclude(failed, partition(4), num_nodes=2) == ("gn01", "gn03")
    assert nodes_to_exclude(failed, partition(4), num_nodes=3) == ("gn01",)
    assert nodes_to_exclude(failed, partition(4), num_nodes=4) == ()
    assert nodes_to_exclude({"gn77": ONCE}, partition(4), num_nodes=2) == (), "of another partition, or gone"


def test_failures_are_those_of_all_attempts_in_the_order_of_the_last() -> None:
    ends = [End("node failure", "", 10, 0.0, ("gn03", "gn01")), End("time limit", "", 20, 0.0), End("x", "", 30, 0.0, ("gn03",))]
    attempts = [Attempt(n, str(n), 0, n, (), 0, 0.0, {"gn03": f"start {n}"}, end) for n, end in enumerate(ends)]
    assert list(failures(attempts).items()) == [("gn01", Failure(1, "")), ("gn03", Failure(2, "start 2"))]
