"""Cleaning of one shard: its text, what was removed, and counts that prove it complete."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from common.options import option, require_values
from common.tables import markdown_table
from data_prep.cleaning.document_filter import PERSONAL, DocumentFilter
from data_prep.cleaning.filter_settings import BUILT_IN, NONE, close_groups, read_filters
from data_prep.cleaning.language_filter import CLOSE_LANGUAGES, DOCUMENT, LANGUAGE_UNITS, PARAGRAPH, TOGETHER, LanguageFilter
from data_prep.cleaning.problem_runs import ProblemRuns
from data_prep.cleaning.samples import Samples, shown
from data_prep.cleaning.scores import Scores
from data_prep.cleaning.text_hygiene import AFTER, AFTER_WITH_LAYOUT, BEFORE, FLATTEN, KEEP, LAYOUTS, Step
from data_prep.reading.blocks import Block
from data_prep.reading.document_ids import DocumentIds
from data_prep.reading.documents import BadInput
from data_prep.sharing.scanning import Reading
from data_prep.sharing.shards import JsonLinesWriter, file_state, finish_shard, finished_shard

PROBLEM_RUNS = "problem runs"
OTHER_PARAGRAPHS = "paragraphs in other languages"
NO_PARAGRAPH = "no paragraph"  # is left of a text in others
WHAT_WAS_DONE = {"changed": "changed", "removed": "removed", "bad_input": "skipped", "not_judged": "not judged"}
_MAX_SAMPLES = 5
_CONTEXT = 30
_STRETCH = 1024


@dataclass(frozen=True)
class Lengths:
    """Which documents are long enough and not too long, after cleaning; words are what stands between white space."""

    min_characters: int = option("--min-characters N", "minimum length of a document in characters", 1, least=0)
    max_characters: int | None = option("--max-characters N", "maximum length of a document in characters (default: no limit)", least=0)
    min_words: int = option("--min-words N", "minimum length of a document in words", 0, least=0)

    def __post_init__(self) -> None:
        require_values(self)
        if self.max_characters is not None and self.max_characters < self.min_characters:
            raise ValueError(
                f"--max-characters is {self.max_characters}, less than --min-characters {self.min_characters}: no document would pass"
            )

    def refuse_length(self, characters: int) -> tuple[str, str] | None:
        """The same for so many characters, whatever the words."""
        if characters < self.min_characters:
            return "too short" if characters else "empty", f"{characters} characters"
        if self.max_characters is not None and characters > self.max_characters:
            return "too long", f"{characters} characters"
        return None

    def refuse(self, text: str) -> tuple[str, str] | None:
        """Reason and detail why a text does not pass; None where it does."""
        if (refused := self.refuse_length(len(text))) is not None:
            return refused
        if self.min_words and (words := len(text.split())) < self.min_words:
            return "too short" if text else "empty", f"{words} words"
        return None


@dataclass(frozen=True)
class CleanRules:
    """What is cleaned and what passes.

    Attributes:
        close_languages: as `LanguageFilter`.
        language_model: file of a fastText model that identifies languages; None for py3langid.
        language_unit: what is removed for its language: a document, or its paragraphs in others too.
        layout: `flatten`: one space between words, no indentation; `keep`: lines begin and are spaced as they were.
        filters: the whole settings, as `read_filters` gives them.
        num_samples: number of samples to keep for each reason.
    """

    problem_runs: ProblemRuns | None = None
    lengths: Lengths = Lengths()
    languages: tuple[str, ...] = option(
        "--language LANG",
        "keep only documents in these languages (ISO 639-1 or 639-3), in any script of the language or in the given one (sr-Latn, srp_Latn)",
        (),
        nargs="+",
    )
    language_model: str | None = option(
        "--language-model FILE",
        "fastText language identification model (.bin or .ftz), such as GlotLID or lid.176 (default: py3langid, 97 languages)",
    )
    language_unit: str = option(
        "--language-unit",
        "paragraph: first remove paragraphs in other languages, then decide on the document",
        DOCUMENT,
        choices=LANGUAGE_UNITS,
    )
    close_languages: str = option(
        "--close-languages",
        "together: accept any language of a group of close languages, as listed in close_languages of the filters: bs, cnr, hr, sr",
        TOGETHER,
        choices=CLOSE_LANGUAGES,
    )
    min_language_score: float | None = option(
        "--min-language-score P", "minimum probability of the language (default: 0.5; with a fastText model 0.2)"
    )
    layout: str = option(
        "--layout",
        "flatten: one space between words, no indentation, at most one empty line in a row; keep: indentation, columns and empty lines, for"
        " code, tables and verse",
        FLATTEN,
        choices=LAYOUTS,
    )
    filters: Mapping[str, Any] = option(
        "--filters NAME|YAML",
        f"filters to apply: {', '.join(BUILT_IN)}, or a YAML file based on one of them",
        factory=lambda: read_filters(NONE),
        of_command="standard",
    )
    num_samples: int = option("--samples N", "number of samples to keep for each corpus and reason", 20, least=0)

    def __post_init__(self) -> None:
        require_values(self)

    def steps(self) -> dict[str, Step]:
        """Names and functions of the repairs, in order."""
        runs = {PROBLEM_RUNS: self.problem_runs.remover()} if self.problem_runs else {}
        return {**BEFORE, **runs, **(AFTER_WITH_LAYOUT if self.layout == KEEP else AFTER)}

    def language_filter(self) -> LanguageFilter | None:
        """What finds the language of a document; None where that does not matter."""
        if not self.languages:
            if self.language_model is not None or self.language_unit != DOCUMENT:
                raise ValueError("--language-model and --language-unit need --language; name the languages that may stay")
            return None
        return LanguageFilter(
            self.languages,
            self.min_language_score,
            model=Path(self.language_model) if self.language_model is not None else None,
            close_languages=self.close_languages,
            groups=close_groups(self.filters),
        )


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

    Attributes:
        not_judged: documents without the number that a score asks for, which were kept for all of that score.
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
    not_judged: dict[str, Change] = field(default_factory=dict)

    def add(self, other: CleanCounts) -> None:
        """Add what another shard has."""
        for name in ("num_read", "num_kept", "num_changed", "characters_read", "characters_kept", "characters_lost"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in WHAT_WAS_DONE:
            for reason, change in getattr(other, name).items():
                getattr(self, name).setdefault(reason, Change()).add(change)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> CleanCounts:
        """What `asdict` gave."""
        return cls(**{**record, **{name: {reason: Change(**change) for reason, change in record[name].items()} for name in WHAT_WAS_DONE}})


@dataclass(frozen=True)
class Shard:
    """One input file and where its results go.

    Attributes:
        name: of its shard below `directory/text` and of its ids and samples below `scratch`.
        language: of its corpus, "" where it is not known.
        repeated: hashes of the lines that its corpus repeats, if they are looked for.
    """

    path: Path
    corpus: str
    name: str
    directory: Path
    scratch: Path
    language: str = ""
    repeated: Path | None = None

    @property
    def ids_path(self) -> Path:
        """Where the ids are kept while the corpora are cleaned."""
        return self.scratch / f"{self.name}.npy"

    @property
    def samples_path(self) -> Path:
        """Where the samples of this shard are."""
        return self.scratch / f"{self.name}.samples.jsonl"


def clean_shard(shard: Shard, rules: CleanRules, reading: Reading) -> CleanCounts:
    """Clean a file into `text/` and `removed/`; its counts are written last, and a shard that has them is not done again.

    Raises:
        ValueError: if the file cannot be read.
    """
    directory, name = shard.directory, shard.name
    done = directory / "counts" / f"{name}.json"
    state = file_state(shard.path)
    if record := finished_shard(done, state, directory / "text" / name, directory / "removed" / name, shard.ids_path, shard.samples_path):
        return CleanCounts.from_json(record["counts"])
    cleaner = _Cleaner(shard, rules)
    with JsonLinesWriter(directory / "text" / name) as kept_file, JsonLinesWriter(directory / "removed" / name) as removed_file:
        bad: list[BadInput] = []
        for block in reading.blocks(shard.path, bad):
            cleaner.take(block, kept_file, removed_file)
    cleaner.skip(bad)
    cleaner.samples.write(shard.samples_path)
    cleaner.ids.save(shard.ids_path)
    finish_shard(done, state, {"counts": asdict(cleaner.counts)}, indent=1)
    return cleaner.counts


@dataclass
class _Document:
    """A document on its way: its text, reason and detail why it goes, the language whose rules it is asked, and scores to be written."""

    text: str
    refused: tuple[str, str] | None
    language: str | None = None
    changed: bool = False
    written: dict[str, float] = field(default_factory=dict)


class _Cleaner:
    """Cleans the documents of one shard, one after the other."""

    def __init__(self, shard: Shard, rules: CleanRules) -> None:
        self._rules = rules
        self._file_name, self._language = shard.path.name, shard.language
        self._steps = rules.steps()
        self._filter = DocumentFilter(rules.filters, frozenset(np.load(shard.repeated).tolist()) if shard.repeated else frozenset())
        self._languages = rules.language_filter()
        self._scores = Scores(self._filter.settings.scores)
        self._asks_for_fields = self._filter.settings.blocked_urls is not None or self._scores.ask_for_fields
        self.counts = CleanCounts()
        self.ids = DocumentIds()
        self.samples = Samples(rules.num_samples)
        self._place = ""

    def take(self, block: Block, kept_file: JsonLinesWriter, removed_file: JsonLinesWriter) -> None:
        """Clean some documents and write them, or why they went."""
        self._note_ids(block)
        noise = self._filter.noise(block.text, block.offsets)
        documents = [self._repaired(block, number, data.decode(), bits) for number, (data, bits) in enumerate(zip(block.texts(), noise))]
        asked = [document for document in documents if document.refused is None]
        refusals = self._filter.refusals([document.text for document in asked], [document.language for document in asked])
        for document, refused in zip(asked, refusals):
            document.refused = refused
            if refused is None:
                document.written, document.refused = self._scores.of_text(document.text)
        for number, (document, characters) in enumerate(zip(documents, block.characters.tolist())):
            self._write(block, number, document, characters, kept_file, removed_file)

    def _write(
        self, block: Block, number: int, document: _Document, characters: int, kept_file: JsonLinesWriter, removed_file: JsonLinesWriter
    ) -> None:
        """Count a document and write it; characters: that it had."""
        counts = self.counts
        counts.num_read += 1
        counts.characters_read += characters
        if document.refused is not None:
            self._place = f"{self._file_name}:{block.lines[number]}"
            self._remove(block, number, document.text, characters, document.refused, removed_file)
            return
        counts.num_kept += 1
        counts.num_changed += document.changed
        counts.characters_kept += len(document.text)
        counts.characters_lost += characters - len(document.text)
        text = document.text.encode() if document.changed or document.written else None
        kept_file.write_lines(block.json_line(number, text, self._file_name, document.written))

    def _note_ids(self, block: Block) -> None:
        for line, identity in zip(block.lines.tolist(), block.ids_json()):
            if identity:
                # As json.dumps has it, which is what it is but for what is not ASCII.
                plain = identity.isascii() and b"\x7f" not in identity
                self.ids.add(identity.decode() if plain else json.dumps(json.loads(identity)), line)

    def _remove(
        self, block: Block, number: int, text: str, characters: int, refused: tuple[str, str], removed_file: JsonLinesWriter
    ) -> None:
        """Write why a document went; characters: that it had."""
        reason, detail = refused
        change = self.counts.removed.setdefault(reason, Change())
        before = self._filter.to_show(text)[: 2 * _CONTEXT] if len(change.samples) < _MAX_SAMPLES else ""
        _count(change, characters, {"place": self._place, "detail": detail, "before": before})
        # Of which nothing is left is shown as it came.
        self.samples.add(
            reason,
            self._place,
            lambda: {"what": "document", "detail": detail, "text": shown(self._filter.to_show(text or block.data(number).decode()))},
        )
        identity, line = block.identity(number, self._file_name), int(block.lines[number])
        removed_file.write({"id": identity, "file": self._file_name, "line": line, "reason": reason, "detail": detail})

    def skip(self, bad: Iterable[BadInput]) -> None:
        """Count what could not be read."""
        for item in bad:
            sample = {"place": f"{self._file_name}:{item.line}", "detail": item.message}
            _count(self.counts.bad_input.setdefault(item.reason, Change()), 0, sample)

    def _repaired(self, block: Block, number: int, before: str, noise: int) -> _Document:
        """A document as it is to be asked the rules, or is refused already."""
        self._place = f"{self._file_name}:{block.lines[number]}"
        if self._asks_for_fields:
            fields = block.fields(number)
            if (site := self._filter.blocks(fields)) is not None:
                return _Document(before, ("blocked address", site))
            if (refused := self._scores.refuses_fields(fields, self._not_judged)) is not None:
                return _Document(before, refused)
        text, reason = self._filter.repair(before, noise, self._steps, self._changed, self._taken)
        found = _Document(text, (reason, "") if reason is not None else self._rules.lengths.refuse(text), self._language or None)
        if found.refused is None and self._languages is not None:
            self._ask_for_language(found, self._languages)
        found.changed = found.text != before
        return found

    def _ask_for_language(self, document: _Document, languages: LanguageFilter) -> None:
        if self._rules.language_unit == PARAGRAPH:
            whole, (document.text, others) = document.text, languages.cut(document.text)
            if others:
                self._changed(OTHER_PARAGRAPHS, whole, document.text)
                self._taken(OTHER_PARAGRAPHS, others)
                if (refused := self._rules.lengths.refuse(document.text)) is not None:
                    document.refused = refused if document.text else ("language", NO_PARAGRAPH)
                    return
        document.language, found = languages.judge(document.text)
        document.refused = ("language", found) if found is not None else None

    def _not_judged(self, reason: str, detail: str) -> None:
        _count(self.counts.not_judged.setdefault(reason, Change()), 0, {"place": self._place, "detail": detail})

    def _changed(self, reason: str, before: str, after: str) -> None:
        change = self.counts.changed.setdefault(reason, Change())
        wanted = len(change.samples) < _MAX_SAMPLES and not reason.startswith(PERSONAL)
        to_show = self._filter.to_show
        sample = _difference(to_show(before), to_show(after)) if wanted else {}
        _count(change, len(before) - len(after), {"place": self._place, **sample})

    def _taken(self, reason: str, lines: Sequence[str]) -> None:
        self.samples.add(reason, self._place, lambda: {"what": "lines", "text": shown(self._filter.to_show("\n".join(lines)))})


def _count(change: Change, characters: int, sample: dict[str, str]) -> None:
    change.documents += 1
    change.characters += characters
    if len(change.samples) < _MAX_SAMPLES:
        change.samples.append(sample)


def _difference(before: str, after: str) -> dict[str, str]:
    """Where two texts first differ, with a little around it."""
    shorter = min(len(before), len(after))
    stretch = next((at for at in range(0, shorter, _STRETCH) if before[at : at + _STRETCH] != after[at : at + _STRETCH]), shorter)
    same = next((at for at in range(stretch, shorter) if before[at] != after[at]), shorter)
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
        for key, what in WHAT_WAS_DONE.items()
        for changes in [getattr(count, key)]
        for reason, change in sorted(changes.items())
    ]
    if reasons:
        text += "\n" + markdown_table(("corpus", "documents", "reason", "number", "characters less"), reasons, text_columns=3) + "\n"
    for reason, change in [row for key in WHAT_WAS_DONE for row in sorted(getattr(total, key).items())]:
        text += f"\n{reason}:\n\n" + "".join(f"- {_sample(sample)}\n" for sample in change.samples)
    if twice:
        text += f"\nIds used twice: {len(twice):,}, the first: {twice[0]}\n"
    return text


def _sample(sample: Mapping[str, str]) -> str:
    shown: Iterable[str] = (
        repr(value) if key in ("before", "after") else value for key, value in sample.items() if key in ("detail", "before", "after")
    )
    return f"{sample['place']}: " + (" -> " if "after" in sample else "; ").join(shown)
