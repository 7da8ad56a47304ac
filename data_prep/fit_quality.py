"""A model of what good text is, from texts that are good and texts as the web has them; `clean` takes its scores as thresholds.

classifier: the probability that a text is of the good ones, of two sets of the same weight: fitted on 80 % of the texts, calibrated on 10 %, measured on
10 %.  perplexity: how ill n-grams of characters of the good texts foretell a text, with thirds of the web texts as head, middle and tail (CCNet).
The page shows the scores by source and texts that would stay and go.  The same texts give the same model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from common import command
from common.artifacts import digest_file, staged_directory, write_manifest
from common.progress import Progress
from data_prep.cleaning.calibration import AUTO, CALIBRATIONS, ISOTONIC_LEAST
from data_prep.cleaning.quality_fit import Source, fit
from data_prep.cleaning.quality_models import CLASSIFIER, KINDS, MODEL_NAME, PERPLEXITY
from data_prep.cleaning.quality_page import page, report
from data_prep.reading.collect_shard import random_sample
from data_prep.reading.corpora import Corpus, corpora_from_input, require_text
from data_prep.reading.documents import add_format_arguments
from data_prep.sharing.scanning import Reading

DEFAULT_ORDER, MAX_ORDER = 5, 20


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__,
        prog="data_prep.fit_quality",
        example="python -m data_prep.fit_quality --good wikipedia=wiki.sl.jsonl.gz books=books/ --web crawl=crawl.sl.jsonl.zst --output quality/",
    )
    for option, what in (("good", "texts of which more would be wanted"), ("web", "texts as they come, of which some stay")):
        parser.add_argument(f"--{option}", nargs="+", action="append", required=True, metavar="NAME=FILE", help=what)
    add_format_arguments(parser)
    parser.add_argument("--kind", choices=KINDS, default=CLASSIFIER, help=f"default: {CLASSIFIER}")
    parser.add_argument(
        "--calibration",
        choices=CALIBRATIONS,
        default=AUTO,
        help=f"how the classifier's answer becomes a probability; auto: isotonic regression if there are {ISOTONIC_LEAST:,} texts to calibrate with and"
        " it is the better on those left out, else Platt's curve (default: auto)",
    )
    parser.add_argument(
        "--order",
        type=int,
        metavar="N",
        help=f"characters of the longest n-grams, for perplexity, {MAX_ORDER} at most (default: {DEFAULT_ORDER})",
    )
    parser.add_argument(
        "--max-documents", type=int, default=50_000, metavar="N", help="of each source, drawn at random, in memory (default: 50,000)"
    )
    parser.add_argument("--samples", type=int, default=10, metavar="N", help="texts on the page, of each kind (default: 10)")
    parser.add_argument("--max-document-mib", type=int, default=64, metavar="N", help="longer documents are an error (default: 64)")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="new directory, with the model and report.html")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Fit and write."""
    arguments = _parser().parse_args(argv)
    for name in ("max_documents", "samples", "max_document_mib", "order"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {value}; expected at least 1")
    _require_options_of_kind(arguments)
    named = {
        is_good: corpora_from_input(groups, arguments.document_separator)
        for is_good, groups in ((True, arguments.good), (False, arguments.web))
    }
    if same := {corpus.name for corpus in named[True]} & {corpus.name for corpus in named[False]}:
        raise ValueError(f"--good and --web both name {', '.join(sorted(same))}; give each source its own name")
    paths = [path for corpora in named.values() for corpus in corpora for path in corpus.paths]
    reading = Reading.of(arguments)
    for corpora in named.values():
        require_text(corpora, reading.documents)
    digests = {path: digest_file(path) for path in paths}
    _require_two_sides(named, digests)
    with staged_directory(arguments.output) as staging:
        sources = []
        with Progress("reading text", total=sum(path.stat().st_size for path in paths), unit="B", is_bytes=True) as progress:
            for is_good, corpora in named.items():
                for corpus in corpora:
                    texts = (
                        document.text
                        for path in corpus.paths
                        for document in reading.documents(path, progress=progress)
                        if document.text.strip()
                    )
                    sources.append(Source(corpus.name, is_good, random_sample(texts, arguments.max_documents)))
        fitted = fit(sources, arguments.kind, order=arguments.order or DEFAULT_ORDER, calibrated=arguments.calibration)
        fitted.model.save(staging / MODEL_NAME)
        (staging / "report.md").write_text(report(fitted), encoding="utf-8")
        (staging / "report.json").write_text(json.dumps(fitted.figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        (staging / "report.html").write_text(page(fitted, arguments.samples), encoding="utf-8")
        write_manifest(
            staging,
            stage="data_prep.fit_quality",
            facts=fitted.figures,
            arguments=vars(arguments),
            inputs={str(path): digest for path, digest in digests.items()},
        )
    command.print_report(arguments.output)
    return command.DONE


def _require_two_sides(named: Mapping[bool, Sequence[Corpus]], digests: Mapping[Path, str]) -> None:
    """Refuse texts that are to be told from themselves."""
    good, web = ({digests[path]: path for corpus in named[is_good] for path in corpus.paths} for is_good in (True, False))
    if same := sorted(good.keys() & web.keys()):
        raise ValueError(
            f"--good has {good[same[0]]} and --web {web[same[0]]}, which is the same text; give texts that are good on the one side, and as they come on"
            " the other"
        )


def _require_options_of_kind(arguments: argparse.Namespace) -> None:
    """Refuse what the kind of model would not heed, and n-grams whose tables no memory holds."""
    if arguments.kind == CLASSIFIER and arguments.order is not None:
        raise ValueError(f"--order is of --kind {PERPLEXITY} and means nothing to a {CLASSIFIER}; leave it out, or name that kind")
    if arguments.kind == PERPLEXITY and arguments.calibration != AUTO:
        raise ValueError(f"--calibration is of --kind {CLASSIFIER} and means nothing to {PERPLEXITY}; leave it out, or name that kind")
    if arguments.order is not None and arguments.order > MAX_ORDER:
        raise ValueError(f"--order is {arguments.order}; expected at most {MAX_ORDER}, as each takes as much memory as the text")


if __name__ == "__main__":
    command.run(main)
