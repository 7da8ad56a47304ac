"""Folders of tiny checkpoints, and of real data where they are at hand."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def save_checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """Saves model and tokenizer to a folder, with a manifest where facts are given."""
    from common.artifacts import write_manifest
    from data_prep.tokenizers.files import tokenizer_digest

    def save(name: str, model, tokenizer, *, stage: str = "conversion.nemo_to_hf", **facts) -> Path:
        directory = tmp_path / name
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        if facts:
            write_manifest(directory, stage=stage, facts={"tokenizer_digest": tokenizer_digest(tokenizer), **facts})
        return directory

    return save
