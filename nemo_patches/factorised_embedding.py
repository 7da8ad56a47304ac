"""A token table that is trained as coordinates of each token times primitives that all share (OFA, Liu et al. 2024, section 3.1).

The head is tied as in the paper: what it multiplies with is the same product, taken from the other side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.models.gpt import GPTModel as MegatronGPTModel
from megatron.core.tensor_parallel import VocabParallelEmbedding
from megatron.core.tensor_parallel.mappings import copy_to_tensor_model_parallel_region
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor, nn

from nemo_patches.base_checkpoint import is_loading_base_checkpoint

COORDINATES, PRIMITIVES = "embedding.word_embeddings.coordinates.weight", "embedding.word_embeddings.primitives"


class FactorisedEmbedding(nn.Module):
    """The table; the coordinates are spread over the ranks by tokens, as a table is, and the primitives are whole on each.

    Attributes:
        coordinates: an embedding of its own, of (num_rows, factorised_size).
        primitives: (factorised_size, hidden_size)

    Args:
        cuts_sequence: whether each rank is to have a part of the embedded sequence, (sequence, batch, hidden_size).
    """

    def __init__(self, num_rows: int, factorised_size: int, *, config: Any, cuts_sequence: bool) -> None:
        super().__init__()
        self._cuts, self._sees_part = cuts_sequence, config.sequence_parallel
        self.coordinates = VocabParallelEmbedding(
            num_rows, factorised_size, init_method=config.init_method, config=config, reduce_scatter_embeddings=cuts_sequence
        )
        rows = self.coordinates.weight
        self.primitives = nn.Parameter(torch.zeros(factorised_size, config.hidden_size, dtype=rows.dtype, device=rows.device))
        self.register_load_state_dict_post_hook(_forgive_base)

    @property
    def weight(self) -> Tensor:
        """What Megatron takes as the shared matrix: (num_rows, factorised_size), the rows of this rank."""
        weight: Tensor = self.coordinates.weight
        return weight

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, sequence, hidden_size) of ids (batch, sequence); this rank's (sequence, batch, hidden_size) where sequences are cut."""
        rows: Tensor = self.coordinates(ids) @ self._for_part(self._cuts)
        return rows

    def _for_part(self, is_part: bool) -> Tensor:
        """The primitives, for what is whole on each rank or for a part of the sequence: then their gradients are parts too, and summed.

        They are summed here and not by Megatron, as with learned positions the embedding sees the whole sequence and the head a part.
        """
        found: Tensor = copy_to_tensor_model_parallel_region(self.primitives) if is_part else self.primitives
        return found

    def project(self, head: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Hook before the head: the hidden states along the primitives, which the coordinates are then multiplied with."""
        return (inputs[0] @ self._for_part(self._sees_part).T, *inputs[1:])

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: dict[str, Any] | None = None) -> ShardedStateDict:
        """Both factors; the base model has neither."""
        if is_loading_base_checkpoint():
            return {}
        sharded: ShardedStateDict = self.coordinates.sharded_state_dict(f"{prefix}coordinates.", sharded_offsets, metadata)
        return sharded | make_sharded_tensors_for_checkpoint({"primitives": self.primitives}, prefix, {}, sharded_offsets)

    def fold(self, dtype: torch.dtype) -> None:
        """Take the product of the factors, rounded once to a dtype, as coordinates along the identity."""
        product = (self.coordinates.weight.float() @ self.primitives.float()).to(dtype).to(self.primitives.dtype)
        self.coordinates.weight = nn.Parameter(product)
        self.primitives = nn.Parameter(torch.eye(product.shape[1], dtype=product.dtype, device=product.device))

    def fill(self, factors: Mapping[str, Tensor]) -> None:
        """Take the factors that a transfer made; padding rows get coordinates of zero.

        Args:
            factors: `coordinates` (num_tokens, factorised_size) and `primitives` (factorised_size, hidden_size).
        """
        table = self.coordinates
        mine = factors["coordinates"][table.vocab_start_index : table.vocab_end_index]
        with torch.no_grad():
            table.weight.zero_()
            table.weight[: len(mine)] = mine
            self.primitives.copy_(factors["primitives"])


def factorise_embedding(model: MegatronGPTModel, factorised_size: int) -> None:
    """Give a model on one pipeline stage, with a tied head, the factorised table in place of its own."""
    assert model.pre_process and model.post_process and model.share_embeddings_and_output_weights
    cuts_sequence = model.embedding.reduce_scatter_embeddings
    table = FactorisedEmbedding(model.vocab_size, factorised_size, config=model.config, cuts_sequence=cuts_sequence)
    table.coordinates.weight.is_embedding_or_output_parameter = True
    table.coordinates.weight.zero_out_wgrad = True  # as Megatron does for a table that the head shares
    model.embedding.word_embeddings = table
    model.output_layer.input_size = factorised_size
    model.output_layer.register_forward_pre_hook(table.project)


def _forgive_base(module: nn.Module, keys: Any) -> None:
    """Hook after the loading of weights: those of the base model lack the factors, which `fill` brings."""
    if is_loading_base_checkpoint():
        keys.missing_keys[:] = [key for key in keys.missing_keys if not key.endswith((COORDINATES, PRIMITIVES))]
