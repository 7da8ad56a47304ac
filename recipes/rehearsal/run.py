"""Some ranks of a recipe's world, rehearsed one after the other."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from recipes.planner.hardware import find_gpu
from recipes.planner.layout import layout_of
from recipes.rehearsal.inputs import complete_recipe
from recipes.rehearsal.prediction import settings_of
from recipes.rules.checks import check_run
from recipes.rules.schema import Recipe

_OLDEST_TORCH = (2, 13)
_GPU = "a100-40gb"  # where the recipe names none: only what the GPUs say of themselves depends on it


def rehearse(recipe: Recipe, ranks: str) -> Iterator[dict[str, Any]]:
    """The report of each rank of a list, as soon as it is there.

    Raises:
        ValueError: as `check_run` and `requested_ranks`, before anything is run.
    """
    with tempfile.TemporaryDirectory(prefix="scion-rehearsal-") as directory:
        recipe, inputs = complete_recipe(recipe, Path(directory))
        recipe = check_run(recipe, inputs)
        numbers = requested_ranks(recipe, ranks)
        require_torch()

        from recipes.rehearsal.rank import rehearse_rank
        from recipes.rehearsal.report import rank_report

        gpu = find_gpu(recipe.parallel.gpu or _GPU)
        for rank in numbers:
            print(f"rank {rank} of {recipe.parallel.world_size} ...", file=sys.stderr, flush=True)
            found = rehearse_rank(recipe, inputs, rank, gpu, Path(directory) / "rank")
            yield rank_report(recipe, inputs, found, gpu if recipe.parallel.gpu else None)


def require_torch() -> None:
    """Refuse a torch whose fake tensors lose themselves in a backward pass, as those of NVIDIA's images do (2.8 to 2.10).

    Raises:
        ValueError: naming both versions.
    """
    found = metadata.version("torch")
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < _OLDEST_TORCH:
        oldest = ".".join(map(str, _OLDEST_TORCH))
        raise ValueError(f"a rehearsal needs torch {oldest} or newer, found {found}; use the environment of requirements.txt")


def requested_ranks(recipe: Recipe, text: str) -> list[int]:
    """The ranks that a list names, in order.

    Raises:
        ValueError: for a word that is not a rank, or a rank that the world does not have.
    """
    size = recipe.parallel.world_size
    of_stage = size // recipe.parallel.pipeline_parallel_size
    named = {
        "first": [0],
        "last": [size - 1],
        "stages": [rank for first in range(0, size, of_stage) for rank in (first, first + of_stage - 1)],
    }
    found: set[int] = set()
    for word in text.split(","):
        if word not in named and not word.isdigit():
            raise ValueError(f"{word!r} is not a rank; expected numbers from 0 to {size - 1}, or {', '.join(named)}, with commas between")
        found.update(named.get(word) or [int(word)])
    if too_large := [rank for rank in sorted(found) if rank >= size]:
        raise ValueError(f"there is no rank {too_large[0]}: the recipe has {size} processes, which are ranks 0 to {size - 1}")
    return sorted(found)


def document_of(recipe: Recipe, reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a rehearsal leaves: of which recipe and layout it is, and the report of each rank."""
    return {
        "recipe": recipe.name,
        "layout": str(layout_of(recipe)),
        "processes": recipe.parallel.world_size,
        "settings": settings_of(recipe),
        "ranks": list(reports),
    }
