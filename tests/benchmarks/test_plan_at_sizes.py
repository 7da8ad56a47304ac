"""What stages take at several sizes, as lines over the text."""

from __future__ import annotations

from benchmarks.plan_at_sizes import greater, lines_through
from common.meter import Measured
from data_prep.planning.rates import BUNDLED, Amount, Rates


def _amount(gigabytes: float, seconds: float) -> Amount:
    measured = Measured(seconds=seconds, cpu_seconds=seconds, peak_bytes=int((100 + 10 * gigabytes) * 2**20), output="")
    return Amount(int(gigabytes * 1e9), int(gigabytes * 1e9), int(gigabytes * 5e8), 0, measured)


def test_lines_and_what_they_say_of_more_text() -> None:
    amounts = [_amount(size, 30 * size + 2) for size in (0.1, 1, 4)]
    assert lines_through("collect", amounts) == ("collect", "30.0", "2.0", "0%", "10.0", "100", "0.500", "0.000")
    row = greater("collect", amounts, Rates.read(BUNDLED))
    assert row[:2] == ("collect", "0.25") and row[3] == "0.4" and row[5] == "8.33" and len(row) == 9
