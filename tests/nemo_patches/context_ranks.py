"""What the ranks of test_context_parallel.py do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor

from conversion.engine_forward import set_layout
from conversion.families import family_of
from nemo_patches import attention, documents
from nemo_patches.context_parallel import on_this_rank
from nemo_patches.engine_model import causal_forward_step
from nemo_patches.lora import LoRA
from tests.nemo_patches.document_ranks import batch_of_documents


def same_as_whole(models: Mapping[str, Mapping[str, Any]], layouts: list[list[int]], **_: Any) -> dict[str, dict[str, float]]:
    """Largest differences of samples that are cut among ranks from whole ones on each rank, in losses and in the sums of gradients.

    Args:
        models: configuration by "family, what is particular"; known are "adapters" and "two tokens".
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
            mine = _run(name, models[name], document_mask=by_document, context_parallel_size=context)
            found[f"{name}, TP {tensor}, CP {context}" + ", documents" * by_document] = _differences(*expected, *mine)
    return found


def _differences(whole: Tensor, gradients: dict[str, Tensor], mine: Tensor, my_gradients: dict[str, Tensor]) -> dict[str, float]:
    group = parallel_state.get_context_parallel_group()
    worst = {}
    for name, gradient in gradients.items():
        torch.distributed.all_reduce(my_gradients[name], group=group)
        worst[name] = float((my_gradients[name] - gradient).abs().max() / gradient.abs().max().clamp(min=1e-3))
    return {
        "losses": float((mine - on_this_rank(whole)).abs().max()),
        "gradients": max(worst.values()),
        "number of gradients": len(worst),
        "spread": float(whole.std()),
        "tokens": mine.shape[1] / whole.shape[1],
    }


def _run(name: str, model: Mapping[str, Any], *, document_mask: bool, context_parallel_size: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses of this rank's tokens, and the gradients of their sum."""
    torch.manual_seed(5)
    config = family_of(name.split(",")[0], source=name).engine_config(
        model,
        padded_vocab_size=512,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        context_parallel_size=context_parallel_size,
        lora=LoRA(rank=2, alpha=4.0, dropout=0.0, seed=1) if "adapters" in name else None,
        predicts_two_tokens="two tokens" in name,
        document_mask=document_mask,
    )
    engine = config.configure_model(tokenizer=None).train()
    noise = torch.Generator().manual_seed(7)
    for parameter in engine.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=noise)
    batch = batch_of_documents()
    if not document_mask:
        batch |= {"position_ids": torch.arange(batch["tokens"].shape[1]).expand_as(batch["tokens"]).contiguous()}
    taken = config.data_step_fn(iter([batch]))
    losses = causal_forward_step(engine, taken)
    (losses * taken["loss_mask"]).sum().backward()
    # A position table has no gradient for what a rank does not read.
    gradients = {key: parameter.grad for key, parameter in engine.named_parameters() if parameter.grad is not None}
    return losses.detach(), gradients
