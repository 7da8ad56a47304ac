"""The callbacks of a run, made from its recipe and put into the order in which they have to act."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from common.artifacts import Manifest
from common.lease import Fence
from conversion.checkpoints.lora import write_lora
from conversion.checkpoints.nemo_checkpoint import copy_context
from data_prep.megatron.index import PREFIX
from data_prep.tokenizers.frame import FRONT
from recipes.numbers import arithmetic
from recipes.numbers.steps import weights_of
from recipes.planner.hardware import GPUS, has_known_rates, visible_gpu
from recipes.rules.checks import factorised_size, padded_vocab_size
from recipes.rules.inputs import RunInputs
from recipes.rules.masking import masks_of, predicted_share
from recipes.rules.schema import Recipe
from recipes.runs.identity import RUN, run_facts
from recipes.runs.launch import process_rank
from recipes.runs.retention import Retention
from recipes.runs.run_dir import CHECKPOINTS_NAME, CONTEXT_NAME, METRICS_NAME
from recipes.runs.stopping import StopSignals
from recipes.runs.watchdog import Watchdog
from recipes.training.callbacks import FirstStepMemory, ProgressWatch, RateOfTheStep, StepSeed
from recipes.training.checkpoints import Checkpoints
from recipes.training.fencing import SharedFence
from recipes.training.loggers import MetricsFile
from recipes.training.metrics import LANGUAGES, ON_CPU, LanguageFacts, Metrics, Rates, memory_gib, new_rows
from recipes.training.nonfinite import NonFiniteSteps
from recipes.training.stopping import Stopping
from recipes.training.validation import Validation


@dataclass(frozen=True)
class RunCallbacks:
    """What acts before and after the steps."""

    seed: StepSeed
    rate: RateOfTheStep
    nonfinite: NonFiniteSteps
    metrics: Metrics
    first_step: FirstStepMemory
    validation: Validation | None
    checkpoints: Checkpoints
    stopping: Stopping
    watch: ProgressWatch

    def in_order(self) -> list[Callback]:
        """A step is logged and measured before it is saved, so that a run resumed from a checkpoint has both; stopping asks for saves."""
        found = [
            self.seed,
            self.rate,
            self.nonfinite,
            self.metrics,
            self.first_step,
            self.validation,
            self.checkpoints,
            self.stopping,
            self.watch,
        ]
        return [callback for callback in found if callback is not None]


def make_callbacks(
    recipe: Recipe, inputs: RunInputs, *, run_dir: Path, signals: StopSignals, fence: Fence, watchdog: Watchdog
) -> RunCallbacks:
    """The callbacks of a run.

    Args:
        fence: of the run's lease on its directory.
    """
    steps, shared_fence = recipe.total_steps, SharedFence(fence)
    file = MetricsFile(run_dir / METRICS_NAME, may_write=shared_fence.may_write)
    metrics = Metrics(
        file,
        every_steps=recipe.run.log_every_steps,
        max_steps=steps,
        rates=_rates(recipe, inputs),
        new_rows=new_rows(inputs.checkpoint.facts, vocab_size=inputs.model["vocab_size"]),
    )
    checkpoints = Checkpoints(
        run_dir / CHECKPOINTS_NAME,
        every_steps=recipe.run.checkpoint_every_steps,
        every_seconds=None if recipe.run.checkpoint_every_minutes is None else recipe.run.checkpoint_every_minutes * 60,
        max_steps=steps,
        source_context=_context(recipe, run_dir),
        facts={
            **_lasting_facts(inputs.checkpoint),
            FRONT: inputs.train[0].facts.get(FRONT, []),
            "padded_vocab_size": padded_vocab_size(recipe, inputs),
            **({RUN: run_facts(run_dir, recipe, inputs.train)} if process_rank() == 0 else {}),  # which completes checkpoints
        },
        inputs={
            "checkpoint": inputs.checkpoint.digest,
            **{path: manifest.digest for path, manifest in zip(recipe.data.train, inputs.train, strict=True)},
        },
        arguments=asdict(recipe),
        optimizer_in_last=recipe.run.keep_optimizer_in_last_checkpoint,
        asynchronous=recipe.run.asynchronous_save,
        batches=recipe.schedule.batches,
        facts_of_samples=LanguageFacts(recipe, inputs),
        retention=None if recipe.run.keep_checkpoints is None else Retention(recipe.run.keep_checkpoints, recipe.run.keep_held_checkpoints),
        fence=shared_fence,
        watchdog=watchdog,
        saved=metrics.saved,
    )
    return RunCallbacks(
        seed=StepSeed(recipe.seed),
        rate=RateOfTheStep(),
        nonfinite=NonFiniteSteps(
            run_dir,
            file,
            budget=recipe.run.skip_nonfinite_steps,
            batches=recipe.schedule.batches,
            micro_batch_size=recipe.schedule.micro_batch_size,
        ),
        metrics=metrics,
        first_step=FirstStepMemory(run_dir, recipe, fence, measure=None if ON_CPU else memory_gib),
        validation=_validation(recipe, inputs, metrics, watchdog),
        checkpoints=checkpoints,
        stopping=Stopping(run_dir, checkpoints, signals, shared_fence),
        watch=ProgressWatch(watchdog),
    )


def _lasting_facts(checkpoint: Manifest) -> dict[str, Any]:
    """What holds of the checkpoint that a run starts from and of all that it saves; not what an earlier run saw."""
    return {key: value for key, value in checkpoint.facts.items() if key != LANGUAGES}


def _context(recipe: Recipe, run_dir: Path) -> Path:
    """What the checkpoints of a run have beside their weights: that of the one from which it starts, and what the run adds to it."""
    source = Path(recipe.model.checkpoint) / "context"
    if recipe.lora is None:
        return source
    context = run_dir / CONTEXT_NAME
    if process_rank() == 0:  # which completes checkpoints
        copy_context(source, context)
        write_lora(context, rank=recipe.lora.rank, alpha=recipe.lora.alpha)
    return context


def _validation(recipe: Recipe, inputs: RunInputs, metrics: Metrics, watchdog: Watchdog) -> Validation | None:
    every_steps = recipe.validation_steps
    if every_steps is None:
        return None
    masks = masks_of(recipe)
    return Validation(
        {language: Path(path) / PREFIX for language, path in recipe.data.validation.items()},
        metrics,
        watchdog,
        every_steps=every_steps,
        max_steps=recipe.total_steps,
        max_samples=recipe.run.validation_batches * recipe.schedule.global_batch_size,
        sequence_length=recipe.data.sequence_length,
        micro_batch_size=recipe.schedule.micro_batch_size,
        end_of_text=inputs.train[0].facts["eos_token_id"] if recipe.data.document_mask else None,
        masks=None if masks is None else (masks[0], masks[1].validation_parts),
    )


def _rates(recipe: Recipe, inputs: RunInputs) -> Rates:
    weights = weights_of(recipe.data, inputs.train)
    bytes_per_token = sum(weight * _bytes_per_token(manifest) for weight, manifest in zip(weights, inputs.train, strict=True)) / sum(
        weights
    )
    return Rates(
        positions_per_sample=recipe.data.sequence_length,
        batches=recipe.schedule.batches,
        bytes_per_token=bytes_per_token,
        held_out_bytes_per_token={language: _bytes_per_token(manifest) for language, manifest in inputs.validation.items()},
        flops_per_token=arithmetic.flops_per_token(
            inputs.model,
            vocab_size=padded_vocab_size(recipe, inputs),
            sequence_length=recipe.data.sequence_length,
            factorised_size=factorised_size(recipe),
            predicted_share=predicted_share(recipe),
        ),
        num_devices=recipe.parallel.world_size,
        peak_flops=_peak_flops(recipe),
    )


def _bytes_per_token(manifest: Manifest) -> float:
    return float(manifest.facts["text_bytes"] / manifest.facts["num_tokens"])


def _peak_flops(recipe: Recipe) -> float | None:
    """Of one device in bfloat16: that of the GPU which the recipe names, else of the one that is there and known."""
    if recipe.precision != "bf16":
        return None
    if recipe.parallel.gpu is not None:
        return GPUS[recipe.parallel.gpu.lower()].peak_flops
    gpu = visible_gpu()
    return gpu.peak_flops if gpu is not None and has_known_rates(gpu) else None
