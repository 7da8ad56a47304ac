"""A recipe as the configuration of Megatron-Bridge's training loop: its ConfigContainer as nested mappings, each naming its class.

Written without Megatron-Bridge; that its classes know every key is tested in an environment that has it (`make test-bridge`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conversion.layouts.megatron_bridge import run_config
from recipes.exporting.common import DataBlend, decay_of, held_out_data, training_data
from recipes.numbers.recomputation import resolved
from recipes.rules.checks import padded_vocab_size
from recipes.rules.inputs import RunInputs
from recipes.rules.layout_checks import layers_per_stage
from recipes.rules.schema import Recipe

_CONFIG = "megatron.bridge.training.config"
_MEGATRON_CONFIG = "megatron.training.config"


def bridge_config(recipe: Recipe, inputs: RunInputs, *, checkpoint: Path, run_dir: Path, tokenizer: Path | None) -> dict[str, Any]:
    """The configuration of a run.

    Args:
        recipe: with its steps, as `recipes.rules.checks.check_run` gives it, and nothing that `recipes.exporting.limits` refuses.
        checkpoint: to start from, in Megatron-Bridge's layout.
        run_dir: where checkpoints of the run are saved, and looked for on resume.
        tokenizer: folder of its files.
    """
    steps = recipe.total_steps
    content: dict[str, Any] = {
        "_target_": f"{_CONFIG}.ConfigContainer",
        "train": _of(
            f"{_CONFIG}.TrainingConfig",
            train_iters=steps,
            global_batch_size=recipe.schedule.global_batch_size,
            micro_batch_size=recipe.schedule.micro_batch_size,
            exit_signal_handler="SIGTERM" in recipe.run.stop_signals,
        ),
        "validation": _of(
            f"{_MEGATRON_CONFIG}.ValidationConfig",
            eval_interval=recipe.validation_steps,
            eval_iters=recipe.run.validation_batches if recipe.data.validation else 0,
        ),
        "model": _model(recipe, inputs),
        "optimizer": _optimizer(recipe),
        "ddp": _ddp(recipe),
        "scheduler": _scheduler(recipe),
        "dataset": _dataset(recipe, inputs),
        "logger": _logger(recipe, run_dir),
        "tokenizer": _tokenizer(tokenizer, vocab_size=inputs.model["vocab_size"]),
        "checkpoint": _of(
            f"{_CONFIG}.CheckpointConfig",
            pretrained_checkpoint=str(checkpoint),
            save=str(run_dir),
            load=str(run_dir),
            save_interval=recipe.run.checkpoint_every_steps,
            async_save=recipe.run.asynchronous_save,
            ckpt_format="torch_dist",
            fully_parallel_save=True,
        ),
        "rng": _of(f"{_MEGATRON_CONFIG}.RNGConfig", seed=recipe.seed),
        "dist": _of(f"{_CONFIG}.DistributedInitConfig", distributed_backend="nccl"),
    }
    if recipe.precision == "bf16":
        content["mixed_precision"] = "bf16_mixed"
    return content


def _of(target: str, **fields: Any) -> dict[str, Any]:
    return {"_target_": target, **fields}


def _model(recipe: Recipe, inputs: RunInputs) -> dict[str, Any]:
    parallel, is_half = recipe.parallel, recipe.precision == "bf16"
    dtype = "bfloat16" if is_half else "float32"
    fields: dict[str, Any] = run_config(inputs.model, dtype=dtype, has_tokenizer=False)["model"]
    fields |= {
        "seq_length": recipe.data.sequence_length,
        # A number of rows that is given is taken as it is; `bridge_train` takes the padding rows among them out of the softmax.
        "vocab_size": padded_vocab_size(recipe, inputs),
        "should_pad_vocab": False,
        "hidden_dropout": recipe.model.hidden_dropout,
        "attention_dropout": recipe.model.attention_dropout,
        "tensor_model_parallel_size": parallel.tensor_parallel_size,
        "pipeline_model_parallel_size": parallel.pipeline_parallel_size,
        "context_parallel_size": parallel.context_parallel_size,
        "sequence_parallel": parallel.sequence_parallel,
        "pipeline_dtype": {"_target_": f"torch.{dtype}", "_call_": False},
    }
    return fields | _recomputation(recipe, inputs)


def _recomputation(recipe: Recipe, inputs: RunInputs) -> dict[str, Any]:
    chosen = resolved(recipe.recomputation, layers_per_stage(recipe, inputs.model))
    if chosen is None:
        return {}
    if chosen.granularity == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": list(chosen.modules)}
    return {"recompute_granularity": "full", "recompute_method": chosen.method, "recompute_num_layers": chosen.num_layers}


def _optimizer(recipe: Recipe) -> dict[str, Any]:
    schedule = recipe.schedule
    fields = _of(
        f"{_CONFIG}.OptimizerConfig",
        optimizer="adam",
        lr=schedule.learning_rate,
        min_lr=schedule.min_learning_rate,
        weight_decay=schedule.weight_decay,
        adam_beta1=schedule.adam_beta1,
        adam_beta2=schedule.adam_beta2,
        adam_eps=schedule.adam_epsilon,
        clip_grad=schedule.clip_gradient_norm,
        use_distributed_optimizer=recipe.parallel.distributed_optimizer,
        overlap_param_gather=_gathers_beside(recipe),
    )
    if schedule.embedding_learning_rate is not None:
        fields["decoupled_lr"], fields["decoupled_min_lr"] = schedule.embedding_rates
    return fields


def _ddp(recipe: Recipe) -> dict[str, Any]:
    return _of(
        f"{_CONFIG}.DistributedDataParallelConfig",
        use_distributed_optimizer=recipe.parallel.distributed_optimizer,
        overlap_grad_reduce=recipe.parallel.overlap_communication,
        overlap_param_gather=_gathers_beside(recipe),
        grad_reduce_in_fp32=recipe.precision == "bf16",
    )


def _gathers_beside(recipe: Recipe) -> bool:
    return recipe.parallel.overlap_communication and recipe.parallel.distributed_optimizer


def _scheduler(recipe: Recipe) -> dict[str, Any]:
    decay, schedule = decay_of(recipe), recipe.schedule
    fields = _of(
        f"{_CONFIG}.SchedulerConfig",
        lr_decay_style=decay.style,
        lr_decay_iters=decay.end,
        lr_warmup_iters=schedule.warmup_steps,
        start_weight_decay=schedule.weight_decay,
        end_weight_decay=schedule.weight_decay,
        weight_decay_incr_style="constant",
    )
    if decay.anneal_steps is not None:
        fields |= {"lr_wsd_decay_iters": decay.anneal_steps, "lr_wsd_decay_style": decay.anneal_style}
    return fields


def _dataset(recipe: Recipe, inputs: RunInputs) -> dict[str, Any]:
    return _of(
        f"{_CONFIG}.GPTDatasetConfig",
        seq_length=recipe.data.sequence_length,
        random_seed=recipe.seed,
        blend_per_split=[_blend(training_data(recipe, inputs)), _blend(held_out_data(recipe, inputs)), None],
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        dataloader_type="single",
        num_workers=recipe.data.num_workers,
        persistent_workers=recipe.data.num_workers > 0,
    )


def _blend(blend: DataBlend | None) -> list[Any] | None:
    return None if blend is None else [list(blend.prefixes), None if blend.weights is None else list(blend.weights)]


def _logger(recipe: Recipe, run_dir: Path) -> dict[str, Any]:
    fields = _of(f"{_CONFIG}.LoggerConfig", log_interval=recipe.run.log_every_steps)
    if (
        recipe.schedule.embedding_learning_rate is None
    ):  # else the loop of 0.6.2 ends when it writes the tables' rate, which it does not know
        fields["tensorboard_dir"] = str(run_dir / "tensorboard")
    if recipe.run.wandb_project is not None:
        fields |= {"wandb_project": recipe.run.wandb_project, "wandb_exp_name": recipe.name}
    return fields


def _tokenizer(files: Path | None, *, vocab_size: int) -> dict[str, Any]:
    target = "megatron.bridge.training.tokenizers.config.TokenizerConfig"
    if files is None:
        return _of(target, tokenizer_type="NullTokenizer", vocab_size=vocab_size)
    return _of(target, tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(files))
