"""A log gets a line now and then, a terminal a bar, and short work nothing."""

from __future__ import annotations

import multiprocessing
import os
import pty
import subprocess
import sys
import termios
import time

import pytest

from common import progress
from common.progress import Progress, SharedProgress
from tests.processes import ROOT


def test_short_work_writes_nothing_to_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("reading", total=3, unit="documents") as bar:
        for _ in range(3):
            bar.advance()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "total, is_bytes, expected",
    [
        (4_000_000, True, r"reading: 2 of 4 MB (50 %), 0 s left, "),
        (4_000_000, False, r"reading: 2000000 of 4000000 B (50 %), 0 s left, "),
        (None, True, r"reading: 2 MB, "),
        (0, True, r"reading: 2 MB, "),
    ],
)
def test_line_of_a_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], total: int | None, is_bytes: bool, expected: str
) -> None:
    monkeypatch.setattr(progress, "LOG_INTERVAL_SECONDS", 0.0)
    with Progress("reading", total=total, unit="B", is_bytes=is_bytes) as bar:
        bar.advance(2_000_000)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(expected) and err.endswith("MB/s\n" if is_bytes else " B/s\n")


def test_lines_come_at_intervals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "LOG_INTERVAL_SECONDS", 0.1)
    bar = Progress("reading", total=None, unit="documents")
    end = time.monotonic() + 0.35
    while time.monotonic() < end:
        bar.advance()
    assert 1 <= len(capsys.readouterr().err.splitlines()) <= 3


def test_a_terminal_gets_a_bar() -> None:
    master, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 100))
    os.set_blocking(master, False)
    code = (
        "from common.progress import Progress\n"
        "with Progress('reading', total=2, unit='documents') as bar:\n    bar.advance(2)\nprint('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=terminal, text=True, timeout=30)
    shown = os.read(master, 10_000).decode()
    os.close(terminal)
    os.close(master)
    assert done.stdout == "done\n" and "reading:" in shown and "documents" in shown


def test_processes_forked_from_this_one_advance_a_shared_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LOG_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(progress, "_POLL_SECONDS", 0.01)
    with SharedProgress("tokenizing", total=4_000_000, unit="B", is_bytes=True) as bar:
        bar.advance(1_000_000)
        other = multiprocessing.get_context("fork").Process(target=bar.advance, args=(1_000_000,))
        other.start()
        other.join()
        shown = ""
        end = time.monotonic() + 10
        while "2 of 4 MB (50 %)" not in shown and time.monotonic() < end:
            time.sleep(0.01)
            shown += capsys.readouterr().err
    assert "tokenizing: 2 of 4 MB (50 %), " in shown and " s left, " in shown
