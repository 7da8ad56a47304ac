"""Export a recipe to the successors of NeMo 2: NeMo AutoModel, Megatron-Bridge, or Megatron-LM.

AutoModel trains a Hugging Face folder of any family, also of one that the engine does not have: the output has config.yaml for its command.
For the others the output has the checkpoint in the program's layout (hard-linked if possible), the script that starts training (`train.py` with
`config.yaml`, or `train.sh`), and not_exported.md, which lists what the program does differently.  Settings that the program cannot reproduce
are refused.  To convert a checkpoint of Megatron back: `python -m conversion.change_layout --to nemo --context CHECKPOINT`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common import command
from common.options import add_option

_STARTS = {
    "megatron-bridge": "torchrun train.py",
    "megatron-lm": "MEGATRON_LM=DIR ./train.sh",
    "automodel": "automodel config.yaml --nproc-per-node DEVICES",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Check the recipe as for a run, and write it in the other program's words."""
    parser = command.parser(
        __doc__,
        example="python -m recipes.export --recipe gams/multi_epoch --to megatron-bridge --output work/bridge"
        " model.checkpoint=nemo/sl data.train=[data/sl]",
    )
    add_option(parser, "--recipe", "name of a bundled recipe, or a YAML file", required=True)
    add_option(parser, "--to", "program that will train the recipe", required=True, choices=tuple(_STARTS))
    add_option(parser, "--output", "folder to write; the program writes its run to the subfolder run/", required=True, type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the recipe, in Hydra's grammar")
    arguments = parser.parse_intermixed_args(argv)
    from recipes.exporting.folder import export
    from recipes.rules.checks import check_run, check_run_elsewhere
    from recipes.rules.compose import compose_recipe
    from recipes.rules.inputs import read_inputs

    recipe = compose_recipe(arguments.recipe, arguments.overrides)
    as_it_is = arguments.to == "automodel"
    inputs = read_inputs(recipe, for_transformers=as_it_is)
    recipe = check_run_elsewhere(recipe, inputs) if as_it_is else check_run(recipe, inputs)
    _, sentences = export(recipe, inputs, arguments.output, target=arguments.to)
    for sentence in sentences:
        print(f"not exported: {sentence}")
    print(f"{arguments.output}: {recipe.name} for {arguments.to}; start training there with {_STARTS[arguments.to]}")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
