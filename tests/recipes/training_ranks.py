"""What the ranks of the training tests do: the real run of a recipe, watched from inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback

from recipes.checks import check_run, read_inputs
from recipes.compose import compose_recipe
from recipes.engine import make_data, make_model, make_trainer
from recipes.run_dir import newest_checkpoint, record_recipe
from recipes.training.freezing import parameters_by_name


class Watch(Callback):
    """Notes after which step each parameter had other bits than at the start, losses, gradient norms and Adam's first moments."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.gradient_norms: list[float] = []
        self.first_changed: dict[str, int] = {}
        self.gradients: dict[str, float] = {}
        self.moments: list[float] = []
        self.frozen_moments: list[float] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.parameters = dict(parameters_by_name(trainer.strategy.megatron_parallel[0]))
        self.before = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trainer.strategy.megatron_parallel.force_param_sync() if trainer.strategy.ddp_config.overlap_param_gather else None
        step = trainer.global_step - 1
        self.losses.append(float(trainer.callback_metrics["reduced_train_loss"]))
        self.gradient_norms.append(float(trainer.callback_metrics["grad_norm"]))
        for name, parameter in self.parameters.items():
            if name not in self.first_changed and not torch.equal(parameter, self.before[name]):
                self.first_changed[name] = step
        if step == 0:
            self.gradients = {name: float(p.main_grad.norm()) for name, p in self.parameters.items() if hasattr(p, "main_grad")}
        self.moments.append(_moments(trainer, trainer.optimizers[0]))


def _moments(trainer: Any, optimizer: Any) -> float:
    """Norm of Adam's first moments over all ranks that hold a part of them."""
    (inner,) = optimizer.mcore_optimizer.chained_optimizers
    total = sum((state["exp_avg"] ** 2).sum() for state in inner.optimizer.state.values())
    total = torch.as_tensor(total, dtype=torch.float32).reshape(1)
    torch.distributed.all_reduce(total)
    return float(total) ** 0.5


def train(output: str, overrides: list[str], tensor_parallel_size: int, recipe: str = "demo_adapt") -> dict[str, Any]:
    """Train or resume, and give back what was seen."""
    run_dir = Path(output)
    made = compose_recipe(recipe, [*overrides, f"parallel.tensor_parallel_size={tensor_parallel_size}"])
    inputs = read_inputs(made)
    check_run(made, inputs)
    newest = newest_checkpoint(run_dir)
    record_recipe(run_dir, made)
    trainer = make_trainer(made, inputs, run_dir=run_dir, start_from_weights=newest is None)
    watch = Watch()
    trainer.callbacks.insert(0, watch)
    data = make_data(made, inputs, index_dir=run_dir / "index")
    trainer.fit(make_model(made, inputs), data, ckpt_path=str(newest[1] / "weights") if newest else None)
    return {
        "losses": watch.losses,
        "gradient_norms": watch.gradient_norms,
        "first_changed": watch.first_changed,
        "gradients": watch.gradients,
        "moments": watch.moments,
        "parameters": list(watch.parameters),
    }
