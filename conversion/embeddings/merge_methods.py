"""Merge and Align: the mean along the target's merge rules, and by how source tokens stand for a token in text."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache

import numpy as np
from scipy import sparse

from conversion.embeddings.method import TransferInputs, plan_rows
from conversion.embeddings.row_plan import RowPlan
from conversion.embeddings.subword_pieces import piece_weights
from conversion.embeddings.vocabulary import Vocabulary
from data_prep.documents import batches

_BATCH_CHARACTERS = 1 << 20


def merge_method(inputs: TransferInputs) -> RowPlan:
    """Copy what both vocabularies have; a new token is the mean of the two parts that BPE joins to it, each made the same way.

    Hierarchical mean (Yamaguchi et al. 2024, algorithm 1).  Several merges to one token are averaged.  A part that is neither
    shared nor merged is the mean of its source pieces, where the paper's code draws it.

    Raises:
        ValueError: if the target tokenizer is no BPE.
    """
    ids = inputs.new_ids
    return plan_rows(inputs, ids, merge_weights(inputs, ids))


def align_method(inputs: TransferInputs) -> RowPlan:
    """Copy what both vocabularies have; a new token is the mean of the source tokens that stand in its place in text, by frequency.

    Align (Yamaguchi et al. 2024, algorithm 2).  Places are bytes, every occurrence counts, and a source token counts if it covers
    any byte of the new one.  The published code works on characters, counts a token once per line, the last time that it occurs,
    and takes only source tokens that lie inside the new one or around it.  Tokens that the text has not are made as by Merge, or as
    by Mean where the target is no BPE.
    """
    ids = inputs.new_ids
    seen = alignment_weights(inputs, ids)
    is_unseen = np.diff(seen.indptr) == 0
    unseen = ids[is_unseen]
    if inputs.target.merges is not None:
        others = merge_weights(inputs, unseen)
    else:
        others = piece_weights(inputs.source, [inputs.target.token_bytes[i] or b"" for i in unseen])
    order = np.argsort(np.concatenate([np.flatnonzero(~is_unseen), np.flatnonzero(is_unseen)]), kind="stable")
    return plan_rows(inputs, ids, sparse.vstack([seen[~is_unseen], others], format="csr")[order])


def merge_weights(inputs: TransferInputs, ids: np.ndarray) -> sparse.csr_matrix:
    """Weights of the hierarchical mean for the given target ids.

    Returns:
        (len(ids), num_source_tokens); rows sum to 1, or have no entries where no part has a source token.

    Raises:
        ValueError: if the target tokenizer is no BPE.
    """
    target = inputs.target
    if target.merges is None:
        raise ValueError("--method merge follows merge rules, but the target tokenizer is no BPE; choose mean, which needs none")
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
    """Weights by how often which source tokens stand in the place of each of the given target tokens.

    A text whose tokens do not spell it (a normalizer changed it, or it has unknown characters) is left out.

    Returns:
        (len(ids), num_source_tokens); rows sum to 1, or have no entries where the text has not the token.
    """
    assert inputs.text is not None
    is_wanted = np.zeros(len(inputs.target), dtype=bool)
    is_wanted[ids] = True
    counts: Counter[tuple[int, tuple[int, ...]]] = Counter()
    documents = (line for text in inputs.text for line in text.split("\n")) if inputs.as_published else inputs.text
    for texts in batches(documents, _BATCH_CHARACTERS):
        for text, target_tokens, source_tokens in zip(texts, inputs.tokenize(texts), inputs.tokenize_source(texts)):
            target_ends = byte_ends(inputs.target, target_tokens, text)
            source_ends = byte_ends(inputs.source, source_tokens, text)
            if target_ends is None or source_ends is None:
                continue
            if inputs.as_published:
                counts.update(_published_places(text, target_tokens, target_ends, source_tokens, source_ends, is_wanted))
                continue
            wanted = np.flatnonzero(is_wanted[target_tokens])
            starts = np.concatenate([[0], target_ends[:-1]])[wanted]
            first = np.searchsorted(source_ends, starts, side="right")
            last = np.searchsorted(source_ends, target_ends[wanted], side="left")
            for place, one, other in zip(wanted.tolist(), first.tolist(), last.tolist()):
                counts[target_tokens[place], tuple(source_tokens[one : other + 1])] += 1
    weights: defaultdict[int, Counter[int]] = defaultdict(Counter)
    totals: Counter[int] = Counter()
    for (target_id, source_ids), count in sorted(counts.items()):
        totals[target_id] += count
        for source_id in source_ids:
            weights[target_id][source_id] += count / len(source_ids)  # type: ignore[assignment]
    shares = [{source: value / totals[i] for source, value in weights[i].items()} if i in weights else {} for i in ids.tolist()]
    return _from_dictionaries(shares, len(inputs.source))


def _published_places(
    text: str, target_tokens: list[int], target_ends: np.ndarray, source_tokens: list[int], source_ends: np.ndarray, is_wanted: np.ndarray
) -> set[tuple[int, tuple[int, ...]]]:
    """Each wanted target token of a line with the source tokens inside or around it, by the characters that tokens touch."""
    char_of_byte = np.repeat(np.arange(len(text)), [len(char.encode()) for char in text])
    target_spans, source_spans = (_char_spans(ends, char_of_byte) for ends in (target_ends, source_ends))
    found = {}
    for place in np.flatnonzero(is_wanted[target_tokens]):
        start, end = target_spans[place]
        is_inside = (source_spans[:, 0] >= start) & (source_spans[:, 1] <= end)
        is_around = (source_spans[:, 0] <= start) & (source_spans[:, 1] >= end)
        sources = tuple(source_tokens[i] for i in np.flatnonzero(is_inside | is_around))
        if sources:
            found[target_tokens[place]] = sources
    return set(found.items())


def _char_spans(ends: np.ndarray, char_of_byte: np.ndarray) -> np.ndarray:
    """(num_tokens, 2) first character that each token touches, and the one after the last."""
    starts = np.concatenate([[0], ends[:-1]])
    last = np.maximum(ends, starts + 1) - 1
    return np.stack([char_of_byte[starts], char_of_byte[last] + 1], axis=1)


def byte_ends(vocabulary: Vocabulary, ids: list[int], text: str) -> np.ndarray | None:
    """(len(ids),) offset in the text's UTF-8 bytes at which each token ends; None if the tokens do not spell the text.

    A space that SentencePiece puts before a text counts as part of the first token.
    """
    pieces = [vocabulary.token_bytes[i] for i in ids]
    if not pieces or any(piece is None for piece in pieces):
        return None
    joined, data = b"".join(pieces), text.encode()  # type: ignore[arg-type]
    extra = len(joined) - len(data)
    if extra not in (0, 1) or joined[extra:] != data or (extra and joined[:1] != b" "):
        return None
    return np.maximum(np.cumsum([len(piece) for piece in pieces]) - extra, 0)  # type: ignore[arg-type]


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
