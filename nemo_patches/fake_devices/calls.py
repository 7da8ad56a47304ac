"""Calls that torch's C++ would answer by asking a real device, rewritten before it sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode

from nemo_patches.cpu_device import is_cuda
from nemo_patches.fake_devices import fusion, kernels
from nemo_patches.fake_devices.tensors import explicit_meta
from nemo_patches.fake_devices.world import on_gpu, simulated


class GpuCalls(TorchFunctionMode):
    """Rewrites calls that torch's C++ would answer by looking at a device, and those that choose a GPU's own kernels."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        answer = _ANSWERS.get(func)
        if answer is not None:
            return answer(*args, **kwargs)
        if (device := kwargs.get("device")) is not None:
            if _means_gpu(device):
                kwargs = {**kwargs, "device": simulated[-1].world.device}
            elif str(device) == "meta":
                return _with_explicit_meta(func, args, kwargs)
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        return func(*args, **kwargs)


def _means_gpu(device: Any) -> bool:
    return is_cuda(device) or isinstance(device, int)


def _with_explicit_meta(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    explicit_meta[0] = True
    try:
        return func(*args, **kwargs)
    finally:
        explicit_meta[0] = False


def _cuda(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return tensor if on_gpu(tensor) else torch._C.TensorBase.to(tensor, simulated[-1].world.device)


def _to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """As torch's, which compares the device with the one that C++ knows, and would copy what is already there."""
    device = kwargs.get("device", args[0] if args else None)
    if _means_gpu(device):
        here = None if on_gpu(tensor) else simulated[-1].world.device
        if "device" in kwargs:
            kwargs = {**kwargs, "device": here}
        else:
            args = (here, *args[1:])
    return torch._C.TensorBase.to(tensor, *args, **kwargs)


def _type(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    found = torch._C.TensorBase.type(tensor, *args, **kwargs)
    return f"torch.cuda.{found.rpartition('.')[2]}" if isinstance(found, str) and on_gpu(tensor) else found


def _tensor(data: Any, *args: Any, **kwargs: Any) -> Tensor:
    if _means_gpu(kwargs.get("device")):
        kwargs = {**kwargs, "device": simulated[-1].world.device}
    kwargs.pop("pin_memory", None)
    return _TENSOR(_plain(data), *args, **kwargs)


def _new_tensor(tensor: Tensor, data: Any, *, dtype: torch.dtype | None = None, device: Any = None, **kwargs: Any) -> Tensor:
    """C++ knows no number of "meta", and would take the first GPU."""
    return _tensor(data, dtype=dtype or tensor.dtype, device=device or tensor.device, **kwargs)


def _plain(data: Any) -> Any:
    """Scalars of a list are read one by one."""
    if isinstance(data, list | tuple):
        return type(data)(map(_plain, data))
    return data.item() if isinstance(data, FakeTensor) and data.dim() == 0 else data


def _same(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return tensor


def _copied(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    if not isinstance(tensor, FakeTensor):
        return torch.Tensor.__deepcopy__(tensor, memo)
    memo[id(tensor)] = copy = tensor.detach().clone()
    return copy


def _backward(tensors: Any, grad_tensors: Any = None, retain_graph: bool | None = None, create_graph: bool = False, **options: Any) -> None:
    """As torch's checkpoint, for recomputed layers: calls of their backward passes have to come through here too, which they would not from within."""
    assert options.get("inputs") is None and options.get("grad_variables") is None, (
        "nobody here asks for the gradients of some tensors alone"
    )
    results = (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)
    gradients = (grad_tensors,) if isinstance(grad_tensors, Tensor) else tuple(grad_tensors or [None] * len(results))
    made = torch.autograd._make_grads(results, gradients, is_grads_batched=False)
    keeps_graph = create_graph if retain_graph is None else retain_graph
    with GpuCalls():
        _engine_run_backward(results, made, keeps_graph, create_graph, (), allow_unreachable=True, accumulate_grad=True)


_TENSOR = torch.tensor
_ANSWERS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.cuda: _cuda,
    torch.Tensor.to: _to,
    torch.Tensor.type: _type,
    torch.Tensor.pin_memory: _same,
    torch.Tensor.is_pinned: lambda tensor, *args: False,
    torch.Tensor.record_stream: lambda tensor, stream: None,
    torch.Tensor.get_device: lambda tensor: tensor.device.index if tensor.is_cuda else -1,
    torch.Tensor.share_memory_: _same,
    _TENSOR: _tensor,
    torch.Tensor.new_tensor: _new_tensor,
    torch.rms_norm: kernels.rms_norm,
    F.rms_norm: kernels.rms_norm,
    F.scaled_dot_product_attention: kernels.attention,
    torch.dropout: kernels.dropout,
    F.dropout: kernels.dropout,
    torch.softmax: kernels.softmax,
    F.softmax: kernels.softmax,
    torch.Tensor.softmax: kernels.softmax,
    torch.Tensor.__deepcopy__: _copied,
    torch.Tensor.__setitem__: fusion.put,
    torch.autograd.backward: _backward,
}
