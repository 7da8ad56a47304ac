"""Fine-tune encoders on labelled data of one language and score every language: named entities, parts of speech, topics, as in OFA.

Hyperparameters are the paper's; each task is trained once for each seed, the epoch that is best on the development rows of the training
languages is kept, and the test rows of all languages are labelled by it.  Scores go to the models' folders of results, beside those of
eval.harness and eval.retrieval, for eval.report and eval.figures.  An interrupted command resumes from the last saved training state, or
after the last language scored, with the same results.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from common import command
from common.artifacts import combined_digest
from common.options import add_option
from common.progress import Progress, show
from common.tables import markdown_table
from conversion.checkpoints.hf_model import Checkpoint, be_quiet_and_offline, default_device, inspect_checkpoint, require_device
from eval.protocols.rows import data_folder
from eval.protocols.zero_shot import (
    TASKS,
    FineTuning,
    Labelled,
    Prediction,
    Task,
    joined,
    label_names,
    labelled_rows,
    languages_of,
    require_known,
    scores,
    told,
)
from eval.running.added_tasks import AddedTask, Item, add_tasks, is_held, task_digest
from eval.running.earlier import earlier_result, folder_in_use
from eval.running.evaluation import versions_of
from eval.running.journal import Journal
from eval.running.model_names import named_checkpoints
from eval.tuning.fine_tuning import KeptState

STAGE = "eval.finetune"
_WEIGHTS, _STATE = "weights", "training.pt"


@dataclass(frozen=True)
class Job:
    """A task with its rows, the same for all models.

    Attributes:
        tests: by language.
        protocol: what decides the figures beside model and test rows.
    """

    task: Task
    settings: FineTuning
    train: Labelled
    dev: Labelled
    tests: Mapping[str, Labelled]
    names: Sequence[str]
    protocol: Mapping[str, Any]

    def digest(self, language: str) -> str:
        """Identity of the task in a language."""
        return task_digest(self.tests[language].digest(), self.protocol)


def read_job(task: Task, settings: FineTuning, data: Path, arguments: argparse.Namespace) -> Job:
    """A task's rows, all of them looked at.

    Raises:
        ValueError: if rows are missing, empty or have labels that training never had.
    """
    there = languages_of(data, task)
    if unknown := sorted({*arguments.train, *(arguments.languages or ())} - set(there)):
        raise ValueError(f"there are no rows of {task.name} in {', '.join(unknown)}; there are some in {', '.join(there)}")
    train = joined([labelled_rows(data, task, language, "train") for language in arguments.train])
    dev = joined([labelled_rows(data, task, language, "val") for language in arguments.train])
    names = label_names(task, [train])
    tests = {language: labelled_rows(data, task, language, "test") for language in arguments.languages or there}
    require_known(task, "the development rows", dev, names, otherwise="train on languages whose rows have it, with --train")
    for language, rows in tests.items():
        require_known(task, language, rows, names, otherwise="leave the language out with --languages")
    protocol = {
        **told(task, settings, train=arguments.train, seeds=arguments.seeds),
        "train rows": train.digest(),
        "dev rows": dev.digest(),
    }
    return Job(task, settings, train, dev, tests, names, protocol)


class Unit:
    """One training, of a model on a task with a seed: its state, then its weights and what they say of each language, kept until the task is done."""

    def __init__(self, checkpoint: Checkpoint, job: Job, seed: int, folder: Path, *, state_every_seconds: float) -> None:
        parts = {"model": checkpoint.digest, "protocol": json.dumps([job.protocol, versions_of("hf")], sort_keys=True), "seed": str(seed)}
        self._folder = folder / f"{job.task.name}-seed{seed}-{combined_digest(parts).removeprefix('xxh3:')[:16]}"
        self._checkpoint, self._job, self._seed = checkpoint, job, seed
        self._journal = Journal(self._folder / "predictions.jsonl")
        self._state = KeptState(self._folder / _STATE, every_seconds=state_every_seconds)

    def predictions(self, languages: Sequence[str], *, device: str, micro_batch_size: int) -> dict[str, list[Prediction]]:
        """Labels of each language's test rows, from the journal where they are there."""
        keys = {language: f"{language} {self._job.tests[language].digest()}" for language in languages}
        if missing := [language for language in languages if keys[language] not in self._journal]:
            self._label(missing, keys, device=device, micro_batch_size=micro_batch_size)
        numbers = {language: self._journal[keys[language]]["answer"] for language in languages}
        return {language: [[self._job.names[number] for number in row] for row in rows] for language, rows in numbers.items()}

    def by_epoch(self) -> list[float]:
        """The headline on development rows after each epoch."""
        return list(self._journal["trained"]["by_epoch"])

    def _label(self, languages: Sequence[str], keys: Mapping[str, str], *, device: str, micro_batch_size: int) -> None:
        from eval.tuning.fine_tuning import Reader, predict

        job, number = self._job, {name: index for index, name in enumerate(self._job.names)}
        reader = Reader(self._checkpoint, job.task, max_tokens=job.settings.max_tokens)
        model = self._trained(reader, device=device, micro_batch_size=micro_batch_size)
        with Progress(f"{self._training_name()}, labelling", total=len(languages), unit="languages") as progress:
            for language in languages:
                found = predict(model, job.task, reader, job.names, job.tests[language], batch_size=micro_batch_size)
                self._journal.add([{"key": keys[language], "answer": [[number[label] for label in labels] for labels in found]}])
                progress.advance(1)

    def _trained(self, reader: Any, *, device: str, micro_batch_size: int) -> Any:
        """The fine-tuned model: as it was saved, or trained now."""
        from eval.tuning.fine_tuning import fine_tune, load_tagger, new_tagger

        job, weights = self._job, self._folder / _WEIGHTS
        if weights.is_dir():
            self._state.remove()
            return load_tagger(weights, job.task, device=device)
        model = new_tagger(self._checkpoint, job.task, job.names, seed=self._seed, device=device)
        start = time.monotonic()
        by_epoch = fine_tune(
            model,
            job.task,
            job.settings,
            reader,
            job.names,
            train=job.train,
            dev=job.dev,
            seed=self._seed,
            micro_batch_size=micro_batch_size,
            label=f"{self._training_name()}, training",
            kept=self._state,
        )
        partial = weights.with_name(f".{_WEIGHTS}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        model.save_pretrained(partial)
        self._journal.add([{"key": "trained", "by_epoch": by_epoch}])
        os.replace(partial, weights)
        self._state.remove()
        best = max(by_epoch)
        print(
            f"{self._training_name()}: trained in {time.monotonic() - start:.1f} s, best of {len(by_epoch)} epochs is"
            f" {by_epoch.index(best) + 1} with {best:.4f} on the development rows",
            file=sys.stderr,
            flush=True,
        )
        return model

    def _training_name(self) -> str:
        return f"{self._checkpoint.name}, {self._job.task.name}, seed {self._seed}"

    def remove(self) -> None:
        """What was kept, which the results hold now."""
        shutil.rmtree(self._folder, ignore_errors=True)


def evaluate(checkpoint: Checkpoint, job: Job, arguments: argparse.Namespace) -> dict[str, Any]:
    """One model on one task: all seeds, all languages that its results lack; returns its results."""
    output = arguments.output / checkpoint.name
    earlier = earlier_result(output, checkpoint)
    names = {language: f"{job.task.name}_{language}" for language in job.tests}
    languages = [language for language in job.tests if not is_held(earlier, names[language], job.digest(language))]
    if not languages and earlier is not None:
        print(f"{checkpoint.name}, {job.task.name}: evaluated before", file=sys.stderr, flush=True)
        return earlier
    folder = arguments.output / ".answers" / f"finetune-{checkpoint.digest.removeprefix('xxh3:')[:16]}"
    every = 60 * arguments.state_every_minutes
    units = [Unit(checkpoint, job, seed, folder, state_every_seconds=every) for seed in arguments.seeds]
    found = [unit.predictions(languages, device=arguments.device, micro_batch_size=arguments.micro_batch_size) for unit in units]
    facts = {"by_epoch": {str(seed): unit.by_epoch() for seed, unit in zip(arguments.seeds, units, strict=True)}}
    tasks = {
        names[language]: added_task(checkpoint, job, language, [one[language] for one in found], {**facts, "language": language})
        for language in languages
    }
    result = add_tasks(checkpoint, output, tasks, dtype="float32", device=arguments.device)
    if not arguments.keep_models:
        for unit in units:
            unit.remove()
        for directory in (folder, folder.parent):
            if directory.is_dir() and not any(directory.iterdir()):
                directory.rmdir()
    return result


def added_task(
    checkpoint: Checkpoint, job: Job, language: str, predicted: Sequence[Sequence[Prediction]], facts: Mapping[str, Any]
) -> AddedTask:
    """Scores of a language over the seeds, and of each of its rows."""
    from eval.tuning.fine_tuning import Reader

    rows = job.tests[language]
    right = [
        fmean(fmean(a == b for a, b in zip(expected, one[number], strict=True)) for one in predicted)
        for number, expected in enumerate(rows.labels)
    ]
    items = [
        Item(identity, " ".join(inputs), " ".join(expected), " ".join(answer), {"acc": share})
        for identity, inputs, expected, answer, share in zip(rows.ids, rows.inputs, rows.labels, predicted[0], right, strict=True)
    ]
    _, cuts = Reader(checkpoint, job.task, max_tokens=job.settings.max_tokens).passages(rows)
    return AddedTask(
        metrics=scores(job.task, rows, predicted, job.names),
        items=items,
        digest=job.digest(language),
        protocol=job.protocol,
        facts={**facts, "cut": asdict(cuts)},
    )


def results_table(task: Task, results: Sequence[Mapping[str, Any]], languages: Sequence[str]) -> str:
    """The headline in percent of every language, and its mean."""
    names = {language: f"{task.name}_{language}" for language in languages}
    found = {
        language: [100 * result["tasks"][name]["metrics"][task.headline]["value"] for result in results] for language, name in names.items()
    }
    rows = [[language, *(f"{value:.1f}" for value in values)] for language, values in found.items()]
    rows.append(["mean", *(f"{fmean(column):.1f}" for column in zip(*found.values(), strict=True))])
    return markdown_table([f"{task.title}, {task.headline}", *(str(result["name"]) for result in results)], rows)


def cuts_note(task: Task, results: Sequence[Mapping[str, Any]], languages: Sequence[str]) -> str:
    """What did not fit, of all models and languages; empty where all did."""
    parts = []
    for result in results:
        cuts = [result["tasks"][f"{task.name}_{language}"]["cut"] for language in languages]
        told_of = {
            "sentences were split between words": sum(cut["sentences"] for cut in cuts),
            "words were truncated": sum(cut["words"] for cut in cuts),
            "texts were truncated": sum(cut["texts"] for cut in cuts),
        }
        parts += [f"{result['name']}: {count} {what}" for what, count in told_of.items() if count]
    return "; ".join(parts)


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__, example=f"python -m {STAGE} --model xlmr=xlm-r/ ofa=hf/ --data eval_data/ --tasks ner pos --output results/"
    )
    add_option(parser, "--model [NAME=]FOLDER", "Hugging Face folders of encoders", nargs="+", required=True)
    add_option(parser, "--tasks", "tasks to fine-tune on (default: all three)", list(TASKS), nargs="+", choices=tuple(TASKS))
    add_option(parser, "--data DIR", "evaluation data of eval.prepare: wikiann, ud_pos, taxi1500")
    add_option(parser, "--train LANGUAGE", "languages to train on and to select the best epoch on (default: eng)", ["eng"], nargs="+")
    add_option(parser, "--languages LANGUAGE", "languages to score (default: all that have rows)", nargs="+")
    add_option(parser, "--seeds N", "seeds, each a training run (default: 1 2 3 4 5)", [1, 2, 3, 4, 5], nargs="+", type=int)
    add_option(parser, "--learning-rate", "peak learning rate (default: the paper's, 2e-5; of taxi1500 1e-5)", type=float)
    add_option(parser, "--global-batch-size", "sentences per optimizer step (default: the paper's, 32; of taxi1500 16)", type=int)
    add_option(parser, "--epochs", "number of epochs (default: the paper's, 10; of taxi1500 40)", type=int)
    add_option(parser, "--max-tokens", "maximum length of a passage, in tokens (default: the paper's, 256; of taxi1500 100)", type=int)
    add_option(parser, "--micro-batch-size", "passages per forward pass; changes results only by rounding", 8)
    add_option(parser, "--device", "device: cpu, cuda or cuda:1 ... (default: cuda where there is one)")
    add_option(parser, "--state-every-minutes N", "minutes between saves of the training state, for resuming (default: 10)", 10.0)
    add_option(parser, "--keep-models", "keep the trained weights, to score more languages later", False)
    add_option(parser, "--output DIR", "folder to write: one folder of results per model, as eval.harness writes", type=Path, required=True)
    return parser


def _settings(task: Task, arguments: argparse.Namespace) -> FineTuning:
    given = {name: value for name in asdict(task.paper) if (value := getattr(arguments, name, None)) is not None}
    return replace(task.paper, **given)


def main(argv: Sequence[str] | None = None) -> int:
    """Train and score all models on all tasks, and print a table of each task."""
    arguments = _parser().parse_args(argv)
    command.require_at_least(1, arguments, "micro_batch_size")
    if not arguments.state_every_minutes >= 0:
        raise ValueError(f"--state-every-minutes is {arguments.state_every_minutes}; expected at least 0 (0: after every step)")
    if len(set(arguments.seeds)) < len(arguments.seeds):
        raise ValueError(f"--seeds {' '.join(map(str, arguments.seeds))} names a seed twice; give each once")
    show("loading the model and its tasks")
    settings = {name: _settings(TASKS[name], arguments) for name in arguments.tasks}
    data = data_folder(arguments.data)
    be_quiet_and_offline()
    arguments.device = require_device(arguments.device or default_device())
    checkpoints = [inspect_checkpoint(folder, name=name) for name, folder in named_checkpoints(arguments.model).items()]
    from eval.tuning.fine_tuning import require_encoder

    for checkpoint in checkpoints:
        require_encoder(checkpoint)
    jobs = [read_job(TASKS[name], settings[name], data, arguments) for name in arguments.tasks]
    for job in jobs:
        results = []
        for checkpoint in checkpoints:
            # Of the trainings, not of the results, which another command may add to meanwhile.
            with folder_in_use(arguments.output / f"{checkpoint.name}-finetune"):
                results.append(evaluate(checkpoint, job, arguments))
        print(results_table(job.task, results, list(job.tests)))
        if note := cuts_note(job.task, results, list(job.tests)):
            print(f"note: {note}")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
