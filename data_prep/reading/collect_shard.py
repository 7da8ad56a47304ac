"""One shard collected: documents of any source as JSON Lines with an id, their own fields and the text; counted."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from common.progress import Counter
from common.tables import markdown_table
from data_prep.reading.document_ids import DocumentIds
from data_prep.reading.documents import BadInput, Document
from data_prep.reading.sources import Source, stream
from data_prep.sharing.scanning import Reading
from data_prep.sharing.shards import JsonLinesWriter, file_state, finish_shard, finished_shard

Item = TypeVar("Item")
_MAX_MESSAGES = 20
_SAMPLE_SEED = 42
_PROGRESS: list[Counter] = []  # of this process


def show_progress(progress: Counter) -> None:
    """Where shards count the bytes that they read, in this process and those forked from it."""
    _PROGRESS[:] = [progress]


@dataclass
class CollectCounts:
    """What a shard or a corpus gave: `num_read` = `num_kept` + `num_empty`."""

    num_read: int = 0
    num_kept: int = 0
    num_empty: int = 0
    words: int = 0
    text_bytes: int = 0
    bad_input: dict[str, int] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def add(self, other: CollectCounts) -> None:
        """Add what another shard has."""
        for name in ("num_read", "num_kept", "num_empty", "words", "text_bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.bad_input = {
            reason: self.bad_input.get(reason, 0) + other.bad_input.get(reason, 0) for reason in (*self.bad_input, *other.bad_input)
        }
        self.messages = (self.messages + other.messages)[:_MAX_MESSAGES]


@dataclass(frozen=True)
class CollectJob:
    """A part of a source and where it goes.

    Attributes:
        paths: its files; none for a part of a dataset.
        num_shards, index: which part of the dataset.
        name: of the shard, below `directory/text`, and of its ids below `scratch`.
        new_ids: the id is CORPUS/FILE:LINE, and what the document had becomes its `original_id`.
    """

    source: Source
    paths: tuple[Path, ...]
    num_shards: int
    index: int
    name: str
    directory: Path
    scratch: Path
    reading: Reading
    new_ids: bool = False

    def documents(self, bad: list[BadInput]) -> Iterator[tuple[str, Document]]:
        """Documents with the name that stands for them where they have no id."""
        dataset = self.source.huggingface
        if dataset is not None:
            for document in stream(dataset, self.reading, num_shards=self.num_shards, index=self.index, bad=bad):
                yield f"{self.source.corpus.name}/{self.index}:{document.line}", document
        for path in self.paths:
            for document in self.reading.documents(path, bad, progress=_PROGRESS[0] if _PROGRESS else None):
                yield f"{self.source.corpus.name}/{path.name}:{document.line}", document

    def wanted(self, bad: list[BadInput]) -> Iterator[tuple[str, Document]]:
        """Those of the documents that the source wants: all, the first, or a random sample in the order of the source."""
        if self.source.sample_documents is not None:
            return iter(random_sample(self.documents(bad), self.source.sample_documents))
        return islice(self.documents(bad), self.source.max_documents)

    def state(self) -> list[Any]:
        """What tells that the input is the one of an earlier run."""
        dataset = self.source.huggingface
        return [asdict(dataset), self.num_shards, self.index] if dataset is not None else [file_state(path) for path in self.paths]


def random_sample(items: Iterable[Item], number: int) -> list[Item]:
    """So many of the items, each set of them as likely as any other, in their order; the same ones every time.

    Read once, with so many in memory (algorithm R, Waterman, in Knuth, The Art of Computer Programming, volume 2, section 3.4.2).
    """
    generator = random.Random(_SAMPLE_SEED)
    kept: list[tuple[int, Item]] = []
    for place, item in enumerate(items):
        if len(kept) < number:
            kept.append((place, item))
        elif (slot := generator.randrange(place + 1)) < number:
            kept[slot] = (place, item)
    return [item for _, item in sorted(kept, key=lambda pair: pair[0])]


def collect_shard(job: CollectJob) -> CollectCounts:
    """Write a shard; its counts are written last, and a shard that has them is not done again.

    Raises:
        ValueError: if the input cannot be read.
    """
    done = job.directory / "counts" / f"{job.name}.json"
    state = json.loads(json.dumps(job.state(), default=str))
    ids_path = job.scratch / f"{job.name}.npy"
    if record := finished_shard(done, state, job.directory / "text" / job.name, ids_path):
        return CollectCounts(**record["counts"])
    counts = CollectCounts()
    bad: list[BadInput] = []
    ids = DocumentIds()
    with JsonLinesWriter(job.directory / "text" / job.name) as file:
        for place, document in job.wanted(bad):
            counts.num_read += 1
            if not document.text.strip():
                counts.num_empty += 1
                continue
            fields = {key: value for key, value in document.fields.items() if key != "text"}
            if job.new_ids and "id" in fields:
                fields["original_id"] = fields.pop("id")
            identity = fields.pop("id", place)
            ids.add(json.dumps(identity), document.line)
            counts.num_kept += 1
            counts.words += len(document.text.split())
            counts.text_bytes += len(document.text.encode())
            file.write({"id": identity, **fields, "text": document.text})
    for item in bad:
        counts.bad_input[item.reason] = counts.bad_input.get(item.reason, 0) + 1
    counts.messages = [item.message for item in bad[:_MAX_MESSAGES]]
    ids.save(ids_path)
    finish_shard(done, state, {"counts": asdict(counts)})
    return counts


def report(sources: Sequence[Source], counts: Mapping[str, CollectCounts], twice: Sequence[str]) -> str:
    """The corpus table in Markdown, with what was skipped."""
    total = CollectCounts()
    rows = []
    for source in sources:
        corpus, count = source.corpus, counts[source.corpus.name]
        total.add(count)
        facts = (corpus.language, corpus.domain, corpus.licence, corpus.source)
        rows.append([corpus.name, *(fact or "-" for fact in facts), *_numbers(count)])
    rows.append(["all", "", "", "", "", *_numbers(total)])
    header = ("corpus", "language", "domain", "licence", "source", "documents", "empty", "skipped", "words", "MB")
    text = "# Corpora\n\n" + markdown_table(header, rows, text_columns=5) + "\n"
    for source in sources:
        if source.corpus.other_files:
            text += f"\nNot read in the folders of {source.corpus.name}: {', '.join(source.corpus.other_files)}\n"
    if total.messages:
        text += "\nSkipped:\n\n" + "".join(f"- {message}\n" for message in total.messages)
    if twice:
        text += f"\nIds used twice: {len(twice):,}, the first: {twice[0]}\n"
    return text


def _numbers(count: CollectCounts) -> list[str]:
    return [
        f"{count.num_kept:,}",
        f"{count.num_empty:,}",
        f"{sum(count.bad_input.values()):,}",
        f"{count.words:,}",
        f"{count.text_bytes / 1e6:.2f}",
    ]
