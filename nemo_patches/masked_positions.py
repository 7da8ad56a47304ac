"""The head of an encoder for the tokens alone that it has to predict: of all others, logits and losses would be computed and discarded.

With 15 % of the tokens hidden and 401,152 in the vocabulary, logits of all would be most of a step's memory and operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel as MegatronGPTModel
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor, nn

from nemo_patches.documents import micro_batch


def predicted_places(loss_mask: Tensor) -> Tensor:
    """Which tokens count, as their places in (length, samples) one after the other, on the device; one if none does.

    Args:
        loss_mask: (samples, length), on the host, so that no step waits for a GPU to count them.
    """
    places = loss_mask.t().flatten().nonzero().flatten()
    return (places if len(places) else torch.zeros(1, dtype=torch.int64)).pin_memory().cuda(non_blocking=True)


def predict_only(model: Any, loss_mask: Tensor) -> None:
    """Have the next pass of a stage, whatever it is wrapped in, compute the losses of these tokens alone; all others are 0 then.

    Args:
        loss_mask: (samples, length), on the host.
    """
    if (positions := _positions_of(model)) is not None:
        positions.places = predicted_places(loss_mask)


def masked_data_step(batches: Iterator[Any], *, step: Callable[[Iterator[Any]], dict[str, Any]]) -> dict[str, Any]:
    """A data step that says which tokens count."""
    batch = micro_batch(batches)
    found = step(iter([batch]))
    if found.get("labels") is not None:
        found["places"] = predicted_places(batch["loss_mask"])
    return found


def masked_forward_step(model: nn.Module, batch: Mapping[str, Any], *, step: Callable[[nn.Module, Mapping[str, Any]], Tensor]) -> Tensor:
    """A forward step of which the places in the batch are computed alone: (samples, length) losses, or what the next stage gets, as `step`."""
    if (positions := _positions_of(model)) is not None:
        positions.places = batch.get("places")
    return step(model, batch)


def select_masked(model: MegatronGPTModel) -> None:
    """Have the last stage of a model compute the losses of the places that it is told of; without any, those of all tokens as usual."""
    model.masked_positions = _MaskedPositions(model)


def _positions_of(model: Any) -> _MaskedPositions | None:
    while hasattr(model, "module"):
        model = model.module
    found: _MaskedPositions | None = getattr(model, "masked_positions", None)
    return found


class _MaskedPositions:
    """What stands before the head and after the loss.

    Attributes:
        places: (tokens,) for the next pass.
    """

    def __init__(self, model: MegatronGPTModel) -> None:
        self.places: Tensor | None = None
        self._loss = model.compute_language_model_loss
        model.compute_language_model_loss = self._scattered
        # Ranks have parts of the sequence each, of which the head would gather all: it is gathered here, before tokens are taken out of it.
        self._gathers, model.output_layer.sequence_parallel = model.output_layer.sequence_parallel, False
        model.output_layer.register_forward_pre_hook(self._select, prepend=True)

    def _select(self, head: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """(tokens, 1, hidden_size) of states (length, samples, hidden_size)."""
        # The head, told that it sees whole sequences, sums the gradients over the ranks itself: each takes its part of the sum.
        hidden = gather_from_sequence_parallel_region(inputs[0], tensor_parallel_output_grad=False) if self._gathers else inputs[0]
        if self.places is not None:
            hidden = hidden.flatten(0, 1)[self.places].unsqueeze(1)
        return (hidden, *inputs[1:])

    def _scattered(self, labels: Tensor, logits: Tensor) -> Tensor:
        """(samples, length) losses of logits (tokens, 1, vocabulary), 0 where there are none."""
        places, self.places = self.places, None
        if places is None:
            found: Tensor = self._loss(labels, logits)
            return found
        losses = self._loss(labels.t().flatten()[places].unsqueeze(0), logits)
        whole = torch.zeros(labels.numel(), dtype=losses.dtype, device=losses.device).index_put((places,), losses.flatten())
        return whole.view(labels.shape[1], labels.shape[0]).t().contiguous()
