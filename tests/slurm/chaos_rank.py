"""One rank of `tests.slurm.chaos`: the light training of the tests, to which a file beside the run says what goes wrong, once.

    RUN.fault   {"rank": 1, "do": "exit", "value": 0}

`exit` leaves with a code, `say` writes lines and is killed, `save` fails with an error of the system halfway through the next save.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from common import command
from recipes.runs.run_dir import CHECKPOINTS_NAME, METRICS_NAME, checkpoint_name
from recipes.runs.run_state import last_records
from recipes.runs.watchdog import Watchdog
from tests.slurm import light_training

RANK = int(os.environ.get("SLURM_PROCID", "0"))


def fault_path(run_dir: Path) -> Path:
    return run_dir.with_name(f"{run_dir.name}.fault")


def taken(run_dir: Path, *kinds: str) -> dict[str, Any] | None:
    """What the file asks of this rank, which then is done with."""
    path = fault_path(run_dir)
    try:
        order: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    if order["rank"] != RANK or order["do"] not in kinds:
        return None
    path.unlink()
    return order


def suffer(run_dir: Path) -> None:
    order = taken(run_dir, "exit", "say")
    if order is None:
        return
    if order["do"] == "say":
        print(order["value"], file=sys.stderr, flush=True)
        time.sleep(0.3)  # until srun has passed it on
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(order["value"])


def beats(run_dir: Path) -> dict[int, str]:
    """What each other rank wrote last, of those that have not left because they were told to."""
    paths = {rank: run_dir / f"rank_{rank}.beat" for rank in range(1, int(os.environ.get("SLURM_NTASKS", "1")))}
    found = {rank: path.read_text() for rank, path in paths.items() if path.exists()}
    return {rank: text for rank, text in found.items() if text != "left"}


def meet_others(run_dir: Path) -> None:
    """As a step's collectives do: wait until every other rank was there since."""
    before = beats(run_dir)
    while any(beats(run_dir).get(rank) == text for rank, text in before.items()):
        time.sleep(0.02)


def wait(run_dir: Path, steps: int) -> int:
    """Until the end of rank 0, whose steps the watchdog of this rank sees as it would see its own part of them."""
    own, leaving, seen = run_dir / f"rank_{RANK}.beat", light_training.meet(run_dir), 0
    with Watchdog(factor=20.0, least_seconds=3.0, other_seconds=60.0, rank=RANK) as watchdog:
        while not leaving and not (run_dir / CHECKPOINTS_NAME / checkpoint_name(steps)).exists():
            suffer(run_dir)
            own.write_text(str(time.monotonic_ns()))
            step = max((record["step"] for record in last_records(run_dir / METRICS_NAME, 1)), default=0)
            if step != seen:
                watchdog.step_ended(step)
                seen = step
            time.sleep(0.04)
    own.write_text("left")
    return command.DONE


def main() -> int:
    next_state, save = light_training.next_state, light_training.save
    run_dir = Path(sys.argv[sys.argv.index("--output") + 1])

    def state_after(state: str) -> str:
        suffer(run_dir)
        meet_others(run_dir)
        return next_state(state)

    def save_or_fail(run_dir: Path, step: int, *rest: Any) -> None:
        if order := taken(run_dir, "save"):
            partial = run_dir / CHECKPOINTS_NAME / f".{checkpoint_name(step)}.partial" / "weights"
            partial.mkdir(parents=True, exist_ok=True)
            (partial / "state").write_text("ha")
            number = getattr(errno, order["value"])
            raise OSError(number, os.strerror(number), str(partial / "state"))
        save(run_dir, step, *rest)

    light_training.next_state, light_training.save, light_training.wait = state_after, save_or_fail, wait
    return light_training.main()


if __name__ == "__main__":
    command.run(lambda argv: main())
