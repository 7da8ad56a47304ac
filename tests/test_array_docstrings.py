"""What counts as the shape of an array in a docstring, and what does not."""

from __future__ import annotations

import pytest

from tests.array_docstrings import Module

PLANTED = '''
from numpy import ndarray
from torch import Tensor

Rows = dict[str, ndarray]

def documented(rows: Rows) -> None:
    """(num_rows, size) of each."""

def function(number: int, *, rows: Rows) -> None:
    """{0}"""

class Table:
    def method(self) -> "Tensor | None":
        """{0}"""

    def _own(self, rows: Tensor) -> None:
        def inner(rows: Tensor) -> None: ...

def plain(number: int) -> int: ...
'''


@pytest.mark.parametrize(
    "docstring",
    [
        "(num_rows, size) float32.",
        "Ends of tokens, (len(ids),).",
        "((heads + 2 * groups) * head_dim, ...), as the inputs.",
        "The loss, a scalar.",
        "Zeros of any shape.",
        "As `documented`.",
        "Arguments as of `planted.documented`.",
    ],
)
def test_a_shape_is_seen(docstring: str) -> None:
    assert Module(PLANTED.format(docstring), {"planted": Module(PLANTED, {})}).without_shapes() == []


@pytest.mark.parametrize(
    "docstring",
    [
        "",
        "Rows (by name, without padding).",
        "What `pairs(rows, size)` gives.",
        "Counts (Gage, 1994).",
        "Size of a row (size).",
        "As `plain`.",
        "As `Table.method`.",
        "As `numpy.sum`.",
    ],
)
def test_a_missing_shape_is_seen(docstring: str) -> None:
    assert Module(PLANTED.format(docstring), {}).without_shapes() == [(10, "function"), (14, "Table.method")]
