"""Which checkpoint a path means, and of which format it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from common.plain_files import read_text

HUGGING_FACE, NEMO, MEGATRON_LM, MEGATRON_BRIDGE = "Hugging Face", "NeMo 2", "Megatron-LM", "Megatron-Bridge"

ITERATION_TRACKER = "latest_checkpointed_iteration.txt"
BRIDGE_TRACKER = "latest_train_state.pt"
RUN_CONFIG = "run_config.yaml"
TRAIN_STATE = "train_state.pt"
_ITERATION = re.compile(r"iter_\d{7,}|release")


@dataclass(frozen=True)
class Place:
    """A checkpoint.

    Attributes:
        directory: the folder of the one checkpoint.
        weights: the folder of its distributed checkpoint; `directory` itself for Hugging Face.
        notes: what was chosen among several.
    """

    directory: Path
    weights: Path
    format: str
    notes: tuple[str, ...] = ()


def locate(path: Path) -> Place:
    """The checkpoint that a path means; of a run or a series of iterations, the newest.

    Raises:
        ValueError: if there is none.
    """
    path = Path(path)
    if not path.is_dir():
        raise ValueError(f"the checkpoint folder {path} does not exist")
    if (path / "config.json").is_file() and not (path / "metadata.json").is_file():
        return Place(path, path, HUGGING_FACE)
    if (path / "weights").is_dir():
        return Place(path, path / "weights", NEMO)
    if (path / "metadata.json").is_file() or (path / ".metadata").is_file():
        return Place(path, path, MEGATRON_BRIDGE if (path / RUN_CONFIG).is_file() else MEGATRON_LM)
    if series := _series(path):
        newest, number = series
        notes = (f"{path} holds {number} checkpoints; this is the newest",) if number > 1 else ()
        found = locate(newest)
        return Place(found.directory, found.weights, found.format, notes)
    raise ValueError(
        f"{path} holds no checkpoint; expected config.json (Hugging Face), weights/ (NeMo 2), metadata.json or"
        f" {ITERATION_TRACKER} (Megatron-LM and Megatron-Bridge), or checkpoints/ (a run of `python -m recipes.train`)"
    )


def _series(path: Path) -> tuple[Path, int] | None:
    """The newest of several checkpoints in a folder, and their number."""
    steps = sorted((path / "checkpoints").glob("step_[0-9]*")) or sorted(path.glob("step_[0-9]*"))
    if steps:
        return steps[-1], len(steps)
    iterations = sorted(folder for folder in path.glob("*") if folder.is_dir() and _ITERATION.fullmatch(folder.name))
    if not iterations:
        return None
    try:
        tracked = read_text(path / ITERATION_TRACKER).strip()
    except (OSError, ValueError):
        return iterations[-1], len(iterations)
    newest = path / (f"iter_{int(tracked):07d}" if tracked.isdecimal() else tracked)
    if newest not in iterations:
        raise ValueError(
            f"{path / ITERATION_TRACKER} names {newest.name}, which is not there; found {', '.join(i.name for i in iterations)}"
        )
    return newest, len(iterations)
