"""Rows of the evaluation data: JSON Lines below one folder, which the user names and this project does not ship."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA_VARIABLE = "SCION_EVAL_DATA"
_SUFFIXES = (".jsonl.gz", ".jsonl")
# What the sets themselves call their splits.
_SPLIT_NAMES = {"validation": "val", "dev": "val", "devtest": "test"}

Row = dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """Where rows lie: a file below the data folder, without suffix, and which of its splits; None takes them all."""

    file: str
    split: str | None = None


def data_folder(data: str | None) -> Path:
    """The folder of evaluation data: as named, else by the environment.

    Raises:
        ValueError: if neither names one, or it does not exist.
    """
    named = data or os.environ.get(DATA_VARIABLE)
    if not named:
        raise ValueError(
            f"the tasks of the papers need a folder of evaluation data: give --data to eval.harness, --metadata with"
            f' {{"data": FOLDER}} to lm-eval, or set {DATA_VARIABLE}'
        )
    folder = Path(named)
    if not folder.is_dir():
        raise ValueError(f"the folder of evaluation data {folder} does not exist")
    return folder


def read_line(line: str, number: int, file: str) -> Row:
    """A line of JSON Lines, counted from 1.

    Raises:
        ValueError: if it is not a JSON object.
    """
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number} of {file} is not valid JSON: {error}; fetch it again") from error
    if not isinstance(row, dict):
        raise ValueError(f"line {number} of {file} holds {type(row).__name__}; expected an object with the fields of a row")
    return row


def read_rows(folder: Path, rows: Rows) -> list[Row]:
    """Rows of one split, in the order of the file; a row without id is called by its file and line.

    Raises:
        ValueError: if the file is missing, is not JSON Lines, or has no row of the split.
    """
    path = _find(folder, rows.file)
    found: list[Row] = []
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            row = read_line(line, number, str(path))
            if rows.split is None or _SPLIT_NAMES.get(str(row.get("split")), row.get("split")) == rows.split:
                found.append({"id": f"{rows.file}:{number}", **row})
    if not found:
        which = "" if rows.split is None else f" of the split {rows.split}"
        raise ValueError(f"{path} has no rows{which}; an empty set cannot be evaluated")
    return found


def _find(folder: Path, file: str) -> Path:
    for suffix in _SUFFIXES:
        path = folder / f"{file}{suffix}"
        if path.is_file():
            return path
    raise ValueError(f"the file {file}{_SUFFIXES[0]} (or {_SUFFIXES[1]}) is not in the folder of evaluation data {folder}")


def field(row: Row, name: str) -> Any:
    """A field of a row.

    Raises:
        ValueError: naming the row and the field that is missing or null.
    """
    value = row.get(name)
    if value is None:
        raise ValueError(f"the row {row['id']} has no {name}; every row needs one")
    return value


def label_index(row: Row, labels: Mapping[Any, int], name: str = "label") -> int:
    """Index of a row's label.

    Raises:
        ValueError: if the row has no label, or one that is not known.
    """
    label = field(row, name)
    if label not in labels:
        raise ValueError(f"the row {row['id']} has the label {label!r}; known are {', '.join(map(repr, labels))}")
    return labels[label]
