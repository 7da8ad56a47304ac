"""The command that trains, on two gloo processes: an interrupted run goes on bit for bit as if nothing had happened."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from common import command
from common.artifacts import check_files, read_manifest, write_manifest
from conversion import verify
from recipes.numbers.arithmetic import learning_rate
from recipes.rules.checks import check_run
from recipes.rules.compose import compose_recipe
from recipes.rules.inputs import RunInputs, read_inputs
from recipes.rules.schema import Recipe
from recipes.runs.run_dir import newest_checkpoint, record_recipe
from tests.conftest import Inputs
from tests.processes import ROOT, Group, run_command
from tests.recipes.tiny_runs import train_on_ranks
from tests.recipes.training.test_event_files import points_of
from tests.recipes.watched_runs import TIMES

STEPS = 12
EVERY = 3
TIMEOUT_SECONDS = 180


def _arguments(inputs: Inputs, run_dir: Path, *overrides: str) -> list[str]:
    return ["recipes.train", "--output", str(run_dir), *_settings(inputs), *overrides]


def _settings(inputs: Inputs) -> list[str]:
    return [
        "--recipe",
        "demo_adapt",
        f"model.checkpoint={inputs.checkpoint}",
        f"data.train=[{inputs.data}]",
        f"data.validation={inputs.held_out}",
        "data.sequence_length=48",
        "model.hidden_dropout=0.1",  # so that the random state must resume too
        "schedule.global_batch_size=8",
        "schedule.micro_batch_size=4",
        f"schedule.max_steps={STEPS}",
        "schedule.warmup_steps=3",
        f"run.checkpoint_every_steps={EVERY}",
        "run.validate_every_steps=6",
        "run.log_every_steps=1",
    ]


def _records(run_dir: Path) -> list[dict[str, Any]]:
    """What a run logged, without what depends on the clock and the machine."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def _losses(run_dir: Path) -> list[float]:
    return [record["loss"] for record in _records(run_dir) if "loss" in record]


def _all_end(processes: list[psutil.Process]) -> None:
    """Nothing of a killed run may stay behind: ranks would go on training, checkpoint writers wait for ever."""
    _, alive = psutil.wait_procs(processes, timeout=60)  # a writer that was just being started imports first
    for process in alive:
        process.kill()
    assert not alive


@pytest.fixture(scope="module")
def uninterrupted(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run at tensor parallel 2."""
    run_dir = tmp_path_factory.mktemp("uninterrupted") / "run"
    train_on_ranks(run_dir, *_settings(inputs))
    return run_dir


def test_it_learns_and_logs_every_step(uninterrupted: Path) -> None:
    losses = _losses(uninterrupted)
    assert len(losses) == STEPS
    assert losses[-1] < losses[0] - 0.05
    assert [record["learning_rate"] for record in _records(uninterrupted) if "loss" in record][:4] == pytest.approx(
        [0.0, 1e-3 / 3, 2e-3 / 3, 1e-3]
    )


def test_checkpoints_are_complete_and_readable_by_the_group(uninterrupted: Path) -> None:
    checkpoints = sorted((uninterrupted / "checkpoints").iterdir())
    assert [path.name for path in checkpoints] == ["step_0000003", "step_0000006", "step_0000009", "step_0000012"]
    for path in checkpoints:
        assert {"weights", "context", "scion.json"} <= {child.name for child in path.iterdir()}
        assert (path / "context" / "hf" / "tokenizer.json").is_file()
        assert all(file.stat().st_mode & 0o044 == 0o044 for file in path.rglob("*") if file.is_file())
        manifest = read_manifest(path)
        assert manifest is not None and all(record.digest for record in manifest.files.values()), "the ranks know what they wrote"
        assert sum(name.endswith(".distcp") for name in manifest.files) >= 2
        check_files(path, manifest)
        assert manifest.facts["save_seconds"] > 0, "for how often to save, in the plan of the next submission"


@pytest.mark.slow
def test_killed_twice_and_resumed_is_bit_identical(uninterrupted: Path, inputs: Inputs, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    arguments = ["-m", *_arguments(inputs, run_dir)]

    # SIGKILL to one rank in the middle of a step: the launcher ends the other, and the command fails. The rank is stopped until then:
    # the same command beside it takes seconds to start, in which the run would come to its end.
    group = Group(arguments, log_dir=tmp_path / "first")
    group.wait_until(lambda: (run_dir / "metrics.jsonl").exists() and len(_losses(run_dir)) >= EVERY + 1, timeout_seconds=TIMEOUT_SECONDS)
    [rank_1] = [rank for rank in psutil.Process(group.process.pid).children() if rank.environ().get("RANK") == "1"]
    rank_1.send_signal(signal.SIGSTOP)
    second = run_command(*_arguments(inputs, run_dir), log_dir=tmp_path / "beside")
    assert (second.code, second.stdout) == (3, "")
    assert re.fullmatch(
        rf"error: {run_dir} is in use by recipes\.train, process {group.process.pid} on \S+; wait for its end, end it, or choose another --output\n",
        second.stderr,
    )
    started = group.descendants()
    rank_1.send_signal(signal.SIGKILL)
    finished = group.wait(timeout_seconds=TIMEOUT_SECONDS)
    assert finished.code == 1
    # The launcher looks at its ranks ten times a second; rank 0, which loses its peer, may be seen to end first.
    assert re.search(
        r"^error: rank (1 ended with exit code -9, killed, probably by the out-of-memory killer|0 ended with exit code \S+); its messages are above$",
        finished.stderr,
        re.M,
    )
    first_end = newest_checkpoint(run_dir)
    assert first_end is not None and EVERY <= first_end[0] < STEPS

    _all_end(started)

    # SIGKILL to the launcher in the middle of the next save: the ranks die with it, and what was half written is never picked up.
    # A save takes a moment, which a busy machine may miss: then the run is put back to where it was.
    due = f".step_{first_end[0] + EVERY:07d}.*.partial"
    shutil.copytree(run_dir, tmp_path / "before")
    while True:
        group = Group(arguments, log_dir=tmp_path / "second")
        group.wait_until(
            lambda: any((run_dir / "checkpoints").glob(due)) or newest_checkpoint(run_dir) != first_end, timeout_seconds=TIMEOUT_SECONDS
        )
        started = group.descendants()
        os.killpg(group.process.pid, signal.SIGKILL)
        _all_end(started)
        if newest_checkpoint(run_dir) == first_end:
            break
        shutil.rmtree(run_dir)
        shutil.copytree(tmp_path / "before", run_dir)
    assert any((run_dir / "checkpoints").glob(due))
    assert newest_checkpoint(run_dir) == first_end

    train_on_ranks(run_dir, *_settings(inputs))
    assert not any((run_dir / "checkpoints").glob(".*")) and not any(run_dir.glob(".lease-*"))
    assert _records(run_dir) == _records(uninterrupted)  # no step and no validation is lost or changed
    assert points_of(run_dir / "tensorboard")["loss"] == list(range(1, STEPS + 1)), "each step once"


def test_a_finished_run_says_so(uninterrupted: Path, inputs: Inputs, tmp_path: Path) -> None:
    finished = run_command(*_arguments(inputs, uninterrupted), log_dir=tmp_path)
    assert (finished.code, finished.stdout) == (0, f"the run is finished: {uninterrupted}/checkpoints/step_{STEPS:07d}\n")


def test_a_finished_run_can_be_lengthened(uninterrupted: Path, inputs: Inputs, tmp_path: Path) -> None:
    """From its last step on it has the rates of the longer run; what is over stays as it was."""
    run_dir, longer = tmp_path / "run", STEPS + 4
    shutil.copytree(uninterrupted, run_dir)
    train_on_ranks(run_dir, *_settings(inputs), f"schedule.max_steps={longer}")
    assert newest_checkpoint(run_dir) == (longer, run_dir / f"checkpoints/step_{longer:07d}")
    assert _losses(run_dir)[:STEPS] == _losses(uninterrupted) and len(_losses(run_dir)) == longer
    schedule = compose_recipe("demo_adapt", [item for item in _settings(inputs) if item.startswith("schedule.")]).schedule
    rates = [record["learning_rate"] for record in _records(run_dir) if "loss" in record]
    for length, steps in ((STEPS, range(STEPS)), (longer, range(STEPS, longer))):
        assert [rates[step] for step in steps] == pytest.approx([learning_rate(step, schedule, steps=length) for step in steps])
    with pytest.raises(
        ValueError, match=r"schedule\.max_steps was 16 and is 12; choose another --output or the same recipe, which may have more steps"
    ):
        record_recipe(run_dir, check_run(*_with_inputs(inputs)))


def test_a_run_is_not_lengthened_from_weights_alone(inputs: Inputs, tmp_path: Path) -> None:
    recipe, _ = _with_inputs(inputs)
    recipe = replace(recipe, run=replace(recipe.run, keep_optimizer_in_last_checkpoint=False))
    record_recipe(tmp_path, recipe)
    last = tmp_path / "checkpoints" / f"step_{STEPS:07d}"
    last.mkdir(parents=True)
    write_manifest(last, stage="recipes.train", facts={"step": STEPS}, arguments=asdict(recipe))
    longer = replace(recipe, schedule=replace(recipe.schedule, max_steps=STEPS + 1))
    with pytest.raises(ValueError, match=rf"^{last} has only weights"):
        record_recipe(tmp_path, longer)
    last.rename(last.with_name("step_0000011"))
    (last.with_name("step_0000011") / "scion.json").unlink()
    write_manifest(last.with_name("step_0000011"), stage="recipes.train", facts={"step": 11}, arguments=asdict(recipe))
    sentence = record_recipe(tmp_path, longer)
    assert sentence is not None and sentence.startswith("the run is extended from 12 to 13 steps: from here on the learning rate follows")
    assert record_recipe(tmp_path, longer) is None


def _with_inputs(inputs: Inputs) -> tuple[Recipe, RunInputs]:
    recipe = compose_recipe("demo_adapt", _settings(inputs)[2:])
    return recipe, read_inputs(recipe)


def test_a_run_does_not_go_on_from_a_checkpoint_with_a_flipped_bit(uninterrupted: Path, inputs: Inputs, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(uninterrupted, run_dir)
    shutil.rmtree(run_dir / "checkpoints" / f"step_{STEPS:07d}")
    newest = run_dir / "checkpoints" / f"step_{STEPS - EVERY:07d}"
    weights = next((newest / "weights").glob("__1_*.distcp"))
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    finished = run_command(*_arguments(inputs, run_dir), log_dir=tmp_path / "logs")
    assert (finished.code, finished.stderr.splitlines(keepends=True)[-1]) == (
        command.DAMAGED,
        f"error: {weights} was edited after recipes.train wrote it: its digest is not that of its manifest;"
        f" remove {newest} to resume from the checkpoint before\n",
    )


@pytest.mark.slow
def test_a_full_disk_ends_the_run_with_one_sentence(inputs: Inputs, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*namespace, "mount", "-t", "tmpfs", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("this kernel lets no user mount a small disk of their own")
    one_device = ("parallel.tensor_parallel_size=1", "parallel.devices_per_node=1", "run.checkpoint_every_steps=2")
    training = [sys.executable, "-m", *_arguments(inputs, disk / "run", *one_device)]
    script = 'mount -t tmpfs -o size=4m tmpfs "$0"; "$@"; code=$?; ls -a "$0/run/checkpoints"; exit $code'
    words = [*namespace, "bash", "-c", script, str(disk), *training]
    finished = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False, cwd=ROOT)
    saved = re.findall(r"^step_0*(\d+)$", finished.stdout, re.M)
    assert saved and finished.returncode == 1, finished.stderr[-4000:]
    last = finished.stderr.splitlines()[-1]
    assert last.startswith(f"error: the disk of {disk}/run is full (") and last.endswith(f" again; step {saved[-1]} is saved")


@pytest.mark.parametrize(
    ("folder", "files", "place", "option", "stage"),
    [
        ("data", "*.bin", 100, "data.train=[{}]", "data_prep.to_megatron"),
        ("checkpoint", "weights/*.distcp", -1000, "model.checkpoint={}", "conversion.hf_to_nemo"),
    ],
)
def test_edited_inputs_are_refused_before_anything_is_written(
    inputs: Inputs, tmp_path: Path, folder: str, files: str, place: int, option: str, stage: str
) -> None:
    """Of the same size, so that only the digest tells."""
    edited = tmp_path / "edited"
    shutil.copytree(getattr(inputs, folder), edited)
    path = next(edited.glob(files))
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    finished = run_command(*_arguments(inputs, tmp_path / "run", option.format(edited)), log_dir=tmp_path / "logs")
    assert finished.code == 2
    assert finished.stderr.splitlines(keepends=True)[-1] == (
        f"error: {path} was edited after {stage} wrote it: its digest is not that of its manifest; make {edited} again\n"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("schedule.global_batch_size=7", "schedule.global_batch_size (7) must be a multiple of"),
        ("model.vocab_size=3", "the recipe is for 3 tokens, but the checkpoint"),
        ("data.sequence_length=100000", "data.sequence_length (100000"),
    ],
)
def test_a_recipe_is_refused_before_its_hugging_face_folder_is_converted(
    inputs: Inputs, tmp_path: Path, override: str, sentence: str
) -> None:
    done = run_command(*_arguments(inputs, tmp_path / "run", f"model.checkpoint={inputs.hf}", override), log_dir=tmp_path / "logs")
    assert done.code == 2 and sentence in done.stderr and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_from_a_hugging_face_folder_to_one(inputs: Inputs, tmp_path: Path) -> None:
    """A folder of Hugging Face is converted into the run, which leaves one at its end; another source for the same run is refused."""
    run_dir = tmp_path / "run"
    short = (
        "schedule.max_steps=1",
        "schedule.warmup_steps=0",
        "run.export=hf",
        "parallel.devices_per_node=2",
        "parallel.tensor_parallel_size=2",
    )
    arguments = [*_arguments(inputs, run_dir), *short]
    from_hf = [word.replace(str(inputs.checkpoint), str(inputs.hf)) for word in arguments]
    done = run_command(*from_hf, log_dir=tmp_path / "run.log")
    assert done.code == 0, done.stderr
    assert {path.name for path in (run_dir / "hf").iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert verify.main([str(run_dir / "hf"), str(run_dir / "checkpoints/step_0000001")]) == 0
    (run_dir / "hf").rename(tmp_path / "first")
    moved = run_dir.rename(tmp_path / "moved")
    from_hf, run_dir = [word.replace(str(run_dir), str(moved)) for word in from_hf], moved
    assert run_command(*from_hf, log_dir=tmp_path / "again.log").code == 0, (
        "of a finished run the same command exports, where it was moved too"
    )
    assert (run_dir / "hf/model.safetensors").read_bytes() == (tmp_path / "first/model.safetensors").read_bytes()
    shutil.copytree(inputs.hf, tmp_path / "other")
    other = run_command(*(word.replace(str(inputs.hf), str(tmp_path / "other")) for word in from_hf), log_dir=tmp_path / "other.log")
    assert (other.code, other.stdout) == (2, "")
    told = f"error: {run_dir} holds a run that started from {inputs.hf}, not {tmp_path / 'other'}; choose another --output\n"
    assert other.stderr.endswith(told)
