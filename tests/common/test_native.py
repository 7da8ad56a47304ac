"""Where compiled code is kept, and how many threads are started."""

from __future__ import annotations

import pwd
import sys
from pathlib import Path

import pytest

from common import native
from data_prep.deduplication import onion
from tests.processes import ROOT


def test_a_user_without_a_home_has_no_cache_and_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a container whose user id has no entry in passwd."""

    def unknown(user_id: int) -> object:
        raise KeyError(user_id)

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert not native.cache_dir().exists()
    with pytest.raises(NotADirectoryError):
        native.cache_dir().mkdir(parents=True)


def test_without_a_compiler_it_is_that_of_a_package_or_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "_COMPILERS", ())
    monkeypatch.setattr(native, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"^there is no C compiler, .*: install gcc or clang, or `pip install ziglang`$"):
        native.load.__wrapped__(onion.SOURCE)
    monkeypatch.setattr(native, "find_spec", lambda name: name)
    assert native._compiler() == (sys.executable, "-m", "ziglang", "cc")
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'no such flag' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(native, "_COMPILERS", (str(compiler),))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ValueError, match=r"^onion.c could not be compiled by `.*cc` into .*: no such flag; try another compiler"):
        native.load.__wrapped__(onion.SOURCE)


def test_threads_follow_the_processors_that_a_process_may_use() -> None:
    """The machine's number says nothing where Slurm binds a task to some of them."""
    stages = ("common", "conversion", "data_prep", "eval", "nemo_patches", "recipes", "slurm")
    users = {str(path.relative_to(ROOT)) for stage in stages for path in (ROOT / stage).rglob("*.py") if "os.cpu_count" in path.read_text()}
    assert not users, f"{sorted(users)}: take len(os.sched_getaffinity(0))"
