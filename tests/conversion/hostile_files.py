"""Checkpoint folders made to do harm, each from a healthy one: what no mutation of single bytes comes upon.

What would run is `touch` of a file, so that a test sees whether it did.
"""

from __future__ import annotations

import io
import json
import os
import pickle
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

Spoil = Callable[[Path, Path], None]  # a NeMo folder, and the file by which code shows that it ran


class RunsCode:
    """An object that runs a shell command when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.proof}",)


class CallsNumpy(RunsCode):
    """The same by a function of a package that every checkpoint names."""

    def __reduce__(self) -> tuple[object, tuple[Any, ...]]:
        from numpy.testing._private.utils import runstring

        return runstring, (f"open({str(self.proof)!r}, 'w')", {})


def saved(value: Any) -> bytes:
    """What `torch.save` writes."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def edit_index(folder: Path, change: Callable[[Any], None]) -> None:
    """Change the index of a NeMo folder as torch's own classes hold it."""
    path = folder / "weights/.metadata"
    metadata = pickle.loads(path.read_bytes())
    change(metadata)
    path.write_bytes(pickle.dumps(metadata))


def put_object(folder: Path, key: str, content: bytes) -> None:
    """Let an object of the folder be other bytes."""
    name = "__0_hostile.distcp"
    with (folder / "weights" / name).open("ab") as stream:
        start = stream.tell()
        stream.write(content)

    def change(metadata: Any) -> None:
        metadata.state_dict_metadata[key] = BytesStorageMetadata()
        metadata.storage_data[MetadataIndex(key)] = _StorageInfo(name, start, len(content))

    edit_index(folder, change)


def first_object(folder: Path) -> str:
    """The key of an object that Megatron asks for."""
    metadata = pickle.loads((folder / "weights/.metadata").read_bytes())
    return next(key for key, value in metadata.state_dict_metadata.items() if isinstance(value, BytesStorageMetadata))


# -- code in a place that something unpickles -------------------------------------------------------------------------------


class LoadsBytes(RunsCode):
    """By a function that tensors need, on bytes of its own."""

    def __reduce__(self) -> tuple[object, tuple[bytes]]:
        return torch.storage._load_from_bytes, (saved(RunsCode(self.proof)),)


class CallsInTurn(RunsCode):
    """Hands the function that loads bytes, deep in its arguments, to one that calls what it is given."""

    def __reduce__(self) -> tuple[object, tuple[Any, ...]]:
        calls = torch._tensor._rebuild_from_type_v2
        loads = (torch.storage._load_from_bytes, torch.Tensor, (saved(RunsCode(self.proof)),), None)
        return calls, (calls, torch.Tensor, loads, None)


def saved_in_old_form(value: Any) -> bytes:
    """What `torch.save` wrote before 2020."""
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


def two_pickles(proof: Path) -> bytes:
    """An archive of a hostile pickle and a harmless one, whose names torch takes for one: it loads the hostile, Python's reader the other."""
    stream = io.BytesIO()
    with ZipFile(stream, "w") as archive:
        archive.writestr("archive/DATA.pkl", pickle.dumps(RunsCode(proof), 2))
        archive.writestr("archive/data.pkl", pickle.dumps(None, 2))
        archive.writestr("archive/version", "3\n")
    return stream.getvalue()


def _in_chunk(folder: Path, proof: Path) -> None:
    content = saved(RunsCode(proof))
    (folder / "weights/__0_hostile.distcp").write_bytes(content)

    def change(metadata: Any) -> None:
        chunk = next(index for index in metadata.storage_data if index.fqn == "module.decoder.final_layernorm.weight")
        metadata.storage_data[chunk] = _StorageInfo("__0_hostile.distcp", 0, len(content))

    edit_index(folder, change)


def _object(make: Callable[[Path], bytes]) -> Spoil:
    return lambda folder, proof: put_object(folder, first_object(folder), make(proof))


def _common(make: Callable[[Path], Any]) -> Spoil:
    return lambda folder, proof: torch.save({"args": make(proof)}, folder / "weights/common.pt")


def _pickled_bytes(proof: Path) -> bytes:
    return saved(torch.frombuffer(bytearray(pickle.dumps({"recipe": RunsCode(proof)})), dtype=torch.uint8))


CODE: dict[str, Spoil] = {
    "in the index": lambda folder, proof: edit_index(folder, lambda metadata: setattr(metadata, "planner_data", RunsCode(proof))),
    "in an object": _object(lambda proof: saved(RunsCode(proof))),
    "in an object of the optimizer": lambda folder, proof: put_object(
        folder, "optimizer.state/shard_0_1", saved({"step": [RunsCode(proof)]})
    ),
    "in an object of torch's old form": _object(lambda proof: saved_in_old_form(RunsCode(proof))),
    "in bytes that an object is": _object(_pickled_bytes),  # which TransformerEngine unpickles
    "in a buffer that an object is": _object(lambda proof: saved(io.BytesIO(saved(RunsCode(proof))))),  # the same in its older form
    "in a pickle in an object": _object(lambda proof: saved({"a": LoadsBytes(proof)})),
    "in a call of a call in an object": _object(lambda proof: saved(CallsInTurn(proof))),
    "in a call of a call in what is not sharded": _common(CallsInTurn),
    "in what is not sharded": _common(lambda proof: Namespace(a=RunsCode(proof))),
    "by numpy in what is not sharded": _common(CallsNumpy),
    "in a chunk": _in_chunk,
    "in one of two pickles": _object(two_pickles),
    # An old form that ends as an archive, which Python's reader accepts as one.
    "before an archive": _object(lambda proof: saved_in_old_form(RunsCode(proof)) + saved(None)),
}

# -- an index by which torch finds another place than is looked at ------------------------------------------------------------


class _TwoStates:
    """A record of a place that is given its fields, and then other fields in the form that objects with slots have."""

    def __init__(self, seen: dict[str, Any], found: dict[str, Any]) -> None:
        self.seen, self.found = seen, found


class _IndexPickler(pickle._Pickler):  # type: ignore[name-defined]
    dispatch = pickle._Pickler.dispatch.copy()  # type: ignore[attr-defined]

    def save_two_states(self, value: _TwoStates) -> None:
        self.save(_StorageInfo)
        self.write(pickle.EMPTY_TUPLE + pickle.NEWOBJ)
        for state in (value.seen, (None, value.found)):
            self.save(state)
            self.write(pickle.BUILD)

    dispatch[_TwoStates] = save_two_states


def place_of_two_states(folder: Path, proof: Path) -> None:
    """Torch loads the hostile object, while the fields that stand in the index first say a harmless one."""
    key = first_object(folder)
    put_object(folder, "spare/shard_0_1", saved(RunsCode(proof)))
    path = folder / "weights/.metadata"
    metadata = pickle.loads(path.read_bytes())
    hostile, harmless = metadata.storage_data[MetadataIndex("spare/shard_0_1")], metadata.storage_data[MetadataIndex(key)]
    del metadata.state_dict_metadata["spare/shard_0_1"], metadata.storage_data[MetadataIndex("spare/shard_0_1")]
    metadata.storage_data[MetadataIndex(key)] = _TwoStates(vars(harmless), vars(hostile))
    with path.open("wb") as stream:
        _IndexPickler(stream, 2).dump(metadata)
    assert json.loads((folder / "weights/metadata.json").read_text())["sharded_backend"] == "torch_dist"
