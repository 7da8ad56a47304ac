"""Where compiled code is kept, and how many threads are started."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from common import native
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


def test_threads_follow_the_processors_that_a_process_may_use() -> None:
    """The machine's number says nothing where Slurm binds a task to some of them."""
    stages = ("common", "conversion", "data_prep", "eval", "nemo_patches", "recipes", "slurm")
    users = {str(path.relative_to(ROOT)) for stage in stages for path in (ROOT / stage).rglob("*.py") if "os.cpu_count" in path.read_text()}
    assert not users, f"{sorted(users)}: take len(os.sched_getaffinity(0))"
