"""When a watchdog barks, and when it must not."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import pytest

from common import command
from recipes.runs.watchdog import Watchdog
from tests.processes import ROOT


class Rank:
    """A rank of which the test says what it does."""

    def __init__(self, *, factor: float = 5, least_seconds: float = 0.3, other_seconds: float = 3) -> None:
        self.said: list[str] = []
        self.watchdog = Watchdog(factor=factor, least_seconds=least_seconds, other_seconds=other_seconds, rank=0, end=self.said.append)

    def steps(self, count: int, seconds: float) -> None:
        for step in range(count):
            time.sleep(seconds)
            self.watchdog.step_ended(step + 1)


def test_a_step_that_takes_many_times_the_usual_is_one_that_hangs() -> None:
    rank = Rank()
    with rank.watchdog:
        rank.steps(10, 0.05)
        time.sleep(2.5)
    [said] = rank.said
    assert re.fullmatch(r"step 11 did not end in \d s \(steps usually take 0\.\d+ s\)", said)


@pytest.mark.long
def test_first_steps_validations_and_saves_have_a_measure_of_their_own() -> None:
    rank = Rank()
    with rank.watchdog:
        time.sleep(1.2)  # the start
        rank.steps(1, 1.2)
        rank.steps(10, 0.05)
        with rank.watchdog.other_work("a save"):
            time.sleep(1.2)
        rank.watchdog.step_ended(12)  # a save is not a part of the step
        rank.watchdog.ends()
        time.sleep(1.2)
        assert rank.said == []
        with rank.watchdog.other_work("a save"):
            rank.watchdog._counted = 100  # as behind so many seconds
            time.sleep(2)
    assert rank.said[0].startswith("a save did not end in 10")


def test_the_usual_time_counts_no_saves() -> None:
    rank = Rank(other_seconds=60)
    with rank.watchdog:
        for step in range(10):
            with rank.watchdog.other_work("a save"):
                time.sleep(0.2)
            rank.watchdog.step_ended(step + 1)
        time.sleep(2.5)
    assert len(rank.said) == 1


_PROCESS = """
import time
from recipes.runs.watchdog import Watchdog
with Watchdog(factor=5, least_seconds=3, other_seconds=60, rank=3) as watchdog:
    for step in range(8):
        time.sleep(0.01)
        watchdog.step_ended(step + 1)
    print("ready", flush=True)
    time.sleep(SECONDS)
"""


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("seconds, code", [(4, command.DONE), (60, command.HUNG)])
def test_a_process_that_was_stopped_does_not_hang(seconds: int, code: int) -> None:
    script = _PROCESS.replace("SECONDS", f"{seconds} if {code == command.HUNG} else 1")
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    if code == command.DONE:
        process.send_signal(signal.SIGSTOP)
        time.sleep(4)
        process.send_signal(signal.SIGCONT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == code, said
    assert ("rank 3 on" in said and "its stacks:" in said and "<string>" in said) == (code == command.HUNG)
