"""Torch's files written and read without torch: torch finds in them what was put in, and the other way round."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch

from common.artifacts import digest_file
from conversion.formats import large_file
from conversion.formats.dist_metadata import Chunk, Entry, Place, write_dist_metadata
from conversion.formats.large_file import BUFFER_BYTES, LargeFileWriter
from conversion.formats.lazy_tensor import LazyTensor
from conversion.formats.torch_file import ALIGNMENT, read_state_dict, read_tensor, save_tensor, save_value

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 0), (2, 3, 5)], ids=str)
def test_torch_reads_a_tensor(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    with LargeFileWriter(tmp_path / "t") as stream:
        stream.write(b"x" * ALIGNMENT)  # a tensor is one of many in its file
        save_tensor(LazyTensor.of("t", tensor), stream)
    content = (tmp_path / "t").read_bytes()[ALIGNMENT:]
    found = torch.load(io.BytesIO(content), weights_only=True)
    assert (found.shape, found.dtype, found.stride()) == (tensor.shape, dtype, tensor.stride()) and torch.equal(found, tensor)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None  # the checksums
    ours = read_tensor(tmp_path / "t", start=ALIGNMENT, length=len(content))
    assert ours is not None and torch.equal(ours.read(), tensor)
    if tensor.numel() > 1 and dtype == torch.float64:
        assert content.index(tensor.numpy().tobytes()) % ALIGNMENT == 0


def test_torch_reads_plain_values(tmp_path: Path) -> None:
    value = {"a": 1, "b": [None, True, False, -(2**40), 2**31, "ž", ("x", ())], "c": {"d": {}}}
    with LargeFileWriter(tmp_path / "v") as stream:
        save_value(value, stream)
    assert torch.load(tmp_path / "v", weights_only=True) == value


def test_metadata_is_that_of_torch(tmp_path: Path) -> None:
    """Equal to what torch's own classes pickle, objects and sizes beyond 32 bits included."""
    from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    size = torch.Size
    far = 3 << 31
    entry = Entry("w", (2, 3), "bfloat16", (Chunk((0, 0), (1, 3), Place("a", 0, 9)), Chunk((1, 0), (1, 3), Place("b", far, 9))))
    write_dist_metadata(tmp_path, [entry], {"o": Place("c", 1, 2)})
    chunks = [ChunkStorageMetadata(size((0, 0)), size((1, 3))), ChunkStorageMetadata(size((1, 0)), size((1, 3)))]
    expected = Metadata(
        {"w": TensorStorageMetadata(TensorProperties(dtype=torch.bfloat16), size((2, 3)), chunks), "o": BytesStorageMetadata()},
        planner_data={},
        storage_data={
            MetadataIndex("w", size((0, 0))): _StorageInfo("a", 0, 9),
            MetadataIndex("w", size((1, 0))): _StorageInfo("b", far, 9),
            MetadataIndex("o"): _StorageInfo("c", 1, 2),
        },
        version=CURRENT_DCP_VERSION,
    )
    found = pickle.loads((tmp_path / ".metadata").read_bytes())
    assert found == expected and isinstance(found.state_dict_metadata["w"].size, torch.Size)


def test_views_and_shared_storages(tmp_path: Path) -> None:
    """Transposed, cut, expanded and tied tensors, as state dicts have them."""
    base = torch.arange(24.0).view(4, 6)
    state = {"t": base.T, "cut": base[1:3, 2:4], "row": base[2], "wide": base[:1].expand(3, 6), "again": base, "one": base[1, 1]}
    state["parameter"] = torch.nn.Parameter(base[:, ::2])
    torch.save(state, tmp_path / "s.bin")
    found: dict[str, LazyTensor] = {tensor.name: tensor for tensor in read_state_dict(tmp_path / "s.bin")}
    assert list(found) == list(state)
    for name, tensor in state.items():
        assert torch.equal(found[name].read(), tensor), name


@pytest.mark.parametrize("direct", ["as it comes", "not offered", "refused at the first write"])
@pytest.mark.parametrize("size", [0, 1, 4096, BUFFER_BYTES, 2 * BUFFER_BYTES + 4097])
def test_large_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, direct: str) -> None:
    """Direct writes or not, whole buffers or not: the bytes, their number and their digest are right."""
    if direct == "not offered":
        monkeypatch.setattr(large_file, "_DIRECT", 0)
    content = torch.randint(0, 256, (size,), dtype=torch.uint8).numpy()
    with LargeFileWriter(tmp_path / "f") as stream:
        if direct == "refused at the first write":
            stream._buffers = deque(np.empty(BUFFER_BYTES + 1, np.uint8)[1:] for _ in range(len(stream._buffers)))  # where no disk can read
        for start in range(0, size, 1_000_003):
            assert stream.write(content[start : start + 1_000_003]) == len(content[start : start + 1_000_003])
    assert (tmp_path / "f").read_bytes() == content.tobytes()
    assert stream.size == size and stream.digest == digest_file(tmp_path / "f")


def test_an_error_of_the_disk_reaches_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second buffer is written by another thread; its error must not be lost."""
    with pytest.raises(OSError, match="Bad file descriptor"), LargeFileWriter(tmp_path / "f") as stream:  # noqa: SIM117
        with open(tmp_path / "f", "rb") as read_only:
            monkeypatch.setattr(stream, "_file", read_only.fileno())
            for _ in range(3):
                stream.write(bytes(BUFFER_BYTES))
