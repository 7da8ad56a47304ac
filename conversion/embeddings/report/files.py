"""The report of a transfer: `transfer.json`, the origin of every target token's row, and `transfer.html`, a page to read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any

import numpy as np

from conversion.embeddings.methods.method import TransferInputs
from conversion.embeddings.methods.row_plan import Origin, RowPlan
from conversion.embeddings.report.figures import LayerRows, display, transfer_figures, warnings_of
from conversion.embeddings.report.page import report_page
from conversion.embeddings.spaces.stored_rows import release_rows
from conversion.embeddings.vocabularies.vocabulary import Kind
from conversion.embeddings.vocabularies.vocabulary_map import Match

REPORT_NAME = "transfer.json"
PAGE_NAME = "transfer.html"
_MOST_SOURCES = 8
_NUM_SAMPLES = 30  # of each origin, on the page
_BLOCK_TOKENS = 4096
_KNOWN_SPELLINGS = 1 << 16  # of source tokens, kept as they are written


def special_token_table(inputs: TransferInputs, plan: RowPlan) -> list[tuple[str, str | None, str]]:
    """Rows (target token, source token or None, why) for each special token of the target."""
    reasons = {
        Match.ROLE: "same role",
        Match.SPELLING: "same spelling",
        Match.CHOSEN: "chosen",
        Match.BYTES: "same bytes",
        Match.NONE: "drawn",
    }
    is_listed = (inputs.target.kinds == Kind.SPECIAL) | (inputs.overlap.matches == Match.CHOSEN)
    table = []
    for target_id in np.flatnonzero(is_listed):
        source_id = int(plan.source_ids[target_id])
        source_token = inputs.source.tokens[source_id] if source_id >= 0 else None
        match = Match(inputs.overlap.matches[target_id]) if source_id >= 0 else Match.NONE
        roles, its = (
            {role for role, i in side.roles.items() if i == token}
            for side, token in ((inputs.target, target_id), (inputs.source, source_id))
        )
        kept = f" ({', '.join(sorted(roles & its))})" if match != Match.NONE and its and len(roles) > len(roles & its) > 0 else ""
        table.append((inputs.target.tokens[target_id] or "", source_token, reasons[match] + kept))
    return table


def token_entries(inputs: TransferInputs, plan: RowPlan, ids: Iterable[int]) -> Iterator[dict[str, Any]]:
    """For the target tokens of the given ids their id, spelling, origin, and the source tokens with the largest weights as [id, spelling, weight]."""
    for target_id in ids:
        token = inputs.target.tokens[target_id]
        entry: dict[str, Any] = {"id": target_id, "token": token, "origin": str(plan.origins[target_id])}
        source_id = int(plan.source_ids[target_id])
        row = slice(plan.weights.indptr[target_id], plan.weights.indptr[target_id + 1])
        sources, weights = plan.weights.indices[row], plan.weights.data[row]
        if source_id >= 0:
            entry["sources"] = [[source_id, inputs.source.tokens[source_id], 1.0]]
        elif len(sources):
            order = np.argsort(-np.abs(weights), kind="stable")[:_MOST_SOURCES]
            entry["sources"] = [[int(sources[i]), inputs.source.tokens[sources[i]], round(float(weights[i]), 6)] for i in order]
            entry["num_sources"] = len(sources)
        yield entry


def _token_lines(inputs: TransferInputs, plan: RowPlan) -> Iterator[str]:
    """The JSON of all `token_entries`, some thousand lines at a time, in a fraction of the time: of a large vocabulary they are most of a transfer's work."""
    spelled = lru_cache(_KNOWN_SPELLINGS)(lambda source_id: _json(inputs.source.tokens[source_id]))
    tokens, starts = iter(inputs.target.tokens), plan.weights.indptr
    for first in range(0, len(inputs.target), _BLOCK_TOKENS):
        last = min(first + _BLOCK_TOKENS, len(inputs.target))
        lengths = np.diff(starts[first : last + 1])
        part = slice(starts[first], starts[last])
        ids, weights = plan.weights.indices[part], plan.weights.data[part]
        order = np.lexsort((-np.abs(weights), np.repeat(np.arange(last - first), lengths)))  # of each row the largest first
        ids, weights = ids[order].tolist(), weights[order].tolist()
        columns = zip(
            range(first, last),
            islice(tokens, last - first),
            plan.origins[first:last],
            plan.source_ids[first:last].tolist(),
            (starts[first:last] - starts[first]).tolist(),
            lengths.tolist(),
        )
        lines = []
        for target_id, token, origin, source_id, start, num_sources in columns:
            line = f'{{"id": {target_id}, "token": {_json(token)}, "origin": "{origin}"'
            if source_id >= 0:
                line += f', "sources": [[{source_id}, {spelled(source_id)}, 1.0]]'
            elif num_sources:
                end = start + min(num_sources, _MOST_SOURCES)
                largest = zip(ids[start:end], weights[start:end])
                sources = ", ".join(f"[{i}, {spelled(i)}, {round(weight, 6)}]" for i, weight in largest)
                line += f', "sources": [{sources}], "num_sources": {num_sources}'
            lines.append(line + "}")
        yield ",\n".join(lines)


def _json(text: str | None) -> str:
    """As `json.dumps` has it, which takes longer to begin than to write a token."""
    return "null" if text is None else encode_basestring(text)


def write_report(
    directory: Path,
    inputs: TransferInputs,
    plan: RowPlan,
    facts: Mapping[str, Any],
    *,
    layers: Sequence[LayerRows],
    texts: Mapping[str, Sequence[str]],
) -> list[str]:
    """Write the facts of the transfer, its figures, the special tokens and an entry per token; and the page of it all.

    Args:
        layers: the matrices as they were and as they are written, the input embeddings first.
        texts: name -> documents that fertility is measured on.

    Returns:
        Sentences about rows that need a look; empty where all is well.
    """
    figures = transfer_figures(inputs, plan, layers, texts)
    warnings = [*plan.warnings, *warnings_of(figures)]
    head = {**facts, "warnings": warnings, "figures": figures, "special_tokens": [list(row) for row in special_token_table(inputs, plan)]}
    with open(directory / REPORT_NAME, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(head, ensure_ascii=False)[:-1] + ', "tokens": [\n')
        for place, lines in enumerate(_token_lines(inputs, plan)):
            stream.write((",\n" if place else "") + lines)
            release_rows(plan.weights)
        stream.write("\n]}\n")
    (directory / PAGE_NAME).write_text(report_page(head, _samples(inputs, plan), warnings), encoding="utf-8")
    return warnings


def _samples(inputs: TransferInputs, plan: RowPlan) -> dict[str, list[dict[str, Any]]]:
    """For each origin the entries of some tokens at even distances, spelled for people."""
    samples = {}
    for origin in Origin:
        ids = np.flatnonzero((plan.origins == origin) & (inputs.target.kinds != Kind.HOLE))
        chosen = ids[:: max(1, len(ids) // _NUM_SAMPLES)][:_NUM_SAMPLES].tolist()
        if chosen:
            samples[str(origin)] = [{**entry, **_shown(inputs, entry)} for entry in token_entries(inputs, plan, chosen)]
    return samples


def _shown(inputs: TransferInputs, entry: Mapping[str, Any]) -> dict[str, Any]:
    sources = [[source_id, display(inputs.source, source_id), weight] for source_id, _, weight in entry.get("sources", ())]
    return {"shown": display(inputs.target, entry["id"]), "sources": sources}


def summary(inputs: TransferInputs, plan: RowPlan) -> str:
    """A short table for the terminal: rows by origin, and the special tokens."""
    lines = []
    for origin, count in plan.counts().items():
        lines.append(f"  {origin:<18}{count:>9,}{100 * count / len(plan.origins):>7.1f} %")
    if unreached := int((inputs.source.kinds == Kind.UNREACHED).sum()):
        lines.append(f"  source tokens that are unreachable from text, whose rows are not used: {unreached:,}")
    for target_token, source_token, reason in special_token_table(inputs, plan):
        lines.append(f"  {target_token:<18}{'from ' + source_token if source_token is not None else 'no source':<18}({reason})")
    return "\n".join(lines)
