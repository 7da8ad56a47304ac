"""How a command starts and ends: exit codes, one-line errors, help without heavy imports."""

from __future__ import annotations

import argparse
import contextlib
import contextvars
import gc
import io
import os
import re
import select
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common import system_errors
from common.options import add_option

DONE, WRONG, MISUSED = 0, 1, 2
_MOST_WORKERS, _WORKERS_A_PROCESSOR = 256, 4  # the larger of both; more wait for each other
IN_USE, LOST, HUNG = 3, 4, 5  # another process works in the directory; another has taken it over; no step for too long
DAMAGED = 6  # the newest checkpoint is not what was saved
TRY_AGAIN = 7  # a file system or network failed in a way that passes


class StoppedError(Exception):
    """Ends a command with one sentence and an exit code of its own."""

    exit_code = WRONG


class _ParsedError(Exception):
    """Carries what a command would have worked with, before it begins."""

    def __init__(self, arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.arguments, self.parser = arguments, parser


_only_parses = contextvars.ContextVar("only_parses", default=False)


class _Parser(argparse.ArgumentParser):
    def parse_args(self, *arguments: Any, **options: Any) -> Any:
        return self._parsed(super().parse_args(*arguments, **options))

    def parse_intermixed_args(self, *arguments: Any, **options: Any) -> Any:
        return self._parsed(super().parse_intermixed_args(*arguments, **options))

    def _parsed(self, arguments: Any) -> Any:
        if _only_parses.get():
            raise _ParsedError(arguments, self)
        return arguments


def arguments_of(main: Callable[[Sequence[str]], int], words: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a command would work with, by its own parser, and what each of these is by default; nothing of it runs.

    Raises:
        ValueError: if it would refuse the words.
    """
    token = _only_parses.set(True)
    try:
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            main(words)
    except _ParsedError as parsed:
        values = vars(parsed.arguments)
        return values, {name: parsed.parser.get_default(name) for name in values}
    except SystemExit:
        raise ValueError((stderr.getvalue().strip().splitlines() or ["it would print its help"])[-1]) from None
    finally:
        _only_parses.reset(token)
    raise AssertionError("every command parses its arguments with `parser` first")


def parser(doc: str | None, *, example: str) -> argparse.ArgumentParser:
    """An argument parser whose help is a module's docstring and ends with an example, which begins with `python -m MODULE`."""
    return _Parser(
        prog=" ".join(example.split()[:3]),
        description=(doc or "").strip(),
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def suggested(module: str, *words: str | Path) -> str:
    """A command to type, as a shell takes it: paths with spaces are quoted."""
    return shlex.join(["python", "-m", module, *map(str, words)])


def add_running_arguments(parser: argparse._ActionsContainer, *, skips_bad: bool = True) -> None:
    """How a command over many documents works: processes, the longest document, and what happens to input that cannot be read."""
    add_option(parser, "--workers N", "number of processes (default: all cores)", len(os.sched_getaffinity(0)))
    if skips_bad:
        add_option(parser, "--skip-bad", "skip input that cannot be read and list it, instead of stopping", False)
    add_option(parser, "--max-document-mib N", "maximum size of a line or document in MiB; a longer one is an error", 64)


def require_positive(arguments: argparse.Namespace, *names: str) -> None:
    """Refuse counts below 1, and more workers than any machine has use for; the counts of `add_running_arguments` are among them.

    Raises:
        ValueError: naming the option.
    """
    most = max(_MOST_WORKERS, _WORKERS_A_PROCESSOR * len(os.sched_getaffinity(0)))
    if arguments.workers > most:  # all are started at once, which would stop the machine for everybody
        raise ValueError(
            f"--workers is {arguments.workers}; expected at most {most} on this machine, which has {len(os.sched_getaffinity(0))} processors for us"
        )
    require_at_least(1, arguments, "workers", "max_document_mib", *names)


def require_at_least(least: float, arguments: argparse.Namespace, *names: str) -> None:
    """Refuse smaller values; what is not given is None.

    Raises:
        ValueError: naming the option.
    """
    for name in names:
        if (value := getattr(arguments, name)) is not None and not value >= least:
            raise ValueError(f"--{name.replace('_', '-')} is {value}; expected at least {least}")


def print_report(directory: Path) -> None:
    """Print the `report.md` that a command has written; where it cannot be read back, which is not a failure of the command, its place."""
    try:
        print((directory / "report.md").read_text(encoding="utf-8"), end="")
    except OSError as error:
        print(f"{directory / 'report.md'}: written, but cannot be read back: {error}")


def run(main: Callable[[Sequence[str] | None], int]) -> None:
    """Run a command's main and exit: 0 done, 1 checked and found wrong, 2 misused (one clear sentence on stderr), 3 to 7 as named above.

    A ValueError is what a user can cause, so it is printed as a sentence, and what the system says (files that cannot be read, outputs
    that cannot be written, too little memory) becomes one; anything else is our defect and keeps its traceback, which SCION_TRACEBACK=1
    shows of the former too.  Who stops reading what is printed (`| head`) ends the command quietly.  SIGTERM (Slurm, `kill`) ends like an
    exception, so that half-written outputs are removed, and so does a terminal that is closed (SIGHUP), except under `nohup`.
    """
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _terminate)
    # torch says so at every import, also in processes that we start, of a package that NeMo's dependencies ask for.
    warnings.filterwarnings("ignore", message="The pynvml package is deprecated", category=FutureWarning)
    os.environ.setdefault("PYTHONWARNINGS", "ignore:The pynvml package is deprecated:FutureWarning")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without our letters, a name that is not UTF-8: still an answer
    code = _exit_code(main)
    _discard_what_cannot_be_printed()
    gc.freeze()  # a last look for cycles among all that was imported is for nobody
    sys.exit(code)


def _exit_code(main: Callable[[Sequence[str] | None], int]) -> int | str | None:
    try:
        try:
            _require_unicode_arguments()
            code: int | str | None = main(None)
        except SystemExit as end:  # of --help, of wrong arguments, of SIGTERM
            code = end.code
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except KeyboardInterrupt as error:
        _say(f"interrupted; {error}" if str(error) else "interrupted")
        return 128 + signal.SIGINT
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return 128 + signal.SIGPIPE
        # Unicode errors are ValueErrors that name no file, so the system's sentences are asked first.
        message = system_errors.sentence(error) or (str(error) if isinstance(error, ValueError | StoppedError) else None)
        if message is None:
            raise
        if os.environ.get(system_errors.TRACEBACK):
            traceback.print_exc()
        _say(message)
        return getattr(error, "exit_code", TRY_AGAIN if system_errors.may_pass(error) else MISUSED)


def _say(sentence: str) -> None:
    # Names and values from files may hold line breaks and what commands a terminal; lists of problems begin their lines with spaces.
    sentence = re.sub(r"(?!\n  )[\x00-\x08\x0a-\x1f\x7f-\x9f]", lambda found: repr(found[0])[1:-1], sentence)
    with contextlib.suppress(OSError):
        print(f"error: {sentence}", file=sys.stderr, flush=True)


def _nobody_reads() -> bool:
    """Whether the reader of stdout or stderr is gone: a broken pipe may also be one to a process of ours, which is another matter."""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or no file at all
            poll.register(stream.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _discard_what_cannot_be_printed() -> None:
    """Let Python's own last flush succeed: it would turn a full disk or a reader that left into another exit code and four lines."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _require_unicode_arguments() -> None:
    """Refuse arguments that no manifest or report can hold, before anything is read or written.

    Raises:
        ValueError: naming the first.
    """
    for argument in sys.argv[1:]:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"the argument {system_errors.shown_name(argument)} is not UTF-8, which an output's manifest could not hold; rename the file"
            ) from None


def _terminate(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)


def python_path(root: Path) -> str:
    """A value of PYTHONPATH: a folder, and behind it whatever this process was given, from which its libraries may come."""
    return os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
