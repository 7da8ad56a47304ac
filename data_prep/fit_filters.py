"""Fit the thresholds of the filters to a language on good reference text, and write a file for `clean --filters`.

The reference is text worth keeping: an encyclopedia, books, news.  Words that make up more than 0.8 % of it become the stop words.  Each rule is
loosened until it removes at most --lost of the documents; the shares removed before and after are printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from common import command
from common.options import add_option
from common.plain_files import write_text
from common.tables import markdown_table
from data_prep.cleaning.filter_settings import BUILT_IN, NONE, read_filters
from data_prep.cleaning.fitting import DIRECTIONS, LOOSER, as_settings, fit
from data_prep.cleaning.language_filter import languages_of
from data_prep.cleaning.text_hygiene import AFTER, BEFORE
from data_prep.reading.documents import Documents, add_input_arguments
from data_prep.reading.languages import is_language, plain_code

_LOOKED_AT = 200  # texts


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__, example="python -m data_prep.fit_filters --input wikipedia.sl.jsonl.gz --language sl --output filters.sl.yaml"
    )
    add_input_arguments(parser)
    add_option(parser, "--language LANG", "language of the reference text (ISO 639 code)", required=True)
    add_option(parser, "--base", "filters to start from", "web", choices=[name for name in BUILT_IN if name != NONE])
    add_option(parser, "--lost SHARE", "maximum share of reference documents that a rule may remove", 0.01)
    add_option(
        parser,
        "--direction",
        "looser: only loosen rules; both: also tighten rules that remove less (default: looser)",
        LOOSER,
        choices=DIRECTIONS,
    )
    add_option(parser, "--output YAML", "file to write", type=Path, required=True)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Fit and write."""
    arguments = _parser().parse_args(argv)
    if arguments.output.exists():
        raise ValueError(f"{arguments.output} exists; choose another --output, or remove it")
    if not is_language(arguments.language):
        raise ValueError(f"--language is {arguments.language!r}; expected an ISO 639 code such as sl")
    if not 0 < arguments.lost < 1:
        raise ValueError(f"--lost is {arguments.lost:g}; expected a share above 0 and below 1")
    texts = []
    for text in Documents.from_arguments(arguments):
        for step in (*BEFORE.values(), *AFTER.values()):
            text = step(text)
        texts.append(text)
    language = plain_code(arguments.language)
    _tell_of_another_language(texts, language)
    words, fitted = fit(read_filters(arguments.base), language, texts, lost=arguments.lost, direction=arguments.direction)
    settings = as_settings(arguments.base, language, words, fitted)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    write_text(arguments.output, yaml.safe_dump(settings, allow_unicode=True, sort_keys=False, width=140))
    rows = [
        [item.rule.name, item.side, f"{item.rule.max if item.side == 'max' else item.rule.min:g}", f"{100 * item.share_before:.2f} %",
         f"{item.threshold:g}", f"{100 * item.share_after:.2f} %"]
        for item in fitted
    ]  # fmt: skip
    print(f"{len(texts):,} documents; stop words: {', '.join(words)}\n")
    print(markdown_table(("rule", "side", "before", "takes", "fitted", "takes"), rows, text_columns=2))
    return command.DONE


def _tell_of_another_language(texts: Sequence[str], language: str) -> None:
    """A note where hardly any text looks as if it were in the language; an identifier errs about close ones, so it is no more than that."""
    found = languages_of(texts[:: max(1, len(texts) // _LOOKED_AT)])
    if found and language not in found:
        print(
            f"note: the reference looks like {', '.join(found)} and not like {language} (py3langid); thresholds and stop words are those of what was given",
            file=sys.stderr,
        )


if __name__ == "__main__":
    command.run(main)
