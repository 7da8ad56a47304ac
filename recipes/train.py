"""Train a recipe with NeMo, from its checkpoint, or resume an interrupted run.

On one machine the command starts a process per device itself; under Slurm or torchrun it is one of them.  Running it
again with the same --output resumes from the newest complete checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from common import command
from common.allocation import keep_freed_memory
from common.artifacts import check_files
from common.devices import has_gpu
from common.lease import Fence
from common.options import add_option
from conversion.formats.loading_safety import require_safe
from recipes.planner.hardware import visible_gpu
from recipes.rules.checkpoint_checks import checkpoint_warnings
from recipes.rules.checks import check_run, value_problems
from recipes.rules.compose import compose_recipe
from recipes.rules.data_checks import pass_warnings
from recipes.rules.inputs import RunInputs, read_inputs
from recipes.rules.schema import Recipe, raise_all
from recipes.runs.hugging_face import export_finished, with_converted_checkpoint
from recipes.runs.launch import (
    die_with_launcher,
    installed_kernels,
    is_first_process,
    is_launched,
    launch,
    leased,
    must_launch,
    order_kernels,
    process_rank,
    require_limits,
    share_of_inputs,
)
from recipes.runs.run_dir import (
    CHECKPOINTS_NAME,
    check_resume,
    is_disk_full,
    newest_checkpoint,
    record_recipe,
    remove_left_over,
    sync_command,
)
from recipes.runs.stopping import StopSignals
from recipes.runs.watchdog import outlast, watching


def main(argv: Sequence[str] | None = None) -> int:
    """Check everything, then train."""
    parser = command.parser(
        __doc__,
        example="python -m recipes.train --recipe gams/focus --output runs/sl model.checkpoint=nemo/sl data.train=[data/sl] data.validation=data/heldout",
    )
    add_option(parser, "--recipe", "name of a bundled recipe, or a YAML file", required=True)
    add_option(parser, "--output", "directory of the run; an interrupted run in it is resumed", required=True, type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the recipe, in Hydra's grammar")
    arguments = parser.parse_intermixed_args(argv)
    die_with_launcher()
    is_first, was_launched = is_first_process(), is_launched()
    order_kernels()
    recipe = compose_recipe(arguments.recipe, arguments.overrides)
    raise_all(value_problems(recipe), subject=f"recipe {recipe.name}")
    signals = StopSignals(recipe.run.stop_signals)
    signals.listen()  # from the beginning: reading every byte of large inputs, and importing the engine, take their time
    recipe, inputs = _checked(with_converted_checkpoint(recipe, arguments.output, check=_checked))
    outlast(recipe.run)
    for warning in pass_warnings(recipe, inputs.train) if is_first_process() else ():
        print(f"warning: {warning}", file=sys.stderr, flush=True)
    with leased(arguments.output) as fence:
        words = argv if argv is not None else sys.argv[1:]
        code = _run(recipe, inputs, fence, run_dir=arguments.output, signals=signals, arguments=words)
        if code == command.DONE and not was_launched:
            export_finished(recipe, arguments.output, converts=is_first)
        return code


def _checked(recipe: Recipe) -> tuple[Recipe, RunInputs]:
    """The recipe with its steps, and its inputs; refused if it cannot run here."""
    inputs = read_inputs(recipe)
    recipe = check_run(recipe, inputs, visible=visible_gpu())
    must_launch(recipe)  # or be one of the right number of processes
    require_limits(recipe)
    return recipe, inputs


def _run(recipe: Recipe, inputs: RunInputs, fence: Fence, *, run_dir: Path, signals: StopSignals, arguments: Sequence[str]) -> int:
    """Look where the run stands, and start its processes or be one of them."""
    newest, share = newest_checkpoint(run_dir), share_of_inputs(recipe)
    if is_first_process() and (newest is None or newest[0] < recipe.total_steps):  # before anything is read that takes long
        where = f"resuming from {newest[1]}" if newest else f"starting from {recipe.model.checkpoint}"
        print(f"{recipe.name}: {where}, {recipe.total_steps} steps; {installed_kernels()}", file=sys.stderr, flush=True)
    if newest is None and share is not None:
        if share[0] == 0:
            for sentence in checkpoint_warnings(recipe, inputs):
                print(f"warning: {sentence}", file=sys.stderr, flush=True)
            # The engine runs what it reads, and a digest does not tell who wrote it.
            require_safe(Path(recipe.model.checkpoint) / "weights")
        check_files(Path(recipe.model.checkpoint), inputs.checkpoint, share=share)  # every byte, once: 10 GB/s where the disk keeps up
        for path, manifest in zip(recipe.data.train, inputs.train, strict=True):
            check_files(Path(path), manifest, share=share)
        for language, path in recipe.data.validation.items():
            check_files(Path(path), inputs.validation[language], share=share)
    if newest is not None:
        check_resume(newest[1], recipe, inputs)
    if is_first_process():
        remove_left_over(run_dir)
    longer = record_recipe(run_dir, recipe, writes=False)
    if newest is not None and newest[0] >= recipe.total_steps:
        print(f"the run is finished: {newest[1]}")
        return command.DONE
    if newest is not None and share is not None:
        if share[0] == 0:
            require_safe(newest[1] / "weights")
        newest_checkpoint(run_dir, contents=True, share=share)
    # The last that can be refused is behind us, so that a lengthening that was refused leaves the run as it is.
    record_recipe(run_dir, recipe, writes=is_first_process())
    if longer is not None and is_first_process():
        print(longer, file=sys.stderr, flush=True)
    if must_launch(recipe):
        if signals.received:  # a rank may not decide alone, but ends with the others after the first step
            print("ended by a signal before the first step; the same command starts it again")
            return command.DONE
        processes = recipe.parallel.world_size
        return launch("recipes.train", processes, arguments, forward=recipe.run.stop_signals)
    return _train(recipe, inputs, fence, run_dir=run_dir, newest=newest, signals=signals)


def _train(recipe: Recipe, inputs: RunInputs, fence: Fence, *, run_dir: Path, newest: tuple[int, Path] | None, signals: StopSignals) -> int:
    """Be one of the processes of the run."""
    if not has_gpu():
        keep_freed_memory()
    from recipes.training.engine import train

    says = process_rank() == 0
    try:
        with watching(recipe.run, rank=process_rank()) as watchdog:
            reason = train(recipe, inputs, run_dir=run_dir, resume_from=newest, signals=signals, fence=fence, watchdog=watchdog)
    except command.StoppedError as error:
        if says:
            print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # torch's CheckpointException is not an Exception, and a full disk may be any error of a writer
        if not is_disk_full(run_dir):
            raise
        saved = newest_checkpoint(run_dir)
        step = f"step {saved[0]} is saved" if saved else "nothing is saved yet"
        message = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        print(
            f"error: the disk of {run_dir} is full ({message[0]}); free some space and run the same command again; {step}", file=sys.stderr
        )
        return command.WRONG
    if says and recipe.run.wandb_project is not None:
        print(f"to upload the run to Weights & Biases: {sync_command(run_dir)}")
    if says and reason is not None:
        saved = newest_checkpoint(run_dir)
        print(f"ended by {reason}: {saved[1] if saved else run_dir}; the same command resumes from there")
    elif says:
        print(f"trained: {run_dir / CHECKPOINTS_NAME}")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
