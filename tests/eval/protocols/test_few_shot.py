"""Examples before a question: never evaluation data, and decided by the seed and the document alone."""

import json
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.protocols.protocol import documents, draw_examples, example_pool
from eval.protocols.rows import Rows, data_folder, read_rows
from eval.protocols.slovene import PROTOCOLS
from tests.refusals import refused

POOL = [{"id": f"train:{number:02}"} for number in range(40)]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 40), st.text(max_size=5), st.integers(0, 3))
def test_fewer_examples_are_the_first_of_more(num_examples, document_id, seed):
    most = draw_examples(POOL, document_id, 40, seed=seed)
    assert draw_examples(POOL, document_id, num_examples, seed=seed) == most[:num_examples]
    assert len({row["id"] for row in most}) == 40


def test_draws_differ_between_documents_and_seeds_and_cover_the_pool():
    first = {tuple(r["id"] for r in draw_examples(POOL, f"doc {n}", 5, seed=s)) for n in range(100) for s in range(2)}
    assert len(first) == 200
    counts = Counter(row["id"] for n in range(2000) for row in draw_examples(POOL, str(n), 5))
    # 2000 documents draw each row 250 times, standard deviation 15.
    assert len(counts) == 40
    assert all(180 < count < 320 for count in counts.values())


def test_the_pool_holds_no_evaluation_data():
    train = [{"id": "b", "group": "p1"}, {"id": "a", "group": "p2"}, {"id": "x", "group": "p3"}, {"id": "c"}]
    evaluated = [{"id": "e1", "group": "p1"}, {"id": "x", "group": "p9"}]
    assert [row["id"] for row in example_pool(train, evaluated)] == ["a", "c"]
    with refused("the pool has 0 examples outside the evaluation data, but 1 are needed for e1; give fewer shots or more training rows"):
        draw_examples(example_pool(evaluated, evaluated), "e1", 1)


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def boolq(identity, split, label=True, group=None):
    return {"id": identity, "group": group or identity, "split": split, "passage": "P", "question": f"{identity}?", "label": label}


def test_prompts_do_not_depend_on_the_order_of_the_file_or_on_other_documents(tmp_path):
    rows = [boolq(f"t{n}", "train") for n in range(20)] + [boolq(f"v{n}", "val") for n in range(4)]
    one, two = tmp_path / "one", tmp_path / "two"
    write(one / "sl/superglue_human/BoolQ.jsonl", rows)
    write(two / "sl/superglue_human/BoolQ.jsonl", rows[:20][::-1] + rows[21:])
    first = {d["id"]: d["prompt"] for d in documents(PROTOCOLS["boolq"], data=str(one), shots=3)}
    second = {d["id"]: d["prompt"] for d in documents(PROTOCOLS["boolq"], data=str(two), shots=3)}
    assert set(first) - set(second) == {"v0"}
    assert all(first[identity] == prompt for identity, prompt in second.items())


def test_fewer_items_are_asked_as_among_all(tmp_path):
    rows = [boolq(f"t{n}", "train", group=f"v{n}") for n in range(8)] + [boolq(f"v{n}", "val") for n in range(4)]
    write(tmp_path / "sl/superglue_human/BoolQ.jsonl", rows)
    whole = {d["id"]: d for d in documents(PROTOCOLS["boolq"], data=str(tmp_path), shots=3)}
    some = documents(PROTOCOLS["boolq"], data=str(tmp_path), shots=3, items=2)
    assert len(some) == 2
    assert all(whole[d["id"]] == d for d in some), "a passage that is not asked this time is evaluation data too"
    with pytest.raises(ValueError, match=r"^0 items were asked for; expected 1 or more$"):
        documents(PROTOCOLS["boolq"], data=str(tmp_path), items=0)


def test_copa_shows_causes_before_a_cause(tmp_path):
    def row(identity, split, question):
        return {
            "id": identity, "split": split, "premise": "P", "choice1": "A", "choice2": "B", "question": question, "label": 1,
        }  # fmt: skip

    rows = [row(f"c{n}", "train", "cause") for n in range(3)] + [row(f"e{n}", "train", "effect") for n in range(9)]
    write(tmp_path / "sl/superglue_human/COPA.jsonl", [*rows, row("v", "val", "cause")])
    (document,) = documents(PROTOCOLS["copa"], data=str(tmp_path), shots=3)
    assert sorted(document["shot_ids"]) == ["c0", "c1", "c2"]
    with pytest.raises(ValueError, match=r"^the pool has 3 examples outside the evaluation data, but 4 are needed for v;"):
        documents(PROTOCOLS["copa"], data=str(tmp_path), shots=4)


def test_refusals(tmp_path, monkeypatch):
    def fails(sentence, call):
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
            call()

    monkeypatch.delenv("SCION_EVAL_DATA", raising=False)
    fails("the tasks of the papers need a folder of evaluation data: give --data to eval.harness", lambda: data_folder(None))
    fails(f"the folder of evaluation data {tmp_path}/no does not exist", lambda: data_folder(f"{tmp_path}/no"))
    ask = lambda **more: documents(PROTOCOLS["boolq"], data=str(tmp_path), **more)  # noqa: E731
    path = tmp_path / "sl/superglue_human/BoolQ.jsonl"
    fails(f"the file sl/superglue_human/BoolQ.jsonl.gz (or .jsonl) is not in the folder of evaluation data {tmp_path}", ask)
    write(path, [boolq("t", "train")])
    fails(f"{path} has no rows of the split val; an empty set cannot be evaluated", ask)
    write(path, [boolq("v", "validation", label=None)])
    fails("the row v has no label; every row needs one", ask)
    write(path, [boolq("v", "dev", label="mogoče")])
    fails("the row v has the label 'mogoče'; known are True, False", ask)
    path.write_text("{\n")
    fails(f"line 1 of {path} is not valid JSON:", ask)
    write(path, ["a"])
    fails(f"line 1 of {path} holds str; expected an object with the fields of a row", ask)
    write(path, [{"split": "val", "question": "?", "label": True}])
    fails("the row sl/superglue_human/BoolQ:1 has no passage; every row needs one", ask)
    assert read_rows(tmp_path, Rows("sl/superglue_human/BoolQ"))[0]["id"] == "sl/superglue_human/BoolQ:1"
