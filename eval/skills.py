"""Measure what a graft cost, and what merging an instruction-tuned model into it brings back.

Each graft is merged with --instruct at each weight (`conversion.merge`), measured and removed: bits per byte of texts, prompts whose answers
a program checks, and optionally lm-eval tasks.  With --source, the base model of --instruct, the weight scales the chat vector: 0 is the graft,
1 adds all of the difference.  Without it the merge is a weighted mean: 1 is --instruct, with the graft's rows for tokens that it lacks.
Tasks use the chat template of each tokenizer, or that of --instruct where there is none.  Running the command again does what is missing.
"""

from __future__ import annotations

import argparse
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common import command
from common.artifacts import combined_digest, digest_file, staged_directory, write_manifest
from common.options import add_option
from common.progress import show
from common.tables import markdown_table
from conversion.checkpoints.hf_model import DTYPES, Checkpoint, be_quiet_and_offline, default_device, inspect_checkpoint
from data_prep.reading.documents import add_format_arguments
from data_prep.reading.named_texts import Text, read_texts
from eval.running.backends import Machine, Settings
from eval.running.chat import OWN_TEMPLATE
from eval.running.model_names import named_checkpoints
from eval.running.results import RESULT_NAME, load_result
from eval.running.task_runs import TASKS_DIR, find_tasks

if TYPE_CHECKING:
    from eval.reporting.skills import Skills
    from eval.running.merge_sweep import Measuring, Partner

STAGE = "eval.skills"
SOURCE, INSTRUCT = "source", "instruct"
PROMPTS = tuple(sorted(path.stem.removeprefix("instructions_") for path in (TASKS_DIR / "instructions").glob("*.yaml")))


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__,
        example="python -m eval.skills --source smollm2-base/ --instruct smollm2-instruct/ --graft work/trained \\\n"
        "      --text sl=heldout.sl.txt en=heldout.en.txt --output skills/",
    )
    add_option(parser, "--graft [NAME=]DIR", "grafted models: vocabulary changed, or continued pretraining", nargs="+", required=True)
    add_option(parser, "--instruct DIR", "instruction-tuned model to merge into the grafts", type=Path, required=True)
    add_option(
        parser, "--source DIR", "base model that --instruct was tuned from: merge by chat vectors instead of a weighted mean", type=Path
    )
    weights = (0.0, 0.25, 0.5, 0.75, 1.0)
    add_option(
        parser, "--weights W", "weights of the merges; 0 is always included (default: 0 to 1 by quarters)", weights, nargs="+", type=float
    )
    add_option(parser, "--missing-rows", "rows of tokens that --instruct lacks, as in conversion.merge", "keep", choices=("keep", "pieces"))
    add_option(parser, "--text NAME=FILE", "held-out texts, including some in the source language", nargs="+", required=True)
    add_format_arguments(parser)
    add_option(
        parser,
        "--prompts",
        "languages of the instruction prompts (default: those of --text for which prompts exist)",
        nargs="*",
        choices=PROMPTS,
    )
    add_option(parser, "--tasks TASK", "further lm-eval tasks, as eval.harness takes them", [], nargs="+")
    add_option(parser, "--data DIR", "evaluation data of the papers' tasks, see docs/evaluation.md")
    add_option(parser, "--limit N", "ask only the first N rows of each task", type=int)
    add_option(parser, "--keep", "keep the merged models, in merged/ below --output", False)
    add_option(parser, "--dtype", "data type of the weights in memory", "float32", choices=DTYPES)
    add_option(parser, "--device", "device: cpu, cuda or cuda:1 ... (default: cuda where there is one)")
    add_option(parser, "--batch-size", "requests per forward pass in tasks", 8)
    add_option(parser, "--title", "heading of the page", "What a graft cost, and what merging brings back")
    add_option(parser, "--output DIR", "folder to write: results/ of each model, report/skills.html", type=Path, required=True)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is not measured yet, write the page and print its tables."""
    arguments = _parser().parse_args(argv)
    command.require_at_least(1, arguments, "batch_size", "limit")
    weights = _weights(arguments.weights)
    show("skills: reading")
    be_quiet_and_offline()
    texts = read_texts(arguments.text, text_key=arguments.text_key, separator=arguments.document_separator)
    grafts = _grafts(arguments.graft)
    instruct = inspect_checkpoint(arguments.instruct, name=INSTRUCT)
    source = inspect_checkpoint(arguments.source, name=SOURCE) if arguments.source is not None else None
    measuring, partner = _plan(arguments, texts, grafts, instruct, source)
    for reference in filter(None, (source, instruct)):
        measuring.model(reference, instruct)
    for graft in grafts:
        for weight in weights:
            if weight:
                measuring.merge(graft, partner, weight, _name(graft, weight), keep=arguments.keep)
            else:
                measuring.model(graft, instruct)
    skills = _skills(measuring, partner, grafts, weights)
    _write(skills, measuring, arguments)
    for graft in grafts:
        print(
            f"{skills.finding(graft.name)}\n\n{markdown_table(*skills.changes(graft.name))}\n\n{markdown_table(*skills.scores(graft.name))}\n"
        )
    print(f"page: {arguments.output / 'report' / 'skills.html'}")
    return command.DONE


def _weights(given: Sequence[float]) -> list[float]:
    """In order, with 0.

    Raises:
        ValueError: if one is not a number.
    """
    if wrong := [weight for weight in given if not math.isfinite(weight)]:
        raise ValueError(f"--weights has {wrong[0]:g}; expected numbers, such as 0.5")
    return sorted({0.0, *given})


def _grafts(given: Sequence[str]) -> list[Checkpoint]:
    folders = named_checkpoints(given, option="--graft")
    if taken := {SOURCE, INSTRUCT} & folders.keys():
        raise ValueError(f"--graft has a model named {taken.pop()}, like another model of the page; give it another name, --graft NAME=DIR")
    return [inspect_checkpoint(folder, name=name) for name, folder in folders.items()]


def _plan(
    arguments: argparse.Namespace, texts: Sequence[Text], grafts: Sequence[Checkpoint], instruct: Checkpoint, source: Checkpoint | None
) -> tuple[Measuring, Partner]:
    """How all are measured and merged; what cannot be is refused here, before anything is written."""
    from eval.running.chat import lend_template
    from eval.running.merge_sweep import Measuring, Partner

    prompts = [text.name for text in texts if text.name in PROMPTS] if arguments.prompts is None else arguments.prompts
    names = [*(f"instructions_{language}" for language in prompts), *arguments.tasks]
    metadata = {} if arguments.data is None else {"data": arguments.data}
    tasks = find_tasks(names, metadata=metadata, limit=arguments.limit) if names else {}
    partner = Partner(instruct, source, arguments.missing_rows)
    for graft in grafts:
        partner.require_alike(graft)
    for checkpoint in (instruct, *grafts, *([source] if source is not None else [])) if tasks else ():
        lend_template(checkpoint, instruct)
    settings = Settings(dtype=arguments.dtype, chat_template=OWN_TEMPLATE if tasks else None)
    machine = Machine(arguments.device or default_device(), arguments.batch_size)
    return Measuring(arguments.output, texts, tasks, settings, machine), partner


def _name(graft: Checkpoint, weight: float) -> str:
    return f"{graft.name}-{weight:g}" if weight else graft.name


def _skills(measuring: Measuring, partner: Partner, grafts: Sequence[Checkpoint], weights: Sequence[float]) -> Skills:
    from eval.reporting.runs import Evaluated
    from eval.reporting.skills import Skills

    def evaluated(name: str) -> Evaluated:
        path = measuring.result_dir(name) / RESULT_NAME
        return Evaluated(load_result(path), path)

    names = [INSTRUCT] if partner.source is None else [SOURCE, INSTRUCT]
    how = (
        "A merge of weight W is the mean (1 - W) graft + W instruct; tokens that instruct lacks keep the graft's rows."
        if partner.source is None
        else "A merge of weight W is graft + W (instruct - source), a chat vector."
    )
    return Skills(
        tuple(evaluated(name) for name in names),
        {graft.name: {weight: evaluated(_name(graft, weight)) for weight in weights} for graft in grafts},
        how,
    )


def _write(skills: Skills, measuring: Measuring, arguments: argparse.Namespace) -> None:
    from eval.reporting.skills import write_skills

    report = arguments.output / "report"
    models = [*skills.references, *(model for graft in skills.grafts.values() for model in graft.values())]
    shutil.rmtree(report, ignore_errors=True)
    with staged_directory(report) as staging:
        write_skills(skills, staging, title=arguments.title)
        write_manifest(
            staging,
            stage=STAGE,
            facts={"grafts": list(skills.grafts)},
            arguments=vars(arguments),
            inputs={
                **{str(model.path): digest_file(model.path) for model in models},
                "texts": combined_digest({text.name: text.digest for text in measuring.texts}),
            },
        )


if __name__ == "__main__":
    command.run(main)
