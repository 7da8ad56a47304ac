"""Which checkpoints of a run are removed: all but the newest, and of those that are held only the oldest beyond a bound.

A hold keeps a checkpoint until another process has read it: `RUN/holds/CHECKPOINT.HOLDER.json` says who holds and until when.  It ends by
itself unless it is renewed, so that a holder that died keeps nothing for ever.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from common.artifacts import digest_bytes
from recipes.runs.run_dir import CHECKPOINTS_NAME, complete_checkpoints

REMOVED_PATTERN = ".step_*.removed"  # half removed: a crash leaves it to the next start of the training
MIN_KEPT = 2  # a damaged newest checkpoint must leave the one before


@dataclass(frozen=True)
class Retention:
    """How many checkpoints stay.

    Attributes:
        keep: of the newest.
        keep_held: of the older ones that somebody holds, again the newest: what waits for evaluation must not fill the disk either.
    """

    keep: int
    keep_held: int


def removable(checkpoints: Sequence[str], held: Collection[str], retention: Retention) -> list[str]:
    """The checkpoints that go, of all in the order of their steps."""
    older = checkpoints[: -retention.keep]
    waiting = [name for name in older if name in held]
    stay = set(waiting[len(waiting) - min(retention.keep_held, len(waiting)) :])
    return [name for name in older if name not in stay]


def remove_old_checkpoints(run_dir: Path, retention: Retention) -> list[str]:
    """Remove what need not stay.

    Returns:
        A sentence for every checkpoint that went although it was held, or whose hold had ended.
    """
    holds, now = read_holds(run_dir), time.time()
    held = {hold.checkpoint for hold in holds if hold.until > now}
    sentences = []
    for name in removable(complete_checkpoints(run_dir), held, retention):
        path = run_dir / CHECKPOINTS_NAME / name
        aside = path.with_name(f".{name}.removed")
        os.replace(path, aside)
        if name not in held and _held_since(run_dir, name, now):
            os.replace(aside, path)
            continue
        shutil.rmtree(aside)
        for hold in holds:
            if hold.checkpoint == name:
                sentences.append(_sentence(hold, retention, has_ended=hold.until <= now))
                release_hold(run_dir, name, holder=hold.holder)
    return sentences


def _held_since(run_dir: Path, name: str, moment: float) -> bool:
    """Whether a hold was taken while the checkpoint was being put aside."""
    return any(hold.checkpoint == name and hold.until > moment for hold in read_holds(run_dir))


def _sentence(hold: Hold, retention: Retention, *, has_ended: bool) -> str:
    if has_ended:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(hold.until))
        return f"{hold.checkpoint} was removed: {hold.holder} held it until {when} and did not renew the hold"
    return (
        f"{hold.checkpoint} was removed although {hold.holder} holds it: more than run.keep_held_checkpoints ({retention.keep_held}) wait;"
        " give it more workers, or a larger number"
    )


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
    # Hold first, look second: whoever removes looks for holds again after the removal's first step, and takes it back.
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
    """All holds of a run, ended ones too, by checkpoint and holder; a file that is not a hold is skipped."""
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
