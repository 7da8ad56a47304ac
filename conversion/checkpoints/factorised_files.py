"""A folder whose token table is kept as factors: how its file and tensors are called.

The weights are in a file of another name than transformers looks for.  It would load a folder without the table, drawing one at random,
and only warn.
"""

from __future__ import annotations

FACTORISED_NAME = "factorised.safetensors"


def factor_names(table: str) -> dict[str, str]:
    """Names of `coordinates` and `primitives` in the place of a table's."""
    stem = table.removesuffix("weight")
    return {part: stem + part for part in ("coordinates", "primitives")}
