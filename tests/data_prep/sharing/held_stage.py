"""A stage of twelve tasks that write down who does them, to be killed.

`held` keeps every task until the file `go` is there, so that whoever has come has one; `deadly` kills its own worker at one task, `wrong`
finds bad input there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from common import command
from common.artifacts import Manifest, staged_directory, write_manifest
from data_prep.sharing import on_ray
from data_prep.sharing.shards import ordered_map

_LIMIT_SECONDS = 300.0


def main(words: Sequence[str] | None = None) -> int:
    """A command whose twelve tasks write down who does them."""
    parser = command.parser(__doc__, example="python -m tests.data_prep.sharing.held_stage diary wrong --ray --output out")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("diary", type=Path)
    parser.add_argument("what", choices=["held", "deadly", "wrong"])
    parser.add_argument("--workers", type=int, default=1)
    on_ray.add_argument(parser)
    arguments = parser.parse_args(words)
    on_ray.share(arguments, "tests.held", lambda: _held(arguments))
    return command.DONE


def _held(arguments: argparse.Namespace) -> Manifest:
    with staged_directory(arguments.output) as staging:
        items = [(arguments.diary, arguments.what, number) for number in range(12)]
        done = list(ordered_map(_task, items, workers=1, name=lambda item: f"task {item[2]}"))
        (staging / "done").write_text(json.dumps(done))
        return write_manifest(staging, stage="tests.held", facts={}, arguments=vars(arguments))


def _task(item: tuple[Path, str, int]) -> int:
    diary, what, number = item
    with open(diary, "a") as file:
        file.write(f"{number} {os.getpid()} {os.getppid()} {socket.gethostname()}\n")
    if what == "deadly" and number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "wrong" and number == 3:
        raise ValueError("file 3, line 1: no JSON; give another")
    if what == "held":
        _wait_for(diary.parent / "go")
    return number * number


def _wait_for(path: Path) -> None:
    end = time.monotonic() + _LIMIT_SECONDS
    while not path.exists():
        assert time.monotonic() < end, f"nobody makes {path}"
        time.sleep(0.02)


if __name__ == "__main__":
    command.run(main)
