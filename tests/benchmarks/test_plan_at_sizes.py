"""What stages take at several sizes, as lines over the text."""

from __future__ import annotations

import pytest

from benchmarks.plan_at_sizes import Line, greater, lines_through
from common.meter import Measured
from data_prep.planning.rates import BUNDLED, Amount, Rates


def _amount(gigabytes: float, seconds: float) -> Amount:
    measured = Measured(seconds=seconds, cpu_seconds=seconds, peak_bytes=int((100 + 10 * gigabytes) * 2**20), output="")
    return Amount(int(gigabytes * 1e9), int(gigabytes * 1e9), int(gigabytes * 5e8), 0, measured)


def test_lines_and_what_they_miss() -> None:
    assert Line.through([1, 2, 4], [3, 5, 9]) == pytest.approx((2, 1, 0))
    bent = Line.through([0.1, 1, 4], [5, 40, 165])
    assert bent.slope == pytest.approx(41.1, abs=0.1) and bent.furthest_off == pytest.approx(abs(0.1 * bent.slope + bent.at_once - 5) / 5)
    amounts = [_amount(size, 30 * size + 2) for size in (0.1, 1, 4)]
    assert lines_through("collect", amounts) == ("collect", "30.0", "2.0", "0%", "10.0", "100", "0.500", "0.000")
    row = greater("collect", amounts, Rates.read(BUNDLED))
    assert row[:2] == ("collect", "0.25") and row[3] == "0.4" and row[5] == "8.33" and len(row) == 9
