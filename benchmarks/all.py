"""What every stage costs as a user calls it, from the start of the process to the last byte on disk, beside peers and limits on the same input in the same run.

Contenders of a case take turns over several rounds, each a process of its own.  Processor seconds say more than those of the clock wherever others use the
machine too; the page tells how many did.  What is measured is kept as COMMIT.json in the output folder, so that two commits can be compared: `--against` names
such a file, and the command ends with 1 where a case got slower, or one of the project's own commands failed.  Calls at one commit fill one file, stage by stage.
`--tables COMMIT.json` measures nothing and prints the tables of the documentation.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.whole.cases import NEEDS, STAGES, cases_of
from benchmarks.whole.commands import add_arguments, measure_stages, print_tables, require_inputs
from benchmarks.whole.material import Material
from benchmarks.whole.page import changes_markdown, documentation, markdown, write_page
from benchmarks.whole.random_checkpoint import SHAPES
from benchmarks.whole.results import changes, read_results
from common import command

SLOWER = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, keep, compare and show."""
    arguments = parser().parse_args(argv)
    if arguments.tables:
        print_tables(arguments, "benchmarks.all", documentation)
        return command.DONE
    require_inputs(arguments)
    before = read_results(arguments.against) if arguments.against else None
    stages, missing = stages_of(arguments)
    arguments.output.mkdir(parents=True, exist_ok=True)
    material = material_of(arguments)
    if arguments.prepare:
        for stage in stages:
            cases_of(stage, material, arguments.peers)
        return command.DONE
    results = measure_stages(
        stages,
        lambda stage: cases_of(stage, material, arguments.peers),
        arguments=arguments,
        work=material.work,
        suffix=".json",
        missing=missing,
    )
    compared = changes(before, results) if before else []
    write_page(results, compared, arguments.output / "index.html")
    print(markdown(results))
    if compared:
        print(f"\n{changes_markdown(compared)}")
    failed = any("failed" in why for what, why in results.missing.items() if what in STAGES or what.endswith(", Scion"))
    return SLOWER if failed or any(change.is_slower for change in compared) else command.DONE


def parser(name: str = "benchmarks.all", doc: str | None = __doc__) -> argparse.ArgumentParser:
    """Options of this command, and of others that measure its commands."""
    made = command.parser(
        doc,
        prog=name,
        example=f"python -m {name} --text novels.jsonl.gz laws.jsonl.gz --output costs/ --peers peers/bin/python",
    )
    add_arguments(made, stages=STAGES, output="COMMIT.json and index.html")
    made.add_argument("--peers", default="", metavar="PYTHON", help="interpreter that has the packages of others")
    made.add_argument("--model", type=Path, metavar="DIR", help=f"Hugging Face folder of a real model, for {', '.join(NEEDS['--model'])}")
    made.add_argument("--gguf", type=Path, metavar="FILE", help="GGUF of the same model, for from_gguf")
    made.add_argument("--source-text", type=Path, nargs="+", metavar="FILE", help="documents in the model's language, for wechsel")
    made.add_argument("--dictionary", type=Path, metavar="FILE", help="pairs of words of both languages, for wechsel")
    made.add_argument("--shape", choices=SHAPES, default="llama-3.2-1b", help="of the checkpoint that is converted (default: llama-3.2-1b)")
    made.add_argument(
        "--dtype", choices=("bfloat16", "float16", "float32"), nargs="+", default=["bfloat16"], help="of it (default: bfloat16)"
    )
    made.add_argument("--megabytes", type=float, default=25, metavar="N", help="of text (default: 25)")
    made.add_argument("--language", default="slv", help="of the text, as datatrove calls it (default: slv)")
    made.add_argument("--against", type=Path, metavar="JSON", help="results of another commit")
    return made


def stages_of(arguments: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """Those that can be measured, in the order of the work, and why others cannot.

    Raises:
        ValueError: if one of these was asked for by name.
    """
    stages = [stage for stage in STAGES if stage in (arguments.only or STAGES)]
    missing = {}
    for option, needing in NEEDS.items():
        left = [stage for stage in needing if stage in stages]
        if getattr(arguments, option.removeprefix("--")) is None and left:
            if arguments.only:
                raise ValueError(f"--only {' '.join(left)} needs {option}; --help says what to give")
            missing.update(dict.fromkeys(left, f"not measured: {option} was not given"))
    return [stage for stage in stages if stage not in missing], missing


def material_of(arguments: argparse.Namespace) -> Material:
    """Inputs, in the folder that the options name."""
    material = Material(
        (arguments.work or arguments.output / "work").resolve(),
        tuple(path.resolve() for path in arguments.text),
        arguments.megabytes,
        arguments.shape,
        arguments.language,
        arguments.model.resolve() if arguments.model else None,
        arguments.gguf.resolve() if arguments.gguf else None,
        tuple(path.resolve() for path in arguments.source_text) if arguments.source_text else None,
        arguments.dictionary.resolve() if arguments.dictionary else None,
        tuple(arguments.dtype),
    )
    material.require_same_inputs()
    return material


if __name__ == "__main__":
    command.run(main)
