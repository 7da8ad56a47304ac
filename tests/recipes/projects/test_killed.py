"""A project that is killed at many points, and gone on with by the same command, ends with the numbers of one that was left alone."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.processes import ROOT
from tests.recipes.projects.tiny_project import numbers, words

RUNNER, STAGE, RANK = 0, 1, 2  # how far below `scion run` the process is that is killed
POINTS = (  # what is waited for, and what is killed then
    ("run.lock", RUNNER),
    ("logs/source_tokenizer.log", STAGE),
    ("model/tokenizer", RUNNER),
    ("logs/start_focus.log", STAGE),
    ("mean/run/recipe.json", RANK),
    ("mean/run/metrics.jsonl", RUNNER),
    ("focus/run/metrics.jsonl", RANK),
    ("focus/run/checkpoints/step_0000006", RUNNER),
    ("logs/evaluate.log", STAGE),
    ("results/mean-12", RUNNER),
)


def start(work_dir: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "recipes.run", *words(work_dir)], cwd=ROOT, stderr=subprocess.DEVNULL)


def below(process_id: int, depth: int) -> psutil.Process:
    """The newest process so far below another, or the last on the way there."""
    process = psutil.Process(process_id)
    for _ in range(depth):
        children = process.children()
        process = children[-1] if children else process
    return process


@pytest.mark.long
def test_killed_at_ten_points_and_gone_on_with(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole).wait(timeout=1500) == 0
    for seen, depth in POINTS:
        with start(killed) as process:
            while not (killed / seen).exists() and process.poll() is None:
                time.sleep(0.02)
            with contextlib.suppress(psutil.NoSuchProcess):  # what has ended meanwhile; the run then comes to its own end
                below(process.pid, depth).kill()
            # Without its victim the run does what does not depend on it, and says what failed.
            assert process.wait(timeout=1500) in (-signal.SIGKILL, 0, 1)
    assert start(killed).wait(timeout=1500) == 0
    expected = numbers(whole)
    assert numbers(killed) == expected
    assert [len(found) for found in expected.values()] == [2, 7, 7] and all(len(losses) == 12 for losses in expected["losses"].values())
