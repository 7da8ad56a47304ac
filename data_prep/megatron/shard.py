"""One file of text as tokens on disk, and shards joined into one indexed dataset that is verified before it is complete."""

from __future__ import annotations

import os
from collections import Counter as Tally
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from common.artifacts import DigestingWriter, digest_file, written_aside
from common.progress import Counter
from data_prep.megatron.index import PREFIX, TokenFile, index_parts, stored_ids
from data_prep.megatron.word_encoder import LibraryEncoder, WordEncoder
from data_prep.reading.documents import BadInput, Document
from data_prep.sharing.scanning import Reading
from data_prep.sharing.shards import file_state, finish_shard, finished_shard

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LINES = "lines.npy"  # beside text.bin and text.idx
MAX_SAMPLES = 256  # that are checked at the end
_BATCH_CHARACTERS = 1 << 20
_MAX_SAMPLE_CHARACTERS = 10_000
_MAX_BAD = 10  # that are listed
_CHUNK_BYTES = 1 << 20


@dataclass
class ShardRecord:
    """What became of a file of text.

    Attributes:
        source, source_digest: the file.
        num_documents: in the dataset, none of them empty.
        num_empty_documents: of nothing but white space, left out.
        num_tokens: with what stands in front of each document and the end-of-text token behind it.
        text_bytes: of the documents' UTF-8.
        bad_input: reasons why parts were skipped, and how often.
        bad_samples: the first of them, as sentences.
        digest: of the tokens on disk.
        samples: number within the shard and text of some documents, for the check at the end.
    """

    source: str
    source_digest: str = ""
    num_documents: int = 0
    num_empty_documents: int = 0
    num_tokens: int = 0
    text_bytes: int = 0
    bad_input: dict[str, int] = field(default_factory=dict)
    bad_samples: list[str] = field(default_factory=list)
    digest: str = ""
    samples: list[tuple[int, str]] = field(default_factory=list)

    def as_facts(self) -> dict[str, Any]:
        """For the manifest: without the samples."""
        facts = asdict(self)
        del facts["samples"]
        return facts


@dataclass(frozen=True)
class Part:
    """Tokens of one shard or dataset that goes into a joined one: a file of tokens, and (num_documents,) arrays."""

    tokens: Path
    digest: str
    lengths: NDArray[np.int32]
    lines: NDArray[np.int64]


@dataclass(frozen=True)
class Work:
    """What every worker has: processes are forked with it, since a tokenizer takes seconds to load.

    Attributes:
        encoders: of the same tokenizer, for as many threads.
        front: ids in front of each document.
    """

    encoders: Sequence[WordEncoder | LibraryEncoder]
    front: tuple[int, ...]
    eos_token_id: int
    dtype: np.dtype
    reading: Reading
    progress: Counter


def tokenize_shard(path: Path, stem: Path, work: Work) -> ShardRecord:
    """Write `STEM.bin` (tokens), `STEM.npz` (length and line of each document) and last `STEM.json`; a shard that has it is not done again.

    Raises:
        ValueError: if the file cannot be read, or the end-of-text token comes up inside a document.
    """
    done = stem.with_suffix(".json")
    state = file_state(path)
    if found := finished_shard(done, state, stem.with_suffix(".bin"), stem.with_suffix(".npz")):
        work.progress.advance(state["size"])
        return ShardRecord(**{**found["record"], "samples": [tuple(sample) for sample in found["record"]["samples"]]})
    record, bad = ShardRecord(str(path)), list[BadInput]()
    all_lengths, lines = [np.zeros(0, dtype=np.int32)], [np.zeros(0, dtype=np.int64)]
    partial = stem.with_name(f".{stem.name}.bin.partial")
    with DigestingWriter(partial) as writer:
        batches = _batches(work.reading.documents(path, bad, progress=work.progress), record)
        for batch, ids, lengths in _encoded(batches, work.encoders, work.eos_token_id):
            _require_no_end_inside(path, batch, ids, lengths, work.eos_token_id)
            ids, lengths = _with_front(ids, lengths, work.front)
            # Not `tofile`: on a full disk it raises an OSError without the error number.
            writer.write(stored_ids(ids, work.dtype).data)
            _sample(record, batch)
            record.num_documents += len(batch)
            record.num_tokens += len(ids)
            all_lengths.append(lengths.astype(np.int32))
            lines.append(np.array([document.line for document in batch], dtype=np.int64))
    record.digest = writer.digest
    record.source_digest = digest_file(path)
    record.bad_input = dict(Tally(item.reason for item in bad))
    record.bad_samples = [item.message for item in bad[:_MAX_BAD]]
    os.replace(partial, stem.with_suffix(".bin"))
    with written_aside(stem.with_suffix(".npz")) as file:
        np.savez(file, lengths=np.concatenate(all_lengths), lines=np.concatenate(lines))
    finish_shard(done, state, {"record": asdict(record)})
    return record


def _batches(documents: Iterable[Document], record: ShardRecord) -> Iterator[list[Document]]:
    """Documents that are not empty, many at a time; counts bytes and empty ones."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        if not document.text or document.text.isspace():
            record.num_empty_documents += 1
            continue
        batch.append(document)
        size += len(document.text)
        record.text_bytes += len(document.text) if document.text.isascii() else len(document.text.encode())
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _encoded(
    batches: Iterable[list[Document]], encoders: Sequence[WordEncoder | LibraryEncoder], eos_token_id: int
) -> Iterator[tuple[list[Document], NDArray[np.int32], NDArray[np.int64]]]:
    """Batches in order with their ids and lengths.  With several encoders reading goes on meanwhile: they work outside of Python."""
    free: SimpleQueue[WordEncoder | LibraryEncoder] = SimpleQueue()
    for encoder in encoders:
        free.put(encoder)

    def encode(batch: list[Document]) -> tuple[list[Document], NDArray[np.int32], NDArray[np.int64]]:
        encoder = free.get()
        try:
            return batch, *encoder.encode([document.text for document in batch], eos_token_id)
        finally:
            free.put(encoder)

    if len(encoders) == 1:
        yield from map(encode, batches)
        return
    with ThreadPoolExecutor(len(encoders)) as pool:
        waiting: deque[Future[tuple[list[Document], NDArray[np.int32], NDArray[np.int64]]]] = deque()
        for batch in batches:
            waiting.append(pool.submit(encode, batch))
            if len(waiting) > len(encoders):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _require_no_end_inside(
    path: Path, batch: Sequence[Document], ids: NDArray[np.int32], lengths: NDArray[np.int64], eos_token_id: int
) -> None:
    found, ends = np.flatnonzero(ids == eos_token_id), np.cumsum(lengths) - 1
    if len(found) == len(ends):
        return
    document = batch[int(np.searchsorted(ends, np.setdiff1d(found, ends)[0]))]
    raise ValueError(
        f"{path}, line {document.line}: the tokenizer gives its end-of-text token {eos_token_id} inside the document that begins"
        f" {document.text[:80]!r}; mark that token as special in its tokenizer.json"
    )


def _with_front(ids: NDArray[np.int32], lengths: NDArray[np.int64], front: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The same with the tokens in front of each document."""
    if not front:
        return ids, lengths
    starts = np.cumsum(lengths) - lengths
    return np.insert(ids, np.repeat(starts, len(front)), np.tile(front, len(starts))), lengths + len(front)


def _sample(record: ShardRecord, batch: Sequence[Document]) -> None:
    """Keep the documents whose number, from 1, is a power of two."""
    for number, document in enumerate(batch, start=record.num_documents + 1):
        if number & (number - 1) == 0 and len(document.text) <= _MAX_SAMPLE_CHARACTERS:
            record.samples.append((number - 1, document.text))


def shard_part(stem: Path, record: ShardRecord) -> Part:
    """A finished shard, to be joined."""
    with np.load(stem.with_suffix(".npz")) as arrays:
        return Part(stem.with_suffix(".bin"), record.digest, arrays["lengths"], arrays["lines"])


def join(parts: Iterable[Part], directory: Path, dtype: np.dtype) -> dict[str, str]:
    """Write `text.bin`, `text.idx` and `lines.npy` of all parts in order, and return the digests of the first two.

    Memory: 12 bytes a document, and 20 more while the index is written.

    Raises:
        ValueError: if a part is no longer what was written.
    """
    lengths, lines = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
    with DigestingWriter(directory / f"{PREFIX}.bin") as writer:
        for part in parts:
            before = writer.size
            _append(part, writer)
            lengths.append(part.lengths)
            lines.append(part.lines)
            if writer.size - before != part.lengths.sum(dtype=np.int64) * dtype.itemsize:
                raise ValueError(f"{part.tokens} has another number of tokens than its lengths say; tokenize its text again")
    with DigestingWriter(directory / f"{PREFIX}.idx") as index:
        for piece in index_parts(np.concatenate(lengths), dtype):
            index.write(piece)
    np.save(directory / LINES, np.concatenate(lines))
    return {f"{PREFIX}.bin": writer.digest, f"{PREFIX}.idx": index.digest}


def _append(part: Part, writer: DigestingWriter) -> None:
    state = xxhash.xxh3_128()
    with open(part.tokens, "rb", buffering=0) as stream:
        while data := stream.read(_CHUNK_BYTES):
            state.update(data)
            writer.write(data)
    if f"xxh3:{state.hexdigest()}" != part.digest:
        raise ValueError(f"{part.tokens} is not as it was written: damaged or edited; tokenize its text again")


def check(
    directory: Path, records: Sequence[ShardRecord], tokenizer: Tokenizer, eos_token_id: int, *, front: Sequence[int] = ()
) -> dict[str, int]:
    """Read a finished dataset back: its counts, and sample documents against the tokenizer library.

    Returns:
        number of sample documents, and of those whose tokens decode to the text itself (normalizers and unknown characters change it).

    Raises:
        ValueError: if a count or the tokens of a sample are wrong.
    """
    data = TokenFile(directory / PREFIX)
    for what, found, expected in (
        ("documents", len(data), sum(record.num_documents for record in records)),
        ("tokens", data.num_tokens, sum(record.num_tokens for record in records)),
    ):
        if found != expected:
            raise ValueError(f"{directory} holds {found} {what}, but {expected} were written; tokenize again")
    library = LibraryEncoder(tokenizer)
    firsts = accumulate((record.num_documents for record in records), initial=0)
    samples = [(first + number, text) for first, record in zip(firsts, records) for number, text in record.samples]
    samples = samples[:: max(1, -(-len(samples) // MAX_SAMPLES))]
    num_decoded = 0
    for number, text in samples:
        expected_ids, _ = library.encode([text], eos_token_id)
        if not np.array_equal(data[number], [*front, *expected_ids]):
            raise ValueError(
                f"document {number} of {directory} has other tokens than the tokenizer gives for its text, which begins {text[:80]!r};"
                " this is a defect of Scion: report it with the tokenizer and this text"
            )
        num_decoded += tokenizer.decode(data[number][len(front) : -1].tolist(), skip_special_tokens=False) == text
    return {"num_samples": len(samples), "num_samples_decoded_to_their_text": num_decoded}
