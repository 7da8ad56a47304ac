"""What is compared: commands as users type them, and whoever does the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.meter import ROOT
from benchmarks.whole.results import Role

Command = Callable[[Path], Sequence[str | Path]]
"""Words of a command that writes the folder or file that it is given."""
CONTENDERS = ROOT / "benchmarks" / "whole" / "contenders"


@dataclass(frozen=True)
class Contender:
    """Who does it.

    Attributes:
        needs: package that the interpreter of the command must have.
        remark: what is not the same thing.
        tells_seconds: whether its last line is a JSON list of seconds, which count in place of those of the whole process.

    """

    name: str
    role: Role
    command: Command
    needs: str = ""
    remark: str = ""
    tells_seconds: bool = False


@dataclass(frozen=True)
class Case:
    """A question of time.

    Attributes:
        amount: of work, in `unit`.
        contenders: ours first.
        most_rounds: of what takes minutes.
    """

    name: str
    amount: float
    unit: str
    contenders: tuple[Contender, ...]
    most_rounds: int = 100


def ours(module: str, *arguments: str | Path, name: str = "Scion") -> Contender:
    """A command of the project that takes `--output`."""
    return Contender(name, "ours", lambda output: [sys.executable, "-m", module, *arguments, "--output", output])


def script(
    name: str,
    role: Role,
    file: str,
    *arguments: str | Path,
    python: str = sys.executable,
    needs: str = "",
    remark: str = "",
    tells_seconds: bool = False,
) -> Contender:
    """A file of `contenders`, which gets the output last."""
    return Contender(
        name, role, lambda output: [python, CONTENDERS / file, *arguments, output], needs=needs, remark=remark, tells_seconds=tells_seconds
    )


def copy_of(folder: Path) -> Contender:
    """Through the page cache, and flushed."""
    return script("copy and flush", "limit", "copy_folder.py", folder)


def passes(name: str, model: Path, text: Path, *, times: int = 1, remark: str = "") -> Contender:
    """The model over a text in its windows, so many times, and its loading."""
    return script(name, "limit", "model_passes.py", model, text, str(times), remark=remark)


def products(operations: float, *shape: int) -> Contender:
    """Matrix products of one shape that do so many operations, in float32: no pass of a model that needs these can take less."""
    return script("matrix products of as many operations", "limit", "matrix_products.py", f"{operations:.6g}", *map(str, shape))


def empty_python(times: int = 1) -> Contender:
    """What no command can be faster than."""
    return Contender("an empty Python", "limit", lambda output: [sys.executable, CONTENDERS / "help.py", *["-"] * times])
