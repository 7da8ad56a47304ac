"""Train a recipe with NeMo, from its checkpoint or from where the run was interrupted.

On one machine the command starts a process per device itself; under Slurm or torchrun it is one of them.  Calling it
again with the same --output goes on from the newest complete checkpoint.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from data_prep import command
from recipes import arithmetic
from recipes.checks import check_run, read_inputs
from recipes.compose import compose_recipe
from recipes.run_dir import CHECKPOINTS_NAME, newest_checkpoint, record_recipe
from recipes.schema import Recipe


def main(argv: Sequence[str] | None = None) -> int:
    """Check everything, then train."""
    parser = command.parser(
        __doc__,
        prog="recipes.train",
        example="python -m recipes.train --recipe opt_1b --output runs/sl model.checkpoint=nemo/sl data.train=[data/sl]",
    )
    parser.add_argument("--recipe", required=True, help="name of a bundled recipe, or a YAML file")
    parser.add_argument("--output", required=True, type=Path, help="directory of the run; an interrupted run in it is resumed")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the recipe, in Hydra's grammar")
    arguments = parser.parse_intermixed_args(argv)
    recipe = compose_recipe(arguments.recipe, arguments.overrides)
    inputs = read_inputs(recipe)
    check_run(recipe, inputs)
    record_recipe(arguments.output, recipe)
    newest = newest_checkpoint(arguments.output)
    if newest is not None and newest[0] >= arithmetic.total_steps(recipe):
        print(f"the run is finished: {newest[1]}")
        return command.DONE
    if _must_launch(recipe):
        return _launch(arithmetic.world_size(recipe.parallel), argv if argv is not None else sys.argv[1:])

    from recipes.engine import process_rank, train

    if process_rank() == 0:
        where = f"resuming from {newest[1]}" if newest else f"starting from {recipe.model.checkpoint}"
        print(f"{recipe.name}: {where}, {arithmetic.total_steps(recipe)} steps", file=sys.stderr, flush=True)
    train(recipe, inputs, run_dir=arguments.output, resume_from=newest[1] if newest else None)
    if process_rank() == 0:
        print(f"trained: {arguments.output / CHECKPOINTS_NAME}")
    return command.DONE


def _must_launch(recipe: Recipe) -> bool:
    """Whether this process has to start the others: one node, several devices, and no launcher did."""
    launched = "TORCHELASTIC_RUN_ID" in os.environ or "SLURM_PROCID" in os.environ or "RANK" in os.environ
    if launched or arithmetic.world_size(recipe.parallel) == 1:
        return False
    if recipe.parallel.num_nodes > 1:
        raise ValueError(
            f"the recipe asks for {recipe.parallel.num_nodes} nodes; start it with srun, one task per device, or set parallel.num_nodes=1"
        )
    return True


def _launch(processes: int, arguments: Sequence[str]) -> int:
    """Start one process per device with torchrun's agent, which ends all of them when one dies."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    os.environ.setdefault("TORCHELASTIC_ERROR_FILE", os.devnull)
    try:
        torchrun(["--standalone", f"--nproc-per-node={processes}", "--module", "recipes.train", *arguments])
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        print(f"error: rank {rank} ended with exit code {failure.exitcode}; its messages are above", file=sys.stderr)
        return 1
    return command.DONE


if __name__ == "__main__":
    command.run(main)
