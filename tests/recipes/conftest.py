"""A data set of which a pass takes a few steps, and what an encoder's run starts from."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from tests.conftest import HELD_OUT, TEXT, VOCAB_SIZE, Inputs
from tests.conversion.embedding_fixtures import byte_level, demo_text, wordpiece
from tests.processes import call_command

SHAPE = ("--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--ffn-size", 64, "--max-positions", 64)


@pytest.fixture(scope="session")
def untied_hf(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny OPT whose output layer is a matrix of its own, on the Hugging Face side."""
    hf = tmp_path_factory.mktemp("untied") / "hf"
    call_command("conversion.new_model", *SHAPE, "--untied", "--tokenizer", inputs.tokenizer, "--output", hf)
    return hf


ENCODER_SPECIALS = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """A tiny RoBERTa, with data of its tokenizer."""
    tokenizer = byte_level(demo_text("sl"), num_tokens=VOCAB_SIZE, specials=ENCODER_SPECIALS)
    return make_encoder("roberta", tokenizer, tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """A tiny BERT, whose tokenizer has no end of text but [SEP], with data of it."""
    return make_encoder("bert", wordpiece(demo_text("sl"), num_tokens=VOCAB_SIZE), tmp_path_factory.mktemp("bert"))


def make_encoder(model_type: str, tokenizer: PreTrainedTokenizerFast, base: Path) -> Inputs:
    """A tiny encoder of a family, with data of its tokenizer."""
    made = Inputs(*(base / name for name in ("tokenizer", "hf", "nemo", "data", "held_out")))
    tokenizer.save_pretrained(str(made.tokenizer))
    for command in (
        ("data_prep.to_megatron", "--input", TEXT, "--tokenizer", made.tokenizer, "--output", made.data),
        ("data_prep.to_megatron", "--input", HELD_OUT, "--tokenizer", made.tokenizer, "--output", made.held_out),
        ("conversion.new_model", *SHAPE, "--model-type", model_type, "--tokenizer", made.tokenizer, "--seed", 1, "--output", made.hf),
        ("conversion.hf_to_nemo", "--input", made.hf, "--output", made.checkpoint),
    ):
        call_command(*command)
    return made


@pytest.fixture(scope="session")
def small_data(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of which a pass takes a few steps."""
    return _first_lines(8, inputs, tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def one_pass_data(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of which a pass holds warmup, decay and a constant tail."""
    return _first_lines(80, inputs, tmp_path_factory.mktemp("one_pass"))


@pytest.fixture(scope="session")
def data_with_bos(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set with the beginning-of-text token in front of each document."""
    return _first_lines(8, inputs, tmp_path_factory.mktemp("with_bos"), "--bos", "yes")


def _first_lines(number: int, inputs: Inputs, base: Path, *options: str) -> Path:
    text = base / "sl.txt"
    text.write_text("\n".join(TEXT.read_text(encoding="utf-8").splitlines()[:number]) + "\n", encoding="utf-8")
    call_command("data_prep.to_megatron", "--input", text, "--tokenizer", inputs.tokenizer, "--output", base / "data", *options)
    return base / "data"
