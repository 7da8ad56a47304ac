"""The dtypes of weights by torch's names, with their sizes: all that looking at a checkpoint needs of torch."""

from __future__ import annotations

DTYPE_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e5m2": 1,
    "float8_e4m3fn": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "float64": 8,
    "int64": 8,
}
