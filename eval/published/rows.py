"""Rows of published files in the form that the protocols read: columns renamed, labels translated, ids and groups made."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from data_prep.reading.evaluation_sets import RowFile
from data_prep.reading.parquet import read_rows as read_parquet
from eval.protocols.rows import read_line
from eval.published.by_language import labelled_sentences, labelled_texts
from eval.published.files import PublishedFile, find_files

Row = dict[str, Any]
_MAX_JSON_BYTES = 1 << 30
_MAX_CELL_CHARACTERS = 1 << 24
_LIST_KEYS = ("data", "rows", "examples", "sentences")
_FIELD = re.compile(r"\{([^}]+)\}")


def split_rows(rows: RowFile, split: str, source: Path, archives: Sequence[str]) -> tuple[list[Row], list[str]] | None:
    """Rows of one split and the names of the files that they come from; None where the source has no such file.

    Rows without an answer come without the field.

    Raises:
        ValueError: if a file cannot be read, or a row has not the columns that its set has.
    """
    if rows.shape == "lines_by_language":
        return _lines_by_language(rows, split, source, archives)
    files = find_files(source, rows.patterns[split], archives=archives)
    if not files:
        return None
    made = (_row(rows, split, place, raw) for file in files for place, raw in _published(rows, file))
    return list(_by_source(made) if rows.shape == "sources" else made), [file.name for file in files]


def _published(rows: RowFile, file: PublishedFile) -> Iterator[tuple[str, Row]]:
    """Published rows, each with its place."""
    if rows.shape == "squad":
        yield from _squad(file)
        return
    if rows.shape in ("words", "texts"):
        yield from _labelled(rows.shape, file)
        return
    for number, raw in published_rows(file):
        yield f"row {number} of {file.name}", {**raw, "line": number}


def _labelled(shape: str, file: PublishedFile) -> Iterator[tuple[str, Row]]:
    """Rows of a set that is by language; of one language several files may be of one split, so that the file tells its rows apart too."""
    has_columns = Path(file.name.removesuffix(".gz")).suffix in (".parquet", ".jsonl", ".json")
    found = labelled_texts(file) if shape == "texts" else labelled_sentences(file, published_rows(file) if has_columns else None)
    for place, raw in found:
        yield place, {**raw, "file": Path(file.name).name}


def published_rows(file: PublishedFile) -> Iterator[tuple[int, Row]]:
    """Rows of a file by its suffix, numbered from 1: JSON Lines, a JSON list, CSV, TSV, Parquet.

    Raises:
        ValueError: for another suffix, or if the file is not what its suffix says.
    """
    suffix = Path(file.name.removesuffix(".gz")).suffix
    if suffix == ".parquet":
        if file.content is not None:
            raise ValueError(f"{file.name} is Parquet in an archive; unpack the archive into the source folder")
        yield from read_parquet(file.path)
    elif suffix in (".jsonl", ".json"):
        yield from _json_rows(file)
    elif suffix in (".tsv", ".csv"):
        csv.field_size_limit(_MAX_CELL_CHARACTERS)
        try:
            yield from enumerate(csv.DictReader(_text(file), delimiter="\t" if suffix == ".tsv" else ","), start=1)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{file.name} is not {suffix[1:].upper()} in UTF-8: {error}; fetch it again") from error
    else:
        raise ValueError(f"{file.name} has the suffix {suffix or 'none'}; expected .jsonl, .json, .csv, .tsv or .parquet")


def _text(file: PublishedFile) -> io.TextIOWrapper:
    return io.TextIOWrapper(file.open(), encoding="utf-8-sig", newline="")


def _json_rows(file: PublishedFile) -> Iterator[tuple[int, Row]]:
    """JSON Lines, or one JSON list of objects, whatever the suffix says of the two."""
    with _text(file) as stream:
        first = stream.readline()
        try:
            opening = json.loads(first) if first.strip() else None
        except ValueError:
            opening = None
        if not isinstance(opening, dict) or any(isinstance(opening.get(key), list) for key in _LIST_KEYS):
            yield from enumerate(_listed(_whole_json(file), file), start=1)
            return
        for number, line in enumerate(chain([first], stream), start=1):
            if line.strip():
                yield number, read_line(line, number, file.name)


def _whole_json(file: PublishedFile) -> Any:
    with file.open() as stream:
        content = stream.read(_MAX_JSON_BYTES + 1)
    if len(content) > _MAX_JSON_BYTES:
        raise ValueError(f"{file.name} is one JSON value of more than {_MAX_JSON_BYTES >> 30} GiB; give it as JSON Lines")
    try:
        return json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file.name} is not valid JSON: {error}; fetch it again") from error


def _listed(content: Any, file: PublishedFile) -> list[Row]:
    if isinstance(content, dict):
        content = next((content[key] for key in _LIST_KEYS if isinstance(content.get(key), list)), content)
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise ValueError(f"{file.name} holds {type(content).__name__}; expected a list of objects with the columns of a row")
    return content


def _squad(file: PublishedFile) -> Iterator[tuple[str, Row]]:
    """Questions of SQuAD's nested JSON, with the numbers of their article and paragraph."""
    for article, paragraphs in enumerate(_inner(row, "paragraphs", file) for row in _listed(_whole_json(file), file)):
        for number, paragraph in enumerate(paragraphs):
            for question in _inner(paragraph, "qas", file):
                answers = [answer["text"] for answer in question.get("answers", ()) if answer.get("text")]
                flat = {"id": question.get("id"), "context": paragraph.get("context"), "question": question.get("question")}
                place = f"question {question.get('id')} of {file.name}"
                yield place, {**flat, "answers": list(dict.fromkeys(answers)), "article": article, "paragraph": number}


def _inner(value: Row, key: str, file: PublishedFile) -> list[Row]:
    if not isinstance(value.get(key), list):
        raise ValueError(f"{file.name} has no list {key!r} where SQuAD has one; expected data, paragraphs, qas and answers")
    return list(value[key])


def _lines_by_language(rows: RowFile, split: str, source: Path, archives: Sequence[str]) -> tuple[list[Row], list[str]] | None:
    """One file per language, of which equal lines say the same."""
    # Once for all languages: a tar file is read from its beginning each time.
    every = find_files(source, [pattern.replace("{language}", "*") for pattern in rows.patterns[split]], archives=archives)
    columns: dict[str, list[str]] = {}
    used: list[str] = []
    for ours, names in rows.columns.items():
        endings = [pattern.replace("{language}", names[0]).lstrip("*") for pattern in rows.patterns[split]]
        file = next((file for file in every if any(f"/{file.name}".endswith(f"/{ending}") for ending in endings)), None)
        if file is not None:
            with _text(file) as stream:
                columns[ours] = stream.read().removesuffix("\n").split("\n")
            used.append(file.name)
    if not columns:
        return None
    missing = [names[0] for ours, names in rows.columns.items() if ours not in columns]
    lengths = {ours: len(lines) for ours, lines in columns.items()}
    if missing or len(set(lengths.values())) > 1:
        wrong = f"no file of {', '.join(missing)}" if missing else f"files of different length: {lengths}"
        raise ValueError(f"{source} has {wrong} for {split}; expected one line per sentence in each of {len(rows.columns)} languages")
    about = _metadata(rows, source, archives, len(next(iter(columns.values()))))
    made = []
    for number, (sentences, extra) in enumerate(zip(zip(*columns.values()), about), start=1):
        raw = {**extra, "line": number, **dict(zip(columns, sentences))}
        identity = {"id": _fill(rows.identity, split, raw), "group": _fill(rows.group or rows.identity, split, raw)}
        made.append({**identity, "split": split, **dict(zip(columns, sentences))})
    return made, used


def _metadata(rows: RowFile, source: Path, archives: Sequence[str], count: int) -> list[Row]:
    files = find_files(source, [rows.metadata], archives=archives) if rows.metadata else []
    if not files:
        raise ValueError(f"{source} has no {str(rows.metadata).lstrip('*')}, which says what sentences are of one article; fetch it again")
    about = [row for _, row in published_rows(files[0])]
    if len(about) != count:
        raise ValueError(f"{files[0].name} has {len(about)} rows for {count} sentences; fetch both again")
    return about


def _row(rows: RowFile, split: str, place: str, raw: Row) -> Row:
    row: Row = {
        "id": _fill(rows.identity, split, raw, place),
        "group": _fill(rows.group or rows.identity, split, raw, place),
        "split": split,
    }
    for ours, theirs in rows.columns.items():
        value = _value(raw, theirs)
        if value is None or (ours == rows.answer and value in ("", [], -1, "-1", "-")):
            if ours == rows.answer:
                continue
            raise ValueError(f"{place} has no {' or '.join(theirs)}; it has {', '.join(sorted(map(str, raw))[:20])}: is it another set?")
        if ours == rows.answer and rows.labels is not None:
            value = _label(value, rows.labels, place)
        _put(row, ours, value)
    return row


def _value(raw: Row, names: Sequence[str]) -> Any:
    for name in names:
        value: Any = raw
        for key in name.removesuffix("?").split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return "" if any(name.endswith("?") for name in names) else None


def _put(row: Row, name: str, value: Any) -> None:
    *folders, last = name.split(".")
    for folder in folders:
        row = row.setdefault(folder, {})
    row[last] = value


def _label(value: Any, labels: Mapping[str, Any] | str, place: str) -> Any:
    if labels == "index":
        if not str(value).isdecimal():
            raise ValueError(f"{place} has the label {value!r}; expected the number of the right choice, from 0")
        return int(value)
    assert isinstance(labels, Mapping)
    if str(value) not in labels:
        raise ValueError(f"{place} has the label {value!r}; known are {', '.join(labels)}")
    return labels[str(value)]


def _fill(template: str, split: str, raw: Row, place: str = "") -> str:
    def named(match: re.Match[str]) -> str:
        value = split if match[1] == "split" else _value(raw, [*_SOURCE_NAMES.get(match[1], ()), match[1]])
        if value is None:
            raise ValueError(f"{place} has no {match[1]}, which identifies its rows; is it another set?")
        return str(value)

    return _FIELD.sub(named, template)


# A template names our field where the published name of it differs between forms of a set; sentences of one document hang together.
_SOURCE_NAMES = {"source": ("doc_id", "src_sent_sl", "complex", "kompleksni", "kompleksen", "original"), "pair_id": ("pair_id", "line")}


def _by_source(rows: Iterable[Row]) -> list[Row]:
    """One row per source text, with the references of all that share it."""
    found: dict[str, Row] = {}
    for row in rows:
        source = " ".join(row["source"]) if isinstance(row["source"], list) else row["source"]
        references = row.pop("references", [])
        kept = found.setdefault(source, {**row, "source": source})
        for reference in references if isinstance(references, list) else [references]:
            if reference not in kept.setdefault("references", []):
                kept["references"].append(reference)
    return [row if row.get("references") else {key: value for key, value in row.items() if key != "references"} for row in found.values()]


def _questions(rows: Sequence[Row]) -> int:
    from eval.protocols.slovene import PROTOCOLS, unlabelled_questions

    labelled = all(has_answer(row, "passage") for row in rows)
    return len(PROTOCOLS["multirc"].prepare(rows) if labelled else unlabelled_questions(rows))


COUNTED: dict[str, Callable[[Sequence[Row]], int]] = {"rows": len, "questions": _questions}


def has_answer(row: Row, field: str) -> bool:
    """Whether a row can be scored."""
    value = row.get(field)
    if field == "passage" and isinstance(value, Mapping):  # MultiRC keeps its labels in the passage
        from eval.protocols.slovene import numbered

        answers = [answer for _, question in numbered(value.get("questions", ())) for _, answer in numbered(question.get("answers", ()))]
        return bool(answers) and any(answer.get("label") not in (None, "") for answer in answers)
    return value is not None
