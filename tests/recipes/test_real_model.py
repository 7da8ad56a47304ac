"""SmolLM2-135M as it is converted, beside what transformers makes of the same file: where `make demo` has fetched it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM

from conversion import from_gguf, hf_to_nemo, nemo_to_hf, transfer, verify
from conversion.measuring.bits_per_byte import choose_start_token, score_documents
from data_prep.tokenizers.files import load_tokenizer
from recipes.projects import smollm2
from tests.processes import ROOT

DEMO_TEXT = ROOT / "recipes" / "demo_text"
WITHOUT = f"{smollm2.cached_path()} is not there: `make demo` fetches it"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not smollm2.cached_path().is_file(), reason=WITHOUT),
    pytest.mark.usefixtures("one_thread"),
]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2") / "hf"
    assert from_gguf.main(["--input", str(smollm2.fetch()), "--dtype", "float32", "--output", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def nemo(converted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2_in_nemo") / "nemo"
    assert hf_to_nemo.main(["--input", str(converted), "--output", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def exported(nemo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2_exported") / "hf"
    assert nemo_to_hf.main(["--input", str(nemo), "--output", str(folder)]) == 0
    return folder


def english(num_bytes: int) -> list[str]:
    text = (DEMO_TEXT / "en.heldout.txt").read_text(encoding="utf-8")[:num_bytes]
    return [document for document in text.split("\n\n") if document.strip()]


def test_english_costs_as_many_bits_as_in_transformers(converted: Path, exported: Path) -> None:
    """GGUF -> HF, and on to NeMo and back: the same bits per byte as the weights that transformers itself reads from the file."""
    pytest.importorskip("gguf", reason="transformers reads GGUF with the package gguf")
    path = smollm2.cached_path()
    readers: dict[str, Any] = {
        "transformers": lambda: AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32),
        "from_gguf": lambda: AutoModelForCausalLM.from_pretrained(str(converted), dtype=torch.float32),
        "NeMo and back": lambda: AutoModelForCausalLM.from_pretrained(str(exported), dtype=torch.float32),
    }
    tokenizer = load_tokenizer(exported)  # transformers makes another one of the file, with other pieces of digits
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


def test_it_is_the_same_model_at_every_parallel_size(converted: Path, nemo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of its 3 key-value heads 1 or 3 ranks can have whole ones; 2 cannot."""
    assert verify.main([str(converted), str(nemo), "--tensor-parallel-size", "1", "3"]) == 0
    assert "tensor parallel 3" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"--tensor-parallel-size 2 does not divide the 3 key-value heads \(of 9 attention heads\)"):
        verify.main([str(converted), str(nemo), "--tensor-parallel-size", "2"])


def test_the_export_writes_the_same_in_transformers_and_in_lm_eval(exported: Path) -> None:
    prompts = ["The capital of France is", "Water boils at a temperature of"]
    tokenizer = load_tokenizer(exported)
    model = AutoModelForCausalLM.from_pretrained(str(exported), dtype=torch.float32).eval()

    def continued(prompt: str) -> str:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        written = model.generate(ids, do_sample=False, max_new_tokens=12, pad_token_id=tokenizer.eos_token_id)[0, ids.shape[1] :]
        return str(tokenizer.decode(written, skip_special_tokens=True))

    theirs = HFLM(pretrained=str(exported), dtype="float32", device="cpu", batch_size=1)
    asked = [
        Instance("generate_until", {}, (prompt, {"until": [], "max_gen_toks": 12, "do_sample": False}), i)
        for i, prompt in enumerate(prompts)
    ]
    ours = [continued(prompt) for prompt in prompts]
    assert [text.strip() for text in theirs.generate_until(asked, disable_tqdm=True)] == [text.strip() for text in ours]
    assert "Paris" in ours[0]


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
