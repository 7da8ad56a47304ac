"""A data set of which a pass takes a few steps, and what an encoder's run starts from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from tests.conftest import HELD_OUT, TEXT, VOCAB_SIZE, Inputs
from tests.conversion.embedding_fixtures import byte_level, demo_text, wordpiece
from tests.processes import call_command
from tests.recipes.watched_runs import Runs

SHAPE = ("--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--ffn-size", 64, "--max-positions", 64)


@pytest.fixture(scope="module")
def runs(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs of the tiny model, in a folder of the module's own."""
    return Runs(inputs, tmp_path_factory.mktemp("runs"))


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


@pytest.fixture(scope="session")
def factorised(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the factors of a table on the Hugging Face side, and the checkpoint that they make."""
    base = tmp_path_factory.mktemp("factorised")
    make_factors(inputs, base)
    return base


def make_factors(inputs: Inputs, base: Path) -> None:
    """Factors of rank 6 of a model's own table, as `hf` and `nemo` of a directory."""
    transfer = (
        "--source",
        inputs.hf,
        "--tokenizer",
        inputs.tokenizer,
        "--method",
        "mean",
        "--output-layer",
        "tied",
        "--factorised-size",
        6,
    )
    call_command("conversion.transfer", *transfer, "--output", base / "hf")
    call_command("conversion.hf_to_nemo", "--input", base / "hf", "--output", base / "nemo")


@pytest.fixture(scope="session")
def pairs(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of questions with answers."""
    base = tmp_path_factory.mktemp("pairs")
    lines = [{"question": f"Koliko je {n}?", "answer": f"Je {n}."} for n in range(24)]
    (base / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    options = ("--input", base / "pairs.jsonl", "--tokenizer", inputs.tokenizer, "--output", base / "data")
    call_command("data_prep.question_answers", *options)
    return base / "data"
