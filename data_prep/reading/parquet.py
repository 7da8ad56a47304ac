"""The rows of a Parquet file, a few at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common.progress import Counter

_ROWS = 256


def read_rows(
    path: Path, progress: Counter | None = None, bad: Callable[[int, str, str], None] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows with their numbers from 1, their values as `plain_value` has them.

    In memory are 256 rows and a page of each column.

    Args:
        bad: told of a file that cannot be read, or of where it stops to make sense; None makes it an error.

    Raises:
        ValueError: if pyarrow is not installed, or the file cannot be read and `bad` is None.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(f"{path} is Parquet, which needs pyarrow; pip install pyarrow") from error
    number = 0
    size = path.stat().st_size
    try:
        with parquet.ParquetFile(path) as file:
            reported = 0
            for batch in file.iter_batches(batch_size=_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield number, plain_value(row)
                if progress is not None:
                    done = size * number // max(file.metadata.num_rows, 1)
                    progress.advance(done - reported)
                    reported = done
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        what = str(error).splitlines()[0]
        if any(word in what.lower() for word in ("not supported", "not implemented", "crypt")):
            reason, message = (
                "unreadable Parquet",
                f"{path} is packed or encrypted in a way that pyarrow {pyarrow.__version__} does not read: {what}",
            )
            message += f" (after row {number}); write it again with zstd or snappy and without encryption"
        else:
            reason, message = "broken Parquet", f"{path} is not a complete Parquet file: {what} (after row {number}); copy it again"
        if bad is None:
            raise ValueError(message) from error
        bad(number + 1, reason, message)


def plain_value(value: Any) -> Any:
    """A value as JSON knows it: dates and decimals as text, bytes as the UTF-8 that they are, NaN (a missing number) as null.

    Bytes that are not UTF-8 stay bytes, which no document may hold.
    """
    if isinstance(value, str | int | bool | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else (None if math.isnan(value) else str(value))
    if isinstance(value, dict):
        return {str(key): plain_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(inner) for inner in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return str(value)


def unpacked_size(path: Path) -> int:
    """Bytes of all columns without compression, as the file says; its size where it cannot be read, which reading will tell."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        metadata = ParquetFile(path).metadata
    except (OSError, pyarrow.ArrowException):
        return path.stat().st_size
    return sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
