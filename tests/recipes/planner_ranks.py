"""Functions that ranks run for tests of the planner: what autograd really keeps, and what Megatron really allocates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from conversion.families import family_of
from conversion.measuring.engine_forward import set_layout
from nemo_patches.context_parallel import on_this_rank
from nemo_patches.documents import documents_of
from nemo_patches.engine_model import causal_forward_step
from nemo_patches.lora import LoRA
from nemo_patches.whole_experts import has_biased_experts
from tests.recipes.small_inputs import LENGTH, MICRO_BATCH

DOCUMENT = 16
AGAIN: dict[str, dict[str, Any]] = {
    "core_attn again": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
    "mlp again": {"recompute_granularity": "selective", "recompute_modules": ["mlp", "moe"]},
    "all again": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


def kept_by_a_layer(models: Mapping[str, Mapping[str, Any]], tensor_parallel_size: int, context_parallel_size: int = 1) -> dict[str, float]:
    """Bytes that the forward pass keeps for the backward pass for each layer of some models, by "family precision"."""
    found, layout = {}, None
    for name, model in models.items():
        if layout != (layout := not has_biased_experts(model)):
            set_layout(tensor_parallel_size=tensor_parallel_size, context_parallel_size=context_parallel_size, cuts_experts=layout)
        for precision in ("bf16", "32"):
            few, many = (_kept_bytes(_with_layers(model, layers), name, precision) for layers in (2, 4))
            found[f"{name} {precision}"] = (many - few) / 2
    return found


def _with_layers(model: Mapping[str, Any], num_layers: int) -> dict[str, Any]:
    """A model of two layers with as many of each kind."""
    per_layer = {key: list(model[key]) * (num_layers // 2) for key in ("no_rope_freq",) if key in model}
    return {**model, "num_layers": num_layers, **per_layer}


def _kept_bytes(model: Mapping[str, Any], family: str, precision: str) -> int:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    config = family_of(family.split()[0], source=family).engine_config(
        model,
        bf16=precision == "bf16",
        params_dtype=dtype,
        pipeline_dtype=dtype,
        autocast_dtype=dtype,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        context_parallel_size=parallel_state.get_context_parallel_world_size(),
        hidden_dropout=0.1 if "dropout" in family else 0.0,
        document_mask="documents" in family,
        sequence_parallel="cut" in family,
        **next((settings for way, settings in AGAIN.items() if way in family), {}),
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
    batch: dict[str, Any] = {"tokens": tokens[:, :-1], "position_ids": positions, "labels": tokens[:, 1:]}
    if config.document_mask:  # in one sample: of several, queries, keys and values are copied, so that less is kept of what they were in
        batch = {name: tensor.reshape(1, -1) for name, tensor in batch.items()}
        documents = documents_of(batch["position_ids"] % DOCUMENT)
        batch |= {"position_ids": batch["position_ids"] % DOCUMENT}
    batch = {name: on_this_rank(tensor).contiguous() for name, tensor in batch.items()}
    if config.document_mask:
        batch["documents"] = documents
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = causal_forward_step(engine, batch)
    del loss
    return sum(storage.nbytes() for storage in kept.values())


class _PlainTypeNames(TorchFunctionMode):
    """Names types of tensors without storage as if they had one; Megatron's optimizer knows no others."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found.replace("meta.", "") if func is torch.Tensor.type and isinstance(found, str) else found


def allocated_by_ranks(cases: list[dict[str, Any]], num_ranks: int, **_: Any) -> list[dict[str, int]]:
    """Bytes of weights, gradients and Adam's state on ranks of a large run: Megatron's own model and optimizer, without storage.

    The ranks do not talk (torch's fake process group), so one process can be each of them in turn.

    Args:
        cases: family, model, tensor and pipeline parallel size, rank, precision, distributed_optimizer, beginning of the names that are frozen, rank of adapters.
    """
    torch.cuda.current_device = lambda: torch.device("meta")  # where Megatron puts its buffers
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()
    return [_allocated(world_size=num_ranks, **case) for case in cases]


def _allocated(
    world_size: int,
    family: str,
    model: Mapping[str, Any],
    tensor: int,
    pipeline: int,
    rank: int,
    context: int = 1,
    distributed_optimizer: bool = True,
    frozen: str = "",
    adapter_rank: int = 0,
) -> dict[str, int]:
    torch.distributed.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    expert_tensor = 1 if has_biased_experts(model) else tensor
    parallel_state.initialize_model_parallel(
        tensor, pipeline, context_parallel_size=context, expert_tensor_parallel_size=expert_tensor, create_gloo_process_groups=False
    )
    model_parallel_cuda_manual_seed(1)
    lora = {"lora": LoRA(adapter_rank, 32.0, 0.05, seed=1)} if adapter_rank else {}
    half = dict.fromkeys(("params_dtype", "pipeline_dtype", "autocast_dtype"), torch.bfloat16)
    config = family_of(family, source=family).engine_config(
        model,
        bf16=True,
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        context_parallel_size=context,
        perform_initialization=False,
        **half,
        **lora,
    )
    settings = DistributedDataParallelConfig(use_distributed_optimizer=distributed_optimizer, grad_reduce_in_fp32=True)
    adam = OptimizerConfig(optimizer="adam", lr=1e-3, bf16=True, use_distributed_optimizer=distributed_optimizer)
    with torch.device("meta"), _PlainTypeNames():
        engine = config.configure_model(
            tokenizer=None,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
        ).bfloat16()
        for name, parameter in engine.named_parameters():
            parameter.requires_grad_(not frozen or not name.startswith(frozen) or ".lora." in name)
        replica = DistributedDataParallel(config, settings, engine)
        state: list[torch.Tensor] = []
        for optimizer in get_megatron_optimizer(adam, [replica], use_gloo_process_groups=False).chained_optimizers:
            if distributed_optimizer:
                optimizer._init_optimizer_states_with_dummy_values()
                state += [tensor for group in optimizer.shard_fp32_from_float16_groups for tensor in group]
                state += [moments[name] for moments in optimizer.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
            else:  # both moments have the same shapes as the 32-bit copies, and are made with the first step
                state += 3 * [tensor for group in optimizer.fp32_from_float16_groups for tensor in group]
    found = {
        "parameters": _bytes(engine.parameters()),
        "gradients": _bytes(buffer.grad_data for buffer in (*replica.buffers, *replica.expert_parallel_buffers)),
        "optimizer": _bytes(state),
    }
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()
    return found


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
