"""Megatron's indexed dataset: all tokens in one `.bin`, the start of each document in one `.idx`; their folder and its manifest.

Read and written without Megatron, so that preparing data needs none of its imports; the bytes are those of
`megatron.core.datasets.indexed_dataset.IndexedDatasetBuilder` with one sequence per document.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common.artifacts import Manifest, check_files, require_manifest
from data_prep.tokenizers.frame import front_sentence

if TYPE_CHECKING:
    from typing_extensions import Buffer

PREFIX = "text"
STAGE = "data_prep.to_megatron"
QA_STAGE = "data_prep.question_answers"  # each document with an even number is a prompt, the next one its answer
_HEADER = b"MMIDIDX\x00\x00"
_VERSION = 1
_LAYOUT = "<QBQQ"  # version, type, sequences, document bounds
_DTYPE_CODES = {np.dtype(np.int32): 4, np.dtype(np.uint16): 8}
# All that Megatron's enumeration knows; other tools may have chosen one of them.
_DTYPES = dict(enumerate(map(np.dtype, ("u1", "i1", "i2", "i4", "i8", "f8", "f4", "u2")), start=1))


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest type that Megatron takes for so many token ids: uint16 below 65,500, else int32 (its `DType.optimal_dtype`)."""
    return np.dtype(np.uint16 if vocab_size < 65_500 else np.int32)


def stored_ids(ids: NDArray[np.integer], dtype: np.dtype) -> NDArray[np.integer]:
    """Token ids (num_tokens,) in the type of a file.

    Raises:
        ValueError: if the type cannot hold one: numpy would store another token.
    """
    if len(ids) and not 0 <= ids.min() <= ids.max() <= np.iinfo(dtype).max:
        raise ValueError(
            f"token ids from {ids.min()} to {ids.max()} do not fit {dtype}, which was chosen for another tokenizer; tokenize again"
        )
    return ids.astype(dtype, copy=False)


def index_parts(lengths: NDArray[np.int32], dtype: np.dtype) -> Iterator[Buffer]:
    """The content of an `.idx` file for documents of one sequence each, in pieces.

    Args:
        lengths: (num_documents,) int32, tokens of each document.
        dtype: of the tokens in the `.bin` file.
    """
    num_documents = len(lengths)
    yield _HEADER + struct.pack(_LAYOUT, _VERSION, _DTYPE_CODES[dtype], num_documents, num_documents + 1)
    yield lengths.data
    offsets = np.zeros(num_documents, dtype=np.int64)  # in bytes
    np.cumsum(lengths[:-1], dtype=np.int64, out=offsets[1:])
    offsets *= dtype.itemsize
    yield offsets.data
    yield np.arange(num_documents + 1, dtype=np.int64).data  # first sequence of each document, and one past the last


class TokenFile:
    """The documents of a `.bin` with its `.idx`, mapped: of any writer, also with several sequences a document.

    Args:
        prefix: path of both without the suffix.

    Attributes:
        lengths: (num_sequences,) int32, tokens of each sequence.
        num_tokens: of all.

    Raises:
        ValueError: if a file is missing, no index, or of a size that the other contradicts.
    """

    def __init__(self, prefix: Path) -> None:
        index_path, tokens_path = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
        for path in (index_path, tokens_path):
            if not path.is_file():
                raise ValueError(f"{path} does not exist; expected an indexed dataset of {prefix}.bin and {prefix}.idx")
        start = len(_HEADER) + struct.calcsize(_LAYOUT)
        size = index_path.stat().st_size
        with open(index_path, "rb") as file:
            head = file.read(start)
        if len(head) < start or not head.startswith(_HEADER):
            raise ValueError(f"{index_path} is not a Megatron index; make the dataset again")
        version, code, num_sequences, num_bounds = struct.unpack(_LAYOUT, head[len(_HEADER) :])
        expected = start + num_sequences * (4 + 8) + num_bounds * 8
        # Multimodal datasets have a byte for each sequence behind all that.
        if version != _VERSION or code not in _DTYPES or size not in (expected, expected + num_sequences):
            raise ValueError(f"{index_path} has {size} bytes, but its header says {expected}: truncated or edited; make the dataset again")
        index = np.memmap(index_path, mode="r")
        self.dtype = _DTYPES[code]
        self.lengths: NDArray[np.int32] = index[start : start + 4 * num_sequences].view(np.int32)
        self._offsets = index[start + 4 * num_sequences : start + 12 * num_sequences].view(np.int64)
        self._bounds = index[start + 12 * num_sequences : expected].view(np.int64)
        self.num_tokens = int(self.lengths.sum(dtype=np.int64))
        found = tokens_path.stat().st_size
        if found != self.num_tokens * self.dtype.itemsize:
            raise ValueError(
                f"{tokens_path} has {found} bytes, but {index_path} speaks of {self.num_tokens} tokens of {self.dtype.itemsize} bytes;"
                " make the dataset again"
            )
        self._tokens = np.memmap(tokens_path, dtype=self.dtype, mode="r") if found else np.zeros(0, self.dtype)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, number: int) -> NDArray:
        """Token ids of a document, its end-of-text token included."""
        first, end = self._bounds[number], self._bounds[number + 1]
        if first == end:
            return self._tokens[:0]
        start = self._offsets[first] // self.dtype.itemsize
        return self._tokens[start : start + self.lengths[first:end].sum(dtype=np.int64)]

    @property
    def document_lengths(self) -> NDArray[np.int64]:
        """(documents,), tokens of each, its end-of-text token included."""
        ends = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])[self._bounds]
        return np.diff(ends)

    def slice(self, start: int, end: int) -> NDArray:
        """(end - start,) token ids from one place to another of all documents, one behind the other as the file has them, in its dtype."""
        return self._tokens[start:end]


def pair_lengths(tokens: TokenFile) -> NDArray[np.int64]:
    """(pairs,), tokens of each prompt with its answer, of what `data_prep.question_answers` wrote."""
    pairs: NDArray[np.int64] = tokens.lengths.astype(np.int64).reshape(-1, 2).sum(axis=1)
    return pairs


def open_training_data(directory: Path) -> tuple[Path, Manifest]:
    """As `open_dataset`, also for a folder that `data_prep.question_answers` wrote."""
    manifest = require_manifest(directory, stages=[STAGE, QA_STAGE], made_by="python -m data_prep.to_megatron")
    check_files(directory, manifest, contents=False)
    return directory / PREFIX, manifest


def open_dataset(directory: Path, *, contents: bool = False) -> tuple[Path, Manifest]:
    """The path prefix that Megatron's `IndexedDataset` takes, and the manifest of a folder that `data_prep.to_megatron` wrote.

    Args:
        contents: also compare the digests of the files, which reads them once.

    Raises:
        ValueError: if the folder is missing or of another stage, or a file of it is missing, truncated or edited.
    """
    manifest = require_manifest(directory, stages=[STAGE], made_by="python -m data_prep.to_megatron")
    check_files(directory, manifest, contents=contents)
    return directory / PREFIX, manifest


def totals(shards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The facts of a dataset of these shards: their sums and themselves."""
    names = ("num_documents", "num_empty_documents", "num_tokens", "text_bytes")
    return {**{name: sum(shard[name] for shard in shards) for name in names}, "shards": list(shards)}


def dataset_summary(output_dir: Path, manifest: Manifest) -> str:
    """What is in a dataset, as a sentence, and what was skipped."""
    facts = manifest.facts
    text = (
        f"{output_dir}: {facts['num_documents']:,} documents, {facts['num_tokens']:,} tokens (end-of-text included),"
        f" {facts['text_bytes'] / facts['num_tokens']:.2f} bytes per token; {facts['num_empty_documents']:,} empty documents left out;"
        f" {front_sentence(facts)}"
    )
    for shard in facts["shards"]:
        for reason, number in shard["bad_input"].items():
            text += f"\nskipped in {shard['source']}: {number:,} x {reason}; the first of all: {shard['bad_samples'][0]}"
    return text
