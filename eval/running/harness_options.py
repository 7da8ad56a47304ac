"""The options of `eval.harness`, in one place: `eval.watch` reads them too, before it starts the command for a checkpoint."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from common.options import add_options
from data_prep.reading.documents import SUFFIXES_IN_WORDS, add_format_arguments
from eval.running.backends import Machine, Settings


def add_harness_arguments(parser: argparse.ArgumentParser) -> None:
    """Models, texts, tasks and settings."""
    parser.add_argument(
        "--model",
        nargs="+",
        required=True,
        metavar="[NAME=]FOLDER",
        help="Hugging Face folders or LoRA adapters; NAME is the name in the results",
    )
    parser.add_argument(
        "--base", type=Path, metavar="DIR", help="base model of LoRA adapters (PEFT) in --model, if their config names no local folder"
    )
    parser.add_argument("--text", nargs="+", default=[], metavar="NAME=FILE", help=f"held-out texts ({SUFFIXES_IN_WORDS})")
    add_format_arguments(parser)
    parser.add_argument(
        "--tasks", nargs="+", default=[], metavar="TASK", help="lm-eval tasks of eval/tasks, of --task-dir and of lm-eval itself"
    )
    parser.add_argument("--task-dir", nargs="+", type=Path, default=[], metavar="DIR", help="additional folders of lm-eval tasks")
    parser.add_argument("--data", metavar="DIR", help="evaluation data of the papers' tasks, see docs/evaluation.md")
    parser.add_argument(
        "--hub",
        type=Path,
        metavar="DIR",
        help="data sets of lm-eval's own tasks: the cache of slurm.prefetch, or a folder with OWNER/NAME below it",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="ask only the first N rows of each task")
    parser.add_argument(
        "--metadata",
        default="{}",
        metavar="JSON",
        help="metadata for the tasks, as in lm-eval: shots, seed, split, items; wording (Slovene sets); beams (tasks that sample)",
    )
    parser.add_argument("--rouge-tokenizer", metavar="DIR", help="Hugging Face tokenizer for ROUGE, for summarisation tasks")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to write: one folder of results per model")
    parser.add_argument(
        "--run",
        type=Path,
        metavar="DIR",
        help="training run (output of recipes.train) that the models are checkpoints of: scores are logged with its curves",
    )
    add_options(parser, Settings)
    add_vllm_arguments(parser)
    add_options(parser, Machine)


def add_vllm_arguments(parser: argparse.ArgumentParser) -> None:
    """What vLLM's engine is to be given."""
    parser.add_argument(
        "--vllm-arguments",
        default="{}",
        metavar="JSON",
        help='arguments of vLLM\'s engine, such as {"gpu_memory_utilization": 0.6, "tensor_parallel_size": 2, "enforce_eager": true}',
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
