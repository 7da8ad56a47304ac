"""List the tables and figures of the four papers with the commands that fill them; with --run, check that each has the paper's form.

A row works if its commands ran, on tiny models and synthetic rows in the published format, and their output has the form that
`paper_forms.yaml` describes: rows, columns in order, units, intervals, marks, panels.  --write updates docs/results/papers.md.
"""

from __future__ import annotations

import argparse
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.paper_runs import FAILS, LACKING, WORKS, Item, Outcome, run_rows
from common import command
from common.plain_files import read_yaml

PAPERS = {"gams": "GaMS", "sava": "SAVA", "low": "low-resource", "ofa": "OFA"}
DRAWING = "a drawing"
STATES = {
    WORKS: "its commands ran, and their output has the paper's form",
    LACKING: "the same but for what is named, which is not available here; without weights nothing was run",
    FAILS: "a command failed, or its output has another form",
    DRAWING: "illustrates the method; there is nothing to measure",
}
DOCS = Path(__file__).resolve().parent.parent / "docs" / "results" / "papers.md"
BEGIN, END = "<!-- rows -->", "<!-- end -->"


ITEMS = tuple(
    Item(name, row["shows"], tuple(row.get("commands", ())), row.get("lacks", ""))
    for name, row in read_yaml(Path(__file__).with_name("papers.yaml")).items()
)


def table(paper: str, outcomes: Mapping[str, Outcome]) -> str:
    """The rows of one paper as Markdown."""
    rows = []
    for item in ITEMS:
        key, place = item.name.split()
        if key == paper:
            commands = "<br>".join(f"`python -m {words}`" for words in item.commands) or "–"
            kind = "Table" if place[0] == "T" else "Figure"
            rows.append([f"{kind} {place[1:]}", item.shows, *_state(item, outcomes), commands])
    # Cells as wide as a screen are not filled up with spaces.
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (["", "shows", "state", "seconds", "commands"], ["---"] * 5, *rows))


def _state(item: Item, outcomes: Mapping[str, Outcome]) -> tuple[str, str]:
    if not item.commands:
        return DRAWING, "–"
    outcome = outcomes.get(item.name)
    return ("not run", "–") if outcome is None else (outcome.text(), f"{outcome.seconds:.0f}")


def summary(outcomes: Mapping[str, Outcome]) -> str:
    """How many rows are in which state, and what the states mean."""
    counts = Counter(
        DRAWING if not item.commands else outcomes[item.name].state for item in ITEMS if not item.commands or item.name in outcomes
    )
    description = ", ".join(f"{counts[state]} {state}" for state in STATES)
    return "\n".join([f"{len(ITEMS)} tables and figures: {description}.", "", *(f"- {state}: {what}" for state, what in STATES.items())])


def listing(outcomes: Mapping[str, Outcome]) -> str:
    """All tables, for the docs."""
    return "\n\n".join([summary(outcomes), *(f"## {title}\n\n{table(paper, outcomes)}" for paper, title in PAPERS.items())])


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=DOCS.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the rows, or run them."""
    parser = command.parser(__doc__, example="python -m benchmarks.papers --run 'gams T1' 'sava T3'")
    parser.add_argument("paper", nargs="?", choices=tuple(PAPERS), help="paper to list (default: all)")
    parser.add_argument(
        "--run", nargs="*", metavar="NAME", help="run these rows, such as 'gams T1' (default: all rows, or all of the paper)"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="new folder to keep the rows' outputs in (default: outputs are removed)")
    parser.add_argument("--write", action="store_true", help="write the list with its states into docs/results/papers.md")
    arguments: argparse.Namespace = parser.parse_args(argv)
    items = [item for item in ITEMS if arguments.paper in (None, item.name.split()[0])]
    if unknown := set(arguments.run or ()) - {item.name for item in items}:
        raise ValueError(f"there is no row {min(unknown)}; there are {', '.join(item.name for item in items)}")
    if arguments.run is None:
        print(listing({}) if arguments.paper is None else table(arguments.paper, {}))
        return command.DONE
    chosen = [item for item in items if item.commands and (not arguments.run or item.name in arguments.run)]
    outcomes = {}
    for name, outcome in run_rows(chosen, arguments.keep):
        outcomes[name] = outcome
        print(f"{name:9} {outcome.seconds:7.1f} s  {outcome.text()}", flush=True)
    print(f"\n{summary(outcomes)}")
    if arguments.write:
        before, rest = DOCS.read_text(encoding="utf-8").split(BEGIN)
        after = rest.split(END)[1]
        DOCS.write_text(f"{before}{BEGIN}\nAt commit {_commit()}.\n\n{listing(outcomes)}\n{END}{after}", encoding="utf-8")
    return command.DONE if all(outcome.state != FAILS for outcome in outcomes.values()) else command.WRONG


if __name__ == "__main__":
    command.run(main)
