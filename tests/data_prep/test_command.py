"""How a command ends: its exit code, and one sentence where the user can do something about it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from data_prep import command
from tests.processes import Finished, Group

PREAMBLE = """
import sys, time
from data_prep import command
def main(argv=None):
    {body}
command.run(main)
"""


def _run(body: str, log_dir: Path) -> Finished:
    return Group(["-c", PREAMBLE.format(body=body)], log_dir=log_dir).wait(timeout_seconds=30)


@pytest.mark.parametrize("code", [command.DONE, command.WRONG, command.MISUSED])
def test_exit_code_is_mains(tmp_path: Path, code: int) -> None:
    assert _run(f"return {code}", tmp_path) == Finished(code, "", "")


def test_a_value_error_is_a_sentence(tmp_path: Path) -> None:
    assert _run("raise ValueError('no such file')", tmp_path) == Finished(2, "", "error: no such file\n")


def test_our_own_defects_keep_their_traceback(tmp_path: Path) -> None:
    done = _run("raise RuntimeError('ours')", tmp_path)
    assert done.code == 1 and "Traceback" in done.stderr and done.stderr.endswith("RuntimeError: ours\n")


@pytest.mark.parametrize(
    "signum, code, stderr", [(signal.SIGTERM, 143, ""), (signal.SIGINT, 130, "error: interrupted; nothing was kept\n")]
)
def test_signals_let_finally_run(tmp_path: Path, signum: signal.Signals, code: int, stderr: str) -> None:
    body = "\n    ".join(["try:", "    print('ready', flush=True)", "    time.sleep(60)", "finally:", "    print('cleaned')"])
    group = Group(["-c", PREAMBLE.format(body=body)], log_dir=tmp_path)
    group.wait_until(lambda: "ready" in (tmp_path / "stdout").read_text(), timeout_seconds=30)
    group.process.send_signal(signum)
    assert group.wait(timeout_seconds=30) == Finished(code, "ready\ncleaned\n", stderr)


def test_help_shows_the_docstring_and_ends_with_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    parser = command.parser("One idea.\n\nMore: 50 %.", prog="stage.name", example="python -m stage.name --input x")
    with pytest.raises(SystemExit) as end:
        parser.parse_args(["--help"])
    shown = capsys.readouterr().out
    assert end.value.code == 0
    assert shown.startswith("usage: python -m stage.name") and "\n\nOne idea.\n\nMore: 50 %.\n" in shown
    assert shown.endswith("example:\n  python -m stage.name --input x\n")


def test_abbreviations_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parser = command.parser(None, prog="p", example="")
    parser.add_argument("--output")
    with pytest.raises(SystemExit) as end:
        parser.parse_args(["--out", "x"])
    assert end.value.code == command.MISUSED and "unrecognized arguments: --out" in capsys.readouterr().err
