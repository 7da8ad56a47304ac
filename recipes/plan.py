"""Show what a recipe would do: layout, steps, tokens, parameters, memory; refuse contradictions.  Nothing is run."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from data_prep import command
from recipes import arithmetic
from recipes.checks import RunInputs, check_run, padded_vocab_size, read_inputs
from recipes.compose import compose_recipe
from recipes.schema import Recipe

GIB = 2**30


def plan(recipe: Recipe, inputs: RunInputs) -> dict[str, dict[str, object]]:
    """The derived numbers of a run by section."""
    steps = arithmetic.total_steps(recipe)
    tokens_per_step = arithmetic.tokens_per_step(recipe)
    rows = padded_vocab_size(recipe, inputs)
    count = arithmetic.count_parameters(inputs.model, vocab_size=inputs.model["vocab_size"])
    memory = arithmetic.estimate_memory(recipe, inputs.model, vocab_size=rows)
    flops = arithmetic.flops_per_token(inputs.model, vocab_size=rows, sequence_length=recipe.data.sequence_length)
    data_tokens = sum(manifest.facts["num_tokens"] for manifest in inputs.train)
    return {
        "model": {
            "family": inputs.family,
            "parameters": count.total,
            "parameters outside the vocabulary tables": count.body + count.positions,
            "vocabulary rows": inputs.model["vocab_size"],
            "vocabulary rows with padding": rows,
            "one matrix for input and output": inputs.model["share_embeddings_and_output_weights"],
        },
        "layout": {
            "processes": arithmetic.world_size(recipe.parallel),
            "tensor parallel": recipe.parallel.tensor_parallel_size,
            "pipeline parallel": recipe.parallel.pipeline_parallel_size,
            "data parallel": arithmetic.data_parallel_size(recipe.parallel),
            "micro batch": recipe.schedule.micro_batch_size,
            "accumulation steps": arithmetic.accumulation_steps(recipe),
            "precision": recipe.precision,
        },
        "schedule": {
            "steps": steps,
            "tokens per step": tokens_per_step,
            "tokens": steps * tokens_per_step,
            "tokens in the data": data_tokens,
            "epochs": round(steps * tokens_per_step / data_tokens, 2),
            "warmup steps": recipe.schedule.warmup_steps,
            "cosine steps": steps - recipe.schedule.warmup_steps - recipe.schedule.constant_steps,
            "constant steps": recipe.schedule.constant_steps,
            "checkpoints": -(-steps // recipe.run.checkpoint_every_steps),
        },
        "memory per device (GiB, estimate)": {
            "parameters": round(memory.parameters / GIB, 3),
            "gradients": round(memory.gradients / GIB, 3),
            "optimizer": round(memory.optimizer / GIB, 3),
            "activations": round(memory.activations / GIB, 3),
            "logits": round(memory.logits / GIB, 3),
            "total": round(memory.total / GIB, 3),
        },
        "work": {
            "operations per token (forward and backward)": f"{flops:.3e}",
            "operations of the run": f"{flops * steps * tokens_per_step:.3e}",
        },
    }


def render(sections: dict[str, dict[str, object]]) -> str:
    """The plan as aligned text."""
    width = max(len(name) for section in sections.values() for name in section) + 2
    lines = []
    for title, section in sections.items():
        lines.append(title)
        for name, value in section.items():
            shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
            lines.append(f"  {name:<{width}}{shown}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the plan; exit 2 with all problems."""
    parser = command.parser(
        __doc__, prog="recipes.plan", example="python -m recipes.plan --recipe opt_1b --json model.checkpoint=nemo data.train=[data/sl]"
    )
    parser.add_argument("--recipe", required=True, help="name of a bundled recipe, or a YAML file")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the recipe, in Hydra's grammar")
    arguments = parser.parse_intermixed_args(argv)
    recipe = compose_recipe(arguments.recipe, arguments.overrides)
    inputs = read_inputs(recipe)
    check_run(recipe, inputs)
    sections = plan(recipe, inputs)
    if arguments.json:
        json.dump(sections, sys.stdout, indent=2)
        print()
    else:
        print(render(sections))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
