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


def _in_index(folder: Path, proof: Path) -> None:
    edit_index(folder, lambda metadata: setattr(metadata, "planner_data", RunsCode(proof)))


def _in_object(folder: Path, proof: Path) -> None:
    put_object(folder, first_object(folder), saved(RunsCode(proof)))


def _in_new_object(folder: Path, proof: Path) -> None:
    put_object(folder, "optimizer.state/shard_0_1", saved({"step": [RunsCode(proof)]}))


def _in_old_object(folder: Path, proof: Path) -> None:
    """In torch's form from before 2020."""
    stream = io.BytesIO()
    torch.save(RunsCode(proof), stream, _use_new_zipfile_serialization=False)
    put_object(folder, first_object(folder), stream.getvalue())


def _in_bytes_of_object(folder: Path, proof: Path) -> None:
    """In the bytes that TransformerEngine unpickles."""
    content = torch.frombuffer(bytearray(pickle.dumps({"recipe": RunsCode(proof)})), dtype=torch.uint8)
    put_object(folder, first_object(folder), saved(content))


def _in_buffer_of_object(folder: Path, proof: Path) -> None:
    """The same in its older form."""
    put_object(folder, first_object(folder), saved(io.BytesIO(saved(RunsCode(proof)))))


class LoadsBytes(RunsCode):
    def __reduce__(self) -> tuple[object, tuple[bytes]]:
        return torch.storage._load_from_bytes, (saved(RunsCode(self.proof)),)


def _in_nested_object(folder: Path, proof: Path) -> None:
    """By a function that tensors need, on bytes of its own."""
    put_object(folder, first_object(folder), saved({"a": LoadsBytes(proof)}))


class CallsInTurn(RunsCode):
    """Hands the function that loads bytes, deep in its arguments, to one that calls what it is given."""

    def __reduce__(self) -> tuple[object, tuple[Any, ...]]:
        calls = torch._tensor._rebuild_from_type_v2
        loads = (torch.storage._load_from_bytes, torch.Tensor, (saved(RunsCode(self.proof)),), None)
        return calls, (calls, torch.Tensor, loads, None)


def _in_turn_in_object(folder: Path, proof: Path) -> None:
    put_object(folder, first_object(folder), saved(CallsInTurn(proof)))


def _in_turn_in_common(folder: Path, proof: Path) -> None:
    torch.save({"args": CallsInTurn(proof)}, folder / "weights/common.pt")


def _in_common(folder: Path, proof: Path) -> None:
    torch.save({"args": Namespace(a=RunsCode(proof))}, folder / "weights/common.pt")


def _by_numpy_in_common(folder: Path, proof: Path) -> None:
    torch.save({"args": CallsNumpy(proof)}, folder / "weights/common.pt")


def _in_chunk(folder: Path, proof: Path) -> None:
    content = saved(RunsCode(proof))
    (folder / "weights/__0_hostile.distcp").write_bytes(content)

    def change(metadata: Any) -> None:
        chunk = next(index for index in metadata.storage_data if index.fqn == "module.decoder.final_layernorm.weight")
        metadata.storage_data[chunk] = _StorageInfo("__0_hostile.distcp", 0, len(content))

    edit_index(folder, change)


def _twice_in_archive(folder: Path, proof: Path) -> None:
    """Two pickles in an archive, whose names torch takes for one: Python's reader takes the other."""
    put_object(folder, first_object(folder), two_pickles(proof))


def two_pickles(proof: Path) -> bytes:
    """An archive of a hostile pickle and a harmless one, of which torch loads the hostile."""
    stream = io.BytesIO()
    with ZipFile(stream, "w") as archive:
        archive.writestr("archive/DATA.pkl", pickle.dumps(RunsCode(proof), 2))
        archive.writestr("archive/data.pkl", pickle.dumps(None, 2))
        archive.writestr("archive/version", "3\n")
    return stream.getvalue()


def _before_archive(folder: Path, proof: Path) -> None:
    """A pickle in the form from before 2020 that ends as an archive, which Python's reader accepts as one."""
    old = io.BytesIO()
    torch.save(RunsCode(proof), old, _use_new_zipfile_serialization=False)
    put_object(folder, first_object(folder), old.getvalue() + saved(None))


CODE: dict[str, Spoil] = {
    "in the index": _in_index,
    "in an object": _in_object,
    "in an object of the optimizer": _in_new_object,
    "in an object of torch's old form": _in_old_object,
    "in bytes that an object is": _in_bytes_of_object,
    "in a buffer that an object is": _in_buffer_of_object,
    "in a pickle in an object": _in_nested_object,
    "in a call of a call in an object": _in_turn_in_object,
    "in a call of a call in what is not sharded": _in_turn_in_common,
    "in what is not sharded": _in_common,
    "by numpy in what is not sharded": _by_numpy_in_common,
    "in a chunk": _in_chunk,
    "in one of two pickles": _twice_in_archive,
    "before an archive": _before_archive,
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
