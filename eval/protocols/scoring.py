"""Scores of one answer, as lm-eval's `process_results` wants them, and the aggregations it has not."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from eval.protocols.forms import read_label, read_numbers
from eval.statistics import macro_f1 as macro_f1_of

Scores = dict[str, Any]


def _choice(document: dict[str, Any], predicted: int | None) -> Scores:
    right = float(predicted == document["label"])
    invalid = predicted is None
    return {
        "invalid": float(invalid),
        "acc": right,  # an invalid answer is a wrong one
        "acc_valid": math.nan if invalid else right,
        "macro_f1": (document["label"], -1 if predicted is None else predicted, len(document["choices"])),
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
    """SI-NLI."""
    return _choice(document, read_label(answers[0], "inference"))


def likeliest(document: dict[str, Any], answers: Sequence[tuple[float, bool]]) -> Scores:
    """The choice of the highest log-likelihood; of equal ones the first.  There are no invalid answers here."""
    scores = [score for score, _ in answers]
    predicted = scores.index(max(scores))
    return {"acc": float(predicted == document["label"]), "macro_f1": (document["label"], predicted, len(document["choices"]))}


def numbers(document: dict[str, Any], answers: Sequence[str]) -> Scores:
    """MultiRC: all numbers right and no other (exact match), and F1 over the answers of all questions."""
    right, chosen = set(document["right"]), read_numbers(answers[0], highest=len(document["choices"]))
    exact = float(chosen == right)
    found = chosen or set()
    return {
        "invalid": float(chosen is None),
        "acc": exact,
        "acc_valid": math.nan if chosen is None else exact,
        "f1_answers": (len(found & right), len(found), len(right)),
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


def macro_f1(items: Sequence[tuple[int, int, int]]) -> float:
    """Macro F1 of (gold, predicted or -1, number of classes)."""
    gold = [item[0] for item in items]
    return macro_f1_of(gold, [None if item[1] < 0 else item[1] for item in items], num_classes=items[0][2])


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
