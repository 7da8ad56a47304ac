"""A COMET checkpoint is looked at before it is loaded; without the library itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from eval.comet import _require_whole, require_safe_checkpoint
from tests.conversion.hostile_files import CallsInTurn


class _Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def _checkpoint(path: Path, **more: object) -> Path:
    torch.save({"state_dict": {"w": torch.ones(2)}, "hyper_parameters": {"layer": "mix"}, "pytorch-lightning_version": "2.5", **more}, path)
    return path


def test_settings_and_tensors_are_taken(tmp_path: Path) -> None:
    require_safe_checkpoint(_checkpoint(tmp_path / "model.ckpt", optimizer_states=[torch.optim.AdamW([torch.ones(1)]).state_dict()]))


def test_what_a_checkpoint_would_run_is_named_and_not_run(tmp_path: Path) -> None:
    path = _checkpoint(tmp_path / "model.ckpt", callbacks={"x": _Runs(tmp_path / "ran")})
    with pytest.raises(ValueError, match=r"model\.ckpt asks to run posix\.mkdir when it is loaded, which is not safe; do not load it"):
        require_safe_checkpoint(path)
    assert not (tmp_path / "ran").exists()


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.ckpt"
    torch.save({"state_dict": {}}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(
        ValueError, match=r"is not a readable checkpoint \(no zip archive, the format of torch since 2020\); download it again"
    ):
        require_safe_checkpoint(path)


def test_a_call_within_a_call_is_named_and_not_run(tmp_path: Path) -> None:
    path, proof = tmp_path / "model.ckpt", tmp_path / "ran"
    with pytest.raises(ValueError, match=r"asks to run torch\.storage\._load_from_bytes by torch\._tensor\._rebuild_from_type_v2"):
        _require_whole(_checkpoint(path, callbacks=CallsInTurn(proof)))
    assert not proof.exists()
    assert list(_require_whole(_checkpoint(path))) == ["w"]
