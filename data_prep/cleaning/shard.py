"""One shard cleaned: its text, what was removed, and counts that say it is complete."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from data_prep.cleaning.language_filter import TOGETHER, LanguageFilter
from data_prep.cleaning.problem_runs import ProblemRuns
from data_prep.cleaning.text_hygiene import AFTER, AFTER_WITH_LAYOUT, BEFORE, FLATTEN, KEEP, Step
from data_prep.reading.document_ids import id_hash, save_ids
from data_prep.reading.documents import BadInput, text_key_of
from data_prep.reading.scanning import Reading
from data_prep.reading.shards import JsonLinesWriter, file_state, finish_shard, finished_shard
from data_prep.tables import markdown_table

PROBLEM_RUNS = "problem runs"
_MAX_SAMPLES = 5
_CONTEXT = 30


@dataclass(frozen=True)
class Lengths:
    """Which documents are long enough and not too long, after cleaning; words are what stands between white space."""

    min_characters: int = 1
    max_characters: int | None = None
    min_words: int = 0

    def __post_init__(self) -> None:
        for option, value in (
            ("min-characters", self.min_characters),
            ("max-characters", self.max_characters),
            ("min-words", self.min_words),
        ):
            if value is not None and value < 0:
                raise ValueError(f"--{option} is {value}; expected a number from 0")
        if self.max_characters is not None and self.max_characters < self.min_characters:
            raise ValueError(
                f"--max-characters is {self.max_characters}, less than --min-characters {self.min_characters}: no document would pass"
            )

    def refuse(self, text: str) -> tuple[str, str] | None:
        """Reason and detail why a text does not pass; None where it does."""
        if len(text) < self.min_characters:
            return "too short" if text else "empty", f"{len(text)} characters"
        if self.max_characters is not None and len(text) > self.max_characters:
            return "too long", f"{len(text)} characters"
        if self.min_words and (words := len(text.split())) < self.min_words:
            return "too short" if text else "empty", f"{words} words"
        return None


@dataclass(frozen=True)
class CleanRules:
    """What is cleaned and what passes.

    Attributes:
        close_languages: as `LanguageFilter`.
        layout: `flatten`: one space between words, no indentation; `keep`: lines begin and are spaced as they were.
    """

    problem_runs: ProblemRuns | None = None
    lengths: Lengths = Lengths()
    languages: tuple[str, ...] = ()
    min_language_score: float = 0.5
    close_languages: str = TOGETHER
    layout: str = FLATTEN

    def steps(self) -> dict[str, Step]:
        """Names and functions of the repairs, in order."""
        runs = {PROBLEM_RUNS: self.problem_runs.remover()} if self.problem_runs else {}
        return {**BEFORE, **runs, **(AFTER_WITH_LAYOUT if self.layout == KEEP else AFTER)}

    def language_filter(self) -> LanguageFilter | None:
        """What finds the language of a document; None where that does not matter."""
        if not self.languages:
            return None
        return LanguageFilter(self.languages, self.min_language_score, close_languages=self.close_languages)


@dataclass
class Change:
    """What one reason did: documents that it changed or removed, the characters that they lost, the first cases."""

    documents: int = 0
    characters: int = 0
    samples: list[dict[str, str]] = field(default_factory=list)

    def add(self, other: Change) -> None:
        """Add what another shard has."""
        self.documents += other.documents
        self.characters += other.characters
        self.samples = (self.samples + other.samples)[:_MAX_SAMPLES]


@dataclass
class CleanCounts:
    """What went in and what became of it, of a shard or a corpus.

    `num_read` = `num_kept` + the documents of `removed`.  `characters_read` = `characters_kept` + the characters of `removed`
    (as they were read) + `characters_lost` of kept documents.
    """

    num_read: int = 0
    num_kept: int = 0
    num_changed: int = 0
    characters_read: int = 0
    characters_kept: int = 0
    characters_lost: int = 0
    changed: dict[str, Change] = field(default_factory=dict)
    removed: dict[str, Change] = field(default_factory=dict)
    bad_input: dict[str, Change] = field(default_factory=dict)

    def add(self, other: CleanCounts) -> None:
        """Add what another shard has."""
        for name in ("num_read", "num_kept", "num_changed", "characters_read", "characters_kept", "characters_lost"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("changed", "removed", "bad_input"):
            for reason, change in getattr(other, name).items():
                getattr(self, name).setdefault(reason, Change()).add(change)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> CleanCounts:
        """What `asdict` gave."""
        changes = ("changed", "removed", "bad_input")
        return cls(**{**record, **{name: {reason: Change(**change) for reason, change in record[name].items()} for name in changes}})


def clean_shard(path: Path, name: str, directory: Path, scratch: Path, rules: CleanRules, reading: Reading) -> CleanCounts:
    """Clean a file into `text/` and `removed/`, its ids into `scratch`; its counts are written last, and a shard that has them is not done again.

    Raises:
        ValueError: if the file cannot be read.
    """
    done = directory / "counts" / f"{name}.json"
    state = file_state(path)
    ids_path = scratch / f"{name}.npy"
    if record := finished_shard(done, state, directory / "text" / name, directory / "removed" / name, ids_path):
        return CleanCounts.from_json(record["counts"])
    counts, ids = _clean_documents(path, name, directory, rules, reading)
    save_ids(ids_path, ids)
    finish_shard(done, state, {"counts": asdict(counts)}, indent=1)
    return counts


def _clean_documents(
    path: Path, name: str, directory: Path, rules: CleanRules, reading: Reading
) -> tuple[CleanCounts, list[tuple[int, int]]]:
    steps = rules.steps()
    languages = rules.language_filter()
    key = text_key_of(path, reading.text_key)
    counts = CleanCounts()
    ids: list[tuple[int, int]] = []
    bad: list[BadInput] = []
    with JsonLinesWriter(directory / "text" / name) as kept_file, JsonLinesWriter(directory / "removed" / name) as removed_file:
        for document in reading.documents(path, bad):
            place = f"{path.name}:{document.line}"
            identity = document.fields.get("id", place)
            if "id" in document.fields:
                ids.append((id_hash(json.dumps(identity)), document.line))
            text = _repair(document.text, steps, place, counts)
            counts.num_read += 1
            counts.characters_read += len(document.text)
            refused = rules.lengths.refuse(text)
            if refused is None and languages is not None and (found := languages.refuses(text)) is not None:
                refused = "language", found
            if refused is not None:
                reason, detail = refused
                _count(
                    counts.removed.setdefault(reason, Change()),
                    len(document.text),
                    {"place": place, "detail": detail, "before": document.text[: 2 * _CONTEXT]},
                )
                removed_file.write({"id": identity, "file": path.name, "line": document.line, "reason": reason, "detail": detail})
                continue
            counts.num_kept += 1
            counts.num_changed += text != document.text
            counts.characters_kept += len(text)
            counts.characters_lost += len(document.text) - len(text)
            kept_file.write({"id": identity, **document.fields, key: text})
    for item in bad:
        _count(counts.bad_input.setdefault(item.reason, Change()), 0, {"place": f"{path.name}:{item.line}", "detail": item.message})
    return counts, ids


def _repair(text: str, steps: Mapping[str, Step], place: str, counts: CleanCounts) -> str:
    for reason, step in steps.items():
        repaired = step(text)
        if repaired != text:
            change = counts.changed.setdefault(reason, Change())
            sample = {"place": place, **_difference(text, repaired)} if len(change.samples) < _MAX_SAMPLES else {}
            _count(change, len(text) - len(repaired), sample)
            text = repaired
    return text


def _count(change: Change, characters: int, sample: dict[str, str]) -> None:
    change.documents += 1
    change.characters += characters
    if len(change.samples) < _MAX_SAMPLES:
        change.samples.append(sample)


def _difference(before: str, after: str) -> dict[str, str]:
    """Where two texts first differ, with a little around it."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after)))
    window = slice(max(0, same - _CONTEXT), same + _CONTEXT)
    return {"before": before[window], "after": after[window]}


def report(counts: Mapping[str, CleanCounts], twice: Sequence[str]) -> str:
    """The tables and samples in Markdown."""
    total = CleanCounts()
    for count in counts.values():
        total.add(count)
    rows = [
        [name, f"{c.num_read:,}", f"{c.num_kept:,}", f"{c.num_changed:,}", f"{c.num_read - c.num_kept:,}", f"{c.characters_read:,}", f"{c.characters_kept:,}"]
        for name, c in [*counts.items(), ("all", total)]
    ]  # fmt: skip
    header = ("corpus", "documents", "kept", "of these changed", "removed", "characters", "kept")
    text = "# Cleaning\n\n" + markdown_table(header, rows) + "\n"
    reasons = [
        [name, what, reason, f"{change.documents:,}", f"{change.characters:,}"]
        for name, count in counts.items()
        for what, changes in (("changed", count.changed), ("removed", count.removed), ("passed over", count.bad_input))
        for reason, change in sorted(changes.items())
    ]
    if reasons:
        text += "\n" + markdown_table(("corpus", "documents", "reason", "number", "characters less"), reasons, text_columns=3) + "\n"
    for reason, change in (*sorted(total.changed.items()), *sorted(total.removed.items()), *sorted(total.bad_input.items())):
        text += f"\n{reason}:\n\n" + "".join(f"- {_sample(sample)}\n" for sample in change.samples)
    if twice:
        text += f"\nIds used twice: {len(twice):,}, the first: {twice[0]}\n"
    return text


def _sample(sample: Mapping[str, str]) -> str:
    shown: Iterable[str] = (
        repr(value) if key in ("before", "after") else value for key, value in sample.items() if key in ("detail", "before", "after")
    )
    return f"{sample['place']}: " + (" -> " if "after" in sample else "; ").join(shown)
