"""Megatron's indexed dataset: all tokens in one `.bin`, where each document starts in one `.idx`; and the folder of both.

Written without Megatron, so that preparing data needs none of its imports; the bytes are those of
`megatron.core.datasets.indexed_dataset.IndexedDatasetBuilder` with one sequence per document.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from data_prep.artifacts import DigestingWriter, Manifest, check_files, require_manifest

PREFIX = "text"
STAGE = "data_prep.to_megatron"
_HEADER = b"MMIDIDX\x00\x00"
_VERSION = 1
_DTYPE_CODES = {np.dtype(np.int32): 4, np.dtype(np.uint16): 8}


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest type that Megatron takes for so many token ids: uint16 below 65,500, else int32 (its `DType.optimal_dtype`)."""
    return np.dtype(np.uint16 if vocab_size < 65_500 else np.int32)


class IndexedDatasetWriter:
    """Writes `text.bin` while documents come in, and `text.idx` when they ended without an error.

    Args:
        directory: where both files go.
        dtype: of the tokens on disk, from `token_dtype`.
    """

    def __init__(self, directory: Path, dtype: np.dtype) -> None:
        self._index_path = directory / f"{PREFIX}.idx"
        self._bin = DigestingWriter(directory / f"{PREFIX}.bin")
        self._dtype = dtype
        self._lengths = array("i")  # four bytes a document is all that memory holds
        self.num_tokens = 0

    @property
    def digests(self) -> dict[str, str]:
        """Digest of the tokens written, by the name of their file."""
        return {f"{PREFIX}.bin": self._bin.digest}

    def add_documents(self, token_ids: np.ndarray, lengths: Sequence[int]) -> None:
        """Append documents.

        Args:
            token_ids: (sum of lengths,) their token ids, back to back.
            lengths: tokens of each document.
        """
        # Not `tofile`: on a full disk it raises an OSError without the error number.
        self._bin.write(token_ids.astype(self._dtype, copy=False).data)
        self._lengths.extend(lengths)
        self.num_tokens += len(token_ids)

    def __enter__(self) -> IndexedDatasetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bin.__exit__(kind, error, trace)
        if error is None:
            self._index_path.write_bytes(index_bytes(np.array(self._lengths, dtype=np.int32), self._dtype))


def index_bytes(lengths: np.ndarray, dtype: np.dtype) -> bytes:
    """The content of an `.idx` file for documents of one sequence each.

    Args:
        lengths: (num_documents,) int32, tokens of each document.
        dtype: of the tokens in the `.bin` file.
    """
    num_documents = len(lengths)
    offsets = np.zeros(num_documents, dtype=np.int64)  # in bytes
    np.cumsum(lengths[:-1], dtype=np.int64, out=offsets[1:])
    offsets *= dtype.itemsize
    first_sequences = np.arange(num_documents + 1, dtype=np.int64)  # of each document, and one past the last
    header = _HEADER + struct.pack("<QBQQ", _VERSION, _DTYPE_CODES[dtype], num_documents, num_documents + 1)
    return b"".join((header, lengths.tobytes(), offsets.tobytes(), first_sequences.tobytes()))


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
