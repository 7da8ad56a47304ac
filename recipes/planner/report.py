"""The planner's part of a plan: sections of names and values, each title saying what is exact, counted, calibrated or assumed."""

from __future__ import annotations

from collections import Counter

from recipes.planner.estimate import RunEstimate
from recipes.planner.layout import Layout
from recipes.planner.memory import GIB, MemoryEstimate
from recipes.planner.parameters import PlannedModel
from recipes.planner.ranking import Choice
from recipes.planner.throughput import exchanged_bytes, recomputed_all_reduces

Section = dict[str, object]
_PARTS = (
    ("adapters", ".lora."),
    ("token table", "embedding.word_embeddings."),
    ("position table", "embedding.position_embeddings."),
    ("attention", "self_attention."),
    ("routers", "mlp.router."),
    ("experts", "mlp.experts."),
    ("feed-forward", "mlp."),
    ("token types", "embedding.end.token_types"),
    ("dense layer of the head", ".dense."),
    ("output layer", "output_layer."),
    ("second output layer", "second_head."),
)


def parameter_section(model: PlannedModel) -> Section:
    """Parameters by part."""
    parts: Counter[str] = Counter()
    for name, parameter in model.parameters.items():
        is_norm = "norm" in name.replace("final_layernorm.dense", "dense")  # an encoder's head stands where others have a norm
        parts["norms" if is_norm else next(part for part, sign in _PARTS if sign in name)] += parameter.numel
    return {**parts, "frozen for the whole run": sum(model.parameters[name].numel for name in model.frozen)}


def memory_section(memory: MemoryEstimate) -> Section:
    """GiB on the fullest GPU."""
    section: Section = {
        name.replace("_", " "): round(getattr(memory, name) / GIB, 3)
        for name in ("parameters", "gradients", "optimizer", "activations", "logits", "head", "temporary")
    }
    if memory.gathered:
        section["a sequence put together"] = round(memory.gathered / GIB, 3)
    if memory.loading:
        section["while a checkpoint is loaded, with the state"] = round((memory.state + memory.loading) / GIB, 3)
    return section | {"total": round(memory.total / GIB, 3), "with CUDA and NCCL (assumed)": round(memory.needed_gib, 3)}


def work_section(model: PlannedModel, layout: Layout, *, tokens: int) -> Section:
    """Operations, and bytes that a GPU sends for tensor and data parallelism in a step.

    Args:
        tokens: of the run.
    """
    flops = model.flops_per_token(layout.sequence_length)
    return {
        "operations per token (forward and backward)": f"{flops:.3e}",
        "operations of the run": f"{flops * tokens:.3e}",
        "tensor-parallel traffic per step and device (GB)": round(tensor_parallel_bytes(model, layout) / 1e9, 2),
        "context-parallel traffic per step and device (GB)": round(context_parallel_bytes(model, layout) / 1e9, 2),
        "data-parallel traffic per step and device (GB)": round(data_parallel_bytes(model, layout) / 1e9, 2),
    }


def tensor_parallel_bytes(model: PlannedModel, layout: Layout) -> float:
    """Bytes that a rank sends in the all-reduces of a step: four per layer and micro batch, and one at either end of the model.

    With sequence parallelism each is a scattering sum and a gathering, of as many bytes, and the inputs of three products are gathered again.
    """
    ranks = layout.tensor_parallel_size
    num_layers = model.config["num_layers"] // layout.pipeline_parallel_size
    reduces = num_layers * 4 + recomputed_all_reduces(layout, num_layers) + 1
    if layout.sequence_parallel:
        reduces += num_layers + 0.5
    message = (2 if layout.is_half else 4) * layout.micro_batch_tokens * model.shape.hidden
    return reduces * layout.accumulation_steps * 2 * message * (ranks - 1) / ranks


def context_parallel_bytes(model: PlannedModel, layout: Layout) -> float:
    """Bytes that a rank sends in a step to gather keys and values twice, and to sum their gradients."""
    layers = model.config["num_layers"] / layout.pipeline_parallel_size
    return layers * layout.accumulation_steps * exchanged_bytes(model, layout)


def data_parallel_bytes(model: PlannedModel, layout: Layout) -> float:
    """Bytes that a rank of the first stage sends to reduce its gradients and to give others the parameters that it updated."""
    rank = model.rank(tensor_parallel_size=layout.tensor_parallel_size, pipeline_parallel_size=layout.pipeline_parallel_size, stage=0)
    replicas = layout.weight_copies
    gathered = (2 if layout.is_half else 4) if layout.distributed_optimizer else layout.gradient_bytes
    return rank.trained * (layout.gradient_bytes + gathered) * (replicas - 1) / replicas


def time_section(run: RunEstimate) -> Section:
    """Seconds of a step by part, and what follows for the run."""
    choice, time = run.choice, run.choice.time
    parts = ("products", "attention", "traffic", "tensor_parallel", "context_parallel", "pipeline", "data_parallel", "optimizer")
    return {
        "seconds per step": round(time.total, 3),
        **{f"  {part.replace('_', ' ')}": round(getattr(time, part), 3) for part in parts},
        "tokens per second and device": round(choice.tokens_per_second),
        "model FLOP utilisation": f"{choice.mfu:.1%}",
        "hours": round(run.hours, 2),
        "GPU hours": float(f"{run.gpu_hours:.3g}") if run.gpu_hours < 100 else round(run.gpu_hours, 1),
        f"energy at {run.gpu.watts:.0f} W (kWh)": round(run.kwh, 1),
        "carbon dioxide (kg)": round(run.carbon_kg, 1),
    }


def checkpoint_section(run: RunEstimate, *, every_steps: int) -> Section:
    """Size of a checkpoint and how often it pays to write one."""
    return {
        "size with optimizer (GB)": round(run.checkpoint_bytes / 1e9, 2),
        "seconds to write": round(run.save_seconds, 1),
        "hours between failures": round(run.failure_seconds / 3600),
        "steps between checkpoints, best (Young, Daly)": run.checkpoint_steps,
        "steps between checkpoints, in the recipe": every_steps,
    }


def ranking_section(choices: list[Choice], *, count: int) -> Section:
    """The fastest layouts that fit."""
    return {str(choice.layout): _summary(choice) for choice in choices[:count] if choice.fit.fits}


def _summary(choice: Choice) -> str:
    return f"{choice.tokens_per_second:,.0f} tokens/s per device, MFU {choice.mfu:.1%}, {choice.time.total:.2f} s per step; {choice.fit}"


def reasons(model: PlannedModel, asked: Choice, choices: list[Choice]) -> Section:
    """Why the asked layout fits or not, and what each size of tensor parallelism costs on the same GPUs."""
    section: Section = {"as asked": _summary(asked)}
    memory, layout = asked.memory, asked.layout
    if layout.distributed_optimizer and layout.weight_copies > 1:
        whole = memory.optimizer * layout.weight_copies
        needed = memory.needed_gib + (whole - memory.optimizer) / GIB
        fits = "fits" if needed <= asked.fit.memory_gib else "does not fit"
        section["without the distributed optimizer"] = (
            f"{needed:.1f} GiB, {fits}: it spreads {whole / GIB:.1f} GiB of optimizer state over {layout.weight_copies} replicas"
        )
    for size in sorted({choice.layout.tensor_parallel_size for choice in choices}):
        mine = [choice for choice in choices if choice.layout.tensor_parallel_size == size]
        best = mine[0]  # the fastest that fits, or the smallest of those that do not
        if not best.fit.fits:
            section[f"tensor parallel {size}"] = f"fits in no form; the smallest, {best.layout}, needs {best.fit}"
            continue
        slower = best.tokens_per_second / choices[0].tokens_per_second - 1
        section[f"tensor parallel {size}, at its best"] = (
            f"{best.layout}: {best.tokens_per_second:,.0f} tokens/s per device ({slower:+.0%}), {best.time.tensor_parallel:.2f} s of"
            f" {best.time.total:.2f} s per step in its all-reduces; {best.fit}"
        )
    return section
