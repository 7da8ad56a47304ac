"""Ranks of tests: one that fails is named, and the process that all are forked from goes on."""

from __future__ import annotations

from pathlib import Path

from tests.processes import Group

ONE_AFTER_THE_OTHER = """
import os, time
from tests import gloo

def rank(seconds, code):
    if process := os.fork():
        return process
    time.sleep(seconds)
    os._exit(code)

print(gloo._wait([rank(0, 0), rank(1, 1)]))
"""


def test_a_rank_that_fails_when_others_have_ended_is_named(tmp_path: Path) -> None:
    """The others are not killed: their numbers may be those of other processes by then."""
    finished = Group(["-c", ONE_AFTER_THE_OTHER], log_dir=tmp_path).wait(timeout_seconds=60)
    assert (finished.code, finished.stdout) == (0, "rank 1 failed\n"), finished.stderr
