"""Which checkpoints of a run are removed: all but the newest, and of those that are held only the oldest beyond a bound."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipes.runs.holds import Hold, read_holds, release_hold
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
        return f"{hold.checkpoint} was removed: {hold.holder} held it until {when} and did not renew that"
    return (
        f"{hold.checkpoint} was removed although {hold.holder} holds it: more than run.keep_held_checkpoints ({retention.keep_held}) wait;"
        " give it more workers, or a larger number"
    )
