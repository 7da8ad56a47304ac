"""Show what a recipe would do and cost (layout, steps, memory, time, energy), and refuse contradictions; nothing is run.

Without a checkpoint and data, the recipe of a published run is planned with the model and number of tokens of that run.
With a GPU, from --gpu, the recipe (parallel.gpu) or this machine, the plan says whether the layout fits, how long the run takes and which
layouts are faster; --gpus ranks those of another number of GPUs.  Parameters, gradients and optimizer state are exact; activations
are counted operation by operation; times are calibrated on published A100 runs (docs/planner.md); assumptions are marked.
With --rehearse the first and last rank of each pipeline stage are executed on simulated GPUs, which takes up to a minute each.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common import command
from common.options import add_option
from common.plain_files import write_text
from recipes.numbers.schedules import in_words, parts_of_run
from recipes.planner import costs, report
from recipes.planner.estimate import estimate_run
from recipes.planner.hardware import GPUS, Gpu, find_gpu, has_known_rates, visible_gpu
from recipes.planner.layout import layout_of
from recipes.planner.memory import estimate_host, estimate_memory
from recipes.planner.parameters import count_parameters
from recipes.planner.ranking import ranked
from recipes.rehearsal.apart import rehearse_apart
from recipes.rehearsal.fit import fit_problems, summary
from recipes.rules.checkpoint_checks import checkpoint_warnings
from recipes.rules.checks import check_run, factorised_size, padded_vocab_size, planned_model
from recipes.rules.compose import compose_recipe, recipe_descriptions
from recipes.rules.data_checks import pass_warnings
from recipes.rules.inputs import RunInputs
from recipes.rules.page import recipe_page
from recipes.rules.published import recipe_with_inputs
from recipes.rules.schema import Recipe


@dataclass(frozen=True)
class Options:
    """What the planner is asked besides the recipe.

    Attributes:
        gpu: instead of the recipe's.
        num_gpus: whose layouts are ranked, instead of the recipe's number.
        count: how many layouts are shown.
    """

    gpu: Gpu | None = None
    num_gpus: int | None = None
    count: int = 5
    write_rate: float = costs.WRITE_RATE
    kg_per_kwh: float = costs.KG_PER_KWH


def plan(recipe: Recipe, inputs: RunInputs, options: Options = Options()) -> dict[str, dict[str, object]]:
    """The derived numbers of a run by section."""
    steps = recipe.total_steps
    rows = padded_vocab_size(recipe, inputs)
    count = count_parameters(inputs.model, vocab_size=inputs.model["vocab_size"], factorised_size=factorised_size(recipe))
    return {
        "model": {
            "family": inputs.family,
            "parameters": count.total,
            "parameters outside the vocabulary tables": count.outside_tables,
            "vocabulary rows": inputs.model["vocab_size"],
            "vocabulary rows with padding": rows,
            "one matrix for input and output": inputs.model["share_embeddings_and_output_weights"],
        },
        "layout": {
            "processes": recipe.parallel.world_size,
            "tensor parallel": recipe.parallel.tensor_parallel_size,
            "pipeline parallel": recipe.parallel.pipeline_parallel_size,
            "context parallel": recipe.parallel.context_parallel_size,
            "data parallel": recipe.parallel.data_parallel_size,
            "micro batch": recipe.schedule.micro_batch_size,
            "accumulation steps": recipe.accumulation_steps,
            "precision": recipe.precision,
        },
        "schedule": schedule_section(recipe, data_tokens=sum(manifest.facts["num_tokens"] for manifest in inputs.train)),
        **planned_sections(recipe, inputs, options, steps=steps),
    }


def schedule_section(recipe: Recipe, *, data_tokens: int) -> dict[str, object]:
    """How long the run is, how its batches grow, and what becomes of the learning rate."""
    schedule, steps, tokens = recipe.schedule, recipe.total_steps, recipe.run_tokens
    section: dict[str, object] = {"steps": steps}
    if schedule.published_steps is not None:
        section["steps as the paper rounds them"] = schedule.published_steps
    section["tokens per step"] = recipe.tokens_per_step
    if schedule.ramp_up is not None:
        parts = [f"{size:,} samples for {number:,} steps" for size, number in schedule.batches.parts(steps)]
        section["batches that grow"] = ", then ".join(parts)
    if recipe.data.document_mask:
        section["attention"] = "intra-document masking"
    section |= {"tokens": tokens, "tokens in the data": data_tokens, "epochs": round(tokens / data_tokens, 2)}
    section |= {f"{name} steps": number for name, number in parts_of_run(schedule, steps=steps).items()}
    section["learning rate"] = in_words(schedule, steps=steps)
    if recipe.lora is not None:
        section["adapters"] = f"rank {recipe.lora.rank}, alpha {recipe.lora.alpha:g}, dropout {recipe.lora.dropout:g}"
    every, minutes = recipe.run.checkpoint_every_steps, recipe.run.checkpoint_every_minutes
    if minutes is not None:  # how many that makes, the speed decides
        return section | {"checkpoints": f"every {every:,} steps and {minutes:g} minutes"}
    return section | {"checkpoints": -(-steps // every)}


def planned_sections(recipe: Recipe, inputs: RunInputs, options: Options, *, steps: int) -> dict[str, dict[str, object]]:
    """The sections of the planner."""
    model, layout = planned_model(recipe, inputs), layout_of(recipe)
    gpu = options.gpu or (find_gpu(recipe.parallel.gpu) if recipe.parallel.gpu else None)
    sections: dict[str, dict[str, object]] = {
        "parameters by part": report.parameter_section(model),
        "memory per device (GiB; state exact, activations counted)": report.memory_section(estimate_memory(model, layout)),
        "memory of the host": {"checkpoints": str(estimate_host(model, layout))},
        "work": report.work_section(model, layout, tokens=recipe.run_tokens),
    }
    if gpu is None:
        return sections | {"time": {"not estimated": "no GPU is given; give --gpu or parallel.gpu"}}
    if not layout.is_half:
        return sections | {"time": {"not estimated": "the time model supports bfloat16 only"}}
    batches = recipe.schedule.batches
    run = estimate_run(model, layout, gpu, steps=steps, batches=batches, write_rate=options.write_rate, kg_per_kwh=options.kg_per_kwh)
    num_gpus = options.num_gpus or layout.num_devices
    choices = ranked(model, replace(layout, devices_per_node=gpu.devices_per_node), gpu, num_devices=num_gpus)
    return sections | {
        f"time on {layout.num_devices} x {gpu.name} (calibrated)": report.time_section(run),
        f"checkpoints (at an assumed {options.write_rate / 1e9:g} GB/s)": report.checkpoint_section(
            run, every_steps=recipe.run.steps_between_saves(step_seconds=run.choice.time.total)
        ),
        f"fastest layouts on {num_gpus} x {gpu.name} (calibrated)": report.ranking_section(choices, count=options.count),
        "what fits and why": report.reasons(model, run.choice, choices),
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
    """Print the plan; exit 2 with all problems, and 1 where a rehearsed rank does not fit its GPU."""
    parser = command.parser(
        __doc__,
        example="python -m recipes.plan --recipe gams/focus --json model.checkpoint=nemo data.train=[data/sl] data.validation=data/heldout",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    add_option(what, "--recipe", "name of a bundled recipe, or a YAML file")
    add_option(what, "--list", "list the bundled recipes with their descriptions", False)
    add_option(parser, "--json", "print JSON instead of text", False)
    add_option(parser, "--page FILE", "also write an HTML page with every key, its value, its source and its meaning", type=Path)
    add_option(parser, "--gpu NAME", f"GPU to plan for: {', '.join(GPUS)} (default: parallel.gpu of the recipe, else that of this machine)")
    add_option(parser, "--gpus N", "number of GPUs to rank layouts for (default: that of the recipe)", type=int)
    add_option(parser, "--rehearse", "also measure the memory of ranks in a simulated-GPU dry run (docs/planner.md)", False)
    add_option(parser, "--best N", "number of layouts to show", 5)
    add_option(parser, "--write-gb-per-second X", "speed of writing checkpoints, in GB/s (default: 2)", costs.WRITE_RATE / 1e9)
    add_option(
        parser, "--kg-co2-per-kwh X", "carbon intensity of the electricity, in kg of CO2 per kWh (default: 0.432, Italy)", costs.KG_PER_KWH
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the recipe, in Hydra's grammar")
    arguments = parser.parse_intermixed_args(argv)
    if arguments.list:
        print(render({"recipes": dict(recipe_descriptions())}))
        return command.DONE
    recipe, inputs = recipe_with_inputs(compose_recipe(arguments.recipe, arguments.overrides))
    options, visible = _options(arguments), None
    if options.gpu is None and recipe.parallel.gpu is None and (visible := visible_gpu()) and has_known_rates(visible):
        options = replace(options, gpu=visible)
    recipe = check_run(recipe, inputs, visible=visible)
    for sentence in checkpoint_warnings(recipe, inputs):
        print(f"warning: {sentence}", file=sys.stderr)
    sections = plan(recipe, inputs, options)
    for warning in pass_warnings(recipe, inputs.train):
        print(f"warning: {warning}", file=sys.stderr)
    rehearsal = _rehearsal(arguments, options) if arguments.rehearse else None
    if arguments.page is not None:
        write_text(arguments.page, recipe_page(recipe, chosen=arguments.recipe, overrides=arguments.overrides, rehearsal=rehearsal))
    if arguments.json:
        json.dump(sections if rehearsal is None else {**sections, "rehearsal": rehearsal}, sys.stdout, indent=2)
        print()
    else:
        print(render(sections if rehearsal is None else {**sections, "rehearsal (counted tensor by tensor)": _in_lines(rehearsal)}))
    return command.WRONG if rehearsal is not None and fit_problems(rehearsal) else command.DONE


def _rehearsal(arguments: argparse.Namespace, options: Options) -> dict[str, Any]:
    gpu = options.gpu.name if options.gpu is not None and options.gpu.name in GPUS else None
    return rehearse_apart(arguments.recipe, arguments.overrides, gpu=gpu)


def _in_lines(rehearsal: Mapping[str, Any]) -> dict[str, object]:
    return {f"rank {report['rank']}, stage {report['stage']}": summary(report) for report in rehearsal["ranks"]}


def _options(arguments: argparse.Namespace) -> Options:
    for name in ("gpus", "best", "write_gb_per_second", "kg_co2_per_kwh"):
        if (value := getattr(arguments, name)) is not None and value <= 0:
            raise ValueError(f"--{name.replace('_', '-')} is {value:g}; expected a number above 0")
    return Options(
        gpu=find_gpu(arguments.gpu) if arguments.gpu else None,
        num_gpus=arguments.gpus,
        count=arguments.best,
        write_rate=arguments.write_gb_per_second * 1e9,
        kg_per_kwh=arguments.kg_co2_per_kwh,
    )


if __name__ == "__main__":
    command.run(main)
