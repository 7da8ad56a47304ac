"""For how long a save stops a training: this project's, its asynchronous one, NeMo's own callback, and how long writing the same bytes takes.

An OPT of 42 million parameters (16 bytes each with Adam's state) is trained on several processes, which save three times before the end.  What counts is the time between steps
from a save to the next one, less what as many steps have between them without a save: also what ends a save that is written beside later steps.  The limit is
what as many processes take to write the files of the checkpoint, which they have in memory, and to sync them.  `benchmarks.all` asks for it; a rank is

    python -m benchmarks.saving {ours,beside,nemo} INPUTS OUTPUT RANKS
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.commands import ROOT
from common.command import python_path

SHAPE = ("--num-layers", 12, "--hidden-size", 512, "--num-attention-heads", 8, "--ffn-size", 2048, "--max-positions", 128)
STEPS, EVERY = 40, 10  # the last save is not timed: it is also the end of the run
_PIECE_BYTES = 8 << 20
_TIMEOUT_SECONDS = 600


def stopped_seconds(contender: str, base: Path, output: Path, ranks: int) -> list[float]:
    """For each save but the last one, in which the training stood still for it, until the next one.

    Raises:
        ValueError: if the training fails, with its last words.
    """
    arguments = ["-m", "benchmarks.saving", contender, str(base), str(output), str(ranks)]
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(ROOT)}
    output.mkdir()
    done = subprocess.run(words, cwd=output, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    if done.returncode:
        raise ValueError(f"the training with {contender} ended with exit code {done.returncode}: {done.stderr[-3000:]}")
    begun, ended = json.loads((output / "seconds.json").read_text())
    gaps = [begin - end for begin, end in zip(begun[1:], ended, strict=False)]  # that behind each step but the last
    # Before the first save. Where ranks share a core some gaps are many times others, saves or not, so that ten medians are less than ten gaps.
    usual = fmean(gaps[1 : EVERY - 1])
    return [sum(gaps[first - 1 : first + EVERY - 1]) - EVERY * usual for first in range(EVERY, len(begun) - EVERY + 1, EVERY)]


def writing_seconds(weights: Path, target: Path, processes: int, *, direct: bool) -> float:
    """Seconds in which the processes write files that they have in memory, a part each, and sync them."""
    contents = [
        _in_pages(path.read_bytes()) for path in sorted(weights.rglob("*"), key=lambda path: -path.stat().st_size) if path.is_file()
    ]
    target.mkdir()
    context = multiprocessing.get_context("fork")
    start = time.monotonic()
    writers = [context.Process(target=_write, args=(contents[first::processes], target / str(first), direct)) for first in range(processes)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    if any(writer.exitcode for writer in writers):
        raise ValueError("a process that writes the bytes has failed")
    return time.monotonic() - start


def _in_pages(content: bytes) -> tuple[mmap.mmap, int]:
    """The content at the beginning of a page and up to the end of one, as direct writes want it; and its size."""
    pages = mmap.mmap(-1, max(1, -(-len(content) // mmap.PAGESIZE)) * mmap.PAGESIZE)
    pages[: len(content)] = content
    return pages, len(content)


def _write(contents: Sequence[tuple[mmap.mmap, int]], prefix: Path, direct: bool) -> None:
    for number, (pages, size) in enumerate(contents):
        file = os.open(prefix.with_suffix(f".{number}"), os.O_WRONLY | os.O_CREAT | (os.O_DIRECT if direct else 0))
        for start in range(0, len(pages), _PIECE_BYTES):
            os.write(file, memoryview(pages)[start : start + _PIECE_BYTES])
        os.ftruncate(file, size)
        os.fsync(file)
        os.close(file)


def _overrides(inputs: Path, *, ranks: int, contender: str) -> list[str]:
    """What makes the demo's recipe the benchmark's: a step of some tenths of a second, so that a save beside the training has its time."""
    return [
        f"model.checkpoint={inputs / 'nemo'}",
        f"data.train=[{inputs / 'data'}]",
        "data.sequence_length=128",
        f"parallel.devices_per_node={ranks}",
        f"parallel.tensor_parallel_size={min(ranks, 2)}",
        "schedule.micro_batch_size=2",
        f"schedule.global_batch_size={2 * ranks}",
        f"schedule.max_steps={STEPS}",
        f"run.checkpoint_every_steps={EVERY}",
        f"run.asynchronous_save={str(contender == 'beside').lower()}",
        # What is logged gathers the parameters once more, in a step that saves too: that time is not a save's.
        f"run.log_every_steps={STEPS}",
    ]


def main(contender: str, inputs: Path, output: Path, ranks: int) -> None:
    """One rank of a training with one of the ways to save; rank 0 writes when each step began and ended for all of them."""
    from recipes.rules.compose import compose_recipe
    from recipes.rules.inputs import read_inputs
    from recipes.runs.launch import leased
    from recipes.runs.stopping import StopSignals
    from recipes.runs.watchdog import watching
    from recipes.training.assembly import make_callbacks
    from recipes.training.engine import make_data, make_model, make_trainer

    rank = int(os.environ["RANK"])
    recipe = compose_recipe("demo_adapt", _overrides(inputs, ranks=ranks, contender=contender))
    found = read_inputs(recipe)
    from lightning.pytorch.callbacks import Callback
    from torch import distributed

    begun: list[float] = []
    ended: list[float] = []

    class Clock(Callback):
        """When steps begin and end, on the rank that is last."""

        def on_train_batch_start(self, *arguments: Any) -> None:
            distributed.barrier()
            begun.append(time.monotonic())

        def on_train_batch_end(self, *arguments: Any) -> None:
            distributed.barrier()
            ended.append(time.monotonic())

    run_dir = output / "run"
    with leased(run_dir) as fence, watching(recipe.run, rank=rank) as watchdog:
        callbacks = make_callbacks(recipe, found, run_dir=run_dir, signals=StopSignals(()), fence=fence, watchdog=watchdog)
        trainer: Any = make_trainer(recipe, found, callbacks, run_dir=run_dir, start_from_weights=True)
        if contender == "nemo":
            _save_as_nemo_does(trainer, run_dir / "checkpoints")
        trainer.callbacks.insert(0, Clock())
        trainer.fit(make_model(recipe, found, callbacks.nonfinite), make_data(recipe, found, index_dir=run_dir / "index"))
    if rank == 0:
        (output / "seconds.json").write_text(json.dumps([begun, ended]))


def _save_as_nemo_does(trainer: Any, directory: Path) -> None:
    """NeMo's own callback, files and form of the optimizer's state in place of ours; no patch."""
    from nemo import lightning as nl
    from nemo.lightning.callback_group import CallbackGroup
    from nemo.lightning.pytorch.callbacks import ModelCheckpoint
    from nemo.utils.app_state import AppState

    from recipes.training.checkpoints import Checkpoints
    from recipes.training.engine import RecipeStrategy
    from recipes.training.stopping import Stopping

    AppState().log_dir = directory.parent  # as NeMo's logger does, which no run of ours has
    RecipeStrategy.sharded_state_dict_metadata = nl.MegatronStrategy.sharded_state_dict_metadata  # type: ignore[method-assign]
    RecipeStrategy.save_checkpoint = nl.MegatronStrategy.save_checkpoint  # type: ignore[method-assign]
    CallbackGroup.get_instance().callbacks.clear()  # telemetry, which asks for settings
    trainer.strategy._checkpoint_io = None
    callback = ModelCheckpoint(
        dirpath=str(directory),
        monitor=None,
        save_last=False,
        save_top_k=-1,
        every_n_train_steps=EVERY,
        always_save_context=False,
        save_context_on_train_end=False,
        filename="{step}",
    )
    trainer.callbacks = [*(other for other in trainer.callbacks if not isinstance(other, Checkpoints | Stopping)), callback]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
