"""Both models of good text on texts that are hard to tell: whether the classifier's scores are probabilities, and how much text a processor scores in a second.

Texts are cut into pieces of some words, which are harder to tell than documents.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from common import command
from common.tables import markdown_table
from data_prep.cleaning.quality_fit import Source, fit
from data_prep.cleaning.quality_models import CLASSIFIER, KINDS
from data_prep.cleaning.quality_page import page, report
from data_prep.reading.documents import Documents


def pieces(paths: Sequence[Path], num_words: int, most: int) -> list[str]:
    """Pieces of so many words of each document; whole documents at 0."""
    made: list[str] = []
    for text in Documents(paths):
        words = text.split()
        made += [" ".join(words[start : start + num_words]) for start in range(0, len(words), num_words)] if num_words else [text]
        if len(made) >= most:
            break
    return made[:most]


def main(argv: Sequence[str] | None = None) -> int:
    """Print what `fit_quality` says of each model, and the rates."""
    parser = command.parser(
        __doc__,
        prog="benchmarks.quality_models",
        example="python -m benchmarks.quality_models --good en/ud_gum.jsonl.gz --web en/ud_ewt.jsonl.gz --words 40 --output page.html",
    )
    for option, what in (("good", "texts of which more would be wanted"), ("web", "texts as they come")):
        parser.add_argument(f"--{option}", type=Path, nargs="+", required=True, metavar="FILE", help=what)
    parser.add_argument("--words", type=int, default=40, metavar="N", help="of a piece, 0 for whole documents (default: 40)")
    parser.add_argument("--most", type=int, default=20_000, metavar="N", help="pieces of each side (default: 20,000)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the classifier's page")
    arguments = parser.parse_args(argv)
    good, web = (pieces(paths, arguments.words, arguments.most) for paths in (arguments.good, arguments.web))
    rows = []
    for kind in KINDS:
        start = time.process_time()
        fitted = fit([Source("good", True, good), Source("web", False, web)], kind)
        fit_seconds = time.process_time() - start
        print(report(fitted))
        if kind == CLASSIFIER and arguments.output is not None:
            arguments.output.write_text(page(fitted, 10), encoding="utf-8")
        whole = [text[:10_000] for text in Documents([*arguments.good, *arguments.web])][:3000]
        rates = []
        for texts in ((good + web)[:20_000], whole):
            size = sum(len(text.encode()) for text in texts) / 1e6
            start = time.process_time()
            for text in texts:
                fitted.model.score(text)
            rates.append(size / (time.process_time() - start))
        size = sum(len(text.encode()) for text in good + web) / 1e6
        rows.append((kind, f"{size / fit_seconds:.2f}", *(f"{rate:.2f}" for rate in rates)))
    print(markdown_table(("MB a processor second", "fitted and measured", "pieces, one by one", "documents, one by one"), rows))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
