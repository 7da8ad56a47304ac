"""Corpora: named groups of files, in an order that decides in `dedup` which corpus keeps shared text."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from common.artifacts import MANIFEST_NAME
from common.options import add_option
from common.plain_files import read_yaml
from data_prep.reading.documents import SUFFIXES_IN_WORDS, Document, is_text_file, require_text_files
from data_prep.reading.languages import is_language

TABLE_NAME = "corpora.yaml"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MAX_NAMED = 5
_STAGE_DEPTH = 3  # text/CORPUS/FILE
_FACTS = ("language", "licence", "domain", "source")


@dataclass(frozen=True)
class Corpus:
    """A name and its files, in order, and what is known of them.

    Attributes:
        language: ISO 639 code, several joined by dashes; empty where it is not known.
        licence, source: for people.
        domain: news, academic, web ...
        other_files: of its folders, what is not read, by suffix, such as `12 x .pdf`.
    """

    name: str
    paths: tuple[Path, ...]
    language: str = ""
    licence: str = ""
    domain: str = ""
    source: str = ""
    other_files: tuple[str, ...] = ()

    @property
    def facts(self) -> dict[str, str]:
        """What is known, without what is not."""
        return {key: getattr(self, key) for key in _FACTS if getattr(self, key)}


def write_corpus_table(directory: Path, corpora: Sequence[Corpus], files: Mapping[str, Sequence[str]]) -> None:
    """Write `corpora.yaml`, from which the next command takes these corpora with --corpora.

    Args:
        files: corpus name -> its files, relative to the directory.
    """
    rows = [{"name": corpus.name, "files": list(files[corpus.name]), **corpus.facts} for corpus in corpora]
    text = yaml.safe_dump(rows, allow_unicode=True, sort_keys=False, width=1 << 20)
    (directory / TABLE_NAME).write_text(text, encoding="utf-8")


def add_corpus_arguments(parser: argparse.ArgumentParser, *, order: str) -> None:
    """Add --input and --corpora, of which one is needed.

    Args:
        order: what the order of corpora decides.
    """
    add_named_input_argument(parser, more=f", once per corpus; {order}")
    add_corpora_argument(parser)


def add_named_input_argument(parser: argparse.ArgumentParser, *, more: str = "") -> None:
    """Add --input NAME=FILE... and what to do with the other files of a folder."""
    add_option(parser, "--input [NAME=]FILE", f"NAME=FILE... ({SUFFIXES_IN_WORDS}) or NAME=FOLDER{more}", nargs="+", action="append")
    add_option(parser, "--ignore-other-files", "read a folder even if most of its files are of unsupported types", False)


def add_corpora_argument(parser: argparse.ArgumentParser) -> None:
    """Add --corpora."""
    add_option(
        parser,
        "--corpora YAML",
        f"table of corpora in place of --input, such as {TABLE_NAME} of an earlier output: a list of"
        " {name: NAME, files: [FILE or pattern, ...], language: .., licence: .., domain: .., source: ..}",
        type=Path,
    )


def corpora_from_arguments(arguments: argparse.Namespace, separator: str | None = None) -> list[Corpus]:
    """The corpora of a command line with `add_corpus_arguments`.

    Raises:
        ValueError: if there is none, a name is missing, used twice or no file name, or a file cannot be read.
    """
    if (arguments.input is None) == (arguments.corpora is None):
        raise ValueError("give either --input NAME=FILE... or --corpora YAML")
    if arguments.input:
        return corpora_from_input(arguments.input, separator, ignore_other_files=arguments.ignore_other_files)
    return corpora_from_table(arguments.corpora, separator)


def corpora_from_table(table: Path, separator: str | None = None) -> list[Corpus]:
    """The corpora of a table; errors as `corpora_from_arguments`."""
    return _readable(_from_table(table), separator)


def corpora_from_input(groups: Sequence[Sequence[str]], separator: str | None = None, *, ignore_other_files: bool = False) -> list[Corpus]:
    """The corpora of `NAME=FILE...` arguments; what of a folder is not read is said and kept in `other_files`.

    Args:
        ignore_other_files: do not refuse a folder of which most files are of kinds that are not read.

    Raises:
        ValueError: as `corpora_from_arguments`.
    """
    return _readable(_from_input(groups, ignore_other_files), separator)


def text_files(paths: Iterable[Path]) -> list[Path]:
    """The files themselves, and in place of a folder the text files in it and below, as --input NAME=FOLDER takes them.

    Raises:
        ValueError: if a folder has no text file, or more files of other kinds.
    """
    return [file for path in paths for file in _files_of(path, ignore_other_files=False)[0]]


def _readable(corpora: list[Corpus], separator: str | None) -> list[Corpus]:
    seen: set[Path] = set()
    for corpus in corpora:
        require_text_files(corpus.paths, separator)
        for path in corpus.paths:
            if path.resolve() in seen:
                raise ValueError(f"the input file {path} is given twice; a file belongs to one corpus")
            seen.add(path.resolve())
    return corpora


def require_text(corpora: Sequence[Corpus], documents: Callable[[Path], Iterable[Document]]) -> None:
    """Refuse a corpus without any text, before something is written; a file without text among others of its corpus is none of that.

    A corpus of which an earlier stage has left nothing, such as one whose documents are all copies of another's, may stand beside others.

    Args:
        documents: reads a file; no further than to the first text.

    Raises:
        ValueError: naming the files.
    """
    empty = [corpus for corpus in corpora if not any(document.text.strip() for path in corpus.paths for document in documents(path))]
    if len(empty) < len(corpora):
        empty = [corpus for corpus in empty if not all(map(_is_of_a_stage, corpus.paths))]
    if empty:
        corpus, names = empty[0], ", ".join(map(str, empty[0].paths[:_MAX_NAMED]))
        more = f" and {len(corpus.paths) - _MAX_NAMED} more files" if len(corpus.paths) > _MAX_NAMED else ""
        raise ValueError(
            f"the corpus {corpus.name} has no text: no document of {names}{more} has any; give files with text, or leave it out"
        )


def _is_of_a_stage(path: Path) -> bool:
    return any((directory / MANIFEST_NAME).is_file() for directory in path.resolve().parents[:_STAGE_DEPTH])


def _from_input(groups: Sequence[Sequence[str]], ignore_other_files: bool) -> list[Corpus]:
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
    corpora = []
    for name, paths in files.items():
        read: list[Path] = []
        others: list[str] = []
        for path in paths:
            found, left = _files_of(path, ignore_other_files)
            read, others = read + found, others + left
        corpora.append(Corpus(name, tuple(read), other_files=tuple(others)))
    return corpora


def _files_of(path: Path, ignore_other_files: bool) -> tuple[list[Path], list[str]]:
    """A file itself; of a folder all text files in it and below, in alphabetical order, and how many there are of each other suffix.

    Neither hidden files and folders nor what an unfinished command left is looked at; nor is what lies beside the text in an output of a stage.
    """
    if not path.is_dir():
        return [path], []
    files: list[Path] = []
    others = Counter[str]()
    for directory, names, found in os.walk(path):
        names[:] = sorted(name for name in names if not _is_left(name))
        of_a_stage = _is_of_a_stage(Path(directory) / MANIFEST_NAME)
        for file in (Path(directory) / name for name in found if not _is_left(name)):
            # A .json beside others is a setting or a description far more often than text.
            if is_text_file(file) and file.suffix.lower() != ".json" and file.is_file():
                files.append(file)
            elif not of_a_stage:
                others[file.suffix.lower() or "without a suffix"] += 1
    by_suffix = [f"{count:,} x {suffix}" for suffix, count in others.most_common()]
    if not files:
        also = f", only {', '.join(by_suffix)}" if by_suffix else ""
        named = "; of a folder plain .json is not read, name such files one by one" if ".json" in others else ""
        raise ValueError(f"the folder {path} has no text file{also}; expected names ending in {SUFFIXES_IN_WORDS}{named}")
    if (number := others.total()) > len(files) and not ignore_other_files:
        raise ValueError(
            f"the folder {path} has {len(files):,} text files and {number:,} others ({', '.join(by_suffix)}), which would not be read; move or"
            " convert what is text, or give --ignore-other-files"
        )
    if by_suffix:
        print(f"{path}: {number:,} files are not read: {', '.join(by_suffix)}", file=sys.stderr)
    return sorted(files), by_suffix


def _is_left(name: str) -> bool:
    """Whether a name is hidden (notebooks', a Mac's) or one of unfinished work."""
    return name.startswith(".") or name.endswith(".unfinished") or ".partial-" in name


def _from_table(path: Path) -> list[Corpus]:
    if not path.is_file():
        raise ValueError(f"the corpus table {path} does not exist")
    rows = read_yaml(path)
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{path} holds no list of corpora; expected '- {{name: NAME, files: [FILE, ...]}}' for each")
    corpora: list[Corpus] = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not {"name", "files"} <= set(row) or not isinstance(row["files"], list):
            raise ValueError(f"{path}, corpus {number} is not of the form {{name: NAME, files: [FILE, ...]}}")
        if any(corpus.name == str(row["name"]) for corpus in corpora):
            raise ValueError(f"{path} names the corpus {row['name']} twice; give all its files together")
        corpus = corpus_from_row(path, {key: value for key, value in row.items() if key != "files"})
        corpora.append(replace(corpus, paths=tuple(files_of_patterns(path, row["files"]))))
    return corpora


def corpus_from_row(table: Path, row: Mapping[str, Any]) -> Corpus:
    """The corpus of a row without its files.

    Raises:
        ValueError: if it has no name, an unknown key, or a language that is not an ISO 639 code.
    """
    name = str(row["name"])
    if not _NAME.fullmatch(name):
        raise ValueError(f"{table} has a corpus {name!r}; expected a name of letters, digits, '.', '_' and '-'")
    if unknown := sorted(map(str, set(row) - {"name", *_FACTS})):
        raise ValueError(f"{table}: {name} has the unknown key {', '.join(unknown)}; the known ones are name, files, {', '.join(_FACTS)}")
    facts = {key: str(row[key]) for key in _FACTS if row.get(key)}
    if "language" in facts and not is_language(facts["language"]):
        raise ValueError(f"{table}: the language of {name} is {facts['language']!r}; expected an ISO 639 code such as sl")
    return Corpus(name, (), facts.get("language", ""), facts.get("licence", ""), facts.get("domain", ""), facts.get("source", ""))


def files_of_patterns(table: Path, patterns: Sequence[object]) -> list[Path]:
    """Files of patterns, relative to the table, those of a pattern in alphabetical order.

    Raises:
        ValueError: if a pattern has no file.
    """
    paths = []
    for pattern in map(str, patterns):
        if not pattern:
            raise ValueError(f"{table} names a file without a name; expected a file or a pattern")
        found = sorted(table.parent.glob(pattern)) if not Path(pattern).is_absolute() else [Path(pattern)]
        if not found:
            raise ValueError(f"{table}: no file is called {pattern}")
        paths += found
    return paths
