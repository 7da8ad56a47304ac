"""What the ranks of test_sequence_parallel.py and test_recomputation.py do: a step of a model, told in numbers that compare two ways to take it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
import xxhash
from megatron.core.distributed.finalize_model_grads import _allreduce_non_tensor_model_parallel_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker, model_parallel_cuda_manual_seed
from megatron.core.transformer.module import param_is_not_shared
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from conversion.measuring.engine_forward import set_layout
from nemo_patches.documents import documents_data_step
from nemo_patches.engine_model import causal_forward_step
from tests.nemo_patches.document_ranks import batch_of_documents, build


class Step:
    """Losses and gradients of one step of a model with given weights.

    Args:
        name: of what is built; "documents" do not see each other.
        settings: of Megatron's configuration.
    """

    def __init__(self, name: str, model: Mapping[str, Any], **settings: Any) -> None:
        self.masks = "documents" in name
        self.model = build(name, model, document_mask=self.masks, **settings)
        self.losses: list[Tensor] = []

    def take(self) -> None:
        """Two micro batches forward and backward, with the sums of gradients over tensor-parallel ranks that Megatron makes at the end."""
        batch = batch_of_documents()
        model_parallel_cuda_manual_seed(11, force_reset_rng=True)
        self.model.config.seq_length = batch["tokens"].shape[1]

        def forward(batches: Iterator[Any], model: Any) -> tuple[Tensor, Any]:
            taken = documents_data_step(batches) if self.masks else next(batches)
            return causal_forward_step(model, taken), lambda losses: self._sum(losses, batch["loss_mask"])

        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter([dict(batch), {**batch, "tokens": batch["tokens"].flip(0)}]),
            model=self.model,
            num_microbatches=2,
            seq_length=batch["tokens"].shape[1],
            micro_batch_size=len(batch["tokens"]),
            forward_only=False,
        )
        self.model.ddp_config = SimpleNamespace(use_megatron_fsdp=False)
        _allreduce_non_tensor_model_parallel_grads([self.model], self.model.config)

    def _sum(self, losses: Tensor, mask: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        self.losses.append(losses.detach().clone())
        return (losses * mask).mean(), {}

    def gradients(self) -> dict[str, Tensor]:
        """By name, of what has some."""
        return {name: parameter.grad for name, parameter in self.model.named_parameters() if parameter.grad is not None}

    def norm(self) -> float:
        """Of all gradients, as Megatron counts them for clipping: what tensor-parallel ranks have whole once."""
        counted = [
            p
            for p in self.model.parameters()
            if p.grad is not None and param_is_not_shared(p) and param_is_not_tensor_parallel_duplicate(p)
        ]
        total = torch.stack([parameter.grad.square().sum() for parameter in counted]).sum() if counted else torch.zeros(())
        torch.distributed.all_reduce(total)
        return float(total.sqrt())

    def random_state(self) -> Tensor:
        """Where the generators are after the step."""
        return torch.cat([torch.get_rng_state(), *get_cuda_rng_tracker().get_states().values()])


def differences(one: Step, other: Step) -> dict[str, float]:
    """Of losses and gradients, the latter by the largest of their tensor, and of the norms by themselves."""
    theirs, mine = one.gradients(), other.gradients()
    assert list(theirs) == list(mine)
    return {
        "losses": max([0.0, *(float((a - b).abs().max()) for a, b in zip(one.losses, other.losses, strict=True))]),
        "spread": float(one.losses[0].std()) if one.losses else 1.0,
        "gradients": max(float((mine[name] - g).abs().max() / g.abs().max().clamp(min=1e-3)) for name, g in theirs.items()),
        "number of gradients": len(theirs),
        "number of parameters that train": sum(parameter.requires_grad for parameter in one.model.parameters()),
        "norm": abs(one.norm() - other.norm()) / one.norm(),
    }


def with_and_without_sequence_parallelism(models: Mapping[str, Mapping[str, Any]], layouts: list[list[int]], **_: Any) -> dict[str, Any]:
    """`differences` by "name, layout".

    Args:
        models: configuration by the name of a `Step`.
        layouts: tensor and pipeline parallel sizes.
    """
    found: dict[str, Any] = {}
    for tensor, pipeline in layouts:
        set_layout(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
        for name, model in models.items():
            whole, cut = Step(name, model), Step(name, model, sequence_parallel=True)
            whole.take()
            cut.take()
            found[f"{name}, TP {tensor}, PP {pipeline}"] = differences(whole, cut)
    return found


RECOMPUTED = {
    "each layer": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    "two layers": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 2},
    "the first layer": {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1},
    "attention": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
    "feed-forward part": {"recompute_granularity": "selective", "recompute_modules": ["mlp"]},
    "all parts": {"recompute_granularity": "selective", "recompute_modules": ["core_attn", "mlp"]},
}


def with_and_without_recomputation(
    models: Mapping[str, Mapping[str, Any]], layouts: list[list[int]], ways: list[str], sequence_parallel: bool, **_: Any
) -> dict[str, Any]:
    """Whether losses, gradients and random states have the same bits, and how often layers were computed, by "name, way, layout".

    Args:
        models: configuration by the name of a `Step`.
        layouts: tensor and pipeline parallel sizes.
        ways: of `RECOMPUTED`.
    """
    found: dict[str, Any] = {}
    for tensor, pipeline in layouts:
        set_layout(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
        for name, model in models.items():
            kept = _Counted(name, model, sequence_parallel=sequence_parallel)
            kept.take()
            for way in ways:
                again = _Counted(name, model, sequence_parallel=sequence_parallel, **RECOMPUTED[way])
                again.take()
                theirs, mine = kept.gradients(), again.gradients()
                found[f"{name}, {way}, TP {tensor}, PP {pipeline}"] = {
                    "losses": all(torch.equal(a, b) for a, b in zip(kept.losses, again.losses, strict=True)),
                    "gradients": list(theirs) == list(mine) and all(torch.equal(theirs[key], mine[key]) for key in theirs),
                    "random state": torch.equal(kept.random_state(), again.random_state()),
                    "computed": again.computed,
                    "without": kept.computed,
                    "number of gradients": len(mine),
                    "number of parameters that train": sum(parameter.requires_grad for parameter in again.model.parameters()),
                }
    return found


class _Counted(Step):
    """A step that counts how often parts of the first layer are computed."""

    def __init__(self, name: str, model: Mapping[str, Any], **settings: Any) -> None:
        super().__init__(name, model, **settings)
        self.computed = {"attention": 0, "feed-forward part": 0}
        layer = self.model.decoder.layers[0]
        for kind, module in zip(self.computed, (layer.self_attention.core_attention, layer.mlp), strict=True):
            module.register_forward_hook(lambda module, inputs, output, kind=kind: self._count(kind))

    def _count(self, kind: str) -> None:
        self.computed[kind] += 1


class _Draws(TorchDispatchMode):
    """Notes where the generator was when something was drawn from it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = torch.get_rng_state()
        made = func(*args, **(kwargs or {}))
        if not torch.equal(before, torch.get_rng_state()) and torch.Tag.nondeterministic_seeded in func.tags:
            self.found.append(xxhash.xxh3_64_hexdigest(before.numpy().tobytes()))
        return made


def draws(models: Mapping[str, Mapping[str, Any]], tensor_parallel_size: int) -> dict[str, list[str]]:
    """States of the generator from which a rank drew in a forward pass with sequence parallelism."""
    found = {}
    for name, model in models.items():
        step = Step(name, model, sequence_parallel=True)
        batch = batch_of_documents()
        model_parallel_cuda_manual_seed(11, force_reset_rng=True)
        taken = documents_data_step(iter([batch])) if step.masks else batch
        with _Draws() as drawn:
            causal_forward_step(step.model, taken)
        found[name] = drawn.found
    return found
