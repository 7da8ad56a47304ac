"""Time of one optimizer step from operations, memory traffic and communication, with few calibrated shares of the hardware's rates.

Each part is work divided by a rate: matrix products, attention, traffic of what lies between them, collectives.  What the
hardware reaches of its rates is `Efficiency`; how it was found, and how far it carries, `python -m benchmarks.planner` shows.
"""

from __future__ import annotations

from dataclasses import dataclass

from nemo_patches.whole_experts import has_biased_experts
from recipes.numbers.arithmetic import visible_share
from recipes.numbers.recomputation import CORE_ATTENTION, FEED_FORWARD, resolved
from recipes.planner.activations import WINDOW_BLOCK
from recipes.planner.hardware import Gpu
from recipes.planner.layout import Layout
from recipes.planner.memory import layer_bytes
from recipes.planner.parameters import PlannedModel


@dataclass(frozen=True)
class Efficiency:
    """Shares of the hardware's rates that are reached.

    Attributes:
        products: of the peak, by a matrix product whose operands are large; small ones also pay for reading them.
        attention: of the peak, by a flash attention kernel with heads of 128.
        recomputation: what doing the forward pass again adds to the time of both passes, in published runs of other engines.
        nvlink: of the links' rate, by the all-reduces of tensor parallelism.
        network: of the cards' rate, by the collectives of data parallelism.
    """

    products: float
    attention: float
    recomputation: float
    nvlink: float = 0.77  # assumed: NCCL's all-reduce reaches about 230 of an A100's 300 GB/s
    network: float = 0.8  # assumed


CALIBRATED = Efficiency(products=0.643, attention=0.358, recomputation=0.145)
"""The least squares over published A100 throughput: `python -m benchmarks.planner` fits them again."""

# Of each byte kept for the backward pass, counted: written and read forward, read backward, its gradient written and read.
_PASSES = 5
_SCORE_BYTES = 8  # of a capped score: in 16 bit after the cap, in 32 bit after the softmax, in 16 bit as a weight
STEP_SECONDS = 0.02  # assumed: gradient norm, batch, logging, the first launch
_FLASH_FORWARD, _FLASH_BACKWARD = 2, 5  # products over the scores; the backward pass computes the scores again


@dataclass(frozen=True)
class PassTime:
    """Seconds of forward and backward of micro batches on one stage.

    Attributes:
        context_parallel: exchanging keys, values and their gradients, nothing of it hidden, which TransformerEngine's ring may do.
    """

    products: float
    attention: float
    traffic: float
    tensor_parallel: float
    context_parallel: float

    @property
    def total(self) -> float:
        """Seconds of all parts."""
        return sum(vars(self).values())


@dataclass(frozen=True)
class StepTime(PassTime):
    """Seconds of one optimizer step: of all its micro batches on the slowest pipeline stage, and what comes on top.

    Attributes:
        pipeline: waiting for other stages, and sending to them.
        data_parallel: reducing gradients and gathering parameters, what no computation hides.
        optimizer: updating the parameters, and what happens once per step.
    """

    pipeline: float
    data_parallel: float
    optimizer: float


def step_time(model: PlannedModel, layout: Layout, gpu: Gpu, *, efficiency: Efficiency = CALIBRATED, kernels: str = "gpu") -> StepTime:
    """The time of one step in bfloat16, with all parameters trained."""
    passes, pipeline = layout.accumulation_steps, layout.pipeline_parallel_size
    ends = {0, pipeline - 1}  # the first stage has the tables, the last one the output layer
    slowest = max((_pass_time(model, layout, gpu, stage, efficiency, kernels) for stage in ends), key=lambda stage: stage.total)
    most = max(
        model.rank(tensor_parallel_size=layout.tensor_parallel_size, pipeline_parallel_size=pipeline, stage=stage).held for stage in ends
    )
    return StepTime(
        products=passes * slowest.products,
        attention=passes * slowest.attention,
        traffic=passes * slowest.traffic,
        tensor_parallel=passes * slowest.tensor_parallel,
        context_parallel=passes * slowest.context_parallel,
        pipeline=(pipeline - 1) * slowest.total + (passes + pipeline - 1) * _sending_seconds(model, layout, gpu, efficiency),
        data_parallel=_data_parallel_time(most, layout, gpu, efficiency, pass_seconds=slowest.total),
        optimizer=_optimizer_time(most, layout, gpu) + STEP_SECONDS,
    )


def _pass_time(model: PlannedModel, layout: Layout, gpu: Gpu, stage: int, efficiency: Efficiency, kernels: str) -> PassTime:
    """One micro batch on one stage."""
    shape, tensor, tokens = model.shape, layout.tensor_parallel_size, layout.micro_batch_tokens
    num_layers = model.config["num_layers"] // layout.pipeline_parallel_size
    vocab_columns = model.num_heads * model.vocab_rows // tensor if stage == layout.pipeline_parallel_size - 1 else 0
    again = _again(layout, num_layers, efficiency)
    # Experts compute one after the other, each with its part of the tokens (here: as many as every other), on the ranks that have parts of it, or
    # of their own tokens.
    experts, chosen = model.config.get("num_moe_experts") or 1, model.config.get("moe_router_topk") or 1
    of_tokens, of_width = (tensor, 1) if has_biased_experts(model.config) else (1, tensor)
    around_attention, feed_forward = (
        parts * sum(product_seconds(rows, inputs, outputs, gpu, efficiency) for inputs, outputs in products)
        for parts, rows, products in (
            (1, tokens, ((shape.hidden, shape.qkv // tensor), (shape.attention // tensor, shape.hidden))),
            (
                experts,
                tokens * chosen // experts // of_tokens,
                ((shape.hidden, shape.ffn_input // chosen // of_width), (shape.ffn // chosen // of_width, shape.hidden)),
            ),
        )
    )
    kept = layer_bytes(model, layout, is_half=True, kernels=kernels).of(tokens)
    predicted = max(1, round(tokens * model.predicted_share))
    head_traffic = 10 * predicted * vocab_columns  # logits and what the loss makes of them: 16 bit, 32 bit and 32 bit
    # Two forward, two backward, and one at either end of the model. With sequence parallelism they are scattering sums and gatherings, as long;
    # what is gathered again for the gradients of weights goes beside the gradients of inputs (Korthikanti et al. 2022, section 4.2.2).
    reduces = num_layers * 4 + recomputed_all_reduces(layout, num_layers) + 1
    return PassTime(
        products=num_layers * (around_attention * again.around_attention + feed_forward * again.feed_forward)
        + _head_seconds(model, predicted, vocab_columns, gpu, efficiency),
        attention=num_layers * _attention_seconds(model, layout, gpu, efficiency) * again.attention,
        traffic=(num_layers * kept * again.traffic * _PASSES + head_traffic) / gpu.memory_rate,
        tensor_parallel=reduces
        * _all_reduce_seconds(2 * tokens * shape.hidden, tensor, _ring_rate(layout, gpu, efficiency, ranks=tensor, stride=1)),
        context_parallel=num_layers
        * exchanged_bytes(model, layout)
        / _ring_rate(layout, gpu, efficiency, ranks=layout.context_parallel_size, stride=tensor),
    )


@dataclass(frozen=True)
class _Again:
    """By what computing parts of the layers again lengthens the time of both passes, on the average of a stage's layers."""

    around_attention: float
    feed_forward: float
    attention: float
    traffic: float


def _again(layout: Layout, num_layers: int, efficiency: Efficiency) -> _Again:
    """Of our own runs by count: a third of the products, the forward kernel of attention, what is written and read forward."""
    if layout.recomputed:
        return _Again(*(4 * [1 + layout.recomputed * efficiency.recomputation]))
    whole = _share_of_layers(layout, num_layers)
    parts = recomputed_modules(layout, num_layers)
    attention, feed_forward = (max(whole, float(part in parts)) for part in (CORE_ATTENTION, FEED_FORWARD))
    forward = _FLASH_FORWARD / (_FLASH_FORWARD + _FLASH_BACKWARD)
    return _Again(1 + whole / 3, 1 + feed_forward / 3, 1 + attention * forward, 1 + whole * 2 / _PASSES)


def _share_of_layers(layout: Layout, num_layers: int) -> float:
    """How many layers of a stage are recomputed as a whole."""
    asked = resolved(layout.recomputation, num_layers)
    if asked is None or asked.num_layers is None:
        return layout.recomputed
    return asked.num_layers / num_layers if asked.method == "block" else 1.0


def recomputed_modules(layout: Layout, num_layers: int) -> tuple[str, ...]:
    """Parts of every layer that are recomputed; none if whole layers are."""
    asked = resolved(layout.recomputation, num_layers)
    return asked.modules if asked is not None else ()


def recomputed_all_reduces(layout: Layout, num_layers: int) -> float:
    """All-reduces of a stage and micro batch that recomputation repeats: one after attention and one after the feed-forward part."""
    return num_layers * (2 * _share_of_layers(layout, num_layers) + (FEED_FORWARD in recomputed_modules(layout, num_layers)))


def exchanged_bytes(model: PlannedModel, layout: Layout) -> float:
    """Bytes that a rank sends for attention over cut samples, of one layer and micro batch: keys and values for either pass, and their gradients."""
    ranks, num_layers = layout.context_parallel_size, model.config["num_layers"] // layout.pipeline_parallel_size
    keys = (model.shape.qkv - model.shape.attention) / layout.tensor_parallel_size  # and values
    again = max(_share_of_layers(layout, num_layers), float(CORE_ATTENTION in recomputed_modules(layout, num_layers)))
    return (3 + again) * (2 if layout.is_half else 4) * keys * layout.micro_batch_tokens * (ranks - 1)


def _ring_rate(layout: Layout, gpu: Gpu, efficiency: Efficiency, *, ranks: int, stride: int) -> float:
    """Bytes per second of a ring, which enters and leaves each node once and shares its cards with the other rings.

    Args:
        stride: ranks from one of the ring to the next.
    """
    if ranks * stride <= layout.devices_per_node:
        return gpu.nvlink_rate * efficiency.nvlink
    rings = min(layout.devices_per_node, stride)
    return min(gpu.nvlink_rate * efficiency.nvlink, gpu.network_rate / rings * efficiency.network)


def _head_seconds(model: PlannedModel, tokens: int, vocab_columns: int, gpu: Gpu, efficiency: Efficiency) -> float:
    """The output layer of a stage that has one; where its matrix is trained as factors, the products with one after the other."""
    hidden, between = model.shape.hidden, model.factorised_size
    if not between or not vocab_columns:
        return product_seconds(tokens, hidden, vocab_columns, gpu, efficiency)
    return product_seconds(tokens, hidden, between, gpu, efficiency) + product_seconds(tokens, between, vocab_columns, gpu, efficiency)


def _sending_seconds(model: PlannedModel, layout: Layout, gpu: Gpu, efficiency: Efficiency) -> float:
    """Activations to the next stage and their gradients back, each rank of a node with its share of the network."""
    if layout.pipeline_parallel_size == 1:
        return 0.0
    return 2 * 2 * layout.micro_batch_tokens * model.shape.hidden / (gpu.network_rate / gpu.devices_per_node * efficiency.network)


def product_seconds(tokens: int, inputs: int, outputs: int, gpu: Gpu, efficiency: Efficiency) -> float:
    """A linear layer's product and the two of its backward pass: arithmetic at its rate, and its operands through memory at theirs."""
    flops = 2 * tokens * inputs * outputs
    moved = 2 * (tokens * inputs + inputs * outputs + tokens * outputs)
    return 3 * (flops / (gpu.peak_flops * efficiency.products) + moved / gpu.memory_rate)


def _attention_seconds(model: PlannedModel, layout: Layout, gpu: Gpu, efficiency: Efficiency) -> float:
    """Attention of one layer and micro batch, without its projections."""
    width = model.shape.attention
    head_dim = width // model.config["num_attention_heads"]
    scores = layout.micro_batch_tokens * layout.sequence_length * width / layout.tensor_parallel_size
    scores *= visible_share(model.config, layout.sequence_length, block=WINDOW_BLOCK)
    if model.config.get("attn_logit_softcapping"):
        # By products and not by a kernel, of the half of the scores that the mask shows: forward, again, and the four of the backward
        # pass; and the scores pass through memory as 16-bit numbers, 32-bit ones and weights.
        traffic = _SCORE_BYTES * scores / head_dim / 2 * (_PASSES + 2)
        return 2 * scores / 2 * 8 / (gpu.peak_flops * efficiency.products) + traffic / gpu.memory_rate
    products = _FLASH_FORWARD + _FLASH_BACKWARD
    # Narrow heads fill the tensor cores less; the form follows the A100 figures of Dao 2023 (FlashAttention-2, section 4.1).
    reached = efficiency.attention * (head_dim / (head_dim + 32)) / (128 / 160)
    return scores * products / (gpu.peak_flops * reached)


def _all_reduce_seconds(num_bytes: float, ranks: int, rate: float) -> float:
    """A ring: every byte but each rank's own part passes twice."""
    return 2 * num_bytes * (ranks - 1) / ranks / rate


def _data_parallel_time(num_parameters: int, layout: Layout, gpu: Gpu, efficiency: Efficiency, *, pass_seconds: float) -> float:
    """Seconds of a step that collectives over the replicas add to the computation."""
    replicas = layout.weight_copies
    if replicas == 1:
        return 0.0
    rate = _ring_rate(layout, gpu, efficiency, ranks=replicas, stride=layout.tensor_parallel_size)
    per_byte = (replicas - 1) / replicas / rate
    reduce = num_parameters * layout.gradient_bytes * per_byte
    gather = num_parameters * 2 * per_byte if layout.distributed_optimizer else reduce  # an all-reduce gathers what it reduced
    forward, backward = pass_seconds / 3, pass_seconds * 2 / 3
    if layout.shards_parameters:  # gathered for either pass of every micro batch
        return layout.accumulation_steps * (max(0.0, gather - forward) + max(0.0, gather + reduce - backward))
    if not layout.overlaps:
        return reduce + gather
    if not layout.distributed_optimizer:
        return max(0.0, reduce + gather - backward)
    return max(0.0, reduce - backward) + max(0.0, gather - forward)


def _optimizer_time(num_parameters: int, layout: Layout, gpu: Gpu) -> float:
    """Adam is traffic: gradient read, three 32-bit numbers read and written, a 16-bit one written; before, the norm of all gradients."""
    owned = num_parameters / (layout.weight_copies if layout.distributed_optimizer else 1)
    return (30 * owned + 8 * num_parameters) / gpu.memory_rate
