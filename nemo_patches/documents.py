"""Intra-document attention masking: where the documents of a micro batch begin, on the way from the data to every layer.

A document begins where the positions of a sample are 0: at the sample's start, whatever it was cut from, and behind each end-of-text
token.  The bounds are read on the host, where the loader has left the positions, so that no layer asks a GPU for them.  They travel in
the place of Megatron's own parameters of packed sequences, which it hands to every layer, also to a recomputed one.

All samples of a micro batch count as one row of tokens here, one after the other.  Where context parallelism cuts them, the bounds stay
those of the whole samples, and the positions are those of this rank's tokens.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from megatron.core.models.gpt import GPTModel as MegatronGPTModel
from megatron.core.packed_seq_params import PackedSeqParams
from nemo.collections.llm.gpt.model.base import gpt_data_step
from torch import Tensor, nn

from nemo_patches.context_parallel import on_this_rank

TOGETHER = 512  # tokens of short documents that share a block of scores: less than half of these are seen, but a kernel's start is saved


@dataclass
class Documents(PackedSeqParams):
    """The documents of a micro batch.

    Attributes:
        bounds: first token of each document in the row, and one past the last.
        length: tokens of a sample, on all ranks together.
        positions: (samples, tokens of this rank), on the device.
        device_bounds: the bounds as 32-bit numbers, on the device.
        masks: which pairs of tokens of a block see each other, by whoever made them; kept because all layers need the same.
    """

    bounds: tuple[int, ...] = ()
    length: int = 0
    positions: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    device_bounds: Tensor = field(default_factory=lambda: torch.zeros(0))
    masks: dict[Any, Tensor] = field(default_factory=dict)

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest document."""
        return max(end - first for first, end in pairwise(self.bounds))

    def start_of(self, sample: int, place: int) -> int:
        """Place in a sample where the document of one of its tokens begins."""
        row = sample * self.length + place
        return self.bounds[bisect_right(self.bounds, row) - 1] - sample * self.length

    def bounds_within(self, sample: int, first: int, end: int) -> list[int]:
        """Places in a sample from `first` to `end`: these, and where documents begin between them."""
        rows = self.bounds[bisect_right(self.bounds, sample * self.length + first) : bisect_left(self.bounds, sample * self.length + end)]
        return [first, *(row - sample * self.length for row in rows), end]

    @cached_property
    def blocks(self) -> list[DocumentBlock]:
        """The row in blocks, each with one document or several short ones."""
        return list(document_blocks(self.bounds))

    def same_document(self, block: DocumentBlock) -> Tensor:
        """(tokens, tokens) of a block: whether two of them are of the same document."""
        tokens = torch.arange(block.first, block.end, device=self.positions.device)
        starts = tokens - self.positions.reshape(-1)[block.first : block.end]
        return starts[:, None] == starts


@dataclass(frozen=True)
class DocumentBlock:
    """Tokens of a row from `first` to before `end`."""

    first: int
    end: int
    is_one_document: bool

    @property
    def size(self) -> int:
        """Tokens."""
        return self.end - self.first


def document_blocks(bounds: tuple[int, ...]) -> Iterator[DocumentBlock]:
    """Documents, those that follow each other together as long as they fit into `TOGETHER` tokens."""
    first = 0
    for number in range(1, len(bounds)):
        is_last = number == len(bounds) - 1
        if is_last or bounds[number + 1] - bounds[first] > TOGETHER:
            yield DocumentBlock(bounds[first], bounds[number], number == first + 1)
            first = number


def document_starts(position_ids: Tensor) -> list[int]:
    """Where documents begin in the row of a micro batch.

    Args:
        position_ids: (samples, length), on the host.
    """
    is_first = position_ids.numpy() == 0
    is_first[:, 0] = True
    found: list[int] = np.flatnonzero(is_first).tolist()
    return found


def documents_of(position_ids: Tensor) -> Documents:
    """The documents of a micro batch.

    Args:
        position_ids: (samples, length), on the host, of whole samples, counted from 0 in each document.
    """
    length = position_ids.shape[1]
    bounds = (*document_starts(position_ids), position_ids.numel())
    return Documents(
        # No kernel of TransformerEngine takes this for a format that it knows, so none passes over the documents.
        qkv_format="documents",
        max_seqlen_q=length,  # so many rotary positions are made, from which each token takes its own
        max_seqlen_kv=length,
        bounds=bounds,
        length=length,
        positions=on_this_rank(position_ids).cuda(non_blocking=True),
        device_bounds=torch.tensor(bounds, dtype=torch.int32, pin_memory=True).cuda(non_blocking=True),
    )


def micro_batch(batches: Iterator[Any]) -> Mapping[str, Tensor]:
    """The next one, which NeMo's loader may give among other things: tokens, labels, loss_mask and position_ids, each (samples, length)."""
    given = next(batches)
    batch: Mapping[str, Tensor] = given[0] if isinstance(given, tuple) else given
    return batch


def documents_data_step(batches: Iterator[Any]) -> dict[str, Any]:
    """NeMo's step that takes a micro batch to the device, with its documents: every pipeline stage needs these."""
    batch = micro_batch(batches)
    found: dict[str, Any] = gpt_data_step(iter([batch]))
    found["documents"] = documents_of(batch["position_ids"])
    return found


class _RestartedPositions:
    """Hooks of a model by which it refuses a micro batch without documents, and rotates by the positions in these."""

    def __init__(self) -> None:
        self._documents: Documents | None = None

    def note(self, model: nn.Module, inputs: Any, options: Mapping[str, Any]) -> None:
        """Before the model."""
        documents = options.get("packed_seq_params")
        assert isinstance(documents, Documents), "this model uses intra-document masking, but the bounds of documents were not given"
        self._documents = documents

    def restart(self, rotary: nn.Module, inputs: Any, angles: Tensor) -> Tensor:
        """Behind the rotary positions: those of each token instead of 0, 1, 2 ...

        Args:
            angles: (length, 1, 1, rotated_dimensions)

        Returns:
            (length, samples, 1, rotated_dimensions), without the second dimension where it is 1, as Megatron leaves it out of queries and
            keys.
        """
        assert self._documents is not None
        found: Tensor = angles[:, 0, 0][self._documents.positions.t()]
        return found if found.shape[1] == 1 else found.unsqueeze(2)


def mask_documents(model: MegatronGPTModel) -> None:
    """Have a model's positions begin again at each document, and its forward pass ask for `packed_seq_params=Documents`."""
    hooks = _RestartedPositions()
    model.register_forward_pre_hook(hooks.note, with_kwargs=True)
    if model.config.position_embedding_type == "rope":
        model.rotary_pos_emb.cp_group = None  # it gives all positions of a sample then, from which each token takes its own
        model.rotary_pos_emb.register_forward_hook(hooks.restart)
