"""The options of `eval.harness`, in one place: `eval.watch` reads them too, before it starts the command for a checkpoint."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from common.options import add_option, add_options
from data_prep.reading.documents import SUFFIXES_IN_WORDS, add_format_arguments
from eval.running.backends import Machine, Settings


def add_harness_arguments(parser: argparse.ArgumentParser) -> None:
    """Models, texts, tasks and settings."""
    add_option(
        parser, "--model [NAME=]FOLDER", "Hugging Face folders or LoRA adapters; NAME is the name in the results", nargs="+", required=True
    )
    add_option(parser, "--base DIR", "base model of LoRA adapters (PEFT) in --model, if their config names no local folder", type=Path)
    add_option(parser, "--text NAME=FILE", f"held-out texts ({SUFFIXES_IN_WORDS})", [], nargs="+")
    add_format_arguments(parser)
    add_option(parser, "--tasks TASK", "lm-eval tasks of eval/tasks, of --task-dir and of lm-eval itself", [], nargs="+")
    add_option(parser, "--task-dir DIR", "additional folders of lm-eval tasks", [], nargs="+", type=Path)
    add_option(parser, "--data DIR", "evaluation data of the papers' tasks, see docs/evaluation.md")
    add_option(
        parser,
        "--hub DIR",
        "data sets of lm-eval's own tasks: the cache of slurm.prefetch, or a folder with OWNER/NAME below it",
        type=Path,
    )
    add_option(parser, "--limit N", "ask only the first N rows of each task", type=int)
    add_option(
        parser,
        "--metadata JSON",
        "metadata for the tasks, as in lm-eval: shots, seed, split, items; wording (Slovene sets); beams (tasks that sample)",
        "{}",
    )
    add_option(parser, "--rouge-tokenizer DIR", "Hugging Face tokenizer for ROUGE, for summarisation tasks")
    add_option(parser, "--output DIR", "folder to write: one folder of results per model", type=Path, required=True)
    add_option(
        parser,
        "--run DIR",
        "training run (output of recipes.train) that the models are checkpoints of: scores are logged with its curves",
        type=Path,
    )
    add_options(parser, Settings)
    add_vllm_arguments(parser)
    add_options(parser, Machine)


def add_vllm_arguments(parser: argparse.ArgumentParser) -> None:
    """What vLLM's engine is to be given."""
    add_option(
        parser,
        "--vllm-arguments JSON",
        'arguments of vLLM\'s engine, such as {"gpu_memory_utilization": 0.6, "tensor_parallel_size": 2, "enforce_eager": true}',
        "{}",
    )


def vllm_arguments(text: str, backend: str) -> dict[str, Any]:
    """Arguments of vLLM's engine.

    Raises:
        ValueError: if they are not a JSON object, name what other options decide, or another backend runs.
    """
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--vllm-arguments {text} is not valid JSON: {error}") from error
    if not isinstance(given, dict):
        raise ValueError(f'--vllm-arguments {text} is not a JSON object; expected one such as {{"gpu_memory_utilization": 0.6}}')
    if given and backend != "vllm":
        raise ValueError(f"--vllm-arguments is only for vLLM, but --backend is {backend}; give --backend vllm, or leave it out")
    if taken := [f"{name} by {option}" for name, option in _TAKEN.items() if name in given]:
        raise ValueError(f"--vllm-arguments repeats other options: {', '.join(taken)}; leave that key out")
    return given


_TAKEN = {"model": "--model", "pretrained": "--model", "dtype": "--dtype", "max_model_len": "--context-length", "seed": "the seeds"}
