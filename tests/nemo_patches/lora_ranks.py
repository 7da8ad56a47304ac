"""What the ranks of test_lora.py do."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor, nn

from conversion.checkpoints.lora import merge_adapters, write_lora
from conversion.formats.lazy_tensor import LazyTensor
from nemo_patches.engine_model import causal_forward_step
from nemo_patches.lora import LoRA
from nemo_patches.opt_model import opt_config
from tests.nemo_patches.engine_ranks import GEMMA2, SIZES, _gemma2, _model

SETTINGS = LoRA(rank=3, alpha=6.0, dropout=0.0, seed=1)
BUILD = {"opt": (_model, SIZES), "gemma2": (_gemma2, GEMMA2)}


def _losses(model: nn.Module) -> Tensor:
    tokens = torch.arange(2 * 12).reshape(2, 12) * 7 % 101
    batch = {"tokens": tokens, "position_ids": torch.arange(12).expand(2, -1), "labels": tokens.roll(-1, 1)}
    return causal_forward_step(model, batch)


def _build(family: str, **arguments: Any) -> nn.Module:
    """A model whose fused gate and up projection is the same at every tensor parallel size; Megatron draws the rows of a rank together."""
    model = BUILD[family][0](padded_vocab_size=102, **arguments)
    size, rank = parallel_state.get_tensor_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_rank()
    for layer in model.decoder.layers if family == "gemma2" else ():
        weight = layer.mlp.linear_fc1.weight
        generator = torch.Generator().manual_seed(layer.layer_number)
        gate, up = torch.randn(2, weight.shape[0] // 2 * size, weight.shape[1], generator=generator) * 0.1
        weight.data.copy_(torch.cat([gate.chunk(size)[rank], up.chunk(size)[rank]]))
    return model


def _fill_b(model: nn.Module) -> None:
    """Values for the factors that start as zero, the same at every tensor parallel size."""
    size, rank = parallel_state.get_tensor_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_rank()
    for name, parameter in model.named_parameters():
        if name.endswith(".b") and ".lora." in name:
            parts = size if getattr(parameter, "tensor_model_parallel", False) else 1
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            whole = torch.randn(parameter.shape[0] * parts, parameter.shape[1], generator=generator)
            parameter.data.copy_(whole.chunk(parts)[rank if parts > 1 else 0])


def losses_and_gradients(tensor_parallel_size: int, family: str) -> dict[str, object]:
    """Losses with adapters that do something, and the squared norm of the gradient of each of their factors."""
    model = _build(family, lora=SETTINGS)
    before = _losses(model).detach()
    _fill_b(model)
    losses = _losses(model)
    losses.mean().backward()
    squares = {}
    for name, parameter in model.named_parameters():
        if ".lora." in name:
            square = parameter.grad.square().sum()
            if getattr(parameter, "tensor_model_parallel", False):
                torch.distributed.all_reduce(square, group=parallel_state.get_tensor_model_parallel_group())
            squares[name] = square.item()
    return {"before": before.flatten().tolist(), "losses": losses.flatten().tolist(), "squares": squares}


def merged_losses(tensor_parallel_size: int, family: str, context_dir: str) -> dict[str, list[float]]:
    """Losses of a model without adapters, and of one whose weights have them added."""
    sizes = BUILD[family][1]
    adapted, plain = _build(family, lora=SETTINGS), _build(family)
    without = _losses(plain).flatten().tolist()
    _fill_b(adapted)
    tensors = {name: LazyTensor.of(name, value) for name, value in adapted.state_dict().items() if isinstance(value, Tensor)}
    write_lora(Path(context_dir), rank=SETTINGS.rank, alpha=SETTINGS.alpha)
    merged = merge_adapters(tensors, {"num_query_groups": sizes["num_attention_heads"], **sizes}, Path(context_dir))
    plain.load_state_dict({name: tensor.read() for name, tensor in merged.items()}, strict=False)
    return {"without": without, "merged": _losses(plain).flatten().tolist()}


def losses_with_dropout(tensor_parallel_size: int) -> list[float]:
    """Losses in training with adapters of which half the inputs are dropped."""
    model = _build("opt", lora=LoRA(rank=3, alpha=6.0, dropout=0.5, seed=1)).train()
    _fill_b(model)
    torch.manual_seed(7)  # as the beginning of a step: the same on all ranks
    return _losses(model).flatten().tolist()


def dropout(tensor_parallel_size: int) -> list[bool]:
    """Whether the adapters' input is dropped out in training, and whether it is in evaluation."""
    torch.manual_seed(5)
    model = opt_config(SIZES, lora=LoRA(rank=3, alpha=6.0, dropout=0.5, seed=1)).configure_model(tokenizer=None)
    _fill_b(model)
    found = []
    for mode in (True, False):
        model.train(mode)
        found.append(not torch.equal(_losses(model), _losses(model)))
    return found
