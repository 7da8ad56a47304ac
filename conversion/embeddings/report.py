"""`transfer.json`: for each token of the target where its row came from, one token per line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from conversion.embeddings.method import TransferInputs
from conversion.embeddings.row_plan import RowPlan
from conversion.embeddings.vocabulary import Kind
from conversion.embeddings.vocabulary_map import Match

REPORT_NAME = "transfer.json"
_MOST_SOURCES = 8


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
        table.append((inputs.target.tokens[target_id] or "", source_token, reasons[match]))
    return table


def token_entries(inputs: TransferInputs, plan: RowPlan) -> Iterator[dict[str, Any]]:
    """For each target token its id, spelling, origin, and the source tokens with the largest weights as [id, spelling, weight]."""
    for target_id, token in enumerate(inputs.target.tokens):
        entry: dict[str, Any] = {"id": target_id, "token": token, "origin": str(plan.origins[target_id])}
        source_id = int(plan.source_ids[target_id])
        row = slice(plan.weights.indptr[target_id], plan.weights.indptr[target_id + 1])
        ids, weights = plan.weights.indices[row], plan.weights.data[row]
        if source_id >= 0:
            entry["sources"] = [[source_id, inputs.source.tokens[source_id], 1.0]]
        elif len(ids):
            order = np.argsort(-np.abs(weights), kind="stable")[:_MOST_SOURCES]
            entry["sources"] = [[int(ids[i]), inputs.source.tokens[ids[i]], round(float(weights[i]), 6)] for i in order]
            entry["num_sources"] = len(ids)
        yield entry


def write_report(path: Path, inputs: TransferInputs, plan: RowPlan, facts: Mapping[str, Any]) -> None:
    """Write the facts of the transfer, the special tokens, and an entry per token."""
    head = {**facts, "special_tokens": [list(row) for row in special_token_table(inputs, plan)]}
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(head, ensure_ascii=False)[:-1] + ', "tokens": [\n')
        stream.write(",\n".join(json.dumps(entry, ensure_ascii=False) for entry in token_entries(inputs, plan)))
        stream.write("\n]}\n")


def summary(inputs: TransferInputs, plan: RowPlan) -> str:
    """A short table for the terminal: rows by origin, and the special tokens."""
    lines = []
    for origin, count in plan.counts().items():
        lines.append(f"  {origin:<18}{count:>9,}{100 * count / len(plan.origins):>7.1f} %")
    for target_token, source_token, reason in special_token_table(inputs, plan):
        lines.append(f"  {target_token:<18}{'from ' + source_token if source_token is not None else 'no source':<18}({reason})")
    return "\n".join(lines)
