"""Compare tokenizers on your text: fertility (tokens per word), tokens per sentence and byte, whole-word tokens, and the vocabulary size to choose.

Takes any number of tokenizers and named corpora; the vocabulary size is chosen on the first corpus.  The output has `report.md`, `report.json`
(all figures), a page that needs no network (`report.html`) and the charts as PNG.  A folder of `data_prep.train_tokenizer` with several tokenizers
counts as all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common import command
from data_prep.reading.corpora import add_corpus_arguments, corpora_from_arguments
from data_prep.reading.documents import add_format_arguments
from data_prep.tokenizers.comparison import candidates, tokenizer_report
from data_prep.tokenizers.files import start_without_torch
from data_prep.tokenizers.metrics import WORDS
from data_prep.tokenizers.reference_files import read_lexicon, read_parallel


def main(argv: Sequence[str] | None = None) -> int:
    """Compare tokenizers into a new directory."""
    parser = command.parser(
        __doc__,
        prog="data_prep.tokenizer_report",
        example="python -m data_prep.tokenizer_report --tokenizer opt=opt-1.3b tokenizers/ --input sl=heldout.sl.jsonl en=heldout.en.jsonl"
        " --parallel ntrex.tsv --parallel-columns en sl --lexicon sloleks.tsv --output report/",
    )
    parser.add_argument("--tokenizer", nargs="+", required=True, metavar="[NAME=]DIR", help="folders of Hugging Face tokenizers")
    add_corpus_arguments(parser, order="sizes are chosen on the first")
    add_format_arguments(parser)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="measure only every N-th document (default: all)")
    parser.add_argument(
        "--words", choices=WORDS, default="whitespace", help="word segmentation: by white space, or runs of letters (default: whitespace)"
    )
    parser.add_argument(
        "--parallel",
        type=Path,
        metavar="FILE",
        help="parallel sentences: TSV with language names in the first line, or rows of eval.prepare",
    )
    parser.add_argument("--parallel-columns", nargs="+", default=[], metavar="NAME", help="columns of --parallel to use (default: all)")
    parser.add_argument("--lexicon", type=Path, metavar="TSV", help="list of words of the language, plain or .gz")
    parser.add_argument(
        "--lexicon-columns",
        type=int,
        nargs="+",
        default=[1],
        metavar="N",
        help="columns of --lexicon that have the words, numbered from 1 (default: 1)",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="new directory")
    arguments = parser.parse_args(argv)
    command.require_at_least(1, arguments, "every")
    tokenizer_report(
        candidates(arguments.tokenizer),
        corpora_from_arguments(arguments, arguments.document_separator),
        arguments.output,
        text_key=arguments.text_key,
        separator=arguments.document_separator,
        every=arguments.every,
        words=arguments.words,
        parallel=read_parallel(arguments.parallel, arguments.parallel_columns) if arguments.parallel else None,
        lexicon=read_lexicon(arguments.lexicon, arguments.lexicon_columns) if arguments.lexicon else None,
        arguments=arguments,
    )
    command.print_report(arguments.output)
    return command.DONE


if __name__ == "__main__":
    start_without_torch()
    command.run(main)
