"""Scores of one answer, as lm-eval's `process_results` wants them, and the aggregations it has not.

A generated answer without the form asked for is invalid, which is not the same as wrong.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from eval.scoring.statistics import class_f1
from eval.scoring.statistics import macro_f1 as macro_f1_of

Scores = dict[str, Any]


def _choice(document: dict[str, Any], predicted: int | None) -> Scores:
    right = float(predicted == document["label"])
    invalid = predicted is None
    answer = (document["label"], -1 if predicted is None else predicted, len(document["choices"]))
    return {
        "invalid": float(invalid),
        "acc": right,  # an invalid answer is a wrong one
        "acc_valid": math.nan if invalid else right,
        "macro_f1": answer,
        "macro_f1_valid": answer,
    }


def yes_no(document: dict[str, Any], answers: Sequence[str]) -> Scores:
    """BoolQ, WSC."""
    return _choice(document, read_label(answers[0], "yes_no"))


def one_two(document: dict[str, Any], answers: Sequence[str]) -> Scores:
    """COPA."""
    return _choice(document, read_label(answers[0], "one_two"))


def holds(document: dict[str, Any], answers: Sequence[str]) -> Scores:
    """RTE."""
    return _choice(document, read_label(answers[0], "holds"))


def holds_or_unknown(document: dict[str, Any], answers: Sequence[str]) -> Scores:
    """CB."""
    return _choice(document, read_label(answers[0], "holds_or_unknown"))


def inference(document: dict[str, Any], answers: Sequence[str]) -> Scores:
    """SI-NLI, with F1 of each class."""
    scores = _choice(document, read_label(answers[0], "inference"))
    return scores | dict.fromkeys(("f1_entailment", "f1_neutral", "f1_contradiction"), scores["macro_f1"])


def likeliest(document: dict[str, Any], answers: Sequence[tuple[float, bool]]) -> Scores:
    """The choice of the highest log-likelihood; of equal ones the first.  There are no invalid answers here."""
    scores = [score for score, _ in answers]
    predicted = scores.index(max(scores))
    return {"acc": float(predicted == document["label"]), "macro_f1": (document["label"], predicted, len(document["choices"]))}


def numbers(document: dict[str, Any], answers: Sequence[str]) -> Scores:
    """MultiRC: all numbers right and no other (exact match), F1 over the answers of all questions, and of each valid answer its F1.

    The last is what the GaMS paper's code takes the mean of.
    """
    right, chosen = set(document["right"]), read_numbers(answers[0], highest=len(document["choices"]))
    exact = float(chosen == right)
    found = chosen or set()
    return {
        "invalid": float(chosen is None),
        "acc": exact,
        "acc_valid": math.nan if chosen is None else exact,
        "f1_answers": (len(found & right), len(found), len(right)),
        "f1_items": math.nan if chosen is None else 2 * len(found & right) / (len(found) + len(right)),
    }


def candidate(document: dict[str, Any], answers: Sequence[tuple[float, bool]]) -> Scores:
    """MultiRC answer by answer: accuracy over answers, F1 of the right ones, and exact match over questions."""
    says_right = answers[1][0] > answers[0][0]
    is_right = bool(document["label"])
    return {
        "acc": float(says_right == is_right),
        "f1_answers": (int(says_right and is_right), int(says_right), int(is_right)),
        "exact_match": (document["question_id"], float(says_right == is_right)),
    }


Answer = tuple[int, int, int]  # gold, predicted or -1, number of classes


def macro_f1(items: Sequence[Answer]) -> float:
    """Macro F1; an invalid answer is a miss of its class."""
    gold = [item[0] for item in items]
    return macro_f1_of(gold, [None if item[1] < 0 else item[1] for item in items], num_classes=items[0][2])


def valid_answers(items: Sequence[Answer]) -> list[Answer]:
    """Answers of a valid form, which alone the GaMS paper scores."""
    return [item for item in items if item[1] >= 0]


def macro_f1_valid(items: Sequence[Answer]) -> float:
    """Macro F1 of valid answers; NaN if there are none."""
    valid = valid_answers(items)
    return macro_f1(valid) if valid else math.nan


def f1_entailment(items: Sequence[Answer]) -> float:
    """F1 of SI-NLI's entailments among valid answers."""
    return _class_f1(items, 0)


def f1_neutral(items: Sequence[Answer]) -> float:
    """F1 of SI-NLI's neutral pairs among valid answers."""
    return _class_f1(items, 1)


def f1_contradiction(items: Sequence[Answer]) -> float:
    """F1 of SI-NLI's contradictions among valid answers."""
    return _class_f1(items, 2)


def _class_f1(items: Sequence[Answer], number: int) -> float:
    valid = valid_answers(items)
    if not valid:
        return math.nan
    return class_f1([item[0] for item in valid], [item[1] for item in valid], num_classes=valid[0][2])[number]


OF_VALID: dict[Callable[[Sequence[Answer]], float], int | None] = {
    macro_f1_valid: None,
    f1_entailment: 0,
    f1_neutral: 1,
    f1_contradiction: 2,
}  # scores of valid answers -> the class that one is of; None for the mean over all


def f1_over_answers(items: Sequence[tuple[int, int, int]]) -> float:
    """F1 of (hits, chosen, right), summed over all questions; 0 if nothing is chosen and nothing right."""
    hits, chosen, right = (sum(item[position] for item in items) for position in range(3))
    return 2 * hits / (chosen + right) if chosen + right else 0.0


def share_all_right(items: Sequence[tuple[str, float]]) -> float:
    """Share of questions all of whose answers are right, of (question, right)."""
    questions: dict[str, float] = defaultdict(lambda: 1.0)
    for question, right in items:
        questions[question] = min(questions[question], right)
    return sum(questions.values()) / len(questions)


# A label counts only as a whole word: `Danes` is no `Da`, `12` is no `1`.
_FORMS = {
    "yes_no": re.compile(r"\s*(da|ne)\b", re.IGNORECASE),
    "one_two": re.compile(r"\s*(?:hipoteza\s*)?([12])\b", re.IGNORECASE),
    "holds": re.compile(r"\s*(drži|ne\s+drži)\b", re.IGNORECASE),
    "holds_or_unknown": re.compile(r"\s*(drži|ne\s+drži|ne\s+vemo)\b", re.IGNORECASE),
    "inference": re.compile(r"\s*(sosledje|nevtralnost|nasprotovanje)\b", re.IGNORECASE),
}
LABELS = {
    "yes_no": ("da", "ne"),
    "one_two": ("1", "2"),
    "holds": ("drži", "ne drži"),
    "holds_or_unknown": ("drži", "ne drži", "ne vemo"),
    "inference": ("sosledje", "nevtralnost", "nasprotovanje"),
}
# Three digits at most: no set has more answers, and a model may write a number of any length.
_NUMBERS = re.compile(r"\s*(?:pravilni[^:\n]*:)?\s*(\d{1,3}(?:\s*,\s*\d{1,3})*)(?![\d])", re.IGNORECASE)


def read_label(text: str, form: str) -> int | None:
    """Index of the label that a text begins with, in any case; None if it begins with none."""
    match = _FORMS[form].match(text)
    return None if match is None else LABELS[form].index(" ".join(match.group(1).lower().split()))


def read_numbers(text: str, *, highest: int) -> set[int] | None:
    """Numbers that a text begins with, separated by commas; None if there are none or one of them is not between 1 and `highest`."""
    match = _NUMBERS.match(text)
    if match is None:
        return None
    numbers = {int(number) for number in match.group(1).split(",")}
    return numbers if all(1 <= number <= highest for number in numbers) else None
