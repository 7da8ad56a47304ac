"""A recipe as a NeMo trainer: model, data, optimizer and strategy; then fit or resume."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from common.lease import Fence
from conversion.checkpoints.factors import read_factors
from conversion.families import family_of
from data_prep.megatron.index import PREFIX
from nemo_patches.quiet import quiet_imports
from recipes.numbers import arithmetic
from recipes.numbers.recomputation import FEED_FORWARD, resolved
from recipes.numbers.steps import blend_of, drawn_blend, has_answers, weights_of
from recipes.rules.checks import padded_vocab_size, trained_names
from recipes.rules.freezing import first_trained_steps
from recipes.rules.inputs import RunInputs
from recipes.rules.layout_checks import expert_balance, layers_per_stage
from recipes.rules.masking import masks_of
from recipes.rules.schema import MASKED, Recipe
from recipes.runs.launch import process_rank
from recipes.runs.stopping import StopSignals
from recipes.runs.watchdog import Watchdog, silence

with quiet_imports():
    from nemo_patches.cpu_device import present_cpu_as_device

    ON_CPU = present_cpu_as_device()  # first, so that nothing keeps an unpatched name

    import nemo.lightning as nl
    import torch
    import torch.distributed.distributed_c10d as distributed_c10d
    from lightning.pytorch.plugins.environments import LightningEnvironment
    from megatron.core import parallel_state
    from megatron.core.datasets.gpt_dataset import GPTDataset
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import USING_PYTORCH_OPTIMIZER, OptimizerConfig
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from nemo.collections.llm.gpt.data.pre_training import PreTrainingDataModule
    from nemo.collections.llm.gpt.model.base import GPTConfig, GPTModel
    from nemo.lightning.pytorch.optim import LRSchedulerModule

    from nemo_patches import adam_groups, gradient_norm, torch_adam
    from nemo_patches.base_checkpoint import loading_base_checkpoint
    from nemo_patches.core import apply
    from nemo_patches.documents import micro_batch
    from nemo_patches.lone_replica import skip_collectives
    from nemo_patches.lora import LoRA
    from nemo_patches.second_head import copy_first_head, draw_second_head
    from nemo_patches.tokenizer import EndOfDocument
    from nemo_patches.whole_experts import has_biased_experts
    from recipes.training.assembly import RunCallbacks, make_callbacks
    from recipes.training.checkpoint_io import make_checkpoint_io
    from recipes.training.freezing import TablesOptimizer, freeze_for_the_whole_run, is_of_tables
    from recipes.training.growing_batches import GrowingBatches
    from recipes.training.kept_saves import Gathering, KeptSave, RunState, can_be_kept, distributed_optimizer, rest_of_optimizer
    from recipes.training.loggers import TENSORBOARD_NAME, finish, forget_points, make_loggers
    from recipes.training.masking import MaskedDataModule, MaskedPassesDataModule
    from recipes.training.metrics import StepLoss
    from recipes.training.nonfinite import NonFiniteSteps
    from recipes.training.passes import DocumentSamples, PassesDataModule


class ClosedFormSchedule(LRSchedulerModule):
    """The learning rate as `recipes.numbers.schedules` gives it; tables may have one of their own."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self._schedule, self._steps = recipe.schedule, recipe.total_steps

    def scheduler(self, model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Lightning's description of a scheduler that is stepped once per optimizer step."""
        highest = self._schedule.learning_rate

        def share(of_tables: bool, step: int) -> float:
            rate = arithmetic.embedding_learning_rate if of_tables else arithmetic.learning_rate
            return rate(step, self._schedule, steps=self._steps) / highest

        # All groups have the same base: a checkpoint brings those of the rank that wrote it, and pipeline stages order their groups differently.
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [partial(share, is_of_tables(group)) for group in optimizer.param_groups])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step", "frequency": 1}}


class TrainedModel(GPTModel):
    """NeMo's GPT with what no step changes out of Megatron's sight from the start, and an eye on the losses."""

    def __init__(self, config: GPTConfig, *, first_trained: Mapping[str, float], nonfinite: NonFiniteSteps, **arguments: Any) -> None:
        super().__init__(config, **arguments)
        self._first_trained, self._nonfinite = first_trained, nonfinite
        self._balance = config.moe_aux_loss_coeff

    def configure_model(self, vp_stage: int | None = None) -> None:
        """Build this rank's part of the model."""
        super().configure_model(vp_stage)
        freeze_for_the_whole_run(self.module, self._first_trained)

    def on_train_start(self) -> None:
        """With one copy of the weights, send none."""
        super().on_train_start()
        if parallel_state.get_data_parallel_world_size(with_context_parallel=True) == 1:
            for chunk in self.trainer.strategy.megatron_parallel:  # type: ignore[attr-defined]
                skip_collectives(chunk.module)

    def data_step(self, batches: Iterator[Any]) -> dict[str, Any]:
        """The next micro batch on the device, of which the loss of the experts' balance weighs as much as the tokens that count.

        Where losses are sums over tokens, Megatron-core multiplies that loss by all tokens of a micro batch and divides by those that count in a
        step: together the micro batches would weigh more than the recipe says.  Where stages of a pipeline compute layers again, they do so with
        the weight of the newest micro batch.
        """
        if self.config.num_moe_experts is not None and self.config.calculate_per_token_loss:
            batch = micro_batch(batches)
            self.config.moe_aux_loss_coeff = self._balance * float(batch["loss_mask"].float().mean())
            batches = iter([batch])
        found: dict[str, Any] = super().data_step(batches)
        return found

    def log(self, *arguments: Any, **options: Any) -> None:
        """See Lightning's class, which takes what a progress bar is to show from the device at every step; there is none."""
        super().log(*arguments, **{**options, "prog_bar": False})

    @property
    def training_loss_reduction(self) -> StepLoss:
        """What makes the loss of a step of those of its micro batches."""
        return StepLoss()

    def training_step(self, batch: Any, batch_idx: int | None = None) -> torch.Tensor:
        """(samples, tokens) losses of a micro batch in nats, or what the next pipeline stage gets, (tokens, samples, hidden_size)."""
        output: torch.Tensor = super().training_step(batch, batch_idx)
        self._nonfinite.note_loss(output)
        self.trainer.strategy.go_on_copying()  # type: ignore[attr-defined]
        return output


class RecipeStrategy(nl.MegatronStrategy):
    """NeMo's strategy for models of which a part is frozen or added.

    Args:
        factors: what the token table is trained as, where it is factorised.
        draws_second_head_from: seed, where the second head does not start as the first.
        silence: for which ranks wait for each other.
    """

    def __init__(self, *, factors: Path | None, draws_second_head_from: int | None, silence: timedelta, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._silence = silence
        self._factors, self._draws_second_head_from = factors, draws_second_head_from
        self._kept: dict[bool, KeptSave] = {}  # with the optimizer's state, and without
        self._gathering: Gathering | None = None  # of parameters that a save beside the training is still to copy

    def init_model_parallel(self) -> None:
        """See NeMo's class; Megatron gives its groups 30 minutes, whatever the group of all has."""
        super().init_model_parallel()
        for group in list(distributed_c10d._world.pg_map):
            distributed_c10d._set_pg_timeout(self._silence, group)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Nothing of what Lightning would have of it: NeMo puts the optimizer's parts in its place."""
        return {}

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Nothing of the model either, for which Lightning would go through all modules at every save: NeMo puts its parts in its place."""
        return {}

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """See NeMo's class; what is the same at every save is found out once.

        Args:
            storage_options: may say `again`: that `can_save_again` is so on all ranks.
        """
        options = dict(storage_options or {})
        has_optimizer = "optimizer_states" in checkpoint
        if options.pop("again", False):
            self.save_again(checkpoint, filepath, with_optimizer=has_optimizer, finalize=options.get("finalize_fn"))
            return
        optimizer = self._distributed_optimizer(with_optimizer=has_optimizer)
        state = RunState.of(self.megatron_parallel, optimizer)
        self._kept.pop(has_optimizer, None)
        self.unwrapped_checkpoint_io.until_step, self.unwrapped_checkpoint_io.gathered_later = state.until_step, frozenset()
        super().save_checkpoint(checkpoint, filepath, storage_options=options)  # which has gathered the parameters first
        planned = self.unwrapped_checkpoint_io.saved
        if can_be_kept(planned.files, state) and (optimizer is not None) == has_optimizer:
            self._kept[has_optimizer] = KeptSave(state, planned, rest_of_optimizer(checkpoint, optimizer))

    def can_save_again(self, *, with_optimizer: bool) -> bool:
        """Whether on this rank all is where it was when a save of this kind was planned."""
        kept = self._kept.get(with_optimizer)
        return kept is not None and kept.state == RunState.of(
            self.megatron_parallel, self._distributed_optimizer(with_optimizer=with_optimizer)
        )

    def save_again(
        self, checkpoint: dict[str, Any], filepath: Any, *, with_optimizer: bool, finalize: Callable[[], None] | None = None
    ) -> None:
        """Save as a save before, which is possible on all ranks.

        Args:
            checkpoint: what Lightning has of the run, as NeMo's `save_checkpoint` takes it; asked of rank 0 alone.
            finalize: what ends a save that is written beside the training.
        """
        kept, checkpoint_io = self._kept[with_optimizer], self.unwrapped_checkpoint_io
        gathering = Gathering([model.module for model in self.megatron_parallel] if self.ddp_config.overlap_param_gather else ())
        if finalize is None:
            gathering.do_now()
        else:
            self._gathering = gathering
        checkpoint_io.until_step, checkpoint_io.gathered_later = kept.state.until_step, gathering.storages
        common: dict[str, Any] = {}
        if self.is_global_zero:
            common = {**checkpoint, "state_dict": {}}
            optimizer = self._distributed_optimizer(with_optimizer=with_optimizer)
            if optimizer is not None:
                common |= {"optimizer_states": {}, "optimizer": [{**optimizer.state_dict(), **kept.optimizer}]}
            common["content_metadata"] = self.sharded_state_dict_metadata
        self.checkpoint_io.save_again(common, kept.planned, filepath, *([] if finalize is None else [finalize]))

    def _distributed_optimizer(self, *, with_optimizer: bool) -> DistributedOptimizer | None:
        return distributed_optimizer(self.lightning_module.optimizers(use_pl_optimizer=False)) if with_optimizer else None

    def begin_to_copy(self) -> None:
        """Begin to copy for a save beside the training, before the next step: what has its value already."""
        self.unwrapped_checkpoint_io.copies.begin(gathered=self._gathering is None)
        self.go_on_copying()

    def go_on_copying(self) -> None:
        """Go on with the parameters, if the last of them has been gathered."""
        if self._gathering is not None and self._gathering.is_over():
            self._gathering = None
            self.unwrapped_checkpoint_io.copies.begin()

    def end_copying(self) -> None:
        """Wait until all is copied, before a step changes it or when none follows; every rank takes part."""
        if self._gathering is not None:  # no pass has followed, or none that needed some of the parameters
            self._gathering.do_before_change()
            self._gathering = None
        self.unwrapped_checkpoint_io.copies.begin()
        self.unwrapped_checkpoint_io.copies.wait()

    @property
    def sharded_state_dict_metadata(self) -> dict[str, Any]:
        """See NeMo's class; each rank saves its own part of the optimizer's state, as a part of each parameter.

        NeMo offers a form that resumes at the same tensor and pipeline parallel size alone, and one for which every rank gathers the
        state of its whole part of the model in the host's memory, 12 bytes per parameter, while the training waits.
        """
        found: dict[str, Any] = super().sharded_state_dict_metadata
        if "distrib_optim_sharding_type" in found:
            found["distrib_optim_sharding_type"] = "fully_sharded_model_space"
        return found

    def optimizer_sharded_state_dict(self, is_loading: bool = False, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
        """See NeMo's class; the state of every layer has a name of its own, as layers without any cannot be stacked."""
        metadata = {**(metadata or self.sharded_state_dict_metadata), "non_homogeneous_layers": True}
        return super().optimizer_sharded_state_dict(is_loading=is_loading, metadata=metadata)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any], selective_restore: bool = False) -> None:
        """See NeMo's class; the checkpoint may be that of another kind of Adam."""
        if self.should_restore_optimizer_states(selective_restore=selective_restore):
            for optimizer, saved in zip(self.optimizers, checkpoint["optimizer"], strict=True):
                parts = optimizer.mcore_optimizer.chained_optimizers  # a second one of experts, where they have an optimizer of their own
                for number, part in enumerate(parts):
                    adam_groups.translate(saved if len(parts) == 1 else saved[number], part.optimizer)
        super().load_optimizer_state_dict(checkpoint, selective_restore)

    def selective_restore(self) -> None:
        """Start from the recipe's checkpoint, which does not have the parameters that the run adds."""
        with loading_base_checkpoint():
            super().selective_restore()
        for model in self.megatron_parallel:
            while hasattr(model, "module"):
                model = model.module
            if self._draws_second_head_from is None:
                copy_first_head(model)
            else:
                draw_second_head(model, seed=self._draws_second_head_from)
            if self._factors is not None:
                factors = {name: tensor.read() for name, tensor in read_factors(self._factors).items()}
                model.embedding.word_embeddings.fill(factors)
        for optimizer in self.optimizers:
            optimizer.reload_model_params()


def train(
    recipe: Recipe,
    inputs: RunInputs,
    *,
    run_dir: Path,
    resume_from: tuple[int, Path] | None,
    signals: StopSignals,
    fence: Fence,
    watchdog: Watchdog,
) -> str | None:
    """Train to the end of the recipe, from the recipe's checkpoint or from one of this run.

    Every process of the run calls this.

    Args:
        resume_from: step and directory of a checkpoint of this run, with optimizer state.
        signals: that end the run before its last step.
        fence: of the run's lease on its directory.
        watchdog: that is told of every step.

    Returns:
        What ended the run before its last step, or None.

    Raises:
        NonFiniteError: on every rank, if the run meets more losses or gradients that are not finite than the recipe allows.
        LeaseLostError: on every rank, if another run has taken the directory over.
    """
    if process_rank() == 0:
        forget_points(run_dir / TENSORBOARD_NAME, last_step=resume_from[0] if resume_from else 0)
    callbacks = make_callbacks(recipe, inputs, run_dir=run_dir, signals=signals, fence=fence, watchdog=watchdog)
    trainer = make_trainer(recipe, inputs, callbacks, run_dir=run_dir, start_from_weights=resume_from is None)
    data = make_data(recipe, inputs, index_dir=run_dir / "index")
    model = make_model(recipe, inputs, callbacks.nonfinite)
    try:
        trainer.fit(model, data, ckpt_path=str(resume_from[1] / "weights") if resume_from else None)
    finally:
        finish(trainer.loggers)
    return callbacks.stopping.reason


def make_trainer(recipe: Recipe, inputs: RunInputs, callbacks: RunCallbacks, *, run_dir: Path, start_from_weights: bool) -> nl.Trainer:
    """The trainer of a run.

    Args:
        start_from_weights: load the weights of the recipe's checkpoint; a run that is resumed loads more, from its own.
    """
    if USING_PYTORCH_OPTIMIZER:  # TransformerEngine's and apex's Adam and norm need no patch
        for note in apply((*torch_adam.PATCHES, *gradient_norm.PATCHES)):
            if process_rank() == 0:
                print(f"note: {note}", flush=True)
    strategy = _strategy(recipe, inputs)
    if start_from_weights:
        weights = Path(recipe.model.checkpoint) / "weights"
        strategy.restore_config = nl.RestoreConfig(path=str(weights), load_model_state=True, load_optim_state=False, load_artifacts=False)
    return nl.Trainer(
        accelerator="cpu" if ON_CPU else "gpu",
        devices=recipe.parallel.devices_per_node,
        num_nodes=recipe.parallel.num_nodes,
        strategy=strategy,
        plugins=[nl.MegatronMixedPrecision(precision="bf16-mixed" if recipe.precision == "bf16" else "32"), *_environment(recipe)],
        max_steps=recipe.total_steps,
        log_every_n_steps=0,  # Metrics does it; Lightning would write the same again under other names, with steps counted from 0
        limit_val_batches=0,  # Validation does it
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_checkpointing=False,  # Checkpoints does it
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=make_loggers(run_dir, name=recipe.name, wandb_project=recipe.run.wandb_project, settings=asdict(recipe)),
        callbacks=callbacks.in_order(),
    )


def _environment(recipe: Recipe) -> list[LightningEnvironment]:
    """Where Lightning would take its number of ranks from a Slurm that has not started this process alone, or refuse srun without an option."""
    if recipe.parallel.world_size == 1:
        return [LightningEnvironment()]
    os.environ.setdefault("SLURM_NTASKS_PER_NODE", str(recipe.parallel.devices_per_node))
    return []


def make_model(recipe: Recipe, inputs: RunInputs, nonfinite: NonFiniteSteps) -> TrainedModel:
    """The model of a run with its optimizer, not yet built."""
    schedule = recipe.schedule
    # Samples may have different numbers of tokens that count: a mean of the means of micro batches would depend on how they are cut.
    per_token = recipe.data.document_mask or recipe.objective == MASKED or any(map(has_answers, inputs.train))
    config = family_of(inputs.family, source=recipe.model.checkpoint).engine_config(
        inputs.model,
        padded_vocab_size=padded_vocab_size(recipe, inputs),
        hidden_dropout=recipe.model.hidden_dropout,
        attention_dropout=recipe.model.attention_dropout,
        factorised_size=read_factors(Path(recipe.model.factors))["primitives"].shape[0] if recipe.model.factors else None,
        predicts_two_tokens=recipe.objective == "two_tokens",
        lora=LoRA(**asdict(recipe.lora), seed=recipe.seed) if recipe.lora else None,
        document_mask=recipe.data.document_mask,
        moe_aux_loss_coeff=_balance_coefficient(recipe, inputs, per_token=per_token),
        **_recomputation_settings(recipe, inputs),
        calculate_per_token_loss=per_token,
    )
    first_trained = first_trained_steps(
        recipe.freeze,
        trained_names(recipe, inputs),
        tied=inputs.model["share_embeddings_and_output_weights"],
    )
    has_own_rate = (schedule.embedding_learning_rate, schedule.embedding_weight_decay) != (None, None)
    optimizer = TablesOptimizer(
        first_trained,
        nonfinite,
        weight_decay_of_tables=schedule.weight_decay if schedule.embedding_weight_decay is None else schedule.embedding_weight_decay,
        config=OptimizerConfig(
            optimizer="adam",
            lr=schedule.learning_rate,
            decoupled_lr=schedule.embedding_rates[0] if has_own_rate else None,
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
    return TrainedModel(config, first_trained=first_trained, nonfinite=nonfinite, optim=optimizer, tokenizer=_tokenizer(inputs))


def _balance_coefficient(recipe: Recipe, inputs: RunInputs, *, per_token: bool) -> float:
    """What Megatron-core has to be given so that the loss of the experts' balance has the recipe's weight at every layout.

    Its version 0.15 makes that loss smaller by the number of ranks among which samples are cut, and where losses are means over tokens also
    by that of tensor-parallel ranks (mended behind it: its pull requests 2217 and 5047).
    """
    cuts = recipe.parallel.context_parallel_size * (recipe.parallel.tensor_parallel_size if per_token else 1)
    return expert_balance(recipe, inputs.model) * cuts


def _recomputation_settings(recipe: Recipe, inputs: RunInputs) -> dict[str, Any]:
    """Megatron's settings of activation checkpointing."""
    chosen = resolved(recipe.recomputation, layers_per_stage(recipe, inputs.model))
    if chosen is None:
        return {}
    if chosen.granularity == "selective":
        has_experts = "num_moe_experts" in inputs.model
        modules = ["moe" if has_experts and module == FEED_FORWARD else module for module in chosen.modules]
        return {"recompute_granularity": "selective", "recompute_modules": modules}
    return {"recompute_granularity": "full", "recompute_method": chosen.method, "recompute_num_layers": chosen.num_layers}


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
    build: Callable[..., PreTrainingDataModule] = PreTrainingDataModule
    masks, passes = masks_of(recipe), None
    if recipe.schedule.epochs is not None:
        passes = (prefixes, blend_of(recipe, inputs.train))
        build = partial(PassesDataModule, *passes, with_answers=[has_answers(manifest) for manifest in inputs.train])
    elif recipe.data.pad_documents:  # which Megatron's own order does not know
        passes = (prefixes, drawn_blend(recipe, inputs.train, num_samples=recipe.run_samples))
    if masks is not None:
        padding_id = masks[0].padding_id if recipe.data.pad_documents else None
        build = (
            partial(MaskedDataModule, *masks) if passes is None else partial(MaskedPassesDataModule, *masks, *passes, padding_id=padding_id)
        )
    data = build(
        paths={"train": train, "validation": train, "test": train},  # Validation reads its own
        seq_length=recipe.data.sequence_length,
        tokenizer=_tokenizer(inputs),
        micro_batch_size=recipe.schedule.micro_batch_size,
        global_batch_size=recipe.schedule.global_batch_size,
        num_workers=recipe.data.num_workers,
        pin_memory=not ON_CPU,
        persistent_workers=recipe.data.num_workers > 0,
        seed=recipe.seed,
        index_mapping_dir=str(index_dir),
        num_train_samples=recipe.run_samples,
        dataset_cls=DocumentSamples if recipe.data.document_mask else GPTDataset,
        eod_mask_loss=recipe.data.document_mask,
    )
    if recipe.schedule.ramp_up is not None:
        data.data_sampler = GrowingBatches(
            recipe.schedule.batches, seq_len=recipe.data.sequence_length, micro_batch_size=recipe.schedule.micro_batch_size
        )
    data.create_attention_mask = False  # the mask is causal; NeMo would build a (sequence, sequence) tensor per sample
    return data


def _strategy(recipe: Recipe, inputs: RunInputs) -> RecipeStrategy:
    parallel = recipe.parallel
    copies = parallel.data_parallel_size * parallel.context_parallel_size
    overlaps = parallel.overlap_communication and copies > 1
    return RecipeStrategy(
        factors=Path(recipe.model.factors) if recipe.model.factors else None,
        draws_second_head_from=recipe.seed if recipe.second_head == "random" else None,
        silence=timedelta(seconds=silence(recipe.run)),
        tensor_model_parallel_size=parallel.tensor_parallel_size,
        pipeline_model_parallel_size=parallel.pipeline_parallel_size,
        context_parallel_size=parallel.context_parallel_size,
        expert_tensor_parallel_size=1 if has_biased_experts(inputs.model) else None,
        sequence_parallel=parallel.sequence_parallel,
        pipeline_dtype=torch.bfloat16 if recipe.precision == "bf16" else torch.float32,
        checkpoint_io=make_checkpoint_io(asynchronous=recipe.run.asynchronous_save),
        ckpt_async_save=recipe.run.asynchronous_save,
        ckpt_optim_fully_reshardable=True,
        replace_progress_bar=False,
        process_group_backend="gloo" if ON_CPU else "nccl",
        ddp=DistributedDataParallelConfig(
            overlap_grad_reduce=overlaps,
            overlap_param_gather=overlaps and parallel.distributed_optimizer,
        ),
    )
