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
from recipes.training.fencing import SharedFence, largest_of_all_ranks
from recipes.training.metrics import FactsOfSamples

NOTHING_LEFT, HAS_FAILED, STILL_WRITING = range(3)  # of a rank's save beside the training: what is worst for all is the largest


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
        self._prepared: Background[None] | None = None  # on rank 0, what the newest save beside the training has besides its tensors
        self._stopped_seconds = 0.0  # for which that save has stopped the training

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove what interrupted saves and removals left behind."""
        self._last_saved = trainer.global_step
        self._begun = time.monotonic()
        steps: list[int] = [0] * distributed.get_world_size()
        distributed.all_gather_object(steps, trainer.global_step)
        if len(set(steps)) > 1:  # a checkpoint appeared or went while they looked
            raise StoppedError(f"the ranks resume from checkpoints of different steps, {min(steps)} and {max(steps)}; start the run again")
        if trainer.is_global_zero:
            for pattern in (".step_*.partial", REMOVED_PATTERN):
                for left in self._directory.glob(pattern):
                    shutil.rmtree(left, ignore_errors=True)
        trainer.strategy.barrier("checkpoints cleaned")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin to copy what a save after the step before has noted: now, so that nothing of it is done while all ranks wait for the slowest."""
        trainer.strategy.begin_to_copy()  # type: ignore[attr-defined]

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Let what a save beside the training copies be copied before the step changes it."""
        trainer.strategy.end_copying()  # type: ignore[attr-defined]

    def is_due_behind(self, step: int) -> bool:
        """Whether a step is one of those behind which all ranks save without being asked, and has not been saved."""
        return (step % self._every == 0 or step == self._max_steps) and step != self._last_saved

    def is_due(self) -> bool:
        """Whether by this rank's clock the last save is so long ago that another one should follow, whatever the step."""
        return self._every_seconds is not None and time.monotonic() - self._begun >= self._every_seconds

    def planned(self, trainer: Trainer) -> int:
        """Whether this rank can save the step that is over as one before: -1, else 0, so that the largest of all ranks is -1 where all can.

        The tensors of a rehearsal, which have no values, then say that a save has to be planned.
        """
        return -int(trainer.strategy.can_save_again(with_optimizer=not self._is_weights_only(trainer.global_step)))  # type: ignore[attr-defined]

    def state_beside(self, trainer: Trainer) -> int:
        """How far this rank is with a save beside the training; the largest of all ranks is how far they are together."""
        if not self._asynchronous:
            return NOTHING_LEFT
        if trainer.strategy.checkpoint_io.async_calls_queue.is_writing:  # type: ignore[attr-defined]
            return STILL_WRITING
        return HAS_FAILED if trainer.strategy.unwrapped_checkpoint_io.error is not None else NOTHING_LEFT  # type: ignore[attr-defined]

    def go_on(self, trainer: Trainer, state: int) -> None:
        """Go on with a save beside the training; every rank calls this behind a step, with the largest `state_beside` of all.

        Raises:
            CheckpointException: on every rank, if one could not write.
        """
        if state != STILL_WRITING:
            self._end_written(trainer, state)
        self._note_completed(wait=False)

    def save(self, trainer: Trainer, *, lease_is_seen: bool = False, again: bool | None = None) -> None:
        """Write a checkpoint of this step, if there is none yet; every rank takes part.

        A save that runs beside the training is ended by `go_on` at a later step, or at the end of the run.

        Args:
            lease_is_seen: whether rank 0 has just looked whether the directory is still the run's, and all know.
            again: whether no rank has to plan; if it is not known they meet for that.
        """
        step = trainer.global_step
        if step == self._last_saved:
            return
        with self._watchdog.other_work("a save"):
            self._end_save_beside(trainer)
            if not lease_is_seen:
                self._fence.check()
            if again is None:
                again = largest_of_all_ranks(self.planned(trainer)) == -1
            self._last_saved = step
            self._begun = time.monotonic()
            partial = self._directory / f".{checkpoint_name(step)}.{self._fence.token}.partial"  # nobody else's, whoever has the directory
            if self._asynchronous:
                self._begin_beside(trainer, partial, step, again)
            else:
                self._save_now(trainer, partial, step, again)

    def _is_weights_only(self, step: int) -> bool:
        return step == self._max_steps and not self._optimizer_in_last

    def _save_now(self, trainer: Trainer, partial: Path, step: int, again: bool) -> None:
        prepared = Background(partial_function(self._prepare, partial)) if trainer.is_global_zero else None
        start = time.monotonic()
        trainer.save_checkpoint(str(partial), weights_only=self._is_weights_only(step), storage_options={"again": again})
        digests = trainer.strategy.unwrapped_checkpoint_io.digests_of_all_ranks()  # type: ignore[attr-defined]
        self._fence.check()
        if prepared is not None:
            prepared.result()
            if self._complete(trainer, partial, step, digests, time.monotonic() - start):
                self._saved(step)
        trainer.strategy.barrier("checkpoint renamed")

    def _begin_beside(self, trainer: Trainer, partial: Path, step: int, again: bool) -> None:
        """Begin a save beside the training; where no rank has to plan, none waits for another here."""
        start = time.monotonic()
        weights_only, strategy = self._is_weights_only(step), trainer.strategy
        finish = partial_function(self._finish_beside, trainer, partial, step)
        if again:
            # What belongs to no tensor is written by rank 0, and the same on all.
            checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only) if trainer.is_global_zero else {}
            strategy.save_again(checkpoint, str(partial), with_optimizer=not weights_only, finalize=finish)  # type: ignore[attr-defined]
        else:
            trainer.save_checkpoint(str(partial), weights_only=weights_only, storage_options={"again": again, "finalize_fn": finish})
        if trainer.is_global_zero:
            wait = strategy.unwrapped_checkpoint_io.copies.wait  # type: ignore[attr-defined]
            self._prepared = Background(partial_function(self._prepare_behind, wait, partial))
        self._stopped_seconds = time.monotonic() - start

    def _prepare(self, partial: Path) -> None:
        """Write what a checkpoint has besides its tensors, while these are written; on rank 0."""
        copy_context(self._source_context, partial / "context")
        sync_tree(partial / "context")

    def _prepare_behind(self, wait: Callable[[], None], partial: Path) -> None:
        wait()
        self._prepare(partial)

    def _finish_beside(self, trainer: Trainer, partial: Path, step: int) -> None:
        """Begin to give a written checkpoint the rest of its files and its name; on rank 0, which alone has something to do."""
        if not trainer.is_global_zero:
            return
        checkpoint_io, prepared = trainer.strategy.unwrapped_checkpoint_io, self._prepared  # type: ignore[attr-defined]
        assert prepared is not None
        number, stopped = checkpoint_io.number, self._stopped_seconds

        def complete() -> bool:
            digests = checkpoint_io.told_digests(number)
            prepared.result()
            return self._complete(trainer, partial, step, digests, stopped)

        self._completing = (step, Background(complete))

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
        """Wait for a save that is written beside the training, of which nothing may be copied yet."""
        if not self._asynchronous:
            return
        checkpoint_io: Any = trainer.strategy.checkpoint_io
        if checkpoint_io.async_calls_queue.get_num_unfinalized_calls():  # which is so on all ranks
            trainer.strategy.end_copying()  # type: ignore[attr-defined]
            checkpoint_io.async_calls_queue.wait()
            self._end_written(trainer, largest_of_all_ranks(self.state_beside(trainer)))
        self._note_completed(wait=True)

    def _end_written(self, trainer: Trainer, state: int) -> None:
        """End a save that all ranks have written, if there is one; the arguments are the same on all."""
        if state == HAS_FAILED:
            trainer.strategy.unwrapped_checkpoint_io.digests_of_all_ranks()  # type: ignore[attr-defined]  # which raises
        if self._asynchronous:
            trainer.strategy.checkpoint_io.maybe_finalize_save_checkpoint(blocking=True)  # type: ignore[attr-defined]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave no save unfinished."""
        self._end_save_beside(trainer)
        if self._asynchronous:
            self._fence.check()  # rank 0 may have found that the newest checkpoint must not get its name, and no step follows
        trainer.strategy.barrier("checkpoint renamed")

    def _complete(self, trainer: Trainer, partial: Path, step: int, digests: Mapping[str, str], stopped_seconds: float) -> bool:
        """Write the manifest and give the checkpoint its name; False where another run has the directory, as all ranks learn behind a step.

        Args:
            digests: of the files of the ranks.
            stopped_seconds: for which the save has stopped the training.
        """
        samples = self._batches.samples(step)
        seconds = {"save_seconds": stopped_seconds, "write_seconds": time.monotonic() - self._begun}
        facts = {"step": step, "samples": samples, **self._facts_of_samples(trainer, samples), **seconds}
        make_group_readable(partial)
        write_manifest(
            partial,
            stage="recipes.train",
            facts={**self._facts, **facts},
            arguments=self._arguments,
            inputs=self._inputs,
            known_digests={**{f"weights/{name}": digest for name, digest in digests.items()}, **self._kept_digests},
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
