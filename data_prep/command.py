"""How a command starts and ends: exit codes, one-line errors, help without heavy imports."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

DONE, WRONG, MISUSED = 0, 1, 2


def parser(doc: str | None, *, prog: str, example: str) -> argparse.ArgumentParser:
    """An argument parser whose help is a module's docstring and ends with an example."""
    return argparse.ArgumentParser(
        prog=f"python -m {prog}",
        description=(doc or "").strip(),
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_running_arguments(parser: argparse._ActionsContainer, *, skips_bad: bool = True) -> None:
    """How a command over many documents works: processes, the longest document, and what happens to input that cannot be read."""
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="processes (default: all cores)")
    if skips_bad:
        parser.add_argument("--skip-bad", action="store_true", help="pass over what cannot be read, and list it, instead of stopping")
    parser.add_argument(
        "--max-document-mib", type=int, default=64, metavar="N", help="longer lines and documents are bad input (default: 64)"
    )


def require_positive(arguments: argparse.Namespace, *names: str) -> None:
    """Refuse counts below 1; those of `add_running_arguments` are among them.

    Raises:
        ValueError: naming the option.
    """
    for name in ("workers", "max_document_mib", *names):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {value}; expected at least 1")


def print_report(directory: Path) -> None:
    """Print the `report.md` that a command has written."""
    print((directory / "report.md").read_text(encoding="utf-8"), end="")


def run(main: Callable[[Sequence[str] | None], int]) -> None:
    """Run a command's main and exit: 0 done, 1 checked and found wrong, 2 misused (one clear sentence on stderr).

    A ValueError is what a user can cause, so it is printed as a sentence; anything else is our defect and keeps its
    traceback.  SIGTERM (Slurm, `kill`) ends like an exception, so that half-written outputs are removed.
    """
    signal.signal(signal.SIGTERM, _terminate)
    # torch says so at every import, also in processes that we start, of a package that NeMo's dependencies ask for.
    warnings.filterwarnings("ignore", message="The pynvml package is deprecated", category=FutureWarning)
    os.environ.setdefault("PYTHONWARNINGS", "ignore:The pynvml package is deprecated:FutureWarning")
    try:
        code = main(None)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        code = MISUSED
    except KeyboardInterrupt:
        print("error: interrupted; nothing was kept", file=sys.stderr)
        code = 130
    sys.exit(code)


def _terminate(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)
