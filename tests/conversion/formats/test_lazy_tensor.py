"""Parts of a tensor in a file are those of the whole, however they are read."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from conversion.formats import lazy_tensor
from conversion.formats.lazy_tensor import FileSpan, LazyTensor, read_span

VALUES = np.arange(3 * 4 * 5, dtype=np.int16).reshape(3, 4, 5)
OFFSET = 7  # no multiple of the numbers' width


@pytest.fixture(params=["copied", "mapped"])
def span(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileSpan:
    if request.param == "mapped":
        monkeypatch.setattr(lazy_tensor, "MAPPED_BYTES", 1)
    path = tmp_path / "values"
    path.write_bytes(b"x" * OFFSET + VALUES.tobytes() + b"behind")
    return FileSpan(path, OFFSET, VALUES.shape, "int16")


def test_every_part(span: FileSpan) -> None:
    assert np.array_equal(span.bits(), VALUES)
    spans = [[slice(start, stop) for start in range(size) for stop in range(start + 1, size + 1)] for size in VALUES.shape]
    for slices in itertools.product(*spans):
        assert np.array_equal(span.part(slices), VALUES[slices]), slices
    single = FileSpan(span.path, OFFSET + 2, (), "int16")
    assert single.part(()) == VALUES.flat[1] and single.tensor("one").rows is None


def test_one_of_a_stack_is_read_alone(span: FileSpan, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted(*arguments: object) -> lazy_tensor.Bits:
        values = read_span(*arguments)  # type: ignore[arg-type]
        read.append(values.size)
        return values

    monkeypatch.setattr(lazy_tensor, "read_span", counted)
    span.part((slice(1, 2), slice(1, 3), slice(0, 5)))
    assert read == [10]


def test_writing_to_what_was_read_changes_no_file(span: FileSpan) -> None:
    span.bits()[:] = 0
    assert np.array_equal(span.bits(), VALUES)


def test_a_file_that_ends_early(span: FileSpan) -> None:
    with pytest.raises(ValueError, match=r"values is truncated: it ends 4 bytes before a tensor does; copy or download it again$"):
        read_span(span.path, OFFSET + 6 + 4, VALUES.shape, "int16")


def test_rows_of_given_numbers(span: FileSpan) -> None:
    whole = span.tensor("alone")
    joined = LazyTensor.of_bits_blocks("in blocks", VALUES.shape, "int16", lambda: iter([VALUES[:2], VALUES[2:]]))
    for tensor in (
        whole,
        joined,
        LazyTensor.concatenated("of parts", [whole, whole]),
        LazyTensor.stacked("of layers", [whole, whole, whole]),
    ):
        for numbers in ([0], [2, 0, 2], [1, 2]):
            assert np.array_equal(tensor.rows_at(numbers), tensor.bits()[numbers]), (tensor.name, numbers)
