"""Evaluate every checkpoint of a training run as it appears: export, comparison with the original, texts and tasks.

The newest checkpoint goes first, then those that were missed.  What is done, failed and waiting is kept in files below --output, so the
command can be stopped and started at any time, and any number of them can share the work, for example the jobs of a Slurm array with
--once.  What follows `--` goes to eval.harness as it stands.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep import command
from data_prep.artifacts import MANIFEST_NAME
from data_prep.tables import markdown_table
from eval.results import RESULT_NAME, load_result
from eval.work_queue import STATES, WorkQueue
from recipes.run_dir import CHECKPOINTS_NAME, RECIPE_NAME

_MESSAGE_LINES = 3  # of a failed command's log, in the record


@dataclass(frozen=True)
class Watch:
    """One run, and where its evaluations are kept.

    Attributes:
        harness: arguments of eval.harness for texts, tasks and settings.
        keep_exports: leave the Hugging Face folders where they are.
    """

    run_dir: Path
    output: Path
    harness: tuple[str, ...] = ()
    keep_exports: bool = False

    @property
    def queue(self) -> WorkQueue:
        """Checkpoints by state."""
        return WorkQueue(self.output / "queue")

    def complete_checkpoints(self) -> list[str]:
        """Names of checkpoints that are written whole; a checkpoint gets its name last, and its manifest before that."""
        return sorted(path.parent.name for path in (self.run_dir / CHECKPOINTS_NAME).glob(f"step_[0-9]*/{MANIFEST_NAME}"))

    def evaluate_next(self) -> str | None:
        """Evaluate one waiting checkpoint; returns its name, or None if none waits."""
        queue = self.queue
        queue.add(self.complete_checkpoints())
        claim = queue.claim()
        if claim is None:
            return None
        start = time.monotonic()
        print(f"{claim.name}: started", file=sys.stderr, flush=True)
        failure = self._evaluate(claim.name)
        seconds = round(time.monotonic() - start, 1)
        queue.finish(claim, failed=failure is not None, record={"seconds": seconds, "failure": failure})
        print(f"{claim.name}: {'done' if failure is None else failure} ({seconds} s)", file=sys.stderr, flush=True)
        return claim.name

    def _evaluate(self, name: str) -> str | None:
        """Run the three commands of a checkpoint; returns why one failed, or None."""
        checkpoint, export = self.run_dir / CHECKPOINTS_NAME / name, self.output / "exports" / name
        if not checkpoint.is_dir():
            return f"{checkpoint} is gone: training removed it before it was evaluated; keep more checkpoints"
        log = self.output / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(export, ignore_errors=True)  # of an interrupted attempt
        commands = (
            ("export", ["conversion.nemo_to_hf", "--input", str(checkpoint), "--output", str(export)]),
            # Nothing is measured on an export that is another model.
            ("comparison of export and checkpoint", ["conversion.verify", str(export), str(checkpoint)]),
            ("evaluation", ["eval.harness", "--model", f"{name}={export}", "--output", str(self.output / "results"), *self.harness]),
        )
        with open(log, "w", encoding="utf-8") as stream:
            for what, arguments in commands:
                done = subprocess.run([sys.executable, "-m", *arguments], stdout=stream, stderr=subprocess.STDOUT)
                if done.returncode:
                    return f"{what} failed: {_end_of(log)}; see {log}"
        if not self.keep_exports:
            shutil.rmtree(export)
        return None

    def is_over(self) -> bool:
        """Whether the run's last step was evaluated, or given up."""
        recipe = self.run_dir / RECIPE_NAME
        if not recipe.is_file():
            return False
        last_step = int(json.loads(recipe.read_text(encoding="utf-8"))["schedule"]["max_steps"])
        queue = self.queue
        ended = [int(name.removeprefix("step_")) for state in ("done", "failed") for name in queue.names(state)]
        return bool(ended) and max(ended) >= last_step and not queue.names("pending") and not queue.names("running")

    def status(self) -> str:
        """Matrix of steps and scores: what each checkpoint's state is, bits per byte, and the headline of each task."""
        states = {name: state for state in STATES for name in self.queue.names(state)}
        states = dict.fromkeys(self.complete_checkpoints(), "new") | states
        results = {name: load_result(path) for name in states if (path := self.output / "results" / name / RESULT_NAME).is_file()}
        texts = list(dict.fromkeys(text for result in results.values() for text in result["texts"]))
        tasks = list(dict.fromkeys(task for result in results.values() for task in result["tasks"]))
        rows = []
        for name in sorted(states):
            result = results.get(name)
            cells = [f"{result['texts'][text]['bits_per_byte']:.4f}" if result and text in result["texts"] else "–" for text in texts]
            for task in tasks:
                headline = next(iter(result["tasks"][task]["metrics"].values())) if result and task in result["tasks"] else None
                cells.append("–" if headline is None or headline["value"] is None else f"{headline['value']:.3f}")
            rows.append([name, states[name], *cells])
        return markdown_table(["checkpoint", "state", *(f"{text}, bits per byte" for text in texts), *tasks], rows, text_columns=2)


def _end_of(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return errors[-1] if errors else " / ".join(lines[-_MESSAGE_LINES:]) or "it said nothing"


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__,
        prog="eval.watch",
        example="python -m eval.watch --run work/run --output work/evaluations -- --text sl=heldout.sl.txt --tasks completion_sl",
    )
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="output of recipes.train")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="queue/, results/, logs/ and exports/ are kept here")
    parser.add_argument("--status", action="store_true", help="print what is done and what waits, and end")
    parser.add_argument("--once", action="store_true", help="end when nothing waits, instead of watching until the run is over")
    parser.add_argument("--retry-failed", action="store_true", help="try again what failed")
    parser.add_argument("--keep-exports", action="store_true", help="keep the Hugging Face folder of every checkpoint")
    parser.add_argument("--every", type=float, default=60, metavar="SECONDS", help="between two looks (default: %(default)s)")
    parser.add_argument("harness", nargs="*", help="after --: texts, tasks and settings for eval.harness")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Watch; 0 if all went well, 1 if a checkpoint failed."""
    arguments = _parser().parse_args(argv)
    if not (arguments.run / CHECKPOINTS_NAME).is_dir():
        raise ValueError(f"{arguments.run} has no {CHECKPOINTS_NAME}; expected the output of `python -m recipes.train`")
    if arguments.every <= 0:
        raise ValueError(f"--every is {arguments.every}; it must be more than 0")
    watch = Watch(arguments.run, arguments.output, tuple(arguments.harness), arguments.keep_exports)
    if arguments.status:
        print(watch.status())
        return command.DONE
    if not {"--text", "--tasks"} & set(arguments.harness):
        raise ValueError("nothing to evaluate: give --text or --tasks after --, as for eval.harness")
    if taken := {"--model", "--output"} & set(arguments.harness):
        raise ValueError(f"{' and '.join(sorted(taken))} after --: the command gives them itself; leave them out")
    if arguments.retry_failed:
        watch.queue.retry_failed()
    while True:
        while watch.evaluate_next() is not None:
            pass
        if arguments.once or watch.is_over():
            break
        time.sleep(arguments.every)
    print(watch.status())
    return command.WRONG if watch.queue.names("failed") else command.DONE


if __name__ == "__main__":
    command.run(main)
