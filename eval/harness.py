"""Evaluate checkpoints: bits per byte on held-out texts, and lm-eval tasks from local task folders.

Every model gets a folder of its own below --output with `result.json`, the samples and items' scores of every task, the figures of every
document and its manifest.  Results of the same model and settings are kept: running the command again adds what is new,
what failed or what was interrupted, which resumes after the last answer written.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from common import command
from common.options import values_of
from common.progress import show
from common.tables import markdown_table
from conversion.checkpoints.hf_model import Checkpoint, be_quiet_and_offline, default_device, inspect_checkpoint, is_masked
from conversion.measuring.bits_per_byte import choose_start_token, choose_window_tokens
from conversion.measuring.pseudo_likelihood import require_mask
from data_prep.reading.named_texts import Text, read_texts
from eval.running.backends import Machine, Settings
from eval.running.earlier import folder_in_use, work_left
from eval.running.evaluation import evaluate_checkpoint, failures_sentence
from eval.running.harness_options import add_harness_arguments, vllm_arguments
from eval.running.model_names import named_checkpoints
from eval.running.results import PSEUDO_TEXTS, headline_score, score_names
from eval.running.task_runs import TASKS_DIR, FoundTask, find_usable_tasks, unknown_task_problems
from eval.running.workers import devices_of_workers, import_once
from recipes.runs.run_dir import RECIPE_NAME

if TYPE_CHECKING:
    from eval.running.encoding import Encoder


def results_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Bits per byte of every text and the headline of every task in rows, models in columns."""
    texts = list(dict.fromkeys(name for result in results for name in result["texts"]))
    tasks = list(dict.fromkeys(name for result in results for name in result["tasks"]))
    rows = []
    for name in texts:
        figures = [result["texts"].get(name) for result in results]
        rows.append([name, "bits per byte", *("–" if f is None else f"{f['bits_per_byte']:.4f}" for f in figures)])
        of_parts = [{} if f is None else f.get("parts", {}) for f in figures]
        for part in dict.fromkeys(part for parts in of_parts for part in parts):
            rows.append([name, part, *(f"{parts[part]['bits_per_byte']:.4f}" if part in parts else "–" for parts in of_parts)])
    for name in dict.fromkeys(name for result in results for name in result.get(PSEUDO_TEXTS, {})):
        figures = [result.get(PSEUDO_TEXTS, {}).get(name) for result in results]
        rows.append([name, "pseudo bits per byte", *("–" if f is None else f"{f['pseudo_bits_per_byte']:.4f}" for f in figures)])
    for name in tasks:
        summaries = [result["tasks"].get(name) for result in results]
        metric = next(score_names(summary["metrics"])[0] for summary in summaries if summary is not None)
        rows.append([name, metric, *("–" if summary is None else _score_text(headline_score(summary)) for summary in summaries)])
    rows.append(["", "seconds", *(f"{result['seconds']:.1f}" for result in results)])
    return markdown_table(["text or task", "score", *(result["name"] for result in results)], rows, text_columns=2)


def _score_text(score: Mapping[str, Any]) -> str:
    if score["value"] is None or score["value"] != score["value"]:
        return "–"
    interval = "" if None in (score["low"], score["high"]) else f" [{score['low']:.3f}, {score['high']:.3f}]"
    return f"{score['value']:.3f}{interval}"


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__,
        example="python -m eval.harness --model hf/ --text sl=heldout.sl.txt en=heldout.en.txt --tasks completion_sl --output results/",
    )
    add_harness_arguments(parser)
    return parser


def argument_problems(arguments: Mapping[str, Any]) -> list[str]:
    """What is wrong with arguments that parse, for who plans the command and runs it later."""
    return unknown_task_problems(arguments["tasks"], [TASKS_DIR, *arguments["task_dir"]])


def _settings(arguments: argparse.Namespace) -> Settings:
    if arguments.fewshot_as_multiturn is None:
        arguments.fewshot_as_multiturn = arguments.chat_template is not None
    if arguments.fewshot_as_multiturn and arguments.chat_template is None:
        raise ValueError("--fewshot-as-multiturn needs --chat-template, whose template makes the turns; give both")
    if arguments.system_prompt is not None and not arguments.system_prompt.strip():
        raise ValueError("--system-prompt is empty; give the text, or leave it out")
    return Settings(**values_of(arguments, Settings))


def _metadata(arguments: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """What the tasks get."""
    try:
        metadata = json.loads(arguments.metadata)
    except ValueError as error:
        raise ValueError(f"--metadata {arguments.metadata} is not valid JSON: {error}") from error
    if not isinstance(metadata, dict):
        raise ValueError(f'--metadata {arguments.metadata} is not a JSON object; expected one such as {{"shots": 3}}')
    beams = metadata.get("beams", 1)
    if not isinstance(beams, int) or beams < 1:
        raise ValueError(f"--metadata has beams {beams}; expected a number of beams, at least 1")
    if beams > 1 and arguments.backend == "vllm":
        raise ValueError(f"--metadata has beams {beams}, but vLLM does not support beam sampling; give --backend hf")
    if arguments.data is not None:
        metadata["data"] = arguments.data
    if settings.fewshot_as_multiturn:
        metadata["turns"] = True
    return metadata


def _tasks(arguments: argparse.Namespace, metadata: Mapping[str, Any]) -> tuple[dict[str, FoundTask], dict[str, str]]:
    """Tasks that can be asked, and why the others cannot."""
    if arguments.rouge_tokenizer is not None:
        os.environ["SCION_ROUGE_TOKENIZER"] = arguments.rouge_tokenizer
    if not arguments.tasks:
        return {}, {}
    print(f"reading the rows of {', '.join(arguments.tasks)}", file=sys.stderr, flush=True)
    found, unusable = find_usable_tasks(
        arguments.tasks, task_dirs=(TASKS_DIR, *arguments.task_dir), metadata=metadata, hub=arguments.hub, limit=arguments.limit
    )
    if unusable and not found and not arguments.text:
        raise ValueError(next(iter(unusable.values())) if len(set(unusable.values())) == 1 else failures_sentence(unusable))
    return found, unusable


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate all models given; a model or task that fails is named at the end and does not keep the others from being evaluated."""
    arguments = _parser().parse_args(argv)
    if not arguments.text and not arguments.tasks:
        raise ValueError("nothing to evaluate: give --text, --tasks or both")
    command.require_at_least(1, arguments, "batch_size", "workers", "limit")
    if arguments.run is not None and not (arguments.run / RECIPE_NAME).is_file():
        raise ValueError(f"--run {arguments.run} has no {RECIPE_NAME}; expected the output of `python -m recipes.train`")
    vllm_arguments(arguments.vllm_arguments, arguments.backend)
    show(f"evaluating {', '.join(map(str, arguments.model))}: loading")
    settings = _settings(arguments)
    metadata = _metadata(arguments, settings)
    texts = read_texts(arguments.text, text_key=arguments.text_key, separator=arguments.document_separator)
    be_quiet_and_offline()
    folders = named_checkpoints(arguments.model)
    if arguments.workers > 1:
        import_once(arguments.backend, devices_of_workers(arguments.device or default_device(), arguments.workers)[0])
    checkpoints = [inspect_checkpoint(folder, name=name, base=arguments.base) for name, folder in folders.items()]
    tasks, unusable = _tasks(arguments, metadata)
    for checkpoint in checkpoints:  # before any model is loaded
        if is_masked(checkpoint.model_type):
            _require_texts_alone(checkpoint, arguments)
            choose_window_tokens(checkpoint.num_positions, settings.context_length)
            continue
        settings.chat(checkpoint)
        choose_window_tokens(checkpoint.num_positions, settings.context_length)
        choose_start_token(checkpoint.tokenizer, settings.start_token)
    for checkpoint in checkpoints:
        work_left(arguments.output / checkpoint.name, checkpoint, texts, tasks, settings)
    for name in unusable:  # known before hours of work, told again at the end
        print(f"task {name} is skipped: {unusable[name]}", file=sys.stderr, flush=True)
    results, failures = _evaluate_all(checkpoints, texts, tasks, arguments, settings)
    if results:
        print(results_table(results))
    if results and arguments.run is not None:
        from eval.running.run_logs import log_results

        for description in log_results(arguments.run, arguments.output, {result["name"] for result in results}):
            print(f"logged: {description}", file=sys.stderr, flush=True)
    _print_notes(results)
    problems = []
    if failures:
        problems.append(f"{len(failures)} of {len(checkpoints)} models could not be evaluated: {'; '.join(failures)}")
    if unfinished := _unfinished_tasks(results, unusable, set(tasks)):
        problems.append(f"{unfinished}; finished results are kept, and the same command does the rest")
    if problems:
        raise ValueError("; ".join(problems))
    return command.DONE


def _require_texts_alone(checkpoint: Checkpoint, arguments: argparse.Namespace) -> None:
    """Refuse what a masked model cannot be asked.

    Raises:
        ValueError: if tasks or several processes are asked for, or its tokenizer has no mask token.
    """
    if arguments.tasks:
        raise ValueError(
            f"the model in {checkpoint.directory} ({checkpoint.model_type}) is a masked language model, which lm-eval's tasks cannot score; give it"
            " --text alone (pseudo bits per byte), or eval.finetune and eval.retrieval"
        )
    if arguments.workers > 1:
        raise ValueError(
            f"--workers is {arguments.workers}, but pseudo bits per byte are computed by one process; leave it out for {checkpoint.directory}"
        )
    require_mask(checkpoint.tokenizer, owner=str(checkpoint.directory))


def _evaluate_all(
    checkpoints: Sequence[Checkpoint],
    texts: Sequence[Text],
    tasks: Mapping[str, FoundTask],
    arguments: argparse.Namespace,
    settings: Settings,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Results of the models that could be evaluated, and why the others could not."""
    machine = Machine(
        arguments.device or default_device(),
        arguments.batch_size,
        arguments.workers,
        vllm_arguments(arguments.vllm_arguments, arguments.backend),
    )
    results, failures = [], []
    encoders: dict[str, Encoder] = {}  # by the digest of their tokenizer
    for number, checkpoint in enumerate(checkpoints, start=1):
        output, start, done = arguments.output / checkpoint.name, time.monotonic(), f"[{number}/{len(checkpoints)}] {checkpoint.name}"
        try:
            with folder_in_use(output):
                # What is left may have become less since the command began: by another one that has ended.
                left = work_left(output, checkpoint, texts, tasks, settings)
                if left.is_done and left.earlier is not None:
                    results.append(left.earlier)
                    print(f"{done}: evaluated before", file=sys.stderr, flush=True)
                    continue
                print(f"{done}: {len(left.texts)} texts, {len(left.tasks)} tasks", file=sys.stderr, flush=True)
                if left.tasks:
                    from eval.running.encoding import Encoder

                    encoders.setdefault(checkpoint.tokenizer_digest, Encoder(checkpoint.tokenizer))
                found = evaluate_checkpoint(
                    checkpoint,
                    output,
                    texts=left.texts,
                    tasks=left.tasks,
                    settings=settings,
                    machine=machine,
                    earlier=left.earlier,
                    encoder=encoders.get(checkpoint.tokenizer_digest),
                )
        except ValueError as error:
            failures.append(f"{checkpoint.name}: {error}")
            continue
        results.append(found)
        print(f"{done}: {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
    return results, failures


def _unfinished_tasks(results: Sequence[Mapping[str, Any]], unusable: Mapping[str, str], asked: Container[str]) -> str:
    """Which tasks are not done and why; empty if all are."""
    parts = [failures_sentence(unusable)] if unusable else []
    count = len(unusable)
    for result in results:
        if failed := {name: reason for name, reason in result.get("failures", {}).items() if name in asked}:
            count += len(failed)
            parts.append(f"{result['name']}, {failures_sentence(failed)}")
    return f"{count} {'task' if count == 1 else 'tasks'} could not be evaluated: {'; '.join(parts)}" if parts else ""


def _print_notes(results: Sequence[Mapping[str, Any]]) -> None:
    for result in results:
        for name, figures in {**result["texts"], **result.get(PSEUDO_TEXTS, {})}.items():
            if figures["unknown_bytes"]:
                share = figures["unknown_bytes"] / figures["text_bytes"]
                print(f"note: {share:.1%} of the bytes of {name} are unknown to the tokenizer of {result['name']}; each counts as 8 bits")


if __name__ == "__main__":
    command.run(main)
