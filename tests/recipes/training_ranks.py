"""What the ranks of the training tests do: the real run of a recipe, watched from inside."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch.distributed.checkpoint.api import CheckpointException
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from common.lease import LeaseLostError, take_lease, this_process
from recipes.rules.checks import check_run
from recipes.rules.compose import compose_recipe
from recipes.rules.inputs import read_inputs
from recipes.runs.launch import leased
from recipes.runs.run_dir import CHECKPOINTS_NAME, METRICS_NAME, checkpoint_name, newest_checkpoint, record_recipe
from recipes.runs.stopping import StopSignals
from recipes.runs.watchdog import watching
from recipes.train import main
from recipes.training.assembly import make_callbacks
from recipes.training.engine import make_data, make_model, make_trainer
from recipes.training.freezing import parameters_by_name
from recipes.training.loggers import finish
from recipes.training.nonfinite import NonFiniteError
from recipes.training.stopping import Stopping

_MEETINGS = (
    "all_reduce",
    "barrier",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "gather_object",
    "broadcast",
    "scatter_object_list",
)


class Watch(Callback):
    """Notes after which step each parameter had other bits than at the start, losses, gradient norms and Adam's first moments."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.gradient_norms: list[float] = []
        self.first_changed: dict[str, int] = {}
        self.gradients: dict[str, float] = {}
        self.moments: list[float] = []
        self.frozen_moments: list[float] = []
        self.planned_saves: list[Any] = []
        self.gathers = True  # parameters behind a step, before a save there

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.parameters = dict(parameters_by_name(trainer.strategy.megatron_parallel[0]))
        self.before = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        copies = trainer.strategy.unwrapped_checkpoint_io.copies
        start = copies.start
        copies.start = lambda copy: start(
            lambda: (time.sleep(0.5), copy())
        )  # the next update is there before the copy of an asynchronous save

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.gathers and trainer.strategy.ddp_config.overlap_param_gather:
            trainer.strategy.megatron_parallel.force_param_sync()
        step = trainer.global_step - 1
        self.losses.append(float(trainer.callback_metrics["reduced_train_loss"]))
        self.gradient_norms.append(float(trainer.callback_metrics["grad_norm"]))
        for name, parameter in self.parameters.items():
            if name not in self.first_changed and not torch.equal(parameter, self.before[name]):
                self.first_changed[name] = step
        if step == 0:
            self.gradients = {name: float(p.main_grad.norm()) for name, p in self.parameters.items() if hasattr(p, "main_grad")}
        self.moments.append(_moments(trainer, trainer.optimizers[0]))
        self.planned_saves.append(trainer.strategy.unwrapped_checkpoint_io.saved)


def _moments(trainer: Any, optimizer: Any) -> float:
    """Norm of Adam's first moments over all ranks that hold a part of them."""
    parts = optimizer.mcore_optimizer.chained_optimizers
    total = sum((state["exp_avg"] ** 2).sum() for part in parts for state in part.optimizer.state.values())
    total = torch.as_tensor(total, dtype=torch.float32).reshape(1)
    torch.distributed.all_reduce(total)
    return float(total) ** 0.5


class SignalAt(Callback):
    """A signal to one rank, in the middle of a step."""

    def __init__(self, step: int, rank: int) -> None:
        self._step, self._rank = step, rank

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._step and torch.distributed.get_rank() == self._rank:
            os.kill(os.getpid(), signal.SIGUSR1)


class FileAt(Callback):
    """Files in the run's directory, each in the middle of a step: step, path, step, path ..."""

    def __init__(self, *steps_and_paths: int | str) -> None:
        self._paths = dict(zip(steps_and_paths[::2], steps_and_paths[1::2], strict=True))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.is_global_zero and (path := self._paths.get(trainer.global_step)) is not None:
            Path(str(path)).touch()


class CrashAt(Callback):
    """Rank 0 dies at the beginning of a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._step and trainer.is_global_zero:
            os.kill(os.getpid(), signal.SIGKILL)


class Meetings(Callback):
    """Notes how ranks meet behind each step to agree on saves and to make them, and which saves were of parameters that are still to come.

    Args:
        step: before it the save before is written, on every rank.
    """

    def __init__(self, step: int) -> None:
        self._step = step
        self.found: dict[int, list[str]] = {}
        self.gathered_later: list[int] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        [watch] = (callback for callback in trainer.callbacks if isinstance(callback, Watch))
        watch.gathers = False
        [stopping] = (callback for callback in trainer.callbacks if isinstance(callback, Stopping))
        stopping.on_train_batch_end = partial(self._listening, stopping.on_train_batch_end)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._step:
            trainer.strategy.checkpoint_io.async_calls_queue.wait()

    def _listening(self, agree: Callable[..., None], trainer: Any, *arguments: Any) -> None:
        step, checkpoint_io, kept = trainer.global_step, trainer.strategy.unwrapped_checkpoint_io, dict[str, Any]()
        before, found = checkpoint_io.number, self.found.setdefault(step, [])

        def noting(name: str, meet: Callable[..., Any], *given: Any, **options: Any) -> Any:
            found.append(name)
            return meet(*given, **options)

        for name in _MEETINGS:
            kept[name] = getattr(torch.distributed, name)
            setattr(torch.distributed, name, partial(noting, name, kept[name]))
        try:
            agree(trainer, *arguments)
        finally:
            for name, meet in kept.items():
                setattr(torch.distributed, name, meet)
        if checkpoint_io.number > before and checkpoint_io.gathered_later:
            self.gathered_later.append(step)


class FailingAt(Callback):
    """From a step on the last rank cannot write."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._step and torch.distributed.get_rank() == torch.distributed.get_world_size() - 1:
            trainer.strategy.unwrapped_checkpoint_io.write = _write_nothing


def _write_nothing(directory: Path, file: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory / file.name))


class NonFiniteAt(Callback):
    """In some steps a gradient of the last rank is not finite, while all losses are."""

    def __init__(self, steps: list[int]) -> None:
        self._steps = steps

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if torch.distributed.get_rank() != torch.distributed.get_world_size() - 1:
            return

        def spoil(gradient: torch.Tensor) -> torch.Tensor:
            return gradient * float("nan") if trainer.global_step in self._steps else gradient

        dict(parameters_by_name(trainer.strategy.megatron_parallel[0]))["decoder.final_layernorm.bias"].register_hook(spoil)


class HangAt(Callback):
    """One rank does not come out of the middle of a step."""

    def __init__(self, step: int, rank: int) -> None:
        self._step, self._rank = step, rank

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._step and torch.distributed.get_rank() == self._rank:
            wait_for_ever()


def wait_for_ever() -> None:
    time.sleep(3600)


class TakenAt(Callback):
    """Somebody on another machine, who has not seen a renewal for long, takes the directory over in the middle of a step."""

    def __init__(self, step: int, run_dir: str) -> None:
        self._step, self._run_dir = step, Path(run_dir)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._step and trainer.is_global_zero:
            self._lease = take_lease(self._run_dir, replace(this_process("another"), boot_id="elsewhere"), patience_seconds=-1)


class Waits(Callback):
    """Notes during one step where the host asks for a number that the device has: there it would wait for a GPU."""

    def __init__(self, step: int) -> None:
        self._step, self.found = step, Counter[str]()
        self._modes: list[Any] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        while self._modes:
            self._modes.pop().__exit__(None, None, None)
        if trainer.global_step == self._step:
            self._modes = [_Scalars(self.found), _Lists(self.found)]
            for mode in self._modes:
                mode.__enter__()


def _note(found: Counter[str]) -> None:
    """Count the innermost function outside torch, unless these tests have asked."""
    frames = [
        frame for frame in traceback.extract_stack()[:-2] if "/torch/" not in frame.filename and not frame.name.startswith("__torch_")
    ]
    if not any(frame.filename == __file__ and frame.name == Watch.on_train_batch_end.__name__ for frame in frames):
        found[f"{Path(frames[-1].filename).name}:{frames[-1].name}"] += 1


class _Scalars(TorchDispatchMode):
    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            _note(self._found)
        return func(*args, **(kwargs or {}))


class _Lists(TorchFunctionMode):
    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.tolist:
            _note(self._found)
        return func(*args, **(kwargs or {}))


class Copies(Callback):
    """Notes how many numbers a rank makes when it lists what a checkpoint is to have of the optimizer, by those of the model."""

    def __init__(self, step: int) -> None:
        self._step, self.found = step, 0.0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._step:
            with _Made() as made:
                trainer.strategy.optimizer_sharded_state_dict()
            self.found = made.numbers / sum(parameter.numel() for parameter in trainer.model.parameters())


class _Made(TorchDispatchMode):
    """Counts the numbers of new tensors; a view is none."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {tensor.untyped_storage().data_ptr() for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and not tensor.is_meta and tensor.untyped_storage().data_ptr() not in given:
                self.numbers += tensor.numel()
        return result


class Plain(Callback):
    """Beside the engine's optimizer a plain AdamW with its own parameter groups, given the same gradients; for one replica, or without sharding.

    Args:
        tables: names of what has the rates and the weight decay of tables.
        rates: of each step, for the others and for the tables.
        weight_decays: of the two.
    """

    def __init__(self, tables: list[str], rates: list[tuple[float, float]], weight_decays: tuple[float, float]) -> None:
        self._tables, self._rates, self._weight_decays = tables, rates, weight_decays
        self.furthest: dict[str, float] = {}  # largest difference of a number of each parameter, over all steps

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        named = [pair for chunk in trainer.strategy.megatron_parallel for pair in parameters_by_name(chunk)]
        self._engine = {name: parameter for name, parameter in named if parameter.requires_grad}
        self._plain = {name: torch.nn.Parameter(parameter.detach().clone()) for name, parameter in self._engine.items()}
        groups = []
        for of_tables in (False, True):
            mine = {name: parameter for name, parameter in self._plain.items() if (name in self._tables) == of_tables}
            decayed = [parameter for parameter in mine.values() if parameter.dim() > 1]
            others = [parameter for parameter in mine.values() if parameter.dim() == 1]
            groups += [{"params": decayed, "weight_decay": self._weight_decays[of_tables]}, {"params": others, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        rates = self._rates[trainer.global_step - 1]
        for group, rate in zip(self._optimizer.param_groups, (rates[0], rates[0], rates[1], rates[1]), strict=True):
            group["lr"] = rate
        for name, parameter in self._plain.items():
            parameter.grad = self._engine[name].main_grad.clone()
        self._optimizer.step()
        for name, parameter in self._plain.items():
            difference = float((parameter.detach() - self._engine[name].detach()).abs().max())
            self.furthest[name] = max(self.furthest.get(name, 0.0), difference)


_AT_STEP = {
    "plain": Plain,
    "signal": SignalAt,
    "file": FileAt,
    "crash": CrashAt,
    "meetings": Meetings,
    "failing": FailingAt,
    "nonfinite": NonFiniteAt,
    "taken": TakenAt,
    "hang": HangAt,
    "waits": Waits,
    "copies": Copies,
}


def command(arguments: list[str], **_: Any) -> int:
    """Be one rank of `python -m recipes.train arguments`."""
    rank_zero_only.rank = int(os.environ["RANK"])  # Lightning has looked before the fork
    return main(arguments)


def killed_command(arguments: list[str], run_dir: str, step: int, **_: Any) -> int:
    """Be one rank of it, of which the first is killed once the checkpoint of a step is complete and a later step is over."""
    if os.environ["RANK"] == "0":
        threading.Thread(target=_kill_after, args=(Path(run_dir), step), daemon=True).start()
    return command(arguments)


def _kill_after(run_dir: Path, step: int) -> None:
    metrics, checkpoint = run_dir / METRICS_NAME, run_dir / CHECKPOINTS_NAME / checkpoint_name(step)
    while not (checkpoint.exists() and metrics.exists() and f'"step": {step + 1}' in metrics.read_text()):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def train(
    output: str, overrides: list[str], tensor_parallel_size: int, recipe: str = "demo_adapt", at_step: list[Any] | None = None
) -> dict[str, Any]:
    """Train or resume, and give back what was seen.

    Args:
        at_step: what happens in the middle of a step: the name of a callback above and its arguments.
    """
    rank_zero_only.rank = int(os.environ["RANK"])  # Lightning has looked before the fork
    run_dir = Path(output)
    made = compose_recipe(recipe, [*overrides, f"parallel.tensor_parallel_size={tensor_parallel_size}"])
    inputs = read_inputs(made)
    made = check_run(made, inputs)
    newest = newest_checkpoint(run_dir)
    record_recipe(run_dir, made)
    leases = ExitStack()
    fence = leases.enter_context(leased(run_dir))
    watchdog = leases.enter_context(watching(made.run, rank=int(os.environ["RANK"])))
    callbacks = make_callbacks(made, inputs, run_dir=run_dir, signals=StopSignals(made.run.stop_signals), fence=fence, watchdog=watchdog)
    trainer = make_trainer(made, inputs, callbacks, run_dir=run_dir, start_from_weights=newest is None)
    watch = Watch()
    trainer.callbacks.insert(0, watch)
    data = make_data(made, inputs, index_dir=run_dir / "index")
    happens = None if at_step is None else _AT_STEP[at_step[0]](*at_step[1:])
    if happens is not None:
        trainer.callbacks.insert(0, happens)
    try:
        trainer.fit(make_model(made, inputs, callbacks.nonfinite), data, ckpt_path=str(newest[1] / "weights") if newest else None)
    except (NonFiniteError, LeaseLostError, CheckpointException) as error:
        return {"error": str(error)}
    finally:
        finish(trainer.loggers)
        leases.close()
    return {
        "losses": watch.losses,
        "gradient_norms": watch.gradient_norms,
        "first_changed": watch.first_changed,
        "gradients": watch.gradients,
        "moments": watch.moments,
        "planned_saves": len({id(planned) for planned in watch.planned_saves if planned is not None}),
        "parameters": list(watch.parameters),
        "reason": callbacks.stopping.reason,
        "furthest": happens.furthest if isinstance(happens, Plain) else {},
        "copies": happens.found if isinstance(happens, Copies) else None,
        "meetings": happens.found if isinstance(happens, Meetings) else {},
        "gathered_later": happens.gathered_later if isinstance(happens, Meetings) else [],
        "waits": dict(happens.found) if isinstance(happens, Waits) else {},
    }
