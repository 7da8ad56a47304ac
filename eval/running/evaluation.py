"""One model evaluated on texts and tasks: its folder of results, written once complete, and the answers kept until then."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.artifacts import combined_digest, digest_bytes, make_group_readable, partial_directory, staged_directory, write_manifest
from common.progress import Counter, Progress
from conversion.checkpoints.hf_model import Checkpoint, is_masked, load_model
from conversion.measuring.bits_per_byte import (
    DEFAULT_WINDOW_TOKENS,
    TextScore,
    choose_start_token,
    choose_window_tokens,
    score_documents,
)
from conversion.measuring.intervals import ratio_interval
from conversion.measuring.pseudo_likelihood import PseudoScore, score_documents_by_filling_in
from data_prep.reading.named_texts import Text
from eval.running.backends import Machine, Settings, open_backend
from eval.running.chat import Chat
from eval.running.journal import Journal
from eval.running.results import PSEUDO, PSEUDO_TEXTS, RESULT_FORMAT, failure_reason, write_lines, write_result
from eval.running.task_runs import FoundTask, item_scores, run_task

if TYPE_CHECKING:
    from eval.running.encoding import Encoder

_VLLM_PIECE = 256  # requests between two writes; it makes its own batches


def result_key(model_digest: str, parts: Mapping[str, str], settings: Settings) -> str:
    """Identity of results: equal for equal weights, tokenizer, texts, tasks with their prompts, settings and library versions.

    Args:
        parts: of `parts_of`.
    """
    return combined_digest({**parts, "model": model_digest, "rest": _rest(settings)})


def parts_of(texts: Iterable[Text], tasks: Mapping[str, FoundTask]) -> dict[str, str]:
    """What is evaluated -> its digest."""
    return {f"text {text.name}": text.digest for text in texts} | {f"task {name}": found.digest for name, found in tasks.items()}


def parts_of_result(result: Mapping[str, Any]) -> dict[str, str]:
    """What was evaluated -> its digest, as `parts_of`."""
    texts = {**result["texts"], **result.get(PSEUDO_TEXTS, {})}
    return {
        f"{kind} {name}": part["digest"] for kind, parts in (("text", texts), ("task", result["tasks"])) for name, part in parts.items()
    }


def _rest(settings: Settings) -> str:
    return json.dumps([RESULT_FORMAT, settings.told(), versions_of(settings.backend)])


def versions_of(backend: str) -> dict[str, str]:
    """Versions of the packages that a figure may depend on."""
    from importlib.metadata import version

    packages = ("lm_eval", "torch", "transformers", "tokenizers", *(("vllm",) if backend == "vllm" else ()))
    return {package: version(package) for package in packages}


def evaluate_checkpoint(
    checkpoint: Checkpoint,
    output_dir: Path,
    *,
    texts: Sequence[Text],
    tasks: Mapping[str, FoundTask],
    settings: Settings,
    machine: Machine,
    earlier: Mapping[str, Any] | None = None,
    encoder: Encoder | None = None,
) -> dict[str, Any]:
    """Evaluate one model and write its folder of results; returns what `result.json` says.

    A task that fails does not keep the others from being kept: `failures` of the result says of each why, and its answers wait for the
    next attempt.

    Args:
        texts, tasks: those that the folder does not hold yet.
        earlier: what the folder's `result.json` says, whose figures stay; None where there is no folder.
        encoder: of the model's tokenizer, which knows texts that other models were asked.

    Raises:
        ValueError: if the model cannot be loaded or its logits are not finite on a text, if nothing at all could be evaluated, or if
            `output_dir` is not empty and there is no earlier result.
    """
    answers_dir = _answers_dir(checkpoint, output_dir, settings)

    def evaluate(result: dict[str, Any], staging: Path) -> None:
        result["settings"] |= asdict(machine)
        _evaluate_parts(_Evaluation(checkpoint, texts, tasks, settings, machine, answers_dir, encoder, result, staging))

    result = gather(checkpoint, output_dir, settings, earlier=earlier, add=evaluate)
    _remove_answers(answers_dir, texts, tasks, done=result["tasks"])
    return result


def gather(
    checkpoint: Checkpoint,
    output_dir: Path,
    settings: Settings,
    *,
    earlier: Mapping[str, Any] | None,
    add: Callable[[dict[str, Any], Path], None],
) -> dict[str, Any]:
    """Write a model's folder of results, or add to it; returns what `result.json` says.

    Args:
        earlier: what the folder's `result.json` says, whose figures stay; None where there is no folder.
        add: puts what is new into the result, and its files into a folder.

    Raises:
        ValueError: if `output_dir` is not empty and there is no earlier result.
    """
    start = time.monotonic()
    result: dict[str, Any] = _description(checkpoint, settings) if earlier is None else json.loads(json.dumps(earlier))
    result.setdefault("failures", {})

    def fill(staging: Path) -> None:
        add(result, staging)
        result["key"] = result_key(checkpoint.digest, parts_of_result(result), settings)
        result["seconds"] = round(result.get("seconds", 0.0) + time.monotonic() - start, 2)

    if earlier is None:
        with staged_directory(output_dir) as staging:
            fill(staging)
            _seal(staging, result, settings)
    else:
        with partial_directory(output_dir) as folder:
            fill(folder)
            _move_files(folder, output_dir)
        _seal(output_dir, result, settings)  # nothing reads a new file before the result names it
        make_group_readable(output_dir)
    return result


def _seal(directory: Path, result: Mapping[str, Any], settings: Settings) -> None:
    write_result(directory, result)
    texts = {**result["texts"], **result.get(PSEUDO_TEXTS, {})}
    write_manifest(
        directory,
        stage="eval.harness",
        facts=result["facts"],
        arguments={**asdict(settings), "tasks": list(result["tasks"]), "texts": list(texts)},
        inputs={"model": result["model"]["digest"], **{f"text {name}": text["digest"] for name, text in texts.items()}},
    )


def _move_files(source: Path, target: Path) -> None:
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        moved = target / path.relative_to(source)
        moved.parent.mkdir(exist_ok=True)
        os.replace(path, moved)


@dataclass(frozen=True)
class _Evaluation:
    """What one model is asked, and where its figures and files go; see `evaluate_checkpoint`."""

    checkpoint: Checkpoint
    texts: Sequence[Text]
    tasks: Mapping[str, FoundTask]
    settings: Settings
    machine: Machine
    answers_dir: Path
    encoder: Encoder | None
    result: dict[str, Any]
    staging: Path


def _evaluate_parts(asked: _Evaluation) -> None:
    """Add texts, tasks and failures to a result, and their files to a folder."""
    result, checkpoint = asked.result, asked.checkpoint
    window_tokens = choose_window_tokens(checkpoint.num_positions, asked.settings.context_length)
    if is_masked(checkpoint.model_type):  # apart, so that nothing that reads texts of causal models takes these for them
        model = load_model(checkpoint, device=asked.machine.device, dtype=asked.settings.dtype, masked=True)
        result["model"]["num_parameters"] = model.num_parameters()
        score = partial(score_documents_by_filling_in, model, checkpoint.tokenizer, window_tokens=window_tokens)
        for text in asked.texts:
            result.setdefault(PSEUDO_TEXTS, {})[text.name] = _score_text(asked, text, score, prefix=PSEUDO)
        return
    result["settings"]["window_tokens"] = window_tokens
    if asked.tasks and asked.encoder is None:
        from eval.running.encoding import Encoder

        asked = replace(asked, encoder=Encoder(checkpoint.tokenizer))
    with _model(asked) as model:
        _evaluate_with(model, asked, window_tokens)
    if not result["texts"] and not result["tasks"]:
        raise ValueError(failures_sentence(result["failures"]))


@contextlib.contextmanager
def _model(asked: _Evaluation) -> Iterator[Any]:
    """The model, or processes that have it; None where only vLLM needs it."""
    checkpoint, settings, machine, texts = asked.checkpoint, asked.settings, asked.machine, bool(asked.texts)
    if machine.workers > 1:
        from eval.running.workers import Workers, devices_of_workers

        devices = devices_of_workers(machine.device, machine.workers)
        with Workers(checkpoint, settings, machine, devices=devices, texts=texts, encoder=asked.encoder) as workers:
            yield workers
        return
    yield load_model(checkpoint, device=machine.device, dtype=settings.dtype) if texts or settings.backend == "hf" else None


def _evaluate_with(model: Any, asked: _Evaluation, window_tokens: int) -> None:
    result, checkpoint, tasks, settings, machine = asked.result, asked.checkpoint, asked.tasks, asked.settings, asked.machine
    if model is not None:
        count = model.num_parameters
        result["model"]["num_parameters"] = count() if callable(count) else count
    if asked.texts:
        start_token = choose_start_token(checkpoint.tokenizer, settings.start_token)
        result["settings"]["start_token_used"] = asdict(start_token)
        score = partial(score_documents, model, checkpoint.tokenizer, start_token=start_token, window_tokens=window_tokens)
        for text in asked.texts:
            num_words = sum(len(document.split()) for document in text.documents)
            result["texts"][text.name] = _score_text(asked, text, score, num_words=num_words)
    if not tasks:
        return
    chat = settings.chat(checkpoint)
    if chat is not None:
        result["chat"] = {"template": chat.template, "template_digest": chat.template_digest, "special_tokens": dict(chat.special_tokens)}
    chats = {name: found.build(chat) for name, found in tasks.items()} if chat is not None else {}
    positions = _task_positions(checkpoint, tasks, settings)
    result["settings"]["task_positions"] = max(positions, result["settings"].get("task_positions", 0))
    if machine.workers > 1:
        model.max_length, lm = positions, model
    else:
        lm = open_backend(model, checkpoint, positions, settings, machine, asked.encoder)
    _answer_tasks(lm, asked, chats)


@contextlib.contextmanager
def _part(checkpoint: Checkpoint, name: str) -> Iterator[None]:
    """Say on stderr that a text or task is done, and how long it took."""
    start = time.monotonic()
    yield
    print(f"{checkpoint.name}, {name}: {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)


def failures_sentence(failures: Mapping[str, str]) -> str:
    """Which tasks failed and why, tasks of one reason together."""
    tasks_of: dict[str, list[str]] = {}
    for name, reason in failures.items():
        tasks_of.setdefault(reason, []).append(name)
    return "; ".join(f"{'task' if len(names) == 1 else 'tasks'} {', '.join(names)}: {reason}" for reason, names in tasks_of.items())


def _answers_dir(checkpoint: Checkpoint, output_dir: Path, settings: Settings) -> Path:
    """Where answers are kept until the folder is complete: of this model, these settings and versions alone."""
    digest = combined_digest({"model": checkpoint.digest, "rest": _rest(settings)})
    return output_dir.parent / ".answers" / digest.removeprefix("xxh3:")[:16]


def _journal_path(answers_dir: Path, found: FoundTask) -> Path:
    digest = digest_bytes(found.digest.encode()).removeprefix("xxh3:")[:16]
    return answers_dir / f"{found.name}.{digest}.jsonl"


def _text_journal_path(answers_dir: Path, text: Text) -> Path:
    return answers_dir / f"text-{text.name}.{digest_bytes(text.digest.encode()).removeprefix('xxh3:')[:16]}.jsonl"


def _remove_answers(answers_dir: Path, texts: Iterable[Text], tasks: Mapping[str, FoundTask], *, done: Container[str]) -> None:
    """Remove what was kept of texts and of tasks that are done, which the folder holds now; answers to tasks that failed wait."""
    for text in texts:
        _text_journal_path(answers_dir, text).unlink(missing_ok=True)
    for name, found in tasks.items():
        if name in done:
            _journal_path(answers_dir, found).unlink(missing_ok=True)
    for directory in (answers_dir, answers_dir.parent):
        if directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()


def _description(checkpoint: Checkpoint, settings: Settings) -> dict[str, Any]:
    return {
        "format": RESULT_FORMAT,
        "key": "",
        "name": checkpoint.name,
        "model": {
            "digest": checkpoint.digest,
            "tokenizer_digest": checkpoint.tokenizer_digest,
            "model_type": checkpoint.model_type,
            "vocab_size": checkpoint.vocab_size,
            "tie_word_embeddings": checkpoint.tie_word_embeddings,
            "written_by": checkpoint.stage,
            **({"adapter": checkpoint.adapter.name} if checkpoint.adapter is not None else {}),
            "num_parameters": None,
        },
        "facts": checkpoint.facts,
        "settings": asdict(settings),
        "texts": {},
        "tasks": {},
        "failures": {},
        "versions": versions_of(settings.backend),
    }


class _TextMemory:
    """Scores of a text's windows, in a journal, counted as they come; and how long those took that an earlier process scored."""

    def __init__(self, journal: Journal, progress: Counter) -> None:
        self._journal, self._progress, self._last = journal, progress, time.monotonic()
        self.earlier_seconds = 0.0

    def get(self, window: int) -> float | None:
        kept = self._journal.get(str(window))
        if kept is None:
            return None
        self._progress.advance(window >= 0)
        self.earlier_seconds += kept["seconds"]
        self._last = time.monotonic()
        return float(kept["answer"])

    def keep(self, nats: Mapping[int, float]) -> None:
        each = (time.monotonic() - self._last) / len(nats)
        self._journal.add([{"key": str(window), "answer": value, "seconds": each} for window, value in nats.items()])
        self._progress.advance(sum(window >= 0 for window in nats))
        self._last = time.monotonic()


def _score_text(
    asked: _Evaluation, text: Text, score: Callable[..., TextScore | PseudoScore], *, prefix: str = "", **more: int
) -> dict[str, Any]:
    """The figures of a text, with `more` of them, whose documents' are written to a file."""
    start, name = time.monotonic(), asked.checkpoint.name
    with _part(asked.checkpoint, text.name), Progress(f"{name}, {text.name}", total=None, unit="windows") as progress:
        memory = _TextMemory(Journal(_text_journal_path(asked.answers_dir, text)), progress)
        found = score(text.documents, text_name=f"{text.path} with model {name}", memory=memory)
    write_lines(asked.staging / "documents" / f"{prefix}{text.name}.jsonl", (asdict(document) for document in found.documents))
    seconds = round(time.monotonic() - start + memory.earlier_seconds, 4)
    return {**found.figures(), **_interval(found), **more, "seconds": seconds, "digest": text.digest}


def _interval(score: TextScore | PseudoScore) -> dict[str, float | None]:
    """95 % interval of bits per byte over documents; no ends where one document says nothing of others."""
    bits = [document.nats / math.log(2) + 8 * document.unknown_bytes for document in score.documents]
    estimate = ratio_interval(bits, [document.text_bytes for document in score.documents], bounds=(0, math.inf))
    return {end: estimate.figures()[end] for end in ("low", "high")}


def _task_positions(checkpoint: Checkpoint, tasks: Mapping[str, FoundTask], settings: Settings) -> int:
    """Positions that prompts and answers may take: as wanted, else the model's, or without a limit as many as these tasks need.

    vLLM keeps memory for every position it is told of, so it is told of no more than these tasks need either.
    """
    if settings.context_length is not None:
        return settings.context_length
    if settings.backend == "hf" and checkpoint.num_positions is not None:
        return checkpoint.num_positions
    from eval.running.answers import tokens_needed

    needed = max(tokens_needed(found.task.instances, checkpoint.tokenizer.encode) for found in tasks.values())
    return min(max(needed, DEFAULT_WINDOW_TOKENS), checkpoint.num_positions or needed + DEFAULT_WINDOW_TOKENS)


def _answer_tasks(backend: Any, asked: _Evaluation, chats: Mapping[str, Chat | None]) -> None:
    """Ask the requests of all tasks in one queue, then let lm-eval score each task by its answers."""
    from eval.running.answers import RememberingModel
    from eval.running.asking import ask_all

    result, checkpoint, tasks, settings = asked.result, asked.checkpoint, asked.tasks, asked.settings
    counts = {name: sum(instance.repeats or 1 for instance in found.task.instances) for name, found in tasks.items()}
    for number, name in enumerate(tasks, start=1):
        result["failures"].pop(name, None)
        print(f"{checkpoint.name}, {name}: task {number} of {len(tasks)}, {counts[name]} requests", file=sys.stderr, flush=True)
    size = _VLLM_PIECE if settings.backend == "vllm" else asked.machine.batch_size
    failures: dict[str, Exception] = {}
    label = next(iter(tasks)) if len(tasks) == 1 else f"{len(tasks)} tasks"
    with _part(checkpoint, label), Progress(f"{checkpoint.name}, {label}", total=sum(counts.values()), unit="answers") as progress:
        models = {
            name: RememberingModel(
                backend,
                Journal(_journal_path(asked.answers_dir, found)),
                requests_per_piece=size,
                cut_prompts=settings.cut_prompts,
                sampling_seed=settings.sampling_seed,
                progress=progress,
                chat=chats.get(name),
            )
            for name, found in tasks.items()
        }
        questions = []
        for name, found in tasks.items():
            try:
                questions += models[name].questions_of(found.task.instances)
            except Exception as error:  # a request's arguments are its owner's
                failures[name] = error
        given_up = ask_all(backend, questions, size=size)
        failures |= {name: given_up[model] for name, model in models.items() if model in given_up}
    for name, found in tasks.items():
        try:
            if name in failures:
                raise failures[name]
            summary, samples = run_task(models[name], found, chats.get(name))
            write_lines(asked.staging / "samples" / f"{name}.jsonl", samples)
            write_lines(asked.staging / "items" / f"{name}.jsonl", [item_scores(samples)])
            result["tasks"][name] = summary
        except Exception as error:  # a task's functions are its owner's, and raise anything
            result["failures"][name] = failure_reason(error)
