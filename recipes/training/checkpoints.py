"""Checkpoints of a run: complete or invisible, saved beside the training where that is asked for."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from functools import partial as partial_function
from pathlib import Path
from typing import Any

import torch.distributed as distributed
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from common.artifacts import digest_file, make_group_readable, sync_tree, write_manifest
from common.background import Background
from common.command import StoppedError
from conversion.checkpoints.nemo_checkpoint import HF, KEPT_NAME, copy_context
from recipes.numbers.batches import Batches
from recipes.runs.retention import REMOVED_PATTERN, Retention, remove_old_checkpoints
from recipes.runs.run_dir import checkpoint_name
from recipes.runs.watchdog import Watchdog
from recipes.training.fencing import SharedFence
from recipes.training.languages import FactsOfSamples


class Checkpoints(Callback):
    """Saves NeMo checkpoints `step_0000100` ..., each complete in itself and renamed into place when it is.

    A directory with the final name has weights, context and manifest; whatever a crash leaves has a hidden name.

    Args:
        directory: below that of the run.
        batches: of the run; a checkpoint says how many samples it has seen.
        facts_of_samples: what else it says of so many samples; called on rank 0.
        retention: None lets all checkpoints stay.
        saved: called on rank 0 with the step of each checkpoint that is complete.
    """

    def __init__(
        self,
        directory: Path,
        *,
        every_steps: int,
        every_seconds: float | None,
        max_steps: int,
        source_context: Path,
        facts: Mapping[str, Any],
        inputs: Mapping[str, str],
        arguments: Mapping[str, Any],
        optimizer_in_last: bool,
        asynchronous: bool,
        batches: Batches,
        facts_of_samples: FactsOfSamples,
        retention: Retention | None,
        fence: SharedFence,
        watchdog: Watchdog,
        saved: Callable[[int], None],
    ) -> None:
        self._directory, self._every, self._max_steps = directory, every_steps, max_steps
        self._every_seconds, self._begun = every_seconds, 0.0  # when the last save began, or the training
        self._source_context, self._facts, self._inputs, self._arguments = source_context, facts, inputs, arguments
        self._optimizer_in_last, self._asynchronous, self._batches, self._retention = optimizer_in_last, asynchronous, batches, retention
        self._fence, self._watchdog, self._saved, self._facts_of_samples = fence, watchdog, saved, facts_of_samples
        self._last_saved = -1
        self._completing: tuple[int, Background[bool]] | None = None  # the step of a save whose name is pending, on rank 0
        self._stopped_seconds = 0.0  # for which the newest save has stopped the training

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove what interrupted saves and removals left behind."""
        self._last_saved = trainer.global_step
        self._begun = time.monotonic()
        steps: list[int] = [0] * distributed.get_world_size()
        distributed.all_gather_object(steps, trainer.global_step)
        if len(set(steps)) > 1:  # a checkpoint appeared or went while they looked
            raise StoppedError(f"the ranks go on from checkpoints of different steps, {min(steps)} and {max(steps)}; start again")
        if trainer.is_global_zero:
            for pattern in (".step_*.partial", REMOVED_PATTERN):
                for left in self._directory.glob(pattern):
                    shutil.rmtree(left, ignore_errors=True)
        trainer.strategy.barrier("checkpoints cleaned")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save where a checkpoint is due."""
        self._note_completed(wait=False)
        step = trainer.global_step
        if step % self._every == 0 or step == self._max_steps:
            self.save(trainer)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Let what a save beside the training copies be copied before the step changes it."""
        trainer.strategy.unwrapped_checkpoint_io.copies.wait()  # type: ignore[attr-defined]

    def is_due(self) -> bool:
        """Whether by this rank's clock the last save is so long ago that another one should follow, whatever the step."""
        return self._every_seconds is not None and time.monotonic() - self._begun >= self._every_seconds

    def save(self, trainer: Trainer) -> None:
        """Write a checkpoint of this step, if there is none yet; every rank takes part.

        A save that runs beside the training is ended by NeMo's callback at a later step, or at the end of the run.
        """
        step = trainer.global_step
        if step == self._last_saved:
            return
        with self._watchdog.other_work("a save"):
            self._save(trainer, step)

    def _save(self, trainer: Trainer, step: int) -> None:
        self._end_save_beside(trainer)
        self._fence.check()
        self._last_saved = step
        self._begun = time.monotonic()
        partial = self._directory / f".{checkpoint_name(step)}.{self._fence.token}.partial"  # nobody else's, whoever has the directory
        weights_only = step == self._max_steps and not self._optimizer_in_last
        prepared = Background(partial_function(self._prepare, partial)) if trainer.is_global_zero else None
        start = time.monotonic()
        finish = partial_function(self._finish, trainer, partial, step, prepared)
        options = {"storage_options": {"finalize_fn": finish}} if self._asynchronous else {}
        trainer.save_checkpoint(str(partial), weights_only=weights_only, **options)
        self._stopped_seconds = time.monotonic() - start
        if not self._asynchronous:
            finish()

    def _prepare(self, partial: Path) -> None:
        """Write what a checkpoint has besides its tensors, while these are written; on rank 0."""
        copy_context(self._source_context, partial / "context")
        sync_tree(partial / "context")

    def _finish(self, trainer: Trainer, partial: Path, step: int, prepared: Background[None] | None) -> None:
        """Give a written checkpoint the rest of its files and its name; every rank calls this at the same time."""
        start = time.monotonic()
        digests = trainer.strategy.unwrapped_checkpoint_io.digests_of_all_ranks()  # type: ignore[attr-defined]
        digests = {f"weights/{name}": digest for name, digest in digests.items()}
        self._fence.check()
        if prepared is not None:
            samples = self._batches.samples(step)
            facts = {"step": step, "samples": samples, **self._facts_of_samples(trainer, samples)}
            prepared.result()
            facts["save_seconds"] = self._stopped_seconds + time.monotonic() - start
            complete = partial_function(self._complete, partial, step, facts, digests)
            if self._asynchronous:
                self._completing = (step, Background(complete))
                return
            if complete():
                self._saved(step)
        if not self._asynchronous:
            trainer.strategy.barrier("checkpoint renamed")

    def _note_completed(self, *, wait: bool) -> None:
        """Tell of a checkpoint that got its name beside the training; on rank 0, which writes it."""
        if self._completing is None:
            return
        step, work = self._completing
        if wait or work.is_done:
            self._completing = None
            if work.result():
                self._saved(step)

    def _end_save_beside(self, trainer: Trainer) -> None:
        """Wait for a save that is written beside the training."""
        if self._asynchronous:
            trainer.strategy.checkpoint_io.maybe_finalize_save_checkpoint(blocking=True)  # type: ignore[attr-defined]
            self._note_completed(wait=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave no save unfinished."""
        self._end_save_beside(trainer)
        trainer.strategy.barrier("checkpoint renamed")

    def _complete(self, partial: Path, step: int, facts: Mapping[str, Any], digests: Mapping[str, str]) -> bool:
        """Write the manifest and give the checkpoint its name; False where another run has the directory, as all ranks learn behind a step."""
        make_group_readable(partial)
        write_manifest(
            partial,
            stage="recipes.train",
            facts={**self._facts, **facts},
            arguments=self._arguments,
            inputs=self._inputs,
            known_digests={**digests, **self._kept_digests},
        )
        sync_tree(partial)
        if not self._fence.may_write():
            return False
        final = self._directory / checkpoint_name(step)
        if final.exists():  # a resumed run may pass a step that was saved with other data
            shutil.rmtree(final)
        partial.replace(final)
        if self._retention is not None:
            for sentence in remove_old_checkpoints(self._directory.parent, self._retention):
                print(sentence, file=sys.stderr, flush=True)
        return True

    @cached_property
    def _kept_digests(self) -> dict[str, str]:
        """Digest of what is kept aside, which is large and the same in every checkpoint."""
        kept = self._source_context / "hf" / KEPT_NAME
        return {f"{HF}/{KEPT_NAME}": digest_file(kept)} if kept.is_file() else {}
