"""Random rows that depend on the seed and on the token alone, not on its place in the vocabulary.

A compiled loop (random_rows.c) draws them, and sums the columns of matrices for their mean and deviation; without a compiler numpy gives the same bits.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import xxhash

from common import native
from common.devices import num_threads
from common.short_work import ShortWork
from conversion.formats.lazy_tensor import Bits, LazyTensor
from conversion.formats.mapped_pages import release_pages
from conversion.formats.numbers import Numbers, numbers_of

SOURCE = Path(__file__).with_name("random_rows.c")
_BLOCK_ROWS = 4096
_STRIPS, _TAIL = 256, 3.6541528853610088  # of the ziggurat, and where its last strip ends


@dataclass(frozen=True)
class RowStatistics:
    """Mean and standard deviation of the rows of a matrix, both (size,) float64."""

    mean: np.ndarray
    deviation: np.ndarray


def row_statistics(matrix: LazyTensor, row_ids: np.ndarray, *, over: str = "dimension") -> RowStatistics:
    """Mean and standard deviation over the given rows, in float64.

    Args:
        matrix: (num_rows, size), any floating dtype; read some rows at a time.
        row_ids: (num_ids,) the rows of real tokens, each once; the padding rows that many models have would pull both towards zero.
        over: `dimension`, one mean and deviation per dimension (as the code of WECHSEL, FOCUS and CLP-Transfer does), or
            `matrix`, one of each over all values.
    """
    is_taken = np.zeros(matrix.shape[0], dtype=bool)
    is_taken[row_ids] = True

    def sums_of(part: tuple[int, Bits]) -> np.ndarray:
        first, bits = part
        return _column_sums(bits, is_taken[first : first + len(bits)], matrix.dtype_name)

    sums = np.zeros((2, matrix.shape[1]))
    with ThreadPoolExecutor(num_threads()) as threads:
        for some in _some_at_a_time(matrix, num_threads()):
            for found in threads.map(sums_of, some):  # in the order of rows, whatever the number of threads
                sums += found
    mean, mean_square = sums / len(row_ids)
    if over == "matrix":
        mean, mean_square = np.full_like(mean, mean.mean()), np.full_like(mean, mean_square.mean())
    # In float64 the difference keeps all digits of values in half or single precision.
    return RowStatistics(mean, np.sqrt(np.maximum(mean_square - np.square(mean), 0)))


def _some_at_a_time(matrix: LazyTensor, num: int) -> Iterator[list[tuple[int, Bits]]]:
    """Parts of the rows, so many at once, each with the number of its first row; pages of a file that were read go back."""
    some: list[tuple[int, Bits]] = []
    done = 0
    for block in matrix.checked_blocks():
        for first in range(0, len(block), _BLOCK_ROWS):  # a block is the whole matrix where that is in memory
            some.append((done, block[first : first + _BLOCK_ROWS]))
            done += len(some[-1][1])
            if len(some) == num:
                yield some
                some = []
                release_pages(block)
    if some:
        yield some


def _column_sums(bits: Bits, is_taken: np.ndarray, dtype_name: str) -> np.ndarray:
    """(2, size) float64: sums of each column over the rows that are taken, and of squares; each in the order of rows."""
    library = _library()
    if library is None or dtype_name not in ("float32", "bfloat16"):
        rows = numbers_of(bits[is_taken], dtype_name).astype(np.float64)
        return np.stack([rows.sum(axis=0), np.square(rows).sum(axis=0)])
    sums = np.empty((2, bits.shape[1]))
    library.sum_columns(
        native.address(np.ascontiguousarray(bits)),
        ctypes.c_int(dtype_name == "bfloat16"),
        native.address(np.ascontiguousarray(is_taken)),
        ctypes.c_long(len(bits)),
        ctypes.c_long(bits.shape[1]),
        native.address(sums[0]),
        native.address(sums[1]),
    )
    return sums


def random_rows(keys: Sequence[str], statistics: RowStatistics, *, seed: int, layer: str) -> Numbers:
    """Draw a row per key from a normal distribution per dimension.

    Args:
        keys: `Vocabulary.keys` of the tokens.
        layer: name of the matrix: the same token has other draws in another matrix.

    Returns:
        (len(keys), size) float32
    """
    return RandomRows(statistics, seed=seed, layer=layer)(keys)


class RandomRows:
    """`random_rows` for many calls; arguments as there."""

    def __init__(self, statistics: RowStatistics, *, seed: int, layer: str) -> None:
        self._deviation, self._mean = statistics.deviation.astype(np.float32), statistics.mean.astype(np.float32)
        self._prefix = f"{layer}\0{seed}\0"
        self._library = _library()
        self._threads = ShortWork()

    def __call__(self, keys: Sequence[str]) -> Numbers:
        """(len(keys), size) float32"""
        digests = b"".join(xxhash.xxh3_128_digest(f"{self._prefix}{key}".encode()) for key in keys)
        words = (
            np.frombuffer(digests, ">u8").reshape(-1, 2)[:, ::-1].astype(np.uint64)
        )  # the key of each token's generator, its lower half first
        rows: Numbers = np.empty((len(keys), len(self._mean)), dtype=np.float32)
        draw = self._draw_by_numpy if self._library is None else self._draw
        self._threads(len(keys), lambda first, last: draw(words[first:last], rows[first:last]))
        return rows

    def _draw(self, words: np.ndarray, rows: np.ndarray) -> None:
        """Rows (num_rows, size) by the keys (num_rows, 2) of their generators."""
        assert self._library is not None
        sizes = map(ctypes.c_long, rows.shape)
        arrays = (_ziggurat(), self._deviation, self._mean, rows)
        self._library.draw_rows(native.address(words), *sizes, *map(native.address, arrays))

    def _draw_by_numpy(self, words: np.ndarray, rows: np.ndarray) -> None:
        """The same, many times slower."""
        for row, (low, high) in zip(rows, words.tolist()):
            # A counter-based generator takes its key as it is: nothing to warm up, 80,000 of them cost a second.
            row[:] = np.random.Generator(np.random.Philox(key=low | high << 64)).standard_normal(len(row), dtype=np.float32)
        rows *= self._deviation
        rows += self._mean


@cache
def _ziggurat() -> np.ndarray:
    """The constants of numpy's ziggurat as the compiled loop wants them, made of their definition (Marsaglia and Tsang 2000).

    Strips of equal area under exp(-x^2/2), the narrowest first: strip i reaches to x[i], and the first, which has the tail, counts as far as its area goes.
    """

    def height(x: float) -> float:
        return math.exp(-x * x / 2)

    area = _TAIL * height(_TAIL) + math.sqrt(math.pi / 2) * math.erfc(_TAIL / math.sqrt(2))
    ends = [_TAIL]
    for _ in range(_STRIPS - 2):
        ends.append(math.sqrt(-2 * math.log(area / ends[-1] + height(ends[-1]))))
    ends.append(0.0)
    x = ends[::-1]
    base = area / height(_TAIL)
    inside = [_TAIL / base, *(x[i - 1] / x[i] for i in range(1, _STRIPS))]
    steps = [base, *x[1:]]
    return np.concatenate(
        [
            np.rint(np.array(inside) * (1 << 23)).astype(np.uint32),
            *(
                np.array(floats, np.float32).view(np.uint32)
                for floats in (np.array(steps) / (1 << 23), [*map(height, x)], [_TAIL, 1 / _TAIL])
            ),
        ]
    )


@cache
def _library() -> ctypes.CDLL | None:
    return native.load(SOURCE, has_equal=True, flags=("-ffp-contract=off",))
