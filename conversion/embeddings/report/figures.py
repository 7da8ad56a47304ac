"""The figures of a transfer's report: coverage, lengths of new rows, duplicates and nearest neighbours."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from conversion.embeddings.methods.method import TransferInputs
from conversion.embeddings.methods.row_plan import Origin, RowPlan
from conversion.embeddings.vocabularies.vocabulary import Kind, Vocabulary
from conversion.formats.lazy_tensor import LazyTensor
from conversion.formats.numbers import numbers_of
from data_prep.cleaning.language_filter import script_of

# Shorter than a tenth or longer than three times the source's median row, and outside of all its rows: stated in the report.
NEAR_ZERO_SHARE, EXPLODING_FACTOR = 0.1, 3.0
NEAR_DUPLICATE_COSINE = 0.999
FALLBACK_SHARE = 0.5  # more is worth a warning
COPIED_ORIGINS = (Origin.COPIED, Origin.COPIED_CASE, Origin.COPIED_SPACE, Origin.COPIED_CASE_SPACE, Origin.SPECIAL)
TEXT_BYTES = 2_000_000  # of each text, in whole documents

_BLOCK_ROWS = 4096
_NUM_BINS = 40
_NUM_EXAMPLES = 12
_NUM_NEIGHBOURS = 5
_NUM_NEIGHBOUR_SAMPLES = 24
_NUM_DUPLICATE_SAMPLES = 200
_LEAST_LENGTH = 1e-12


@dataclass(frozen=True)
class LayerRows:
    """A token matrix before and after: (num_source_rows, size) and (num_target_rows, size), any floating dtype; read some rows at a time."""

    name: str
    source: LazyTensor
    target: LazyTensor


def display(vocabulary: Vocabulary, token_id: int) -> str:
    """A token for people: its text with `▁` for a space, escapes for what cannot be shown, a special token as it is spelled."""
    data = vocabulary.token_bytes[token_id]
    if data is None:
        return vocabulary.tokens[token_id] or "(no token)"
    text = data.decode(errors="backslashreplace").replace(" ", "▁")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def transfer_figures(
    inputs: TransferInputs, plan: RowPlan, layers: Sequence[LayerRows], texts: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """All figures of the report, ready for JSON.

    Args:
        layers: the input embeddings first.
        texts: name -> documents, for fertility and for how often tokens occur.
    """
    counts = {name: _encode(inputs, documents) for name, documents in texts.items()}
    frequencies = sum((count for _, count in counts.values()), np.zeros(len(inputs.target), dtype=np.int64))
    is_new = ~np.isin(plan.origins, COPIED_ORIGINS) & (inputs.target.kinds != Kind.HOLE)
    return {
        "num_new": len(inputs.new_ids),
        "num_fallback": int(np.isin(plan.origins[inputs.new_ids], (Origin.FALLBACK_MEAN, Origin.FALLBACK_RANDOM)).sum()),
        "scripts": script_figures(inputs, plan),
        "texts": {name: _text_figures(documents, counts[name], plan) for name, documents in texts.items()},
        "norms": {layer.name: norm_figures(layer, inputs, is_new) for layer in layers},
        "duplicates": {layer.name: duplicate_figures(layer.target, inputs.target, is_new) for layer in layers},
        "neighbours": neighbour_figures(layers[0], inputs, is_new, frequencies),
    }


def warnings_of(figures: Mapping[str, Any]) -> list[str]:
    """Sentences about rows that need a look; empty where all is well."""
    warnings = []
    num_new, num_fallback = figures["num_new"], figures["num_fallback"]
    if num_fallback > FALLBACK_SHARE * num_new:
        warnings.append(
            f"the method cannot initialise {num_fallback:,} of {num_new:,} new tokens, which get the fallback; check that its text, vectors or"
            " models are of the target language"
        )
    for layer, norms in figures["norms"].items():
        for key, what in (("not_finite", "hold NaN or infinite values"), ("near_zero", "are near zero"), ("exploding", "are far too long")):
            if norms[key]["count"]:
                examples = ", ".join(f"{entry[1]!r} ({entry[2]})" for entry in norms[key]["examples"][:3])
                warnings.append(
                    f"{norms[key]['count']:,} of {norms['num_new']:,} new rows of {layer} {what}, for example {examples};"
                    f" the median of the source is {norms['source']['median']}"
                )
    for layer, duplicates in figures["duplicates"].items():
        if duplicates["num_rows"]:
            examples = ", ".join(" = ".join(repr(token) for _, token in group[:3]) for group in duplicates["examples"][:3])
            warnings.append(
                f"{duplicates['num_rows']:,} new rows of {layer} are identical to the row of another token, for example {examples}"
            )
    return warnings


def script_figures(inputs: TransferInputs, plan: RowPlan) -> list[dict[str, Any]]:
    """Per script the tokens of text, how many are copies, and how many the method has nothing for; the largest script first."""
    rows: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for token_id in np.flatnonzero(inputs.target.is_text).tolist():
        row = rows[script_of(inputs.target.token_bytes[token_id] or b"")]
        row["tokens"] += 1
        row["copied"] += plan.origins[token_id] in COPIED_ORIGINS
        row["fallback"] += plan.origins[token_id] in (Origin.FALLBACK_MEAN, Origin.FALLBACK_RANDOM)
    ordered = sorted(rows.items(), key=lambda item: (-item[1]["tokens"], item[0]))
    return [{"script": script, **{key: row[key] for key in ("tokens", "copied", "fallback")}} for script, row in ordered]


def norm_figures(layer: LayerRows, inputs: TransferInputs, is_new: np.ndarray) -> dict[str, Any]:
    """Lengths of the new rows against those of the source's real rows, and the rows that stand out.

    Args:
        is_new: (num_target_tokens,) bool.
    """
    source = _norms(layer.source)[: len(inputs.source)][inputs.source.kinds != Kind.HOLE]
    target = _norms(layer.target)[: len(inputs.target)]
    new_ids = np.flatnonzero(is_new)
    new = target[new_ids]
    finite = new[np.isfinite(new)]
    median = float(np.median(source))
    is_short = new < min(NEAR_ZERO_SHARE * median, source.min())
    is_long = new > max(EXPLODING_FACTOR * median, source.max())
    top = float(min(max(source.max(), finite.max(initial=0)), 2 * EXPLODING_FACTOR * median))
    edges = np.linspace(0, top or 1.0, _NUM_BINS + 1)
    return {
        "source": _quantiles(source),
        "new": _quantiles(finite),
        "num_new": len(new),
        "edges": [_rounded(edge) for edge in edges],
        "source_counts": np.histogram(np.minimum(source, top), edges)[0].tolist(),
        "new_counts": np.histogram(np.minimum(finite, top), edges)[0].tolist(),
        "near_zero": _examples(new_ids[is_short], target, inputs.target),
        "exploding": _examples(new_ids[is_long & np.isfinite(new)], target, inputs.target, longest_first=True),
        "not_finite": _examples(new_ids[~np.isfinite(new)], target, inputs.target),
    }


def duplicate_figures(matrix: LazyTensor, target: Vocabulary, is_new: np.ndarray) -> dict[str, Any]:
    """New rows that are the same bits as another row, and, of a sample, those that nearly are another.

    Args:
        matrix: (num_rows, size), one row for each target token, and perhaps more.
        is_new: (num_target_tokens,) bool.
    """
    hashes = [
        np.fromiter(map(xxhash.xxh3_64_intdigest, bits), np.uint64, len(bits))
        for bits in matrix.row_range(matrix.name, 0, len(target)).checked_blocks()
    ]
    _, place, counts = np.unique(np.concatenate(hashes), return_inverse=True, return_counts=True)
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for i in np.flatnonzero(counts[place] > 1).tolist():
        groups[place[i]].append(i)
    shared = [group for group in groups.values() if is_new[group].any()]
    duplicates = np.array([i for group in shared for i in group if is_new[i]], dtype=np.int64)
    return {
        "num_rows": len(duplicates),
        "num_groups": len(shared),
        "examples": [[[i, display(target, i)] for i in group[:4]] for group in sorted(shared, key=len, reverse=True)[:_NUM_EXAMPLES]],
        "near": _near_duplicates(matrix, target, np.setdiff1d(np.flatnonzero(is_new), duplicates)),
    }


def neighbour_figures(layer: LayerRows, inputs: TransferInputs, is_new: np.ndarray, frequencies: np.ndarray) -> list[dict[str, Any]]:
    """For some new tokens of letters the source tokens whose rows lie nearest by cosine: the most frequent, or evenly by id.

    Args:
        is_new: (num_target_tokens,) bool.
        frequencies: (num_target_tokens,) how often each occurs; all 0 where that is not known.
    """
    target = inputs.target
    ids = [i for i in np.flatnonzero(is_new & target.is_text).tolist() if _is_word(target.token_bytes[i] or b"")]
    if frequencies.any():
        ids = sorted((i for i in ids if frequencies[i]), key=lambda i: (-frequencies[i], i))
        ids = ids[: _NUM_NEIGHBOUR_SAMPLES * 2 : 2]  # the very commonest are short and tell little
    else:
        ids = ids[:: max(1, len(ids) // _NUM_NEIGHBOUR_SAMPLES)][:_NUM_NEIGHBOUR_SAMPLES]
    if not ids:
        return []
    num_neighbours = min(_NUM_NEIGHBOURS, len(inputs.source))
    cosines = np.concatenate(
        [
            block
            for _, block in _cosine_blocks(numbers_of(layer.target.rows_at(ids), layer.target.dtype_name), layer.source, len(inputs.source))
        ],
        axis=1,
    )
    cosines[:, inputs.source.kinds != Kind.TEXT] = -np.inf
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :num_neighbours]
    return [
        {
            "id": i,
            "token": display(target, i),
            "neighbours": [
                [int(j), display(inputs.source, j), round(float(cosines[row, j]), 3)] for j in nearest[row] if cosines[row, j] > -2
            ],
        }
        for row, i in enumerate(ids)
    ]


def _encode(inputs: TransferInputs, documents: Sequence[str]) -> tuple[int, np.ndarray]:
    """Number of source tokens, and (num_target_tokens,) occurrences of each target token."""
    counts = np.zeros(len(inputs.target), dtype=np.int64)
    for ids in inputs.tokenize(list(documents)):
        counts += np.bincount(np.array(ids, dtype=np.int64), minlength=len(counts))
    return sum(map(len, inputs.tokenize_source(list(documents)))), counts


def _text_figures(documents: Sequence[str], encoded: tuple[int, np.ndarray], plan: RowPlan) -> dict[str, Any]:
    num_before, counts = encoded
    num_words = sum(len(document.split()) for document in documents)
    num_bytes = sum(len(document.encode()) for document in documents)
    num_after = int(counts.sum())
    by_origin = {str(origin): int(counts[plan.origins == origin].sum()) for origin in Origin}
    return {
        "num_documents": len(documents),
        "num_words": num_words,
        "num_bytes": num_bytes,
        "num_tokens_before": num_before,
        "num_tokens_after": num_after,
        "num_distinct": int((counts > 0).sum()),
        "num_distinct_copied": int(((counts > 0) & np.isin(plan.origins, COPIED_ORIGINS)).sum()),
        "tokens_per_word": [_rounded(count / max(num_words, 1)) for count in (num_before, num_after)],
        "tokens_per_byte": [_rounded(count / max(num_bytes, 1)) for count in (num_before, num_after)],
        "occurrences_by_origin": {origin: count for origin, count in by_origin.items() if count},
    }


def _near_duplicates(matrix: LazyTensor, target: Vocabulary, ids: np.ndarray) -> dict[str, Any]:
    sample = ids[:: max(1, len(ids) // _NUM_DUPLICATE_SAMPLES)][:_NUM_DUPLICATE_SAMPLES]
    if not len(sample):
        return {"num_sampled": 0, "count": 0, "cosine": NEAR_DUPLICATE_COSINE, "examples": []}
    values, nearest = np.full(len(sample), -np.inf), np.zeros(len(sample), dtype=np.int64)
    for start, cosines in _cosine_blocks(numbers_of(matrix.rows_at(sample.tolist()), matrix.dtype_name), matrix, len(target)):
        own = np.flatnonzero((sample >= start) & (sample < start + cosines.shape[1]))
        cosines[own, sample[own] - start] = -np.inf
        best = cosines.argmax(axis=1)
        best_values = cosines[np.arange(len(sample)), best]
        nearest = np.where(best_values > values, best + start, nearest)
        values = np.maximum(values, best_values)
    found = np.flatnonzero(values >= NEAR_DUPLICATE_COSINE)
    examples = [[display(target, sample[i]), display(target, nearest[i]), round(float(values[i]), 5)] for i in found[:_NUM_EXAMPLES]]
    return {"num_sampled": len(sample), "count": len(found), "cosine": NEAR_DUPLICATE_COSINE, "examples": examples}


def _cosine_blocks(rows: np.ndarray, matrix: LazyTensor, num_rows: int) -> Iterator[tuple[int, np.ndarray]]:
    """Cosines of some rows to each block of a matrix, with the block's first id; rows of zeros or no numbers are near nothing."""
    unit = _unit(rows)
    for start in range(0, num_rows, _BLOCK_ROWS):
        block = matrix.row_range(matrix.name, start, min(start + _BLOCK_ROWS, num_rows))
        yield start, np.nan_to_num(unit @ _unit(numbers_of(block.bits(), matrix.dtype_name)).T, nan=0.0)


def _unit(rows: np.ndarray) -> np.ndarray:
    """Rows of length one; those of zeros stay zeros."""
    with np.errstate(invalid="ignore"):  # rows that are not numbers stay that
        return rows / np.maximum(_lengths(rows), _LEAST_LENGTH)[:, None]


def _lengths(rows: np.ndarray) -> np.ndarray:
    return np.sqrt(np.einsum("ij,ij->i", rows, rows))


def _norms(matrix: LazyTensor) -> np.ndarray:
    blocks = (_lengths(numbers_of(bits, matrix.dtype_name)) for bits in matrix.checked_blocks())
    return np.concatenate([np.zeros(0), *blocks])


def _quantiles(values: np.ndarray) -> dict[str, float | None]:
    if not len(values):
        return {}
    points = {"min": 0.0, "1 %": 0.01, "median": 0.5, "99 %": 0.99, "max": 1.0}
    return {name: _rounded(np.quantile(values, point)) for name, point in points.items()}


def _examples(ids: np.ndarray, norms: np.ndarray, target: Vocabulary, *, longest_first: bool = False) -> dict[str, Any]:
    order = np.argsort(-norms[ids] if longest_first else norms[ids], kind="stable")
    return {
        "count": len(ids),
        "examples": [[int(i), display(target, i), _rounded(norms[i])] for i in ids[order][:_NUM_EXAMPLES]],
    }


def _is_word(data: bytes) -> bool:
    text = data.decode(errors="replace").strip()
    return len(text) > 1 and text.isalpha()


def _rounded(value: float) -> float | None:
    """Four significant digits; None where it is not a number, which JSON lacks."""
    return float(f"{value:.4g}") if np.isfinite(value) else None
