"""The layouts that a model can have on given GPUs, the fastest that fit first."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nemo_patches.whole_experts import has_biased_experts
from recipes.numbers.arithmetic import divisors
from recipes.planner.hardware import Gpu
from recipes.planner.layout import Layout
from recipes.planner.memory import Fit, MemoryEstimate, estimate_memory
from recipes.planner.parameters import PlannedModel
from recipes.planner.throughput import StepTime, step_time
from recipes.rules.schema import RecomputationRecipe

_MIN_RANK_LENGTH = 2048  # tokens; shorter pieces keep no GPU busy, and recipes of that length need none
_MAX_MICRO_BATCH = 64  # samples; larger ones gain nothing at the sequence lengths of our recipes


@dataclass(frozen=True)
class Choice:
    """One layout with what it needs and how fast it is.

    Attributes:
        tokens_per_second: per GPU.
        mfu: model operations per second over the GPU's peak.
    """

    layout: Layout
    memory: MemoryEstimate
    fit: Fit
    time: StepTime
    tokens_per_second: float
    mfu: float


def judge(model: PlannedModel, layout: Layout, gpu: Gpu) -> Choice:
    """What a layout needs and gives on a GPU; of frozen parameters memory takes notice, time does not."""
    memory = estimate_memory(model, layout)
    time = step_time(model, layout, gpu)
    rate = layout.step_tokens / layout.num_devices / time.total
    flops = model.flops_per_token(layout.sequence_length)
    return Choice(layout, memory, Fit(memory.needed_gib, gpu.memory_gib), time, rate, rate * flops / gpu.peak_flops)


def ranked(model: PlannedModel, asked: Layout, gpu: Gpu, *, num_devices: int) -> list[Choice]:
    """All layouts of a batch on so many GPUs: those that fit, the fastest first, then the others, the smallest first.

    Where one does not fit otherwise, as few layers as possible are recomputed.

    Args:
        asked: whose batch, sequence length, precision and other switches are kept.
    """
    choices = [_made_to_fit(model, layout, gpu) for layout in layouts(model, asked, num_devices)]
    return sorted(choices, key=lambda c: (0, -c.tokens_per_second) if c.fit.fits else (1, c.fit.needed_gib))


def _made_to_fit(model: PlannedModel, layout: Layout, gpu: Gpu) -> Choice:
    """A layout that keeps all activations, or recomputes as few as possible."""
    kept = judge(model, layout, gpu)
    if kept.fit.fits:
        return kept
    most = model.config["num_layers"] // layout.pipeline_parallel_size
    recomputing = [replace(layout, recomputation=RecomputationRecipe(method="block", num_layers=n)) for n in range(1, most + 1)]

    def fits(layout: Layout) -> bool:
        return Fit(estimate_memory(model, layout).needed_gib, gpu.memory_gib).fits

    if not fits(recomputing[-1]):
        return judge(model, recomputing[-1], gpu)
    return judge(model, recomputing[bisect_left(recomputing, True, key=fits)], gpu)


def layouts(model: PlannedModel, asked: Layout, num_devices: int) -> Iterator[Layout]:
    """Every legal layout with the distributed optimizer and the given batch, without recomputation.

    Tensor parallelism goes beyond a node only up to what is asked.
    """
    batch = asked.micro_batch_size * asked.accumulation_steps * asked.data_parallel_size
    unit = asked.batch_unit or batch
    for tensor in legal_tensor_sizes(model.config, model.vocab_rows, limit=max(asked.devices_per_node, asked.tensor_parallel_size)):
        for pipeline in (1,) if model.factorised_size else divisors(model.config["num_layers"]):  # factors lie on one stage alone
            has_sinks = model.config.get("softmax_type") == "learnable"  # which are not trained with context parallelism
            most = 1 if has_sinks else num_devices // (tensor * pipeline)
            for context in legal_context_sizes(asked, limit=most):
                replicas, left = divmod(num_devices, tensor * context * pipeline)
                if left or not replicas or unit % replicas:
                    continue
                for micro in divisors(unit // replicas):
                    if micro > _MAX_MICRO_BATCH:
                        continue
                    layout = replace(
                        asked,
                        tensor_parallel_size=tensor,
                        context_parallel_size=context,
                        pipeline_parallel_size=pipeline,
                        data_parallel_size=replicas,
                        micro_batch_size=micro,
                        accumulation_steps=batch // replicas // micro,
                        distributed_optimizer=True,
                        sequence_parallel=False,
                        recomputation=None,
                    )
                    if tensor == 1 or "num_moe_experts" not in model.config:  # see recipes.rules.layout_checks
                        yield layout
                    if tensor > 1 and layout.rank_length % tensor == 0:
                        yield replace(layout, sequence_parallel=True)


def legal_context_sizes(asked: Layout, *, limit: int) -> list[int]:
    """Context-parallel sizes up to a limit that leave each rank enough of a sample to be worth it; 1 and that of the asked layout always."""
    length = asked.sequence_length
    return [
        size
        for size in range(1, limit + 1)
        if size == 1 or (length % (2 * size) == 0 and (size == asked.context_parallel_size or length // size >= _MIN_RANK_LENGTH))
    ]


def legal_tensor_sizes(model: Mapping[str, Any], vocab_rows: int, *, limit: int) -> list[int]:
    """Tensor-parallel sizes that divide heads, feed-forward layer (of an expert) and vocabulary, up to a limit."""
    groups = model.get("num_query_groups", model["num_attention_heads"])
    width = groups if has_biased_experts(model) else model["moe_ffn_hidden_size" if "num_moe_experts" in model else "ffn_hidden_size"]
    return [n for n in divisors(groups) if n <= limit and width % n == 0 and vocab_rows % n == 0]
