"""Near-duplicate paragraphs as the tool onion finds them: hashing, and decisions in the order of the text.

Onion ("one instance only", Pomikálek 2011) goes through a text once.  A paragraph is removed when too large a share of its tokens
lies in n-grams that were seen before, in kept text or earlier in the same document; only n-grams of kept paragraphs are
stored.  So the first of equals stays, and the order of the text decides.  The window of an n-gram runs across the
paragraphs of a document and starts anew with each document, so a document of fewer than n tokens is never removed.

Which n-grams are seen may also be found elsewhere (`data_prep.deduplication.ranges`) and handed to `Engine.apply`.  Two n-grams with equal 64-bit hashes are taken for the same, as in the original.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common import native
from common.native import address
from data_prep.deduplication.onion_types import BOUNDARIES, SCORES, SMOOTHINGS, Decisions, OnionSettings, Scan

SOURCE = Path(__file__).with_name("onion.c")
MAX_ORDINAL = (1 << 32) - 1  # of a paragraph; the last number says "none"


def engine() -> Engine:
    """The compiled loops."""
    return Engine(native.load(SOURCE))


class Engine:
    """The loops of onion.c."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._room: list[NDArray[Any]] = []
        library.onion_scan.restype = ctypes.c_int64
        library.onion_table_new.restype = ctypes.c_void_p
        library.onion_table_size.restype = ctypes.c_int64

    def scan(self, documents: list[bytes], settings: OnionSettings) -> Scan:
        """Hash the n-grams of documents (UTF-8); a token is what `str.split` gives."""
        offsets = np.zeros(len(documents) + 1, dtype=np.int64)
        np.cumsum([len(document) for document in documents], out=offsets[1:])
        return self.scan_joined(b"".join(documents), offsets, settings)

    def scan_joined(self, text: bytes, offsets: NDArray[np.int64], settings: OnionSettings) -> Scan:
        """The same of documents one behind the other: document d is text[offsets[d]:offsets[d + 1]], `offsets` (num_documents + 1,)."""
        num_documents = len(offsets) - 1
        room = len(text) // 2 + num_documents + 1  # a token and its separator are at least two bytes
        if not self._room or len(self._room[0]) < room:  # kept: new pages from the kernel cost as much as the scan
            self._room = [np.empty(room, dtype) for dtype in (np.uint64, np.int64, np.int64, np.uint64)]
        hashes, paragraph_token, paragraph_byte, paragraph_hash = self._room
        document_paragraph = np.empty(num_documents + 1, np.int64)
        num_tokens = self._library.onion_scan(
            text, address(offsets), _int64(num_documents), settings.n, _int64(settings.newlines), address(hashes),
            address(paragraph_token), address(paragraph_byte), address(paragraph_hash), address(document_paragraph),
        )  # fmt: skip
        _require_memory(num_tokens >= 0)
        found = document_paragraph[-1]
        return Scan(
            hashes[:num_tokens].copy(),
            paragraph_token[:found].copy(),
            paragraph_byte[:found].copy(),
            paragraph_hash[:found].copy(),
            document_paragraph,
        )

    def apply(
        self,
        sources: NDArray[np.uint32],
        paragraph_token: NDArray[np.int64],
        document_paragraph: NDArray[np.int64],
        settings: OnionSettings,
        decisions: Decisions,
    ) -> None:
        """Decide as `Table.decide` over documents whose seen n-grams are known.

        Args:
            sources: (num_tokens,) ordinal of the paragraph that brought the n-gram which ends at a token, `MAX_ORDINAL` where none is seen.
            paragraph_token: (num_paragraphs,) first token of each.
            document_paragraph: (num_documents + 1,) first paragraph of each; the last number is that of all paragraphs.
            decisions: filled in; verdicts that are set already stay.
        """
        _require_memory(
            self._library.onion_apply(
                address(sources), ctypes.c_uint32(MAX_ORDINAL), address(paragraph_token), address(document_paragraph),
                _int64(len(document_paragraph) - 1), _int64(len(sources)), *_rules(settings), *_places(decisions),
            )
        )  # fmt: skip

    def table(self) -> Table:
        """A new empty table."""
        return Table(self._library)


class Table:
    """N-grams of kept text: hash -> ordinal of the paragraph that first brought it, in 16 to 24 bytes each."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._pointer = ctypes.c_void_p(library.onion_table_new())
        _require_memory(self._pointer.value is not None)

    def __del__(self) -> None:
        self._library.onion_table_free(self._pointer)

    def __len__(self) -> int:
        return int(self._library.onion_table_size(self._pointer))

    def reserve(self, num_ngrams: int) -> None:
        """Make room for so many in all: growing one by one takes longer than all the rest."""
        _require_memory(self._library.onion_table_reserve(self._pointer, _int64(num_ngrams)))

    def first(self, hashes: NDArray[np.uint64], values: NDArray[np.uint32], none: int) -> NDArray[np.uint32]:
        """For each hash in order the value it was first stored with, or `none` where it is new, which stores it; 0 is always new.

        All arrays are (num_hashes,).
        """
        result = np.empty(len(hashes), np.uint32)
        _require_memory(
            self._library.onion_first(
                self._pointer, address(hashes), address(values), _int64(len(hashes)), ctypes.c_uint32(none), address(result)
            )
        )  # fmt: skip
        return result

    def decide(self, scan: Scan, settings: OnionSettings, first_ordinal: int, decisions: Decisions) -> None:
        """Decide over the next documents of the text and store the n-grams of what is kept.

        Args:
            first_ordinal: number of paragraphs before these, which gives each its ordinal.
            decisions: filled in; verdicts that are set already stay.
        """
        _require_memory(
            self._library.onion_decide(
                self._pointer, address(scan.hashes), address(scan.paragraph_token), address(scan.document_paragraph),
                _int64(scan.num_documents), _int64(len(scan.hashes)), ctypes.c_uint32(first_ordinal), int(settings.within_document),
                *_rules(settings), *_places(decisions),
            )
        )  # fmt: skip


_int64 = ctypes.c_int64


def _rules(settings: OnionSettings) -> tuple[Any, ...]:
    """The settings in the order of judgement_t in onion.c."""
    return (
        settings.n, ctypes.c_double(settings.threshold), BOUNDARIES.index(settings.boundary), SCORES.index(settings.score),
        SMOOTHINGS.index(settings.smoothing), _int64(settings.max_stub_tokens), _int64(settings.min_kept_tokens),
    )  # fmt: skip


def _places(decisions: Decisions) -> tuple[ctypes.c_void_p, ...]:
    """Where the decisions go, in the same order."""
    return tuple(
        address(array)
        for array in (
            decisions.verdict, decisions.covered, decisions.repeated, decisions.possible, decisions.source, decisions.source_ngrams,
        )
    )  # fmt: skip


def _require_memory(succeeded: int) -> None:
    if not succeeded:
        raise ValueError("there is not enough memory for the table of seen n-grams; use --passes 2 or a machine with more memory")
