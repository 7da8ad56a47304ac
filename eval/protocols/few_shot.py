"""Solved examples before a question, drawn for each document from its own id.

lm-eval draws them in the order it meets documents, so that its prompts change with the number of processes, with a limit on the items
and with the shots of the document before.  Here the seed and the document's id alone decide, and fewer examples are always the first of
more, so that curves over k are paired.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

from eval.protocols.rows import Row

DEFAULT_SEED = 1234


def example_pool(candidates: Sequence[Row], evaluated: Sequence[Row]) -> list[Row]:
    """Candidates that share neither id nor group (passage, story, source sentence) with any evaluated row, by id.

    By id, so that the order of a file decides nothing.
    """
    taken = {identity for row in evaluated for identity in _identities(row)}
    return sorted((row for row in candidates if not taken & set(_identities(row))), key=lambda row: str(row["id"]))


def _identities(row: Row) -> tuple[str, ...]:
    group = row.get("group")
    return (str(row["id"]),) if group is None else (str(row["id"]), str(group))


def draw_examples(pool: Sequence[Row], document_id: str, num_examples: int, *, seed: int = DEFAULT_SEED) -> list[Row]:
    """Examples for one document, no two the same; those for a smaller number are the first of these.

    Raises:
        ValueError: if the pool is too small.
    """
    if num_examples < 0:
        raise ValueError(f"{num_examples} examples were asked for; expected 0 or more")
    if len(pool) < num_examples:
        raise ValueError(
            f"the pool has {len(pool)} examples that are no evaluation data, but {num_examples} are asked for before {document_id};"
            " give fewer shots or more training rows"
        )
    rng = random.Random(hashlib.sha256(f"{seed}|{document_id}".encode()).digest())
    # The first steps of a Fisher-Yates shuffle: unlike random.sample, one algorithm for every number of draws.
    moved: dict[int, int] = {}
    drawn = []
    for position in range(num_examples):
        other = rng.randrange(position, len(pool))
        drawn.append(pool[moved.get(other, other)])
        moved[other] = moved.get(position, position)
    return drawn
