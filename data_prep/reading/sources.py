"""Sources of corpora: a YAML table of files or Hugging Face datasets, with language, licence and domain; and the table of the papers' corpora."""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.plain_files import read_yaml
from data_prep.reading.corpora import Corpus, corpus_from_row, files_of_patterns
from data_prep.reading.documents import BadInput, Document, require_text_files
from data_prep.reading.languages import is_language
from data_prep.sharing.scanning import Reading

if TYPE_CHECKING:
    from datasets import IterableDataset

KNOWN_TABLE = Path(__file__).with_name("known_corpora.yaml")
_HOW_KEYS = (
    "files",
    "huggingface",
    "local",
    "text_key",
    "separator",
    "max_documents",
    "sample_documents",
    "size",
    "columns",
    "how",
    "languages",
    "example",
    "codes",
)
_OF_LANGUAGE = "{language}"
_CHOICE = re.compile(r"([^:=]+)(?::([^=]+))?(?:=(.+))?", re.DOTALL)
_WITH_SCRIPT = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")
_SAVED = ("dataset_dict.json", "state.json")  # of datasets' save_to_disk, of several splits or one

_LIMITS = ("max_documents", "sample_documents")


@dataclass(frozen=True)
class HuggingFace:
    """A dataset of the Hugging Face hub, or a local folder of one, that is streamed.

    Attributes:
        path: name or folder, also one of `save_to_disk`; `config`, `split`, `revision` and `data_files` as `datasets.load_dataset` takes them.
    """

    path: str
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    data_files: str | None = None

    def open(self) -> IterableDataset:
        """The dataset, streamed: nothing but its file list is read yet.

        Raises:
            ValueError: if `datasets` is not installed or the dataset cannot be opened.
        """
        try:
            from datasets import load_dataset
        except ImportError as error:
            raise ValueError(f"the dataset {self.path} needs the package datasets; pip install datasets") from error
        try:
            if any((Path(self.path) / name).is_file() for name in _SAVED):
                return self._saved()
            return load_dataset(
                self.path, self.config, split=self.split, revision=self.revision, data_files=self.data_files, streaming=True
            )
        except Exception as error:  # the library raises anything from ConnectionError to KeyError
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(
                f"the dataset {self.path} cannot be opened: {reason}; check its name, the network, and whether its terms must be accepted"
            ) from error

    def _saved(self) -> IterableDataset:
        """The dataset of a folder that `save_to_disk` wrote, a shard for each of its files."""
        from datasets import DatasetDict, load_from_disk

        found = load_from_disk(self.path)
        dataset = found[self.split] if isinstance(found, DatasetDict) else found
        return dataset.to_iterable_dataset(num_shards=max(len(dataset.cache_files), 1))


@dataclass(frozen=True)
class Source:
    """A corpus and how to read it.

    Attributes:
        corpus: its name, files (none for a dataset) and facts.
        huggingface: the dataset; None for files.
        text_key, separator: how its files are read, where it matters.
        max_documents: no more than so many, the first; None for all.
        sample_documents: no more than so many, drawn at random from the whole source; None for all.
    """

    corpus: Corpus
    huggingface: HuggingFace | None = None
    text_key: str = "text"
    separator: str | None = None
    max_documents: int | None = None
    sample_documents: int | None = None

    def reading(self, common: Reading) -> Reading:
        """How its files are read.

        Args:
            common: what holds for all sources.
        """
        return Reading(self.text_key, self.separator, common.max_document_bytes, common.skip_bad)


def stream(dataset: HuggingFace, reading: Reading, *, num_shards: int, index: int, bad: list[BadInput]) -> Iterator[Document]:
    """The documents of one shard of a dataset; rows that have no text are bad input.

    Args:
        num_shards, index: which part of the dataset's own files.
        bad: receives what was skipped.

    Raises:
        ValueError: if the dataset cannot be read, or a row has no text and `reading` does not skip it.
    """
    from data_prep.reading.documents import record_documents
    from data_prep.reading.parquet import plain_value

    name = f"{dataset.path}{f'/{dataset.config}' if dataset.config else ''}[{index}]"
    rows = dataset.open().shard(num_shards=num_shards, index=index)
    yield from record_documents(
        Path(name),
        ((number, plain_value(row)) for number, row in enumerate(rows, start=1)),
        reading.text_key,
        reading.max_document_bytes,
        bad.append if reading.skip_bad else None,
    )


def read_sources(table: Path, *, only: Sequence[str] = (), folder: Path | None = None) -> list[Source]:
    """Sources of a table.

    Args:
        only: names to take, in this order, of a corpus or of a row with `languages`; NAME:CODE of a row with {language} and no table of them
            (fineweb2:slv_Latn), and either with =FOLDER for a copy in the published form; all where none is given.
        folder: where the files are, in a folder by the name of each corpus and in one of the forms of `files`; None for patterns relative to
            the table, all of which have files.

    Raises:
        ValueError: if the table cannot be read, a name is unknown, or a file is missing.
    """
    rows = table_rows(table)
    members = {name: _members(table, row) for name, row in rows.items()}
    each = {name: row for group in members.values() for name, row in group.items()}
    asked = [_choice(given) for given in only]
    if unknown := [name for name, _, _ in asked if name not in rows and name not in each]:
        raise ValueError(_unknown(table, unknown, list(dict.fromkeys((*rows, *each)))))
    sources = []
    for name, code, copy in asked or [(name, "", "") for name in rows]:
        if code or (name in rows and is_template(rows[name])):
            sources.append(_source(table, _of_language(table, rows, name, code), folder and folder / name, copy))
            continue
        for member in members.get(name, [name]):
            sources.append(_source(table, each[member], folder and folder / member, copy))
    return sources


def _choice(given: str) -> tuple[str, str, str]:
    """Name, code and folder of NAME[:CODE][=FOLDER]."""
    found = _CHOICE.fullmatch(given)
    if found is None:
        raise ValueError(f"the corpus {given!r} is not of the form NAME[:CODE][=FOLDER], such as fineweb2:slv_Latn or cc100_sl=downloads/")
    return found[1], found[2] or "", found[3] or ""


def _unknown(table: Path, names: Sequence[str], known: Sequence[str]) -> str:
    """The sentence about names that a table does not have, with those nearest to them; of the papers' table, which has hundreds, no others."""
    plain = {name.lower().replace("-", "_"): name for name in known}
    near = [difflib.get_close_matches(name.lower().replace("-", "_"), list(plain), n=5) for name in names]
    nearest = ", ".join(dict.fromkeys(plain[found] for group in near for found in group))
    others = "python -m data_prep.collect --list shows all" if table == KNOWN_TABLE else f"it has {', '.join(known)}"
    return f"{table} has no corpus {', '.join(names)}; {f'the nearest are {nearest}; ' if nearest else ''}{others}"


def is_template(row: Mapping[str, Any]) -> bool:
    """Whether a row stands for a corpus of each language, without a table of them."""
    return "languages" not in row and _filled(dict(row), "") != row


def _of_language(table: Path, rows: Mapping[str, dict[str, Any]], name: str, code: str) -> dict[str, Any]:
    row = rows.get(name)
    if row is None or not is_template(row):
        raise ValueError(f"{table}: {name}:{code} asks for a language of {name}, which is one corpus; leave out :{code}")
    codes: Mapping[str, str] | None = row.get("codes")
    if codes is not None and code not in codes:
        raise ValueError(
            f"{table}: {name} is there for {', '.join(codes)}; name one of them, such as {name}:{next(iter(codes))}, not {code!r}"
        )
    example = str(row.get("example", "slv_Latn"))
    if codes is None and not (is_language(code) and ("example" not in row or _has_script(code) == _has_script(example))):
        raise ValueError(
            f"{table}: {name} is a corpus of each language; name one as its publisher does, such as {name}:{example}, not {code!r}"
        )
    filled: dict[str, Any] = _filled(row, code)
    return {**filled, "name": f"{name}_{code}", "language": codes[code] if codes else code}


def _has_script(code: str) -> bool:
    """Whether a code is of a language and a script (slv_Latn), as some publishers name their corpora."""
    return _WITH_SCRIPT.fullmatch(code) is not None


def _members(table: Path, row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The corpora that a row stands for: itself, or one for each language of the table that it names."""
    if "languages" not in row:
        return {str(row["name"]): row}
    path = table.parent / str(row["languages"])
    if not path.is_file():
        raise ValueError(f"{table}: languages of {row['name']} are {row['languages']!r}, which does not exist beside it; expected a table")
    with open(path, encoding="utf-8", newline="") as stream:
        languages = [line["language"] for line in csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)]
    return {f"{row['name']}_{code}": {**_filled(row, code), "name": f"{row['name']}_{code}", "language": code} for code in languages}


def _filled(value: Any, language: str) -> Any:
    """The value with a language's code in the place of {language}, in all that it holds."""
    if isinstance(value, dict):
        return {key: _filled(inner, language) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, language) for inner in value]
    return value.replace(_OF_LANGUAGE, language) if isinstance(value, str) else value


def table_rows(table: Path) -> dict[str, dict[str, Any]]:
    """Name -> row of a table.

    Raises:
        ValueError: if the file is missing, no YAML, or no list of corpora with names of their own.
    """
    if not table.is_file():
        raise ValueError(f"the corpus table {table} does not exist")
    rows = read_yaml(table)
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) and "name" in row for row in rows):
        raise ValueError(
            f"{table} holds no list of corpora; expected '- {{name: NAME, files: [FILE, ...]}}' or '- {{name: NAME, huggingface: ...}}'"
        )
    by_name = {str(row["name"]): row for row in rows}
    if len(by_name) < len(rows):
        raise ValueError(f"{table} uses a name twice; give each corpus its own")
    return by_name


def _copied(table: Path, row: Mapping[str, Any], copy: str) -> dict[str, Any]:
    """The row of a copy in a folder, by the first pattern of the published form that has files there."""
    patterns = row.get("local", row.get("files"))
    if patterns is None:
        raise ValueError(f"{table}: the form of copies of {row['name']} is not known; give its files with --input")
    found = _first_form(Path(copy).absolute(), patterns)
    if not found:
        raise ValueError(f"{copy} has no files of {row['name']}; expected {' or '.join(patterns)}")
    return {**{key: value for key, value in row.items() if key != "huggingface"}, "files": list(map(str, found))}


def _first_form(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """The files of the first pattern that has any: a corpus is published in several forms, of which one is at hand."""
    return next((files for pattern in patterns if (files := sorted(folder.glob(pattern)))), [])


def _downloaded(folder: Path, row: Mapping[str, Any]) -> list[Path]:
    """The files of a row in its folder."""
    found = _first_form(folder, row["files"])
    if not found:
        hint = f"; get it: {row['how']}" if "how" in row else ""
        raise ValueError(f"{folder}: no file is called {' or '.join(row['files'])}{hint}")
    return found


def _source(table: Path, row: Mapping[str, Any], folder: Path | None, copy: str = "") -> Source:
    name = str(row["name"])
    if copy:
        row = _copied(table, row, copy)
    if ("files" in row) == ("huggingface" in row):
        raise ValueError(f"{table}: {name} needs either files or huggingface")
    if "files" in row and not isinstance(row["files"], list):
        raise ValueError(f"{table}: files of {name} are {row['files']!r}; expected a list, such as [FILE, ...]")
    if not isinstance(row.get("text_key") or "", str):
        raise ValueError(f"{table}: text_key of {name} is {row['text_key']!r}; expected a name")
    dataset = _huggingface(table, name, row["huggingface"]) if "huggingface" in row else None
    corpus = corpus_from_row(table, {key: value for key, value in row.items() if key not in _HOW_KEYS})
    options = {key: row[key] for key in ("text_key", "separator", *_LIMITS) if row.get(key) is not None}
    limits = {key: options[key] for key in _LIMITS if key in options}
    for key, limit in limits.items():
        if type(limit) is not int or limit < 1:
            raise ValueError(f"{table}: {key} of {name} is {limit!r}; expected a number from 1")
    if len(limits) > 1:
        raise ValueError(f"{table}: {name} has both {' and '.join(limits)}; leave one of them out")
    if dataset is None:
        paths = files_of_patterns(table, row["files"]) if folder is None or copy else _downloaded(folder, row)
        require_text_files(paths, options.get("separator"))
        corpus = replace(corpus, paths=tuple(paths))
    return Source(corpus, dataset, **options)


def _huggingface(table: Path, name: str, row: Any) -> HuggingFace:
    row = {"path": row} if isinstance(row, str) else row
    known = [entry.name for entry in fields(HuggingFace)]
    if not isinstance(row, dict) or not isinstance(row.get("path"), str) or set(row) - set(known):
        raise ValueError(f"{table}: huggingface of {name} is {row!r}; expected the name of a dataset or a table of {', '.join(known)}")
    return HuggingFace(**row)
