"""A graft merged with an instruction-tuned model at several weights: each merge is made, measured and removed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.artifacts import combined_digest
from common.plain_files import read_json, write_json
from conversion.checkpoints.hf_model import Checkpoint, inspect_checkpoint
from data_prep.reading.named_texts import Text
from eval.running.backends import Machine, Settings
from eval.running.chat import lend_template
from eval.running.earlier import folder_in_use, work_left
from eval.running.evaluation import evaluate_checkpoint, result_key
from eval.running.evaluation import parts_of as parts_of_evaluation
from eval.running.results import RESULT_NAME, load_result
from eval.running.task_runs import FoundTask

_MEASURED_NAME = "measured.json"


@dataclass(frozen=True)
class Partner:
    """What is merged into a graft.

    Attributes:
        instruct: the instruction-tuned model.
        source: what it was tuned from, so that its difference to that is added (a chat vector); None for the mean of graft and `instruct`.
        missing_rows: see `conversion.merge`.
    """

    instruct: Checkpoint
    source: Checkpoint | None
    missing_rows: str = "keep"

    def arguments(self, graft: Path, weight: float) -> list[str]:
        """Of conversion.merge."""
        rows = ["--missing-rows", self.missing_rows]
        if self.source is None:
            listed = [f"graft={graft}:{1 - weight!r}", f"instruct={self.instruct.directory}:{weight!r}"]
            return ["--method", "linear", "--models", *listed, *rows]
        return ["--base", str(self.source.directory), "--add", f"instruct={self.instruct.directory}:{weight!r}", "--to", str(graft), *rows]

    def require_alike(self, graft: Checkpoint) -> None:
        """Refuse a graft that cannot be merged, before anything is measured.

        Raises:
            ValueError: naming what differs.
        """
        from conversion.merging.models import Model, require_alike

        others = [self.instruct] if self.source is None else [self.source, self.instruct]
        require_alike(Model.open(graft.name, graft.directory), [Model.open(other.name, other.directory) for other in others])


@dataclass(frozen=True)
class Measuring:
    """What every model is measured on, and where its results go.

    Attributes:
        output: `results` and, while they are measured, `merged` lie here.
    """

    output: Path
    texts: Sequence[Text]
    tasks: Mapping[str, FoundTask]
    settings: Settings
    machine: Machine

    def result_dir(self, name: str) -> Path:
        """Folder of results of a model."""
        return self.output / "results" / name

    def model(self, checkpoint: Checkpoint, lender: Checkpoint) -> None:
        """Measure what is not measured yet; a tokenizer without a chat template is lent one.

        Raises:
            ValueError: if the folder of results is of another model or other settings, or a task failed.
        """
        if self.tasks:
            lend_template(checkpoint, lender)
        folder = self.result_dir(checkpoint.name)
        with folder_in_use(folder):
            left = work_left(folder, checkpoint, self.texts, self.tasks, self.settings)
            if left.is_done:
                print(f"{checkpoint.name}: measured before", file=sys.stderr, flush=True)
                return
            found = evaluate_checkpoint(
                checkpoint, folder, texts=left.texts, tasks=left.tasks, settings=self.settings, machine=self.machine, earlier=left.earlier
            )
        if failures := found.get("failures"):
            raise ValueError(f"{checkpoint.name}: {'; '.join(f'{name}: {reason}' for name, reason in failures.items())}")

    def merge(self, graft: Checkpoint, partner: Partner, weight: float, name: str, *, keep: bool) -> None:
        """Merge and measure, unless that was done of the same models; the merge is removed behind it.

        Raises:
            ValueError: as `model`, or if the merge is refused.
        """
        key = self._key(graft, partner, weight)
        if self._measured().get(name) == key and self._has_all(name) and not keep:
            print(f"{name}: measured before", file=sys.stderr, flush=True)
            return
        folder = self.output / "merged" / name
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted command
        try:
            _run_merge(partner.arguments(graft.directory, weight), folder)
            self.model(inspect_checkpoint(folder, name=name), partner.instruct)
        finally:
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)
                if folder.parent.is_dir() and not any(folder.parent.iterdir()):
                    folder.parent.rmdir()
        write_json(self.output / _MEASURED_NAME, {**self._measured(), name: key})

    def _key(self, graft: Checkpoint, partner: Partner, weight: float) -> str:
        merged = {"graft": graft.digest, "instruct": partner.instruct.digest, "rule": f"{partner.missing_rows} {weight!r}"}
        merged |= {} if partner.source is None else {"source": partner.source.digest}
        return result_key(combined_digest(merged), parts_of_evaluation(self.texts, self.tasks), self.settings)

    def _measured(self) -> dict[str, str]:
        """Name of a merge -> what it was made of and measured on."""
        path = self.output / _MEASURED_NAME
        return read_json(path) if path.is_file() else {}

    def _has_all(self, name: str) -> bool:
        path = self.result_dir(name) / RESULT_NAME
        if not path.is_file():
            return False
        found = load_result(path)
        return {text.name for text in self.texts} <= found["texts"].keys() and self.tasks.keys() <= found["tasks"].keys()


def _run_merge(arguments: Sequence[str], output: Path) -> None:
    words = [sys.executable, "-m", "conversion.merge", *arguments, "--output", str(output)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        message = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise ValueError(f"the merge {output.name} failed: {message.removeprefix('error: ')}")
