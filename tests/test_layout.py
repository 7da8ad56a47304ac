"""Packages resolve inside the checkout, imports point one way, and commands answer without heavy imports."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

STAGES = ("data_prep", "nemo_patches", "conversion", "recipes", "slurm", "eval")
MAY_IMPORT = {
    "data_prep": set(),
    "nemo_patches": {"data_prep"},
    "conversion": {"data_prep", "nemo_patches"},
    "recipes": {"data_prep", "nemo_patches", "conversion"},
    "slurm": {"data_prep", "nemo_patches", "conversion", "recipes"},
    "eval": {"data_prep", "nemo_patches", "conversion", "recipes"},
}
MODULES = sorted(path for stage in STAGES for path in (ROOT / stage).rglob("*.py"))
COMMANDS = [path for path in MODULES if "command.run(main)" in path.read_text(encoding="utf-8")]
HEAVY = {"torch", "transformers", "nemo", "megatron", "lightning", "lm_eval", "gensim", "matplotlib", "hydra"}


def _module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("stage", STAGES)
def test_package_is_that_of_the_checkout(stage: str) -> None:
    spec = importlib.util.find_spec(stage)
    assert spec is not None and spec.origin == str(ROOT / stage / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=_module_name)
def test_imports_point_one_way(path: Path) -> None:
    stage = path.relative_to(ROOT).parts[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            imported = name.partition(".")[0]
            assert imported not in STAGES or imported == stage or imported in MAY_IMPORT[stage], f"{path}:{node.lineno} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=_module_name)
def test_nobody_imports_a_command(path: Path) -> None:
    commands = {_module_name(command) for command in COMMANDS}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module in commands:
            raise AssertionError(f"{path}:{node.lineno} imports the command {node.module}")


@pytest.mark.parametrize("path", COMMANDS, ids=_module_name)
def test_help_is_instant_and_ends_with_an_example(path: Path) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['x', '--help']\n"
        "try:\n"
        f"    runpy.run_module({_module_name(path)!r}, run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0, end.code\n"
        f"print('HEAVY', sorted({HEAVY!r} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    help_text, _, heavy = done.stdout.rpartition("HEAVY ")
    assert heavy.strip() == "[]", f"--help imports {heavy}"
    assert "example:\n  python -m" in help_text
