"""What the manifest of tokenized data says: sums over its shards, and a sentence about it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.artifacts import Manifest
from data_prep.tokenizers.frame import front_sentence


def totals(shards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The facts of a dataset of these shards: their sums and themselves."""
    names = ("num_documents", "num_empty_documents", "num_tokens", "text_bytes")
    return {**{name: sum(shard[name] for shard in shards) for name in names}, "shards": list(shards)}


def dataset_summary(output_dir: Path, manifest: Manifest) -> str:
    """What is in a dataset, as a sentence, and what was passed over."""
    facts = manifest.facts
    text = (
        f"{output_dir}: {facts['num_documents']:,} documents, {facts['num_tokens']:,} tokens (end-of-text included),"
        f" {facts['text_bytes'] / facts['num_tokens']:.2f} bytes per token; {facts['num_empty_documents']:,} empty documents left out;"
        f" {front_sentence(facts)}"
    )
    for shard in facts["shards"]:
        for reason, number in shard["bad_input"].items():
            text += f"\npassed over in {shard['source']}: {number:,} x {reason}; the first of all: {shard['bad_samples'][0]}"
    return text
