"""The texts of many tokens stored end to end, which takes a fraction of the memory of Python objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import overload

import numpy as np

_BLOCK = 4096  # texts whose places are numbers of Python at a time


class PackedBytes(Sequence[bytes | None]):
    """Bytes by number, made when they are asked for; None for what has none.

    Args:
        data: all of them.
        lengths: (num,) of each in the data.
        is_known: (num,) bool; what is not known has no length.
    """

    def __init__(self, data: bytes, lengths: np.ndarray, is_known: np.ndarray) -> None:
        self._data, self.lengths, self.is_known = data, lengths.astype(np.int32, copy=False), is_known
        self._starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).data  # whose numbers are Python's, as slices want them

    @classmethod
    def of(cls, texts: Iterable[bytes | None]) -> PackedBytes:
        """Pack what is given one by one."""
        found = list(texts)
        known = [text or b"" for text in found]
        is_known = np.array([text is not None for text in found], dtype=bool)
        return cls(b"".join(known), np.fromiter(map(len, known), np.int64, len(known)), is_known)

    @classmethod
    def of_strings(cls, texts: Sequence[str], is_known: np.ndarray, *, as_space: str = "") -> PackedBytes:
        """Pack texts in UTF-8.

        Args:
            is_known: (num,) bool; what is not known is empty.
            as_space: a character that becomes a space.
        """
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        joined = "".join(texts)
        if as_space:
            joined = joined.replace(as_space, " ")
        if not joined.isascii():
            characters = np.frombuffer(joined.encode("utf-32-le"), np.uint32)
            widths = 1 + (characters >= 0x80) + (characters >= 0x800) + (characters >= 0x10000)
            ends = np.concatenate([[0], np.cumsum(widths)])
            lengths = np.diff(ends[np.concatenate([[0], np.cumsum(lengths)])])
        return cls(joined.encode(), lengths, is_known)

    @classmethod
    def concatenated(cls, parts: Sequence[PackedBytes]) -> PackedBytes:
        """One behind the other."""
        lengths, is_known = (
            [np.empty(0, np.int32), *(part.lengths for part in parts)],
            [np.empty(0, bool), *(part.is_known for part in parts)],
        )
        return cls(b"".join(part._data for part in parts), np.concatenate(lengths), np.concatenate(is_known))

    def with_others(self, others: Mapping[int, bytes | None]) -> PackedBytes:
        """The same but for some numbers."""
        lengths, is_known = self.lengths.copy(), self.is_known.copy()
        parts, done = [], 0
        for number in sorted(others):
            text = others[number]
            parts += [self._data[self._starts[done] : self._starts[number]], text or b""]
            lengths[number], is_known[number], done = len(text or b""), text is not None, number + 1
        return PackedBytes(b"".join([*parts, self._data[self._starts[done] :]]), lengths, is_known)

    def __len__(self) -> int:
        return len(self.is_known)

    @overload
    def __getitem__(self, number: int, /) -> bytes | None: ...
    @overload
    def __getitem__(self, number: slice, /) -> list[bytes | None]: ...
    def __getitem__(self, number: int | slice, /) -> bytes | list[bytes | None] | None:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        if number < 0:
            number += len(self)
        start, end = self._starts[number], self._starts[number + 1]
        return self._data[start:end] if start < end or self.is_known[number] else None

    def __iter__(self) -> Iterator[bytes | None]:
        for first in range(0, len(self), _BLOCK):
            places = self._starts[first : first + _BLOCK + 1].tolist()
            for (start, end), is_known in zip(pairwise(places), self.is_known[first : first + _BLOCK].tolist()):
                yield self._data[start:end] if is_known else None


class PackedStrings(Sequence[str | None]):
    """The same of texts in UTF-8."""

    def __init__(self, packed: PackedBytes) -> None:
        self.packed = packed

    def __len__(self) -> int:
        return len(self.packed)

    @overload
    def __getitem__(self, number: int, /) -> str | None: ...
    @overload
    def __getitem__(self, number: slice, /) -> list[str | None]: ...
    def __getitem__(self, number: int | slice, /) -> str | list[str | None] | None:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        found = self.packed[number]
        return None if found is None else found.decode()

    def __iter__(self) -> Iterator[str | None]:
        return (None if text is None else text.decode() for text in self.packed)
