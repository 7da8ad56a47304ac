"""Fixtures that several stages share: a tiny model and data set, made by the commands that users run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes import ROOT, call_command

TEXT = ROOT / "recipes" / "demo_text" / "sl.train.txt"
HELD_OUT = ROOT / "recipes" / "demo_text" / "sl.heldout.txt"
VOCAB_SIZE = 601  # odd, and no multiple of the padding


@dataclass(frozen=True)
class Inputs:
    """Directories of what a run starts from."""

    tokenizer: Path
    hf: Path
    checkpoint: Path
    data: Path
    held_out: Path


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tiny products are slower on several threads, far slower where other tests use the cores."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    base = tmp_path_factory.mktemp("inputs")
    made = Inputs(base / "tokenizer", base / "hf", base / "nemo", base / "data", base / "held_out")
    shape = ["--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4", "--ffn-size", "64", "--max-positions", "64"]
    for command in (
        ("data_prep.train_tokenizer", "--input", TEXT, "--vocab-size", VOCAB_SIZE, "--output", made.tokenizer),
        ("data_prep.to_megatron", "--input", TEXT, "--tokenizer", made.tokenizer, "--output", made.data),
        ("data_prep.to_megatron", "--input", HELD_OUT, "--tokenizer", made.tokenizer, "--output", made.held_out),
        ("conversion.new_model", *shape, "--tokenizer", made.tokenizer, "--seed", 1, "--output", made.hf),
        ("conversion.hf_to_nemo", "--input", made.hf, "--output", made.checkpoint),
    ):
        call_command(*command)
    return made
