"""Why a task failed, in one sentence."""

from __future__ import annotations

import traceback
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


class GoneError(ValueError):
    """A process that answered is no more."""


def failure_reason(error: Exception) -> str:
    """Why a task failed: our own sentence; for what other code raised, what it was and where its owner can look."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, GoneError) or (type(error) is ValueError and not _is_foreign(frames[-1].filename)):
        return str(error)
    own = [frame for frame in frames if "site-packages" not in frame.filename and _is_foreign(frame.filename)]
    frame = own[-1] if own else frames[-1]
    return f"{' '.join(f'{type(error).__name__}: {error}'.split())} (line {frame.lineno} of {frame.filename})"


def _is_foreign(file: str) -> bool:
    return "site-packages" in file or not Path(file).is_relative_to(_ROOT)
