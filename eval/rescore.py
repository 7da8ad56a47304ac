"""Score saved answers again, without running any model: after a metric was corrected.

Prompts must be those that were answered; if a task's prompts have changed, the command says so and writes nothing.  Each model's folder
is written below --output with all its other scores unchanged.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import command
from common.artifacts import MANIFEST_NAME, read_manifest, staged_directory, write_manifest
from common.options import add_option
from common.tables import markdown_table
from conversion.checkpoints.hf_model import be_quiet_and_offline
from eval.running.chat import Chat
from eval.running.results import RESULT_NAME, load_result, read_lines, write_lines, write_result
from eval.running.task_runs import TASKS_DIR, FoundTask, find_tasks, item_scores, request_kind, run_task


def rescore(results_dir: Path, output_dir: Path, tasks: Mapping[str, FoundTask]) -> dict[str, Any]:
    """Score a model's saved answers to the given tasks; returns what the new `result.json` says.

    Raises:
        ValueError: if the model did not answer one of the tasks, if requests have changed, or if `output_dir` is not empty.
    """
    from eval.running.answers import RememberingModel, journal_of_samples

    result = load_result(results_dir / RESULT_NAME)
    manifest = read_manifest(results_dir)
    chat = _chat_of_result(result)
    scored = {}
    for name, found in tasks.items():
        if name not in result["tasks"]:
            raise ValueError(f"{results_dir} has no answers to {name}; it has {', '.join(result['tasks']) or 'none'}")
        saved = read_lines(results_dir / "samples" / f"{name}.jsonl")
        try:
            asked = found.build(chat)
            answers = RememberingModel(None, journal_of_samples(saved, request_kind(found.task)), chat=asked)
            scored[name] = run_task(answers, found, asked)
        except ValueError as error:
            raise ValueError(f"{results_dir}, task {name}: {error}") from error
    with staged_directory(output_dir) as staging:
        shutil.copytree(results_dir, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST_NAME))
        for name, (summary, samples) in scored.items():
            result["tasks"][name] = summary
            write_lines(staging / "samples" / f"{name}.jsonl", samples)
            write_lines(staging / "items" / f"{name}.jsonl", [item_scores(samples)])
        write_result(staging, result)
        write_manifest(
            staging,
            stage="eval.rescore",
            facts=result["facts"],
            arguments={"tasks": list(tasks)},
            inputs={"results": manifest.digest if manifest is not None else ""},
        )
    return result


def _chat_of_result(result: Mapping[str, Any]) -> Chat | None:
    """How a result's model was asked; None with plain prompts."""
    description, settings = result.get("chat"), result["settings"]
    if description is None:
        return None
    return Chat(description["template"], description["special_tokens"], settings["system_prompt"], settings["fewshot_as_multiturn"])


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__, example="python -m eval.rescore --results results/focus --tasks sl_senta_5shot --data eval_data/ --output rescored/"
    )
    add_option(parser, "--results DIR", "models' folders of results, from eval.harness", nargs="+", type=Path, required=True)
    add_option(parser, "--tasks TASK", "tasks to score again", nargs="+", required=True)
    add_option(parser, "--task-dir DIR", "additional folders of lm-eval tasks", [], nargs="+", type=Path)
    add_option(parser, "--data DIR", "evaluation data that the answers were given with")
    add_option(parser, "--metadata JSON", "metadata of the tasks that the answers were given with", "{}")
    add_option(parser, "--rouge-tokenizer DIR", "Hugging Face tokenizer for ROUGE, for summarisation tasks")
    add_option(parser, "--output DIR", "folder to write: one folder of results per model", type=Path, required=True)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Score all models given, and print each score before and after."""
    arguments = _parser().parse_args(argv)
    be_quiet_and_offline()
    if arguments.rouge_tokenizer is not None:
        os.environ["SCION_ROUGE_TOKENIZER"] = arguments.rouge_tokenizer
    metadata = json.loads(arguments.metadata)
    if arguments.data is not None:
        metadata["data"] = arguments.data
    rows = []
    for results_dir in arguments.results:
        before = load_result(results_dir / RESULT_NAME)
        asked = {**metadata, "turns": True} if before["settings"].get("fewshot_as_multiturn") else metadata
        tasks = find_tasks(arguments.tasks, task_dirs=(TASKS_DIR, *arguments.task_dir), metadata=asked)
        after = rescore(results_dir, arguments.output / results_dir.resolve().name, tasks)
        for name in tasks:
            for metric, entry in after["tasks"][name]["metrics"].items():
                earlier = before["tasks"][name]["metrics"].get(metric)
                rows.append([after["name"], name, metric, _number(earlier), _number(entry)])
    print(markdown_table(["model", "task", "score", "before", "after"], rows, text_columns=3))
    return command.DONE


def _number(entry: Mapping[str, Any] | None) -> str:
    return "–" if entry is None or entry["value"] is None else f"{entry['value']:.4f}"


if __name__ == "__main__":
    command.run(main)
