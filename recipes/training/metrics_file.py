"""The file `metrics.jsonl` of a run: a line of JSON per record, forgotten from the step on at which a run is resumed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class MetricsFile:
    """Appends records, each with its `step`.

    Args:
        may_write: whether the run's directory is still this process's, see `common.lease`.
    """

    def __init__(self, path: Path, *, may_write: Callable[[], bool]) -> None:
        self._path, self._may_write = path, may_write

    def append(self, record: Mapping[str, Any]) -> bool:
        """Write a record, unless somebody else has taken the run over; whether it was written."""
        if not self._may_write():
            return False
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")
        return True

    def records(self, *, last_step: int) -> list[dict[str, Any]]:
        """What was written up to a step."""
        return [json.loads(line) for line in self._lines(last_step)]

    def forget(self, *, last_step: int) -> None:
        """Remove what an interrupted run wrote after the checkpoint from which it is resumed."""
        if not self._path.exists():
            return
        partial = self._path.with_suffix(".partial")
        partial.write_text("".join(f"{line}\n" for line in self._lines(last_step)), encoding="utf-8")
        partial.replace(self._path)

    def _lines(self, last_step: int) -> list[str]:
        lines = self._path.read_text(encoding="utf-8", errors="replace").split("\n") if self._path.exists() else []
        return [line for line in lines if _step_of(line) <= last_step]


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return sys.maxsize  # a line that was cut off by a crash
