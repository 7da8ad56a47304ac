"""SAVA's Italian protocols: translated multiple choice in Italian and English of the same items, and questions on SQuAD-it.

How a question is put is a fact of each protocol, a few functional words: SQuAD-it's field names (Contesto, Domanda, Risposta) are those
of SAVA's public code; BoolQ and HellaSwag are put as ITA-Bench's public tasks put them; the others have the shape of lm-eval's tasks of the
English sets, in the language of the row.

A row of a translated set holds both languages side by side, `it` and `en`, and one `label`; so the English score of an adapted model is
measured on the very items of the Italian one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from eval.protocols.protocol import Protocol, dataset_of
from eval.protocols.rows import Row, Rows, field
from eval.protocols.text_overlap import Words, exact_match, italian_answer, rouge_l, word_f1

if TYPE_CHECKING:
    from datasets import DatasetDict

_WORDS = {"it": ("Domanda", "Risposta"), "en": ("Question", "Answer")}
_YES_OR_NO = {"it": "sì o no", "en": "yes or no"}
_YES_NO = {"it": ["sì", "no"], "en": ["yes", "no"]}
_LETTERS = "ABCDEFGHIJ"


def _asked(row: Row, language: str) -> str:
    question, answer = _WORDS[language]
    return f"{question}: {field(row[language], 'question')}\n{answer}:"


def _asked_with_letters(row: Row, language: str) -> str:
    question, answer = _WORDS[language]
    texts = field(row[language], "choices")
    listed = "\n".join(f"{letter}. {text}" for letter, text in zip(_LETTERS, texts))
    return f"{question}: {field(row[language], 'question')}\n{listed}\n{answer}:"


def _asked_on_passage(row: Row, language: str) -> str:
    return f"{field(row[language], 'passage')}\n{_asked(row, language)}"


def _asked_yes_or_no(row: Row, language: str) -> str:
    question, answer = _WORDS[language]
    asked = f"{question}: {field(row[language], 'question')}\n{answer} ({_YES_OR_NO[language]}):"
    return f"{field(row[language], 'passage')}\n{asked}"


def _activity(row: Row, language: str) -> str:
    return f"{field(row[language], 'activity_label')}: {_without_brackets(field(row[language], 'context'))}"


def _without_brackets(text: str) -> str:
    """WikiHow's markup in brackets is left out, as in lm-eval's HellaSwag and in ITA-Bench's."""
    return re.sub(r"(\. )?\[.*?\]", r"\1", text.strip()).replace("  ", " ")


def _endings(row: Row, language: str) -> list[str]:
    return [_without_brackets(choice) for choice in field(row[language], "choices")]


def _own_choices(row: Row, language: str) -> list[str]:
    return list(field(row[language], "choices"))


def _letters(row: Row, language: str) -> list[str]:
    return list(_LETTERS[: len(field(row[language], "choices"))])


def _yes_no(row: Row, language: str) -> list[str]:
    return _YES_NO[language]


_ITA_BENCH: dict[str, tuple[Callable[[Row, str], str], Callable[[Row, str], list[str]]]] = {
    "arc_easy": (_asked, _own_choices),
    "boolq": (_asked_yes_or_no, _yes_no),
    "hellaswag": (_activity, _endings),
    "mmlu": (_asked_with_letters, _letters),
    "piqa": (_asked, _own_choices),
    "sciq": (_asked_on_passage, _own_choices),
}


def _translated(name: str, language: str) -> Protocol:
    question, choices = _ITA_BENCH[name]

    def checked(row: Row) -> dict[str, Any]:
        named = choices(_with_language(row, language), language)
        label = field(row, "label")
        if not isinstance(label, int) or not 0 <= label < len(named):
            raise ValueError(f"the row {row['id']} has the label {label!r}; expected the number of one of its {len(named)} choices, from 0")
        return {"choices": named, "label": label}

    return Protocol(
        evaluated=Rows(f"it/itabench/{name}"),
        question=lambda row: question(_with_language(row, language), language),
        answer=lambda row: checked(row)["choices"][checked(row)["label"]],
        scored=checked,
        article=(lambda row: str(field(_with_language(row, language)[language], "passage")))
        if question in (_asked_on_passage, _asked_yes_or_no)
        else None,
    )


def _with_language(row: Row, language: str) -> Row:
    """The row, with its id in each language's part so that an error can name it."""
    return {language: {"id": f"{row['id']} ({language})", **field(row, language)}}


def load_translated(*, protocol: str, language: str, **metadata: Any) -> DatasetDict:
    """Documents of one ITA-Bench set in one language, asked without examples."""
    return dataset_of(_translated(protocol, language), **metadata)


SQUAD_IT = Protocol(
    evaluated=Rows("it/squad_it_test"),
    examples=Rows("it/squad_it_train"),
    question=lambda row: f"Contesto: {field(row, 'context')}\nDomanda: {field(row, 'question')}\nRisposta:",
    answer=lambda row: str(field(row, "answers")[0]),
    scored=lambda row: {"references": list(field(row, "answers"))},
    pool_rows=1000,
    article=lambda row: str(field(row, "context")),
)


def load_squad(**metadata: Any) -> DatasetDict:
    """Documents of SQuAD-it with all their right answers; examples come from the first 1000 training rows."""
    return dataset_of(SQUAD_IT, **metadata)


def score_squad(document: dict[str, Any], answers: Sequence[str]) -> dict[str, Any]:
    """ROUGE-L with the first right answer (as SAVA) and the best of all; exact match and F1 as SQuAD's script, and by an Italian rule."""
    output, references = answers[0].strip(), document["references"]
    overlaps = rouge_l(output, references, Words())
    return {
        "rougeL_first": overlaps[0],
        "rougeL_max": max(overlaps),
        "exact_match": exact_match(output, references),
        "f1": word_f1(output, references),
        "exact_match_italian": exact_match(output, references, italian_answer),
        "f1_italian": word_f1(output, references, italian_answer),
        "empty": float(not output),
    }
