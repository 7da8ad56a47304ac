from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from common.artifacts import digest_file
from conversion.formats import lazy_tensor
from conversion.formats.dist_checkpoint import read_dist_checkpoint, write_dist_checkpoint
from conversion.formats.dist_metadata import Chunk, Entry, Place, write_dist_metadata
from conversion.formats.large_file import LargeFileWriter
from conversion.formats.lazy_tensor import LazyTensor
from conversion.formats.torch_file import save_tensor
from tests.refusals import refused

SHAPES = {
    "embedding.weight": (7, 4),
    **{f"decoder.layers.{layer}.{name}": shape for layer in range(3) for name, shape in {"fc.weight": (6, 4), "fc.bias": (6,)}.items()},
    "scale": (),
}


def tensors(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    directory = tmp_path / "weights"
    directory.mkdir()
    lazy = [LazyTensor.of(name, tensor) for name, tensor in tensors().items()]
    objects = [f"decoder.layers.{layer}.fc._extra_state" for layer in range(3)]
    digests = write_dist_checkpoint(directory, lazy, prefix="module.", common={"a": 1}, empty_objects=objects)
    assert all(digest == digest_file(directory / name) for name, digest in digests.items())
    return directory


def assert_read(directory: Path, expected: dict[str, torch.Tensor]) -> None:
    found = read_dist_checkpoint(directory, prefix="module.")
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        values = tensor.read()
        assert tensor.shape == tuple(values.shape) == tuple(expected[name].shape)
        assert tensor.dtype == values.dtype == expected[name].dtype
        assert torch.equal(values, expected[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_reads_what_it_wrote(tmp_path: Path, dtype: torch.dtype) -> None:
    write_dist_checkpoint(tmp_path, [LazyTensor.of(name, tensor) for name, tensor in tensors(dtype).items()], prefix="module.", common={})
    assert_read(tmp_path, tensors(dtype))


def test_torch_reads_what_it_wrote(written: Path) -> None:
    """Torch's own reader, in one process: stacked layers, a chunk each, and objects."""
    metadata = FileSystemReader(str(written)).read_metadata()
    stacked = metadata.state_dict_metadata["module.decoder.layers.fc.weight"]
    assert stacked.size == (3, 6, 4)
    assert [tuple(chunk.sizes) for chunk in stacked.chunks] == [(1, 6, 4)] * 3
    assert "module.decoder.layers.fc._extra_state/shard_2_3" in metadata.state_dict_metadata
    state = {key: torch.empty(entry.size) for key, entry in metadata.state_dict_metadata.items() if hasattr(entry, "size")}
    load(state, storage_reader=FileSystemReader(str(written)), no_dist=True)
    expected = tensors()
    assert torch.equal(state["module.embedding.weight"], expected["embedding.weight"])
    for name in ("fc.weight", "fc.bias"):
        layers = torch.stack([expected[f"decoder.layers.{layer}.{name}"] for layer in range(3)])
        assert torch.equal(state[f"module.decoder.layers.{name}"], layers)
    assert torch.load(written / "common.pt", weights_only=True) == {"a": 1}


def test_reads_what_torch_wrote_and_only_the_weights(tmp_path: Path) -> None:
    """Layers stacked in one chunk, layers of their own, optimizer state, and objects."""
    expected = tensors()
    stacked = torch.stack([expected[f"decoder.layers.{layer}.fc.weight"] for layer in range(3)])
    state = {
        **{f"module.{name}": tensor for name, tensor in expected.items() if not name.endswith("fc.weight")},
        "module.decoder.layers.fc.weight": stacked,
        "optimizer.state.exp_avg.module.decoder.layers.fc.weight": stacked,
        "module.decoder.layers.fc._extra_state": {"anything": 1},
    }
    save(state, storage_writer=FileSystemWriter(str(tmp_path)), no_dist=True)
    (tmp_path / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    assert_read(tmp_path, expected)


def rewrite_metadata(directory: Path, edit: object) -> None:
    metadata = pickle.loads((directory / ".metadata").read_bytes())
    edit(metadata)  # type: ignore[operator]
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))


def test_missing_chunk(written: Path) -> None:
    rewrite_metadata(written, lambda metadata: metadata.state_dict_metadata["module.decoder.layers.fc.bias"].chunks.pop(1))
    message = "the chunks of decoder.layers.fc.bias do not cover it exactly: they hold 12 of its 18 values; copy the checkpoint again"
    with refused(message):
        read_dist_checkpoint(written, prefix="module.")


def test_overlapping_chunks(written: Path) -> None:
    """As many values as the tensor has, but some of them twice, so that others would be whatever memory held."""

    def move(metadata: object) -> None:
        entry = metadata.state_dict_metadata["module.decoder.layers.fc.weight"]  # type: ignore[attr-defined]
        moved = replace(entry.chunks[2], offsets=torch.Size((1, 0, 0)))
        metadata.storage_data[MetadataIndex("module.decoder.layers.fc.weight", moved.offsets)] = next(  # type: ignore[attr-defined]
            place
            for index, place in metadata.storage_data.items()  # type: ignore[attr-defined]
            if index.fqn == "module.decoder.layers.fc.weight" and index.offset == (2, 0, 0)
        )
        entry.chunks[2] = moved

    rewrite_metadata(written, move)
    message = (
        "the chunks of decoder.layers.fc.weight do not cover it exactly: two lie over each other at [1, 0, 0]; copy the checkpoint again"
    )
    with refused(message):
        read_dist_checkpoint(written, prefix="module.")


def test_more_layers_than_a_lifetime_counts(written: Path) -> None:
    """Without a value in any of them, so that nothing else tells."""
    rewrite_metadata(
        written, lambda metadata: setattr(metadata.state_dict_metadata["module.decoder.layers.fc.weight"], "size", (10**12, 0, 4))
    )
    rewrite_metadata(written, lambda metadata: metadata.state_dict_metadata["module.decoder.layers.fc.weight"].chunks.clear())
    with pytest.raises(
        ValueError, match=r"has the shape \(1000000000000, 0, 4\), which is not a stack of layers; copy the checkpoint again$"
    ):
        read_dist_checkpoint(written, prefix="module.")


def test_not_complete(written: Path) -> None:
    (written / ".metadata").unlink()
    with refused(f"{written} has no .metadata: the checkpoint is not complete"):
        read_dist_checkpoint(written, prefix="module.")


def test_other_formats(written: Path) -> None:
    (written / "metadata.json").write_text(json.dumps({"sharded_backend": "zarr"}))
    message = f"{written} is a distributed checkpoint of the format 'zarr'; expected 'torch_dist'"
    with refused(message):
        read_dist_checkpoint(written, prefix="module.")
    (written / "metadata.json").unlink()
    message = f"{written} has no readable metadata.json: it is not a complete distributed checkpoint"
    with refused(message):
        read_dist_checkpoint(written, prefix="module.")


def test_metadata_that_leads_out_of_the_folder(written: Path) -> None:
    def edit(metadata: object) -> None:
        for info in metadata.storage_data.values():  # type: ignore[attr-defined]
            info.relative_path = f"../{info.relative_path}"

    rewrite_metadata(written, edit)
    message = (
        r"\.metadata is corrupt \(it names the file '\.\./__0_\w+\.distcp', which is not inside its folder\); copy the checkpoint again$"
    )
    with pytest.raises(ValueError, match=message):
        read_dist_checkpoint(written, prefix="module.")


def test_an_error_in_one_file_ends_the_others(tmp_path: Path) -> None:
    def fail() -> torch.Tensor:
        raise ValueError("no such row")

    lazy = [LazyTensor.of(f"t{number}", torch.zeros(10)) for number in range(50)]
    lazy.insert(3, LazyTensor.computed("broken", (10,), torch.float32, fail))
    with pytest.raises(ValueError, match="no such row"):
        write_dist_checkpoint(tmp_path, lazy, prefix="module.", common={})
    assert not (tmp_path / ".metadata").exists()


def test_layers_of_different_dtypes(tmp_path: Path) -> None:
    lazy = [LazyTensor.of(f"layers.{layer}.x", torch.zeros(2, dtype=dtype)) for layer, dtype in enumerate((torch.float16, torch.float32))]
    message = "layers.1.x is torch.float32, but other layers have torch.float16; convert the checkpoint to one dtype first"
    with refused(message):
        write_dist_checkpoint(tmp_path, lazy, prefix="module.", common={})


def test_a_pickle_that_asks_for_all_memory(written: Path) -> None:
    """An object numbered 2**32 - 1, for which Python's reader would make room; what one flipped bit can do."""
    (written / ".metadata").write_bytes(b"\x80\x02}r\xff\xff\xff\xff.")
    message = f"{written / '.metadata'} is corrupt (it numbers an object 4294967295); copy the checkpoint again"
    with refused(message):
        read_dist_checkpoint(written, prefix="module.")


def test_a_large_table_is_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of stacked layers and of tables that tensor parallelism cut by rows or by columns, in blocks that no cut divides."""
    monkeypatch.setattr(lazy_tensor, "_BLOCK_BYTES", 3 * 4 * 8)  # three rows of eight numbers
    generator = torch.Generator().manual_seed(0)
    table, stacked = torch.randn(14, 8, generator=generator), torch.randn(3, 10, 8, generator=generator)
    pieces = {"rows": [(0, table[:5]), (5, table[5:])], "columns": [(0, table[:, :3]), (3, table[:, 3:])], "stacked": [(0, stacked)]}
    entries = []
    for name, parts in pieces.items():
        chunks = []
        for number, (start, part) in enumerate(parts):
            with LargeFileWriter(tmp_path / f"{name}{number}.distcp") as stream:
                save_tensor(LazyTensor.of(name, part), stream)
            offsets = [0] * part.dim()
            offsets[name == "columns"] = start
            chunks.append(Chunk(tuple(offsets), tuple(part.shape), Place(f"{name}{number}.distcp", 0, stream.size)))
        key = "module.decoder.layers.w" if name == "stacked" else f"module.{name}"
        entries.append(Entry(key, tuple((stacked if name == "stacked" else table).shape), "float32", tuple(chunks)))
    write_dist_metadata(tmp_path, entries, {})
    (tmp_path / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    found = read_dist_checkpoint(tmp_path, prefix="module.")
    expected = {"rows": table, "columns": table, **{f"decoder.layers.{layer}.w": stacked[layer] for layer in range(3)}}
    for name, tensor in expected.items():
        blocks = list(found[name].checked_blocks())
        assert [len(block) for block in blocks] == [3] * (len(tensor) // 3) + [len(tensor) % 3]
        assert torch.equal(torch.from_numpy(np.concatenate(blocks)).view(torch.float32), tensor), name
        part = found[name].row_range("part", 4, 9)
        assert torch.equal(part.read(), tensor[4:9]) and torch.equal(
            LazyTensor.concatenated("two", [part, part]).read()[4:6], tensor[[8, 4]]
        )
        both = LazyTensor.concatenated("two", [part, found[name]])
        assert torch.equal(
            torch.from_numpy(np.concatenate(list(both.checked_blocks()))).view(torch.float32), torch.cat([tensor[4:9], tensor])
        )
