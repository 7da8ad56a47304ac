"""Two grafts of different sizes on one vocabulary: the small one drafts for the large one (speculative decoding)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from conversion.transfer import main as transfer
from tests.conversion.embedding_fixtures import byte_level, demo_text

SPECIALS = {"bos": "<s>", "eos": "</s>", "pad": "<pad>"}


def source(folder: Path, *, hidden_size: int, num_layers: int) -> Path:
    torch.manual_seed(hidden_size)
    sizes = {"hidden_size": hidden_size, "intermediate_size": 2 * hidden_size, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=300, num_hidden_layers=num_layers, initializer_range=0.2, **sizes))
    model.save_pretrained(folder)
    byte_level(demo_text("en")[:20_000], num_tokens=300, specials=SPECIALS).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("vocabulary", ["replace", "swap"])
def test_a_small_graft_drafts_for_a_large_one(tmp_path: Path, vocabulary: str) -> None:
    """The second graft takes the tokenizer of the first; with it as assistant the same text is generated."""
    large = source(tmp_path / "large", hidden_size=64, num_layers=3)
    source(tmp_path / "small", hidden_size=32, num_layers=1)
    text = tmp_path / "sl.txt"
    text.write_text(demo_text("sl")[:30_000], encoding="utf-8")
    byte_level(demo_text("sl")[:30_000], num_tokens=340, specials=SPECIALS).save_pretrained(tmp_path / "tokenizer")
    first = (
        ["--tokenizer", tmp_path / "tokenizer"]
        if vocabulary == "replace"
        else ["--vocabulary", "swap", "--new-tokens", "30", "--text", text]
    )
    for name, options in (("large", first), ("small", ["--tokenizer", tmp_path / "large_sl"])):
        words = ["--source", tmp_path / name, "--method", "mean", *options, "--output", tmp_path / f"{name}_sl"]
        assert transfer([str(word) for word in words]) == 0
    tokenizers = [AutoTokenizer.from_pretrained(tmp_path / f"{name}_sl") for name in ("large", "small")]
    assert tokenizers[0].get_vocab() == tokenizers[1].get_vocab() != AutoTokenizer.from_pretrained(large).get_vocab()
    target, draft = (AutoModelForCausalLM.from_pretrained(tmp_path / f"{name}_sl", dtype=torch.float64) for name in ("large", "small"))
    assert target.config.vocab_size == draft.config.vocab_size
    ids = [tokenizer("Zjutraj je nad dolino", return_tensors="pt").input_ids for tokenizer in tokenizers]
    assert torch.equal(*ids)
    settings = {"inputs": ids[0], "attention_mask": torch.ones_like(ids[0]), "max_new_tokens": 24, "do_sample": False}
    alone, drafted = target.generate(**settings), target.generate(**settings, assistant_model=draft)
    assert torch.equal(alone, drafted) and alone.shape[1] > ids[0].shape[1]
