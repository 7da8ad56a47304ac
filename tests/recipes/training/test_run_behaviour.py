"""How a run behaves around its steps: it ends and goes on, saves, and says what it does."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import AutoModelForCausalLM

from conversion.formats.dist_checkpoint import read_dist_checkpoint
from data_prep.megatron.index import PREFIX, TokenFile
from recipes.numbers import arithmetic
from recipes.runs.retention import read_holds, take_hold
from recipes.runs.run_dir import newest_checkpoint, sync_command
from tests.conftest import Inputs
from tests.processes import Group
from tests.recipes.watched_runs import BATCH, SEQUENCE_LENGTH, STEPS, TIMEOUT_SECONDS, Runs

# Layouts sum in another order, so float32 losses differ in the last digits.
LAYOUT_TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def whole(runs: Runs) -> dict[str, Any]:
    """An uninterrupted run at tensor parallel 2."""
    return runs.train("whole")


@pytest.fixture(scope="module")
def ended(runs: Runs) -> dict[str, Any]:
    """A run at data parallel 2 whose second rank alone gets a signal in its second step; its checkpoint is written asynchronously."""
    options = ("run.wandb_project=tests", "run.asynchronous_save=true")
    return runs.train("ended", *options, tensor_parallel_size=1, at_step=["signal", 1, 1])


def test_a_signal_to_one_rank_saves_and_ends_all(runs: Runs, ended: dict[str, Any]) -> None:
    assert (ended["reason"], len(ended["losses"])) == ("SIGUSR1", 2)
    assert runs.checkpoints("ended") == ["step_0000002"]
    assert newest_checkpoint(runs.directory / "ended") == (2, runs.directory / "ended/checkpoints/step_0000002")


def test_no_rank_gathers_the_optimizer(runs: Runs) -> None:
    """Of 3 numbers per parameter that gathering makes on each rank, none."""
    options = ("schedule.max_steps=3", "schedule.constant_steps=0", "run.validate_every_steps=null")
    assert runs.train("copies", *options, tensor_parallel_size=1, at_step=["copies", 2])["copies"] < 0.01


@pytest.fixture(scope="module")
def other_half(runs: Runs, whole: dict[str, Any]) -> dict[str, Any]:
    """The whole run from its middle on, at data parallel 2."""
    half = runs.directory / "half"
    shutil.copytree(runs.directory / "whole", half)
    shutil.rmtree(half / "checkpoints/step_0000006")
    return runs.train("other_half", "schedule.micro_batch_size=4", after="half", tensor_parallel_size=1)


def test_a_run_goes_on_from_tensor_parallel_2_at_data_parallel_2(whole: dict[str, Any], other_half: dict[str, Any]) -> None:
    assert other_half["losses"] == pytest.approx(whole["losses"][3:], abs=LAYOUT_TOLERANCE)


@pytest.mark.slow
def test_a_trigger_file_saves_and_disappears_and_an_asynchronous_save_has_the_same_content(runs: Runs, whole: dict[str, Any]) -> None:
    options = ("run.asynchronous_save=true", "run.checkpoint_every_steps=2")
    seen = runs.train("beside", *options, at_step=["file", 2, str(runs.directory / "beside/save")])
    assert seen["losses"] == whole["losses"]
    assert not (runs.directory / "beside/save").exists()
    assert runs.checkpoints("beside") == [f"step_000000{step}" for step in (2, 3, 4, 6)]
    assert seen["planned_saves"] == 1, "the later ones are of the same tensors in the same files"
    first, second = (_common(runs.directory / name / "checkpoints/step_0000003") for name in ("whole", "beside"))
    assert first == second, "one was planned, and one was not"
    for step in (3, 6):
        expected, found = (_tensors(runs.directory / name / f"checkpoints/step_000000{step}") for name in ("whole", "beside"))
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    for late in (4, 6):
        shutil.rmtree(runs.directory / f"beside/checkpoints/step_000000{late}")
    # The newest two stay, and of the older ones that which somebody holds.
    assert take_hold(runs.directory / "beside", "step_0000002", holder="evaluation", seconds=3600)
    assert take_hold(runs.directory / "beside", "step_0000003", holder="a dead one", seconds=-1)
    seen = runs.train("beside_on", *options, "run.keep_checkpoints=2", after="beside")
    assert seen["losses"] == whole["losses"][3:], "optimizer state differs"
    assert runs.checkpoints("beside_on") == [f"step_000000{step}" for step in (2, 4, 6)]
    assert [hold.checkpoint for hold in read_holds(runs.directory / "beside_on")] == ["step_0000002"]


@pytest.mark.long
def test_an_asynchronous_save_waits_for_no_other_rank_and_saves_what_the_next_step_gathers(runs: Runs) -> None:
    """At data parallel 2, where each rank updates a half of the parameters, and nothing has gathered the others when the step is saved."""
    options = ("schedule.max_steps=10", "run.checkpoint_every_steps=4", "run.log_every_steps=10", "run.validate_every_steps=10")
    expected = runs.train("halves", *options, tensor_parallel_size=1)
    seen = runs.train("halves_beside", *options, "run.asynchronous_save=true", tensor_parallel_size=1, at_step=["meetings", 6])
    assert seen["losses"] == expected["losses"]
    assert seen["gathered_later"] == [8], "the first is planned, and behind the last step what is logged has gathered them"
    assert seen["meetings"]["8"] == seen["meetings"]["9"] == ["all_reduce"], "that which every step has, whether it saves or not"
    assert runs.checkpoints("halves_beside") == runs.checkpoints("halves") == ["step_0000004", "step_0000008", "step_0000010"]
    for checkpoint in runs.checkpoints("halves"):
        one, other = (runs.directory / name / "checkpoints" / checkpoint for name in ("halves", "halves_beside"))
        assert _common(one) == _common(other)
        first, second = _tensors(one), _tensors(other)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)
        for name in sorted(path.name for path in (one / "weights").iterdir()):
            assert (one / "weights" / name).read_bytes() == (other / "weights" / name).read_bytes(), name


@pytest.mark.slow
def test_a_rank_that_cannot_write_beside_the_training_ends_all(runs: Runs) -> None:
    options = ("run.asynchronous_save=true", "run.checkpoint_every_steps=2")
    ranks = runs.train_ranks("full", *options, at_step=["failing", 3])
    for rank in ranks:
        assert "No space left on device" in rank["error"]
    assert [name for name in runs.checkpoints("full") if not name.startswith(".")] == ["step_0000002"]
    assert newest_checkpoint(runs.directory / "full", contents=True) == (2, runs.directory / "full/checkpoints/step_0000002")


@pytest.mark.long
def test_a_kill_between_a_step_and_the_copy_of_its_save_leaves_the_checkpoint_before(runs: Runs, whole: dict[str, Any]) -> None:
    options = ("run.asynchronous_save=true", "run.checkpoint_every_steps=2")
    with pytest.raises(AssertionError, match=r"rank . failed"):
        runs.train("killed", *options, at_step=["crash", 4])
    assert [name for name in runs.checkpoints("killed") if not name.startswith(".")] == ["step_0000002"]
    assert newest_checkpoint(runs.directory / "killed", contents=True) == (2, runs.directory / "killed/checkpoints/step_0000002")
    seen = runs.train("killed_on", *options, after="killed")
    assert seen["losses"] == whole["losses"][2:]
    assert runs.checkpoints("killed_on") == [f"step_000000{step}" for step in (2, 4, 6)]


@pytest.mark.parametrize("tensor_parallel_size", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_trigger_files_save_and_end_a_run_at_every_layout(runs: Runs, tensor_parallel_size: int) -> None:
    name = f"triggered_{tensor_parallel_size}"
    save, leave = runs.directory / name / "save", runs.directory / name / "exit"
    options = ("run.checkpoint_every_steps=6", "run.validate_every_steps=null")
    seen = runs.train(name, *options, tensor_parallel_size=tensor_parallel_size, at_step=["file", 0, str(save), 2, str(leave)])
    assert seen["reason"] == f"the file {leave}" and len(seen["losses"]) == 3
    assert runs.checkpoints(name) == ["step_0000001", "step_0000003"]
    assert not save.exists() and not leave.exists()


@pytest.mark.parametrize("beside", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["at once", "beside the training"])
def test_a_run_that_was_taken_over_ends_on_all_ranks_and_writes_nothing_more(runs: Runs, beside: bool) -> None:
    name = f"taken_{beside}"
    run_dir = runs.directory / name
    options = ("run.checkpoint_every_steps=2", "run.validate_every_steps=2", f"run.asynchronous_save={str(beside).lower()}")
    ranks = runs.train_ranks(name, *options, at_step=["taken", 3, str(run_dir)])
    assert len(ranks) == 2
    for rank in ranks:
        assert re.fullmatch(
            rf"{run_dir} was taken over by another, process \d+ on \S+; this process ends and writes nothing more there", rank["error"]
        )
    complete = [checkpoint for checkpoint in runs.checkpoints(name) if not checkpoint.startswith(".")]
    assert complete == ["step_0000002"] or (beside and not complete), "what is written beside the third step may have no name by then"
    assert [record["step"] for record in runs.records(name)] == [0, 1, 2, 2, 3]


@pytest.mark.slow
def test_a_run_in_which_one_rank_hangs_ends_with_the_stacks_of_all(runs: Runs) -> None:
    """Behind enough steps to know what is usual; the next save or validation would take no part in it."""
    options = (
        "schedule.max_steps=20",
        "run.checkpoint_every_steps=4",
        "run.validate_every_steps=4",
        "run.hang_factor=10",
        "run.hang_seconds=4",
    )
    with pytest.raises(AssertionError, match=r"rank . failed"):
        runs.train("hung", *options, at_step=["hang", 9, 1])
    logs = [(runs.directory / f"hung.logs/rank_{rank}.log").read_text() for rank in (0, 1)]
    for rank, log in enumerate(logs):
        said = rf"^error: rank {rank} on \S+ hangs: step 10 did not end in \d+ s \(steps usually take \S+ s\); the same command resumes"
        assert re.search(said, log, re.M)
    assert "in wait_for_ever" in logs[1] and "in wait_for_ever" not in logs[0]
    assert runs.checkpoints("hung") == ["step_0000004", "step_0000008"], "the next attempt goes on from there"


def test_a_crash_during_an_asynchronous_save_leaves_no_checkpoint_half_written(runs: Runs) -> None:
    with pytest.raises(AssertionError, match=r"rank . failed"):
        runs.train("crashed", "run.asynchronous_save=true", "run.checkpoint_every_steps=2", at_step=["crash", 2])
    assert [name for name in runs.checkpoints("crashed") if not name.startswith(".")] == []
    assert newest_checkpoint(runs.directory / "crashed") is None


def test_an_exit_file_ends_the_run_and_validation_is_the_loss_of_the_reference(runs: Runs, inputs: Inputs) -> None:
    """What is measured before the first step, and behind it, as it has the rate 0, is the model that the run started from."""
    path = runs.directory / "left/exit"
    seen = runs.train("left", "run.validate_every_steps=1", tensor_parallel_size=1, at_step=["file", 0, str(path)])
    assert seen["reason"] == f"the file {path}"
    assert not path.exists() and runs.checkpoints("left") == ["step_0000001"]

    tokens = TokenFile(inputs.held_out / PREFIX)
    windows = [tokens.slice(start, start + SEQUENCE_LENGTH + 1) for start in range(0, 2 * BATCH * SEQUENCE_LENGTH, SEQUENCE_LENGTH)]
    samples = torch.from_numpy(np.stack(windows).astype(np.int64))
    model = AutoModelForCausalLM.from_pretrained(inputs.hf, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(samples[:, :-1]).logits
    expected = F.cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten())
    found = [record["validation_loss_sl"] for record in runs.records("left") if "validation_loss_sl" in record]
    assert found == pytest.approx([float(expected)] * 2, rel=1e-5)


@pytest.mark.parametrize("name", ["whole", "other_half"], ids=["tensor parallel", "data parallel"])
def test_what_is_logged(runs: Runs, other_half: dict[str, Any], inputs: Inputs, name: str) -> None:
    records = runs.records(name)
    steps = [record for record in records if "loss" in record]
    assert [record["step"] for record in steps] == list(range(1, STEPS + 1))
    facts = json.loads((inputs.data / "scion.json").read_text())["facts"]
    tokens = BATCH * SEQUENCE_LENGTH
    for record in steps:
        assert record["tokens"] == record["step"] * tokens
        assert record["bytes"] == round(record["tokens"] * facts["text_bytes"] / facts["num_tokens"])
        assert record["gradient_norm"] > 0 and record["new_row_norm"] > 0
    table = _tensors(runs.directory / name / "checkpoints/step_0000006")["embedding.word_embeddings.weight"]
    assert steps[-1]["new_row_norm"] == pytest.approx(float(table[:601].norm(dim=1).mean()), rel=1e-5)
    line = json.loads((runs.directory / name / "metrics.jsonl").read_text().splitlines()[-2])
    operations = arithmetic.flops_per_token(
        json.loads((inputs.checkpoint / "context/model.json").read_text())["config"], vocab_size=640, sequence_length=SEQUENCE_LENGTH
    )
    assert line["tflops_per_device"] == pytest.approx(line["tokens_per_second"] * operations / 2 / 1e12, abs=1e-6)


def test_validation_is_by_language_exact_and_the_same_at_every_layout(runs: Runs, other_half: dict[str, Any], inputs: Inputs) -> None:
    found = [record for record in runs.records("whole") if "validation_loss_sl" in record]
    assert [record["step"] for record in found] == [0, 3, 6]
    for language, data in (("sl", inputs.held_out), ("en", inputs.data)):
        facts = json.loads((data / "scion.json").read_text())["facts"]
        for record in found:
            expected = record[f"validation_loss_{language}"] * facts["num_tokens"] / facts["text_bytes"] / math.log(2)
            assert record[f"validation_bits_per_byte_{language}"] == pytest.approx(expected)
    other = [record for record in runs.records("other_half") if "validation_loss_sl" in record]
    assert other[1]["validation_loss_sl"] == pytest.approx(found[1]["validation_loss_sl"], abs=LAYOUT_TOLERANCE)


def test_tensorboard_and_weights_and_biases_get_it_too(runs: Runs, whole: dict[str, Any], ended: dict[str, Any]) -> None:
    events = b"".join(path.read_bytes() for path in (runs.directory / "whole/tensorboard").glob("events*"))
    assert b"validation_bits_per_byte_sl" in events and b"new_row_norm" in events
    command = sync_command(runs.directory / "ended")
    found = list((runs.directory / "ended/wandb").glob("offline-run-*/*.wandb"))
    assert command == f"wandb sync {runs.directory}/ended/wandb/offline-run-*" and len(found) == 1
    assert b"gradient_norm" in found[0].read_bytes()


@pytest.mark.parametrize("run", ["whole", "other_half"], ids=["tensor parallel", "data parallel"])
def test_positions_beyond_the_sequence_length_stay_in_the_model(runs: Runs, other_half: dict[str, Any], inputs: Inputs, run: str) -> None:
    """The table keeps its 64 rows in a run over sequences of 48; those that no token has used get weight decay alone."""
    name = "embedding.position_embeddings.weight"
    before, after = (_tensors(path)[name] for path in (inputs.checkpoint, runs.directory / run / "checkpoints/step_0000006"))
    assert after.shape == before.shape == (64, 32)
    kept = math.prod(1 - 0.01 * record["learning_rate"] for record in runs.records("whole") if "learning_rate" in record)
    torch.testing.assert_close(after[SEQUENCE_LENGTH:], before[SEQUENCE_LENGTH:] * kept, rtol=1e-6, atol=1e-8)
    assert ((after - before)[:SEQUENCE_LENGTH].abs().amax(dim=1) > 1e-4).all()


def _common(checkpoint: Path) -> str:
    return repr(torch.load(checkpoint / "weights/common.pt", weights_only=False))


def _tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.read() for name, tensor in read_dist_checkpoint(checkpoint / "weights", prefix="module.").items()}


@pytest.mark.slow
def test_sigterm_to_the_command_ends_it_well(runs: Runs, tmp_path: Path) -> None:
    """As a scheduler or a colleague would send it: to the process that was started, which hands it on to its ranks."""
    run_dir = tmp_path / "run"
    settings = runs.settings(
        "schedule.max_steps=5000", "run.checkpoint_every_steps=5000", "run.validate_every_steps=5000", "run.wandb_project=tests"
    )
    group = Group(["-m", "recipes.train", "--recipe", "demo_adapt", "--output", str(run_dir), *settings], log_dir=tmp_path / "logs")
    metrics = run_dir / "metrics.jsonl"
    group.wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, timeout_seconds=TIMEOUT_SECONDS)
    started = group.descendants()
    group.process.send_signal(signal.SIGTERM)
    finished = group.wait(timeout_seconds=TIMEOUT_SECONDS)
    _, alive = psutil.wait_procs(started, timeout=20)
    for process in alive:
        process.kill()
    assert not alive
    assert finished.code == 0, finished.stderr
    newest = newest_checkpoint(run_dir)
    assert newest is not None
    assert f"to upload the run to Weights & Biases: {sync_command(run_dir)}\n" in finished.stdout
    assert finished.stdout.endswith(f"ended by SIGTERM: {newest[1]}; the same command resumes from there\n")
    assert f"step {newest[0]}/5000" in finished.stderr
    assert "without TransformerEngine, apex, flash-attention" in finished.stderr
