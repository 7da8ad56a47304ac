"""All that a run needs from its inputs, and all rules between a recipe's fields, before any GPU is asked for."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from conversion.checkpoints.factors import COORDINATES, PRIMITIVES, read_factors
from nemo_patches.lora_parts import adapter_names
from recipes.numbers import arithmetic
from recipes.numbers.steps import with_steps
from recipes.planner.estimate import memory_problems
from recipes.planner.hardware import Gpu
from recipes.planner.parameters import SECOND_HEAD, PlannedModel
from recipes.rules.checkpoint_checks import checkpoint_problems, factor_problems
from recipes.rules.data_checks import blend_problems, data_problems
from recipes.rules.freezing import NEVER, TOKEN_TABLE, first_trained_steps, model_parameter_names, pipeline_stages, table_names
from recipes.rules.inputs import RunInputs
from recipes.rules.layout_checks import expert_problems, layout_problems, process_problems
from recipes.rules.masking import masking_problems, predicted_share
from recipes.rules.ranges import range_problems, samples_problems
from recipes.rules.schedule_checks import batch_problems, schedule_problems
from recipes.rules.schema import OBJECTIVES, PRECISIONS, SECOND_HEADS, Recipe, raise_all
from recipes.runs.stopping import unknown_signals

_KEYS_OF_TABLES = ("embedding_learning_rate", "embedding_weight_decay")


def padded_vocab_size(recipe: Recipe, inputs: RunInputs) -> int:
    """Rows of the vocabulary tables in the engine."""
    return arithmetic.padded_vocab_size(inputs.model["vocab_size"], recipe.model.pad_vocabulary_to_multiple_of)


def planned_model(recipe: Recipe, inputs: RunInputs) -> PlannedModel:
    """The model of a run as the planner sees it; what a step unfreezes has gradients and optimizer state from the start."""
    names = trained_names(recipe, inputs)
    steps = first_trained_steps(recipe.freeze, names, tied=inputs.model["share_embeddings_and_output_weights"])
    return PlannedModel(
        inputs.model,
        padded_vocab_size(recipe, inputs),
        frozen=frozenset(name for name in names if steps[name] == NEVER),
        adapter_rank=recipe.lora.rank if recipe.lora else 0,
        num_heads=2 if recipe.objective == "two_tokens" else 1,
        factorised_size=factorised_size(recipe),
        predicted_share=predicted_share(recipe),
    )


def factorised_size(recipe: Recipe) -> int:
    """Dimensions of the factors that the token table is trained as, of a published run, which has no file, too; 0: it is one matrix."""
    if recipe.model.factors is None:
        return recipe.model.factorised_size or 0
    return int(read_factors(Path(recipe.model.factors))["primitives"].shape[0])


def trained_names(recipe: Recipe, inputs: RunInputs) -> list[str]:
    """Names of all parameters of a run's model, those that it adds among them."""
    names = model_parameter_names(inputs.family, inputs.model, source=recipe.model.checkpoint)
    if factorised_size(recipe):
        place = names.index(TOKEN_TABLE)
        names[place : place + 1] = [COORDINATES, PRIMITIVES]
    if recipe.lora is not None:
        names += adapter_names(num_layers=inputs.model["num_layers"], is_gated=inputs.model.get("gated_linear_unit", False))
    if recipe.objective == "two_tokens":
        names.append(SECOND_HEAD)
    return names


def check_run(recipe: Recipe, inputs: RunInputs, *, visible: Gpu | None = None) -> Recipe:
    """The recipe with its steps, where it gives epochs; refuse one that contradicts itself or its inputs.

    Args:
        visible: the GPU of this machine, which has to hold the run where the recipe names none.

    Raises:
        ValueError: listing all problems, each with what was found, what was expected and the nearest legal values.
    """
    problems = value_problems(recipe)
    if not problems:  # the rules below divide by these numbers
        problems += _choice_problems(recipe) + layout_problems(recipe, inputs, vocab_rows=padded_vocab_size(recipe, inputs))
        problems += checkpoint_problems(recipe, inputs) + expert_problems(recipe, inputs.model) + factor_problems(recipe, inputs)
        problems += masking_problems(recipe, inputs)
        recipe, without_steps = _with_checked_steps(recipe, inputs)
        problems += without_steps or schedule_problems(recipe) + data_problems(recipe, inputs) + _freeze_problems(recipe, inputs)
    if not problems:  # an estimate of a layout that cannot be would mislead
        problems = memory_problems(recipe, planned_model(recipe, inputs), visible=visible)
    raise_all(problems, subject=f"recipe {recipe.name}")
    return recipe


def check_run_elsewhere(recipe: Recipe, inputs: RunInputs) -> Recipe:
    """As `check_run`, of a run whose model and layout are another program's: nothing of the engine's parameters, shards and memory.

    Raises:
        ValueError: listing all problems.
    """
    problems = value_problems(recipe)
    if not problems:
        recipe, without_steps = _with_checked_steps(recipe, inputs)
        problems = _choice_problems(recipe) + checkpoint_problems(recipe, inputs)
        problems += without_steps or schedule_problems(recipe) + data_problems(recipe, inputs)
    raise_all(problems, subject=f"recipe {recipe.name}")
    return recipe


def _with_checked_steps(recipe: Recipe, inputs: RunInputs) -> tuple[Recipe, list[str]]:
    """The recipe with its steps, and what is wrong with its batches and data shares where there can be none (other rules list the steps)."""
    if problems := batch_problems(recipe) + blend_problems(recipe, inputs):
        return recipe, problems
    recipe = with_steps(recipe, inputs.train)
    return recipe, samples_problems(recipe)


def value_problems(recipe: Recipe) -> list[str]:
    """What is wrong with single values, whatever the inputs are."""
    run, problems = recipe.run, range_problems(recipe)
    if run.wandb_project is not None and importlib.util.find_spec("wandb") is None:
        problems.append(f"run.wandb_project is {run.wandb_project}, but wandb is not installed; install it or leave the key out")
    if run.export not in (None, "hf"):
        problems.append(f"run.export is {run.export!r}; expected hf, or null for no export")
    if unknown := unknown_signals(run.stop_signals):
        problems.append(
            f"run.stop_signals names {', '.join(unknown)}; expected signals that a process can handle, such as SIGTERM, SIGUSR1"
        )
    return problems


def recipe_problems(recipe: Recipe) -> list[str]:
    """What is wrong with a recipe whatever its inputs are, as where they are still to be made."""
    if problems := value_problems(recipe):
        return problems
    without_steps = batch_problems(recipe)
    problems = _choice_problems(recipe) + process_problems(recipe) + without_steps
    if without_steps or recipe.schedule.epochs is not None:
        return problems
    return problems + (samples_problems(recipe) or schedule_problems(recipe))


def _choice_problems(recipe: Recipe) -> list[str]:
    choices = (
        ("objective", recipe.objective, OBJECTIVES),
        ("second_head", recipe.second_head, SECOND_HEADS),
        ("precision", recipe.precision, PRECISIONS),
    )
    problems = [f"{name} is {value!r}; expected one of {', '.join(known)}" for name, value, known in choices if value not in known]
    if recipe.second_head == "random" and recipe.objective != "two_tokens":
        problems.append(f"second_head is 'random', but the objective {recipe.objective} has no second head; leave it out")
    return problems


def _freeze_problems(recipe: Recipe, inputs: RunInputs) -> list[str]:
    steps, model = recipe.total_steps, inputs.model
    problems = [
        f"freeze[{index}].until_step is {rule.until_step}; expected 1 to {steps - 1}, or none for the whole run"
        for index, rule in enumerate(recipe.freeze)
        if rule.until_step is not None and not 1 <= rule.until_step < steps
    ]
    names = trained_names(recipe, inputs)
    tied = model["share_embeddings_and_output_weights"]
    try:
        trained = [name for name, step in first_trained_steps(recipe.freeze, names, tied=tied).items() if step < NEVER]
    except ValueError as error:
        return [*problems, str(error)]
    own = [key for key in _KEYS_OF_TABLES if getattr(recipe.schedule, key) is not None]
    if own and not table_names(trained):
        problems.append(f"schedule.{own[0]} is given, but freeze freezes token table and output layer; leave it out, or train them")
    stages = recipe.parallel.pipeline_parallel_size
    used = {stage for name in trained for stage in pipeline_stages(name, num_layers=model["num_layers"], num_stages=stages, tied=tied)}
    if len(used) < stages:
        problems.append(
            f"freeze leaves pipeline stages {', '.join(map(str, sorted(set(range(stages)) - used)))} of {stages} without trainable parameters,"
            " which the engine cannot save; set parallel.pipeline_parallel_size=1"
        )
    return problems
