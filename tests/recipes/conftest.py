"""A data set of which a pass takes a few steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import TEXT, Inputs
from tests.processes import call_command

SHAPE = ("--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--ffn-size", 64, "--max-positions", 64)


@pytest.fixture(scope="session")
def untied_hf(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny OPT whose output layer is a matrix of its own, on the Hugging Face side."""
    hf = tmp_path_factory.mktemp("untied") / "hf"
    call_command("conversion.new_model", *SHAPE, "--untied", "--tokenizer", inputs.tokenizer, "--output", hf)
    return hf


@pytest.fixture(scope="session")
def small_data(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of which a pass takes a few steps."""
    base = tmp_path_factory.mktemp("small")
    text = base / "sl.txt"
    text.write_text("\n".join(TEXT.read_text(encoding="utf-8").splitlines()[:8]) + "\n", encoding="utf-8")
    call_command("data_prep.to_megatron", "--input", text, "--tokenizer", inputs.tokenizer, "--output", base / "data")
    return base / "data"
