"""The table of published evaluation sets: their publishers, terms, files, and the conversion of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.plain_files import read_yaml

EVALUATION_TABLE = Path(__file__).with_name("evaluation_sets.yaml")
SHAPES = ("rows", "squad", "lines_by_language", "sources", "words", "texts")
HUB = "dataset:"


@dataclass(frozen=True)
class RowFile:
    """One file of the evaluation data and what its rows are made from.

    Attributes:
        file: below the folder of evaluation data, without suffix; with `{language}` one for each language that a source has.
        patterns: split -> patterns of published names; the first that matches any counts.
        columns: our field (dots go into objects) -> names of the published column; a trailing `?` takes a missing value as an empty text.
        answer: the field without which a row cannot be scored.
        labels: published label -> ours, `index` for the number in a text, None to keep them.
        identity, group: templates of the row's id and of what belongs together.
        shape: one of `SHAPES`.
        counts: split -> rows as published; of a set with many languages LANGUAGE/split.
        paper: which paper names the counts.
        unit: what is counted.
        metadata: pattern of a table that goes with the lines.
        unlabelled: file of the evaluation data for rows without an answer; None to leave them out.
    """

    file: str
    patterns: Mapping[str, tuple[str, ...]]
    columns: Mapping[str, tuple[str, ...]]
    answer: str
    labels: Mapping[str, Any] | str | None
    identity: str
    group: str | None
    shape: str
    counts: Mapping[str, int]
    paper: str | None
    unit: str
    metadata: str | None
    unlabelled: str | None = None


@dataclass(frozen=True)
class EvaluationSet:
    """One published set.

    Attributes:
        fetch: addresses of files, and `dataset:owner/name` of the Hugging Face hub.
        archives: names of archives that its files may lie in.
        unseen: its form is from public descriptions alone.
    """

    name: str
    about: str
    home: str
    licence: str
    rows: tuple[RowFile, ...]
    fetch: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    unseen: bool = False


def read_sets(names: Sequence[str] | None = None) -> list[EvaluationSet]:
    """Entries of the table, in the order asked for; None for all.

    Raises:
        ValueError: for a name that is not in the table.
    """
    table = read_yaml(EVALUATION_TABLE)
    unknown = [name for name in names or () if name not in table]
    if unknown:
        raise ValueError(f"{EVALUATION_TABLE.name} has no set {', '.join(unknown)}; it has {', '.join(table)}")
    return [_entry(name, table[name]) for name in dict.fromkeys(table if names is None else names)]


def _entry(name: str, entry: Mapping[str, Any]) -> EvaluationSet:
    return EvaluationSet(
        name=name,
        about=entry["about"],
        home=entry["home"],
        licence=entry["licence"],
        rows=tuple(_row_file(file, rows) for file, rows in entry["rows"].items()),
        fetch=tuple(entry.get("fetch", ())),
        archives=tuple(entry.get("archives", ())),
        unseen=entry.get("unseen", False),
    )


def _row_file(file: str, entry: Mapping[str, Any]) -> RowFile:
    shape = entry.get("shape", "rows")
    assert shape in SHAPES, f"{file} has the shape {shape}"
    return RowFile(
        file=file,
        patterns={split: _alternatives(patterns) for split, patterns in entry["from"].items()},
        columns={ours: _alternatives(theirs) for ours, theirs in entry["columns"].items()},
        answer=entry["answer"],
        labels=entry.get("labels"),
        identity=entry["id"],
        group=entry.get("group"),
        shape=shape,
        counts=entry.get("counts", {}),
        paper=entry.get("paper"),
        unit=entry.get("unit", "rows"),
        metadata=entry.get("metadata"),
        unlabelled=entry.get("unlabelled"),
    )


def _alternatives(text: str) -> tuple[str, ...]:
    return tuple(text.split(" | "))


def files_of_sets(names: Sequence[str], folder: Path) -> list[Path]:
    """The files of some sets, or of all that are there ("all"), in a folder of evaluation data as eval.prepare writes it.

    Raises:
        ValueError: for an unknown name, or a set of which nothing is there.
    """
    every = names == ["all"]
    found: list[Path] = []
    for one in read_sets(None if every else names):
        files = [name for rows in one.rows for name in (rows.file, rows.unlabelled) if name is not None]
        mine = sorted({path for name in files for path in folder.glob(f"{name.replace('{language}', '*')}.jsonl.gz")})
        if not mine and not every:
            raise ValueError(
                f"{folder} has no file of the evaluation set {one.name} ({files[0]}.jsonl.gz ...); make it with"
                f" python -m eval.prepare {one.name} --output {folder}"
            )
        found += mine
    if not found:
        raise ValueError(f"{folder} has no file of any evaluation set; expected what eval.prepare writes")
    return list(dict.fromkeys(found))
