"""Megatron's indexed dataset: all tokens in one `.bin`, where each document starts in one `.idx`; and the folder of both.

Written without Megatron, so that preparing data needs none of its imports; the bytes are those of
`megatron.core.datasets.indexed_dataset.IndexedDatasetBuilder` with one sequence per document.
"""

from __future__ import annotations

import struct
from array import array
from pathlib import Path
from types import TracebackType

import numpy as np

from data_prep.artifacts import Manifest, check_files, require_manifest

PREFIX = "text"
STAGE = "data_prep.to_megatron"
_HEADER = b"MMIDIDX\x00\x00"
_VERSION = 1
_DTYPE_CODES = {np.dtype(np.int32): 4, np.dtype(np.uint16): 8}


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest type that Megatron takes for so many token ids: uint16 below 65,500, else int32 (its `DType.optimal_dtype`)."""
    return np.dtype(np.uint16 if vocab_size < 65_500 else np.int32)


class IndexedDatasetWriter:
    """Writes `PREFIX.bin` while documents come in, and `PREFIX.idx` when they ended without an error.

    Args:
        directory: where both files go.
        dtype: of the tokens on disk, from `token_dtype`.
    """

    def __init__(self, directory: Path, dtype: np.dtype) -> None:
        self._index_path = directory / f"{PREFIX}.idx"
        self._tokens = open(directory / f"{PREFIX}.bin", "wb")  # noqa: SIM115  (closed in __exit__)
        self._dtype = dtype
        self._lengths = array("i")
        self.num_tokens = 0

    def add_document(self, token_ids: np.ndarray) -> None:
        """Append one document's token ids (one dimension)."""
        # Not `tofile`: on a full disk it raises an OSError without the error number.
        self._tokens.write(token_ids.astype(self._dtype, copy=False).data)
        self._lengths.append(len(token_ids))
        self.num_tokens += len(token_ids)

    def __enter__(self) -> IndexedDatasetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._tokens.close()
        if error is None:
            self._write_index()

    def _write_index(self) -> None:
        lengths = np.frombuffer(self._lengths, dtype=np.int32) if self._lengths else np.empty(0, np.int32)
        ends = np.cumsum(lengths, dtype=np.int64) * self._dtype.itemsize
        with open(self._index_path, "wb") as index:
            index.write(_HEADER + struct.pack("<QBQQ", _VERSION, _DTYPE_CODES[self._dtype], len(lengths), len(lengths) + 1))
            index.write(lengths.data)
            index.write((ends - lengths.astype(np.int64) * self._dtype.itemsize).data)  # byte offset of each sequence
            index.write(np.arange(len(lengths) + 1, dtype=np.int64).data)  # sequence at which each document starts, and the end


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
