"""Functions that ranks run for tests of the planner: what autograd really keeps, and what Megatron really allocates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from megatron.core import parallel_state

from conversion.families import family_of
from nemo_patches.engine_model import causal_forward_step

MICRO_BATCH, LENGTH = 4, 64


def kept_by_a_layer(models: Mapping[str, Mapping[str, Any]], **_: Any) -> dict[str, float]:
    """Bytes that the forward pass keeps for the backward pass for each layer of some models, by "family precision"."""
    found = {}
    for name, model in models.items():
        for precision in ("bf16", "32"):
            few, many = (_kept_bytes({**model, "num_layers": layers}, name, precision) for layers in (2, 4))
            found[f"{name} {precision}"] = (many - few) / 2
    return found


def _kept_bytes(model: Mapping[str, Any], family: str, precision: str) -> int:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    config = family_of(family.split()[0], source=family).engine_config(
        model,
        bf16=precision == "bf16",
        params_dtype=dtype,
        pipeline_dtype=dtype,
        autocast_dtype=dtype,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
    )
    engine = config.configure_model(tokenizer=None).to(dtype)
    weights = {parameter.untyped_storage().data_ptr() for parameter in engine.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage  # held, so that no other takes its address
        return tensor

    tokens = torch.randint(0, model["vocab_size"], (MICRO_BATCH, LENGTH + 1))
    positions = torch.arange(LENGTH).repeat(MICRO_BATCH, 1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = causal_forward_step(engine, {"tokens": tokens[:, :-1], "position_ids": positions, "labels": tokens[:, 1:]})
    del loss
    return sum(storage.nbytes() for storage in kept.values())
