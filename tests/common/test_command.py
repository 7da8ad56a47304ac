"""How a command ends: its exit code, and one sentence where the user can do something about it."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from common import command, system_errors
from tests.processes import ROOT, Finished, Group

PREAMBLE = """
import sys, time
from common import command
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
    "signum, code, stderr", [(signal.SIGTERM, 143, ""), (signal.SIGHUP, 129, ""), (signal.SIGINT, 130, "error: interrupted\n")]
)
def test_signals_let_finally_run(tmp_path: Path, signum: signal.Signals, code: int, stderr: str) -> None:
    before = signal.signal(
        signum, signal.default_int_handler
    )  # ignored under nohup or in the background of a script, and so in every child
    try:
        _signal_a_command(tmp_path, signum, code, stderr)
    finally:
        signal.signal(signum, before)


def _signal_a_command(tmp_path: Path, signum: signal.Signals, code: int, stderr: str) -> None:
    # Short sleeps: a signal that comes before the system call begins would not end a long one.
    body = "\n    ".join(
        ["try:", "    print('ready', flush=True)", "    [time.sleep(0.1) for _ in range(600)]", "finally:", "    print('cleaned')"]
    )
    group = Group(["-c", PREAMBLE.format(body=body)], log_dir=tmp_path)
    group.wait_until(lambda: "ready\n" in (tmp_path / "stdout").read_text(), timeout_seconds=30)
    group.process.send_signal(signum)
    assert group.wait(timeout_seconds=30) == Finished(code, "ready\ncleaned\n", stderr)


def test_more_workers_than_a_machine_can_start_are_refused() -> None:
    """Each is a process, and all are started at once: 100,000 stopped a machine for a quarter of an hour."""
    for workers, sentence in ((0, "--workers is 0; expected at least 1"), (100_000, "--workers is 100000; expected at most ")):
        with pytest.raises(ValueError, match=sentence):
            command.require_positive(argparse.Namespace(workers=workers, max_document_mib=1))
    command.require_positive(argparse.Namespace(workers=256, max_document_mib=1))


def test_help_shows_the_docstring_and_ends_with_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    parser = command.parser("One idea.\n\nMore: 50 %.", example="python -m stage.name --input x")
    with pytest.raises(SystemExit) as end:
        parser.parse_args(["--help"])
    shown = capsys.readouterr().out
    assert end.value.code == 0
    assert shown.startswith("usage: python -m stage.name") and "\n\nOne idea.\n\nMore: 50 %.\n" in shown
    assert shown.endswith("example:\n  python -m stage.name --input x\n")


def test_abbreviations_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parser = command.parser(None, example="")
    parser.add_argument("--output")
    with pytest.raises(SystemExit) as end:
        parser.parse_args(["--out", "x"])
    assert end.value.code == command.MISUSED and "unrecognized arguments: --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    "body, sentence",
    [
        ("open('/none/x')", "/none/x does not exist; check the spelling, or create it first"),
        ("open('/dev/null/x')", "/dev/null/x cannot exist: a part of its path is a file, not a directory; name another place"),
        ("open('/')", "/ is a directory; expected a file; name the file"),
        ("open('/' + 'a' * 300)", f"/{'a' * 116}...{'a' * 40} is too long for the file system, which takes names of 255 bytes and paths of"
         " 4,096; choose a shorter one"),
        ("__import__('os').mkdir('/proc/x')", "/proc/x does not exist; check the spelling, or create it first"),
        ("open('/dev/full', 'wb', 0).write(b'x')", "[Errno 28] No space left on device; free some space or give a path on another disk"
         " (SCION_TRACEBACK=1 shows where)"),
        ("raise OSError('the hub\\ndid not answer')", "the hub did not answer; run the same command again, and report it if it comes back"
         " (SCION_TRACEBACK=1 shows where)"),
        ("b'ab\\xff'.decode()", "a file that must be text is not UTF-8: byte 0xff at position 3 of b'ab\\xff'; convert it, for example with"
         " iconv (SCION_TRACEBACK=1 shows where)"),
        ("'a\\udcff'.encode()", "'a\\udcff' cannot be written as text: '\\udcff' is not a character, but a byte of a file name that is not UTF-8 or"
         " half a surrogate pair; rename the file or repair the text (SCION_TRACEBACK=1 shows where)"),
        ("__import__('json').loads('{')", "a file that must be JSON is not valid: Expecting property name enclosed in double quotes at line 1,"
         " column 2 of '{'; make it again (SCION_TRACEBACK=1 shows where)"),
        ("__import__('json').loads('[' * 9999)", "something in the input is nested too deeply to be read; expected some ten levels at most"
         " (SCION_TRACEBACK=1 shows where)"),
        ("bytearray(1 << 60)", "there is not enough memory; run it on a machine with more, or on less (SCION_TRACEBACK=1 shows where)"),
    ],
)  # fmt: skip
def test_what_the_system_says_is_a_sentence(tmp_path: Path, body: str, sentence: str) -> None:
    done = _run(body, tmp_path)
    assert (done.code, done.stdout) == (command.MISUSED, "") and done.stderr.count("\n") == 1 and done.stderr.startswith("error: ")
    assert done.stderr == f"error: {sentence}\n"


def test_the_place_of_an_error_can_be_asked_for(tmp_path: Path) -> None:
    group = Group(["-c", PREAMBLE.format(body="open('/none/x')")], log_dir=tmp_path, environment={system_errors.TRACEBACK: "1"})
    done = group.wait(timeout_seconds=30)
    assert (
        done.code == command.MISUSED and "Traceback" in done.stderr and done.stderr.splitlines()[-1].startswith("error: /none/x does not")
    )


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.ECONNRESET, errno.ESHUTDOWN])
def test_what_may_pass_is_no_refusal(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """By which a chain of jobs tells it from what the same command meets again."""

    def main(argv: Sequence[str] | None) -> int:
        try:
            raise OSError(number, os.strerror(number), "/a/b")
        except OSError as error:
            raise ValueError("a/b is not complete") from error

    assert command._exit_code(main) == command.TRY_AGAIN
    assert capsys.readouterr().err == "error: a/b is not complete\n"


def test_a_sentence_stays_a_line_whatever_a_file_held(capsys: pytest.CaptureFixture[str]) -> None:
    command._say("no family ll\nama\x1b[31m; 2 problems:\n  - one")
    assert capsys.readouterr().err == "error: no family ll\\nama\\x1b[31m; 2 problems:\n  - one\n"


def test_errors_of_files_name_the_place_and_no_number() -> None:
    for number in system_errors._KNOWN:
        told = system_errors.sentence(OSError(number, os.strerror(number), "/a/b"))
        assert told is not None and told.startswith("/a/b ") and "; " in told and "rrno" not in told
    assert system_errors.sentence(OSError(18, "", "/a", None, "/b")) == "/a -> /b is on another file system; give a path on the same one"
    assert str(system_errors.sentence(OSError(2, "", b"/a\xff"))).startswith("/a\\udcff does not exist")
    assert system_errors.sentence(KeyError("x")) is None


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("nemo.collections", "this needs NeMo, on Python 3.11 or 3.12: nemo is not installed in "),
        ("gensim", "this needs gensim, which is not installed in "),
        ("common.nothing", None),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(module: str, told: str | None) -> None:
    sentence = system_errors.sentence(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert sentence is None if told is None else sentence is not None and sentence.startswith(told) and "pip install '.[" in sentence


@pytest.mark.parametrize("body", ["print('x' * 999999)", "print('x')", "print('x', flush=True)", "sys.exit(print('x'))"])
@pytest.mark.parametrize("both", [False, True])
def test_a_reader_that_leaves_ends_a_command_quietly(body: str, both: bool) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        errors = writing if both else subprocess.PIPE
        done = subprocess.run([sys.executable, "-c", PREAMBLE.format(body=body)], cwd=ROOT, stdout=writing, stderr=errors, timeout=30)
    finally:
        os.close(writing)
    assert done.returncode == 128 + signal.SIGPIPE and not done.stderr


def test_a_broken_pipe_to_a_process_of_ours_is_not_quiet(tmp_path: Path) -> None:
    body = "import os; a, b = os.pipe(); os.close(a); os.write(b, b'x')"
    assert _run(body, tmp_path).stderr.startswith("error: [Errno 32] Broken pipe; run the same command again")


def test_an_answer_that_cannot_be_printed_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        arguments = [sys.executable, "-c", PREAMBLE.format(body="print('x')")]
        done = subprocess.run(arguments, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30)
    assert done.returncode == command.MISUSED and done.stderr.count("\n") == 1 and "No space left" in done.stderr


@pytest.mark.parametrize("stdout", ["closed", "open"])
def test_names_that_are_no_utf8_are_refused_before_anything_else(stdout: str) -> None:
    code = PREAMBLE.format(body="print('started')") if stdout == "open" else "import os; os.close(1)\n" + PREAMBLE.format(body="return 0")
    done = subprocess.run([sys.executable, "-c", code, b"a", b"b\xff"], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == command.MISUSED and not done.stdout
    assert done.stderr == "error: the argument b\\udcff is not UTF-8, which an output's manifest could not hold; rename the file\n"


def test_letters_that_the_terminal_has_not_are_still_an_answer() -> None:
    body, environment = "print('\\u010d \\udcff', end=''); return 0", {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", PREAMBLE.format(body=body)], cwd=ROOT, env=environment, capture_output=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, b"\\u010d \\udcff")
