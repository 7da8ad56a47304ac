"""What the ranks of test_context_parallel.py do."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed.finalize_model_grads import _allreduce_non_tensor_model_parallel_grads
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.enums import AttnMaskType
from torch import Tensor

from conversion.measuring.engine_forward import set_layout
from nemo_patches import attention, context_parallel, documents
from nemo_patches.attention import CappedAttention, ScaledDotProductAttention
from nemo_patches.context_parallel import Part, gather_keys, on_this_rank, sum_by_rank
from nemo_patches.engine_model import causal_forward_step, engine_config
from tests.nemo_patches.document_ranks import batch_of_documents, build
from tests.nemo_patches.engine_ranks import GEMMA2, Watcher


def same_as_whole(models: Mapping[str, Mapping[str, Any]], layouts: list[list[int]], **_: Any) -> dict[str, dict[str, float]]:
    """Largest differences of samples that are cut among ranks from whole ones on each rank, in losses and in the sums of gradients.

    Args:
        models: configuration by the name of what is built.
        layouts: tensor and context parallel sizes.
    """
    attention.WINDOW_BLOCK, attention.CAP_BLOCK, documents.TOGETHER = 3, 4, 12  # so that pieces are in several blocks
    cases = [(name, by_document) for name in models for by_document in (False, True)]
    found = {}
    for tensor, context in layouts:
        set_layout(tensor_parallel_size=tensor)  # groups of ranks are slow to make
        whole = [_run(name, models[name], document_mask=by_document, context_parallel_size=1) for name, by_document in cases]
        set_layout(tensor_parallel_size=tensor, context_parallel_size=context)
        for (name, by_document), expected in zip(cases, whole, strict=True):
            mine = _run(name, models[name], document_mask=by_document, context_parallel_size=context, sequence_parallel=tensor > 1)
            found[f"{name}, TP {tensor}, CP {context}" + ", documents" * by_document] = _differences(*expected, *mine)
    return found


def scores_of_pieces(tensor_parallel_size: int) -> dict[str, dict[str, float]]:
    """Both attentions over four ranks, with a window and without: differences from plain autograd over all keys, and the largest tensor.

    What was dropped is dropped again in the backward pass, and no rank drops what another does.
    """
    attention.WINDOW_BLOCK = attention.CAP_BLOCK = 10  # does not divide a piece of 256
    set_layout(tensor_parallel_size=1, context_parallel_size=4)
    config = engine_config(GEMMA2, context_parallel_size=4)
    config.window_size = (70, 0)
    length, found = 512, {}
    cases = ((ScaledDotProductAttention, 1, 0.0), (CappedAttention, 2, 0.0), (ScaledDotProductAttention, 2, 0.3), (CappedAttention, 1, 0.3))
    for kind, layer, dropout in cases:
        module = kind(config, layer, AttnMaskType.causal, "self", attention_dropout=dropout, softmax_scale=0.4)
        q = torch.randn(length, 1, 4, 8, requires_grad=True)
        k, v = (torch.randn(length, 1, 2, 8, requires_grad=True) for _ in range(2))
        watcher, results = Watcher(), []
        for attend in (context_parallel.attend_over_pieces, _attend_plainly):
            attention.attend_over_pieces = attend
            model_parallel_cuda_manual_seed(7 + parallel_state.get_context_parallel_rank(), force_reset_rng=True)
            with watcher if attend is not _attend_plainly else contextlib.nullcontext():
                output = module(q, k, v, None)
                model_parallel_cuda_manual_seed(99, force_reset_rng=True)  # others draw between the passes
                output.square().sum().backward()
            results.append([output.detach(), *(x.grad for x in (q, k, v))])
            q.grad = k.grad = v.grad = None
        attention.attend_over_pieces = context_parallel.attend_over_pieces
        found[f"{kind.__name__} {layer} {dropout}"] = {
            "output": float((results[0][0] - results[1][0]).abs().max()),
            "gradients": max(float((mine - theirs).abs().max()) for mine, theirs in zip(results[0][1:], results[1][1:], strict=True)),
            "largest": watcher.largest / (length * 4 * length),
        }
    return found


def _attend_plainly(query: Tensor, key: Tensor, value: Tensor, parts: Sequence[Part], *, group: Any, draws: bool) -> Tensor:
    """As `attend_over_pieces`, all parts kept."""
    keys, values = _Gathered.apply(key, value, group)
    return torch.cat([part.attend(query[part.queries], keys[part.keys], values[part.keys]) for part in parts])


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, key: Tensor, value: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return gather_keys(key, value, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return (*sum_by_rank(gradient, ctx.group), None)


def _differences(whole: Tensor, gradients: dict[str, Tensor], mine: Tensor, my_gradients: dict[str, Tensor]) -> dict[str, float]:
    group = parallel_state.get_context_parallel_group()
    worst = {}
    for name, gradient in gradients.items():
        largest = gradient.abs().max()
        if (
            gradient.numel() == 1
        ):  # xIELU's slopes: the ranks' parts have both signs, and a sum's rounding is that of its parts (0.52 - 0.50)
            sizes = my_gradients[name].abs()
            torch.distributed.all_reduce(sizes, group=group)
            largest = sizes.max()
        torch.distributed.all_reduce(my_gradients[name], group=group)
        worst[name] = float((my_gradients[name] - gradient).abs().max() / largest.clamp(min=1e-3))
    return {
        "losses": float((mine - on_this_rank(whole)).abs().max()),
        "gradients": max(worst.values()),
        "number of gradients": len(worst),
        "spread": float(whole.std()),
        "tokens": mine.shape[1] / whole.shape[1],
    }


def _run(
    name: str, model: Mapping[str, Any], *, document_mask: bool, context_parallel_size: int, sequence_parallel: bool = False
) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses of this rank's tokens, and the gradients of their sum."""
    settings = {"context_parallel_size": context_parallel_size, "sequence_parallel": sequence_parallel, "document_mask": document_mask}
    engine = build(name, model, **settings)
    batch = batch_of_documents()
    if not document_mask:
        batch |= {"position_ids": torch.arange(batch["tokens"].shape[1]).expand_as(batch["tokens"]).contiguous()}
    taken = engine.config.data_step_fn(iter([batch]))
    losses = causal_forward_step(engine, taken)
    (losses * taken["loss_mask"]).sum().backward()
    engine.ddp_config = SimpleNamespace(use_megatron_fsdp=False)
    _allreduce_non_tensor_model_parallel_grads([engine], engine.config)
    gradients = {key: parameter.grad for key, parameter in engine.named_parameters() if parameter.grad is not None}
    return losses.detach(), gradients
