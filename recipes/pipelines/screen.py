"""How a run on this machine shows itself: a line per stage on a terminal, a line per start and end in a log."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from common.progress import duration
from recipes.pipelines.file import Pipeline, Task, output_of
from recipes.pipelines.live_page import write_live_page
from recipes.runs.run_dir import METRICS_NAME
from recipes.runs.run_state import full_step_seconds, last_records, read_recipe, read_run_state

_LEFT = re.compile(rb"\b(\d+) s left")  # as common.progress writes it
_TAIL_BYTES = 2000
_REDRAW_SECONDS = 1.0
_PAGE_SECONDS = 30.0  # while nothing ends; trainings log in between


class Screen:
    """Says what runs, since when, and how long it will take where that can be told."""

    def __init__(self, pipeline: Pipeline, tasks: Sequence[Task], expected: Mapping[Task, float]) -> None:
        self._pipeline, self._expected = pipeline, expected
        self._states = dict.fromkeys(tasks, "waiting")
        self._began: dict[Task, float] = {}
        self._took: dict[Task, float] = {}
        self._logs: dict[Task, Path] = {}
        self._is_terminal, self._drawn, self._last = sys.stderr.isatty(), 0, 0.0
        self._next_page = 0.0

    def started(self, task: Task, log: Path) -> None:
        """A task runs from now on."""
        self._states[task], self._began[task], self._logs[task] = "running", time.monotonic(), log
        if not self._is_terminal:
            print(f"{task.name}: started, log in {log}", file=sys.stderr, flush=True)

    def note(self, task: Task, state: str, message: str) -> None:
        """A task has ended, or will not start."""
        self._states[task] = state
        self._next_page = 0.0
        if task in self._began:
            self._took[task] = time.monotonic() - self._began[task]
        if not self._is_terminal:
            print(f"{task.name}: {state}, {message}", file=sys.stderr, flush=True)

    def draw(self, *, last: bool = False) -> None:
        """Draw the lines anew, at most once a second, and the page when something has ended."""
        if last or time.monotonic() >= self._next_page:
            write_live_page(self._pipeline, self._states)
            self._next_page = time.monotonic() + _PAGE_SECONDS
        if not self._is_terminal or (time.monotonic() - self._last < _REDRAW_SECONDS and not last):
            return
        self._last = time.monotonic()
        columns, rows = shutil.get_terminal_size()
        lines = [self._line(stage)[: columns - 1] for stage in dict.fromkeys(task.stage for task in self._states)]
        if len(lines) >= rows:  # those that run are what one looks for
            lines = [line for line in lines if " running" in line or " failed" in line][: rows - 1]
        up = f"\x1b[{self._drawn}F" if self._drawn else ""
        sys.stderr.write(up + "".join(f"\x1b[2K{line}\n" for line in lines) + "\x1b[J")
        sys.stderr.flush()
        self._drawn = len(lines)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for task, state in self._states.items():
            if state == "running":  # the run has ended it
                self.note(task, "stopped", "the same command goes on with it")
        self.draw(last=True)

    def _line(self, stage: str) -> str:
        states = {task: state for task, state in self._states.items() if task.stage == stage}
        runs = [task for task, state in states.items() if state == "running"]
        order = ("failed", "running", "stopped", "waiting", "not started", "done")
        state = next(state for state in order if state in states.values())
        done = f" {list(states.values()).count('done')}/{len(states)}" if len(states) > 1 else ""
        seconds = sum(self._took.get(task, 0.0) for task in states) + sum(time.monotonic() - self._began[task] for task in runs)
        left = [value for task in runs if (value := self._seconds_left(task)) is not None]
        time_left = f"  {duration(max(left))} left" if left else ""
        return f"{stage:<24} {state + done:<16}{duration(seconds) if seconds else '':>9}{time_left}"

    def _seconds_left(self, task: Task) -> float | None:
        """By a training's own speed, by what the command says of itself, or by what was expected."""
        if self._pipeline.stages[task.stage].train is not None:
            return self._training_left(task)
        with self._logs[task].open("rb") as stream:
            stream.seek(max(0, self._logs[task].stat().st_size - _TAIL_BYTES))
            if found := _LEFT.findall(stream.read()):
                return float(found[-1])
        of_stage = [seconds for other, seconds in self._took.items() if other.stage == task.stage]
        expected = sum(of_stage) / len(of_stage) if of_stage else self._expected.get(task)
        left = (expected or 0.0) - (time.monotonic() - self._began[task])
        return left if left > 0 else None

    def _training_left(self, task: Task) -> float | None:
        run_dir = output_of(self._pipeline, task)
        assert run_dir is not None  # checked when the pipeline was read
        recipe = read_recipe(run_dir)
        records = [record for record in last_records(run_dir / METRICS_NAME, 20) if record.get("tokens_per_second")]
        total = read_run_state(run_dir).total_steps
        if recipe is None or not records or total is None:
            return None
        return (total - records[-1]["step"]) * full_step_seconds(records[-1], recipe)
