"""Export a recipe to the successors of NeMo 2: as a Megatron-Bridge configuration, or as arguments of Megatron-LM.

The output has the checkpoint in the program's layout (hard-linked if possible), the script that starts training (`train.py` with
`config.yaml`, or `train.sh`), and not_exported.md, which lists what the program does differently.  Settings that the program cannot reproduce
are refused.  To convert the trained checkpoint back: `python -m conversion.change_layout --to nemo --context CHECKPOINT`.
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
    parser.add_argument("--to", required=True, choices=("megatron-bridge", "megatron-lm"), help="program that will train the recipe")
    parser.add_argument("--output", required=True, type=Path, help="folder to write; the program writes its run to the subfolder run/")
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
    print(f"{arguments.output}: {recipe.name} for {arguments.to}; start training there with {start}")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
