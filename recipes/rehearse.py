"""Dry run of a recipe on simulated GPUs, at its real size: find what would fail; count memory, traffic and waits of each rank.

Model, optimizer, data and callbacks are those of `recipes.train`; each rank executes two steps, with validation, a checkpoint, a resume and
an asynchronous checkpoint.  Tensors have sizes and no values, so the loss is not computed.  Neither a GPU nor a compiler
is needed.  Without a checkpoint and data, placeholders of the recipe's sizes are used.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from common import command
from common.options import add_option
from common.plain_files import write_text
from common.progress import show
from recipes.rehearsal.fit import fit_problems
from recipes.rehearsal.page import rehearsal_page
from recipes.rehearsal.run import document_of, rehearse
from recipes.rules.compose import compose_recipe
from recipes.rules.schema import Recipe


def main(argv: Sequence[str] | None = None) -> int:
    """Rehearse and report; exit 1 where a rank does not fit its GPU, and 2 with one sentence where the recipe cannot run."""
    parser = command.parser(__doc__, example="python -m recipes.rehearse --recipe gams/focus --ranks first,last model.method=null")
    add_option(parser, "--recipe", "name of a bundled recipe, or a YAML file", required=True)
    which = parser.add_mutually_exclusive_group()
    add_option(which, "--rank R", "rank to rehearse (default: 0)", type=int)
    add_option(
        which,
        "--ranks LIST",
        "ranks to rehearse, with commas between: numbers, `first`, `last`, or `stages` (first and last of each pipeline stage)",
    )
    add_option(parser, "--gpus N", "number of GPUs in the simulated world (default: that of the recipe)", type=int)
    add_option(
        parser,
        "--with LIST",
        "packages to simulate that need a GPU: transformer-engine=VERSION and apex, with a comma between (default: neither)",
        dest="stand_ins",
    )
    add_option(parser, "--json", "print JSON instead of text", False)
    add_option(parser, "--page FILE", "also write an HTML page: memory over the phases of a step, traffic, waits", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the recipe, in Hydra's grammar")
    arguments = parser.parse_intermixed_args(argv)
    if arguments.stand_ins is not None:
        from nemo_patches import stand_ins  # which import torch

        stand_ins.install(arguments.stand_ins)
    recipe = compose_recipe(arguments.recipe, arguments.overrides)
    if arguments.gpus is not None:
        recipe = _on_gpus(recipe, arguments.gpus)
    ranks = str(arguments.rank) if arguments.rank is not None else arguments.ranks or "0"
    show(f"{arguments.recipe}, rank {ranks}: loading NeMo")
    reports = []
    for report in rehearse(recipe, ranks):
        from recipes.rehearsal.report import text_of  # which patches torch, so not before the recipe is found right

        reports.append(report)
        if not arguments.json:
            print(text_of(report), flush=True)
    document = document_of(recipe, reports)
    if arguments.page is not None:
        write_text(arguments.page, rehearsal_page(document))
    if arguments.json:
        json.dump(document, sys.stdout, indent=2)
        print()
    problems = fit_problems(document)
    for sentence in problems:
        print(f"warning: {sentence}", file=sys.stderr)
    return command.WRONG if problems else command.DONE


def _on_gpus(recipe: Recipe, num_gpus: int) -> Recipe:
    per_node = min(recipe.parallel.devices_per_node, num_gpus)
    if num_gpus < 1 or num_gpus % per_node:
        raise ValueError(f"--gpus is {num_gpus}; expected a multiple of the {recipe.parallel.devices_per_node} GPUs of a node")
    return replace(recipe, parallel=replace(recipe.parallel, num_nodes=num_gpus // per_node, devices_per_node=per_node))


if __name__ == "__main__":
    command.run(main)
