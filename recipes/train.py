"""Train a recipe with NeMo, from its checkpoint or from where the run was interrupted.

On one machine the command starts a process per device itself; under Slurm or torchrun it is one of them.  Calling it
again with the same --output goes on from the newest complete checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from data_prep import command
from data_prep.artifacts import check_files
from recipes import arithmetic
from recipes.checks import check_run, read_inputs
from recipes.compose import compose_recipe
from recipes.launch import die_with_launcher, die_with_parent, is_first_process, launch, must_launch, process_rank
from recipes.run_dir import CHECKPOINTS_NAME, newest_checkpoint, record_recipe


def main(argv: Sequence[str] | None = None) -> int:
    """Check everything, then train."""
    parser = command.parser(
        __doc__,
        prog="recipes.train",
        example="python -m recipes.train --recipe gams/focus --output runs/sl model.checkpoint=nemo/sl data.train=[data/sl]",
    )
    parser.add_argument("--recipe", required=True, help="name of a bundled recipe, or a YAML file")
    parser.add_argument("--output", required=True, type=Path, help="directory of the run; an interrupted run in it is resumed")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the recipe, in Hydra's grammar")
    arguments = parser.parse_intermixed_args(argv)
    die_with_launcher()
    recipe = compose_recipe(arguments.recipe, arguments.overrides)
    inputs = read_inputs(recipe)
    recipe = check_run(recipe, inputs)
    newest = newest_checkpoint(arguments.output)
    if newest is None and is_first_process():
        check_files(Path(recipe.model.checkpoint), inputs.checkpoint)  # every byte, once: 10 GB/s where the disk keeps up
    record_recipe(arguments.output, recipe)
    if newest is not None and newest[0] >= arithmetic.total_steps(recipe):
        print(f"the run is finished: {newest[1]}")
        return command.DONE
    if must_launch(recipe):
        return launch("recipes.train", arithmetic.world_size(recipe.parallel), argv if argv is not None else sys.argv[1:])

    from recipes.engine import train

    if process_rank() == 0:
        where = f"resuming from {newest[1]}" if newest else f"starting from {recipe.model.checkpoint}"
        print(f"{recipe.name}: {where}, {arithmetic.total_steps(recipe)} steps", file=sys.stderr, flush=True)
    train(recipe, inputs, run_dir=arguments.output, resume_from=newest[1] if newest else None)
    if process_rank() == 0:
        print(f"trained: {arguments.output / CHECKPOINTS_NAME}")
    return command.DONE


if __name__ == "__mp_main__":  # Megatron started this process to write checkpoints; it would wait for work for ever
    die_with_parent()
if __name__ == "__main__":
    command.run(main)
