"""The factors of a factorised embedding (OFA): those that a transfer wrote, and the table that trained factors multiply to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conversion.formats.lazy_tensor import LazyTensor
from conversion.formats.safetensors_file import read_safetensors

if TYPE_CHECKING:
    from torch import Tensor

TABLE = "embedding.word_embeddings.weight"
COORDINATES, PRIMITIVES = "embedding.word_embeddings.coordinates.weight", "embedding.word_embeddings.primitives"


def read_factors(path: Path) -> dict[str, LazyTensor]:
    """`coordinates` and `primitives` of the input table in a `factors.safetensors`; nothing is read yet.

    Raises:
        ValueError: if the file is missing, is no such file, or its factors do not make a table.
    """
    made_by = "`python -m conversion.transfer --factorised-size N` writes it"
    if not path.is_file():
        raise ValueError(f"{path} does not exist; {made_by}")
    tensors = {tensor.name.removeprefix("input."): tensor for tensor in read_safetensors(path) if tensor.name.startswith("input.")}
    shapes = [tensors[name].shape if name in tensors else () for name in ("coordinates", "primitives")]
    if any(len(shape) != 2 for shape in shapes) or shapes[0][1] != shapes[1][0]:
        raise ValueError(f"{path} does not hold coordinates and primitives of one size; {made_by}")
    return {name: tensors[name] for name in ("coordinates", "primitives")}


def factors_of(tensors: Mapping[str, LazyTensor], *, num_rows: Any) -> dict[str, LazyTensor]:
    """`coordinates`, without the rows that pad a vocabulary, and `primitives` of a checkpoint's token table; empty where it is one matrix.

    Raises:
        ValueError: if the checkpoint does not say how many rows are not padding.
    """
    if COORDINATES not in tensors or PRIMITIVES not in tensors:
        return {}
    coordinates = tensors[COORDINATES]
    if type(num_rows) is not int or not 0 < num_rows <= coordinates.shape[0]:
        raise ValueError(
            f"the checkpoint's configuration has vocab_size {num_rows!r}; expected a whole number up to the"
            f" {coordinates.shape[0]} rows of its factors; copy the checkpoint again"
        )
    return {"coordinates": coordinates.row_range(coordinates.name, 0, num_rows), "primitives": tensors[PRIMITIVES]}


def fold_table(tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """The tensors of a checkpoint with the token table in place of its factors; nothing is read yet.

    The product is made in float32 and rounded once, to the dtype of the coordinates.

    Raises:
        ValueError: if there are coordinates, but no primitives that fit them.
    """
    if COORDINATES not in tensors:
        return dict(tensors)
    coordinates, primitives = tensors[COORDINATES], tensors.get(PRIMITIVES)
    if primitives is None or len(coordinates.shape) != 2 or len(primitives.shape) != 2 or coordinates.shape[1] != primitives.shape[0]:
        raise ValueError("the checkpoint has coordinates of a token table, but no primitives that fit them; copy it again")

    def fold() -> Tensor:
        return (coordinates.read().float() @ primitives.read().float()).to(coordinates.dtype)

    table = LazyTensor.computed(TABLE, (coordinates.shape[0], primitives.shape[1]), coordinates.dtype, fold)
    return {name: tensor for name, tensor in tensors.items() if name not in (COORDINATES, PRIMITIVES)} | {TABLE: table}


FACTORISED_NAME = "factorised.safetensors"


def factor_names(table: str) -> dict[str, str]:
    """Names of `coordinates` and `primitives` in the place of a table's."""
    stem = table.removesuffix("weight")
    return {part: stem + part for part in ("coordinates", "primitives")}
