"""How often intervals cover and tests reject without a difference: gains of fine-tuning over languages and seeds, bits per byte of real documents.

    SCION_SHARED_DATA=data python -m benchmarks.levels

Fine-tuning: two equal methods whose seeds move all languages, and languages and their runs by themselves; then the second a point better.  Bits per byte:
documents drawn from texts with the lengths that they have, whose rate varies by itself or also falls with the logarithm of the length; two models
that are equal in total.  A level is nominally 0.05 or less, a coverage 0.95; each has the error of its number of repeats beside the table.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common import command
from common.tables import markdown_table
from conversion.measuring.intervals import FEW_UNITS, effective_units, ratio_goes_with_size, ratio_interval
from conversion.measuring.significance import Difference, paired_difference, with_seeds
from data_prep.reading.documents import Documents

Floats = NDArray[np.float64]
SEEDS, LANGUAGES = (2, 3, 5), (10, 30, 100, 300)
DOCUMENTS, SLOPES = (10, 30, 100, 200), (0.0, 0.1, 0.3)
TEXTS = ("sl/law_pisrs", "en/ud_ewt", "it/php_manual", "sl/ud_ssj", "it/eltec_novels", "hr/gnome_help")
RATE_DEVIATION = 0.3  # of bits per byte between documents


def gain_of_equals(
    rng: np.random.Generator, *, seeds: int, languages: int, seed_deviation: float, gain: float = 0.0, with_their_seeds: bool = True
) -> Difference:
    """Two methods, one `gain` points better, compared as the report does: seeds, languages, and runs of both together vary by points."""
    parts = (((seeds, 1), seed_deviation), ((1, languages), 1.0), ((seeds, languages), 1.0))
    ours, theirs = sum(deviation * rng.normal(size=(2, *shape)) for shape, deviation in parts)
    ours += gain
    found = paired_difference(ours.mean(axis=0), theirs.mean(axis=0))
    return with_seeds(found, (ours - theirs).mean(axis=1).tolist()) if with_their_seeds else found


def rates(rng: np.random.Generator, lengths: Floats, *, slope: float, middle: float) -> Floats:
    """Bits per byte of documents, which fall with the logarithm of the length."""
    return 1 - slope * np.log(lengths / middle) + rng.normal(0, RATE_DEVIATION, len(lengths))


def true_rate(lengths: Floats, *, slope: float, middle: float) -> float:
    """Bits over bytes of all documents there are."""
    return float((lengths * (1 - slope * np.log(lengths / middle))).sum() / lengths.sum())


def documents_of(rng: np.random.Generator, lengths: Floats, *, slope: float, number: int) -> tuple[bool, bool, bool]:
    """Of a sample of documents: whether the interval of bits per byte covers the truth, a test of equals rejects, and the report would warn.

    The equals differ on each document, by as much as the rate goes with the length, and are alike in total over all documents.
    """
    middle = float(np.median(lengths))
    truth, drawn = true_rate(lengths, slope=slope, middle=middle), rng.choice(lengths, number)
    bits = drawn * rates(rng, drawn, slope=slope, middle=middle)
    found = ratio_interval(bits, drawn)
    equal = paired_difference(bits, drawn * (truth + rng.normal(0, 0.05, number)), drawn)
    return found.low <= truth <= found.high, equal.p_value < 0.05, effective_units(drawn) < FEW_UNITS or ratio_goes_with_size(bits, drawn)


def gain_rows(repeats: int) -> Iterator[list[str]]:
    rng = np.random.default_rng(0)
    for seeds in SEEDS:
        for languages in LANGUAGES:
            row = [str(seeds), str(languages)]
            for deviation, gain in ((0.0, 0.0), (1.0, 0.0), (1.0, 3.0)):
                drawn = [gain_of_equals(rng, seeds=seeds, languages=languages, seed_deviation=deviation, gain=gain) for _ in range(repeats)]
                row.append(f"{np.mean([one.p_value < 0.05 for one in drawn]):.3f}")
                if deviation and not gain:
                    row.append(f"{np.mean([one.low <= 0 <= one.high for one in drawn]):.3f}")
                    alone = [
                        gain_of_equals(rng, seeds=seeds, languages=languages, seed_deviation=deviation, with_their_seeds=False)
                        for _ in range(max(1, repeats // 5))
                    ]
                    row.append(f"{np.mean([one.p_value < 0.05 for one in alone]):.3f}")
            yield row


def document_rows(texts: Mapping[str, Floats], repeats: int) -> Iterator[list[str]]:
    rng = np.random.default_rng(1)
    for name, lengths in texts.items():
        for slope in SLOPES:
            for number in DOCUMENTS:
                covered, rejected, warned = np.mean(
                    [documents_of(rng, lengths, slope=slope, number=number) for _ in range(repeats)], axis=0
                )
                share = np.mean([effective_units(rng.choice(lengths, number)) for _ in range(100)])
                yield [name, f"{slope:g}", str(number), f"{share:.0f}", f"{covered:.3f}", f"{rejected:.3f}", f"{warned:.3f}"]


def lengths_of(paths: Sequence[Path]) -> dict[str, Floats]:
    """Bytes of each document of texts."""
    return {
        path.parent.name + "/" + path.name.partition(".")[0]: np.array([len(text.encode()) for text in Documents([path])], float)
        for path in paths
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print both tables."""
    parser = command.parser(__doc__, prog="benchmarks.levels", example="python -m benchmarks.levels --text law.jsonl.gz --repeats 500")
    parser.add_argument("--text", type=Path, nargs="+", help="whose documents give the lengths (default: six texts of SCION_SHARED_DATA)")
    parser.add_argument("--repeats", type=int, default=1000, metavar="N", help="samples of each kind (default: 1000)")
    arguments = parser.parse_args(argv)
    if arguments.text is None and "SCION_SHARED_DATA" not in os.environ:
        raise ValueError("nothing says which texts; give --text, or set SCION_SHARED_DATA to the folder of the tests' data")
    texts = arguments.text or [Path(os.environ["SCION_SHARED_DATA"], "text", f"{name}.jsonl.gz") for name in TEXTS]
    header = ["seeds", "languages", "rejects, seeds alike", "rejects", "covered", "rejects, languages alone", "finds 3 points"]
    print(markdown_table(header, list(gain_rows(arguments.repeats))), flush=True)
    rows = document_rows(lengths_of(texts), arguments.repeats)
    print(f"\n{markdown_table(['text', 'slope', 'documents', 'effective', 'covered', 'rejects', 'warned'], list(rows))}")
    print(f"\n{arguments.repeats} repeats: a level of 0.05 errs by {math.sqrt(0.05 * 0.95 / arguments.repeats):.3f} (one standard error)")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
