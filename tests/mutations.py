"""How many planted faults the tests find: a fixed list (`mutations.jsonl`), one fault at a time, in a copy of the checkout.

python -m tests.mutations draw                              # makes the list anew: only when much of it is gone
python -m tests.mutations reach --work /tmp/mutations       # which test reaches which fault: all usual and slow tests once, an hour
python -m tests.mutations run --work /tmp/mutations         # the tests that reach a fault, the quickest first, until one fails

A fault is one changed line, found again by its text, so that the list outlives moves of code; one whose line is gone is said to be gone.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.processes import ROOT

LIST = Path(__file__).with_suffix(".jsonl")
FAULTS_OF_STAGE = {"common": 6, "data_prep": 12, "nemo_patches": 6, "conversion": 14, "recipes": 12, "slurm": 8, "eval": 10}
# Where a changed number or comparison is a matter of words or looks.
_NOT_INSIDE = (ast.Raise, ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)
_NOT_CALLED = {"add_argument", "add_option", "option", "print", "log", "say", "field", "dataclass", "figure", "plot"}
_SWAPPED: dict[type, str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in", ast.NotIn: "in",
    ast.Is: "is not", ast.IsNot: "is", ast.Add: "-", ast.Sub: "+", ast.And: "or", ast.Or: "and",
}  # fmt: skip
_SECONDS_OF_TESTS = 150.0  # that one fault may cost, by the times of the tests that reach it
_PROBE = """try:
    import _probe
    _probe.hit({place})
except ImportError:
    pass
"""


def _changes(source: str) -> Iterator[tuple[int, str, str]]:
    """Line number, the line, and the line with one fault, for each place in a function where one can be planted."""
    lines = source.splitlines()

    def visit(node: ast.AST, inside: bool) -> Iterator[tuple[int, str, str]]:
        if isinstance(node, _NOT_INSIDE):
            return
        if isinstance(node, ast.Call) and (getattr(node.func, "attr", None) or getattr(node.func, "id", None)) in _NOT_CALLED:
            return
        if isinstance(node, ast.FunctionDef):
            if node.name in {"main", "__repr__", "__str__"}:
                return
            for child in node.body:
                yield from visit(child, True)
            return
        if inside and getattr(node, "lineno", 0) and node.lineno == node.end_lineno:
            line = lines[node.lineno - 1]
            encoded = line.encode()
            for start, end, text in _replacements(node, encoded):
                yield node.lineno, line, (encoded[:start] + text.encode() + encoded[end:]).decode()
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    yield from visit(ast.parse(source), False)


def _replacements(node: ast.AST, line: bytes) -> Iterator[tuple[int, int, str]]:
    """Columns of the line, in bytes, and what stands there with the fault."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _SWAPPED:
        between = (node.left.end_col_offset or 0, node.comparators[0].col_offset)
        yield from _operator(line, between, _SWAPPED[type(node.ops[0])])
    elif isinstance(node, ast.BinOp) and type(node.op) in _SWAPPED:
        yield from _operator(line, (node.left.end_col_offset or 0, node.right.col_offset), _SWAPPED[type(node.op)])
    elif isinstance(node, ast.BoolOp):
        yield from _operator(line, (node.values[0].end_col_offset or 0, node.values[1].col_offset), _SWAPPED[type(node.op)])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.col_offset, node.operand.col_offset, ""
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node.col_offset, node.end_col_offset or 0, str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield node.col_offset, node.end_col_offset or 0, str(node.value + 1)


def _operator(line: bytes, between: tuple[int, int], text: str) -> Iterator[tuple[int, int, str]]:
    start, end = between
    if 0 < start < end and not set(line[start:end].decode()) & set("()#"):
        yield start, end, f" {text} "


def draw(seed: int) -> list[dict[str, str | int]]:
    """The list: so many faults of each stage, files and places by chance, no two in one file's line."""
    generator = random.Random(seed)
    drawn: list[dict[str, str | int]] = []
    for stage, number in FAULTS_OF_STAGE.items():
        files = sorted((ROOT / stage).rglob("*.py"))
        # By lines, as faults are: a file of ten lines is not drawn as often as one of five hundred.
        places = [(file, change) for file in files for change in _changes(file.read_text(encoding="utf-8"))]
        for file, (number_of_line, before, after) in generator.sample(places, number):
            drawn.append({"file": str(file.relative_to(ROOT)), "line": number_of_line, "before": before.strip(), "after": after.strip()})
    return drawn


def listed() -> list[dict[str, str | int]]:
    """The faults of the list."""
    return [json.loads(line) for line in LIST.read_text(encoding="utf-8").splitlines()]


def line_of(fault: dict[str, str | int], source: str) -> int | None:
    """Index of the fault's line in a file as it is now, the nearest to where it was; None where it is gone."""
    same = [index for index, line in enumerate(source.splitlines()) if line.strip() == fault["before"]]
    return min(same, key=lambda index: abs(index + 1 - int(fault["line"])), default=None)


def plant(fault: dict[str, str | int], root: Path) -> bool:
    """Write the fault into a checkout; False where its line is gone."""
    path = root / str(fault["file"])
    source = path.read_text(encoding="utf-8") if path.exists() else ""
    if (place := line_of(fault, source)) is None:
        return False
    lines = source.splitlines(keepends=True)
    lines[place] = lines[place].replace(str(fault["before"]), str(fault["after"]))
    path.write_text("".join(lines), encoding="utf-8")
    return True


def _probe(root: Path, reached: Path) -> None:
    """Let the function around each fault note which test is running, in whatever process."""
    (root / "_probe.py").write_text(
        "import os, re\n_seen = set()\n\n\ndef hit(place):\n"
        "    test = os.environ.get('PYTEST_CURRENT_TEST', '').rpartition(' ')[0]\n"
        "    if test and (place, test) not in _seen:\n        _seen.add((place, test))\n"
        f"        with open({str(reached)!r} + f'/{{place}}', 'a') as file:\n            file.write(test + '\\n')\n"
    )
    by_file: dict[str, list[tuple[int, int]]] = {}
    for place, fault in enumerate(listed()):
        path = root / str(fault["file"])
        line = line_of(fault, path.read_text(encoding="utf-8") if path.exists() else "")
        if line is None:  # said to be gone when it is its turn
            continue
        by_file.setdefault(str(fault["file"]), []).append((line + 1, place))
    for name, places in by_file.items():
        path = root / name
        source = path.read_text(encoding="utf-8")
        functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
        starts = []
        for line, place in places:
            around = max((f for f in functions if f.lineno <= line <= (f.end_lineno or 0)), key=lambda f: f.lineno)
            first = around.body[1] if ast.get_docstring(around) is not None and len(around.body) > 1 else around.body[0]
            starts.append((first.lineno, first.col_offset, place))
        lines = source.splitlines(keepends=True)
        for line, column, place in sorted(starts, reverse=True):
            lines[line - 1 : line - 1] = [" " * column + text for text in _PROBE.format(place=place).splitlines(keepends=True)]
        path.write_text("".join(lines), encoding="utf-8")


def _copy(root: Path) -> Path:
    """A clone of the last commit, with the checkout's environment; one that is there, with its compiled files, is set back to it."""
    if (root / ".git").is_dir():
        subprocess.run(["git", "-C", str(root), "checkout", "--quiet", "."], check=True)
        return root
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(root)], check=True)
    (root / ".venv").symlink_to((ROOT / ".venv").resolve())
    return root


def reach(work: Path, processes: int) -> None:
    """Run all usual and slow tests in a copy with probes: what each fault is reached by, and how long each test takes."""
    reached = work / "reached"
    reached.mkdir(parents=True, exist_ok=True)
    root = _copy(work / "probed")
    _probe(root, reached)
    for kind, marks in (("usual", "not slow and not long"), ("slow", "slow")):
        _pytest(root, ["-n", str(processes), "-m", marks, f"--junitxml={work / kind}.xml"])


def _pytest(root: Path, arguments: list[str]) -> int:
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    with (root.parent / f"{root.name}.log").open("ab") as log:
        return subprocess.run(
            [sys.executable, "-m", "pytest", *arguments], cwd=root, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        ).returncode


def seconds_of_tests(work: Path) -> dict[str, float]:
    """Node id -> seconds, of the runs with probes; those that failed there are left out."""
    seconds = {}
    for kind in ("usual", "slow"):
        if not (work / f"{kind}.xml").exists():
            continue
        for case in ElementTree.parse(work / f"{kind}.xml").iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                continue
            parts = (case.get("classname") or "").split(".")
            file = next(
                "/".join(parts[:end]) + ".py"
                for end in range(len(parts), 0, -1)
                if (ROOT / ("/".join(parts[:end]) + ".py")).exists() or end == 1
            )
            seconds[f"{file}::{case.get('name')}"] = float(case.get("time") or 0)
    return seconds


def run(work: Path, only: list[int], output: Path) -> None:
    """Plant each fault and run what reaches it until something fails; one line of JSON each, with what found it."""
    seconds = seconds_of_tests(work)
    results = []
    for place, fault in enumerate(listed()):
        if only and place not in only:
            continue
        root = _copy(work / f"fault-{os.getpid()}")
        state, by = "gone", ""
        if plant(fault, root):
            reached = work / "reached" / str(place)
            tests = set(reached.read_text().splitlines()) if reached.exists() else set()
            state, by = _hunt(
                root,
                work,
                sorted((t for t in tests if t in seconds and (root / t.partition("::")[0]).exists()), key=lambda t: seconds.get(t, 5.0)),
                seconds,
            )
        results.append({"fault": place, **fault, "state": state, "by": by})
        with output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(results[-1]) + "\n")
        print(f"{place:3} {state:12} {fault['file']}:{fault['line']} {fault['after']} {by}", flush=True)
    print(dict(Counter(str(result["state"]) for result in results)))


def _hunt(root: Path, work: Path, tests: list[str], seconds: dict[str, float]) -> tuple[str, str]:
    """Found or not, and by which test; those that a fault's share of time allows, the quickest first."""
    if not tests:
        return "not reached", ""
    total, chosen = 0.0, []
    for test in tests:
        total += seconds.get(test, 5.0)
        if chosen and total > _SECONDS_OF_TESTS:
            break
        chosen.append(test)
    report = work / f"{root.name}.xml"
    report.unlink(missing_ok=True)
    (root / "chosen.txt").write_text("\n".join(chosen))
    code = _pytest(
        root,
        ["-x", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "--timeout", "300", "-m", "not long", f"@{root / 'chosen.txt'}"],
    )
    if code == 0:
        return "not found", ""
    if not report.exists():
        return "found", "collection"
    failed = [
        case for case in ElementTree.parse(report).iter("testcase") if case.find("failure") is not None or case.find("error") is not None
    ]
    return "found", "::".join(filter(None, (failed[0].get("classname"), failed[0].get("name")))) if failed else f"exit {code}"


def main() -> None:
    """One of the three parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["draw", "reach", "run"])
    parser.add_argument("--work", type=Path, help="folder for copies and results")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--only", type=int, nargs="*", default=[], help="numbers of faults")
    parser.add_argument("--output", type=Path, help="file that a line of JSON is added to for each fault")
    arguments = parser.parse_args()
    if arguments.part == "draw":
        LIST.write_text("".join(json.dumps(fault, ensure_ascii=False) + "\n" for fault in draw(seed=20261128)), encoding="utf-8")
    elif arguments.part == "reach":
        reach(arguments.work, arguments.processes)
    else:
        run(arguments.work, arguments.only, arguments.output or arguments.work / "faults.jsonl")


if __name__ == "__main__":
    main()
