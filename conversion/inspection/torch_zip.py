"""What `torch.save` wrote, seen without torch and without running code: names, shapes, dtypes, and single numbers."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conversion.inert_pickle import Record, load_inert

_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}
_NUMBERS = {"float64": "d", "float32": "f", "int64": "q", "int32": "i", "int16": "h", "int8": "b", "uint8": "B", "bool": "?"}
_TENSORS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3")
_HARMLESS = (*_TENSORS, "torch._utils._rebuild_parameter", "torch.storage.UntypedStorage", *(f"torch.{name}" for name in _STORAGES))
# What training frameworks put into the part of a checkpoint that is not sharded: state of their own classes.
_FRAMEWORKS = ("torch", "numpy", "megatron", "nemo", "lightning", "pytorch_lightning", "omegaconf", "argparse", "enum", "pathlib", "fiddle")


@dataclass(frozen=True)
class TorchFile:
    """A saved object.

    Attributes:
        content: dictionaries, lists and numbers as they are; tensors and objects as records.
        names: classes and functions that loading it would call.
    """

    path: Path
    content: Any
    names: list[str]

    def tensors(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Name -> shape and dtype of the tensors of a dictionary."""
        found = {name: _tensor(value) for name, value in self.content.items()} if isinstance(self.content, dict) else {}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def number(self, value: Any) -> float | int | None:
        """The value of a number, perhaps as a tensor of one; None for anything else."""
        if isinstance(value, bool | int | float):
            return value
        tensor = _tensor(value)
        if tensor is None or tensor[0] not in ((), (1,)) or tensor[1] not in _NUMBERS:
            return None
        try:
            with zipfile.ZipFile(self.path) as archive:
                data = archive.read(next(name for name in archive.namelist() if name.endswith(f"/data/{value.args[0][2]}")))
            number: float | int = struct.unpack_from(f"<{_NUMBERS[tensor[1]]}", data)[0]
        except (OSError, StopIteration, struct.error, zipfile.BadZipFile):
            return None
        return number


def read_torch_file(path: Path) -> TorchFile | None:
    """The object in a file; None for the form from before 2020, which cannot be looked at without reading all of it.

    Raises:
        ValueError: if it is corrupt or truncated.
    """
    try:
        with open(path, "rb") as stream:
            if stream.read(2) != b"PK":
                return None
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl")
            with archive.open(name) as pickle:
                return TorchFile(path, *load_inert(pickle))
    except OSError:
        raise
    except Exception as error:  # what a damaged pickle raises is anybody's guess
        raise ValueError(f"{path} is corrupt or truncated ({error!r}); copy or download it again") from error


def unsafe_names(names: Iterable[str], *, is_state_dict: bool) -> list[str]:
    """Those of the names in a pickle that neither tensors nor the state of a training framework need."""
    if is_state_dict:
        return [name for name in names if name not in _HARMLESS]
    return [name for name in names if name.partition(".")[0] not in _FRAMEWORKS]


def _tensor(value: Any) -> tuple[tuple[int, ...], str] | None:
    if isinstance(value, Record) and value.called == "torch._utils._rebuild_parameter" and value.args:
        value = value.args[0]
    if not isinstance(value, Record) or value.called not in _TENSORS or len(value.args) < 3:
        return None
    storage, shape = value.args[0], value.args[2]
    if not isinstance(storage, tuple) or len(storage) < 3 or not isinstance(shape, tuple):
        return None
    kind = getattr(storage[1], "called", "").removeprefix("torch.")
    dtype = _STORAGES.get(kind) or next((arg for arg in value.args[3:] if isinstance(arg, str)), None)
    return (shape, dtype) if dtype else None
