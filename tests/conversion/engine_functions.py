"""What runs on the ranks of `test_engine`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.distributed.finalize_model_grads import _allreduce_non_tensor_model_parallel_grads
from safetensors.torch import load_file, save_file

from common.plain_files import read_json
from conversion.measuring.engine_forward import cuts_experts, load_model, set_layout
from nemo_patches.engine_model import causal_forward_step
from tests.conversion.tiny_families import EXPERT_BALANCE, PADDING, has_experts, with_gradients


def save_at_layouts(
    plan: Sequence[Sequence[Any]], checkpoints_dir: str, output_dir: str, tensor_parallel_size: int, ids_path: str | None = None
) -> None:
    """Load checkpoints at layouts and save them as training does; also their logits, where there are two stages of one process each,
    and the gradients of their causal losses, in place of the weights, at tensor parallel 2.

    Args:
        plan: tensor parallel size, pipeline parallel size, and names of checkpoints that are saved with stacked layers, then of
            those whose layers have keys of their own.
        ids_path: file with the token ids that the logits are for.
    """
    for tensor, pipeline, stacked, per_layer in plan:
        layout = None
        for name in dict.fromkeys([*stacked, *per_layer]):
            cuts = cuts_experts(Path(checkpoints_dir) / name)
            if layout != (layout := (tensor, pipeline, cuts)):
                set_layout(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, cuts_experts=cuts)
            model = load_model(Path(checkpoints_dir) / name, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
            if ids_path is not None and (tensor, pipeline) == (1, 2):
                _save_logits(model, load_file(ids_path)["ids"], Path(output_dir) / "1x2" / f"{name}.safetensors")
            if ids_path is not None and (tensor, pipeline) == (2, 1) and with_gradients(family := _family(Path(checkpoints_dir) / name)):
                if has_experts(family):  # which are trained so alone, and with a loss of their own
                    trained = {"sequence_parallel": True, "moe_aux_loss_coeff": EXPERT_BALANCE}
                    model = load_model(Path(checkpoints_dir) / name, tensor_parallel_size=tensor, **trained).train()
                _save_gradients(model, load_file(ids_path)["ids"], Path(output_dir) / "gradients" / name)
            _pad(model)
            if name in stacked:
                _save(model, Path(output_dir) / f"{tensor}x{pipeline}" / name, one_key_per_layer=False)
            if name in per_layer:
                _save(model, Path(output_dir) / "per_layer" / name, one_key_per_layer=True)


def _save_logits(model: Any, ids: torch.Tensor, path: Path) -> None:
    """What the last of two stages gives for token ids (batch, length)."""
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    with torch.inference_mode():
        if model.pre_process:
            torch.distributed.send(model(ids, positions, None).contiguous(), parallel_state.get_pipeline_model_parallel_next_rank())
            return
        hidden = torch.empty(ids.shape[1], ids.shape[0], model.config.hidden_size)
        torch.distributed.recv(hidden, parallel_state.get_pipeline_model_parallel_prev_rank())
        model.set_input_tensor(hidden)
        logits = model(ids, positions, None)[..., : model.config.real_vocab_size]
    if parallel_state.get_data_parallel_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({"logits": logits.contiguous()}, path)


def _family(checkpoint_dir: Path) -> str:
    family: str = read_json(checkpoint_dir / "context/model.json")["family"]
    return family


def _save_gradients(model: Any, ids: torch.Tensor, directory: Path) -> None:
    """What the loss of token ids (batch, length) gives each parameter, summed over ranks as Megatron does at the end of a step."""
    ids = ids[:, 1:]  # an odd number, of which all but the last are cut among ranks
    batch = {"tokens": ids[:, :-1], "position_ids": torch.arange(ids.shape[1] - 1).expand(len(ids), -1), "labels": ids[:, 1:]}
    causal_forward_step(model, batch).mean().backward()
    model.ddp_config = SimpleNamespace(use_megatron_fsdp=False)
    _allreduce_non_tensor_model_parallel_grads([model], model.config)
    for parameter in model.parameters():
        if not getattr(parameter, "allreduce", True):  # of experts that both ranks have
            torch.distributed.all_reduce(parameter.grad, group=parallel_state.get_expert_data_parallel_group())
    weights = {parameter: parameter.data for parameter in model.parameters()}
    for parameter in weights:
        parameter.data = parameter.grad
    _save(model, directory, one_key_per_layer=False)
    for parameter, weight in weights.items():
        parameter.data = weight


def _pad(model: Any) -> None:
    """Give the padding rows of the vocabulary a value that must not come back."""
    rows = model.config.vocab_size // parallel_state.get_tensor_model_parallel_world_size()
    real_rows = max(model.config.real_vocab_size - parallel_state.get_tensor_model_parallel_rank() * rows, 0)
    for name, table in model.named_parameters():
        if name.endswith(("word_embeddings.weight", "output_layer.weight")):
            table.data[real_rows:] = PADDING


def _save(model: Any, directory: Path, *, one_key_per_layer: bool) -> None:
    """Weights, beside them something like the state of an optimizer."""
    weights = model.sharded_state_dict(prefix="module.", metadata={"singleton_local_shards": one_key_per_layer})
    moments = {
        name: replace(weight, key=f"optimizer.state.exp_avg.{weight.key}", data=torch.ones_like(weight.data))
        for name, weight in weights.items()
        if isinstance(weight, ShardedTensor)
    }
    if torch.distributed.get_rank() == 0:
        (directory / "weights").mkdir(parents=True)
    torch.distributed.barrier()
    dist_checkpointing.save({"state_dict": weights, "optimizer": moments, "step": 7}, str(directory / "weights"))
