"""A save costs all that the training stands still for until the next one, whatever step it is behind."""

from __future__ import annotations

import pytest

from benchmarks.saving import saves_of
from benchmarks.saving_rank import EVERY, STEPS


def test_what_ends_a_save_beside_later_steps_counts_and_so_do_slower_steps() -> None:
    """Between steps 0.01 s; behind the first save 1 s more, and 0.2 s three steps later; the step behind the second save takes 0.5 s longer."""
    begun, ended, now = [], [], 0.0
    for step in range(1, STEPS + 1):
        begun.append(now)
        now += 0.3 + 0.5 * (step == 2 * EVERY + 1)
        ended.append(now)
        now += 0.01 + 1.0 * (step == EVERY) + 0.2 * (step == EVERY + 3)
    first, second, third = saves_of({"begun": begun, "ended": ended})
    assert first.stopped == pytest.approx(1.2) and first.slower == pytest.approx(0)
    assert second.stopped == pytest.approx(0) and second.slower == pytest.approx(0.5)
    assert third.stopped == pytest.approx(0)
