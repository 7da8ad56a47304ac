"""Merge and Align: means along the target's merge rules, and by how source tokens align with a token in text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import sparse

from conversion.embeddings.methods.method import TransferInputs, plan_rows
from conversion.embeddings.methods.row_plan import RowPlan
from conversion.embeddings.spaces.sparse_weights import piece_weights
from conversion.embeddings.vocabularies.vocabulary import Vocabulary
from data_prep.reading.documents import batches

_BATCH_CHARACTERS = 1 << 20


def merge_method(inputs: TransferInputs) -> RowPlan:
    """Copy what both vocabularies have; a new token is the mean of the two parts that BPE joins to it, each made the same way.

    Hierarchical mean (Yamaguchi et al. 2024, algorithm 1).  Several merges to one token are averaged.  A part that is neither
    shared nor merged is the mean of its source pieces, where the paper's code draws it.

    Raises:
        ValueError: if the target tokenizer is not a BPE.
    """
    ids = inputs.new_ids
    return plan_rows(inputs, ids, merge_weights(inputs, ids))


def align_method(inputs: TransferInputs) -> RowPlan:
    """Copy what both vocabularies have; a new token is the mean of the source tokens that stand in its place in text, by frequency.

    Align (Yamaguchi et al. 2024, algorithm 2).  Places are bytes, every occurrence counts, and a source token counts if it covers
    any byte of the new one.  The published code works on characters, counts a token once per line, the last time that it occurs,
    and takes only source tokens that lie inside the new one or around it.  Tokens that are not in the text are made as by Merge, or as
    by Mean where the target is not a BPE.
    """
    ids = inputs.new_ids
    seen = alignment_weights(inputs, ids)
    is_unseen = np.diff(seen.indptr) == 0
    unseen = ids[is_unseen]
    if inputs.target.merges is not None:
        others = merge_weights(inputs, unseen)
    else:
        others = piece_weights(inputs.source, inputs.target, unseen)
    order = np.argsort(np.concatenate([np.flatnonzero(~is_unseen), np.flatnonzero(is_unseen)]), kind="stable")
    return plan_rows(inputs, ids, sparse.vstack([seen[~is_unseen], others], format="csr")[order])


def merge_weights(inputs: TransferInputs, ids: np.ndarray) -> sparse.csr_matrix:
    """Weights of the hierarchical mean for the given target ids (num_ids,).

    Returns:
        (len(ids), num_source_tokens); rows sum to 1, or have no entries where no part has a source token.

    Raises:
        ValueError: if the target tokenizer is not a BPE.
    """
    target = inputs.target
    if target.merges is None:
        raise ValueError("--method merge follows merge rules, but the target tokenizer is not BPE; choose mean, which needs none")
    target_ids = {token: i for i, token in enumerate(target.tokens)}
    merges_of: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for first, second in target.merges:
        merges_of[first + second].append((first, second))

    @cache
    def weights_of(token: str) -> dict[int, float]:
        target_id = target_ids.get(token)
        if target_id is not None and inputs.overlap.source_ids[target_id] >= 0:
            return {int(inputs.overlap.source_ids[target_id]): 1.0}
        averages = [_average([part for part in (weights_of(a), weights_of(b)) if part]) for a, b in merges_of[token]]
        if averages := [average for average in averages if average]:
            return _average(averages)
        pieces = inputs.source.pieces(target.token_bytes[target_id] or b"") if target_id is not None else []
        return _average([{piece: 1.0} for piece in pieces])

    return _from_dictionaries([weights_of(target.tokens[i] or "") for i in ids], len(inputs.source))


def alignment_weights(inputs: TransferInputs, ids: np.ndarray) -> sparse.csr_matrix:
    """Weights by how often which source tokens stand in the place of each of the given target tokens (num_ids,).

    A text whose tokens do not spell it (a normalizer changed it, or it has unknown characters) is left out.

    Returns:
        (len(ids), num_source_tokens); rows sum to 1, or have no entries where the token is not in the text.
    """
    assert inputs.text is not None
    num_source = len(inputs.source)
    total = sparse.csr_matrix((len(inputs.target), num_source))
    documents = (line for text in inputs.text for line in text.split("\n")) if inputs.as_published else inputs.text
    for texts in batches(documents, _BATCH_CHARACTERS):
        aligned = [sides for sides in _spelled(inputs, texts) if sides is not None]
        places = _published_places(aligned) if inputs.as_published else _places(aligned)
        total += _counts(*places, shape=total.shape)
    seen = total[ids]
    sums = np.asarray(seen.sum(axis=1)).ravel()
    weights = sparse.csr_matrix(sparse.diags(1 / np.where(sums > 0, sums, 1)) @ seen)
    weights.sort_indices()
    return weights


@dataclass(frozen=True)
class _Aligned:
    """A text in the tokens of both sides, and where in its bytes each token ends."""

    text: str
    target_tokens: np.ndarray
    target_ends: np.ndarray
    source_tokens: np.ndarray
    source_ends: np.ndarray


def _spelled(inputs: TransferInputs, texts: list[str]) -> Iterator[_Aligned | None]:
    """The texts in tokens; None where those of a side do not spell it."""
    for text, target_tokens, source_tokens in zip(texts, inputs.tokenize(texts), inputs.tokenize_source(texts)):
        target_ends, source_ends = byte_ends(inputs.target, target_tokens, text), byte_ends(inputs.source, source_tokens, text)
        if target_ends is None or source_ends is None:
            yield None
        else:
            yield _Aligned(text, np.array(target_tokens), target_ends, np.array(source_tokens), source_ends)


def _places(aligned: list[_Aligned]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each target token of the texts, how many source tokens cover a byte of it, and those one after the other."""
    if not aligned:
        return (np.empty(0, dtype=np.int64),) * 3
    # All texts behind each other, so that one search finds the places of all.
    offsets = np.cumsum([0, *(text.target_ends[-1] for text in aligned)])[:-1]
    target_ends = np.concatenate([text.target_ends + offset for text, offset in zip(aligned, offsets)])
    starts = np.concatenate([np.concatenate([[0], text.target_ends[:-1]]) + offset for text, offset in zip(aligned, offsets)])
    source_ends = np.concatenate([text.source_ends + offset for text, offset in zip(aligned, offsets)])
    first = np.searchsorted(source_ends, starts, side="right")
    last = np.searchsorted(source_ends, target_ends, side="left")
    lengths = np.maximum(last - first + 1, 0)
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    source_tokens = np.concatenate([text.source_tokens for text in aligned])
    return np.concatenate([text.target_tokens for text in aligned]), lengths, source_tokens[np.repeat(first, lengths) + within]


def _counts(target_tokens: np.ndarray, lengths: np.ndarray, source_tokens: np.ndarray, *, shape: tuple[int, int]) -> sparse.csr_matrix:
    """How often each source token stands for each target token; several that stand for one share it."""
    values = np.repeat(1 / np.maximum(lengths, 1), lengths)
    return sparse.csr_matrix((values, (np.repeat(target_tokens, lengths), source_tokens)), shape=shape)


def _published_places(aligned: list[_Aligned]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same as the published code: per line each target token once, with the source tokens inside or around it by characters."""
    found: list[tuple[int, np.ndarray]] = []
    for line in aligned:
        char_of_byte = np.repeat(np.arange(len(line.text)), [len(char.encode()) for char in line.text])
        source_spans = _char_spans(line.source_ends, char_of_byte)
        of_token = {}
        for token, (start, end) in zip(line.target_tokens.tolist(), _char_spans(line.target_ends, char_of_byte)):
            is_inside = (source_spans[:, 0] >= start) & (source_spans[:, 1] <= end)
            is_around = (source_spans[:, 0] <= start) & (source_spans[:, 1] >= end)
            of_token[token] = line.source_tokens[is_inside | is_around]
        found += of_token.items()
    lengths = np.array([len(sources) for _, sources in found], dtype=np.int64)
    tokens = np.array([token for token, _ in found], dtype=np.int64)
    return tokens, lengths, np.concatenate([np.empty(0, np.int64), *(sources for _, sources in found)])


def _char_spans(ends: np.ndarray, char_of_byte: np.ndarray) -> np.ndarray:
    """(num_tokens, 2) first character that each token touches, and the one after the last."""
    starts = np.concatenate([[0], ends[:-1]])
    last = np.maximum(ends, starts + 1) - 1
    return np.stack([char_of_byte[starts], char_of_byte[last] + 1], axis=1)


def byte_ends(vocabulary: Vocabulary, ids: list[int], text: str) -> np.ndarray | None:
    """(len(ids),) offset in the text's UTF-8 bytes at which each token ends; None if the tokens do not spell the text.

    A space that SentencePiece puts before a text counts as part of the first token.
    """
    if not ids:
        return None
    try:
        joined = b"".join([vocabulary.token_bytes[i] for i in ids])  # type: ignore[misc]
    except TypeError:  # a special token stands for no bytes
        return None
    data = text.encode()
    extra = len(joined) - len(data)
    if extra not in (0, 1) or joined[extra:] != data or (extra and joined[:1] != b" "):
        return None
    return np.maximum(np.cumsum(vocabulary.byte_lengths[ids]) - extra, 0)


def _average(parts: list[dict[int, float]]) -> dict[int, float]:
    total: defaultdict[int, float] = defaultdict(float)
    for part in parts:
        for source_id, weight in part.items():
            total[source_id] += weight / len(parts)
    return dict(total)


def _from_dictionaries(rows: list[dict[int, float]], num_columns: int) -> sparse.csr_matrix:
    pointers = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    columns = np.array([column for row in rows for column in row], dtype=np.int64)
    values = np.array([value for row in rows for value in row.values()], dtype=np.float64)
    matrix = sparse.csr_matrix((values, columns, pointers), shape=(len(rows), num_columns))
    matrix.sort_indices()
    return matrix
