"""Running the papers' rows with their own commands, and comparing what they leave with a description of the paper's form."""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from common.plain_files import read_yaml

WORKS, LACKING, FAILS = "works", "lacks", "fails"
_FORMS = Path(__file__).with_name("paper_forms.yaml")
# Commands that need what is not to be had here.
_NOT_HERE = ("eval.comet", "eval.bleurt")
# What makes a command small: beside the documented words, which stay as they are.
_SMALL = {
    "eval.prepare": "--sample",
    "eval.harness": "--limit 3 --batch-size 64 --device cpu",
    "eval.generate": "--max-new-tokens 16 --repeats 2 --device cpu",
    "eval.finetune": "--seeds 1 2 --epochs 2 --device cpu",
    "eval.retrieval": "--layer 2 --device cpu",
    "eval.slobench": "--device cpu",
    "recipes.train": "+size=tiny model.checkpoint=nemo data.train=[data] data.validation=data",
}


@dataclass(frozen=True)
class Item:
    """One table or figure.

    Attributes:
        name: `gams T4`, `sava F2` ...
        shows: what it shows.
        commands: what fills it, one after the other, without `python -m`; none for a drawing.
        lacks: what the row needs and is not to be had here; where a command cannot run without it, none is run.
    """

    name: str
    shows: str
    commands: tuple[str, ...] = ()
    lacks: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of a row.

    Attributes:
        reason: of one that fails, the first difference; of one that lacks something, what that is.
    """

    state: str
    seconds: float
    reason: str = ""

    def text(self) -> str:
        """For a cell."""
        return f"{self.state}: {self.reason}" if self.reason else self.state


def run_rows(rows: Sequence[Item], keep: Path | None = None) -> Iterator[tuple[str, Outcome]]:
    """Run rows one after the other, each in a folder of its own; what two rows do alike is done once.

    Args:
        keep: new folder for what they leave.

    Raises:
        ValueError: if the folder exists.
    """
    from benchmarks.paper_inputs import write_inputs

    if keep is not None and keep.exists():
        raise ValueError(f"{keep} exists; give --keep a new folder")
    forms = read_yaml(_FORMS)
    patterns = forms.pop("patterns")
    with contextlib.ExitStack() as stack:
        base = keep.resolve() if keep is not None else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        done: dict[tuple[str, ...], tuple[Path, list[str]]] = {}
        for row in rows:
            start = time.perf_counter()
            world = base / "inputs" / row.name.split()[0]
            if not world.exists():
                with mock.patch.dict(os.environ):  # a training by the launch of another one would take its directory for lost
                    write_inputs(row.name.split()[0], world)
            folder = base / row.name.replace(" ", "_")
            folder.mkdir(parents=True)
            try:
                if not any(words.split()[0] in _NOT_HERE for words in row.commands):
                    _run(row, folder, world, done)
                    _compare(folder, forms.get(row.name), patterns)
                outcome = Outcome(LACKING if row.lacks else WORKS, time.perf_counter() - start, row.lacks)
            except (ValueError, AssertionError, OSError) as error:
                outcome = Outcome(FAILS, time.perf_counter() - start, " ".join(str(error).split())[:300].replace("|", "/"))
            yield row.name, outcome


def _run(row: Item, folder: Path, world: Path, done: dict[tuple[str, ...], tuple[Path, list[str]]]) -> None:
    """The row's commands in its folder, which has links to all inputs that they do not write themselves."""
    words = [shlex.split(command) for command in row.commands]
    outputs = {one[place + 1].strip("/") for one in words for place, word in enumerate(one) if word == "--output"}
    for path in world.iterdir():
        if not any(output.split("/")[0] == path.name for output in outputs):
            (folder / path.name).symlink_to(path)
        elif path.name not in outputs:  # commands write beside what is there
            (folder / path.name).mkdir()
            for inner in path.iterdir():
                if f"{path.name}/{inner.name}" not in outputs:
                    (folder / path.name / inner.name).symlink_to(inner)
    given = _files(folder)
    for number, one in enumerate(words, start=1):
        module, *arguments = one
        key = row.commands[:number]
        if key in done:
            earlier, made = done[key]
            for name in made:
                if not (folder / name).exists():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).symlink_to((earlier / name).resolve())
            continue
        more = shlex.split(_SMALL.get(module, ""))
        if module == "eval.harness" and any(
            word.startswith("itabench") for word in arguments
        ):  # more rows of tasks that ask for no text, so that models differ
            more += ["--limit", "12"]
        if "--num-pairs" in arguments:  # which the last one decides
            more = ["--num-pairs", "200"]
        if "--" in arguments:  # what follows is another command's
            more = []
        code, printed = _called(module, [*arguments, *more], folder)
        (folder / f"printed_{number}").write_text(printed, encoding="utf-8")
        if code:
            raise ValueError(f"{module} ended with {code}: {(printed.strip().splitlines() or [''])[-1]}")
        done[key] = folder, sorted(_files(folder) - given)


def _called(module: str, words: Sequence[str], folder: Path) -> tuple[int, str]:
    """Exit code and output of a command, of one that failed its errors; a training has a process of its own, as the engine serves one run."""
    if module == "recipes.train":
        root = Path(__file__).resolve().parent.parent
        done = subprocess.run(
            [sys.executable, "-m", module, *words], cwd=folder, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True
        )
        return done.returncode, done.stderr if done.returncode else done.stdout
    streams = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with mock.patch.dict(os.environ), contextlib.chdir(folder), streams[0] as out, streams[1] as errors:
        try:
            code: int = importlib.import_module(module).main([*words])
        except SystemExit as refusal:
            code = int(refusal.code or 0)
    return code, errors.getvalue() if code else out.getvalue()


def _files(folder: Path) -> set[str]:
    """All files, those behind links to folders left out."""
    return {str((Path(root) / name).relative_to(folder)) for root, _, names in os.walk(folder) for name in names}


def _compare(folder: Path, forms: Sequence[Mapping[str, Any]] | None, patterns: Mapping[str, str]) -> None:
    """Hold what is in a folder against the parts of a form.

    Raises:
        ValueError: at the first difference, or without a form.
    """
    if not forms:
        raise ValueError("paper_forms.yaml has no form of this row")
    for form in forms:
        path = folder / form["file"]
        if not path.is_file():
            raise ValueError(f"there is no {form['file']}")
        if "lines" in form:
            _require_in_order(path, form["lines"], patterns)
        elif "starts" in form:
            if not path.read_bytes().startswith(form["starts"].encode("latin-1")):
                raise ValueError(f"{form['file']} does not begin with {form['starts']!r}")
        else:
            header, rows = read_table(path, form.get("table", ""))
            _require_table(form, header, rows, patterns)


def _pattern(text: str, patterns: Mapping[str, str]) -> str:
    return re.sub(r"<(\w+)>", lambda match: f"(?:{patterns[match[1]]})", text)


def _require_in_order(path: Path, lines: Sequence[str], patterns: Mapping[str, str]) -> None:
    text, place = path.read_text(encoding="utf-8"), 0
    for line in lines:
        found = re.compile(_pattern(line, patterns), re.MULTILINE).search(text, place)
        if found is None:
            raise ValueError(f"{path.name} has no {line!r} {'after the line before' if place else ''}".strip())
        place = found.end()


def _require_table(form: Mapping[str, Any], header: Sequence[str], rows: Sequence[Sequence[str]], patterns: Mapping[str, str]) -> None:
    """Columns in order, rows in order by their first cell, each cell by its column's pattern, and so many marked cells in each column."""
    where = f"{form['file']} {form.get('table', '')}".strip()
    expected = form["header"]
    if not _all_match(expected, header, patterns):
        raise ValueError(f"{where} has the columns {list(header)}; the paper {expected}")
    names = [row[0] for row in rows]
    if not _all_match(form["rows"], names, patterns):
        raise ValueError(f"{where} has the rows {names}; the paper {form['rows']}")
    cells = form.get("cells", [])
    columns = [cells] * (len(header) - 1) if isinstance(cells, str) else cells
    for row in rows:
        for title, cell, pattern in zip(header[1:], row[1:], columns):
            if not re.fullmatch(_pattern(pattern, patterns), cell):
                raise ValueError(f"{where} has {cell!r} in row {row[0]}, column {title}; expected {pattern}")
    for mark, count in form.get("marks", {}).items():
        for place, title in enumerate(header[1:], start=1):
            found = sum(mark in row[place] for row in rows if len(row) > place)
            if found not in ([count] if isinstance(count, int) else count):
                raise ValueError(f"{where} has {found} x {mark} in column {title}; expected {count}")


def _all_match(expected: Sequence[str], found: Sequence[str], patterns: Mapping[str, str]) -> bool:
    """Whether each has its pattern in order; a pattern that begins with `*` stands for any number of them."""
    text = "".join(f"{one}\n" for one in found)
    parts = [rf"(?:{_pattern(one[1:], patterns)}\n)*" if one.startswith("*") else rf"(?:{_pattern(one, patterns)})\n" for one in expected]
    return re.fullmatch("".join(parts), text) is not None


def read_table(path: Path, title: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table: of a CSV file; of Markdown or LaTeX the first with this text in its heading or caption.

    Raises:
        ValueError: if there is none.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        header, *rows = list(csv.reader(io.StringIO(text)))
        return header, rows
    if path.suffix == ".tex":
        for body in re.findall(r"\\begin\{table\}(.*?)\\end\{table\}", text, re.DOTALL):
            if title in body.partition(r"\begin{tabular}")[0]:
                head, _, rest = body.partition(r"\toprule")[2].partition(r"\midrule")
                return [*_tex_rows(head)][-1], _tex_rows(rest.partition(r"\bottomrule")[0])
    else:
        for part in re.split(r"^#+ ", text, flags=re.MULTILINE):
            lines = [line for line in part.splitlines() if line.startswith("|")]
            if title in (part.splitlines() or [""])[0] and lines:
                header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
                return header, rows
    raise ValueError(f"{path.name} has no table {title!r}")


def _tex_rows(text: str) -> list[list[str]]:
    rows = [line.replace(r"\midrule", "").strip() for line in text.split("\\\\")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)&", row)] for row in rows if row]
