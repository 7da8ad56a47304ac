"""A second head that predicts the token after the next one, in training alone (Gloeckle et al. 2024, with two heads on the whole trunk).

The low-resource paper trains the sum of both losses, with the second head starting as a copy of the first, or random in its Table 10.  Not to be confused with
Megatron's own prediction of several tokens, which adds layers and shares the head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.models.gpt import GPTModel as MegatronGPTModel
from megatron.core.tensor_parallel import ColumnParallelLinear
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor

from nemo_patches.base_checkpoint import is_loading_base_checkpoint
from nemo_patches.context_parallel import on_this_rank
from nemo_patches.documents import micro_batch

NAME = "second_head.weight"
_BLOCK_ROWS = 1024


class Targets(NamedTuple):
    """What a second head is to predict, (batch, sequence) each: the tokens, and how much each loss counts."""

    labels: Tensor
    weights: Tensor


def targets_of(labels: Tensor, loss_mask: Tensor, *, by_document: bool) -> Targets:
    """The tokens after the next.

    The last position has none, the others are scaled so that the mean stays that of the positions which have one.  Where documents do not
    see each other, the last two positions of each have none, and nothing is scaled: the sum over documents is then the same however they
    are put together.

    Args:
        labels, loss_mask: (batch, sequence), of whole samples.
    """
    length = labels.shape[1]
    has_label = torch.arange(length, device=labels.device) < length - 1
    weights = has_label * (loss_mask.roll(-1, dims=1) if by_document else torch.full_like(loss_mask, length / max(length - 1, 1)))
    return Targets(labels.roll(-1, dims=1), weights)


def two_tokens_data_step(batches: Iterator[Any], *, step: Callable[[Iterator[Any]], dict[str, Any]]) -> dict[str, Any]:
    """A data step that cuts samples among ranks, with what the second head of a rank is to predict: tokens that others have, too."""
    batch = micro_batch(batches)
    found = step(iter([batch]))
    if found.get("labels") is not None:
        targets = targets_of(batch["labels"], batch["loss_mask"], by_document="documents" in found)
        found["targets"] = Targets(*(on_this_rank(part).cuda(non_blocking=True) for part in targets))
    return found


class SecondHead(ColumnParallelLinear):
    """The matrix of the head, spread over the ranks as the first one is; it sees what the first one sees.

    Attributes:
        hidden: (sequence, batch, hidden_size), what the first head was last given; with sequence parallelism the tokens of this rank.
        loss_mask: (batch, sequence), 1 for the tokens of the micro batch whose losses count; None where all do.
        targets: what it is to predict, where no rank has the labels of a whole sample.
    """

    hidden: Tensor | None = None
    loss_mask: Tensor | None = None
    targets: Targets | None = None
    _first_losses: Tensor | None = None

    def note_first_losses(self, losses: Tensor, loss_mask: Tensor) -> None:
        """Add to the sum, in nats, and number of what the first head alone loses, both (batch, sequence); waits for nothing."""
        noted = torch.stack([(losses.detach().float() * loss_mask).sum(), loss_mask.float().sum()])
        self._first_losses = noted if self._first_losses is None else self._first_losses + noted

    def take_first_losses(self) -> Tensor:
        """(2,), sum and number since this was last called."""
        noted, self._first_losses = self._first_losses, None
        return torch.zeros(2) if noted is None else noted

    def note_input(self, first_head: Any, inputs: tuple[Tensor, ...]) -> None:
        """Hook before the first head; the first input is (sequence, batch, hidden_size)."""
        self.hidden = inputs[0]

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: dict[str, Any] | None = None) -> ShardedStateDict:
        """See Megatron's class; the base model has no such head."""
        if is_loading_base_checkpoint():
            return {}
        sharded: ShardedStateDict = make_sharded_tensors_for_checkpoint({"weight": self.weight}, prefix, {"weight": 0}, sharded_offsets)
        return sharded

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any) -> None:
        if not is_loading_base_checkpoint():
            super()._load_from_state_dict(state_dict, prefix, *arguments)


def add_second_head(model: MegatronGPTModel) -> SecondHead:
    """Give the last stage of a model its second head; in training its losses are then the sums of both heads'."""
    config = model.config
    head = SecondHead(
        config.hidden_size,
        model.vocab_size,
        config=config,
        init_method=config.init_method,
        bias=False,
        skip_bias_add=False,
        gather_output=False,
    )
    head.weight.is_embedding_or_output_parameter = True
    model.second_head = head
    model.output_layer.register_forward_pre_hook(head.note_input)
    model.register_forward_hook(_add_loss, with_kwargs=True)
    return head


def copy_first_head(model: MegatronGPTModel) -> None:
    """Have the second head start as the first, where there is one on this stage."""
    if not hasattr(model, "second_head"):
        return
    first = model.output_layer.weight
    if first is None:  # the token table of the same stage is the head
        first = model.shared_embedding_or_output_weight()
    with torch.no_grad():
        model.second_head.weight.copy_(first)


def second_head_of(model: Any) -> SecondHead | None:
    """That of a stage, whatever it is wrapped in; None where there is none."""
    while hasattr(model, "module"):
        model = model.module
    found: SecondHead | None = getattr(model, "second_head", None)
    return found


def draw_second_head(model: MegatronGPTModel, *, seed: int) -> None:
    """Have the second head start from N(0, std of the model's initialisation), where there is one on this stage.

    A row has the same draws at every layout: each rank draws the whole of the blocks that its rows lie in.
    """
    if not hasattr(model, "second_head"):
        return
    weight = model.second_head.weight
    first_row = parallel_state.get_tensor_model_parallel_rank() * len(weight)
    for block in range(first_row // _BLOCK_ROWS, -(-(first_row + len(weight)) // _BLOCK_ROWS)):
        generator = torch.Generator().manual_seed((seed << 32) + block)
        drawn = torch.randn((_BLOCK_ROWS, weight.shape[1]), generator=generator) * model.config.init_method_std
        start = block * _BLOCK_ROWS - first_row  # of the block among the rows of this rank
        rows = slice(max(start, 0), min(start + _BLOCK_ROWS, len(weight)))
        with torch.no_grad():
            weight[rows].copy_(drawn[rows.start - start : rows.stop - start])


def _add_loss(model: MegatronGPTModel, inputs: Any, options: Mapping[str, Any], losses: Tensor) -> Tensor:
    """Hook after the model.

    Args:
        losses: (batch, sequence), of the next token.

    Returns:
        (batch, sequence), with the losses of the token after the next added, see `targets_of`.
    """
    head: SecondHead = model.second_head
    hidden, head.hidden = head.hidden, None
    loss_mask, head.loss_mask = head.loss_mask, None
    targets, head.targets = head.targets, None
    labels = options.get("labels")
    if not model.training or labels is None:
        return losses
    loss_mask = torch.ones_like(losses) if loss_mask is None else loss_mask
    head.note_first_losses(losses, loss_mask)
    if targets is None:
        assert model.config.context_parallel_size == 1, "no rank has the labels of a whole sample, and the second head's were not given"
        targets = targets_of(labels, loss_mask, by_document=options.get("packed_seq_params") is not None)
    logits, _ = head(hidden)
    return losses + model.compute_language_model_loss(targets.labels, logits) * targets.weights
