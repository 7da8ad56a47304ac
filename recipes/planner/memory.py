"""Bytes on the fullest GPU of a run, and whether they fit; and those of a node's host while checkpoints are saved and loaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from nemo_patches.whole_experts import has_biased_experts
from recipes.numbers.recomputation import FEED_FORWARD, resolved
from recipes.planner.activations import LayerBytes, layer_activations, norm_bytes
from recipes.planner.layout import Layout
from recipes.planner.parameters import PlannedModel, RankParameters

GIB = 2**30
# What CUDA, NCCL and the allocator's gaps take besides tensors: assumed, after the 2-3 GiB that runs of this size show.
RUNTIME_GIB = 2.5


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of tensors on one GPU.

    Attributes:
        stage: the pipeline stage, the fullest of the run.
        parameters: weights; the master copies are the optimizer's.
        activations: kept for the backward passes of all micro batches that are on their way.
        logits: the last layer's output and what the loss keeps and needs of it.
        head: inputs of the final norm and of the output layer, on the last stage.
        temporary: gradients of activations of the layer at work, or the keys and values that it gathers, and what is recomputed for it,
            as far as they are more than the logits and the layers that are gone by then.
        gathered: a sequence whose parts were put together for a product, in a buffer that Megatron keeps.
        loading: what a resume needs besides the state: gate and up are halves of one matrix, which a checkpoint has apart.
    """

    stage: int
    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    head: float
    temporary: float
    loading: float
    gathered: float = 0.0

    @property
    def state(self) -> float:
        """What stays from step to step."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        """All tensors, at the fullest moment of a step."""
        return self.state + self.activations + self.logits + self.head + self.temporary + self.gathered

    @property
    def needed_gib(self) -> float:
        """What a GPU has to have, in GiB, the runtime's share included."""
        return max(self.total, self.state + self.loading) / GIB + RUNTIME_GIB


def estimate_memory(model: PlannedModel, layout: Layout, *, kernels: str = "gpu") -> MemoryEstimate:
    """Memory of the fullest pipeline stage."""
    stages = [stage_memory(model, layout, stage, kernels=kernels) for stage in range(layout.pipeline_parallel_size)]
    return max(stages, key=lambda estimate: estimate.total)


def stage_memory(model: PlannedModel, layout: Layout, stage: int, *, kernels: str = "gpu") -> MemoryEstimate:
    """Memory of a pipeline stage, counted from 0."""
    tensor, pipeline = layout.tensor_parallel_size, layout.pipeline_parallel_size
    rank = model.rank(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, stage=stage)
    item = 2 if layout.is_half else 4
    in_flight = min(pipeline - stage, layout.accumulation_steps)  # 1F1B: the first stage is the furthest ahead of its backward passes
    tokens = layout.micro_batch_tokens
    in_stage = model.config["num_layers"] // pipeline
    layers = range(stage * in_stage, (stage + 1) * in_stage)
    kept = kept_bytes(model, layout, layers, kernels=kernels)
    logits = head = 0.0
    if stage == pipeline - 1:
        head = tokens * head_bytes(model, item, kernels) / (tensor if layout.sequence_parallel else 1)
        logits = _logit_bytes(model, item, kernels) * tokens * model.predicted_share * model.vocab_rows / tensor
    at_work = max(tokens * item * (model.shape.ffn_input + model.shape.ffn) / tensor, _gathered_bytes(model, layout, item))
    if chosen := model.config.get("moe_router_topk"):  # copies of the tokens, and what comes of them, in the order of experts
        ranks = tensor if has_biased_experts(model.config) else 1
        at_work = max(at_work, 2.0 * tokens * item * chosen * model.shape.hidden / ranks)
    return MemoryEstimate(
        stage=stage,
        parameters=rank.held * item,
        gradients=rank.trained * 4,
        optimizer=_updated_numbers(rank, layout) * optimizer_bytes(layout),
        activations=kept.whole * in_flight,
        logits=logits,
        head=head,
        temporary=max(0.0, at_work - logits, at_work + kept.again - kept.gone - logits - head),
        gathered=tokens * item * model.shape.hidden if layout.sequence_parallel else 0.0,
        loading=_halves(model, layers, layout) if model.shape.is_gated else 0.0,
    )


def _updated_numbers(rank: RankParameters, layout: Layout) -> float:
    """Trained numbers of a rank of which it has the optimizer's state."""
    if not layout.distributed_optimizer:
        return rank.trained
    return (rank.trained - rank.copied + rank.copied / layout.tensor_parallel_size) / layout.weight_copies


@dataclass(frozen=True)
class KeptBytes:
    """What the layers of a stage keep of a micro batch for its backward pass.

    Attributes:
        whole: at the end of the forward pass.
        again: the maximum that is recomputed at a time.
        gone: of `whole`, what the backward pass has done with by then.
    """

    whole: float
    again: float = 0.0
    gone: float = 0.0


def kept_bytes(model: PlannedModel, layout: Layout, layers: range, *, kernels: str = "gpu") -> KeptBytes:
    """What some layers that follow each other keep of a micro batch, on one tensor-parallel rank.

    Recomputed layers keep their input, and while they are recomputed all that they would have kept (Korthikanti et al. 2022, section 5).
    """
    asked = resolved(layout.recomputation, len(layers))
    if asked is None:
        return KeptBytes(_layers_bytes(model, layout, layers, kernels=kernels))
    if asked.granularity == "selective":
        parts = _layers_bytes(model, layout, layers, kernels=kernels, recomputed=asked.modules)
        one = layers[-1:]
        again = _layers_bytes(model, layout, one, kernels=kernels) - _layers_bytes(
            model, layout, one, kernels=kernels, recomputed=asked.modules
        )
        return KeptBytes(parts, again)
    assert asked.num_layers is not None
    is_block = asked.method == "block"
    first = layers[: asked.num_layers] if is_block else layers
    chunk = 1 if is_block else asked.num_layers
    ranks = layout.tensor_parallel_size if layout.sequence_parallel else 1
    inputs = layout.micro_batch_tokens * (2 if layout.is_half else 4) * model.shape.hidden / ranks * (len(first) // chunk)
    others = _layers_bytes(model, layout, layers[len(first) :], kernels=kernels)
    return KeptBytes(inputs + others, again=_layers_bytes(model, layout, first[-chunk:], kernels=kernels), gone=others)


def _layers_bytes(model: PlannedModel, layout: Layout, layers: range, *, kernels: str, recomputed: tuple[str, ...] = ()) -> float:
    """What layers keep of a micro batch, with their adapters and without what they would keep for frozen weights."""
    tensor, item, cut = layout.tensor_parallel_size, 2 if layout.is_half else 4, layout.sequence_parallel
    layer = layer_bytes(model, layout, is_half=layout.is_half, kernels=kernels, recomputed=recomputed)
    again = FEED_FORWARD in recomputed
    adapters = sum(adapter_bytes(model, index, tensor, item, sequence_parallel=cut, without_feed_forward=again) for index in layers)
    unkept = unkept_bytes(model, layers, tensor, item, sequence_parallel=cut, without_feed_forward=again)
    return len(layers) * layer.of(layout.micro_batch_tokens) + layout.micro_batch_tokens * (adapters - unkept)


def layer_bytes(model: PlannedModel, layout: Layout, *, is_half: bool, kernels: str, recomputed: tuple[str, ...] = ()) -> LayerBytes:
    """What one layer keeps in a layout, for memory and for the traffic of time; arguments as of `layer_activations`."""
    return layer_activations(
        model.config,
        sequence_length=layout.sequence_length,
        tensor_parallel_size=layout.tensor_parallel_size,
        context_parallel_size=layout.context_parallel_size,
        is_half=is_half,
        hidden_dropout=layout.hidden_dropout,
        document_mask=layout.document_mask,
        sequence_parallel=layout.sequence_parallel,
        recomputed=recomputed,
        kernels=kernels,
    )


def _gathered_bytes(model: PlannedModel, layout: Layout, item: int) -> float:
    """Keys and values of whole samples in the backward pass of a layer, and their gradients in 32 bit; for every head, as kernels with a mask ask."""
    if layout.context_parallel_size == 1:
        return 0.0
    shape, tokens = model.shape, layout.micro_batch_size * layout.sequence_length
    keys = shape.qkv - shape.attention  # and values
    return tokens * ((item + 4) * keys + 2 * item * 2 * shape.attention) / layout.tensor_parallel_size


def head_bytes(model: PlannedModel, item: int, kernels: str) -> float:
    """Per token: what the final norm keeps, and the input of an output layer that is trained; both are whole on every rank."""
    matrix = "embedding.word_embeddings.weight" if model.is_tied else "output_layer.weight"
    return norm_bytes(model.config, item=item, kernels=kernels) + (0 if matrix in model.frozen else item * model.shape.hidden)


def _halves(model: PlannedModel, layers: Iterable[int], layout: Layout) -> float:
    """Bytes of a rank's first feed-forward matrices and of their part of the optimizer's state, which are put together when all is read."""
    first = "mlp.experts.experts.linear_fc1" if "num_moe_experts" in model.config else "mlp.linear_fc1"
    names = [f"decoder.layers.{index}.{first}.weight" for index in layers]
    held = sum(model.parameters[name].numel for name in names) / (1 if has_biased_experts(model.config) else layout.tensor_parallel_size)
    trained = sum(model.parameters[name].numel for name in names if name not in model.frozen) / layout.tensor_parallel_size
    replicas = layout.weight_copies if layout.distributed_optimizer else 1
    return held * (2 if layout.is_half else 4) + trained * optimizer_bytes(layout) / replicas


def adapter_bytes(
    model: PlannedModel,
    layer: int,
    tensor_parallel_size: int,
    item: int,
    *,
    sequence_parallel: bool = False,
    without_feed_forward: bool = False,
) -> float:
    """Per token: the inputs of a layer's low-rank adapters after dropout, unless they are frozen, and which numbers were dropped."""
    if not model.adapter_rank:
        return 0.0
    if any(name.startswith(f"decoder.layers.{layer}.") and ".lora." in name for name in model.frozen):
        item = 0
    shape = model.shape
    whole = shape.hidden * (3 + (0 if without_feed_forward else 2 if shape.is_gated else 1))
    whole_on = tensor_parallel_size if sequence_parallel else 1
    split = shape.attention + (0 if without_feed_forward else shape.ffn)
    return (item + 1) * (whole / whole_on + split / tensor_parallel_size)


def unkept_bytes(
    model: PlannedModel,
    layers: Iterable[int],
    tensor_parallel_size: int,
    item: int,
    *,
    sequence_parallel: bool = False,
    without_feed_forward: bool = False,
) -> float:
    """Per token: the inputs of frozen linear layers, which are kept for the gradients of their weights alone.

    Attention keeps its result and ReLU its output for their own gradients, whatever comes of them.
    """
    shape = model.shape
    cut = shape.hidden / (tensor_parallel_size if sequence_parallel else 1)
    inputs: dict[str, float] = {"self_attention.linear_qkv": cut}
    if chosen := model.config.get("moe_router_topk"):
        if not without_feed_forward:  # the router keeps its input whatever becomes of its weights
            inputs["mlp.experts.experts.linear_fc1"] = chosen * (cut if has_biased_experts(model.config) else shape.hidden)
            inputs["mlp.experts.experts.linear_fc2"] = shape.ffn / tensor_parallel_size
    elif not without_feed_forward:  # otherwise its input is kept to recompute it
        inputs["mlp.linear_fc1"] = cut
        if shape.is_gated or model.config.get("activation_func", "relu") != "relu":
            inputs["mlp.linear_fc2"] = shape.ffn / tensor_parallel_size
    return item * sum(
        width for index in layers for name, width in inputs.items() if f"decoder.layers.{index}.{name}.weight" in model.frozen
    )


def optimizer_bytes(layout: Layout) -> int:
    """Bytes of Adam for a number: two moments, and in mixed precision the master copy, all in 32 bit."""
    return 12 if layout.is_half else 8


def _logit_bytes(model: PlannedModel, item: int, kernels: str) -> int:
    """Per token and vocabulary row: of each head the softmax in 32 bit and a cap's result, and of the last one its logits, then their gradients.

    32-bit logits become the softmax themselves; 16-bit ones are gone when the next head has its own.  On a GPU the compiled loss makes the 16-bit
    gradients from a copy of the softmax.
    """
    kept = 4 + (item if model.config.get("final_logit_softcapping") else 0)
    if item == 4:
        return model.num_heads * kept
    copied = 0 if kernels == "cpu" else 4
    return model.num_heads * kept + item + copied


@dataclass(frozen=True)
class Fit:
    """Whether a run fits a GPU."""

    needed_gib: float
    memory_gib: float

    @property
    def fits(self) -> bool:
        """Whether it does."""
        return self.needed_gib <= self.memory_gib

    def __str__(self) -> str:
        left = self.memory_gib - self.needed_gib
        return f"{self.needed_gib:.1f} of {self.memory_gib:.1f} GiB, " + (f"{left:.1f} left" if self.fits else f"{-left:.1f} too many")


# Of each process: Python, NeMo and the libraries of CUDA and NCCL; assumed, as a process without those takes 1 GiB.
PROCESS_GIB = 3.0
_SAVED_BYTES = 12  # per trained number, in any precision: the 32-bit copy and both moments of Adam


@dataclass(frozen=True)
class HostEstimate:
    """The most that a node's processes hold together.

    Attributes:
        processes: of a node.
        save: bytes of what they write, which is copied to the host first, at once or beside the training.
        load: bytes of what they read: each its largest chunk, as it lies in the file and as a tensor.
    """

    processes: int
    save: float
    load: float

    @property
    def needed_gib(self) -> float:
        """What a node has to have, in GiB, with what the processes take themselves."""
        return max(self.save, self.load) / GIB + self.processes * PROCESS_GIB

    def __str__(self) -> str:
        return (
            f"at most {self.needed_gib:.0f} GiB of a node: {self.save / GIB:.1f} while saving, {self.load / GIB:.1f} while loading,"
            f" and {self.processes} processes of {PROCESS_GIB:g} (assumed)"
        )


def estimate_host(model: PlannedModel, layout: Layout) -> HostEstimate:
    """Memory of the node whose ranks are of the fullest pipeline stage.

    Every rank writes its own part of the optimizer's state.  The tensors of the model are dealt out whole among the replicas, so that one
    rank may get the largest.  A loaded chunk is a whole tensor of the checkpoint that the run starts from, or of a checkpoint of the run what
    one rank has saved of the optimizer's state.
    """
    item, replicas = 2 if layout.is_half else 4, layout.weight_copies
    largest = max(parameter.numel for parameter in model.parameters.values())
    saved = read = 0.0
    for stage in range(layout.pipeline_parallel_size):
        rank = model.rank(
            tensor_parallel_size=layout.tensor_parallel_size, pipeline_parallel_size=layout.pipeline_parallel_size, stage=stage
        )
        of_model = max(rank.held / replicas, min(rank.held, largest / layout.tensor_parallel_size)) * item
        saved = max(saved, _updated_numbers(rank, replace(layout, distributed_optimizer=True)) * _SAVED_BYTES + of_model)
        read = max(read, largest * item, 4 * min(largest / layout.tensor_parallel_size, rank.trained / replicas))
    processes = min(layout.devices_per_node, layout.num_devices)
    return HostEstimate(processes, save=processes * saved, load=processes * 2 * read)


def host_refusal(model: PlannedModel, layout: Layout, *, memory_gib: float, has: str) -> list[str]:
    """Nothing if a node holds what saving and loading take; else one sentence with the numbers.

    Args:
        has: what says how much a node has, as the sentence names it.
    """
    host = estimate_host(model, layout)
    if host.needed_gib <= memory_gib:
        return []
    return [
        f"saving and loading checkpoints take {host}, but {has} {memory_gib:g} GiB; spread the run over more nodes with fewer devices each"
        " (parallel.num_nodes, parallel.devices_per_node); parallel.check_memory=false skips this check"
    ]
