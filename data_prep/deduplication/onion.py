"""Near-duplicate paragraphs as the tool onion finds them: hashing, and decisions in the order of the text.

Onion ("one instance only", Pomikálek 2011) goes through a text once.  A paragraph is removed when too large a share of its tokens
lies in n-grams that were seen before, in kept text or earlier in the same document; only n-grams of kept paragraphs are
stored.  So the first of equals stays, and the order of the text decides.  The window of an n-gram runs across the
paragraphs of a document and starts anew with each document, so a document of fewer than n tokens is never removed.

`Table.decide` is exact on any input from which n-grams that occur once in the whole text were left out (`select`): such an n-gram can
never have been seen.  Two n-grams with equal 64-bit hashes are taken for the same, as in the original.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from data_prep import native
from data_prep.deduplication.onion_plain import PlainEngine
from data_prep.deduplication.onion_types import BOUNDARIES, SCORES, SMOOTHINGS, Decisions, OnionSettings, Scan

SOURCE = Path(__file__).with_name("onion.c")
NUM_PARTS = 256
MAX_ORDINAL = (1 << 32) - 1  # of a paragraph; the last number says "none"


class Table(Protocol):
    """N-grams of kept text: hash -> ordinal of the paragraph that first brought it."""

    def __len__(self) -> int: ...

    def reserve(self, num_ngrams: int) -> None:
        """Make room for so many in all: growing one by one takes longer than all the rest."""
        ...

    def first(self, hashes: NDArray[np.uint64], values: NDArray[np.uint32], none: int) -> NDArray[np.uint32]:
        """For each hash in order the value it was first stored with, or `none` where it is new, which stores it; 0 is always new."""
        ...

    def decide(self, scan: Scan, settings: OnionSettings, first_ordinal: int, decisions: Decisions) -> None:
        """Decide over the next documents of the text and store the n-grams of what is kept.

        Args:
            first_ordinal: number of paragraphs before these, which gives each its ordinal.
            decisions: filled in; verdicts that are set already stay.
        """
        ...


class Engine(Protocol):
    """The loops, in C or in Python."""

    def scan(self, documents: list[bytes], settings: OnionSettings) -> Scan:
        """Hash the n-grams of documents (UTF-8); a token is what `str.split` gives."""
        ...

    def partition(self, hashes: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Hashes other than 0, grouped by their top 8 bits, and where each group begins, (257,)."""
        ...

    def select(self, hashes: NDArray[np.uint64], repeated: NDArray[np.uint64], index: NDArray[np.int64], bits: int) -> None:
        """Set to 0 each hash that is not among the sorted `repeated`, whose `index` is of `repeated_index`."""
        ...

    def table(self) -> Table:
        """A new empty table."""
        ...


def engine() -> Engine:
    """The compiled loops, or the Python ones where there is no compiler."""
    library = native.load(SOURCE)
    return PlainEngine() if library is None else NativeEngine(library)


def repeated_index(repeated: NDArray[np.uint64]) -> tuple[NDArray[np.int64], int]:
    """Where the sorted hashes with each value of their top bits begin, and the number of these bits: about one hash each."""
    bits = max(1, len(repeated).bit_length() - 1)
    tops = (repeated >> np.uint64(64 - bits)).astype(np.int64)
    index = np.zeros((1 << bits) + 1, dtype=np.int64)
    np.cumsum(np.bincount(tops, minlength=1 << bits), out=index[1:])
    return index, bits


class NativeEngine:
    """The loops of onion.c."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._room: list[NDArray[Any]] = []
        library.onion_scan.restype = ctypes.c_int64
        library.onion_table_new.restype = ctypes.c_void_p
        library.onion_table_size.restype = ctypes.c_int64

    def scan(self, documents: list[bytes], settings: OnionSettings) -> Scan:
        """See `Engine.scan`."""
        text = b"".join(documents)
        offsets = np.zeros(len(documents) + 1, dtype=np.int64)
        np.cumsum([len(document) for document in documents], out=offsets[1:])
        room = len(text) // 2 + len(documents) + 1  # a token and its separator are at least two bytes
        if not self._room or len(self._room[0]) < room:  # kept: new pages from the kernel cost as much as the scan
            self._room = [np.empty(room, dtype) for dtype in (np.uint64, np.int64, np.int64, np.uint64)]
        hashes, paragraph_token, paragraph_byte, paragraph_hash = self._room
        document_paragraph = np.empty(len(documents) + 1, np.int64)
        num_tokens = self._library.onion_scan(
            text, _at(offsets), _int64(len(documents)), settings.n, _int64(settings.newlines), _at(hashes),
            _at(paragraph_token), _at(paragraph_byte), _at(paragraph_hash), _at(document_paragraph),
        )  # fmt: skip
        found = document_paragraph[-1]
        return Scan(
            hashes[:num_tokens].copy(),
            paragraph_token[:found].copy(),
            paragraph_byte[:found].copy(),
            paragraph_hash[:found].copy(),
            document_paragraph,
        )

    def partition(self, hashes: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """See `Engine.partition`."""
        grouped, starts = np.empty(len(hashes), np.uint64), np.empty(NUM_PARTS + 1, np.int64)
        self._library.onion_partition(_at(hashes), _int64(len(hashes)), _at(grouped), _at(starts))
        return grouped[: starts[-1]], starts

    def select(self, hashes: NDArray[np.uint64], repeated: NDArray[np.uint64], index: NDArray[np.int64], bits: int) -> None:
        """See `Engine.select`."""
        self._library.onion_select(_at(hashes), _int64(len(hashes)), _at(repeated), _at(index), bits)

    def table(self) -> NativeTable:
        """See `Engine.table`."""
        return NativeTable(self._library)


class NativeTable:
    """The table of onion.c: 16 to 24 bytes an n-gram."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._pointer = ctypes.c_void_p(library.onion_table_new())
        _require_memory(self._pointer.value is not None)

    def __del__(self) -> None:
        self._library.onion_table_free(self._pointer)

    def __len__(self) -> int:
        return int(self._library.onion_table_size(self._pointer))

    def reserve(self, num_ngrams: int) -> None:
        """See `Table.reserve`."""
        _require_memory(self._library.onion_table_reserve(self._pointer, _int64(num_ngrams)))

    def first(self, hashes: NDArray[np.uint64], values: NDArray[np.uint32], none: int) -> NDArray[np.uint32]:
        """See `Table.first`."""
        result = np.empty(len(hashes), np.uint32)
        _require_memory(
            self._library.onion_first(
                self._pointer, _at(hashes), _at(values), _int64(len(hashes)), ctypes.c_uint32(none), _at(result)
            )
        )  # fmt: skip
        return result

    def decide(self, scan: Scan, settings: OnionSettings, first_ordinal: int, decisions: Decisions) -> None:
        """See `Table.decide`."""
        _require_memory(
            self._library.onion_decide(
                self._pointer, _at(scan.hashes), _at(scan.paragraph_token), _at(scan.document_paragraph),
                _int64(scan.num_documents), _int64(len(scan.hashes)), ctypes.c_uint32(first_ordinal),
                settings.n, ctypes.c_double(settings.threshold), BOUNDARIES.index(settings.boundary), SCORES.index(settings.score),
                int(settings.within_document), SMOOTHINGS.index(settings.smoothing), _int64(settings.max_stub_tokens),
                _int64(settings.min_kept_tokens),
                _at(decisions.verdict), _at(decisions.covered), _at(decisions.repeated), _at(decisions.possible),
                _at(decisions.source), _at(decisions.source_ngrams),
            )
        )  # fmt: skip


_int64 = ctypes.c_int64


def _at(array: NDArray[Any]) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


def _require_memory(succeeded: int) -> None:
    if not succeeded:
        raise ValueError("there is not enough memory for the table of seen n-grams; use --passes 2 or a machine with more memory")
