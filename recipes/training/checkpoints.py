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
        step = trainer.global_step
        if step % self._every == 0 or step == self._max_steps:
            self.save(trainer)

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
        self._fence.check()
        self._last_saved = step
        self._begun = time.monotonic()
        partial = self._directory / f".{checkpoint_name(step)}.{self._fence.token}.partial"  # nobody else's, whoever has the directory
        weights_only = step == self._max_steps and not self._optimizer_in_last
        finish = partial_function(self._finish, trainer, partial, step)
        options = {}
        if self._asynchronous:
            trainer.strategy.checkpoint_io.maybe_finalize_save_checkpoint(blocking=True)  # type: ignore[attr-defined]
            options = {"storage_options": {"finalize_fn": finish}}
        start = time.monotonic()
        trainer.save_checkpoint(str(partial), weights_only=weights_only, **options)
        self._stopped_seconds = time.monotonic() - start
        if not self._asynchronous:
            finish()

    def _finish(self, trainer: Trainer, partial: Path, step: int) -> None:
        """Give a written checkpoint the rest of its files and its name; every rank calls this at the same time."""
        final = self._directory / checkpoint_name(step)
        start = time.monotonic()
        trainer.strategy.barrier("checkpoint written")
        digests = _digests_of_all_ranks(partial)
        if trainer.is_global_zero:
            samples = self._batches.samples(step)
            facts = {"step": step, "samples": samples, **self._facts_of_samples(trainer, samples)}
            facts["save_seconds"] = self._stopped_seconds + time.monotonic() - start
            self._complete(partial, facts, digests)
        self._fence.check()
        if trainer.is_global_zero:
            if final.exists():  # a resumed run may pass a step that was saved with other data
                shutil.rmtree(final)
            partial.replace(final)
            self._saved(step)
            if self._retention is not None:
                for sentence in remove_old_checkpoints(self._directory.parent, self._retention):
                    print(sentence, file=sys.stderr, flush=True)
        trainer.strategy.barrier("checkpoint renamed")

    def _complete(self, partial: Path, facts: Mapping[str, Any], digests: Mapping[str, str]) -> None:
        copy_context(self._source_context, partial / "context")
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

    @cached_property
    def _kept_digests(self) -> dict[str, str]:
        """Digest of what is kept aside, which is large and the same in every checkpoint."""
        kept = self._source_context / "hf" / KEPT_NAME
        return {f"{HF}/{KEPT_NAME}": digest_file(kept)} if kept.is_file() else {}


def _digests_of_all_ranks(checkpoint: Path) -> dict[str, str]:
    """Digest of each file of tensors, made by the rank that wrote it: its own memory still holds it, and all work at the same time."""
    own = {
        path.relative_to(checkpoint).as_posix(): digest_file(path) for path in checkpoint.glob(f"**/__{distributed.get_rank()}_*.distcp")
    }
    of_ranks: list[dict[str, str]] = [{} for _ in range(distributed.get_world_size())]
    distributed.all_gather_object(of_ranks, own)
    return {name: digest for of_rank in of_ranks for name, digest in of_rank.items()}
