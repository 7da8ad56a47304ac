"""What a recipe says of experts, and what training them takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipes.rules.schema import Recipe

EXPERT_BALANCE = 0.001
"""Weight of the loss that keeps experts equally busy, as in Qwen 3's config.json (`router_aux_loss_coef`)."""


def expert_balance(recipe: Recipe, model: Mapping[str, Any]) -> float:
    """Weight of that loss in a run: E times the sum over experts of their part of the tokens times their mean share, summed over the layers.

    Source: Fedus et al. 2022 (Switch Transformer), equations 4 to 6, of each micro batch.

    Args:
        model: the `config` of `context/model.json`.
    """
    if "num_moe_experts" not in model:
        return 0.0
    return EXPERT_BALANCE if recipe.model.expert_balance is None else recipe.model.expert_balance


def expert_problems(recipe: Recipe, model: Mapping[str, Any]) -> list[str]:
    """What keeps a model with experts from being trained, or asks for experts of a model that has none."""
    path, tensor = recipe.model.checkpoint, recipe.parallel.tensor_parallel_size
    if model.get("softmax_type") == "learnable":
        return [
            f"the checkpoint {path} has sinks and experts with biases (softmax_type learnable), which this project converts but does not train:"
            " Megatron-core's own experts let no gradient through their biases; give a model without"
        ]
    experts = model.get("num_moe_experts")
    if experts is None:
        if recipe.model.expert_balance is None:
            return []
        return [f"model.expert_balance ({recipe.model.expert_balance:g}) is of experts, but the checkpoint {path} has none; leave it out"]
    problems = []
    if tensor > 1 and not recipe.parallel.sequence_parallel:
        problems.append(
            f"the checkpoint {path} has {experts} experts, which Megatron-core trains over {tensor} tensor-parallel ranks only where these cut"
            " sequences too; set parallel.sequence_parallel=true, or parallel.tensor_parallel_size=1"
        )
    if recipe.lora is not None:
        problems.append(
            f"lora puts adapters on layers that every token goes through, but the checkpoint {path} has {experts} experts; leave out lora, and"
            " say in freeze what stays as it is"
        )
    return problems
