"""The line that a conversion ends with: what was written, how large, how long it took."""

from __future__ import annotations

from pathlib import Path

from common.artifacts import Manifest


def summary(output_dir: Path, manifest: Manifest, *, seconds: float) -> str:
    """Family, vocabulary rows, tie state, size in GB and seconds of a converted checkpoint."""
    facts = manifest.facts
    return (
        f"{output_dir}: {facts['model_type']}, vocabulary of {facts['vocab_size']} rows,"
        f" {'one matrix' if facts['tie_word_embeddings'] else 'two matrices'} for input and output,"
        f" {sum(record.size for record in manifest.files.values()) / 1e9:.2f} GB in {seconds:.1f} s"
    )
