"""Instructions whose answers a program can check, in the spirit of IFEval (Zhou et al. 2023, arXiv 2311.07911): words, lists, case, form, language.

A row has a prompt and checks such as `words 1`, `contains paris|lyon` or `language sl`, of which an answer must pass all.  The prompts of
`eval/tasks/instructions` are our own, the same in every language.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.protocols.protocol import as_dataset
from eval.protocols.rows import Rows, field, read_rows

if TYPE_CHECKING:
    from datasets import DatasetDict

_ROWS_DIR = Path(__file__).resolve().parent.parent / "tasks" / "instructions"
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*|\d+(?:[.,]\d+)*")
_QUOTES = "\"'“”„»«’‘"
# Words that a text of more than a few words can hardly do without, none of them a word of another of these languages.
_FUNCTION_WORDS = {
    code: frozenset(words.split())
    for code, words in {
        "en": "the of and is are was were that it for with as you they this be has have from not his her by my we at an your its to",
        "sl": "je se da ki za pa ni ima tudi kot ali z s v sem po iz smo biti bila bilo ko pri zelo lahko od ter vse ga jih",
        "it": "il di che è e un una per con del della le gli sono non si ha nel nella lo anche dei alla molto ai mia questo",
    }.items()
}


def _words(answer: str) -> list[str]:
    return _WORD.findall(answer)


def _lines(answer: str) -> list[str]:
    return [line.strip() for line in answer.splitlines() if line.strip()]


def _bare(answer: str) -> str:
    """Without the quotes and full stop that an answer of one word may have."""
    return answer.strip(f" \n.!{_QUOTES}").casefold()


def _options(text: str) -> list[str]:
    return [option.casefold() for option in text.split("|")]


def _in_range(count: int, text: str) -> bool:
    """Whether a count is `3`, or of `3-5`."""
    least, _, most = text.partition("-")
    return int(least) <= count <= int(most or least)


def _is_object(answer: str, keys: str) -> bool:
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):  # the second of what repeats an opening bracket without end
        return False
    return isinstance(found, dict) and set(found) == set(keys.split("|"))


def language_of(answer: str) -> str | None:
    """The language with the most of its function words in an answer; None where no language leads."""
    counts = Counter({code: sum(word.casefold() in words for word in _words(answer)) for code, words in _FUNCTION_WORDS.items()})
    (best, most), (_, second) = counts.most_common(2)
    return best if most > second else None


CHECKS: dict[str, Callable[[str, str], bool]] = {
    "is": lambda answer, text: _bare(answer) in _options(text),
    "number": lambda answer, text: re.fullmatch(r"\d{1,99}", _bare(answer)) is not None and _in_range(int(_bare(answer)), text),
    "words": lambda answer, text: _in_range(len(_words(answer)), text),
    "sentences": lambda answer, text: _in_range(len(re.findall(r"[^.!?]*\w[^.!?]*[.!?]+", answer)), text) and answer[-1] in ".!?",
    "lines": lambda answer, text: _in_range(len(_lines(answer)), text),
    "items": lambda answer, text: len(_lines(answer)) == 1 and _in_range(sum(map(bool, map(str.strip, answer.split(",")))), text),
    "bullets": lambda answer, text: _in_range(sum(line.startswith(("- ", "* ", "• ")) for line in _lines(answer)), text),
    "numbered": lambda answer, text: [line.partition(".")[0] for line in _lines(answer)] == list(map(str, range(1, int(text) + 1))),
    "lower": lambda answer, _: any(map(str.isalpha, answer)) and answer == answer.lower(),
    "upper": lambda answer, _: any(map(str.isalpha, answer)) and answer == answer.upper(),
    "contains": lambda answer, text: any(option in answer.casefold() for option in _options(text)),
    "lacks": lambda answer, text: not any(option in answer.casefold() for option in _options(text)),
    "starts": lambda answer, text: answer.casefold().startswith(tuple(_options(text))),
    "ends": lambda answer, text: answer.casefold().endswith(tuple(_options(text))),
    "quoted": lambda answer, _: len(answer) > 2 and answer[0] in '"“„»' and answer[-1] in '"”“«',
    "json": _is_object,
    "language": lambda answer, text: language_of(answer) == text,
}  # name -> whether an answer, without the spaces around it and not empty, passes what the check says behind its name


def passes(answer: str, check: str) -> bool:
    """Whether an answer passes a check; an empty answer passes none."""
    name, _, text = check.partition(" ")
    answer = answer.strip()
    return bool(answer) and CHECKS[name](answer, text)


def load(*, language: str, items: int | None = None, **metadata: Any) -> DatasetDict:
    """The prompts of one language with their checks.

    Args:
        items: only the first so many.
        metadata: what else lm-eval hands over; not used.

    Raises:
        ValueError: if a row has no prompt, or a check that is not known.
    """
    rows = read_rows(_ROWS_DIR, Rows(f"instructions_{language}"))
    for row in rows:
        field(row, "prompt")
        for check in field(row, "checks"):
            if check.partition(" ")[0] not in CHECKS:
                raise ValueError(f"the row {row['id']} has the check {check!r}; known are {', '.join(CHECKS)}")
    return as_dataset(rows[:items])


def score(document: dict[str, Any], answers: Sequence[str]) -> dict[str, float]:
    """Whether the answer passes all checks of its prompt."""
    return {"acc": float(all(passes(answers[0], check) for check in document["checks"])), "empty": float(not answers[0].strip())}
