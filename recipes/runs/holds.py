"""Holds: files by which another process keeps checkpoints of a run until it has read them.

A hold is `RUN/holds/CHECKPOINT.HOLDER.json` and says who holds and until when.  It ends by itself unless it is renewed, so that a holder
that died keeps nothing for ever.  `recipes.runs.retention` respects it.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from common.artifacts import digest_bytes
from recipes.runs.run_dir import complete_checkpoints

HOLDS_NAME = "holds"
_HOLDER_LETTERS = 12  # of the holder's digest in the file's name


@dataclass(frozen=True)
class Hold:
    """One checkpoint that somebody still needs.

    Attributes:
        holder: for people; the same holder renews its own hold.
        until: seconds since the epoch.
    """

    checkpoint: str
    holder: str
    until: float


def take_hold(run_dir: Path, checkpoint: str, *, holder: str, seconds: float) -> bool:
    """Hold a complete checkpoint, or renew the hold; False, and no hold, if the checkpoint is not there."""
    path = _path(run_dir, checkpoint, holder)
    path.parent.mkdir(exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    partial.write_text(json.dumps(asdict(Hold(checkpoint, holder, time.time() + seconds))) + "\n", encoding="utf-8")
    os.replace(partial, path)
    # Hold first, look second: whoever removes looks for holds again behind the removal's first step, and takes it back.
    if checkpoint in complete_checkpoints(run_dir):
        return True
    path.unlink(missing_ok=True)
    return False


def release_hold(run_dir: Path, checkpoint: str, *, holder: str) -> bool:
    """End a hold; whether there was one."""
    path = _path(run_dir, checkpoint, holder)
    was_held = path.exists()
    path.unlink(missing_ok=True)
    return was_held


def read_holds(run_dir: Path) -> list[Hold]:
    """All holds of a run, ended ones too, by checkpoint and holder; a file that is no hold is passed over."""
    found = []
    for path in sorted((run_dir / HOLDS_NAME).glob("[!.]*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found.append(Hold(str(content["checkpoint"]), str(content["holder"]), float(content["until"])))
        except (FileNotFoundError, ValueError, KeyError, TypeError):  # released a moment ago, or not ours
            continue
    return found


def _path(run_dir: Path, checkpoint: str, holder: str) -> Path:
    digest = digest_bytes(holder.encode()).partition(":")[2]
    return run_dir / HOLDS_NAME / f"{checkpoint}.{digest[:_HOLDER_LETTERS]}.json"
