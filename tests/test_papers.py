"""The list of the papers' tables and figures: whole, in the docs as it is, with commands that run and leave the papers' forms."""

from __future__ import annotations

import fnmatch
import importlib
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from benchmarks.paper_runs import FAILS, run_rows
from benchmarks.papers import BEGIN, DOCS, END, ITEMS, PAPERS, Item
from common.command import arguments_of
from eval.protocols.zero_shot import TASKS as ENCODER_TASKS
from eval.reporting.across_languages import TITLES
from recipes.rules.compose import compose_recipe
from tests.paper_cells import CELLS
from tests.processes import ROOT

_FILES = [path.read_text(encoding="utf-8") for path in (ROOT / "eval" / "tasks").rglob("*yaml")]
_TASKS = {
    name
    for text in _FILES
    for line in text.splitlines()
    for name in re.findall(
        r"[\w]+", line.partition(":")[2] if line.startswith(("task:", "tag:")) else line if line.startswith("- ") else ""
    )
}
_TASKS |= {*ENCODER_TASKS, *(f"{task}_slv" for task in TITLES)}  # those of encoders have no files
# Counted in the papers' text.
_EXPECTED = {"gams": (7, 2), "sava": (11, 10), "low": (12, 4), "ofa": (6, 3)}


def test_every_table_and_figure_is_listed_once() -> None:
    names = [item.name for item in ITEMS]
    wanted = [
        f"{paper} {kind}{number}"
        for paper, (tables, figures) in _EXPECTED.items()
        for kind, count in (("T", tables), ("F", figures))
        for number in range(1, count + 1)
    ]
    assert sorted(names) == sorted(wanted) and len(names) == 55


@pytest.mark.some(14)
@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_what_is_named_exists(item: Item) -> None:
    """Each command is parsed by its own parser."""
    for words in item.commands:
        module, *arguments = shlex.split(words)
        parsed, _ = arguments_of(importlib.import_module(module).main, arguments)
        if module.startswith("recipes."):
            compose_recipe(parsed["recipe"], parsed["overrides"])
        if parsed.get("harness"):  # what eval.watch hands on
            asked = ["--model", "hf/", "--output", "results/", *parsed["harness"]]
            parsed, _ = arguments_of(importlib.import_module("eval.harness").main, asked)
        for pattern in parsed.get("tasks") or ([parsed["task"]] if parsed.get("task") else []):
            assert any(fnmatch.fnmatchcase(name, pattern) for name in _TASKS), pattern


def test_gams_is_asked_in_the_papers_words() -> None:
    """Tables 4 to 6 are of the framework's prompts of July 2024: of the harness and of the rows sent to SloBench alike."""
    for item in ITEMS:
        if item.name in ("gams T4", "gams T5", "gams T6"):
            parsed = [arguments_of(importlib.import_module(module).main, rest)[0] for module, *rest in map(shlex.split, item.commands)]
            wordings = [
                one.get("wording") or json.loads(one["metadata"]).get("wording") for one in parsed if "metadata" in one or "wording" in one
            ]
            assert wordings == ["2024-07", "2024-07"]


def test_the_docs_have_the_list_as_it_is() -> None:
    text = DOCS.read_text(encoding="utf-8")
    told = text[text.index(BEGIN) : text.index(END)]
    for item in ITEMS:
        for words in item.commands:
            assert f"`python -m {words}`".replace("|", "\\|") in told, "write it anew: python -m benchmarks.papers --run --write"


# What takes minutes: watched runs, trainings, and sampled answers of many models.
_MINUTES = {"sava F2", "sava F3", "sava F4", "sava F5", "low T1", "low T3", "low T4", "low T5", "low T10"}


def _by_turns(paper: str, count: int = 8) -> list[Item]:
    """Rows that take seconds, others at each commit."""
    rows = [item for item in ITEMS if item.name.startswith(f"{paper} ") and item.commands and item.name not in _MINUTES]
    commits = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    turn = int(commits.strip() or 0) * count
    return [rows[(turn + number) % len(rows)] for number in range(min(count, len(rows)))]


def _require_forms_and_figures(rows: list[Item], keep: Path) -> None:
    """Rows come out in their papers' form, and cells of their tables are what libraries of the field make of the same answers and files."""
    outcomes = dict(run_rows(rows, keep))
    assert {name: outcome.reason for name, outcome in outcomes.items() if outcome.state == FAILS} == {}
    for name in outcomes:
        if check := CELLS.get(name):
            told, recomputed = zip(*check(keep / name.replace(" ", "_")), strict=True)
            assert len(told) >= 3 and told == recomputed, name


def test_cells_of_each_table_are_recomputed() -> None:
    """All but those of weights that are not to be had here."""
    tables = {item.name for item in ITEMS if item.name.split()[1][0] == "T"}
    assert tables - CELLS.keys() == {item.name for item in ITEMS if "weights" in item.lacks}


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_eight_rows_come_out_in_the_papers_form(paper: str, tmp_path: Path) -> None:
    _require_forms_and_figures(_by_turns(paper), tmp_path / "rows")


@pytest.mark.long
def test_all_rows_come_out_in_the_papers_form(tmp_path: Path) -> None:
    _require_forms_and_figures([item for item in ITEMS if item.commands], tmp_path / "rows")
