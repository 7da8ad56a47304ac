"""When a run goes on and when it does not."""

from __future__ import annotations

import itertools

import pytest

from slurm.chains import causes
from slurm.chains.attempts import Attempt, End
from slurm.chains.decision import CONTINUE, FINISHED, STOP, Limits, decide

ALL_CAUSES = (
    *causes.SAVED,
    *causes.OF_THE_RUN,
    causes.PREEMPTED,
    causes.NODE_FAILURE,
    causes.REQUEUED,
    causes.CANCELLED,
    causes.IN_USE,
    causes.TAKEN_OVER,
)
GOES_ON = set(ALL_CAUSES) - {causes.DISK_FULL, causes.REFUSED, causes.CANCELLED}
LIMITS = Limits(attempts_without_progress=3, failures_in_a_row=4)


def attempts(*ends: tuple[str, int], submission: int = 1) -> list[Attempt]:
    """Attempts that each went on from where the one before had saved, by cause and steps gained."""
    made, step = [], 0
    for number, (cause, gained) in enumerate(ends, 1):
        end = End(cause, "", step + gained, 0.0)
        made.append(Attempt(number, str(number), 0, submission, ("gn01",), step, 0.0, end=end))
        step += gained
    return made


def verdict(*ends: tuple[str, int], total: int | None = 1000) -> str:
    made = attempts(*ends)
    saved = made[-1].end.step if made and made[-1].end else 0
    return decide(made, saved_step=saved, total_steps=total, limits=LIMITS).verdict


def test_a_new_run_starts() -> None:
    assert decide([], saved_step=0, total_steps=None).verdict == CONTINUE


@pytest.mark.parametrize("cause", ALL_CAUSES)
def test_after_one_end(cause: str) -> None:
    assert verdict((cause, 10)) == (CONTINUE if cause in GOES_ON else STOP)


@pytest.mark.parametrize("cause", ALL_CAUSES)
@pytest.mark.parametrize("total", [10, 7])
def test_the_last_step_saved_is_the_end_whatever_the_cause(cause: str, total: int) -> None:
    assert verdict((cause, 10), total=total) == FINISHED


@pytest.mark.parametrize(("cause", "before"), itertools.product(sorted(GOES_ON - {causes.PREEMPTED}), sorted(GOES_ON)))
def test_three_attempts_without_progress_are_enough_and_two_are_not(cause: str, before: str) -> None:
    assert verdict((before, 10), (cause, 0), (cause, 0)) == CONTINUE
    assert verdict((before, 10), (cause, 0), (cause, 0), (cause, 0)) == STOP


def test_a_preempted_attempt_neither_counts_nor_breaks_the_row() -> None:
    assert verdict(*[(causes.PREEMPTED, 0)] * 20) == CONTINUE
    idle = (causes.TIME_LIMIT, 0)
    assert verdict(idle, (causes.PREEMPTED, 0), idle, (causes.PREEMPTED, 5), idle) == STOP


@pytest.mark.parametrize("cause", sorted(set(causes.OF_THE_RUN) & GOES_ON))
def test_four_failures_in_a_row_are_enough_though_each_made_progress(cause: str) -> None:
    assert verdict(*[(cause, 10)] * 3) == CONTINUE
    assert verdict(*[(cause, 10)] * 4) == STOP
    assert verdict((cause, 10), (cause, 10), (causes.TIME_LIMIT, 10), (cause, 10), (cause, 10)) == CONTINUE


def test_nodes_and_preemption_are_no_failures_of_the_run() -> None:
    assert verdict(*[(causes.NODE_FAILURE, 10)] * 9) == CONTINUE
    assert verdict(*[(causes.FAILED, 10), (causes.NODE_FAILURE, 10)] * 3) == CONTINUE
    assert verdict(*[(causes.FAILED, 10), (causes.NODE_FAILURE, 10)] * 4) == STOP


def test_submitting_again_forgets_the_failures_before() -> None:
    failed = attempts(*[(causes.FAILED, 0)] * 3)
    assert decide(failed, saved_step=0, total_steps=9, limits=LIMITS, submission=1).verdict == STOP
    assert decide(failed, saved_step=0, total_steps=9, limits=LIMITS, submission=2).verdict == CONTINUE


def test_a_wish_to_stop_comes_before_everything_but_the_end() -> None:
    made = attempts((causes.STOPPED, 10))
    stopped = decide(made, saved_step=10, total_steps=20, stop_requested=True)
    assert stopped.verdict == STOP
    assert stopped.reason == "stopped by slurm.stop, step 10 is saved; submit again to resume"
    assert decide(made, saved_step=10, total_steps=10, stop_requested=True).verdict == FINISHED


@pytest.mark.parametrize(
    ("ends", "sentence"),
    [
        ([(causes.DISK_FULL, 5)], "attempt 1: disk full; free some space, then submit again; step 5 is saved"),
        ([(causes.REFUSED, 0)], "attempt 1: refused; fix the cause, then submit again; step 0 is saved"),
        ([(causes.CANCELLED, 5)], "attempt 1: cancelled; it was cancelled manually; submit again to resume; step 5 is saved"),
        (
            [(causes.TIMED_OUT, 0)] * 3,
            "3 attempts in a row saved no newer checkpoint than step 0; the last one: killed at the time limit;"
            " read its log, then submit again",
        ),
        ([(causes.FAILED, 1)] * 4, "4 attempts in a row failed; the last one: failed; read its log, then submit again"),
    ],
)
def test_a_stop_says_why_and_what_to_do(ends: list[tuple[str, int]], sentence: str) -> None:
    made = attempts(*ends)
    assert made[-1].end is not None
    assert decide(made, saved_step=made[-1].end.step, total_steps=99, limits=LIMITS).reason == sentence
