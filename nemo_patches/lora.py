"""Low-rank adapters on Megatron's linear layers (LoRA, Hu et al. 2022), at any tensor parallel size.

NeMo's own adapters freeze every other parameter, have one for the fused query, key and value, and load and save through a callback that
replaces the checkpoint's reader; here, the embeddings and the head train too, fused parts have an adapter each as with PEFT, and the
adapters are parameters like any others.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.parallel_state import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor, nn

from nemo_patches.base_checkpoint import is_loading_base_checkpoint
from nemo_patches.lora_parts import FIRST, QKV, parts_of
from nemo_patches.norms import RowParallelLinearWithNorm, sum_over_sequence


@dataclass(frozen=True)
class LoRA:
    """Adapters that add alpha / rank * b @ a to a weight; their input is dropped out."""

    rank: int
    alpha: float
    dropout: float
    seed: int

    @property
    def scale(self) -> float:
        """Factor of the product."""
        return self.alpha / self.rank


class LowRank(nn.Module):
    """The two factors of one adapter; they start as PEFT's: `a` uniform up to 1 / sqrt(inputs), `b` zero.

    Attributes:
        a: (rank, inputs of this rank)
        b: (outputs of this rank, rank)
    """

    a: nn.Parameter
    b: nn.Parameter

    def __init__(self, inputs: int, outputs: int, rank: int, like: Tensor) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(rank, inputs, dtype=like.dtype, device=like.device))
        self.b = nn.Parameter(torch.zeros(outputs, rank, dtype=like.dtype, device=like.device))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any) -> None:
        if not is_loading_base_checkpoint():
            super()._load_from_state_dict(state_dict, prefix, *arguments)


class Adapted:
    """What both kinds of linear layers share."""

    lora: nn.ModuleDict
    _settings: LoRA
    _sharded: ClassVar[tuple[str, int]]  # which factor is spread over the ranks, along which dimension

    def _adapters(self) -> list[LowRank]:
        return list(self.lora.values())  # type: ignore[arg-type]

    def fold(self, dtype: torch.dtype) -> None:
        """Add the adapters into the weight, whose sum is rounded once to a dtype; what they add from then on is zero."""
        products = [low_rank.b.float() @ low_rank.a.float() for low_rank in self._adapters()]
        joined = self._joined([product.T for product in products]).T
        with torch.no_grad():
            self.weight.copy_((self.weight.float() + self._settings.scale * joined).to(dtype))  # type: ignore[attr-defined]
            for low_rank in self._adapters():
                low_rank.b.zero_()

    def _joined(self, outputs: list[Tensor]) -> Tensor:
        """The parts in the order of the fused rows."""
        return torch.cat(outputs, dim=-1)

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: dict[str, Any] | None = None) -> ShardedStateDict:
        """See Megatron's class; the adapters are left out where the checkpoint is that of the base model."""
        own = super().sharded_state_dict(prefix, sharded_offsets, metadata)  # type: ignore[misc]
        sharded: ShardedStateDict = {key: value for key, value in own.items() if not key.startswith(f"{prefix}lora.")}
        if not is_loading_base_checkpoint():
            factors = self.lora.state_dict(prefix="lora.", keep_vars=True)
            factor, dimension = self._sharded
            axes = {name: dimension for name in factors if name.endswith(f".{factor}")}
            sharded |= make_sharded_tensors_for_checkpoint(factors, prefix, axes, sharded_offsets)
        return sharded


class ColumnParallelLinearWithLoRA(Adapted, ColumnParallelLinear):
    """A linear layer whose outputs are spread over the ranks: `a` is whole on each, `b` has the rank's rows."""

    _sharded = ("b", 0)
    name = ""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **arguments: Any) -> None:
        super().__init__(input_size, output_size, config=config, **arguments)
        self._settings = config.lora
        rows = self._rows(config)
        self.lora = nn.ModuleDict({part: LowRank(input_size, count, self._settings.rank, self.weight) for part, count in rows.items()})
        for low_rank in self._adapters():
            set_tensor_model_parallel_attributes(low_rank.b, True, 0, 1)
            sum_over_sequence(low_rank.a, self.sequence_parallel)

    def _rows(self, config: Any) -> dict[str, int]:
        """Rows of each part on this rank."""
        parts = parts_of(self.name, is_gated=config.gated_linear_unit)
        return dict.fromkeys(parts, self.output_size_per_partition // len(parts))

    def forward(self, x: Tensor, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        """(..., num_inputs) -> (..., num_outputs), the outputs of this rank, and the bias where the caller is to add it."""
        output, bias = super().forward(x, *arguments, **options)
        outputs = []
        for low_rank in self._adapters():
            dropped = F.dropout(x, self._settings.dropout, self.training)
            outputs.append(F.linear(self._spread(F.linear(dropped, low_rank.a)), low_rank.b))
        return output + self._settings.scale * self._joined(outputs), bias

    def _spread(self, narrow: Tensor) -> Tensor:
        """What the rows of every rank see, of which each gives a part of the gradient: the tokens of all ranks, where each has some."""
        spread = gather_from_sequence_parallel_region if self.sequence_parallel else copy_to_tensor_model_parallel_region
        found: Tensor = spread(narrow)
        return found


class QKVWithLoRA(ColumnParallelLinearWithLoRA):
    """The fused projection of query, key and value."""

    name = QKV

    def _rows(self, config: Any) -> dict[str, int]:
        heads_per_group = config.num_attention_heads // config.num_query_groups
        head_dim = config.kv_channels
        self._groups = self.output_size_per_partition // ((heads_per_group + 2) * head_dim)
        key = self._groups * head_dim
        return {"q": heads_per_group * key, "k": key, "v": key}

    def _joined(self, outputs: list[Tensor]) -> Tensor:
        return torch.cat([part.unflatten(-1, (self._groups, -1)) for part in outputs], dim=-1).flatten(-2)


class FirstLinearWithLoRA(ColumnParallelLinearWithLoRA):
    """The first linear layer of the feed-forward part, gate above up where it is gated."""

    name = FIRST


class RowParallelLinearWithLoRA(Adapted, RowParallelLinear):
    """A linear layer whose inputs are spread over the ranks: `a` has the rank's columns, `b` is whole on each."""

    _sharded = ("a", 1)

    def __init__(self, input_size: int, output_size: int, *, config: Any, **arguments: Any) -> None:
        super().__init__(input_size, output_size, config=config, **arguments)
        self._settings = config.lora
        self.lora = nn.ModuleDict({"all": LowRank(self.input_size_per_partition, output_size, self._settings.rank, self.weight)})
        set_tensor_model_parallel_attributes(self.lora["all"].a, True, 1, 1)
        sum_over_sequence(self._adapters()[0].b, self.sequence_parallel)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(..., num_inputs) -> (..., num_outputs), the inputs of this rank, and the bias where the caller is to add it."""
        output, bias = super().forward(x)
        if self.training and self._settings.dropout:
            x = x * self._kept(x) / (1 - self._settings.dropout)
        [low_rank] = self._adapters()
        join = reduce_scatter_to_sequence_parallel_region if self.sequence_parallel else reduce_from_tensor_model_parallel_region
        return output + self._settings.scale * F.linear(join(F.linear(x, low_rank.a)), low_rank.b), bias

    def _kept(self, x: Tensor) -> Tensor:
        """This rank's part of the mask, which all draw whole and alike, so that every layout drops the same inputs.

        With sequence parallelism the layers of each rank draw their own numbers, whatever they drop.
        """
        if self.sequence_parallel:
            return torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - self._settings.dropout)
        size = x.shape[-1]
        whole = torch.empty(*x.shape[:-1], size * get_tensor_model_parallel_world_size(), dtype=torch.bool, device=x.device)
        first = size * get_tensor_model_parallel_rank()
        return whole.bernoulli_(1 - self._settings.dropout)[..., first : first + size]


class RowParallelLinearWithLoRAAndNorm(RowParallelLinearWithNorm, RowParallelLinearWithLoRA):
    """The same with a norm behind both."""


def initialise_adapters(model: nn.Module, settings: LoRA) -> None:
    """Draw every `a`; seed, layer and name decide, so that every layout draws the same."""
    for layer in model.decoder.layers:  # type: ignore[union-attr]
        for name, module in layer.named_modules():
            if isinstance(module, LowRank):
                _draw(module.a, zlib.crc32(f"{settings.seed} {layer.layer_number} {name}".encode()))


def _draw(a: nn.Parameter, seed: int) -> None:
    from megatron.core import parallel_state

    parts = parallel_state.get_tensor_model_parallel_world_size() if getattr(a, "tensor_model_parallel", False) else 1
    bound = 1 / math.sqrt(a.shape[1] * parts)
    whole = torch.empty(a.shape[0], a.shape[1] * parts).uniform_(-bound, bound, generator=torch.Generator().manual_seed(seed))
    mine = whole.chunk(parts, dim=1)[parallel_state.get_tensor_model_parallel_rank() if parts > 1 else 0]
    with torch.no_grad():
        a.copy_(mine)
