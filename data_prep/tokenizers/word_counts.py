"""Word frequencies of a corpus: all that a SentencePiece trainer needs.

The trainers of SentencePiece cut text before each space and count the words before they do anything else, so a table of words trains the
same model as the text, in a third of the time, without its limit on the length of a line, and in memory that grows with the distinct words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from common.progress import Progress
from data_prep.reading.documents import Documents, read_documents
from data_prep.sharing.shards import ordered_map

# Longer words are cut.
MAX_WORD_CHARACTERS = 1 << 14
MAX_DISTINCT_WORDS = 1 << 24
_MAX_JOINTS = 200_000
# SentencePiece leaves out lines with the first two, its own marks; the tab parts a word from its number.
_BLANKED = ("\0", "\u2585", "\t")


@dataclass
class WordCounts:
    """The words of some documents, where spaces and line feeds part words.

    Attributes:
        words: word -> how often it occurs.
        joints: what stands between two spaces and holds a line feed, each once and no more than 200,000 of them; not for training.
        num_documents, num_empty: documents with text and without.
        text_bytes: of the documents, in UTF-8.
        lost_bytes: of rare words that were forgotten, see `add`, and of characters that SentencePiece does not take.
    """

    words: Counter[str] = field(default_factory=Counter)
    joints: dict[str, None] = field(default_factory=dict)
    num_documents: int = 0
    num_empty: int = 0
    text_bytes: int = 0
    lost_bytes: int = 0

    def count(self, text: str) -> None:
        """Count the words of a document."""
        if not text.strip():
            self.num_empty += 1
            return
        self.num_documents += 1
        self.text_bytes += len(text.encode())
        for mark in _BLANKED:
            if mark in text:
                self.lost_bytes += text.count(mark) * len(mark.encode())
                text = text.replace(mark, " ")
        if "\n" in text:
            if len(self.joints) < _MAX_JOINTS:
                self.joints |= dict.fromkeys(unit for unit in text.split(" ") if "\n" in unit)
            text = text.replace("\n", " ")
        words = text.split(" ")
        if len(text) > MAX_WORD_CHARACTERS and max(map(len, words)) > MAX_WORD_CHARACTERS:
            words = [part for word in words for part in _parts(word)]
        self.words.update(words)
        del self.words[""]

    def add(self, other: WordCounts, *, max_distinct: int = MAX_DISTINCT_WORDS) -> None:
        """Add what another file has, and forget the rarest words where there are more than `max_distinct`."""
        self.words.update(other.words)
        if len(self.joints) < _MAX_JOINTS:
            self.joints |= other.joints
        self.num_documents += other.num_documents
        self.num_empty += other.num_empty
        self.text_bytes += other.text_bytes
        self.lost_bytes += other.lost_bytes
        self.forget_rare(max_distinct)

    def forget_rare(self, max_distinct: int = MAX_DISTINCT_WORDS) -> None:
        """Drop the words that occur once, then twice and so on, until no more than `max_distinct` are left; count their bytes as lost."""
        rare = 0
        while len(self.words) > max_distinct:
            rare += 1
            for word in [word for word, count in self.words.items() if count == rare]:
                self.lost_bytes += rare * len(word.encode())
                del self.words[word]


def count_words(documents: Documents, *, workers: int = 1, max_distinct: int = MAX_DISTINCT_WORDS) -> WordCounts:
    """The words of all documents, read once; the same for any number of workers.

    Memory: about 130 bytes for each distinct word, of which there are at most `max_distinct` of all files and twice that in each worker.

    Raises:
        ValueError: as `Documents`.
    """
    total = WordCounts()
    workers = min(workers, len(documents.paths))
    with Progress("reading text", total=sum(path.stat().st_size for path in documents.paths), unit="B", is_bytes=True) as progress:
        seen_by_reader = progress if workers == 1 else None
        jobs = [
            _Job(path, documents.text_key, documents.separator, documents.max_document_bytes, max_distinct, seen_by_reader)
            for path in documents.paths
        ]
        for job, found in zip(jobs, ordered_map(_count_file, jobs, workers=workers, name=lambda job: str(job.path))):
            total.add(found, max_distinct=max_distinct)
            if seen_by_reader is None:
                progress.advance(job.path.stat().st_size)
    if not total.num_documents:
        names = ", ".join(map(str, documents.paths))
        raise ValueError(f"there is no text in {names} ({total.num_empty} empty documents); give files with text")
    return total


class _Job(NamedTuple):
    path: Path
    text_key: str
    separator: str | None
    max_document_bytes: int | None
    max_distinct: int
    progress: Progress | None


def _count_file(job: _Job) -> WordCounts:
    counts = WordCounts()
    documents = read_documents(
        job.path, text_key=job.text_key, separator=job.separator, progress=job.progress, max_document_bytes=job.max_document_bytes
    )
    for document in documents:
        counts.count(document.text)
        if len(counts.words) > 2 * job.max_distinct:
            counts.forget_rare(job.max_distinct)
    counts.forget_rare(job.max_distinct)
    return counts


def _parts(word: str) -> Iterator[str]:
    for start in range(0, len(word), MAX_WORD_CHARACTERS):
        yield word[start : start + MAX_WORD_CHARACTERS]
