"""The options of `eval.harness`, in one place: `eval.watch` reads them too, before it starts the command for a checkpoint."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from conversion.checkpoints.hf_model import DTYPES
from conversion.measuring.bits_per_byte import START_TOKEN_RULES
from data_prep.reading.documents import SUFFIXES_IN_WORDS, add_format_arguments
from eval.running.backends import BACKENDS
from eval.running.chat import OWN_TEMPLATE


def add_harness_arguments(parser: argparse.ArgumentParser) -> None:
    """Models, texts, tasks and settings."""
    parser.add_argument(
        "--model",
        nargs="+",
        required=True,
        metavar="[NAME=]FOLDER",
        help="Hugging Face folders, or LoRA adapters; the name is the result's",
    )
    parser.add_argument(
        "--base", type=Path, metavar="DIR", help="model of LoRA adapters (PEFT) among --model, where their config names no folder here"
    )
    parser.add_argument("--text", nargs="+", default=[], metavar="NAME=FILE", help=f"held-out texts ({SUFFIXES_IN_WORDS})")
    add_format_arguments(parser)
    parser.add_argument(
        "--tasks", nargs="+", default=[], metavar="TASK", help="lm-eval tasks of eval/tasks, of --task-dir and of lm-eval itself"
    )
    parser.add_argument("--task-dir", nargs="+", type=Path, default=[], metavar="DIR", help="more folders of lm-eval tasks")
    parser.add_argument("--data", metavar="DIR", help="evaluation data of the papers' tasks, see docs/evaluation.md")
    parser.add_argument(
        "--hub", type=Path, metavar="DIR", help="data sets of lm-eval's own tasks: the cache of slurm.prefetch, or a folder of OWNER/NAME"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="ask only the first N rows of each task")
    parser.add_argument(
        "--metadata",
        default="{}",
        metavar="JSON",
        help="for the tasks, as lm-eval's: shots, seed, split, items; wording (of the Slovene sets); beams (of tasks that sample)",
    )
    parser.add_argument("--rouge-tokenizer", metavar="DIR", help="Hugging Face tokenizer that summaries are compared with")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a folder of results per model is written here")
    parser.add_argument(
        "--run",
        type=Path,
        metavar="DIR",
        help="output of recipes.train that the models are checkpoints of: scores are logged beside its curves",
    )
    parser.add_argument(
        "--start-token",
        metavar="TOKEN",
        default="auto",
        help=f"before every document of a text: {', '.join(START_TOKEN_RULES)}, or any token as the tokenizer spells it; auto is what the"
        " tokenizer itself puts there, else what ended documents in training: EOS, or <|endoftext|> and its like where EOS ends a turn",
    )
    parser.add_argument(
        "--context-length", type=int, metavar="TOKENS", help="positions per pass; default: all of the model's, in texts at most 2048"
    )
    parser.add_argument(
        "--cut-prompts",
        action="store_true",
        help="let prompts that do not fit lose examples, then the end of their article; reports say so",
    )
    parser.add_argument(
        "--chat-template",
        nargs="?",
        const=OWN_TEMPLATE,
        metavar="NAME",
        help="ask tasks in the chat template of each model's tokenizer; NAME: of several that it has",
    )
    parser.add_argument(
        "--system-prompt", metavar="TEXT", help="before every task's prompt, in the template's place for it if there is one"
    )
    parser.add_argument(
        "--fewshot-as-multiturn",
        action=argparse.BooleanOptionalAction,
        help="examples are turns of the conversation, not one message with the question (default: with --chat-template, as lm-eval)",
    )
    parser.add_argument("--sampling-seed", type=int, default=1234, help="of the protocols that sample (default: %(default)s)")
    parser.add_argument("--backend", choices=BACKENDS, default="hf", help="what runs the tasks (default: %(default)s)")
    add_vllm_arguments(parser)
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the weights in memory (default: %(default)s)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ...; default: cuda where there is one")
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes that share the requests: each a GPU, or a share of the cores"
    )
    parser.add_argument("--batch-size", type=int, default=8, help="requests per pass in tasks (default: %(default)s)")


def add_vllm_arguments(parser: argparse.ArgumentParser) -> None:
    """What vLLM's engine is to be given."""
    parser.add_argument(
        "--vllm-arguments",
        default="{}",
        metavar="JSON",
        help='for vLLM\'s engine, such as {"gpu_memory_utilization": 0.6, "tensor_parallel_size": 2, "enforce_eager": true}',
    )


def vllm_arguments(text: str, backend: str) -> dict[str, Any]:
    """Arguments of vLLM's engine.

    Raises:
        ValueError: if they are no JSON object, name what other options decide, or another backend runs.
    """
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--vllm-arguments {text} is no JSON: {error}") from error
    if not isinstance(given, dict):
        raise ValueError(f'--vllm-arguments {text} is no JSON object; expected one such as {{"gpu_memory_utilization": 0.6}}')
    if given and backend != "vllm":
        raise ValueError(f"--vllm-arguments is of vLLM alone, but --backend is {backend}; give --backend vllm, or leave them out")
    if taken := [f"{name} by {option}" for name, option in _TAKEN.items() if name in given]:
        raise ValueError(f"--vllm-arguments names what other options decide: {', '.join(taken)}; leave it out there")
    return given


_TAKEN = {"model": "--model", "pretrained": "--model", "dtype": "--dtype", "max_model_len": "--context-length", "seed": "the seeds"}
