"""What every stage costs as a user calls it, from the start of the process to the last byte on disk, beside peers and limits on the same input in the same run.

Contenders of a case take turns over several rounds, each a process of its own.  Processor seconds say more than those of the clock wherever others use the
machine too; the page tells how many did.  What is measured is kept as COMMIT.json in the output folder, so that two commits can be compared:
`--against` names such a file, and the command ends with 1 where a case got slower.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.conversion import SHAPES
from benchmarks.whole.cases import NEED_A_MODEL, STAGES, cases_of
from benchmarks.whole.material import Material
from benchmarks.whole.page import changes_markdown, markdown, write_page
from benchmarks.whole.results import Figure, changes, read_results, results_of, write_results
from benchmarks.whole.run import figures_of, loads
from common import command

SLOWER = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, keep, compare and show."""
    parser = command.parser(
        __doc__,
        prog="benchmarks.all",
        example="python -m benchmarks.all --text novels.jsonl.gz laws.jsonl.gz --output costs/ --peers peers/bin/python",
    )
    parser.add_argument("--text", type=Path, nargs="+", required=True, metavar="FILE", help="real documents, as data_prep reads them")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder of COMMIT.json and index.html")
    parser.add_argument("--only", nargs="+", choices=STAGES, default=STAGES, metavar="STAGE", help=f"of {', '.join(STAGES)} (default: all)")
    parser.add_argument("--peers", default="", metavar="PYTHON", help="interpreter that has the packages of others")
    parser.add_argument("--model", type=Path, metavar="DIR", help="Hugging Face folder of a real model, for transfer and harness")
    parser.add_argument(
        "--shape", choices=SHAPES, default="llama-3.2-1b", help="of the checkpoint that is converted (default: llama-3.2-1b)"
    )
    parser.add_argument("--megabytes", type=float, default=25, metavar="N", help="of text (default: 25)")
    parser.add_argument("--language", default="slv", help="of the text, as datatrove calls it (default: slv)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="(default: 3)")
    parser.add_argument("--work", type=Path, metavar="DIR", help="folder for inputs, on the disk to be measured (default: in --output)")
    parser.add_argument("--against", type=Path, metavar="JSON", help="results of another commit")
    arguments = parser.parse_args(argv)
    if arguments.rounds < 1 or arguments.megabytes <= 0:
        raise ValueError(f"--rounds {arguments.rounds} and --megabytes {arguments.megabytes}: expected at least one round and some text")
    before = read_results(arguments.against) if arguments.against else None
    stages = [stage for stage in STAGES if stage in arguments.only]
    if arguments.model is None and arguments.only is not STAGES and (left := [stage for stage in NEED_A_MODEL if stage in stages]):
        raise ValueError(f"--only {' '.join(left)} needs a real model; give its folder by --model")
    absent = [f"{stage} was left out, as --model names no model" for stage in NEED_A_MODEL if arguments.model is None and stage in stages]
    work = arguments.work or arguments.output / "work"
    work.mkdir(parents=True, exist_ok=True)
    arguments.output.mkdir(parents=True, exist_ok=True)
    material = Material(
        work.resolve(),
        tuple(path.resolve() for path in arguments.text),
        arguments.megabytes,
        arguments.shape,
        arguments.language,
        arguments.model,
    )
    figures: list[Figure] = []
    load: tuple[float, ...] = (os.getloadavg()[0],)
    for stage in stages:
        if arguments.model is None and stage in NEED_A_MODEL:
            continue
        for case in cases_of(stage, material, arguments.peers):
            figures += figures_of(case, rounds=arguments.rounds, work=material.work, absent=absent)
            load = loads(load)
            results = results_of(figures, load)  # what is measured is kept, whatever becomes of the rest
            write_results(results, arguments.output / f"{results.commit or 'unknown'}.json")
    compared = changes(before, results) if before else []
    write_page(results, absent, compared, arguments.output / "index.html")
    print(markdown(results, absent))
    if compared:
        print(f"\n{changes_markdown(compared)}")
    return SLOWER if any(change.is_slower for change in compared) else command.DONE


if __name__ == "__main__":
    command.run(main)
