"""Which checkpoints go and which stay, and what holds them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from common.artifacts import write_manifest
from recipes.runs import retention
from recipes.runs.retention import Retention, read_holds, release_hold, removable, remove_old_checkpoints, take_hold
from recipes.runs.run_dir import checkpoint_name, complete_checkpoints

NAMES = [checkpoint_name(step) for step in (10, 20, 30, 40, 50)]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "weights").write_text(name)
        write_manifest(tmp_path / "checkpoints" / name, stage="recipes.train", facts={})
    (tmp_path / "checkpoints" / "step_0000005").mkdir()  # without a manifest: somebody copies it
    (tmp_path / "checkpoints" / "damaged_step_0000007").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("held", "keep", "keep_held", "gone"),
    [
        ([], 2, 8, [10, 20, 30]),
        ([], 5, 8, []),
        ([], 9, 8, []),
        ([20], 2, 8, [10, 30]),
        ([10, 20, 50], 2, 8, [30]),
        ([10, 20, 30], 2, 2, [10]),
        ([10, 20, 30], 2, 0, [10, 20, 30]),
    ],
)
def test_what_goes(held: list[int], keep: int, keep_held: int, gone: list[int]) -> None:
    found = removable(NAMES, {checkpoint_name(step) for step in held}, Retention(keep, keep_held))
    assert found == [checkpoint_name(step) for step in gone]


def test_holds_keep_until_they_end_or_are_released(run_dir: Path) -> None:
    assert take_hold(run_dir, NAMES[0], holder="a", seconds=60)
    assert take_hold(run_dir, NAMES[0], holder="b", seconds=60)
    assert take_hold(run_dir, NAMES[1], holder="a", seconds=-1)  # its holder died
    assert not take_hold(run_dir, checkpoint_name(60), holder="a", seconds=60), "there is none"
    (run_dir / "holds" / "notes.json").write_text("no hold")
    ended = time.strftime("%Y-%m-%d %H:%M", time.localtime(time.time() - 1))
    (sentence,) = remove_old_checkpoints(run_dir, Retention(2, 8))
    assert sentence.startswith(f"step_0000020 was removed: a held it until {ended}") and sentence.endswith(" and did not renew the hold")
    assert complete_checkpoints(run_dir) == [NAMES[0], *NAMES[3:]]
    assert sorted(hold.holder for hold in read_holds(run_dir)) == ["a", "b"], "a dead hold goes with its checkpoint"
    assert release_hold(run_dir, NAMES[0], holder="a") and not release_hold(run_dir, NAMES[0], holder="a")
    assert remove_old_checkpoints(run_dir, Retention(2, 8)) == [] and (run_dir / "checkpoints" / NAMES[0]).is_dir()
    assert release_hold(run_dir, NAMES[0], holder="b")
    assert remove_old_checkpoints(run_dir, Retention(2, 8)) == []
    left = ["damaged_step_0000007", "step_0000005", *NAMES[3:]]
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == left


def test_what_is_held_is_bounded_and_that_is_told(run_dir: Path) -> None:
    for name in NAMES[:3]:
        take_hold(run_dir, name, holder="slow", seconds=60)
    assert remove_old_checkpoints(run_dir, Retention(2, 1)) == [
        f"{name} was removed although slow holds it: more than run.keep_held_checkpoints (1) wait; give it more workers, or a larger number"
        for name in NAMES[:2]
    ]
    assert complete_checkpoints(run_dir) == NAMES[2:]


def test_a_hold_that_is_taken_during_the_removal_counts(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of both orders in which the two may meet: the holder looks before the removal's first step, or after it."""

    whole = retention.os.replace

    def replace(source: Path, target: Path) -> None:
        monkeypatch.undo()
        assert take_hold(run_dir, NAMES[0], holder="a", seconds=60), "the checkpoint is still there"
        whole(source, target)

    monkeypatch.setattr(retention.os, "replace", replace)
    remove_old_checkpoints(run_dir, Retention(4, 8))
    assert (run_dir / "checkpoints" / NAMES[0]).is_dir() and [hold.holder for hold in read_holds(run_dir)] == ["a"]

    release_hold(run_dir, NAMES[0], holder="a")
    found = retention.complete_checkpoints

    def look(directory: Path) -> list[str]:
        (directory / "checkpoints" / NAMES[0]).rename(directory / "checkpoints" / f".{NAMES[0]}.removed")
        return found(directory)

    monkeypatch.setattr(retention, "complete_checkpoints", look)
    assert not take_hold(run_dir, NAMES[0], holder="a", seconds=60), "it is being removed"
    assert read_holds(run_dir) == []
