"""Corpora: named groups of files, in an order that means something (for `dedup`, who keeps what both have)."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from data_prep.documents import SUFFIXES, require_text_files

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Corpus:
    """A name and its files, in order."""

    name: str
    paths: tuple[Path, ...]


def add_corpus_arguments(parser: argparse.ArgumentParser, *, order: str) -> None:
    """Add --input and --corpora, of which one is needed.

    Args:
        order: what the order of corpora decides.
    """
    parser.add_argument(
        "--input", nargs="+", action="append", metavar="[NAME=]FILE", help=f"NAME=FILE... ({', '.join(SUFFIXES)}), once per corpus; {order}"
    )
    parser.add_argument(
        "--corpora", type=Path, metavar="YAML", help="a list of {name: NAME, files: [FILE or pattern, ...]} in place of --input"
    )


def corpora_from_arguments(arguments: argparse.Namespace, separator: str | None = None) -> list[Corpus]:
    """The corpora of a command line with `add_corpus_arguments`.

    Raises:
        ValueError: if there is none, a name is missing, used twice or no file name, or a file cannot be read.
    """
    if (arguments.input is None) == (arguments.corpora is None):
        raise ValueError("give either --input NAME=FILE... or --corpora YAML")
    corpora = _from_input(arguments.input) if arguments.input else _from_table(arguments.corpora)
    seen: set[Path] = set()
    for corpus in corpora:
        require_text_files(corpus.paths, separator)
        for path in corpus.paths:
            if path.resolve() in seen:
                raise ValueError(f"the input file {path} is given twice; a file belongs to one corpus")
            seen.add(path.resolve())
    return corpora


def _from_input(groups: Sequence[Sequence[str]]) -> list[Corpus]:
    files: dict[str, list[Path]] = {}
    for group in groups:
        name = ""
        for argument in group:
            head, equals, tail = argument.partition("=")
            if equals and _NAME.fullmatch(head) and tail:
                name = head
                if name in files:
                    raise ValueError(f"--input names the corpus {name} twice; give all its files together")
                files[name] = [Path(tail)]
            elif not name:
                raise ValueError(f"--input {argument} has no corpus name; expected NAME=FILE, for example web={argument}")
            else:
                files[name].append(Path(argument))
    return [Corpus(name, tuple(paths)) for name, paths in files.items()]


def _from_table(path: Path) -> list[Corpus]:
    if not path.is_file():
        raise ValueError(f"the corpus table {path} does not exist")
    try:
        rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no YAML: {error}") from error
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{path} holds no list of corpora; expected '- {{name: NAME, files: [FILE, ...]}}' for each")
    corpora: list[Corpus] = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or set(row) != {"name", "files"} or not isinstance(row["files"], list):
            raise ValueError(f"{path}, corpus {number} is not of the form {{name: NAME, files: [FILE, ...]}}")
        name = str(row["name"])
        if not _NAME.fullmatch(name):
            raise ValueError(f"{path}, corpus {number} is called {name!r}; expected letters, digits, '.', '_' and '-'")
        if any(corpus.name == name for corpus in corpora):
            raise ValueError(f"{path} names the corpus {name} twice; give all its files together")
        corpora.append(Corpus(name, tuple(_expand(path, row["files"]))))
    return corpora


def _expand(table: Path, patterns: Sequence[object]) -> list[Path]:
    """Files of patterns, relative to the table, those of a pattern in alphabetical order."""
    paths = []
    for pattern in map(str, patterns):
        found = sorted(table.parent.glob(pattern)) if not Path(pattern).is_absolute() else [Path(pattern)]
        if not found:
            raise ValueError(f"{table}: no file is called {pattern}")
        paths += found
    return paths
