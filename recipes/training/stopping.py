"""What the ranks agree on behind every step: whether to save, whether to end, and how far a save beside the training is."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from recipes.runs.stopping import EXIT_FILE, SAVE_FILE, StopSignals
from recipes.training.checkpoints import Checkpoints
from recipes.training.fencing import SharedFence


class Stopping(Callback):
    """Looks after every step, on all ranks together, whether to save or to end.

    A signal may reach some ranks alone, or between two steps of different ranks, and files appear at any time, so the
    ranks take the largest of what each has seen.  What a save needs to know of all ranks is asked in the same meeting: each further one
    waits for the slowest rank again.

    Attributes:
        reason: what ended the run before its last step; None if nothing did.
    """

    def __init__(self, run_dir: Path, checkpoints: Checkpoints, signals: StopSignals, fence: SharedFence) -> None:
        self._run_dir, self._checkpoints, self._signals, self._fence = run_dir, checkpoints, signals, fence
        self.reason: str | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen to the signals; Lightning takes SIGTERM, and under Slurm SIGUSR1, for its own way of starting again."""
        self._signals.listen()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save and end where that is due or asked for."""
        checkpoints = self._checkpoints
        regular = checkpoints.is_due_behind(trainer.global_step)  # which all ranks know
        files = [trainer.is_global_zero and (self._run_dir / name).exists() for name in (SAVE_FILE, EXIT_FILE)]
        due = trainer.is_global_zero and checkpoints.is_due()  # by one clock
        if trainer.is_global_zero and (regular or due or any(files)):
            self._fence.may_write()  # looks now, so that nothing is begun in a directory that is another's
        planned = checkpoints.planned(trainer) if regular else 0
        seen = [*files, due, self._signals.received, self._fence.is_lost(), planned, checkpoints.state_beside(trainer)]
        asked = torch.tensor(seen, dtype=torch.int32, device="cuda")
        torch.distributed.all_reduce(asked, op=torch.distributed.ReduceOp.MAX)
        save, leave, due, number, is_lost, planned, state_beside = asked.tolist()
        if is_lost:
            self._fence.end()
        checkpoints.go_on(trainer, state_beside)
        if not (regular or save or leave or due or number):
            return
        checkpoints.save(trainer, lease_is_seen=bool(regular or save or leave or due), again=planned == -1 if regular else None)
        if leave or number:
            trainer.should_stop = True
            self.reason = signal.Signals(number).name if number else f"the file {self._run_dir / EXIT_FILE}"
        if trainer.is_global_zero:  # after the save, so that a request survives a crash
            for name, found in ((SAVE_FILE, save), (EXIT_FILE, leave)):
                if found:
                    (self._run_dir / name).unlink(missing_ok=True)
