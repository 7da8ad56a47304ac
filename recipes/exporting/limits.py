"""What of a recipe another program cannot do: what would make another run of it is refused, what is only done otherwise is listed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from conversion.checkpoints.hf_files import CONFIG_NAME, read_json
from conversion.families import language_config
from conversion.layouts import megatron_bridge
from conversion.layouts.megatron_lm import not_expressible
from conversion.layouts.moving import MEGATRON_BRIDGE, MEGATRON_LM
from recipes.exporting.automodel_config import SETS, find_modules, samples_in_one_pass, unknown_sets
from recipes.numbers.schedules import decay_span
from recipes.numbers.steps import has_answers
from recipes.rules.inputs import RunInputs
from recipes.rules.schema import Recipe, ScheduleRecipe

AUTOMODEL = "automodel"
PROGRAMS = {MEGATRON_BRIDGE: "Megatron-Bridge", MEGATRON_LM: "Megatron-LM", AUTOMODEL: "NeMo AutoModel"}


def refusals(recipe: Recipe, inputs: RunInputs, *, target: str) -> list[str]:
    """One sentence for each feature without which the run would learn something else, and which the program does not have."""
    program = PROGRAMS[target]
    found = [
        *_of_the_model(recipe, program),
        *_of_the_data(recipe, inputs, program),
        *_of_the_schedule(recipe.schedule, steps=recipe.total_steps, target=target),
        *_of_freezing(recipe, target=target),
    ]
    if target == AUTOMODEL:
        return [*found, *_of_automodel(recipe)]
    rows, length = inputs.model["max_position_embeddings"], recipe.data.sequence_length
    if target == MEGATRON_BRIDGE and has_position_table(inputs.model) and rows != length:
        found.append(
            f"data.sequence_length is {length}, but the model's position table has {rows} rows, and {program} has one number for both;"
            f" set data.sequence_length={rows}"
        )
    return [*found, *_of_the_family(inputs.model, target=target)]


def _of_automodel(recipe: Recipe) -> Iterator[str]:
    model, schedule, directory = recipe.model, recipe.schedule, Path(recipe.model.checkpoint)
    if model.hidden_dropout or model.attention_dropout:
        yield (
            "model.hidden_dropout, model.attention_dropout: NeMo AutoModel takes dropout from the model's config.json, under another name in each"
            " family; set both to 0"
        )
    if model.expert_balance != 0 and (key := _key_of_experts(directory)):
        yield (
            f"the model has experts ({key} in {directory / CONFIG_NAME}), which NeMo AutoModel does not balance as model.expert_balance says;"
            " set model.expert_balance=0"
        )
    if samples_in_one_pass(recipe) is None:
        devices = recipe.parallel.num_nodes * recipe.parallel.devices_per_node
        yield (
            f"schedule.global_batch_size is {schedule.global_batch_size}, of which NeMo AutoModel gives each of {devices} devices"
            " (parallel.num_nodes x parallel.devices_per_node) the same number of samples; set it to a multiple of them"
        )
    highest, lowest = schedule.embedding_rates
    if not math.isclose(highest * schedule.min_learning_rate, lowest * schedule.learning_rate, rel_tol=1e-9):
        yield (
            "schedule.embedding_learning_rate falls to another part of itself than schedule.learning_rate does, but NeMo AutoModel has one factor"
            f" between both; set schedule.embedding_min_learning_rate={highest * schedule.min_learning_rate / schedule.learning_rate:g}"
        )
    if schedule.embedding_weight_decay and not schedule.weight_decay:
        yield "schedule.embedding_weight_decay is a factor of schedule.weight_decay in NeMo AutoModel, which is 0 here; set it to null"
    if not schedule.clip_gradient_norm:
        yield "schedule.clip_gradient_norm is 0, but NeMo AutoModel cuts gradients to a norm above 0; set it to one that no gradient has, such as 1e9"
    if recipe.freeze and (unknown := unknown_sets(recipe.freeze, find_modules(directory))):
        yield f"freeze names {', '.join(unknown)}, but of a model of any family only these are known: {', '.join(SETS)}"


def _key_of_experts(directory: Path) -> str | None:
    config = language_config(read_json(directory / CONFIG_NAME, expected="expected a Hugging Face checkpoint folder"))
    keys = ("num_local_experts", "num_experts", "n_routed_experts")
    return next((key for key in keys if (config.get(key) or 0) > 1), None)


def _of_the_family(model: Mapping[str, Any], *, target: str) -> Iterator[str]:
    of_bridge = megatron_bridge.refused(model)
    if target == MEGATRON_BRIDGE and of_bridge:
        yield of_bridge
    if target == MEGATRON_LM and (missing := not_expressible(model)):
        way_out = "train it here" if of_bridge else "export to megatron-bridge instead"
        yield f"the model needs {', '.join(missing)}, which this export cannot express for {PROGRAMS[target]}; {way_out}"


def has_position_table(model: Mapping[str, Any]) -> bool:
    """Whether positions are learned rows of a table."""
    return bool(model.get("position_embedding_type", "learned_absolute") == "learned_absolute")


def _of_the_model(recipe: Recipe, program: str) -> Iterator[str]:
    if recipe.objective != "next_token":
        yield f"objective is {recipe.objective}, but {program} trains only with the next-token loss; only objective=next_token can be exported"
    if recipe.lora is not None:
        yield (
            f"lora trains this project's adapters, which {program} does not support; train them here and export a run from the merged"
            " checkpoint, or leave them out with lora=null"
        )
    if recipe.model.factors is not None:
        yield f"model.factors trains a factorised embedding, but {program} has one matrix; leave it out with model.factors=null"


def _of_the_data(recipe: Recipe, inputs: RunInputs, program: str) -> Iterator[str]:
    data = recipe.data
    if data.pad_documents:
        yield f"data.pad_documents makes one sample of each document, but {program} packs samples across document ends; set it to false"
    if data.document_mask:
        yield (
            f"data.document_mask (intra-document masking) needs in {program}'s own data set a mask per sample, which its"
            " fused attention does not take; set it to false"
        )
    if answers := [path for path, manifest in zip(data.train, inputs.train, strict=True) if has_answers(manifest)]:
        yield f"{answers[0]} has question-answer pairs, but {program}'s text data set cannot restrict the loss to answers; leave it out of data.train"


def _of_the_schedule(schedule: ScheduleRecipe, *, steps: int, target: str) -> Iterator[str]:
    if schedule.ramp_up is not None:
        why = (
            "but NeMo AutoModel's batches have one size"
            if target == AUTOMODEL
            else "and Megatron counts the learning rate schedule in samples, this project in steps"
        )
        yield f"schedule.ramp_up changes the batch size, {why}; leave it out with schedule.ramp_up=null"
    if schedule.embedding_weight_decay is not None and target != AUTOMODEL:
        yield (
            "schedule.embedding_weight_decay gives the embeddings a separate weight decay, for which there is no setting;"
            " set it to null (their learning rate can be exported)"
        )
    if schedule.decay_style == "inverse_square_root":
        if not schedule.warmup_steps and target != AUTOMODEL:
            yield (
                "schedule.decay_style is inverse_square_root without warmup, where Megatron counts samples and not steps;"
                " set schedule.warmup_steps to at least 1"
            )
    elif schedule.decay_style != "fixed" and decay_span(schedule, steps=steps)[1] < 1:
        yield (
            f"schedule has no decay steps between warmup and tail, which {PROGRAMS[target]} does not accept; leave room for at least one of the {steps} steps"
        )


def _of_freezing(recipe: Recipe, *, target: str) -> Iterator[str]:
    for number, rule in enumerate(recipe.freeze):
        if rule.until_step is not None:
            yield (
                f"freeze[{number}] ends at step {rule.until_step}, but {PROGRAMS[target]} freezes for the whole run; train the steps before it"
                " here, or leave the rule out"
            )
        elif target == MEGATRON_LM:
            yield f"freeze[{number}] has no argument in Megatron-LM, which trains all parameters; export to megatron-bridge, or set freeze=[]"


def export_differences(recipe: Recipe, *, target: str, num_padding_rows: int) -> list[str]:
    """One sentence for each setting that the program does in another way or not at all, and that changes no sample's loss."""
    return [
        *_otherwise_computed(recipe, target=target, num_padding_rows=num_padding_rows),
        *_otherwise_measured(recipe, target=target),
        *_otherwise_saved(recipe, target=target),
        *_otherwise_ended(recipe, target=target),
    ]


def _otherwise_computed(recipe: Recipe, *, target: str, num_padding_rows: int) -> Iterator[str]:
    if target == AUTOMODEL:
        yield from _otherwise_laid_out(recipe)
    if recipe.schedule.epochs is not None:
        yield (
            f"schedule.epochs={recipe.schedule.epochs:g}: the steps are those of the passes, and each data set has its share of them, but the"
            " order is Megatron's, which does not end one pass before the next begins"
        )
    if recipe.model.hidden_dropout or recipe.model.attention_dropout:
        yield "model.hidden_dropout, model.attention_dropout: the same shares are drawn, but not the same places"
    if num_padding_rows and target == MEGATRON_LM:
        yield (
            f"model.pad_vocabulary_to_multiple_of: the {num_padding_rows} padding rows take part in the softmax (here they do not), which"
            " makes losses larger at first by at most the logarithm of how much they add"
        )


def _otherwise_laid_out(recipe: Recipe) -> Iterator[str]:
    """What NeMo AutoModel does with a layout and with activations."""
    parallel = recipe.parallel
    keys = [f"{kind}_parallel_size" for kind in ("tensor", "pipeline", "context") if getattr(parallel, f"{kind}_parallel_size") > 1]
    if keys:
        yield f"parallel.{', parallel.'.join(keys)}: weights, gradients and the optimizer's state are sharded over all devices (FSDP2) instead"
    if samples_in_one_pass(recipe) != recipe.schedule.micro_batch_size:
        yield f"schedule.micro_batch_size: {samples_in_one_pass(recipe)}, so that the devices share a batch evenly"
    if recipe.recomputation is not None:
        yield "recomputation: of all layers, whole"


def _otherwise_measured(recipe: Recipe, *, target: str) -> Iterator[str]:
    if recipe.schedule.embedding_learning_rate is not None and target == MEGATRON_BRIDGE:
        yield "schedule.embedding_learning_rate: no files for TensorBoard, into which Megatron-Bridge 0.6 cannot write such a rate"
    if len(recipe.data.validation) > 1:
        yield (
            f"data.validation: one loss over the held-out text of {', '.join(recipe.data.validation)}, mixed by their tokens,"
            " in place of one of each"
        )
    if recipe.data.validation:
        yield "run.validation_batches: windows in Megatron's own order, in place of the first ones of each text"


def _otherwise_saved(recipe: Recipe, *, target: str) -> Iterator[str]:
    run = recipe.run
    if run.checkpoint_every_minutes is not None:
        yield f"run.checkpoint_every_minutes={run.checkpoint_every_minutes:g}: checkpoints are saved by steps only"
    if run.keep_checkpoints is not None and target != AUTOMODEL:
        yield f"run.keep_checkpoints={run.keep_checkpoints}: all checkpoints are kept"
    if not run.keep_optimizer_in_last_checkpoint:
        yield "run.keep_optimizer_in_last_checkpoint=false: the last checkpoint also has the optimizer state"


def _otherwise_ended(recipe: Recipe, *, target: str) -> Iterator[str]:
    run = recipe.run
    if others := [name for name in run.stop_signals if name != "SIGTERM"]:
        yield f"run.stop_signals: only SIGTERM saves and ends the run, not {', '.join(others)}"
    if run.hang_factor is not None:
        yield f"run.hang_factor={run.hang_factor:g}: a hanging step ends only by the time-out of its collectives"
    if run.skip_nonfinite_steps:
        what = "no step is skipped" if target == AUTOMODEL else "a non-finite loss ends the run"
        yield f"run.skip_nonfinite_steps={run.skip_nonfinite_steps}: {what}"
