"""A run of experts that also tells what the loss of their balance weighs in each step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from megatron.core.distributed import param_and_grad_buffer
from megatron.core.transformer.moe import router

from recipes.training.engine import TrainedModel
from tests.recipes import training_ranks


def train(output: str, **options: Any) -> dict[str, Any]:
    """As `training_ranks.train`, with two more.

    `balance_losses`: what is added to the mean loss of each micro batch, all layers together.
    `reduced`: how often gradients were sent.
    """
    added: list[float] = []
    counted: list[float] = []
    attach, data_step = router.MoEAuxLossAutoScaler.apply, TrainedModel.data_step

    def note(activation: Any, loss: Any) -> Any:
        added[-1] += float(loss) / counted[-1]
        return attach(activation, loss)

    def count(model: TrainedModel, batches: Any) -> dict[str, Any]:
        found: dict[str, Any] = data_step(model, batches)
        counted.append(float(found["loss_mask"].sum()))
        added.append(0.0)
        return found

    reduced: list[Any] = []
    reduce = param_and_grad_buffer.dist_reduce_scatter_func
    param_and_grad_buffer.dist_reduce_scatter_func = lambda *tensors, **options: (reduced.append(None), reduce(*tensors, **options))[1]
    router.MoEAuxLossAutoScaler = SimpleNamespace(apply=note)
    TrainedModel.data_step = count  # type: ignore[method-assign]  # this process is a fork, and ends with the run
    return {**training_ranks.train(output, **options), "balance_losses": added, "reduced": len(reduced)}
