"""What a machine leaves a run: refused in a sentence where it is too little."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

from recipes.rules.compose import compose_recipe
from recipes.runs.launch import require_limits

PLAIN = compose_recipe("demo_adapt")
WITH_LOADERS = compose_recipe("demo_adapt", ["data.num_workers=2"])


def test_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: set_to.append(limits))
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, 100_000))
    require_limits(PLAIN)
    assert set_to == [(4096, 100_000)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, 64))
    with pytest.raises(ValueError, match="may open 64 files; expected at least 256: raise the limit, `ulimit -n 4096`"):
        require_limits(PLAIN)


def test_shared_memory_that_is_too_small_or_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=16, f_frsize=4096))
    require_limits(PLAIN, shared_memory=tmp_path)
    with pytest.raises(ValueError, match=r"has 0\.1 MiB free; expected .*; set data.num_workers=0"):
        require_limits(WITH_LOADERS, shared_memory=tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ValueError, match="is not writable"):
        require_limits(WITH_LOADERS, shared_memory=tmp_path)


def test_kernels_that_the_environment_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVTE_FLASH_ATTN", "0")
    require_limits(PLAIN)
    monkeypatch.setenv("NVTE_FLASH_ATTN", "no")
    with pytest.raises(ValueError, match="NVTE_FLASH_ATTN=no; expected 0 or 1"):
        require_limits(PLAIN)
