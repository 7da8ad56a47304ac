"""Compare tokenizers on your text: fertility (tokens per word), tokens per sentence and byte, whole-word tokens, and the vocabulary size to choose.

Takes any number of tokenizers and named corpora; the vocabulary size is chosen on the first corpus.  The output has `report.md`, `report.json`
(all figures), a page that needs no network (`report.html`) and the charts as PNG.  A folder of `data_prep.train_tokenizer` with several tokenizers
counts as all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common import command
from common.options import add_option
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
        example="python -m data_prep.tokenizer_report --tokenizer opt=opt-1.3b tokenizers/ --input sl=heldout.sl.jsonl en=heldout.en.jsonl"
        " --parallel ntrex.tsv --parallel-columns en sl --lexicon sloleks.tsv --output report/",
    )
    add_option(parser, "--tokenizer [NAME=]DIR", "folders of Hugging Face tokenizers", nargs="+", required=True)
    add_corpus_arguments(parser, order="sizes are chosen on the first")
    add_format_arguments(parser)
    add_option(parser, "--every N", "measure only every N-th document (default: all)", 1)
    add_option(parser, "--words", "word segmentation: by white space, or runs of letters", "whitespace", choices=WORDS)
    add_option(
        parser, "--parallel FILE", "parallel sentences: TSV with language names in the first line, or rows of eval.prepare", type=Path
    )
    add_option(parser, "--parallel-columns NAME", "columns of --parallel to use (default: all)", [], nargs="+")
    add_option(parser, "--lexicon TSV", "list of words of the language, plain or .gz", type=Path)
    add_option(
        parser, "--lexicon-columns N", "columns of --lexicon that have the words, numbered from 1 (default: 1)", [1], type=int, nargs="+"
    )
    add_option(parser, "--output DIR", "new directory", type=Path, required=True)
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
