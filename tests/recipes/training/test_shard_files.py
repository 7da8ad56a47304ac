"""What threads write of a checkpoint is what torch reads, with the digests of the files; copies of the state are kept and written over."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from common.artifacts import digest_file
from common.background import Background
from recipes.training.shard_files import HostCopies, ShardFile, Writing, WrittenFile, on_host, storage_name, write_file


def _file(name: str, *tensors: torch.Tensor, saved: object = None) -> ShardFile:
    pickled = io.BytesIO()
    torch.save(saved, pickled)
    records = [(WriteItem(MetadataIndex(str(number)), WriteItemType.SHARD), tensor) for number, tensor in enumerate(tensors)]
    return ShardFile(name, ((WriteItem(MetadataIndex("object"), WriteItemType.BYTE_IO), pickled), *records))


def _read(path: Path, written: WrittenFile) -> list[object]:
    content = path.read_bytes()
    places = [place.storage_data for place in written.places]
    return [torch.load(io.BytesIO(content[place.offset : place.offset + place.length]), weights_only=True) for place in places]


def test_a_file_holds_what_torch_reads_at_the_places_that_are_told_and_its_digest_is_known(tmp_path: Path) -> None:
    tensors = [
        torch.randn(300, 50),
        torch.randn(7).bfloat16(),
        torch.randn(40).view(1, 1, 40)[..., 5:25],
        torch.tensor(3.0),
        torch.arange(3_000_000),
    ]
    written = write_file(tmp_path, _file("__0_0.distcp", *tensors, saved=[None]))
    found = _read(tmp_path / "__0_0.distcp", written)
    assert found[0] == [None]
    for value, tensor in zip(found[1:], tensors, strict=True):
        assert isinstance(value, torch.Tensor)
        assert value.dtype == tensor.dtype and torch.equal(value, tensor)
    assert written.digest == digest_file(tmp_path / "__0_0.distcp")
    assert [place.index.fqn for place in written.places] == ["object", "0", "1", "2", "3", "4"]


def test_copies_are_of_the_moment_and_in_the_same_memory_each_time() -> None:
    state, copies = torch.zeros(1000), HostCopies()
    first = copies.take([_file("a", state)])[0].records[1][1]
    state += 1
    assert isinstance(first, torch.Tensor) and not first.any(), "the training goes on"
    second = copies.take([_file("a", state)])[0].records[1][1]
    assert second is first and torch.equal(first, torch.ones(1000))
    other = copies.take([_file("a", state, torch.zeros(3))])[0].records
    assert torch.equal(other[1][1], torch.ones(1000)) and other[2][1].shape == (3,)  # type: ignore[arg-type, union-attr]


def test_what_no_step_has_changed_yet_is_copied_beside_the_training(tmp_path: Path) -> None:
    """A file is written only when all is copied, and so is a step taken; what is not a step's is copied at once."""
    large, other, copies = torch.ones(20_000_000), torch.ones(5), HostCopies()
    files = copies.take([_file("a", large, other)], until_step={storage_name(large)})
    other += 1
    writing = Writing(tmp_path, files, write_file, before=copies.wait)
    written = Background(writing)
    copied = files[0].records[1][1]
    assert isinstance(copied, torch.Tensor)
    large += 1  # as nothing does; it tells that nothing is copied before the training says so
    time.sleep(0.05)
    assert not written.is_done
    copies.begin()
    copies.wait()
    large += 1
    assert int(copied.sum()) == 40_000_000
    written.result()
    assert writing.error is None
    _, *found = _read(tmp_path / "a", writing.written[0])
    assert [int(tensor.sum()) for tensor in found] == [40_000_000, 5]  # type: ignore[attr-defined]


def test_what_is_gathered_is_copied_when_that_is_over_and_the_rest_before(tmp_path: Path) -> None:
    """A group of parameters comes from other ranks in the passes of the next step; the optimizer's state is copied beside these."""
    moments, parameters, copies, begun = torch.ones(10), torch.zeros(10), HostCopies(), []
    start = copies.start
    copies.start = lambda copy: begun.append(copy) or start(copy)  # type: ignore[func-returns-value]
    storages = {storage_name(moments), storage_name(parameters)}
    [file] = copies.take([_file("a", moments, parameters)], until_step=storages, gathered_later={storage_name(parameters)})
    waiting = Background(copies.wait)
    assert not begun
    copies.begin(gathered=False)
    copies.begin(gathered=False)
    assert len(begun) == 1, "asking again changes nothing"
    parameters += 7  # what another rank sends
    time.sleep(0.05)
    assert not waiting.is_done
    copies.begin()
    waiting.result()
    assert len(begun) == 2
    assert [int(tensor.sum()) for _, tensor in file.records[1:]] == [10, 70]  # type: ignore[union-attr]


def test_what_is_on_the_host_is_not_copied() -> None:
    state = torch.zeros(10)
    assert on_host([_file("a", state)])[0].records[1][1] is state


def test_an_error_of_one_file_is_kept_for_all_ranks_to_learn_of(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "nowhere", [_file("a", torch.zeros(3))], write_file)
    writing()
    assert isinstance(writing.error, FileNotFoundError) and writing.digests == {}
    with pytest.raises(FileNotFoundError):
        raise writing.error
    writing = Writing(tmp_path, [_file("a", torch.zeros(3)), _file("b", torch.ones(3))], write_file)
    writing()
    assert writing.error is None
    assert writing.digests == {name: digest_file(tmp_path / name) for name in ("a", "b")}
