"""What every process of a run does before it becomes a rank."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.artifacts import check_files, read_manifest, write_manifest
from recipes.rules.compose import compose_recipe
from recipes.rules.schema import Recipe
from recipes.runs.launch import must_launch, share_of_inputs
from recipes.train import main
from tests.conftest import Inputs
from tests.recipes.tiny_runs import train_on_ranks


@pytest.fixture
def recipe() -> Recipe:
    return compose_recipe("demo_adapt", ["parallel.devices_per_node=4"])


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "RANK",
        "WORLD_SIZE",
        "SLURM_PROCID",
        "SLURM_STEP_ID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_NTASKS",
        "TORCHELASTIC_RUN_ID",
        "SCION_LAUNCHED",
        "CUDA_DEVICE_MAX_CONNECTIONS",
    ):
        monkeypatch.delenv(name, raising=False)


def test_each_process_reads_its_share_of_the_inputs(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    assert share_of_inputs(recipe) == (0, 1), "it starts the others when it has read everything"
    for name, value in (("SLURM_PROCID", "3"), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "4")):
        monkeypatch.setenv(name, value)
    assert share_of_inputs(recipe) == (3, 4)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert share_of_inputs(recipe) == (2, 4)
    monkeypatch.setenv("SCION_LAUNCHED", "1")
    assert share_of_inputs(recipe) is None, "the process that started it has read everything"


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, True),  # a batch script without srun
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, True),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"}, True),  # a shell that srun --pty opened
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, False),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}, False),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, "srun started 2 processes and the recipe needs 4"),
        ({"RANK": "0", "WORLD_SIZE": "4"}, False),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "the launcher that set RANK and WORLD_SIZE started 1 processes and the recipe needs 4"),
    ],
)
def test_a_launcher_is_believed_by_the_number_of_its_processes(
    environment: dict[str, str], found: bool | str, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if isinstance(found, bool):
        assert must_launch(recipe) is found
        assert share_of_inputs(recipe) == ((0, 1) if found else (0, 4))
    else:
        with pytest.raises(ValueError, match=found):
            must_launch(recipe)


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_every_file_is_read_by_one_process_and_the_shares_are_about_equal(processes: int, tmp_path: Path) -> None:
    sizes = [900, 500, 400, 100, 90, 10]
    for number, size in enumerate(sizes):
        (tmp_path / f"part_{number}").write_bytes(bytes(size))
    write_manifest(tmp_path, stage="test", facts={}, arguments={}, inputs={})
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    found = []
    for number, size in enumerate(sizes):
        path = tmp_path / f"part_{number}"
        path.write_bytes(b"x" * size)
        refused = []
        for process in range(processes):
            try:
                check_files(tmp_path, manifest, share=(process, processes))
            except ValueError as error:
                assert f"{path} was edited" in str(error)
                refused.append(process)
        path.write_bytes(bytes(size))
        assert len(refused) == 1
        found += refused
    loads = [sum(size for size, process in zip(sizes, found, strict=True) if process == one) for one in range(processes)]
    assert max(loads) <= max(max(sizes), sum(sizes) / processes * 4 / 3)


@pytest.mark.slow
def test_a_damaged_input_ends_the_rank_that_reads_it(inputs: Inputs, tmp_path: Path) -> None:
    """Under a launcher of ranks, as Slurm is one; the others read the rest and are ended by it."""
    damaged = tmp_path / "data"
    damaged.mkdir()
    for path in inputs.data.iterdir():
        (damaged / path.name).write_bytes(path.read_bytes())
    tokens = damaged / "text.bin"
    tokens.write_bytes(tokens.read_bytes()[:-2] + b"\1\1")
    arguments = ["--recipe", "demo_adapt", f"model.checkpoint={inputs.checkpoint}", f"data.train=[{damaged}]", "data.sequence_length=48"]
    with pytest.raises(AssertionError) as error:
        train_on_ranks(tmp_path / "run", *arguments)
    assert f"{tokens} was edited" in str(error.value)
    assert not (tmp_path / "run/metrics.jsonl").exists()


def test_kernels_start_in_order_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Megatron's overlap of communication asks for it, whoever starts the processes; nothing has touched CUDA by then."""
    monkeypatch.setattr(os, "environ", {**os.environ})
    for before, after in ((None, "1"), ("8", "8")):
        if before is not None:
            os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = before
        with pytest.raises(ValueError, match="no_such_recipe"):
            main(["--recipe", "no_such_recipe", "--output", str(tmp_path / "run")])
        assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == after
