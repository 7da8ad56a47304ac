"""How often intervals of bits per byte cover the truth where documents are of very different lengths, and the rate goes with the length.

Lengths are log-normal, or drawn from the documents of a text (--text); prints a row for each spread of the logarithm, slope of the rate and
number of documents: the share of 95 % intervals that cover, and how often the warning would have been given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common import command
from common.tables import markdown_table
from conversion.measuring.intervals import ratio_goes_with_size, ratio_interval
from data_prep.reading.documents import Documents


def coverage(lengths: np.ndarray, *, slope: float, number: int, repeats: int, seed: int = 0) -> tuple[float, float]:
    """Shares of samples whose interval covers the truth, and that are warned of.

    Args:
        lengths: (documents,) bytes of all there are.
        slope: by which bits per byte fall with the logarithm of the length.
        number: documents of a sample.
    """
    rng = np.random.default_rng(seed)
    middle = float(np.median(lengths))
    truth = float((lengths * (1 - slope * np.log(lengths / middle))).sum() / lengths.sum())
    covered = warned = 0
    for _ in range(repeats):
        drawn = rng.choice(lengths, number)
        bits = drawn * (1 - slope * np.log(drawn / middle) + rng.normal(0, 0.3, number))
        found = ratio_interval(bits, drawn)
        covered += found.low <= truth <= found.high
        warned += ratio_goes_with_size(bits, drawn)
    return covered / repeats, warned / repeats


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = command.parser(__doc__, prog="benchmarks.length_levels", example="python -m benchmarks.length_levels --text heldout.jsonl")
    parser.add_argument("--text", type=Path, nargs="+", default=[], help="whose documents give the lengths (default: log-normal ones)")
    parser.add_argument("--repeats", type=int, default=2000, metavar="N", help="samples of each kind (default: 2000)")
    arguments = parser.parse_args(argv)
    kinds = {str(path): np.array([len(text.encode()) for text in Documents([path])], dtype=float) for path in arguments.text}
    if not kinds:
        rng = np.random.default_rng(0)
        kinds = {f"log-normal, {spread:g}": np.exp(rng.normal(math.log(1000), spread, 1_000_000)) for spread in (0.5, 1.0, 1.5)}
    rows = []
    for name, lengths in kinds.items():
        for slope in (0.0, 0.1, 0.3):
            for number in (10, 30, 100, 200):
                covered, warned = coverage(lengths, slope=slope, number=number, repeats=arguments.repeats)
                rows.append([name, f"{slope:g}", str(number), f"{covered:.3f}", f"{warned:.3f}"])
    print(markdown_table(["lengths", "slope", "documents", "covered", "warned"], rows))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
