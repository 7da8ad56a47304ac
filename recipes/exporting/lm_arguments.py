"""A recipe as arguments of Megatron-LM's own training script, and the shell script that gives them to it.

Written without Megatron-LM; that its parser knows every name is tested in an environment that has it (`make test-bridge`).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from recipes.exporting.common import decay_of, held_out_data, training_data
from recipes.numbers.recomputation import resolved
from recipes.rules.checks import padded_vocab_size
from recipes.rules.inputs import RunInputs
from recipes.rules.layout_checks import layers_per_stage
from recipes.rules.schema import Recipe

Argument = tuple[str, tuple[str, ...]]  # name with its dashes, and values


def lm_arguments(recipe: Recipe, inputs: RunInputs, *, checkpoint: Path, run_dir: Path, tokenizer: Path | None) -> list[Argument]:
    """The arguments of a run.

    Args:
        recipe: with its steps, as `recipes.rules.checks.check_run` gives it, and nothing that `recipes.exporting.limits` refuses.
        checkpoint: to start from, in Megatron-LM's layout.
        run_dir: where checkpoints of the run are saved, and looked for on resume.
        tokenizer: folder of its files.
    """
    parts = (
        _model(recipe, inputs),
        _tokenizer(inputs, tokenizer),
        _layout(recipe),
        _recomputation(recipe, inputs),
        _data(recipe, inputs),
        _schedule(recipe),
        _run(recipe, checkpoint, run_dir),
    )
    return [(str(name), tuple(str(value) for value in values)) for part in parts for name, *values in part]


def _model(recipe: Recipe, inputs: RunInputs) -> Iterator[tuple[object, ...]]:
    model = inputs.model
    heads, groups = model["num_attention_heads"], model["num_query_groups"]
    yield ("--use-mcore-models",)
    yield "--transformer-impl", "transformer_engine"
    yield "--num-layers", model["num_layers"]
    yield "--hidden-size", model["hidden_size"]
    yield "--ffn-hidden-size", model["ffn_hidden_size"]
    yield "--num-attention-heads", heads
    yield "--kv-channels", model.get("kv_channels", model["hidden_size"] // heads)
    if groups != heads:
        yield ("--group-query-attention",)
        yield "--num-query-groups", groups
    yield "--max-position-embeddings", model["max_position_embeddings"]
    yield "--padded-vocab-size", padded_vocab_size(recipe, inputs)
    yield "--normalization", model.get("normalization", "LayerNorm")
    yield "--norm-epsilon", model["layernorm_epsilon"]
    if model.get("layernorm_zero_centered_gamma"):
        yield ("--apply-layernorm-1p",)
    if model.get("qk_layernorm"):
        yield ("--qk-layernorm",)
    if not model.get("add_bias_linear", True):
        yield ("--disable-bias-linear",)
    if model.get("add_qkv_bias"):
        yield ("--add-qkv-bias",)
    if model.get("gated_linear_unit"):  # silu: others are refused
        yield ("--swiglu",)
    if not model["share_embeddings_and_output_weights"]:
        yield ("--untie-embeddings-and-output-weights",)
    yield from _positions(inputs)
    yield "--init-method-std", model.get("init_method_std", 0.02)
    yield "--hidden-dropout", recipe.model.hidden_dropout
    yield "--attention-dropout", recipe.model.attention_dropout


def _positions(inputs: RunInputs) -> Iterator[tuple[object, ...]]:
    model = inputs.model
    yield "--position-embedding-type", model.get("position_embedding_type", "learned_absolute")
    if model.get("position_embedding_type") != "rope":
        return
    yield "--rotary-base", int(model.get("rotary_base", 10000))
    if "rotary_percent" in model:
        yield "--rotary-percent", model["rotary_percent"]
    if "scale_factor" in model:
        yield ("--use-rope-scaling",)
        yield "--rope-scaling-factor", model["scale_factor"]
    if model.get("seq_len_interpolation_factor"):
        yield "--rotary-seq-len-interpolation-factor", model["seq_len_interpolation_factor"]
    if model.get("no_rope_freq"):
        yield "--no-rope-freq", "[" + ",".join(str(int(value)) for value in model["no_rope_freq"]) + "]"


def _tokenizer(inputs: RunInputs, tokenizer: Path | None) -> Iterator[tuple[object, ...]]:
    if tokenizer is None:
        yield "--tokenizer-type", "NullTokenizer"
        yield "--vocab-size", inputs.model["vocab_size"]
        return
    yield "--tokenizer-type", "HuggingFaceTokenizer"
    yield "--tokenizer-model", tokenizer


def _layout(recipe: Recipe) -> Iterator[tuple[object, ...]]:
    parallel = recipe.parallel
    yield "--tensor-model-parallel-size", parallel.tensor_parallel_size
    yield "--pipeline-model-parallel-size", parallel.pipeline_parallel_size
    yield "--context-parallel-size", parallel.context_parallel_size
    if parallel.sequence_parallel:
        yield ("--sequence-parallel",)
    if parallel.distributed_optimizer:
        yield ("--use-distributed-optimizer",)
    if parallel.overlap_communication:
        yield ("--overlap-grad-reduce",)
        if parallel.distributed_optimizer:
            yield ("--overlap-param-gather",)
    if recipe.precision == "bf16":
        yield ("--bf16",)


def _recomputation(recipe: Recipe, inputs: RunInputs) -> Iterator[tuple[object, ...]]:
    chosen = resolved(recipe.recomputation, layers_per_stage(recipe, inputs.model))
    if chosen is None:
        return
    yield "--recompute-granularity", chosen.granularity
    if chosen.granularity == "selective":
        yield "--recompute-modules", *chosen.modules
        return
    yield "--recompute-method", chosen.method
    yield "--recompute-num-layers", chosen.num_layers


def _data(recipe: Recipe, inputs: RunInputs) -> Iterator[tuple[object, ...]]:
    yield "--seq-length", recipe.data.sequence_length
    yield "--seed", recipe.seed
    yield "--train-data-path", *training_data(recipe, inputs).words()
    held_out = held_out_data(recipe, inputs)
    if held_out is not None:
        yield "--valid-data-path", *held_out.words()
        yield "--eval-interval", recipe.validation_steps
        yield "--eval-iters", recipe.run.validation_batches
    else:
        yield "--eval-iters", 0
    yield "--num-workers", recipe.data.num_workers
    yield ("--no-create-attention-mask-in-dataloader",)


def _schedule(recipe: Recipe) -> Iterator[tuple[object, ...]]:
    schedule, decay = recipe.schedule, decay_of(recipe)
    yield "--micro-batch-size", schedule.micro_batch_size
    yield "--global-batch-size", schedule.global_batch_size
    yield "--train-iters", recipe.total_steps
    yield "--lr", schedule.learning_rate
    yield "--min-lr", schedule.min_learning_rate
    yield "--lr-decay-style", decay.style
    yield "--lr-decay-iters", decay.end
    yield "--lr-warmup-iters", schedule.warmup_steps
    if decay.anneal_steps is not None:
        yield "--lr-wsd-decay-iters", decay.anneal_steps
        yield "--lr-wsd-decay-style", decay.anneal_style
    if schedule.embedding_learning_rate is not None:
        highest, lowest = schedule.embedding_rates
        yield "--decoupled-lr", highest
        yield "--decoupled-min-lr", lowest
    yield "--optimizer", "adam"
    yield "--weight-decay", schedule.weight_decay
    yield "--adam-beta1", schedule.adam_beta1
    yield "--adam-beta2", schedule.adam_beta2
    yield "--adam-eps", schedule.adam_epsilon
    yield "--clip-grad", schedule.clip_gradient_norm


def _run(recipe: Recipe, checkpoint: Path, run_dir: Path) -> Iterator[tuple[object, ...]]:
    run = recipe.run
    yield "--pretrained-checkpoint", checkpoint
    yield "--load", run_dir
    yield "--save", run_dir
    yield "--save-interval", run.checkpoint_every_steps
    yield "--ckpt-format", "torch_dist"
    if run.asynchronous_save:
        yield ("--async-save",)
    if "SIGTERM" in run.stop_signals:
        yield ("--exit-signal-handler",)
    yield "--log-interval", run.log_every_steps
    yield "--tensorboard-dir", run_dir / "tensorboard"
    if run.wandb_project is not None:
        yield "--wandb-project", run.wandb_project
        yield "--wandb-exp-name", recipe.name


def lm_script(recipe: Recipe, arguments: list[Argument]) -> str:
    """A shell script that trains; MEGATRON_LM names a checkout of Megatron-LM."""
    lines = [" ".join([name, *(shlex.quote(value) for value in values)]) for name, values in arguments]
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"# {recipe.name} for Megatron-LM, written by `python -m recipes.export`; differences from the recipe are listed in not_exported.md.",
            "# On several nodes give torchrun its rendezvous in TORCHRUN_ARGUMENTS.",
            "set -euo pipefail",
            ': "${MEGATRON_LM:?names a checkout of Megatron-LM}"',
            "export CUDA_DEVICE_MAX_CONNECTIONS=1",
            "arguments=(",
            *(f"  {line}" for line in lines),
            ")",
            "# shellcheck disable=SC2086",
            f"exec torchrun --nnodes={recipe.parallel.num_nodes} --nproc-per-node={recipe.parallel.devices_per_node}"
            ' ${TORCHRUN_ARGUMENTS:-} "$MEGATRON_LM/pretrain_gpt.py" "${arguments[@]}" "$@"',
            "",
        ]
    )
