"""A chat template in an export: its special tokens count, all else about the tokenizer stays, and one that cannot work is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from conversion.nemo_to_hf import export, main
from tests.conftest import Inputs
from tests.processes import ROOT

TEMPLATE = ROOT / "recipes/tuning/chat.jinja"
TURNS = [{"role": "user", "content": "Koliko je ura?"}, {"role": "assistant", "content": " Pet. "}]


def test_turns_end_with_the_end_of_text(inputs: Inputs, tmp_path: Path) -> None:
    main(["--input", str(inputs.checkpoint), "--output", str(tmp_path / "hf"), "--chat-template", str(TEMPLATE)])
    tokenizer, before = AutoTokenizer.from_pretrained(tmp_path / "hf"), AutoTokenizer.from_pretrained(inputs.hf)
    text = tokenizer.apply_chat_template(TURNS, tokenize=False)
    assert text == "<s><start_of_turn>user\nKoliko je ura?<end_of_turn>\n<start_of_turn>model\nPet.</s>\n"
    ids = tokenizer.apply_chat_template(TURNS, return_dict=False)
    assert ids[0] == tokenizer.bos_token_id and ids.count(tokenizer.eos_token_id) == 1
    assert ids[: len(asked := tokenizer.apply_chat_template(TURNS[:1], add_generation_prompt=True, return_dict=False))] == asked
    assert tokenizer("Koliko je ura? čšž")["input_ids"] == before("Koliko je ura? čšž")["input_ids"]
    assert before.eos_token_id not in before("</s>")["input_ids"], "text stays text where corpora are encoded"
    assert len(tokenizer) == len(before)


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", "no end of text (</s>) follows an answer"),
        ("{{ messages[-1].content }}{{ eos_token }}", "a conversation does not begin with its prompt"),
        ("{% for m in messages %}", "cannot be rendered: "),
    ],
)
def test_one_that_cannot_work_is_refused(inputs: Inputs, tmp_path: Path, template: str, sentence: str) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text(template, encoding="utf-8")
    with pytest.raises(ValueError) as error:
        export(inputs.checkpoint, tmp_path / "hf", chat_template=file)
    assert sentence in str(error.value) and str(file) in str(error.value)
    assert not (tmp_path / "hf").exists()
