"""Reads a supervised fastText model (`.bin`, or quantized `.ftz`) and gives the probability of each of its labels for a text.

fastText (Joulin et al. 2017; MIT) is archived by its authors, its own package needs a compiler, and a model of GlotLID's size (1.7 GB) would be in
the memory of every worker; here the matrices are mapped from the file, so all processes of a machine share them.  Probabilities are those of the
original (tests compare them with what the package `fasttext-wheel` 0.9.2 says): also its logarithm of p + 1e-5, which makes some a little too large.
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_MAGIC, _VERSIONS = 793712314, (11, 12)
_SUPERVISED = 3
_HIERARCHICAL, _NEGATIVE, _SOFTMAX, _ONE_VS_ALL = 1, 2, 3, 4
_LABEL_ENTRY = 1
_END = b"</s>"  # stands at the end of every text
_ROOM = np.float32(1e-5)  # added before each logarithm
_SIGMOID_REACH, _SIGMOID_STEPS = 8, 512  # the original's table of the logistic function
_CENTROIDS = 256
_CACHE_BYTES = 32 << 20
_SPLIT = re.compile(rb"[ \n\r\t\v\f\0]+")
_HASH_START, _HASH_PRIME = 0x811C9DC5, 0x01000193
_WORD_NGRAM_PRIME, _MASK_64 = 116049371, (1 << 64) - 1

Floats = NDArray[np.float32]


class _Arguments(NamedTuple):
    dim: int
    window: int
    epoch: int
    min_count: int
    negatives: int
    word_ngrams: int
    loss: int
    kind: int
    buckets: int
    min_letters: int
    max_letters: int
    update_rate: int
    threshold: float


class FastTextModel:
    """A classifier of texts.

    Attributes:
        labels: as the file has them, without the prefix `__label__`.

    Raises:
        ValueError: if the file is not a whole supervised model.
    """

    def __init__(self, path: Path) -> None:
        try:
            file = _File(path)
            self._arguments = _arguments(file)
            self._read_entries(file)
            quantized = bool(file.unpack("?"))
            if self._kept_buckets and not quantized:
                raise ValueError(f"{path} has a pruned dictionary without quantized vectors; quantize the model again")
            self._input = _matrix(file, quantized)
            self._output = _matrix(file, bool(file.unpack("?")))
        except struct.error as error:
            raise ValueError(f"{path} ends in the middle of a fastText model; copy it again") from error
        if self._input.shape[1] != self._arguments.dim or self._output.shape != (len(self.labels), self._arguments.dim):
            raise ValueError(f"{path} has matrices that do not fit its labels and dimension; copy it again")
        if self._input.shape[0] < self._num_rows_asked():
            raise ValueError(f"{path} has {self._input.shape[0]} vectors, fewer than its words and their parts ask for; copy it again")
        self._output_rows = self._output.rows(np.arange(len(self.labels)))
        if not np.isfinite(self._output_rows).all():
            raise ValueError(f"{path} has vectors of labels that are not numbers; copy it again")
        self._tree = _tree(self._label_counts) if self._arguments.loss == _HIERARCHICAL else None
        self._known: dict[bytes, tuple[Floats, int]] = {}
        self._most_known = max(_CACHE_BYTES // (4 * self._arguments.dim + 150), 1000)

    def _num_rows_asked(self) -> int:
        """How many rows of the input matrix words, their parts and runs of words may ask for."""
        if self._kept_buckets is not None:
            return len(self._words) + max(self._kept_buckets.values(), default=-1) + 1
        has_parts = self._arguments.max_letters > 0 or self._arguments.word_ngrams > 1
        return len(self._words) + (max(self._arguments.buckets, 1) if has_parts else 0)

    def probabilities(self, text: str) -> Floats:
        """(num_labels,) the probability of each for a text, its line ends taken as spaces; all zero of a text without a known part."""
        hidden = self._hidden([token for token in _SPLIT.split(text.encode()) if token] + [_END])
        if hidden is None:
            return np.zeros(len(self.labels), np.float32)
        if self._tree is not None:
            return self._tree.probabilities(_sigmoid(self._output_rows @ hidden))
        scores = self._output_rows @ hidden
        if self._arguments.loss == _SOFTMAX:
            scores = np.exp(scores - scores.max())
            return scores / scores.sum() + _ROOM
        places = ((scores + _SIGMOID_REACH) * _SIGMOID_STEPS / (2 * _SIGMOID_REACH)).astype(np.int64)
        table = np.float32(2 * _SIGMOID_REACH) * np.clip(places, 0, _SIGMOID_STEPS) / np.float32(_SIGMOID_STEPS) - _SIGMOID_REACH
        beyond = np.where(scores < 0, np.float32(0), np.float32(1))
        return np.where(np.abs(scores) > _SIGMOID_REACH, beyond, _sigmoid(table.astype(np.float32))) + _ROOM

    def _hidden(self, tokens: list[bytes]) -> Floats | None:
        """(dim,) the mean vector of all parts of a text; None where nothing of it is known."""
        total, number = np.zeros(self._arguments.dim, np.float32), 0
        words = [token for token in tokens if token in self._words or not token.startswith(b"__label__")]
        for word in words:
            found = self._known.get(word)
            if found is None:
                rows = self._rows_of(word)
                found = self._input.rows(rows).sum(axis=0), len(rows)
                if len(self._known) >= self._most_known:
                    self._known.clear()
                self._known[word] = found
            total += found[0]
            number += found[1]
        if self._arguments.word_ngrams > 1:
            rows = self._bucket_rows(self._word_ngrams(words))
            total += self._input.rows(rows).sum(axis=0)
            number += len(rows)
        return total / np.float32(number) if number else None

    def _rows_of(self, word: bytes) -> NDArray[np.int64]:
        """The rows of the input matrix that a word is made of: its own, if it has one, and those of its parts."""
        entry = self._words.get(word)
        own = np.array([] if entry is None else [entry], np.int64)
        if word == _END or self._arguments.max_letters <= 0:
            return own
        return np.concatenate([own, self._bucket_rows(_parts(word, self._arguments.min_letters, self._arguments.max_letters))])

    def _word_ngrams(self, words: list[bytes]) -> list[int]:
        """Hashes of the runs of 2 to `word_ngrams` words; those of the words count as signed, as in the original."""
        signed = [value - (1 << 32) if (value := _hash(word)) >= 1 << 31 else value for word in words]
        found = []
        for first, value in enumerate(signed):
            for following in signed[first + 1 : first + self._arguments.word_ngrams]:
                value = (value * _WORD_NGRAM_PRIME + following) & _MASK_64
                found.append(value)
        return found

    def _bucket_rows(self, hashes: list[int]) -> NDArray[np.int64]:
        buckets = (np.array(hashes, np.uint64) % np.uint64(max(self._arguments.buckets, 1))).astype(np.int64)
        if self._kept_buckets is not None:
            buckets = np.array([kept for bucket in buckets.tolist() if (kept := self._kept_buckets.get(bucket)) is not None], np.int64)
        return buckets + len(self._words)

    def _read_entries(self, file: _File) -> None:
        size, num_words, num_labels, _, num_kept = file.unpack("iiiqq")
        self._words: dict[bytes, int] = {}
        labels, counts = [], []
        for _ in range(size):
            word = file.text()
            count, kind = file.unpack("qb")
            if kind == _LABEL_ENTRY:
                labels.append(word)
                counts.append(count)
            else:
                self._words[word] = len(self._words)
        if (len(self._words), len(labels)) != (num_words, num_labels) or not labels:
            raise ValueError(f"{file.path} counts {num_words} words and {num_labels} labels but holds others; copy it again")
        self._label_counts = counts
        self.labels = tuple(label.decode("utf-8", "replace").removeprefix("__label__") for label in labels)
        # -1 says that nothing was pruned, 0 that all parts of words were.
        self._kept_buckets = dict(file.unpack("ii") for _ in range(num_kept)) if num_kept >= 0 else None


@lru_cache(maxsize=1)
def load(path: Path) -> FastTextModel:
    """The model of a file, read once in a process and shared with those that are forked from it."""
    return FastTextModel(path)


class _File:
    """A file read from its beginning."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            found = "is not a file" if path.exists() else "does not exist"
            raise ValueError(f"the language model {path} {found}; give a fastText model (.bin or .ftz), such as that of GlotLID")
        if not path.stat().st_size:
            raise ValueError(f"{path} is empty; expected a fastText model (.bin or .ftz)")
        with open(path, "rb") as file:
            self._bytes = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self._place = 0

    def unpack(self, form: str) -> Any:
        """Values in the machine's order without padding; one alone is not in a tuple."""
        form = f"<{form}"
        values = struct.unpack_from(form, self._bytes, self._place)
        self._place += struct.calcsize(form)
        return values if len(values) > 1 else values[0]

    def text(self) -> bytes:
        """What stands before the next NUL."""
        start, reach = self._place, 256
        while (end := bytes(self._bytes[start : start + reach]).find(b"\0")) < 0:
            if start + reach >= len(self._bytes):
                raise struct.error("no end of a text")
            reach *= 4
        self._place = start + end + 1
        return bytes(self._bytes[start : start + end])

    def array(self, kind: type, *shape: int) -> NDArray[Any]:
        """An array of any shape that stays in the file."""
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        if min(shape) < 0 or self._place + size > len(self._bytes):
            raise struct.error("an array that is longer than the file")
        found: NDArray[Any] = np.frombuffer(self._bytes[self._place : self._place + size], kind).reshape(shape)
        self._place += size
        return found


def _arguments(file: _File) -> _Arguments:
    try:
        magic, version = file.unpack("ii")
    except struct.error:
        magic, version = 0, 0
    if magic != _MAGIC or version not in _VERSIONS:
        raise ValueError(f"{file.path} is not a fastText model; expected a .bin or .ftz that fastText has written, such as that of GlotLID")
    found = _Arguments(*file.unpack("12id"))
    if found.kind != _SUPERVISED:
        raise ValueError(
            f"{file.path} holds word vectors of fastText, which cannot identify languages; expected a supervised model, such as that of GlotLID"
        )
    if found.loss not in (_HIERARCHICAL, _NEGATIVE, _SOFTMAX, _ONE_VS_ALL):
        raise ValueError(f"{file.path} was trained with the unknown loss {found.loss}; expected a model of fastText 0.9")
    return found._replace(max_letters=0) if version == 11 else found  # older supervised models know no parts of words


@dataclass(frozen=True)
class _Dense:
    values: Floats

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    def rows(self, places: NDArray[np.int64]) -> Floats:
        """(len(places), dim)"""
        return np.asarray(self.values[places])


@dataclass(frozen=True)
class _Quantized:
    """Rows as codes of their parts (product quantization, Jégou et al. 2011), perhaps with the norm of each coded too.

    Attributes:
        codes: (num_rows, num_parts)
        centroids: one of each part, (256, part_size)
        norms: (num_rows,), None where they are in the parts.
    """

    codes: NDArray[np.uint8]
    centroids: tuple[Floats, ...]
    norms: Floats | None

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.codes), sum(part.shape[1] for part in self.centroids)

    def rows(self, places: NDArray[np.int64]) -> Floats:
        """(len(places), dim)"""
        codes = self.codes[places]
        found = np.concatenate([part[codes[:, number]] for number, part in enumerate(self.centroids)], axis=1)
        return found if self.norms is None else found * self.norms[places, None]


def _matrix(file: _File, quantized: bool) -> _Dense | _Quantized:
    if not quantized:
        rows, columns = file.unpack("qq")
        return _Dense(file.array(np.float32, rows, columns))
    has_norms = bool(file.unpack("?"))
    rows, _, size = file.unpack("qqi")
    codes = file.array(np.uint8, size)
    centroids = _centroids(file)
    norms = None
    if has_norms:
        norm_codes = file.array(np.uint8, rows)
        norms = _centroids(file)[0][norm_codes, 0]
    return _Quantized(codes.reshape(rows, len(centroids)), centroids, norms)


def _centroids(file: _File) -> tuple[Floats, ...]:
    """Of each part, (256, its size); only the last part is of another size."""
    dim, num_parts, part_size, last_size = file.unpack("iiii")
    flat = file.array(np.float32, dim * _CENTROIDS)
    edge = (num_parts - 1) * _CENTROIDS * part_size
    first = flat[:edge].reshape(num_parts - 1, _CENTROIDS, part_size)
    return (*first, flat[edge:].reshape(_CENTROIDS, last_size))


@dataclass(frozen=True)
class _Tree:
    """The Huffman tree of hierarchical softmax: inner nodes from the root down, each with its two children.

    Attributes:
        nodes, left, right: numbers of nodes; leaves come first, an inner node is its row of the output matrix plus the number of leaves.
    """

    num_leaves: int
    nodes: tuple[int, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]

    def probabilities(self, going_right: Floats) -> Floats:
        """(num_leaves,) the product along the way to each leaf.

        Args:
            going_right: (num_nodes,), num_leaves - 1 or more: probability of the right child at each inner node.
        """
        reached = np.ones(2 * self.num_leaves - 1, np.float32)
        for node, left, right in zip(self.nodes, self.left, self.right):
            at_right = going_right[node - self.num_leaves]
            reached[left] = reached[node] * (1 - at_right + _ROOM)
            reached[right] = reached[node] * (at_right + _ROOM)
        return reached[: self.num_leaves]


def _tree(counts: list[int]) -> _Tree:
    """Built as fastText does: labels come by falling count, and of equal counts the joined node is taken first."""
    number = len(counts)
    weights = [float(count) for count in counts] + [1e15] * (number - 1)
    leaf, node = number - 1, number
    children = []
    for parent in range(number, 2 * number - 1):
        pair = []
        for _ in range(2):
            if leaf >= 0 and weights[leaf] < weights[node]:
                pair.append(leaf)
                leaf -= 1
            else:
                pair.append(node)
                node += 1
        weights[parent] = weights[pair[0]] + weights[pair[1]]
        children.append(pair)
    order = range(2 * number - 2, number - 1, -1)
    lefts, rights = (tuple(children[node - number][side] for node in order) for side in (0, 1))
    return _Tree(number, tuple(order), lefts, rights)


def _sigmoid(values: Floats) -> Floats:
    return 1 / (1 + np.exp(-values))


def _parts(word: bytes, shortest: int, longest: int) -> list[int]:
    """Hashes of the runs of characters in <word>, but of the two marks alone."""
    marked = b"<" + word + b">"
    starts = [place for place, byte in enumerate(marked) if byte & 0xC0 != 0x80] + [len(marked)]
    values = [byte if byte < 128 else byte | 0xFFFFFF00 for byte in marked]
    last = len(starts) - 1
    hashes = []
    for first in range(last):
        value, place = _HASH_START, starts[first]
        for end in range(first + 1, min(first + longest, last) + 1):
            reach = starts[end]
            while place < reach:
                value = ((value ^ values[place]) * _HASH_PRIME) & 0xFFFFFFFF
                place += 1
            if end - first >= shortest and not (end - first == 1 and (first == 0 or end == last)):
                hashes.append(value)
    return hashes


def _hash(word: bytes) -> int:
    """FNV-1a of 32 bits, in which bytes above 127 count as negative numbers, as in the original."""
    value = _HASH_START
    for byte in word:
        value = ((value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * _HASH_PRIME) & 0xFFFFFFFF
    return value
