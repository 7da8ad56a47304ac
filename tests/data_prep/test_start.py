"""How the stage's commands start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_NUM_THREADS = "import os, numpy; numpy.ones((2, 2)) @ numpy.ones((2, 2)); print(len(os.listdir('/proc/self/task')))"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has one thread in any case")
def test_a_command_starts_no_threads_for_matrices_and_an_import_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import atexit\natexit.register(lambda: exec({_NUM_THREADS!r}))\n")
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}

    def last_line(*words: str) -> str:
        done = subprocess.run([sys.executable, *words], env=environment | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    text = tmp_path / "text.txt"
    text.write_text("Nekaj besed je dovolj.\n")
    assert last_line("-m", "data_prep.dedup", "--input", f"a={text}", "--output", str(tmp_path / "output")) == "1"
    assert last_line("-c", "import data_prep") == last_line("-c", "pass") != "1"
