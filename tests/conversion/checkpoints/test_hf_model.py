from __future__ import annotations

from pathlib import Path

import torch

from conversion.checkpoints.hf_model import inspect_checkpoint, load_model
from tests.conversion.tiny_families import save_tiny_model


def test_capped_scores_are_capped(tmp_path: Path, tokenizer_dir: Path) -> None:
    """The library's default attention leaves out Gemma 2's caps; the logits must be those of the attention that has them."""
    directory = save_tiny_model("gemma2", tmp_path / "gemma2", tokenizer_dir=tokenizer_dir)
    model = load_model(inspect_checkpoint(directory, name="gemma2"), device="cpu", dtype="float32")
    ids = torch.arange(80).view(2, 40)
    with torch.inference_mode():
        found = model(ids).logits
        model.set_attn_implementation("sdpa")
        uncapped = model(ids).logits
        model.set_attn_implementation("eager")
        expected = model(ids).logits
    assert torch.equal(found, expected)
    assert (uncapped - expected).abs().max() > 0.01
