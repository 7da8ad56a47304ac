"""Windows of a text in the tokens of both vocabularies, cut where a token of each ends on the same byte."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from conversion.embeddings.methods.merge import byte_ends
from conversion.embeddings.methods.method import TransferInputs
from data_prep.reading.documents import batches

if TYPE_CHECKING:
    import torch

_BATCH_CHARACTERS = 1 << 20


@dataclass(frozen=True)
class Window:
    """A piece of text, the same bytes on both sides, and the chunks that neither side can cut further.

    Attributes:
        source_ids, target_ids: (num_tokens,) of that side.
        source_chunks, target_chunks: (num_tokens,) the number of the chunk that each token belongs to, from 0 up, without gaps.
    """

    source_ids: np.ndarray
    target_ids: np.ndarray
    source_chunks: np.ndarray
    target_chunks: np.ndarray

    @property
    def num_chunks(self) -> int:
        """Stretches of bytes between two places where a token of each side ends."""
        return int(self.target_chunks[-1]) + 1


def paired_windows(inputs: TransferInputs, max_tokens: int) -> Iterator[Window]:
    """Windows of the lines of the text, in its order.

    A line whose tokens do not spell it on both sides is left out (a normalizer changed it, or it has unknown characters), and so is a chunk
    that is longer than a window.

    Args:
        max_tokens: of a window, in either tokenization.
    """
    assert inputs.text is not None
    lines = (line for text in inputs.text for line in text.split("\n") if line.strip())
    for texts in batches(lines, _BATCH_CHARACTERS):
        for text, source_ids, target_ids in zip(texts, inputs.tokenize_source(texts), inputs.tokenize(texts)):
            source_ends, target_ends = byte_ends(inputs.source, source_ids, text), byte_ends(inputs.target, target_ids, text)
            if source_ends is not None and target_ends is not None:
                yield from cut(np.array(source_ids), source_ends, np.array(target_ids), target_ends, max_tokens)


def cut(
    source_ids: np.ndarray, source_ends: np.ndarray, target_ids: np.ndarray, target_ends: np.ndarray, max_tokens: int
) -> Iterator[Window]:
    """Windows of one text, each as many whole chunks as fit.

    Args:
        source_ids, target_ids: (num_tokens,) of that side.
        source_ends, target_ends: (num_tokens,) byte of the UTF-8 at which each token ends; the last are equal.
        max_tokens: of a window, on either side.
    """
    meeting = np.intersect1d(source_ends, target_ends)
    chunks = [np.searchsorted(meeting, ends) for ends in (source_ends, target_ends)]
    # Number of tokens up to the end of each chunk, on both sides.
    counts = np.stack([np.searchsorted(of_side, np.arange(len(meeting)), side="right") for of_side in chunks])
    first = 0
    while first < len(meeting):
        begin = counts[:, first - 1] if first else np.zeros(2, dtype=np.int64)
        last = int(np.searchsorted((counts - begin[:, None]).max(axis=0), max_tokens, side="right"))
        if last > first:
            end = counts[:, last - 1]
            source, target = (slice(start, stop) for start, stop in zip(begin.tolist(), end.tolist()))
            yield Window(source_ids[source], target_ids[target], chunks[0][source] - first, chunks[1][target] - first)
        first = max(last, first + 1)


def balanced_order(tokens: Sequence[np.ndarray], num_windows: int, *, seed: int) -> list[int]:
    """Which windows to learn from, one after the other, so that rare tokens are seen as often as the text allows.

    The next window is one of those that have the token seen least often so far; which, the seed decides.  When all have been taken, they are
    taken again.

    Args:
        tokens: of each window, the ids (num_learned,) of the tokens that are learned and in it, at least one, each once.
        num_windows: how many are to be learned from.

    Returns:
        num_windows indices into `tokens`
    """
    generator = np.random.default_rng(seed)
    places: defaultdict[int, list[int]] = defaultdict(list)
    for index in generator.permutation(len(tokens)).tolist():
        for token in tokens[index].tolist():
            places[token].append(index)
    rank = dict(zip(places, generator.permutation(len(places)).tolist()))
    seen = dict.fromkeys(places, 0)
    order: list[int] = []
    while len(order) < num_windows:
        is_taken = np.zeros(len(tokens), dtype=bool)
        left = {token: iter(indices) for token, indices in places.items()}
        heap = [(seen[token], rank[token], token) for token in places]
        heapq.heapify(heap)
        while heap and len(order) < num_windows:
            count, _, token = heapq.heappop(heap)
            if count < seen[token]:  # was seen beside another token meanwhile
                heapq.heappush(heap, (seen[token], rank[token], token))
                continue
            index = next((i for i in left[token] if not is_taken[i]), None)
            if index is None:
                continue
            is_taken[index] = True
            order.append(index)
            for other in tokens[index].tolist():
                seen[other] += 1
            heapq.heappush(heap, (seen[token], rank[token], token))
    return order


@dataclass(frozen=True)
class Batch:
    """Windows side by side, each after the start token, padded at the right; tensors on one device.

    Attributes:
        num_chunks: of all windows.
        source_ids, source_mask: (num_windows, longest) int64.
        target_ids, target_mask: the same of the target.
        source_chunks, target_chunks: (num_windows, longest) number of each token's chunk within the batch; -1 at the start token and the padding.
        source_places, target_places: (num_compared,) places in the flattened batch of the last token of each chunk that ends with or behind
            a learned token of its window.
    """

    num_chunks: int
    source_ids: torch.Tensor
    source_mask: torch.Tensor
    target_ids: torch.Tensor
    target_mask: torch.Tensor
    source_chunks: torch.Tensor
    target_chunks: torch.Tensor
    source_places: torch.Tensor
    target_places: torch.Tensor


def make_batch(windows: Sequence[Window], is_learned: np.ndarray, *, source_start: int, target_start: int, device: str) -> Batch:
    """Put windows together.

    Args:
        is_learned: (num_target_tokens,) bool.
        source_start, target_start: id of the start token on each side.
    """
    import torch

    num_before = np.cumsum([0, *(window.num_chunks for window in windows)])
    source_ids, source_mask, source_chunks = _padded([w.source_ids for w in windows], [w.source_chunks for w in windows], source_start)
    target_ids, target_mask, target_chunks = _padded([w.target_ids for w in windows], [w.target_chunks for w in windows], target_start)
    first_compared = [int(w.target_chunks[is_learned[w.target_ids]].min(initial=w.num_chunks)) for w in windows]
    compared = [np.arange(first, w.num_chunks) for w, first in zip(windows, first_compared)]

    def places(rows: list[np.ndarray], longest: int) -> np.ndarray:
        # One more: the start token stands before them.
        ends = [np.searchsorted(row, chunks, side="right") + number * longest for number, (row, chunks) in enumerate(zip(rows, compared))]
        return np.concatenate(ends).astype(np.int64)

    source_places = places([w.source_chunks for w in windows], source_ids.shape[1])
    target_places = places([w.target_chunks for w in windows], target_ids.shape[1])
    for chunks in (source_chunks, target_chunks):
        chunks += np.where(chunks >= 0, num_before[:-1, None], 0)
    arrays = (source_ids, source_mask, target_ids, target_mask, source_chunks, target_chunks, source_places, target_places)
    return Batch(int(num_before[-1]), *(torch.from_numpy(array).to(device) for array in arrays))


def _padded(ids: list[np.ndarray], chunks: list[np.ndarray], start: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, mask and chunks of rows of different lengths behind the start token, each (num_rows, longest + 1) int64."""
    shape = (len(ids), 1 + max(map(len, ids)))
    # Padding stands right: OPT counts its positions from the mask.
    padded_ids, mask, padded_chunks = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.full(shape, -1, np.int64)
    padded_ids[:, 0] = start
    mask[:, 0] = 1
    for row, (row_ids, row_chunks) in enumerate(zip(ids, chunks)):
        padded_ids[row, 1 : len(row_ids) + 1] = row_ids
        mask[row, 1 : len(row_ids) + 1] = 1
        padded_chunks[row, 1 : len(row_ids) + 1] = row_chunks
    return padded_ids, mask, padded_chunks
