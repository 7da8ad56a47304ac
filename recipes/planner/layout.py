"""How a model is spread over GPUs and fed: the part of a recipe that memory and time depend on."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from recipes.numbers.recomputation import in_words
from recipes.rules.schema import Recipe, RecomputationRecipe


@dataclass(frozen=True)
class Layout:
    """Sizes of one step.

    Attributes:
        data_parallel_size: replicas of the model.
        micro_batch_size: samples of one rank in one pass.
        accumulation_steps: passes of one step.
        devices_per_node: GPUs that talk over NVLink; tensor-parallel ranks are neighbours among them.
        is_half: bfloat16 parameters with float32 gradients and optimizer state; otherwise all in float32.
        overlaps: whether gradients are reduced and parameters gathered beside the computation.
        hidden_dropout: whether dropout keeps masks.
        document_mask: whether attention is masked between the documents of a sample.
        sequence_parallel: whether activations between tensor-parallel blocks are split along the sequence.
        recomputation: what the backward pass does again to save memory, as the recipe says it.
        recomputed: share of the forward pass that published runs of another engine do again.
        shards_parameters: parameters are spread over the replicas too and gathered in every pass (FSDP); no recipe of ours does.
        gradient_bytes: of a number when gradients are reduced.
        batch_unit: samples of which every batch of the run is a multiple, where batches grow; None where all are as large.
        context_parallel_size: ranks among which every sample is cut; they keep the weights as replicas do.
    """

    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    micro_batch_size: int
    accumulation_steps: int
    sequence_length: int
    devices_per_node: int
    distributed_optimizer: bool = True
    is_half: bool = True
    overlaps: bool = True
    hidden_dropout: bool = False
    document_mask: bool = False
    sequence_parallel: bool = False
    recomputation: RecomputationRecipe | None = None
    recomputed: float = 0.0
    shards_parameters: bool = False
    gradient_bytes: int = 4
    batch_unit: int | None = None
    context_parallel_size: int = 1

    @property
    def num_devices(self) -> int:
        """GPUs of the run."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.weight_copies

    @property
    def weight_copies(self) -> int:
        """Ranks that have the same weights: they reduce gradients together, and spread the optimizer's state."""
        return self.context_parallel_size * self.data_parallel_size

    @property
    def rank_length(self) -> int:
        """Tokens that one rank has of a sample."""
        return self.sequence_length // self.context_parallel_size

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens of one rank in one pass."""
        return self.micro_batch_size * self.rank_length

    @property
    def step_tokens(self) -> int:
        """Tokens of one optimizer step over all ranks."""
        return self.micro_batch_size * self.sequence_length * self.accumulation_steps * self.data_parallel_size

    def __str__(self) -> str:
        context = f" x CP {self.context_parallel_size}" if self.context_parallel_size > 1 else ""
        return (
            f"TP {self.tensor_parallel_size}{context} x PP {self.pipeline_parallel_size} x DP {self.data_parallel_size},"
            f" micro batch {self.micro_batch_size}"
            f"{', sequence parallel' if self.sequence_parallel else ''}{in_words(self.recomputation)}"
        )


def layout_of(recipe: Recipe) -> Layout:
    """The layout that a recipe asks for."""
    parallel, ramp = recipe.parallel, recipe.schedule.ramp_up
    return Layout(
        tensor_parallel_size=parallel.tensor_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        context_parallel_size=parallel.context_parallel_size,
        data_parallel_size=parallel.data_parallel_size,
        micro_batch_size=recipe.schedule.micro_batch_size,
        accumulation_steps=recipe.accumulation_steps,
        sequence_length=recipe.data.sequence_length,
        devices_per_node=parallel.devices_per_node,
        distributed_optimizer=parallel.distributed_optimizer,
        is_half=recipe.precision == "bf16",
        overlaps=parallel.overlap_communication,
        hidden_dropout=recipe.model.hidden_dropout > 0,
        document_mask=recipe.data.document_mask,
        sequence_parallel=parallel.sequence_parallel,
        recomputation=recipe.recomputation,
        batch_unit=None if ramp is None else gcd(ramp.start_batch_size, ramp.batch_size_increment),
    )
