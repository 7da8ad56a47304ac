"""A training run whose checkpoints are evaluated one by one: what waits, what is held, the commands of one, and the matrix of results."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from common.plain_files import read_json
from common.tables import markdown_table
from eval.running.results import PSEUDO_TEXTS, RESULT_NAME, headline_score, load_result
from eval.running.work_queue import STATES, WorkQueue
from recipes.rules.schema import recipe_from_mapping
from recipes.runs.retention import read_holds, release_hold, take_hold
from recipes.runs.run_dir import CHECKPOINTS_NAME, RECIPE_NAME, complete_checkpoints

_MESSAGE_LINES = 3  # of a failed command's log, in the record
_RENEW_SECONDS = 60  # between two renewals of holds, while a command runs
_END_SECONDS = 20  # that a command gets to end in when this process has to
# A signal for the whole job may reach a command before it reaches this process, which then is not to call that a failure.
_BY_SIGNAL = (-signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGUSR1)
_SIGNAL_DELAY_SECONDS = 2
_GONE_SECONDS = 2  # a training that looks for holds may have put a checkpoint aside for a moment


@dataclass(frozen=True)
class WatchedRun:
    """One run, and where its evaluations are kept.

    Attributes:
        harness: arguments of eval.harness for texts, tasks and settings.
        keep_exports: leave the Hugging Face folders where they are.
        hold_seconds: how long a waiting checkpoint stays held after the last renewal.
    """

    run_dir: Path
    output: Path
    harness: tuple[str, ...] = ()
    keep_exports: bool = False
    hold_seconds: float = 24 * 3600.0

    @property
    def queue(self) -> WorkQueue:
        """Checkpoints by state."""
        return WorkQueue(self.output / "queue")

    @property
    def holder(self) -> str:
        """Who holds: the workers that share an output are one."""
        return f"eval.watch --output {self.output.absolute()}"

    def evaluate_next(self) -> str | None:
        """Evaluate one waiting checkpoint; returns its name, or None if none waits.

        What ends this process meanwhile, a signal or an error of its own, gives the checkpoint back first.
        """
        self.hold_and_queue()
        claim = self.queue.claim()
        if claim is None:
            return None
        start = time.monotonic()
        try:
            print(f"{claim.name}: started", file=sys.stderr, flush=True)  # a signal may come here already
            failure = self._evaluate(claim.name)
        except BaseException:
            self.queue.give_back(claim)
            print(f"{claim.name}: given back", file=sys.stderr, flush=True)
            raise
        seconds = round(time.monotonic() - start, 1)
        self.queue.finish(claim, failed=failure is not None, record={"seconds": seconds, "failure": failure})
        if failure is None:  # a failed one stays held for some time, so that it can be tried again
            release_hold(self.run_dir, claim.name, holder=self.holder)
        print(f"{claim.name}: {'done' if failure is None else failure} ({seconds} s)", file=sys.stderr, flush=True)
        return claim.name

    def hold_and_queue(self) -> None:
        """Queue what is new, and hold all that waits or is being evaluated."""
        queue = self.queue
        known = {name for state in STATES for name in queue.names(state)}
        for name in (*queue.names("pending"), *queue.names("running")):
            self._hold(name)
        queue.add([name for name in complete_checkpoints(self.run_dir) if name not in known and self._hold(name)])

    def _hold(self, name: str) -> bool:
        """Whether the checkpoint is there and held; a run that cannot be written to is evaluated without holds."""
        try:
            return take_hold(self.run_dir, name, holder=self.holder, seconds=self.hold_seconds)
        except OSError as error:
            print(f"{name} is not protected, so training may remove it: {error}", file=sys.stderr, flush=True)
            return True

    def release_all(self) -> list[str]:
        """End all holds of these evaluations; returns the checkpoints."""
        held = [hold.checkpoint for hold in read_holds(self.run_dir) if hold.holder == self.holder]
        return [name for name in held if release_hold(self.run_dir, name, holder=self.holder)]

    def _evaluate(self, name: str) -> str | None:
        """Run the three commands of a checkpoint; returns why one failed, or None."""
        checkpoint, export = self.run_dir / CHECKPOINTS_NAME / name, self.output / "exports" / name
        if not _is_there(checkpoint):
            return f"{checkpoint} was removed by training before it was evaluated; keep more checkpoints (run.keep_checkpoints)"
        log = self.output / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(export, ignore_errors=True)  # of an interrupted attempt
        # What has no recipe is not a training of ours, and has no curves.
        logged = ["--run", str(self.run_dir)] if (self.run_dir / RECIPE_NAME).is_file() else []
        commands = (
            ("export", ["conversion.nemo_to_hf", "--input", str(checkpoint), "--output", str(export)]),
            # Nothing is measured on an export that is another model.
            ("comparison of export and checkpoint", ["conversion.verify", str(export), str(checkpoint)]),
            (
                "evaluation",
                ["eval.harness", "--model", f"{name}={export}", "--output", str(self.output / "results"), *logged, *self.harness],
            ),
        )
        with open(log, "w", encoding="utf-8") as stream:
            for what, arguments in commands:
                if self._run(arguments, stream):
                    return f"{what} failed: {_end_of(log)}; see {log}"
        if not self.keep_exports:
            shutil.rmtree(export)
        return None

    def _run(self, arguments: Sequence[str], stream: TextIO) -> int:
        """Exit code of a command, holds being renewed while it runs; it ends when this process is told to."""
        with subprocess.Popen([sys.executable, "-m", *arguments], stdout=stream, stderr=subprocess.STDOUT) as process:
            try:
                while True:
                    try:
                        code = process.wait(timeout=_RENEW_SECONDS)
                        break
                    except subprocess.TimeoutExpired:
                        self.hold_and_queue()
                if code in _BY_SIGNAL:
                    time.sleep(_SIGNAL_DELAY_SECONDS)
                return code
            finally:
                _end(process)

    def is_over(self) -> bool:
        """Whether the run's last step was evaluated, or given up."""
        path = self.run_dir / RECIPE_NAME
        if not path.is_file():
            return False
        last_step = recipe_from_mapping(read_json(path)).total_steps
        queue = self.queue
        ended = [int(name.removeprefix("step_")) for state in ("done", "failed") for name in queue.names(state)]
        return bool(ended) and max(ended) >= last_step and not queue.names("pending") and not queue.names("running")

    def status(self) -> str:
        """Matrix of steps and scores: what each checkpoint's state is, bits per byte, and the headline of each task."""
        states = {name: state for state in STATES for name in self.queue.names(state)}
        states = dict.fromkeys(complete_checkpoints(self.run_dir), "new") | states
        results = {name: load_result(path) for name in states if (path := self.output / "results" / name / RESULT_NAME).is_file()}
        texts = list(dict.fromkeys(text for result in results.values() for text in result["texts"]))
        filled = list(dict.fromkeys(text for result in results.values() for text in result.get(PSEUDO_TEXTS, {})))
        tasks = list(dict.fromkeys(task for result in results.values() for task in result["tasks"]))
        rows = []
        for name in sorted(states):
            result = results.get(name)
            cells = [f"{result['texts'][text]['bits_per_byte']:.4f}" if result and text in result["texts"] else "–" for text in texts]
            for text in filled:
                figures = (result or {}).get(PSEUDO_TEXTS, {}).get(text)
                cells.append("–" if figures is None else f"{figures['pseudo_bits_per_byte']:.4f}")
            for task in tasks:
                headline = headline_score(result["tasks"][task]) if result and task in result["tasks"] else None
                cells.append("–" if headline is None or headline["value"] is None else f"{headline['value']:.3f}")
            rows.append([name, states[name], *cells])
        header = [*(f"{text}, bits per byte" for text in texts), *(f"{text}, pseudo bits per byte" for text in filled), *tasks]
        return markdown_table(["checkpoint", "state", *header], rows, text_columns=2)


def _is_there(checkpoint: Path) -> bool:
    end = time.monotonic() + _GONE_SECONDS
    while not checkpoint.is_dir():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _end_of(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return errors[-1] if errors else " / ".join(lines[-_MESSAGE_LINES:]) or "it said nothing"
