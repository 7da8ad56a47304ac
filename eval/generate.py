"""Generate texts with the papers' settings, keep the token ids, and measure the inference efficiency of models beside the source model.

Every model gets the same prompts, from a task or a file, --repeats times after one warm-up run that is not timed.  Tokens of different
vocabularies are different units, so characters and bytes per second are reported too, and the speedup is in bytes.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from common import command
from common.artifacts import digest_bytes, staged_directory, write_manifest
from common.options import add_option
from common.progress import show
from common.tables import markdown_table
from conversion.checkpoints.hf_model import (
    DTYPES,
    Checkpoint,
    be_quiet_and_offline,
    default_device,
    inspect_checkpoint,
    load_model,
    whole_folder,
)
from conversion.measuring.intervals import Estimate
from eval.reporting.continuations import PROMPTS_NAME, TEXTS_NAME, continuations_markdown
from eval.running.generation import (
    EFFICIENCY_FORMAT,
    EFFICIENCY_NAME,
    SETTINGS,
    Generator,
    Pace,
    Settings,
    machine,
    per_second,
    speedup,
    target_token_ratio,
    transformers_generator,
    vllm_generator,
)
from eval.running.harness_options import add_vllm_arguments, vllm_arguments
from eval.running.model_names import named_checkpoints
from eval.running.results import strict_json, write_lines
from eval.scoring.relative_embeddings import token_rows

MARKDOWN_NAME = "texts.md"


def read_prompts(path: Path) -> list[dict[str, str]]:
    """Prompts of a JSON Lines file, each with `prompt` and, if it has one, `id`.

    Raises:
        ValueError: if the file is missing or empty, or a line has no prompt.
    """
    if not path.is_file():
        raise ValueError(f"the file of prompts {path} does not exist")
    prompts = []
    with open(path, encoding="utf-8", newline="\n") as stream:  # str.splitlines would also end a line at U+2028 inside a prompt
        lines = list(stream)
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            prompts.append({"id": str(row.get("id", number)), "prompt": str(row["prompt"])})
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(f'line {number} of {path} is not a prompt ({error!r}); expected {{"prompt": ...}}') from error
    if not prompts:
        raise ValueError(f"{path} holds no prompts")
    return prompts


def task_prompts(task: str, *, data: str | None, items: int | None) -> list[dict[str, str]]:
    """Prompts of a generative task, each once.

    Raises:
        ValueError: if the task is not known or generates nothing.
    """
    from eval.running.task_runs import find_tasks, request_kind

    chosen = {"data": data, "items": items}
    found = find_tasks([task], metadata={name: value for name, value in chosen.items() if value is not None})
    if task not in found or request_kind(found[task].task) != "generate_until":
        raise ValueError(f"{task} is not a generative task; choose one such as mt_en_sw or sl_senta_0shot, or give --prompts")
    documents = {instance.doc_id: instance for instance in found[task].task.instances}
    return [{"id": str(i.doc.get("id", number)), "prompt": str(i.args[0])} for number, i in documents.items()]


def _generator(checkpoint: Checkpoint, settings: Settings, arguments: argparse.Namespace) -> Generator:
    if arguments.backend == "vllm":
        from vllm import LLM

        positions = checkpoint.num_positions or 4096
        with whole_folder(checkpoint, arguments.dtype) as folder:
            given = {"max_num_seqs": arguments.batch_size, **vllm_arguments(arguments.vllm_arguments, "vllm")}
            engine = LLM(model=str(folder), dtype=arguments.dtype, max_model_len=positions, **given)
        return vllm_generator(engine, checkpoint.tokenizer, settings, positions=positions)
    model = load_model(checkpoint, device=arguments.device or default_device(), dtype=arguments.dtype)
    return transformers_generator(model, checkpoint.tokenizer, settings, batch_size=arguments.batch_size)


def _measured(
    checkpoint: Checkpoint, settings: Settings, prompts: Sequence[dict[str, str]], arguments: argparse.Namespace, known: frozenset[bytes]
) -> tuple[list[dict[str, Any]], list[Pace], dict[str, Any]]:
    """What `generate_for` gives; the model is gone before the next one is loaded, as vLLM's engine takes down what a later one has set up."""
    generator = _generator(checkpoint, settings, arguments)
    try:
        return generate_for(checkpoint, generator, prompts, repeats=arguments.repeats, seed=arguments.seed, known=known)
    finally:
        del generator
        gc.collect()


def generate_for(
    checkpoint: Checkpoint, generator: Generator, prompts: Sequence[dict[str, str]], *, repeats: int, seed: int, known: frozenset[bytes]
) -> tuple[list[dict[str, Any]], list[Pace], dict[str, Any]]:
    """Texts of every repeat, their pace, and figures that do not depend on time.

    Args:
        known: bytes of text of the source vocabulary's tokens.
    """
    asked = [row["prompt"] for row in prompts]
    generator(asked[:1], seed)  # warm-up
    new_ids = frozenset(index for data, index in token_rows(checkpoint.tokenizer).items() if data not in known)
    lines, paces, everything = [], [], []
    for repeat in range(repeats):
        texts, seconds = generator(asked, seed + 1_000_000 * repeat)
        paces.append(Pace.of(texts, seconds))
        everything += texts
        lines += [{"id": row["id"], "repeat": repeat, **asdict(text)} for row, text in zip(prompts, texts, strict=True)]
    prompt_tokens = sum(text.num_prompt_tokens for text in everything) / len(everything)
    prompt_ids = [index for ids in checkpoint.tokenizer(asked)["input_ids"] for index in ids]
    return (
        lines,
        paces,
        {
            "prompt_tokens_per_item": prompt_tokens,
            "prompt_target_token_ratio": sum(index in new_ids for index in prompt_ids) / len(prompt_ids),
            "target_token_ratio": target_token_ratio(everything, new_ids),
        },
    )


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__,
        example="python -m eval.generate --model source=opt/ sl=work/trained --prompts prompts.jsonl --settings speed --output generated/",
    )
    add_option(parser, "--model [NAME=]FOLDER", "Hugging Face folders, the source model first", nargs="+", required=True)
    prompts = parser.add_mutually_exclusive_group(required=True)
    add_option(prompts, "--prompts FILE", "JSON Lines file with the key `prompt`", type=Path)
    add_option(prompts, "--task TASK", "generative task of eval/tasks whose prompts to use")
    add_option(parser, "--data DIR", "evaluation data of the task, see docs/evaluation.md")
    add_option(parser, "--rouge-tokenizer DIR", "Hugging Face tokenizer for ROUGE, for summarisation tasks")
    add_option(parser, "--items N", "number of prompts of the task to use, drawn with its seed (default: all)", type=int)
    add_option(
        parser,
        "--settings",
        "decoding: sava: greedy; lowres: sampling (lowres-beams: with 5 beams, as in its paper's table); speed: greedy, fixed length",
        choices=SETTINGS,
        required=True,
    )
    add_option(parser, "--max-new-tokens N", "maximum number of new tokens (default: that of --settings)", type=int)
    add_option(parser, "--repeats N", "number of timed runs over all prompts", 5)
    add_option(parser, "--seed", "seed of sampling", 1234)
    add_option(parser, "--backend", "library that generates", "hf", choices=("hf", "vllm"))
    add_vllm_arguments(parser)
    add_option(parser, "--dtype", "data type of the weights in memory", "float32", choices=DTYPES)
    add_option(parser, "--device", "device: cpu, cuda or cuda:1 ... (default: cuda where there is one)")
    add_option(parser, "--batch-size", "prompts per batch, the same for all models", 8)
    add_option(
        parser, "--output DIR", "folder to write: prompts.jsonl, texts/MODEL.jsonl, texts.md, efficiency.json", type=Path, required=True
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Generate with every model, and print the table of efficiency."""
    arguments = _parser().parse_args(argv)
    command.require_at_least(1, arguments, "repeats", "batch_size", "max_new_tokens", "items")
    if arguments.rouge_tokenizer is not None:
        os.environ["SCION_ROUGE_TOKENIZER"] = arguments.rouge_tokenizer
    vllm_arguments(arguments.vllm_arguments, arguments.backend)
    show("loading the model and its tasks")
    be_quiet_and_offline()
    if arguments.task is None:
        prompts = read_prompts(arguments.prompts)
    else:
        prompts = task_prompts(arguments.task, data=arguments.data, items=arguments.items)
    settings = SETTINGS[arguments.settings]
    if arguments.max_new_tokens is not None:
        settings = replace(settings, max_new_tokens=arguments.max_new_tokens)
    if settings.num_beams > 1 and arguments.backend == "vllm":
        raise ValueError(f"--settings {arguments.settings} uses beam sampling, which vLLM does not support; give --backend hf")
    checkpoints = [inspect_checkpoint(folder, name=name) for name, folder in named_checkpoints(arguments.model).items()]
    figures: dict[str, Any] = {}
    rows = []
    with staged_directory(arguments.output) as staging:
        known, source = frozenset(token_rows(checkpoints[0].tokenizer)), list[Pace]()
        for checkpoint in checkpoints:
            lines, paces, recorded = _measured(checkpoint, settings, prompts, arguments, known)
            source = source or paces
            write_lines(staging / TEXTS_NAME / f"{checkpoint.name}.jsonl", lines)
            figures[checkpoint.name], row = _efficiency(paces, source, {"digest": checkpoint.digest, **recorded})
            rows.append([checkpoint.name, *row])
            print(f"{checkpoint.name}: {sum(pace.seconds for pace in paces):.1f} s", file=sys.stderr, flush=True)
        write_lines(staging / PROMPTS_NAME, prompts)
        content = {"format": EFFICIENCY_FORMAT, "conditions": _conditions(arguments, settings, prompts, checkpoints[0]), "models": figures}
        (staging / EFFICIENCY_NAME).write_text(strict_json(content, indent=2) + "\n", encoding="utf-8")
        (staging / MARKDOWN_NAME).write_text(continuations_markdown(staging), encoding="utf-8")
        write_manifest(
            staging,
            stage="eval.generate",
            facts={"source": checkpoints[0].name},
            arguments={"settings": arguments.settings, "repeats": arguments.repeats, "seed": arguments.seed, "backend": arguments.backend},
            inputs={c.name: c.digest for c in checkpoints} | {"prompts": digest_bytes(json.dumps(prompts).encode())},
        )
    header = ["model", "tokens/s", "characters/s", "bytes/s", "new tokens", "prompt tokens", f"speedup to {checkpoints[0].name}"]
    print(markdown_table(header, rows))
    return command.DONE


def _conditions(arguments: argparse.Namespace, settings: Settings, prompts: Sequence[dict[str, str]], source: Checkpoint) -> dict[str, Any]:
    """All that has to be the same for two measurements to compare."""
    packages = ("torch", "vllm" if arguments.backend == "vllm" else "transformers")
    return {
        "backend": arguments.backend,
        "machine": machine(arguments.device or default_device()),
        "settings": asdict(settings),
        "vLLM's engine": vllm_arguments(arguments.vllm_arguments, arguments.backend),
        "batch size": arguments.batch_size,
        "dtype": arguments.dtype,
        "task": arguments.task,
        "prompts": len(prompts),
        "digest of prompts": digest_bytes(json.dumps(prompts).encode()),
        "source model": source.digest,
        "versions": {package: metadata.version(package) for package in packages},
    }


def _efficiency(paces: Sequence[Pace], source: Sequence[Pace], recorded: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A model's figures for JSON, and the cells of its row."""
    rates = {what: per_second(paces, f"num_{what}") for what in ("tokens", "characters", "bytes")}
    gain, ratio = speedup(paces, source), recorded["target_token_ratio"]
    figures = {
        **recorded,
        **{f"{what}_per_second": rate.figures() for what, rate in rates.items()},
        "speedup": gain.figures(),
        "repeats": [asdict(pace) for pace in paces],
    }
    shown = ["–" if ratio is None else f"{100 * ratio:.1f} %", f"{recorded['prompt_tokens_per_item']:.1f}"]
    return figures, [*(_cell(rate) for rate in rates.values()), *shown, _cell(gain)]


def _cell(estimate: Estimate) -> str:
    known = estimate.is_known and estimate.low < estimate.high
    return f"{estimate.value:,.2f}" + (f" [{estimate.low:,.2f}, {estimate.high:,.2f}]" if known else "")


if __name__ == "__main__":
    command.run(main)
