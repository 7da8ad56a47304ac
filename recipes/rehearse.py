"""Run a recipe on GPUs that are not there, at its real size: finds what would fail, and counts memory, traffic and waits, rank by rank.

Model, optimizer, data and callbacks are those of `recipes.train`; two steps are taken, with validation, a checkpoint, a resume and an
asynchronous checkpoint, as one rank of the whole world.  Tensors have no values, so nothing is learnt of the loss.  Neither a GPU nor a compiler
is needed.  Without a checkpoint and data, stand-ins of the recipe's sizes take their place.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_prep import command
from recipes import arithmetic
from recipes.checks import check_run
from recipes.compose import compose_recipe
from recipes.planner.hardware import find_gpu
from recipes.rehearsal.inputs import complete_recipe
from recipes.schema import Recipe

_GPU = "a100-40gb"  # where the recipe names none: only what the GPUs say of themselves depends on it


def main(argv: Sequence[str] | None = None) -> int:
    """Rehearse and report; exit 2 with one sentence where the recipe cannot run."""
    parser = command.parser(
        __doc__, prog="recipes.rehearse", example="python -m recipes.rehearse --recipe gams/focus --ranks first,last model.method=null"
    )
    parser.add_argument("--recipe", required=True, help="name of a bundled recipe, or a YAML file")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, metavar="R", help="rank to rehearse (default: 0)")
    which.add_argument(
        "--ranks", metavar="LIST", help="ranks, `first`, `last`, or `stages` for the first and the last of each pipeline stage"
    )
    parser.add_argument("--gpus", type=int, metavar="N", help="of the world, instead of the recipe's number")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the recipe, in Hydra's grammar")
    arguments = parser.parse_intermixed_args(argv)
    recipe = compose_recipe(arguments.recipe, arguments.overrides)
    if arguments.gpus is not None:
        recipe = _on_gpus(recipe, arguments.gpus)
    ranks = str(arguments.rank) if arguments.rank is not None else arguments.ranks or "0"
    reports = []
    for report in rehearse(recipe, ranks):
        from recipes.rehearsal.report import text_of  # which patches torch, so not before the recipe is found right

        reports.append(report)
        if not arguments.json:
            print(text_of(report), flush=True)
    if arguments.json:
        json.dump({"recipe": recipe.name, "ranks": reports}, sys.stdout, indent=2)
        print()
    return command.DONE


def rehearse(recipe: Recipe, ranks: str) -> Iterator[dict[str, Any]]:
    """The report of each rank of a list, as soon as it is there.

    Raises:
        ValueError: as `check_run` and `wanted_ranks`, before anything is run.
    """
    with tempfile.TemporaryDirectory(prefix="scion-rehearsal-") as directory:
        recipe, inputs = complete_recipe(recipe, Path(directory))
        recipe = check_run(recipe, inputs)
        numbers = wanted_ranks(recipe, ranks)

        from recipes.rehearsal.rank import rehearse_rank
        from recipes.rehearsal.report import rank_report

        gpu = find_gpu(recipe.parallel.gpu or _GPU)
        for rank in numbers:
            print(f"rank {rank} of {arithmetic.world_size(recipe.parallel)} ...", file=sys.stderr, flush=True)
            yield rank_report(recipe, inputs, rehearse_rank(recipe, inputs, rank, gpu, Path(directory) / "rank"))


def wanted_ranks(recipe: Recipe, text: str) -> list[int]:
    """The ranks that a list names, in order.

    Raises:
        ValueError: for a word that is no rank, or a rank that the world does not have.
    """
    size = arithmetic.world_size(recipe.parallel)
    of_stage = size // recipe.parallel.pipeline_parallel_size
    named = {
        "first": [0],
        "last": [size - 1],
        "stages": [rank for first in range(0, size, of_stage) for rank in (first, first + of_stage - 1)],
    }
    found: set[int] = set()
    for word in text.split(","):
        if word not in named and not word.isdigit():
            raise ValueError(f"{word!r} is no rank; expected numbers from 0 to {size - 1}, or {', '.join(named)}, with commas between")
        found.update(named.get(word) or [int(word)])
    if too_large := [rank for rank in sorted(found) if rank >= size]:
        raise ValueError(f"there is no rank {too_large[0]}: the recipe has {size} processes, which are ranks 0 to {size - 1}")
    return sorted(found)


def _on_gpus(recipe: Recipe, num_gpus: int) -> Recipe:
    per_node = min(recipe.parallel.devices_per_node, num_gpus)
    if num_gpus < 1 or num_gpus % per_node:
        raise ValueError(f"--gpus is {num_gpus}; expected a multiple of the {recipe.parallel.devices_per_node} GPUs of a node")
    return replace(recipe, parallel=replace(recipe.parallel, num_nodes=num_gpus // per_node, devices_per_node=per_node))


if __name__ == "__main__":
    command.run(main)
