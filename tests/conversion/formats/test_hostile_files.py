"""Files made to do harm: nothing that they hold runs, in no command, and each is refused by the name of what it asks for."""

from __future__ import annotations

import contextlib
import io
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import CheckpointException, DefaultLoadPlanner, FileSystemReader, load

from common.artifacts import MANIFEST_NAME
from conversion import hf_to_nemo, inspect, nemo_to_hf
from conversion.formats.dist_metadata import read_dist_metadata
from conversion.formats.loading_safety import read_as_data, require_safe
from conversion.inspection import describe
from conversion.layouts.moving import change
from conversion.verify import Side
from tests.conversion.conftest import OPTMaker
from tests.conversion.hostile_files import (
    CODE,
    CallsInTurn,
    CallsNumpy,
    RunsCode,
    first_object,
    place_of_two_states,
    put_object,
    saved,
    two_pickles,
)


@pytest.fixture(scope="session")
def nemo_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A healthy folder without a manifest, which would find every change."""
    from tests.conversion.conftest import tiny_opt

    base = tmp_path_factory.mktemp("healthy")
    tiny_opt().save_pretrained(base / "hf")
    hf_to_nemo.convert(base / "hf", base / "nemo")
    (base / "nemo" / MANIFEST_NAME).unlink()
    return base / "nemo"


@pytest.mark.parametrize("place", CODE)
def test_code_in_a_checkpoint_is_refused_by_name_and_not_run(nemo_dir: Path, tmp_path: Path, place: str) -> None:
    folder, proof = tmp_path / "nemo", tmp_path / "proof"
    shutil.copytree(nemo_dir, folder)
    CODE[place](folder, proof)
    assert not proof.exists()
    commands: dict[str, Callable[[], object]] = {
        "verify": lambda: Side.open(folder),
        "the engine of verify": lambda: require_safe(folder / "weights"),
        "nemo_to_hf": lambda: nemo_to_hf.export(folder, tmp_path / "out"),
        "change_layout": lambda: change(folder, tmp_path / "out", layout="megatron-bridge"),
    }
    if place == "in a chunk":  # which torch reads in the way that runs nothing, and which is a gigabyte in real checkpoints
        del commands["verify"], commands["the engine of verify"], commands["change_layout"]
    name = "numpy.testing._private.utils.runstring" if place.startswith("by numpy") else "posix.system"
    name = "torch.storage._load_from_bytes by torch._tensor._rebuild_from_type_v2" if "call of a call" in place else name
    said = name
    said = r"is corrupt" if place in ("in an object of torch's old form", "in one of two pickles", "before an archive") else said
    for command, call in commands.items():
        with pytest.raises(ValueError, match=said):
            call()
        assert not proof.exists() and not (tmp_path / "out").exists(), command
    description = describe(folder, deep=place == "in a chunk")
    assert any(name in problem or said in problem for problem in description.problems)
    assert inspect.main([str(folder), *(["--deep"] if place == "in a chunk" else [])]) == 1
    assert not proof.exists()


@pytest.mark.parametrize("place", ["in the index", "in an object", "in a call of a call in an object", "in what is not sharded"])
def test_megatron_runs_nothing_even_of_a_folder_that_nobody_looked_at(
    nemo_dir: Path, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from megatron.core.dist_checkpointing.strategies.common import TorchCommonLoadStrategy

    for owner, name in ((FileSystemReader, "read_metadata"), (DefaultLoadPlanner, "load_bytes")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # as it was, for other tests
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # as some have it in their shell
    folder, proof = tmp_path / "nemo", tmp_path / "proof"
    shutil.copytree(nemo_dir, folder)
    CODE[place](folder, proof)
    read_as_data()
    with pytest.raises((ValueError, CheckpointException, pickle.UnpicklingError), match=r"asks to run|Weights only load failed"):
        load({first_object(nemo_dir): io.BytesIO()}, storage_reader=FileSystemReader(folder / "weights"), no_dist=True)
        TorchCommonLoadStrategy().load_common(folder / "weights")
    assert not proof.exists()


def test_torch_finds_in_the_index_what_its_own_reader_finds(nemo_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileSystemReader, "read_metadata", FileSystemReader.read_metadata)
    monkeypatch.setattr(DefaultLoadPlanner, "load_bytes", DefaultLoadPlanner.load_bytes)
    theirs = pickle.loads((nemo_dir / "weights/.metadata").read_bytes())
    read_as_data()
    ours = FileSystemReader(nemo_dir / "weights").read_metadata()
    assert ours.state_dict_metadata == theirs.state_dict_metadata and ours.storage_data == theirs.storage_data


def test_the_corpus_is_real(nemo_dir: Path, tmp_path: Path) -> None:
    """Torch's own reader does run what stands in the index and in objects: were it called, the tests here would see it."""
    folder, proof = tmp_path / "nemo", tmp_path / "proof"
    shutil.copytree(nemo_dir, folder)
    CODE["in the index"](folder, proof)
    FileSystemReader(folder / "weights").read_metadata()
    assert proof.exists()
    proof.unlink()
    for content in (saved(RunsCode(proof)), saved(CallsNumpy(proof)), saved(CallsInTurn(proof)), two_pickles(proof)):
        with contextlib.suppress(AttributeError):  # of what the call has given, which is not a tensor
            torch.load(io.BytesIO(content), weights_only=False)
        assert proof.exists()
        proof.unlink()


def test_an_index_that_torch_reads_otherwise_is_refused(nemo_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "nemo"
    shutil.copytree(nemo_dir, folder)
    key = first_object(folder)
    place_of_two_states(folder, tmp_path / "proof")
    storage = pickle.loads((folder / "weights/.metadata").read_bytes()).storage_data
    assert next(place for index, place in storage.items() if index.fqn == key).relative_path == "__0_hostile.distcp"  # torch's view
    with pytest.raises(ValueError, match="is not made as it is written"):
        read_dist_metadata(folder / "weights")


def test_what_engines_keep_is_no_code(nemo_dir: Path, tmp_path: Path, make_opt: OPTMaker) -> None:
    """Objects as Megatron and TransformerEngine write them: scales of FP8 in both forms, random state, state of reruns."""
    import random

    import numpy as np

    scales = {"scale_fwd": torch.ones(3), "amax_history_fwd": torch.zeros(1024, 3), "extra_fp8_variables": {"fp8_max_fwd": 448.0}}
    random_state = {
        "random_rng_state": random.getstate(),
        "np_rng_state": np.random.get_state(),
        "torch_rng_state": torch.get_rng_state(),
        "rng_tracker_states": {"model-parallel-rng": torch.get_rng_state()},
    }
    objects = {
        "a._extra_state/shard_0_1": torch.frombuffer(bytearray(pickle.dumps(scales)), dtype=torch.uint8),
        "b._extra_state/shard_0_1": io.BytesIO(saved(scales)),
        "c._extra_state/shard_0_1": torch.empty(0, dtype=torch.uint8),
        "d._extra_state/shard_0_1": io.BytesIO(),
        "rng_state/shard_0_1": [random_state],
        "rerun_state_machine_state/shard_0_1": {"failed_validation_call": None, "max_values": {("a", 1): 2.0}},
    }
    folder = tmp_path / "nemo"
    shutil.copytree(nemo_dir, folder)
    for key, value in objects.items():
        put_object(folder, key, saved(value))
    require_safe(folder / "weights")
    assert describe(folder).problems == []
