"""The tensors of what `torch.save` wrote, read where they lie, without running the code that a pickle can hold."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from conversion.formats.dtypes import DTYPE_BYTES
from conversion.formats.inert_pickle import require_light_parts
from conversion.formats.lazy_tensor import Bits, FileSpan, LazyTensor, read_span
from conversion.formats.pickle_names import TENSORS, unknown_names
from conversion.formats.torch_zip import StoredTensor, TorchFile, read_torch_file, stored_tensor


def read_state_dict(path: Path) -> list[LazyTensor]:
    """The tensors of a saved state dict.

    Raises:
        ValueError: if it is corrupt, needs code to be loaded, or is no dictionary of tensors.
    """
    file = _open(path)
    return _read_old_state_dict(path) if file is None else tensors_of(file, file.content)


def tensors_of(file: TorchFile, content: Any) -> list[LazyTensor]:
    """The tensors of a state dict that is, or lies in, what a file holds.

    Raises:
        ValueError: if it is no dictionary of tensors, or a tensor is larger than what lies there.
    """
    path = file.path
    tensors = {name: stored_tensor(value) for name, value in content.items()} if isinstance(content, dict) else {None: None}
    if not all(tensors.values()):
        raise _no_state_dict(path)
    return [_lazy_tensor(file, str(name), tensor) for name, tensor in tensors.items() if tensor is not None]


def read_tensor(path: Path, *, start: int, length: int) -> LazyTensor | None:
    """The one tensor of a stretch of a file; None if something else lies there.

    Raises:
        ValueError: if it is corrupt or needs code to be loaded.
    """
    found = find_tensor(path, start=start, length=length)
    return found.tensor("") if isinstance(found, FileSpan) else found


def find_tensor(path: Path, *, start: int, length: int) -> FileSpan | LazyTensor | None:
    """The same as where it lies; as `read_tensor` gives it where its values do not lie one after another."""
    file = _open(path, start=start, length=length)
    tensor = stored_tensor(file.content) if file is not None else None
    return _found(file, "", tensor) if file is not None and tensor is not None else None


def _open(path: Path, **stretch: int) -> TorchFile | None:
    try:
        file = read_torch_file(path, **stretch)
    except ValueError as error:
        raise _corrupt(path) from error
    if file is not None:
        _require_safe(path, unknown_names(file.names, TENSORS))
    return file


def _lazy_tensor(file: TorchFile, name: str, tensor: StoredTensor) -> LazyTensor:
    found = _found(file, name, tensor)
    return found.tensor(name) if isinstance(found, FileSpan) else found


def _found(file: TorchFile, name: str, tensor: StoredTensor) -> FileSpan | LazyTensor:
    width = DTYPE_BYTES[tensor.dtype]
    try:
        begin, nbytes = file.storage(tensor.storage)
        if tensor.end * width > nbytes:
            raise ValueError(f"{name} is larger than its storage")
        if math.prod(tensor.shape) * width > file.size:  # strides of 0 would let one number stand for any amount
            raise ValueError(f"{name} is larger than its file")
    except (ValueError, OSError) as error:
        raise _corrupt(file.path) from error
    if tensor.is_contiguous:
        return FileSpan(file.path, begin + tensor.offset * width, tensor.shape, tensor.dtype)
    return LazyTensor(name, tensor.shape, tensor.dtype, partial(_read_strided, file.path, begin, tensor))


def _read_strided(path: Path, begin: int, tensor: StoredTensor) -> Bits:
    whole = read_span(path, begin, (tensor.end,), tensor.dtype)
    strides = [stride * whole.itemsize for stride in tensor.strides]
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(whole[tensor.offset :], tensor.shape, strides))


def _read_old_state_dict(path: Path) -> list[LazyTensor]:
    """Files from before 2020 are no archives and can only be read whole, by torch."""
    import torch

    try:
        require_light_parts(path)
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what torch raises for a damaged file is anybody's guess
        _require_safe(path, re.findall(r"GLOBAL (\S+)", str(error)))
        raise _corrupt(path) from error
    if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise _no_state_dict(path)
    return [LazyTensor.of(name, tensor) for name, tensor in content.items()]


def _require_safe(path: Path, unsafe: Iterable[str]) -> None:
    if name := next(iter(unsafe), None):
        raise ValueError(
            f"{path} asks to run {name} when it is loaded, which is not safe; convert it to safetensors where you trust its source"
        )


def _corrupt(path: Path) -> ValueError:
    return ValueError(f"{path} is corrupt or truncated; copy or download it again")


def _no_state_dict(path: Path) -> ValueError:
    return ValueError(f"{path} is no dictionary of tensors; expected a model's state dict")
