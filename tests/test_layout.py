"""Packages resolve inside the checkout, commands stand at the top level and answer at once, imports go one way and in no circle."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.cli import STAGES, commands
from tests.processes import ROOT

GROUND = "common"
BEFORE = {
    "common": set(),
    "data_prep": {GROUND},
    "nemo_patches": {GROUND, "data_prep"},
    "conversion": {GROUND, "data_prep", "nemo_patches"},
    "recipes": {GROUND, "data_prep", "nemo_patches", "conversion"},
    "slurm": {GROUND, "data_prep", "nemo_patches", "conversion", "recipes"},
    "eval": {GROUND, "data_prep", "nemo_patches", "conversion", "recipes"},
}
# Checkpoints name classes of nemo_patches (io.json), and families its functions: its modules stay where they are.
WITHOUT_SUBPACKAGES = {GROUND, "nemo_patches"}
HEAVY = {"torch", "transformers", "nemo", "megatron", "lightning", "lm_eval", "gensim", "matplotlib", "hydra"}


def modules(root: Path) -> dict[str, Path]:
    """Dotted name -> file, of all packages."""
    files = (path for package in BEFORE for path in (root / package).rglob("*.py"))
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of all that a file imports anywhere, for types too; `from a import b` gives `a.b`."""
    yield from _imports_in(path.read_text(encoding="utf-8"))


@functools.cache
def _imports_in(source: str) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            found += ((node.lineno, alias.name) for alias in node.names)
    return found


def runnable(root: Path) -> set[str]:
    """Modules that are commands, those in subpackages too, which other commands start."""
    return {module for module, path in modules(root).items() if "\n    command.run(main)\n" in path.read_text(encoding="utf-8")}


def order_problems(root: Path) -> list[str]:
    """Imports of a stage that comes later."""
    return [
        f"{path.relative_to(root)}:{line} imports {name}"
        for path in modules(root).values()
        for line, name in imports(path)
        if (package := path.relative_to(root).parts[0]) != (imported := name.partition(".")[0])
        and imported in BEFORE
        and imported not in BEFORE[package]
    ]


def circle_problems(root: Path) -> list[str]:
    """Modules that need themselves; imports inside functions and for types count too."""
    known = modules(root)
    graph = {
        module: {name if name in known else name.rpartition(".")[0] for _, name in imports(path)} & known.keys()
        for module, path in known.items()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as circle:
        return [" <- ".join(circle.args[1])]
    return []


def subpackage_problems(root: Path) -> list[str]:
    """Files at the top level of a stage that are not commands."""
    problems = []
    typed = {command.module for command in commands(root)}
    for stage in BEFORE.keys() - WITHOUT_SUBPACKAGES:
        for path in (root / stage).glob("*.py"):
            if path.name != "__init__.py" and f"{stage}.{path.stem}" not in typed:
                problems.append(f"{stage}/{path.name} is not a command: it belongs into a subpackage")
    for module, path in modules(root).items():
        if path.name == "__init__.py" and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))):
            problems.append(f"{module} does not say which question it answers")
    return problems


def borrowed_command_problems(root: Path) -> list[str]:
    """Modules that import from a command."""
    typed = runnable(root)
    return [
        f"{path.relative_to(root)}:{line} imports from the command {name.rpartition('.')[0]}"
        for path in modules(root).values()
        for line, name in imports(path)
        if name.rpartition(".")[0] in typed
    ]


def token_count_problems(root: Path) -> list[str]:
    """Numbers of tokens that are taken for numbers of rows: a tokenizer may have ids without a token."""
    counts = re.compile(r"\blen\((\w+[._])?tokenizer\)|\blen\(load_tokenizer\(|\btokenizer\.vocab_size\b")
    return [
        f"{path.relative_to(root)}:{line} counts tokens: say `rows_needed(tokenizer)`, the highest id + 1"
        for path in modules(root).values()
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if counts.search(text.replace("`len(tokenizer)`", ""))
    ]


CHECKS = [order_problems, circle_problems, subpackage_problems, borrowed_command_problems, token_count_problems]
_COMMAND = '"""Says something."""\nfrom common import command\n\n\ndef main(argv=None):\n    return 0\n\n\nif __name__ == "__main__":\n    command.run(main)\n'


@pytest.mark.parametrize("check", CHECKS)
def test_the_house_is_in_order(check) -> None:
    assert check(ROOT) == []


@pytest.mark.parametrize(
    ("check", "file", "code", "problem"),
    [
        (order_problems, "data_prep/reading/later.py", "from conversion import families\n", "imports conversion.families"),
        (order_problems, "common/tables.py", "def f():\n    import eval.running.results\n", "imports eval.running.results"),
        (circle_problems, "data_prep/reading/first.py", "def f():\n    from data_prep.reading import second\n", "data_prep.reading.second"),
        (subpackage_problems, "eval/helpers.py", "X = 1\n", "eval/helpers.py is not a command"),
        (subpackage_problems, "eval/new_room/__init__.py", "", "eval.new_room does not say"),
        (borrowed_command_problems, "data_prep/reading/borrowing.py", "from data_prep.clean import main\n", "the command data_prep.clean"),
        (
            token_count_problems,
            "conversion/rows.py",
            "def f(tokenizer):\n    return len(tokenizer)\n",
            "conversion/rows.py:2 counts tokens",
        ),
    ],
)
def test_a_planted_fault_is_found(check, file: str, code: str, problem: str, tmp_path: Path) -> None:
    """In a small house that is in order without it."""
    small = {
        "data_prep/clean.py": _COMMAND,
        "data_prep/__init__.py": '"""Text."""\n',
        "data_prep/reading/__init__.py": '"""How is text read?"""\n',
        "data_prep/reading/second.py": "from data_prep.reading import first\n",
        "data_prep/reading/first.py": "",
        "common/command.py": "",
    }
    for name, text in small.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert check(tmp_path) == []
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(code)
    assert [problem in found for found in check(tmp_path)] == [True]


@pytest.mark.parametrize("package", BEFORE)
def test_package_is_that_of_the_checkout(package: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin == str(ROOT / package / "__init__.py")
    assert package == GROUND or package in STAGES


@pytest.mark.parametrize("name", ["vllm", "comet", "bridge", "automodel"])
def test_an_environment_that_runs_the_project_has_what_it_imports(name: str) -> None:
    """The packages that the project names, except those that come with the others."""
    named = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"])
    pinned = {line.partition("==")[0] for line in (ROOT / f"requirements-{name}.txt").read_text(encoding="utf-8").splitlines()}
    assert named - {"numpy", "tqdm", "transformers", "tokenizers", "safetensors", "torch", "Jinja2"} <= pinned


def test_help_is_instant_and_ends_with_an_example() -> None:
    """All commands one after the other in one process, which none may make import what takes seconds."""
    code = f"""
import contextlib, io, runpy, sys
for module in {sorted(runnable(ROOT))!r}:
    sys.argv, out = ['x', '--help'], io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            runpy.run_module(module, run_name='__main__')
            ended = None
        except SystemExit as end:
            ended = end.code
    heavy = sorted({HEAVY!r} & set(sys.modules))
    if ended != 0 or heavy or 'example:\\n  python -m' not in out.getvalue():
        sys.exit(f'{{module}} --help ends with {{ended}}, imports {{heavy}} and says {{out.getvalue()[-200:]}}')
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
