"""What takes seconds to import waits until a command has said what it does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import Inputs

# Ends the command at its first line, with what it had imported by then.
_UNTIL_THE_FIRST_LINE = """
import os, runpy, sys

class First:
    def __init__(self, stream):
        self._stream = stream
    def write(self, text):
        if text.strip():
            os.write(1, f"{' '.join(name for name in ('torch', 'transformers', 'nemo') if name in sys.modules)}|{text}".encode())
            os._exit(0)
    def __getattr__(self, name):
        return getattr(self._stream, name)

sys.stdout, sys.stderr, sys.argv = First(sys.stdout), First(sys.stderr), sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def _first_line(*words: str | Path) -> tuple[str, str]:
    """What a command had imported of the heavy ones when it said something, and what it said."""
    done = subprocess.run([sys.executable, "-c", _UNTIL_THE_FIRST_LINE, *map(str, words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    had, _, said = done.stdout.partition("|")
    return had, said


def test_a_training_says_where_it_starts_before_it_imports_what_takes_long(inputs: Inputs, tmp_path: Path) -> None:
    settings = (f"model.checkpoint={inputs.checkpoint}", f"data.train=[{inputs.data}]", "data.sequence_length=48")
    layout = ("parallel.devices_per_node=1", "parallel.tensor_parallel_size=1")
    had, said = _first_line("recipes.train", "--recipe", "demo_adapt", "--output", tmp_path / "run", *settings, *layout)
    assert said.startswith(f"demo_adapt: starting from {inputs.checkpoint}, "), said
    assert had == ""
