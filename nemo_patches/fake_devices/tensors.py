"""Tensors with shape, dtype, device and storage but no values, and what of their operations the host waits for."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.flop_counter import flop_registry

from nemo_patches.fake_devices.collectives import COLLECTIVES, Collective, Started
from nemo_patches.fake_devices.fusion import fusion_depth
from nemo_patches.fake_devices.world import Observer, on_gpu

META = torch.device("meta")
experts_of_a_token = [0]  # how many experts every token goes to, where there are any: which ones, tensors without values do not say
explicit_meta = [False]  # whether "meta" is asked for by name, and is not what torch's C++ takes our GPU for


class FakeGpu(FakeTensorMode):
    """Makes tensors without values on a simulated GPU, and reports them to an observer."""

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
            return META
        if (device := kwargs.get("device")) is not None and device.type == "meta" and not explicit_meta[0]:
            kwargs = {**kwargs, "device": self._device}
        if self._depth:  # a decomposition, which a GPU does in one kernel
            return super().__torch_dispatch__(func, types, args, kwargs)
        if func.namespace == "c10d" and func._opname == "barrier":
            return Started().boxed()
        if func.namespace == "c10d" and (known := COLLECTIVES.get(func._opname)) is not None:
            return self._begin(known, func, args)
        if func in _READS and on_gpu(args[0]):
            self._observer.waited(func._opname)
        elif func in _COPIES and _copies_to_host(func, args, kwargs):
            self._observer.waited("copy to the host")
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return _value(args[0].dtype)
        if func is torch.ops.aten.nonzero.default and isinstance(args[0], FakeTensor):
            return args[0].new_zeros((args[0].numel(), args[0].dim()), dtype=torch.int64)
        if func is torch.ops.aten.masked_select.default and experts_of_a_token[0]:  # of (experts, tokens), all pairs that belong together
            result = args[0].new_empty(args[1].shape[1] * experts_of_a_token[0])
        else:
            result = self._run(func, types, args, kwargs)
        if (count := flop_registry.get(func._overloadpacket)) is not None and on_gpu(args[0]):
            self._observer.computed(count(*args, **kwargs, out_val=result))
        if not fusion_depth():
            self._tell(result, func)
        return result

    def _run(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        self._depth += 1
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self._depth -= 1

    def _begin(self, known: Collective, func: Any, args: Any) -> Any:
        """What a collective gives: a handle that tells when it is waited for, and of some the tensors that it was given to fill."""
        handle = known.start(self._observer, func, args).boxed()
        return (args[0], handle) if len(func._schema.returns) == 2 else handle

    def _tell(self, result: Any, func: Any) -> None:
        for tensor in result if isinstance(result, list | tuple) else (result,):
            if isinstance(tensor, list | tuple):
                self._tell(tensor, func)
            elif on_gpu(tensor):
                self._observer.allocated(tensor, func._opname)
            elif isinstance(tensor, FakeTensor) and tensor.fake_device.type == "cpu":
                self._observer.held_on_host(tensor)


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
        return on_gpu(args[1]) and not on_gpu(args[0]) and not non_blocking
    device = kwargs.get("device")
    return on_gpu(args[0]) and device is not None and device.type == "cpu" and not kwargs.get("non_blocking", False)
