"""Which tokens of a question with its answer count."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from data_prep.megatron.index import index_parts
from recipes.numbers.blend import Order
from tests.conftest import Inputs
from tests.processes import call_command
from tests.recipes.tiny_runs import train_on_ranks


def test_the_loss_is_that_of_the_answer_and_its_end(tmp_path: Path) -> None:
    from recipes.training.passes import (
        Answers,  # here, since collecting the tests needs no engine
        OrderedSamples,
    )

    parts = [[11, 12, 13], [21, 22, 2], [14], [23, 2]]  # two prompts, each with an answer that ends with 2
    (tmp_path / "text.bin").write_bytes(np.concatenate(parts).astype(np.uint16).tobytes())
    lengths = np.array([len(part) for part in parts], dtype=np.int32)
    (tmp_path / "text.idx").write_bytes(b"".join(bytes(part) for part in index_parts(lengths, np.dtype(np.uint16))))
    pairs = Answers(str(tmp_path / "text"), sequence_length=7, eos_token_id=2)
    assert len(pairs) == 2
    order = Order(np.array([0, 0, 0], np.uint16), np.array([1, 0, 1], np.uint32))
    assert OrderedSamples([pairs], order).tokens_seen(7).tolist() == [0, 3, 9, 12], "what fills up the samples is not text"
    for number, (tokens, counted) in enumerate([([11, 12, 13, 21, 22, 2, 2], [21, 22, 2]), ([14, 23, 2, 2, 2, 2, 2], [23, 2])]):
        sample = pairs[number]
        assert sample["tokens"].tolist() == tokens
        assert sample["position_ids"].tolist() == list(range(7))
        assert sample["labels"][sample["loss_mask"] == 1].tolist() == counted
        assert {tensor.shape for tensor in sample.values()} == {(7,)}


def test_packed_answers_have_positions_of_their_own(tmp_path: Path) -> None:
    """As many pairs as fit, in their order; what fills up begins anew, too, and is not counted."""
    from recipes.training.passes import (
        Answers,  # here, since collecting the tests needs no engine
        OrderedSamples,
    )

    parts = [[11, 12, 13], [21, 22, 2], [14], [23, 2], [15, 16], [24, 25, 26, 2], [17], [2]]
    (tmp_path / "text.bin").write_bytes(np.concatenate(parts).astype(np.uint16).tobytes())
    lengths = np.array([len(part) for part in parts], dtype=np.int32)
    (tmp_path / "text.idx").write_bytes(b"".join(bytes(part) for part in index_parts(lengths, np.dtype(np.uint16))))
    pairs = Answers(str(tmp_path / "text"), sequence_length=8, eos_token_id=2, packed=True)
    assert [[*pairs.documents(number)] for number in range(len(pairs))] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    order = Order(np.array([0, 0], np.uint16), np.array([1, 0], np.uint32))
    assert OrderedSamples([pairs], order).tokens_seen(8).tolist() == [0, 8, 17]
    first, second = pairs[0], pairs[1]  # the first ends with the token that is predicted last
    assert first["tokens"].tolist() == [11, 12, 13, 21, 22, 2, 14, 23]
    assert first["labels"][first["loss_mask"] == 1].tolist() == [21, 22, 2, 23, 2]
    assert first["position_ids"].tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    assert second["tokens"].tolist() == [15, 16, 24, 25, 26, 2, 17, 2]
    assert second["labels"][second["loss_mask"] == 1].tolist() == [24, 25, 26, 2, 2]
    assert second["position_ids"].tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    alone = Answers(str(tmp_path / "text"), sequence_length=11, eos_token_id=2, packed=True)[1]
    assert alone["position_ids"].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 0, 1, 2]


PACKED = 11  # samples of the 24 pairs below, where several share one
ONE_BY_ONE = ("schedule.micro_batch_size=1", "parallel.tensor_parallel_size=2")
MICRO_BATCHES = {
    "all at once": ("schedule.micro_batch_size=8", "parallel.tensor_parallel_size=2"),
    "over replicas": ("schedule.micro_batch_size=2", "parallel.tensor_parallel_size=1"),
    "over a pipeline": ("schedule.micro_batch_size=2", "parallel.tensor_parallel_size=1", "parallel.pipeline_parallel_size=2"),
}


@pytest.fixture(scope="module")
def answers(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A recipe over answers of very different lengths."""
    base = tmp_path_factory.mktemp("answers")
    lines = [{"question": f"Koliko je {n}?", "answer": "Je " + "zelo " * (n * n % 11) + f"{n}."} for n in range(24)]
    (base / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    options = ("--input", base / "pairs.jsonl", "--tokenizer", inputs.tokenizer, "--output", base / "pairs")
    call_command("data_prep.question_answers", *options)
    recipe = ["--recipe", "demo_adapt", f"model.checkpoint={inputs.checkpoint}", f"data.train=[{base / 'pairs'}]"]
    recipe += ["data.sequence_length=64", "run.checkpoint_every_steps=3"]
    recipe += ["schedule.global_batch_size=8", "schedule.epochs=1", "schedule.max_steps=3"]
    return [*recipe, "schedule.warmup_steps=1", "run.log_every_steps=1", "model.hidden_dropout=0"]


def _losses_and_norms(run_dir: Path, *arguments: str) -> list[float]:
    records = [record for record in train_on_ranks(run_dir, *arguments) if "loss" in record]
    return [record["loss"] for record in records] + [record["gradient_norm"] for record in records]


@pytest.fixture(scope="module")
def one_by_one(answers: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses and norms of gradients, a sample at a time."""
    return _losses_and_norms(tmp_path_factory.mktemp("one_by_one") / "run", *answers, *ONE_BY_ONE)


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["all at once", "over replicas", "over a pipeline"])
def test_the_same_answers_give_the_same_gradient_however_they_are_cut(
    name: str, answers: list[str], one_by_one: list[float], tmp_path: Path
) -> None:
    """A mean of means would weigh a short one's tokens more."""
    assert len(one_by_one) == 6
    assert _losses_and_norms(tmp_path / "run", *answers, *MICRO_BATCHES[name]) == pytest.approx(one_by_one, rel=1e-4)


@pytest.mark.slow
def test_the_same_answers_give_the_same_gradient_when_packed(answers: list[str], tmp_path: Path) -> None:
    """All in one step, over replicas: each a sample, and several in one."""
    recipe = [*answers, "schedule.max_steps=1", "schedule.warmup_steps=0", "run.checkpoint_every_steps=1"]
    alone, packed = (
        train_on_ranks(tmp_path / name, *recipe, *overrides)[0]
        for name, overrides in (
            ("alone", ("schedule.global_batch_size=24", "schedule.micro_batch_size=4", "parallel.tensor_parallel_size=1")),
            ("packed", (f"schedule.global_batch_size={PACKED}", f"schedule.micro_batch_size={PACKED}", "data.document_mask=true")),
        )
    )
    assert packed["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert packed["gradient_norm"] == pytest.approx(alone["gradient_norm"], rel=1e-5)
    assert packed["tokens"] == alone["tokens"]
