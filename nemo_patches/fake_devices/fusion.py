"""torch.compile as almost perfect fusion: what a compiled function keeps, what stays in registers, and where it needs a copy."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from nemo_patches.fake_devices.world import on_gpu, simulated

_in_fusion = (
    threading.local()
)  # depth of compiled functions, whose intermediate results stay in registers; copies that they need all the same


def one_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that a GPU computes in one kernel, whose intermediate results a rehearsal does not count; elsewhere it is as it is."""
    fused: Callable[..., Any] = compile_by_fusion(None)(function)
    return fused


class _Fused(torch.autograd.Function):
    """A compiled function: it keeps masks and the inputs that its gradient needs; what lies between is recomputed in registers."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], *inputs: Any) -> Any:
        places = [place for place, value in enumerate(inputs) if isinstance(value, Tensor)]
        inner = [value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value for value in inputs]
        saved: list[Tensor] = []
        # The hook gives nothing back, so that the graph, which nobody walks, does not hold itself.
        note = torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor.detach()), lambda nothing: nothing)
        with _fusing(), torch.enable_grad(), note:
            result = run(*inner)
        needed = {tensor.untyped_storage()._cdata for tensor in saved}
        of_inputs = {inputs[place].untyped_storage()._cdata for place in places}
        between = [tensor for tensor in saved if tensor.untyped_storage()._cdata not in of_inputs]
        if any(tensor.dtype is not torch.bool for tensor in between):  # recomputation needs all inputs
            needed = of_inputs
        masks = _noted(tuple(tensor for tensor in between if tensor.dtype is torch.bool))
        kept = [inputs[place].untyped_storage()._cdata in needed for place in places]
        ctx.run, ctx.places, ctx.kept = run, places, kept
        ctx.others = [None if isinstance(value, Tensor) else value for value in inputs]
        ctx.shapes = [(inputs[place].shape, inputs[place].dtype, inputs[place].device) for place in places]
        ctx.save_for_backward(*(inputs[place] if keep else None for place, keep in zip(places, kept, strict=True)), *masks)
        detached = tuple(out.detach() if isinstance(out, Tensor) else out for out in (result if isinstance(result, tuple) else (result,)))
        return _noted(detached if isinstance(result, tuple) else detached[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Of the inputs, each in the shape of its own, None for what is not a tensor; gradients are as the outputs."""
        inputs, expected = list(ctx.others), []
        for place, tensor, (shape, dtype, device) in zip(ctx.places, ctx.saved_tensors[: len(ctx.places)], ctx.shapes, strict=True):
            with _fusing():
                like = torch.empty(shape, dtype=dtype, device=device) if tensor is None else tensor.detach()
            inputs[place] = like.requires_grad_(ctx.needs_input_grad[place + 1])
            if ctx.needs_input_grad[place + 1]:
                expected.append(place)
        with _fusing(), torch.enable_grad():
            result = ctx.run(*inputs)
            outputs = [out for out in (result if isinstance(result, tuple) else (result,)) if isinstance(out, Tensor)]
            found = torch.autograd.grad(outputs, [inputs[place] for place in expected], gradients, allow_unused=True)
        every: list[Tensor | None] = [None] * len(inputs)
        for place, gradient in zip(expected, found, strict=True):
            every[place] = _noted(gradient)
        return (None, *every)


def fusion_depth() -> int:
    """In how many compiled functions this thread is."""
    return int(getattr(_in_fusion, "depth", 0))


def put(tensor: Tensor, places: Any, value: Any) -> None:
    """`tensor[places] = value`, of any shape: what a compiled function writes where tensors say is written in a copy of the whole, which is there until its results are.

    An H200 was seen to need it for the gradient of Megatron's fused loss: one more 32-bit copy of the logits (docs/planner.md).
    """
    if (
        fusion_depth()
        and on_gpu(tensor)
        and any(isinstance(place, Tensor) for place in (places if isinstance(places, tuple) else (places,)))
    ):
        copy = tensor.detach().clone()
        simulated[-1].observer.allocated(copy, "copy in a compiled function")
        _copies().append(copy)
    torch._C.TensorBase.__setitem__(tensor, places, value)


def _copies() -> list[Tensor]:
    if not hasattr(_in_fusion, "copies"):
        _in_fusion.copies = []
    copies: list[Tensor] = _in_fusion.copies
    return copies


@contextlib.contextmanager
def _fusing() -> Iterator[None]:
    _in_fusion.depth = fusion_depth() + 1
    try:
        yield
    finally:
        _in_fusion.depth -= 1


def _noted(result: Any) -> Any:
    if not fusion_depth():
        for tensor in result if isinstance(result, tuple) else (result,):
            if on_gpu(tensor):
                simulated[-1].observer.allocated(tensor, "compiled function")
        _copies().clear()
    return result


def compile_by_fusion(original: Callable[..., Any] | None) -> Callable[..., Any]:
    """torch.compile as fusion."""

    def compile(function: Any = None, *args: Any, **kwargs: Any) -> Any:
        if function is None:
            return lambda later: compile(later, *args, **kwargs)

        @functools.wraps(function)
        def run(*inputs: Any, **options: Any) -> Any:
            values, structure = tree_flatten((inputs, options))
            if not any(map(on_gpu, values)) or fusion_depth():
                return function(*inputs, **options)

            def of_values(*flat: Any) -> Any:
                arguments, named = tree_unflatten(flat, structure)
                return function(*arguments, **named)

            if torch.is_grad_enabled() and any(isinstance(value, Tensor) and value.requires_grad for value in values):
                return _Fused.apply(of_values, *values)
            with _fusing():
                result = function(*inputs, **options)
            return _noted(result)

        return run

    return compile
