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


def modules() -> dict[str, Path]:
    """Dotted name -> file, of all packages."""
    files = (path for package in BEFORE for path in (ROOT / package).rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


@functools.cache
def imports(path: Path) -> list[tuple[int, str]]:
    """Line and dotted name of all that a file imports anywhere, for types too; `from a import b` gives `a.b`."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            found += ((node.lineno, alias.name) for alias in node.names)
    return found


def runnable() -> set[str]:
    """Modules that are commands, those in subpackages too, which other commands start."""
    return {module for module, path in modules().items() if "\n    command.run(main)\n" in path.read_text(encoding="utf-8")}


def order_problems() -> list[str]:
    """Imports of a stage that comes later."""
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in modules().values()
        for line, name in imports(path)
        if (package := path.relative_to(ROOT).parts[0]) != (imported := name.partition(".")[0])
        and imported in BEFORE
        and imported not in BEFORE[package]
    ]


def circle_problems() -> list[str]:
    """Modules that need themselves; imports inside functions and for types count too."""
    known = modules()
    graph = {
        module: {name if name in known else name.rpartition(".")[0] for _, name in imports(path)} & known.keys()
        for module, path in known.items()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as circle:
        return [" <- ".join(circle.args[1])]
    return []


def subpackage_problems() -> list[str]:
    """Files at the top level of a stage that are not commands."""
    problems = []
    typed = {command.module for command in commands()}
    for stage in BEFORE.keys() - WITHOUT_SUBPACKAGES:
        for path in (ROOT / stage).glob("*.py"):
            if path.name != "__init__.py" and f"{stage}.{path.stem}" not in typed:
                problems.append(f"{stage}/{path.name} is not a command: it belongs into a subpackage")
    for module, path in modules().items():
        if path.name == "__init__.py" and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))):
            problems.append(f"{module} does not say which question it answers")
    return problems


def borrowed_command_problems() -> list[str]:
    """Modules that import from a command."""
    typed = runnable()
    return [
        f"{path.relative_to(ROOT)}:{line} imports from the command {name.rpartition('.')[0]}"
        for path in modules().values()
        for line, name in imports(path)
        if name.rpartition(".")[0] in typed
    ]


def token_count_problems() -> list[str]:
    """Numbers of tokens that are taken for numbers of rows: a tokenizer may have ids without a token."""
    counts = re.compile(r"\blen\((\w+[._])?tokenizer\)|\blen\(load_tokenizer\(|\btokenizer\.vocab_size\b")
    return [
        f"{path.relative_to(ROOT)}:{line} counts tokens: say `rows_needed(tokenizer)`, the highest id + 1"
        for path in modules().values()
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if counts.search(text.replace("`len(tokenizer)`", ""))
    ]


CHECKS = [order_problems, circle_problems, subpackage_problems, borrowed_command_problems, token_count_problems]


@pytest.mark.parametrize("check", CHECKS)
def test_the_house_is_in_order(check) -> None:
    assert check() == []


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
for module in {sorted(runnable())!r}:
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
