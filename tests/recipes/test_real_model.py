"""SmolLM2-135M as it is converted, beside what transformers makes of the same file: where `make demo` has fetched it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from conversion import from_gguf, hf_to_nemo, nemo_to_hf, transfer
from conversion.bits_per_byte import choose_start_token, score_documents
from data_prep.tokenizers.files import load_tokenizer
from recipes.demos import smollm2
from tests.processes import ROOT

DEMO_TEXT = ROOT / "recipes" / "demo_text"
WITHOUT = f"{smollm2.cached_path()} is not there: `make demo` fetches it"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not smollm2.cached_path().is_file(), reason=WITHOUT),
    pytest.mark.usefixtures("one_thread"),
]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2") / "hf"
    assert from_gguf.main(["--input", str(smollm2.fetch()), "--dtype", "float32", "--output", str(folder)]) == 0
    return folder


def english(num_bytes: int) -> list[str]:
    text = (DEMO_TEXT / "en.heldout.txt").read_text(encoding="utf-8")[:num_bytes]
    return [document for document in text.split("\n\n") if document.strip()]


def test_english_costs_as_many_bits_as_in_transformers(converted: Path, tmp_path: Path) -> None:
    """GGUF -> HF, and on to NeMo and back: the same bits per byte as the weights that transformers itself reads from the file."""
    pytest.importorskip("gguf", reason="transformers reads GGUF with the package gguf")
    assert hf_to_nemo.main(["--input", str(converted), "--output", str(tmp_path / "nemo")]) == 0
    assert nemo_to_hf.main(["--input", str(tmp_path / "nemo"), "--output", str(tmp_path / "back")]) == 0
    path = smollm2.cached_path()
    readers: dict[str, Any] = {
        "transformers": lambda: AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32),
        "from_gguf": lambda: AutoModelForCausalLM.from_pretrained(str(converted), dtype=torch.float32),
        "NeMo and back": lambda: AutoModelForCausalLM.from_pretrained(str(tmp_path / "back"), dtype=torch.float32),
    }
    tokenizer = load_tokenizer(tmp_path / "back")  # transformers makes another one of the file, with other pieces of digits
    start = choose_start_token(tokenizer)
    found = {
        name: score_documents(read().eval(), tokenizer, english(3_000), start_token=start, window_tokens=512).bits_per_byte
        for name, read in readers.items()
    }
    print(found)
    assert 0.8 < found["from_gguf"] < 1.6  # it knows English
    assert found["NeMo and back"] == found["from_gguf"]
    # The same weights (tests/conversion/test_from_gguf.py): the same bits.
    assert found["transformers"] == found["from_gguf"]


@pytest.mark.parametrize("tokens_by", ["auxiliary", "continued-bpe"])
def test_english_without_new_tokens_has_the_same_logits_bit_for_bit(converted: Path, tmp_path: Path, tokens_by: str) -> None:
    words = ["--source", converted, "--vocabulary", "expand", "--new-tokens", "500", "--tokens-by", tokens_by, "--method", "mean"]
    assert transfer.main([*map(str, words), "--text", str(DEMO_TEXT / "sl.train.txt"), "--output", str(tmp_path / "out")]) == 0
    before, after = load_tokenizer(converted), load_tokenizer(tmp_path / "out")
    old, new = (AutoModelForCausalLM.from_pretrained(str(path), dtype=torch.float32).eval() for path in (converted, tmp_path / "out"))
    lines = [line for document in english(8_000) for line in document.split("\n") if line.strip()]
    unchanged = [line for line in lines if max(after(line)["input_ids"]) < len(before)]
    assert len(unchanged) > len(lines) / 2
    for line in unchanged[:8]:
        ids = before(line)["input_ids"]
        assert after(line)["input_ids"] == ids
        with torch.no_grad():
            expected, found = (model(torch.tensor([ids])).logits for model in (old, new))
        assert found.shape[-1] == len(before) + 500
        assert torch.equal(found[..., : len(before)], expected)
