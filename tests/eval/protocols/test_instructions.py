"""What a program can check of an answer: each check on answers that pass and that do not, and the rows in three languages."""

import json

import pytest

from eval.protocols.instructions import CHECKS, passes
from eval.running.task_runs import TASKS_DIR, find_tasks

ANSWERS = {
    "is yes|da": ([" Yes.", '"da"'], ["yes, it is", ""]),
    "number 1-100": (["42", " 7. "], ["142", "seven", "4 or 5", "7" * 9999]),
    "words 1": (["Paris.", "čas"], ["New York", "…"]),
    "words 2-3": (["a b", "don't you say"], ["one", "a b c d"]),
    "sentences 2": (["It rains. It pours!"], ["It rains.", "It rains. It pours", "One. Two. Three."]),
    "lines 2": (["a\n\nb\n"], ["a", "a\nb\nc"]),
    "items 3": (["red, green, blue", "a,b,c."], ["red, green", "red, green, blue, white", "a,\nb, c", "a,,b"]),
    "bullets 2": (["- a\n- b", "Two:\n* a\n• b"], ["- a", "a\nb"]),
    "numbered 2": (["1. a\n2. b"], ["1. a\n3. b", "a\nb", "1. a\n2. b\n3. c"]),
    "lower": (["šum morja"], ["Šum morja", "123"]),
    "upper": (["ŠUM MORJA!"], ["Šum", "123"]),
    "contains gora|hrib": (["Visoka gora."], ["Dolina."]),
    "lacks ,": (["no comma"], ["a, b", ""]),
    "starts nekoč": (["Nekoč je bil kralj."], ["Bil je nekoč."]),
    "ends ?": (["Koliko je ura? "], ["Ura je tri."]),
    "quoted": (['"Hello"', "„Živjo“"], ["Hello", '"']),
    "json name|age": (['{"name": "Ana", "age": 3}'], ['{"name": "Ana"}', '```{"name": "Ana", "age": 3}```', "[1]", "[" * 99_999]),
    "language sl": (["Hiša je na hribu, ki ga vidim."], ["The house is on the hill.", "La casa è sul colle.", "???"]),
    "language it": (["Il mercato è nella piazza della chiesa."], ["Trg je pri cerkvi, ki je stara."]),
    "language en": (["There is a forest with the oldest trees of this land."], ["Gozd je star in v njem so medvedi."]),
}


@pytest.mark.parametrize("check", ANSWERS)
def test_a_check_passes_what_it_says_and_nothing_else(check: str) -> None:
    good, bad = ANSWERS[check]
    assert all(passes(answer, check) for answer in good)
    assert not any(passes(answer, check) for answer in bad)


def test_every_check_is_shown_and_every_language_asks_the_same() -> None:
    assert {check.partition(" ")[0] for check in ANSWERS} == CHECKS.keys()
    kinds = {}
    for language in ("en", "sl", "it"):
        lines = (TASKS_DIR / f"instructions/instructions_{language}.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        assert len({row["prompt"] for row in rows}) == len(rows) >= 40
        assert not any(passes("", check) for row in rows for check in row["checks"])
        kinds[language] = [(row["id"], [check.partition(" ")[0] for check in row["checks"]]) for row in rows]
        found = find_tasks([f"instructions_{language}"])[f"instructions_{language}"]
        assert [instance.args[0] for instance in found.task.instances] == [row["prompt"] for row in rows]
    assert kinds["en"] == kinds["sl"] == kinds["it"]


def test_a_task_scores_answers_that_pass_all_checks() -> None:
    task = find_tasks(["instructions_en"])["instructions_en"].task
    document = {"checks": ["upper", "words 1"]}
    assert [task.process_results(document, [answer]) for answer in ("ITALY", "Italy", "NEW ZEALAND", " ")] == [
        {"acc": right, "empty": empty} for right, empty in ((1.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 1.0))
    ]
