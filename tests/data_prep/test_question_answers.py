"""Questions with answers as pairs of documents: what is in them, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from data_prep.megatron.index import TokenFile, open_dataset, open_training_data, stored_ids
from data_prep.question_answers import question_answers
from tests.refusals import refused

PAIRS = [("Kdo je to?", "To je medved."), ("Kje živi?", "V gozdu."), ("Koliko je star?", "Tri leta.")]


def _lines(path: Path, pairs: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs), encoding="utf-8")
    return path


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return _lines(tmp_path / "pairs.jsonl", [{"question": question, "answer": answer} for question, answer in PAIRS])


def test_prompt_and_answer_are_documents_that_read_back(pairs: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    manifest = question_answers([pairs], tokenizer_dir, tmp_path / "data", template="V: {question}\nO:")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_dir)
    data = TokenFile(open_training_data(tmp_path / "data")[0])
    assert len(data) == 6 and manifest.facts["num_pairs"] == 3
    for number, (question, answer) in enumerate(PAIRS):
        assert tokenizer.decode(data[2 * number]).strip() == f"V: {question}\nO:"
        *text, last = data[2 * number + 1].tolist()
        assert (tokenizer.decode(text).strip(), last) == (answer, tokenizer.eos_token_id)
    assert manifest.facts["text_bytes"] == sum(len(f"V: {question}\nO:{answer}".encode()) for question, answer in PAIRS)
    assert manifest.facts["longest_pair"] == max(len(data[n]) + len(data[n + 1]) for n in (0, 2, 4))
    with pytest.raises(ValueError, match=r"data_prep\.question_answers"):
        open_dataset(tmp_path / "data")


def test_ids_beyond_two_bytes(pairs: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    """By the highest id, not by the number of tokens, which is below 65,500."""
    far = shutil.copytree(tokenizer_dir, tmp_path / "far") / "tokenizer.json"
    content = json.loads(far.read_text(encoding="utf-8"))
    content["model"]["vocab"]["Kdo"] = 70_003
    content["added_tokens"].append(dict(content["added_tokens"][0], id=70_003, content="Kdo", special=False))
    far.write_text(json.dumps(content), encoding="utf-8")
    manifest = question_answers([pairs], far.parent, tmp_path / "data")
    data = TokenFile(tmp_path / "data/text")
    assert 70_003 in data[0] and manifest.facts["vocab_size"] == 70_004
    with pytest.raises(ValueError, match="token ids from 3 to 70003 do not fit uint16"):
        stored_ids(np.array([3, 70_003]), np.dtype(np.uint16))


def test_lines_without_a_question_and_templates_without_one_are_refused(pairs: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    bad = _lines(tmp_path / "bad.jsonl", [{"question": "Kdo?", "answer": "Jaz."}, {"answer": "Ti."}])
    with refused(f"{bad}, line 2: expected texts as 'question' and 'answer', and one of them is missing"):
        question_answers([bad], tokenizer_dir, tmp_path / "data")
    with refused("--template is 'Vprašanje'; expected {question} in it once, for example '{question}\\n'"):
        question_answers([pairs], tokenizer_dir, tmp_path / "data", template="Vprašanje")
    assert not (tmp_path / "data").exists()
