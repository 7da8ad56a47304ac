"""Frozen parameters under Megatron's optimizers, bit for bit, with the distributed optimizer and overlapped communication.

What is frozen for the whole run never enters: it asks for no gradient when Megatron lays out its buffers, and so has
neither gradient nor optimizer state.

What is trained from a later step on has its place in buffers and optimizer from the start, because Megatron lays them
out once: its buckets wait for every gradient in them, and checkpoints would change shape.  While it is frozen, its
gradient is set to zero after the reduction, so that the norm for clipping is that of the others, and it is taken away
before Adam's step, which then passes the parameter over: no weight decay, no momentum.  Both are a function of the step
alone, so a resumed run needs nothing else.  Adam's step count continues, as Megatron has one for all parameters (so
has Apex): the first updates after the release are those of an Adam whose bias correction has passed, and smaller.

Token table and output layer may have a learning rate and a weight decay of their own.  Megatron knows such groups (its decoupled learning
rate), but marks neither the factors of a table nor a second head.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from nemo.lightning.pytorch.optim import MegatronOptimizerModule
from torch import Tensor, nn

from nemo_patches.torch_adam import begin_adam, fuse
from recipes.rules.freezing import NEVER, table_names
from recipes.training.nonfinite import NonFiniteSteps

# Names that modules have without TransformerEngine, and those of the checkpoint, where all experts of a layer are one tensor.
_NAMES_IN_CHECKPOINT = {
    r"\.input_layernorm\.": ".self_attention.linear_qkv.layer_norm_",
    r"\.local_experts\.\d+\.": ".experts.",
}
_WITHOUT_EXPERTS = {r"\.pre_mlp_layernorm\.": ".mlp.linear_fc1.layer_norm_"}


def parameters_by_name(model: Any) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of one rank's model or pipeline stage with the names of the checkpoint, layers counted over the whole model."""
    while hasattr(model, "module"):
        model = model.module
    layers = {f"decoder.layers.{i}.": f"decoder.layers.{layer.layer_number - 1}." for i, layer in enumerate(model.decoder.layers)}
    names_in_checkpoint = _NAMES_IN_CHECKPOINT | (_WITHOUT_EXPERTS if model.config.num_moe_experts is None else {})
    for name, parameter in model.named_parameters():
        for local, whole in layers.items():
            if name.startswith(local):
                name = whole + name.removeprefix(local)
                break
        for local, saved in names_in_checkpoint.items():
            name = re.sub(local, saved, name)
        if name == "output_layer.weight" and model.share_embeddings_and_output_weights:
            name = "embedding.word_embeddings.weight"  # the copy that the last pipeline stage has of a shared table
        yield name, parameter


def freeze_for_the_whole_run(model: nn.Module, first_trained: Mapping[str, float]) -> None:
    """Have parameters that no step changes ask for no gradient; to be called before Megatron lays out its buffers.

    Args:
        first_trained: see `recipes.rules.freezing.first_trained_steps`.
    """
    for name, parameter in parameters_by_name(model):
        if first_trained[name] == NEVER:
            parameter.requires_grad_(False)


class _Gate(NamedTuple):
    """A parameter that is frozen at first."""

    first_trained: float
    parameter: nn.Parameter
    updated: Tensor | None  # what Adam updates: the parameter, or this rank's part of it in 32 bit; None on other ranks


class FreezingOptimizer(MegatronOptimizerModule):
    """Megatron's optimizer, which leaves every parameter as it is until its first step comes, and all in steps that are skipped."""

    def __init__(self, first_trained: Mapping[str, float], nonfinite: NonFiniteSteps, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._first_trained, self._nonfinite, self._gates, self._step = first_trained, nonfinite, list[_Gate](), 0

    def optimizers(self, model: Any) -> list[torch.optim.Optimizer]:
        """See NeMo's class."""
        (optimizer,) = super().optimizers(model)
        for part in optimizer.mcore_optimizer.chained_optimizers:
            gates = list(self._gates_of(part, model))
            if part.optimizer is not None:
                fuse(part.optimizer)
                part.optimizer.register_step_pre_hook(partial(self._pass_over, part, gates))
            self._gates += gates
        return [optimizer]

    def _gates_of(self, optimizer: MegatronOptimizer, chunks: Iterable[nn.Module]) -> Iterator[_Gate]:
        for chunk in chunks:
            for name, parameter in parameters_by_name(chunk):
                if 0 < self._first_trained[name] < NEVER:
                    yield _Gate(self._first_trained[name], parameter, _updated(optimizer, parameter))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Note the step, and log the learning rate."""
        self._step = trainer.global_step
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)

    def finalize_model_grads(self, *args: Any, **kwargs: Any) -> None:
        """Reduce the gradients over all ranks, look whether they are finite, and forget those of frozen parameters."""
        super().finalize_model_grads(*args, **kwargs)
        self._nonfinite.check_step(args[0])
        for gate in self._frozen(self._gates):
            gate.parameter.main_grad.zero_()  # type: ignore[attr-defined]

    def _pass_over(self, part: MegatronOptimizer, gates: Iterable[_Gate], optimizer: torch.optim.Optimizer, *arguments: Any) -> None:
        """Have Adam skip what is frozen, and count the step nevertheless."""
        frozen = [gate.updated for gate in self._frozen(gates) if gate.updated is not None]
        if self._nonfinite.passes_over:
            frozen = part.get_parameters()
        if not frozen:
            return
        counts_by_parameter = isinstance(optimizer, torch.optim.Adam)  # TransformerEngine's and apex's count by group
        if counts_by_parameter:
            begin_adam(optimizer)
        else:
            part.init_state_fn(optimizer, part.config)
        for parameter in frozen:
            parameter.grad = None
            if counts_by_parameter:
                optimizer.state[parameter]["step"] += 1

    def _frozen(self, gates: Iterable[_Gate]) -> Iterator[_Gate]:
        return (gate for gate in gates if self._step < gate.first_trained)


def _updated(optimizer: MegatronOptimizer, parameter: nn.Parameter) -> Tensor | None:
    if not isinstance(optimizer, DistributedOptimizer):
        return getattr(parameter, "main_param", parameter)
    if parameter not in optimizer.model_param_group_index_map:
        return None
    group, order = optimizer.model_param_group_index_map[parameter]
    return optimizer.optimizer.param_groups[group]["params"][order]


_MARK = "is_embedding_or_output_parameter"


class TablesOptimizer(FreezingOptimizer):
    """Megatron's optimizer with the tables in groups of their own, where its `decoupled_lr` is set.

    Args:
        weight_decay_of_tables: in place of that of the others.
    """

    def __init__(self, *arguments: Any, weight_decay_of_tables: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._weight_decay = weight_decay_of_tables

    def optimizers(self, model: Any) -> list[torch.optim.Optimizer]:
        """See NeMo's class."""
        for chunk in model:
            parameters = dict(parameters_by_name(chunk))
            for name in table_names(parameters):
                setattr(parameters[name], _MARK, True)
        (optimizer,) = super().optimizers(model)
        for group in optimizer.param_groups:
            if is_of_tables(group):  # NeMo has put that of the others in
                group["weight_decay"] = self._weight_decay * group["pre_wd_mult"]
        return [optimizer]


def is_of_tables(group: Mapping[str, Any]) -> bool:
    """Whether a parameter group is that of tables with a rate of their own."""
    return bool(group.get("is_decoupled_lr"))
