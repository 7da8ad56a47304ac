"""The state of a fine-tuning, kept now and then, from which one that was killed goes on to the same figures."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class KeptState:
    """A file with what a training stands at; complete or absent, also after the machine went down.

    Args:
        path: whose folder is made with the first state.
        every_seconds: from one state to the next at least, or from the beginning to the first; 0 keeps one behind every step.
    """

    def __init__(self, path: Path, *, every_seconds: float) -> None:
        self._path, self._every_seconds = path, every_seconds
        self._last = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it is time to keep a state."""
        return time.monotonic() - self._last >= self._every_seconds

    def keep(self, state: Mapping[str, Any]) -> None:
        """Put a state in place of the one before; tensors may be on any device."""
        import torch

        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f".{self._path.name}.partial")
        with partial.open("wb") as stream:
            torch.save(dict(state), stream)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(self._path)
        self._last = time.monotonic()

    def read(self) -> dict[str, Any] | None:
        """The last state that was kept, its tensors in main memory; None if there is none.

        Raises:
            ValueError: if the file is not what `keep` wrote.
        """
        import pickle

        import torch

        if not self._path.is_file():
            return None
        try:
            return dict(torch.load(self._path, map_location="cpu", weights_only=True))
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            raise ValueError(f"{self._path} is no whole state of a training; remove it, and the training begins again") from error

    def remove(self) -> None:
        """Of a training that ended."""
        self._path.unlink(missing_ok=True)
