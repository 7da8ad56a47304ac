"""A recipe as a NeMo trainer: model, data, optimizer and strategy; then fit or resume."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from conversion.factors import read_factors
from conversion.families import family_of
from conversion.lora import write_lora
from data_prep.megatron.index import PREFIX
from nemo_patches.cpu_device import present_cpu_as_device
from nemo_patches.quiet import quiet_imports
from recipes import arithmetic
from recipes.checks import RunInputs, padded_vocab_size, trained_names
from recipes.freezing import first_trained_steps
from recipes.launch import process_rank
from recipes.run_dir import CHECKPOINTS_NAME, CONTEXT_NAME, METRICS_NAME
from recipes.schema import Recipe
from recipes.steps import blend_of, weights_of

with quiet_imports():
    ON_CPU = present_cpu_as_device()  # first, so that nothing keeps an unpatched name

    import nemo.lightning as nl
    import torch
    from lightning.pytorch.loggers import TensorBoardLogger
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import USING_PYTORCH_OPTIMIZER, OptimizerConfig
    from nemo.collections.llm.gpt.data.pre_training import PreTrainingDataModule
    from nemo.collections.llm.gpt.model.base import GPTConfig, GPTModel
    from nemo.lightning.pytorch.optim import LRSchedulerModule

    from nemo_patches import torch_adam
    from nemo_patches.base_checkpoint import loading_base_checkpoint
    from nemo_patches.core import apply
    from nemo_patches.lora import LoRA
    from nemo_patches.second_head import copy_first_head
    from nemo_patches.tokenizer import EndOfDocument
    from recipes.callbacks import Checkpoints, Metrics, StepSeed
    from recipes.training.freezing import FreezingOptimizer, freeze_for_the_whole_run
    from recipes.training.passes import PassesDataModule


class ClosedFormSchedule(LRSchedulerModule):
    """The learning rate as `arithmetic.learning_rate` gives it."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self._schedule, self._steps = recipe.schedule, arithmetic.total_steps(recipe)

    def scheduler(self, model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Lightning's description of a scheduler that is stepped once per optimizer step."""
        highest = self._schedule.learning_rate
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: arithmetic.learning_rate(step, self._schedule, steps=self._steps) / highest
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step", "frequency": 1}}


class TrainedModel(GPTModel):
    """NeMo's GPT with what no step changes out of Megatron's sight from the start."""

    def __init__(self, config: GPTConfig, *, first_trained: Mapping[str, float], **arguments: Any) -> None:
        super().__init__(config, **arguments)
        self._first_trained = first_trained

    def configure_model(self, vp_stage: int | None = None) -> None:
        """Build this rank's part of the model."""
        super().configure_model(vp_stage)
        freeze_for_the_whole_run(self.module, self._first_trained)


class RecipeStrategy(nl.MegatronStrategy):
    """NeMo's strategy for models of which a part is frozen or added.

    Args:
        factors: what the token table is trained as, where it is factorised.
    """

    def __init__(self, *, factors: Path | None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._factors = factors

    def optimizer_sharded_state_dict(self, is_loading: bool = False, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
        """See NeMo's class; the state of every layer has a name of its own, as layers without any cannot be stacked."""
        metadata = {**(metadata or self.sharded_state_dict_metadata), "non_homogeneous_layers": True}
        return super().optimizer_sharded_state_dict(is_loading=is_loading, metadata=metadata)

    def selective_restore(self) -> None:
        """Start from the recipe's checkpoint, which does not have the parameters that the run adds."""
        with loading_base_checkpoint():
            super().selective_restore()
        for model in self.megatron_parallel:
            while hasattr(model, "module"):
                model = model.module
            copy_first_head(model)
            if self._factors is not None:
                factors = {name: tensor.read() for name, tensor in read_factors(self._factors).items()}
                model.embedding.word_embeddings.fill(factors)
        for optimizer in self.optimizers:
            optimizer.reload_model_params()


def train(recipe: Recipe, inputs: RunInputs, *, run_dir: Path, resume_from: Path | None) -> None:
    """Train to the end of the recipe, from the recipe's checkpoint or from one of this run.

    Every process of the run calls this.

    Args:
        resume_from: a checkpoint of this run, with optimizer state.
    """
    trainer = make_trainer(recipe, inputs, run_dir=run_dir, start_from_weights=resume_from is None)
    data = make_data(recipe, inputs, index_dir=run_dir / "index")
    trainer.fit(make_model(recipe, inputs), data, ckpt_path=str(resume_from / "weights") if resume_from else None)


def make_trainer(recipe: Recipe, inputs: RunInputs, *, run_dir: Path, start_from_weights: bool) -> nl.Trainer:
    """The trainer of a run.

    Args:
        start_from_weights: load the weights of the recipe's checkpoint; a run that is resumed loads more, from its own.
    """
    if USING_PYTORCH_OPTIMIZER:  # TransformerEngine's and apex's Adam need no patch
        apply(torch_adam.PATCHES)
    strategy = _strategy(recipe)
    if start_from_weights:
        weights = Path(recipe.model.checkpoint) / "weights"
        strategy.restore_config = nl.RestoreConfig(path=str(weights), load_model_state=True, load_optim_state=False, load_artifacts=False)
    return nl.Trainer(
        accelerator="cpu" if ON_CPU else "gpu",
        devices=recipe.parallel.devices_per_node,
        num_nodes=recipe.parallel.num_nodes,
        strategy=strategy,
        plugins=nl.MegatronMixedPrecision(precision="bf16-mixed")
        if recipe.precision == "bf16"
        else nl.MegatronMixedPrecision(precision="32"),
        max_steps=arithmetic.total_steps(recipe),
        log_every_n_steps=recipe.run.log_every_steps,
        **_validation(recipe),
        use_distributed_sampler=False,
        enable_checkpointing=False,  # recipes.callbacks.Checkpoints does it
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=TensorBoardLogger(str(run_dir), name="tensorboard", version=""),
        callbacks=_callbacks(recipe, inputs, run_dir=run_dir),
    )


def make_model(recipe: Recipe, inputs: RunInputs) -> GPTModel:
    """The model of a run with its optimizer, not yet built."""
    schedule = recipe.schedule
    config = family_of(inputs.family, source=recipe.model.checkpoint).engine_config(
        inputs.model,
        padded_vocab_size=padded_vocab_size(recipe, inputs),
        hidden_dropout=recipe.model.hidden_dropout,
        attention_dropout=recipe.model.attention_dropout,
        factorised_size=read_factors(Path(recipe.model.factors))["primitives"].shape[0] if recipe.model.factors else None,
        predicts_two_tokens=recipe.objective == "two_tokens",
        lora=LoRA(**asdict(recipe.lora), seed=recipe.seed) if recipe.lora else None,
    )
    first_trained = first_trained_steps(
        recipe.freeze,
        trained_names(recipe, inputs),
        tied=inputs.model["share_embeddings_and_output_weights"],
    )
    optimizer = FreezingOptimizer(
        first_trained,
        config=OptimizerConfig(
            optimizer="adam",
            lr=schedule.learning_rate,
            weight_decay=schedule.weight_decay,
            adam_beta1=schedule.adam_beta1,
            adam_beta2=schedule.adam_beta2,
            adam_eps=schedule.adam_epsilon,
            clip_grad=schedule.clip_gradient_norm,
            bf16=recipe.precision == "bf16",
            use_distributed_optimizer=recipe.parallel.distributed_optimizer,
        ),
        lr_scheduler=ClosedFormSchedule(recipe),
    )
    return TrainedModel(config, first_trained=first_trained, optim=optimizer, tokenizer=_tokenizer(inputs))


def _tokenizer(inputs: RunInputs) -> EndOfDocument:
    manifest = inputs.train[0]
    return EndOfDocument(
        vocab_size=inputs.model["vocab_size"], eos_id=manifest.facts["eos_token_id"], identity=manifest.facts["tokenizer_digest"]
    )


def make_data(recipe: Recipe, inputs: RunInputs, *, index_dir: Path) -> PreTrainingDataModule:
    """The samples of a run, in its order."""
    prefixes = [Path(path) / PREFIX for path in recipe.data.train]
    train: list[str] = []
    for weight, prefix in zip(weights_of(recipe.data, inputs.train), prefixes, strict=True):
        train += [str(weight), str(prefix)]
    train = train if len(recipe.data.train) > 1 else train[1:]
    validation = [str(Path(path) / PREFIX) for path in recipe.data.validation.values()] or train
    steps, batch = arithmetic.total_steps(recipe), recipe.schedule.global_batch_size
    build: Callable[..., PreTrainingDataModule] = PreTrainingDataModule
    if recipe.schedule.epochs is not None:
        build = partial(PassesDataModule, prefixes, blend_of(recipe, inputs.train))
    data = build(
        paths={"train": train, "validation": validation, "test": validation},
        seq_length=recipe.data.sequence_length,
        tokenizer=_tokenizer(inputs),
        micro_batch_size=recipe.schedule.micro_batch_size,
        global_batch_size=batch,
        num_workers=recipe.data.num_workers,
        pin_memory=not ON_CPU,
        persistent_workers=recipe.data.num_workers > 0,
        seed=recipe.seed,
        index_mapping_dir=str(index_dir),
        num_train_samples=steps * batch,
    )
    data.create_attention_mask = False  # the mask is causal; NeMo would build a (sequence, sequence) tensor per sample
    return data


def _strategy(recipe: Recipe) -> RecipeStrategy:
    parallel = recipe.parallel
    return RecipeStrategy(
        factors=Path(recipe.model.factors) if recipe.model.factors else None,
        tensor_model_parallel_size=parallel.tensor_parallel_size,
        pipeline_model_parallel_size=parallel.pipeline_parallel_size,
        pipeline_dtype=torch.bfloat16 if recipe.precision == "bf16" else torch.float32,
        ckpt_async_save=False,
        ckpt_optim_fully_reshardable=True,
        replace_progress_bar=False,
        process_group_backend="gloo" if ON_CPU else "nccl",
        ddp=DistributedDataParallelConfig(
            check_for_nan_in_grad=True,
            overlap_grad_reduce=parallel.overlap_communication,
            overlap_param_gather=parallel.overlap_communication and parallel.distributed_optimizer,
        ),
    )


def _validation(recipe: Recipe) -> dict[str, Any]:
    if recipe.run.validate_every_steps is None:
        return {"limit_val_batches": 0, "num_sanity_val_steps": 0}
    return {
        "limit_val_batches": recipe.run.validation_batches,
        "val_check_interval": recipe.run.validate_every_steps,
        "num_sanity_val_steps": 0,
    }


def _context(recipe: Recipe, run_dir: Path) -> Path:
    """What the checkpoints of a run have beside their weights: that of the one from which it starts, and what the run adds to it."""
    source = Path(recipe.model.checkpoint) / "context"
    if recipe.lora is None:
        return source
    context = run_dir / CONTEXT_NAME
    if process_rank() == 0:  # which completes checkpoints
        shutil.copytree(source, context, dirs_exist_ok=True)
        write_lora(context, rank=recipe.lora.rank, alpha=recipe.lora.alpha)
    return context


def _callbacks(recipe: Recipe, inputs: RunInputs, *, run_dir: Path) -> list[Any]:
    steps = arithmetic.total_steps(recipe)
    facts: Mapping[str, Any] = inputs.checkpoint.facts
    validation = next((manifest.facts for manifest in inputs.validation.values()), None)
    return [
        StepSeed(recipe.seed),
        Metrics(
            run_dir / METRICS_NAME,
            every_steps=recipe.run.log_every_steps,
            tokens_per_step=arithmetic.tokens_per_step(recipe),
            max_steps=steps,
            bytes_per_token=validation["text_bytes"] / validation["num_tokens"] if validation else None,
        ),
        Checkpoints(
            run_dir / CHECKPOINTS_NAME,
            every_steps=recipe.run.checkpoint_every_steps,
            max_steps=steps,
            source_context=_context(recipe, run_dir),
            facts={**facts, "padded_vocab_size": padded_vocab_size(recipe, inputs)},
            inputs={
                "checkpoint": inputs.checkpoint.digest,
                **{path: manifest.digest for path, manifest in zip(recipe.data.train, inputs.train, strict=True)},
            },
            arguments=asdict(recipe),
            optimizer_in_last=recipe.run.keep_optimizer_in_last_checkpoint,
        ),
    ]
