"""GPUs that are not there, presented to NeMo: tensors with shape, dtype, device and storage but no values, in a world of any size.

Every branch that `torch.cuda.is_available()` opens is taken, with the CPU build of torch, by one process that plays one rank:

- `FakeGpu`, a FakeTensorMode, gives the tensors and tells an `Observer` what is allocated, what a rank sends, and where the host waits;
- `_GpuCalls`, a torch function mode, rewrites what torch's C++ would ask a real device for, and answers as the kernels of a GPU would;
- torch's process group "fake" gives the other ranks, which say nothing;
- `PATCHES` replaces the functions of `torch.cuda`, and of libraries that read values.

Inside torch's C++ a tensor of ours says that it is on "meta", a device that every build has; in Python it says "cuda".  So neither a
GPU nor a compiler is needed, and the backward pass runs in the thread that asked for it.

Use, before anything of NeMo is imported:

    present_fake_gpus()
    with played_rank(World(rank=0, size=64, devices_per_node=4, gpu=FakeGpuKind("NVIDIA A100-SXM4-40GB", 40 << 30, (8, 0))), observer):
        ...  # build, train, save: all tensors are fake

Values mean nothing: `item()` of a floating-point tensor is 1, of any other 0 or False.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import torch
import torch.distributed as distributed
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch._C._distributed_c10d import FakeWork, ProcessGroup
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from nemo_patches.core import Patch, apply
from nemo_patches.cpu_device import NoEvent, NoStream, being, is_cuda, returning

_META = torch.device("meta")
_PORT = "29999"  # nothing listens there


@dataclass(frozen=True)
class FakeGpuKind:
    """What `torch.cuda.get_device_properties` says of each GPU."""

    name: str
    total_memory: int  # bytes
    capability: tuple[int, int]


@dataclass(frozen=True)
class World:
    """The ranks of a run, of which this process plays one."""

    rank: int
    size: int
    devices_per_node: int
    gpu: FakeGpuKind

    @property
    def device(self) -> torch.device:
        """The GPU of the rank in its node."""
        return torch.device("cuda", self.rank % self.devices_per_node)


class Observer(Protocol):
    """Who is told what happens on the fake GPU."""

    peak: int  # most bytes that were allocated at any time
    now: int  # bytes that are allocated

    def allocated(self, tensor: Tensor, operation: str) -> None:
        """An operation has given a tensor; its storage may be new or known."""

    def held_on_host(self, tensor: Tensor) -> None:
        """An operation has given a tensor on the host."""

    def waited(self, what: str) -> None:
        """The host waits for the GPU."""

    def sent(self, kind: str, num_bytes: int, group: ProcessGroup, *, is_asynchronous: bool) -> None:
        """A collective operation, with the bytes of the larger of its input and output on this rank."""

    def attended(self, kernel: str) -> None:
        """The kernel that a GPU would choose for an attention."""


@dataclass
class _Played:
    """What the patches read: the rank that is played now."""

    world: World
    observer: Observer


class _Nobody:
    """The observer outside of a rehearsal, for what libraries ask when they are imported."""

    peak = now = 0

    def allocated(self, tensor: Tensor, operation: str) -> None:
        pass

    def held_on_host(self, tensor: Tensor) -> None:
        pass

    def waited(self, what: str) -> None:
        pass

    def sent(self, kind: str, num_bytes: int, group: ProcessGroup, *, is_asynchronous: bool) -> None:
        pass

    def attended(self, kernel: str) -> None:
        pass


_A100 = FakeGpuKind("NVIDIA A100-SXM4-40GB", 42_297_786_368, (8, 0))
_played = [_Played(World(rank=0, size=1, devices_per_node=1, gpu=_A100), _Nobody())]
_in_fusion = threading.local()  # depth of compiled functions, whose intermediate results stay in registers
_explicit_meta = [False]


def present_fake_gpus() -> None:
    """Apply the patches, for the life of the process; to be called before NeMo, Megatron-core or Lightning is imported.

    Raises:
        PatchError: if the installed libraries are not those that the patches know.
    """
    apply(PATCHES)
    torch.cuda.default_generators = (_GENERATOR,) * 64  # type: ignore[assignment]
    FakeTensor.is_cuda = property(lambda self: self.fake_device.type == "cuda")  # type: ignore[assignment,method-assign]


@contextlib.contextmanager
def played_rank(world: World, observer: Observer) -> Iterator[None]:
    """Be a rank of a fake world; every tensor that is made within is fake.

    The environment says what a launcher would say, and is put back at the end; process groups are forgotten.
    """
    node, local = divmod(world.rank, world.devices_per_node)
    environment = {
        "RANK": world.rank,
        "WORLD_SIZE": world.size,
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": world.devices_per_node,
        "GROUP_RANK": node,
        "NODE_RANK": node,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": _PORT,
        "TORCHELASTIC_RUN_ID": "rehearsal",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update({name: str(value) for name, value in environment.items()})
    _played.append(_Played(world, observer))
    try:
        with _GpuCalls(), FakeGpu(observer, world.device):
            yield
    finally:
        _played.pop()
        if distributed.is_initialized():
            from megatron.core import num_microbatches_calculator, parallel_state

            parallel_state.destroy_model_parallel()
            num_microbatches_calculator.unset_num_microbatches_calculator()
            distributed.destroy_process_group()
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


class FakeGpu(FakeTensorMode):
    """Makes tensors without values on a GPU that is not there, and tells an observer of them."""

    def __init__(self, observer: Observer, device: torch.device) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._observer, self._device, self._depth = observer, device, 0

    @property
    def avoid_device_init(self) -> bool:  # type: ignore[override]
        """Whether torch must not look for a real GPU: always."""
        return True

    @avoid_device_init.setter
    def avoid_device_init(self, value: bool) -> None:
        """Torch sets what it has found out."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:  # torch's C++ asks; Python does not come by here
            return _META
        if (device := kwargs.get("device")) is not None and device.type == "meta" and not _explicit_meta[0]:
            kwargs = {**kwargs, "device": self._device}
        if self._depth:  # a decomposition, which a GPU does in one kernel
            return super().__torch_dispatch__(func, types, args, kwargs)
        if func.namespace == "c10d" and (known := _COLLECTIVES.get(func._opname)) is not None:
            known.tell(self._observer, func, args)
            if known.is_coalesced:
                return FakeWork().boxed()
        elif func in _READS and _on_gpu(args[0]):
            self._observer.waited(func._opname)
        elif func in _COPIES and _copies_to_host(func, args, kwargs):
            self._observer.waited("copy to the host")
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return _value(args[0].dtype)
        if func is torch.ops.aten.nonzero.default and isinstance(args[0], FakeTensor):
            return args[0].new_zeros((args[0].numel(), args[0].dim()), dtype=torch.int64)
        self._depth += 1
        try:
            result = super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self._depth -= 1
        if not _fusion_depth():
            self._tell(result, func)
        return result

    def _tell(self, result: Any, func: Any) -> None:
        for tensor in result if isinstance(result, list | tuple) else (result,):
            if isinstance(tensor, list | tuple):
                self._tell(tensor, func)
            elif _on_gpu(tensor):
                self._observer.allocated(tensor, func._opname)
            elif isinstance(tensor, FakeTensor) and tensor.fake_device.type == "cpu":
                self._observer.held_on_host(tensor)


def _on_gpu(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.fake_device.type == "cuda"


def _value(dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point:
        return 1.0
    return False if dtype is torch.bool else 0


_aten = torch.ops.aten
_READS = {_aten._local_scalar_dense.default, _aten.nonzero.default, _aten.equal.default}  # that bring values to the host
_COPIES = {_aten._to_copy.default, _aten.copy_.default}


def _copies_to_host(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a copy goes from the GPU to the host, and the host waits for it."""
    if func is _aten.copy_.default:
        non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        return _on_gpu(args[1]) and not _on_gpu(args[0]) and not non_blocking
    device = kwargs.get("device")
    return _on_gpu(args[0]) and device is not None and device.type == "cpu" and not kwargs.get("non_blocking", False)


# -- collectives ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Collective:
    """Where the arguments of one of torch's operations are.

    Attributes:
        tensors: places of its inputs and outputs, of which the larger side counts.
    """

    kind: str
    tensors: tuple[int, ...]
    group: int
    is_coalesced: bool = False  # several in one, which the fake group does not know

    def tell(self, observer: Observer, func: Any, args: Any) -> None:
        sizes = [_bytes(args[place]) for place in self.tensors]
        observer.sent(self.kind, max(sizes), ProcessGroup.unbox(args[self.group]), is_asynchronous=_is_asynchronous(func, args))


def _is_asynchronous(func: Any, args: Any) -> bool:
    """Whether the computation goes on beside a collective; Megatron's pipeline waits at once for what it sends and receives."""
    names = [argument.name for argument in func._schema.arguments]
    if "async_op" not in names:
        return False
    place = names.index("async_op")
    return bool(args[place]) if place < len(args) else bool(func._schema.arguments[place].default_value)


def _bytes(tensors: Any) -> int:
    if isinstance(tensors, Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(map(_bytes, tensors)) if isinstance(tensors, list | tuple) else 0


_COLLECTIVES = {
    "allreduce_": _Collective("all-reduce", (0,), 1),
    "broadcast_": _Collective("broadcast", (0,), 1),
    "reduce_": _Collective("reduce", (0,), 1),
    "allgather_": _Collective("all-gather", (0, 1), 2),
    "_allgather_base_": _Collective("all-gather", (0, 1), 2),
    "reduce_scatter_": _Collective("reduce-scatter", (0, 1), 2),
    "_reduce_scatter_base_": _Collective("reduce-scatter", (0, 1), 2),
    "alltoall_base_": _Collective("all-to-all", (0, 1), 2),
    "gather_": _Collective("gather", (0, 1), 2),
    "scatter_": _Collective("scatter", (0, 1), 2),
    "send": _Collective("send", (0,), 1),
    "recv_": _Collective("receive", (0,), 1),
    "allgather_into_tensor_coalesced_": _Collective("all-gather", (0, 1), 2, is_coalesced=True),
    "reduce_scatter_tensor_coalesced_": _Collective("reduce-scatter", (0, 1), 2, is_coalesced=True),
    "allreduce_coalesced_": _Collective("all-reduce", (0,), 1, is_coalesced=True),
}


def _fake_group(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        world = _played[-1].world
        original("fake", rank=world.rank, world_size=world.size, store=FakeStore())

    return init_process_group


def _new_group(original: Callable[..., Any]) -> Callable[..., Any]:
    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None, *args: Any, **kwargs: Any) -> Any:
        return original(ranks, backend="fake")

    return new_group


def _gathered(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Other ranks have the same to say; of what each has of its own, a mapping by name, they have nothing."""
    others = {} if isinstance(obj, dict) else obj
    object_list[:] = [others] * len(object_list)
    object_list[distributed.get_rank(group)] = obj


def _gather(obj: Any, object_gather_list: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * len(object_gather_list)


def _scatter(output: list[Any], inputs: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
    if inputs is not None:
        output[0] = inputs[0]


# -- what kernels of a GPU keep -------------------------------------------------------------------------------------------


class _GpuCalls(TorchFunctionMode):
    """Rewrites calls that torch's C++ would answer by looking at a device, and those that choose a GPU's own kernels."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        answer = _ANSWERS.get(func)
        if answer is not None:
            return answer(*args, **kwargs)
        if (device := kwargs.get("device")) is not None:
            if _means_gpu(device):
                kwargs = {**kwargs, "device": _played[-1].world.device}
            elif str(device) == "meta":
                return _with_explicit_meta(func, args, kwargs)
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        return func(*args, **kwargs)


def _means_gpu(device: Any) -> bool:
    return is_cuda(device) or isinstance(device, int)


def _with_explicit_meta(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    _explicit_meta[0] = True
    try:
        return func(*args, **kwargs)
    finally:
        _explicit_meta[0] = False


def _cuda(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return tensor if _on_gpu(tensor) else torch._C.TensorBase.to(tensor, _played[-1].world.device)


def _to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """As torch's, which compares the device with the one that C++ knows, and would copy what is already there."""
    device = kwargs.get("device", args[0] if args else None)
    if _means_gpu(device):
        here = None if _on_gpu(tensor) else _played[-1].world.device
        if "device" in kwargs:
            kwargs = {**kwargs, "device": here}
        else:
            args = (here, *args[1:])
    return torch._C.TensorBase.to(tensor, *args, **kwargs)


def _type(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    found = torch._C.TensorBase.type(tensor, *args, **kwargs)
    return f"torch.cuda.{found.rpartition('.')[2]}" if isinstance(found, str) and _on_gpu(tensor) else found


def _tensor(data: Any, *args: Any, **kwargs: Any) -> Tensor:
    if _means_gpu(kwargs.get("device")):
        kwargs = {**kwargs, "device": _played[-1].world.device}
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


class _RmsNorm(torch.autograd.Function):
    """A GPU's one kernel, which keeps its input as it came and a 32-bit number per row; what C++ takes for "meta" would be taken apart."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, num_dims: int) -> Tensor:
        rows = x.new_empty((*x.shape[: x.dim() - num_dims], *([1] * num_dims)), dtype=torch.float32)
        ctx.save_for_backward(x, weight, rows)
        return x.new_empty(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight, _ = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad[:2]
        return x.new_empty(x.shape) if of_x else None, weight.new_empty(weight.shape) if of_weight else None, None


def _rms_norm(x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """As torch 2.13 chooses on a GPU (`layer_norm.cpp`): one kernel, unless input and weight differ in their precision."""
    if not _on_gpu(x) or (weight is not None and weight.dtype is not x.dtype):
        return _RMS_NORM(x, shape, weight, eps)
    normed: Tensor = _RmsNorm.apply(x, weight, len(shape))
    return normed


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """A GPU keeps a byte per number."""
    if not _on_gpu(x) or not training or not p:
        return _DROPOUT(x, p, training)
    dropped: Tensor = torch.native_dropout(x, p, training)[0]
    return dropped


def _softmax(x: Tensor, dim: int, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    """A GPU makes 32-bit weights of 16-bit scores in one kernel."""
    if _on_gpu(x) and dtype is torch.float32 and x.dtype in (torch.bfloat16, torch.float16):
        weights: Tensor = _aten._softmax(x, dim, True)
        return weights
    return torch.softmax(x, dim, dtype=dtype)


def _copied(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    if not isinstance(tensor, FakeTensor):
        return torch.Tensor.__deepcopy__(tensor, memo)
    memo[id(tensor)] = copy = tensor.detach().clone()
    return copy


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The kernel that torch 2.13 chooses on an Ampere or later GPU (`sdp_utils.cpp`): flash, memory-efficient, or plain products."""
    if not _on_gpu(query):
        return _SDPA(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    observer = _played[-1].observer
    is_half, width = query.dtype in (torch.bfloat16, torch.float16), query.shape[-1]
    if attn_mask is None and is_half and width <= 256 and query.stride(-1) == key.stride(-1) == value.stride(-1) == 1:
        observer.attended("flash")
        return _aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    if not enable_gqa or query.shape[1] == key.shape[1]:
        observer.attended("memory-efficient")
        bias = None
        if attn_mask is not None:  # a mask of booleans becomes one of numbers
            bias = torch.zeros_like(attn_mask, dtype=query.dtype) if attn_mask.dtype is torch.bool else attn_mask
            bias = bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        needs_sums = query.requires_grad or key.requires_grad or value.requires_grad
        return _aten._scaled_dot_product_efficient_attention(query, key, value, bias, needs_sums, dropout_p, is_causal, scale=scale)[0]
    observer.attended("plain products, with all scores in memory")
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    return _aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale)[0]


_TENSOR, _RMS_NORM, _SDPA, _DROPOUT = torch.tensor, torch.rms_norm, F.scaled_dot_product_attention, torch.dropout
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
    _RMS_NORM: _rms_norm,
    F.rms_norm: _rms_norm,
    _SDPA: _attention,
    _DROPOUT: _dropout,
    F.dropout: _dropout,
    torch.softmax: _softmax,
    F.softmax: _softmax,
    torch.Tensor.softmax: _softmax,
    torch.Tensor.__deepcopy__: _copied,
}


class _Fused(torch.autograd.Function):
    """A compiled function: it keeps masks and the inputs that its gradient needs; what lies between is computed again in registers."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], *inputs: Any) -> Any:
        places = [place for place, value in enumerate(inputs) if isinstance(value, Tensor)]
        inner = [value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value for value in inputs]
        saved: list[Tensor] = []
        # The hook gives nothing back, so that the graph, which nobody walks, does not hold itself.
        note = torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor.detach()), _same)
        with _fusing(), torch.enable_grad(), note:
            result = run(*inner)
        needed = {tensor.untyped_storage()._cdata for tensor in saved}
        of_inputs = {inputs[place].untyped_storage()._cdata for place in places}
        between = [tensor for tensor in saved if tensor.untyped_storage()._cdata not in of_inputs]
        if any(tensor.dtype is not torch.bool for tensor in between):  # what is computed again needs all that it comes from
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
        inputs, wanted = list(ctx.others), []
        for place, tensor, (shape, dtype, device) in zip(ctx.places, ctx.saved_tensors[: len(ctx.places)], ctx.shapes, strict=True):
            with _fusing():
                like = torch.empty(shape, dtype=dtype, device=device) if tensor is None else tensor.detach()
            inputs[place] = like.requires_grad_(ctx.needs_input_grad[place + 1])
            if ctx.needs_input_grad[place + 1]:
                wanted.append(place)
        with _fusing(), torch.enable_grad():
            result = ctx.run(*inputs)
            outputs = [out for out in (result if isinstance(result, tuple) else (result,)) if isinstance(out, Tensor)]
            found = torch.autograd.grad(outputs, [inputs[place] for place in wanted], gradients, allow_unused=True)
        every: list[Tensor | None] = [None] * len(inputs)
        for place, gradient in zip(wanted, found, strict=True):
            every[place] = _noted(gradient)
        return (None, *every)


def _fusion_depth() -> int:
    return int(getattr(_in_fusion, "depth", 0))


@contextlib.contextmanager
def _fusing() -> Iterator[None]:
    _in_fusion.depth = _fusion_depth() + 1
    try:
        yield
    finally:
        _in_fusion.depth -= 1


def _noted(result: Any) -> Any:
    if not _fusion_depth():
        for tensor in result if isinstance(result, tuple) else (result,):
            if _on_gpu(tensor):
                _played[-1].observer.allocated(tensor, "compiled function")
    return result


def _compile(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile as perfect fusion."""

    def compile(function: Any = None, *args: Any, **kwargs: Any) -> Any:
        if function is None:
            return lambda later: compile(later, *args, **kwargs)

        @functools.wraps(function)
        def run(*inputs: Any, **options: Any) -> Any:
            values, structure = tree_flatten((inputs, options))
            if not any(map(_on_gpu, values)) or _fusion_depth():
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


# -- torch.cuda and the readers of values ---------------------------------------------------------------------------------

_STATE = torch.zeros(16, dtype=torch.uint8)
_GENERATOR: Any = SimpleNamespace(
    get_state=lambda: _STATE,
    set_state=lambda state: None,
    graphsafe_get_state=lambda: _GENERATOR,
    graphsafe_set_state=lambda state: None,
    clone_state=lambda: _GENERATOR,
    manual_seed=lambda seed: _GENERATOR,
)


def _properties(*args: Any) -> SimpleNamespace:
    gpu = _played[-1].world.gpu
    return SimpleNamespace(
        name=gpu.name,
        major=gpu.capability[0],
        minor=gpu.capability[1],
        total_memory=gpu.total_memory,
        multi_processor_count=108,
        gcnArchName="",
    )


class _Stream(NoStream):
    """A stream whose end the host can wait for."""

    device_index, stream_id, cuda_stream = 0, 0, 0

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def synchronize(self) -> None:
        """Wait."""
        _synchronize()

    def query(self) -> bool:
        """Whether all is done: always."""
        return True


class _Event(NoEvent):
    """An event that the host can wait for."""

    def synchronize(self) -> None:
        """Wait."""
        _synchronize()

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds."""
        return 1.0


def _synchronize(*args: Any) -> None:
    _played[-1].observer.waited("synchronize")


def _move_modules(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Module._apply` swaps the data of a parameter, which a fake tensor of another device does not allow by itself."""

    def _apply(self: Any, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        for parameter in self.parameters():
            if isinstance(parameter, FakeTensor):
                with torch.no_grad():
                    new = fn(parameter)
                if new is not parameter:
                    parameter.data = new
                    parameter.fake_device = new.device
        for module in self.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = fn(buffer)
        return self

    return _apply


def _at_the_start(original: Callable[..., Any]) -> Any:
    """NeMo makes a mesh of the ranks and does not use it; which place is this rank's stands in values."""
    return staticmethod(lambda mesh, rank: (0,) * mesh.dim())


def _no_pinning(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda data, device=None: data


def _replacing(target: str, digest: str, wrap: Callable[..., Any]) -> Patch:
    return Patch(
        target=target,
        wrap=wrap,
        package="torch",
        digests={"2.13.0": digest},
        reason="There is no GPU that could answer, and no other rank.",
        remove_when="torch has GPUs without values of its own.",
    )


_IN_CUDA: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("is_available", "4f9ccdcba8671cbf", returning(True)),
    ("is_initialized", "33097edf6bf20cef", returning(True)),
    ("init", "c95f2577755c954d", returning(None)),
    ("_lazy_init", "088d3a1be621a9e2", returning(None)),
    ("_lazy_call", "f4dc8a764aa4b06e", returning(None)),
    ("device_count", "6867ecd9cc812a9a", being(lambda: _played[-1].world.devices_per_node)),
    ("current_device", "95a918a72e339a13", being(lambda: _played[-1].world.device.index)),
    ("set_device", "d86e5559624ca993", returning(None)),
    ("device", "2951cf5fa401f6ea", returning(contextlib.nullcontext())),
    ("synchronize", "197f031b313fec1e", being(_synchronize)),
    ("Stream", "1f6b0102e6a67c9c", being(_Stream)),
    ("Event", "685a17553db159fa", being(_Event)),
    ("current_stream", "bb6694a7ab8c3470", returning(_Stream())),
    ("default_stream", "5ba62b16b87961ac", returning(_Stream())),
    ("stream", "3cc7b1d285065c56", returning(contextlib.nullcontext())),
    ("set_stream", "c8524912b5e20b85", returning(None)),
    ("max_memory_allocated", "fdd8b9f8c3e18487", being(lambda device=None: _played[-1].observer.peak)),
    ("max_memory_reserved", "a1271c5f0233b4b8", being(lambda device=None: _played[-1].observer.peak)),
    ("memory_allocated", "d96ff54917d433e9", being(lambda device=None: _played[-1].observer.now)),
    ("memory_reserved", "d01f2b40d39ef944", being(lambda device=None: _played[-1].observer.now)),
    ("mem_get_info", "094b6943b029953f", being(lambda device=None: (_played[-1].world.gpu.total_memory,) * 2)),
    ("reset_peak_memory_stats", "e06992f2569fa7f4", returning(None)),
    ("empty_cache", "21eac9f0b4039e85", returning(None)),
    ("get_rng_state", "06f5d8d816379b5b", returning(_STATE)),
    ("set_rng_state", "ccc3cba539ab5793", returning(None)),
    ("manual_seed", "7919ec0f7a7cf398", returning(None)),
    ("manual_seed_all", "d5fc9ad93fc4183e", returning(None)),
    ("initial_seed", "4725fdd8efa05bfd", returning(0)),
    ("get_device_properties", "a1ce4c1c5705abd5", being(_properties)),
    ("get_device_capability", "db4c17a13ec6481c", being(lambda device=None: _played[-1].world.gpu.capability)),
    ("get_device_name", "c0a30ad2a0746c08", being(lambda device=None: _played[-1].world.gpu.name)),
    ("is_bf16_supported", "aa773b236ffd1e08", returning(True)),
    ("is_current_stream_capturing", "e192d228d5ad9ba3", returning(False)),
)
PATCHES = (
    *(_replacing(f"torch.cuda:{name}", digest, wrap) for name, digest, wrap in _IN_CUDA),
    _replacing("torch.cuda.random:get_rng_state", "06f5d8d816379b5b", returning(_STATE)),
    _replacing("torch.cuda.nvtx:range_push", "50ac7e847650c185", returning(0)),
    _replacing("torch.cuda.nvtx:range_pop", "c2bf3577da1601e7", returning(0)),
    _replacing("torch.distributed:init_process_group", "8e2028cb296abd97", _fake_group),
    _replacing("torch.distributed:new_group", "5eac91d159977c5b", _new_group),
    _replacing("torch.distributed:all_gather_object", "8df003b4dae9c74d", being(_gathered)),
    _replacing("torch.distributed:gather_object", "2bdb61a7e82eb747", being(_gather)),
    _replacing("torch.distributed:scatter_object_list", "8ec8495cfe53df7c", being(_scatter)),
    _replacing("torch.distributed:broadcast_object_list", "9d909e364a9db573", returning(None)),
    _replacing("torch.distributed.device_mesh:DeviceMesh._compute_coordinates_from_mesh", "025d5d7c49039070", _at_the_start),
    _replacing("torch:compile", "e58dca34af724e23", _compile),
    _replacing("torch._subclasses.fake_tensor:init_gpu_context", "ded082be78fe6dbb", returning(None)),
    _replacing("torch.nn:Module._apply", "1a3f72adc78e864e", _move_modules),
    _replacing("torch.utils.data._utils.pin_memory:pin_memory", "654cb530ab1d58ad", _no_pinning),
)
