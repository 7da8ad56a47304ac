"""Hand a recipe to the programs that come after NeMo 2: Megatron-Bridge's configuration, or the arguments of Megatron-LM.

The output has the checkpoint in the program's layout (linked where the file system can), what starts the training (`train.py` with
`config.yaml`, or `train.sh`), and not_exported.md, which lists what the program does otherwise.  What would make another run of the recipe is
refused.  What the program has trained comes back with `python -m conversion.change_layout --to nemo --context CHECKPOINT`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common import command


def main(argv: Sequence[str] | None = None) -> int:
    """Check the recipe as for a run, and write it in the other program's words."""
    parser = command.parser(
        __doc__,
        prog="recipes.export",
        example="python -m recipes.export --recipe gams/multi_epoch --to megatron-bridge --output work/bridge"
        " model.checkpoint=nemo/sl data.train=[data/sl]",
    )
    parser.add_argument("--recipe", required=True, help="name of a bundled recipe, or a YAML file")
    parser.add_argument("--to", required=True, choices=("megatron-bridge", "megatron-lm"), help="the program that is to train it")
    parser.add_argument("--output", required=True, type=Path, help="folder to write; the program's run will be in run/ below it")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the recipe, in Hydra's grammar")
    arguments = parser.parse_intermixed_args(argv)
    from recipes.exporting.folder import export
    from recipes.rules.checks import check_run
    from recipes.rules.compose import compose_recipe
    from recipes.rules.inputs import read_inputs

    recipe = compose_recipe(arguments.recipe, arguments.overrides)
    inputs = read_inputs(recipe)
    recipe = check_run(recipe, inputs)
    _, sentences = export(recipe, inputs, arguments.output, target=arguments.to)
    for sentence in sentences:
        print(f"not exported: {sentence}")
    start = "torchrun train.py" if arguments.to == "megatron-bridge" else "MEGATRON_LM=DIR ./train.sh"
    print(f"{arguments.output}: {recipe.name} for {arguments.to}; start it there with {start}")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
