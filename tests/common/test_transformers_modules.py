"""The names that transformers finds in its files are kept from one process to the next, and are those that it finds itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_PROGRAM = """
import builtins, json, sys
opened, usual = [0], builtins.open
def counting(file, *arguments, **options):
    opened[0] += "/transformers/models/" in str(file)
    return usual(file, *arguments, **options)
builtins.open = counting
if sys.argv[1] == "remember":
    from common.transformers_modules import remember_modules
    remember_modules()
    remember_modules()
    assert len([finder for finder in sys.meta_path if type(finder).__module__ == "common.transformers_modules"]) == 1
import transformers.models.llama, transformers.models.auto
from transformers.utils import import_utils
assert not [finder for finder in sys.meta_path if type(finder).__module__ == "common.transformers_modules"]
models = transformers.models.__path__[0]
def plain(found):
    return {str(sorted(needed)): {module: sorted(names) for module, names in sorted(modules.items())} for needed, modules in found.items()}
structures = [plain(import_utils.define_import_structure(*arguments)) for arguments in ((models, "models"), (f"{models}/__init__.py",), (f"{models}/llama",))]
print(json.dumps({"opened": opened[0], "structures": structures, "names": sorted(dir(transformers)), "source": len(__import__("inspect").getsource(import_utils))}))
"""


def _imported(cache: Path, how: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_printed(cache, _PROGRAM, how))
    return found


def _printed(cache: Path, program: str, how: str) -> str:
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "USE_TORCH": "0", "PYTHONPATH": str(_ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, how], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_names_are_kept_and_are_those_of_the_files(tmp_path: Path) -> None:
    usual, first, second = _imported(tmp_path, "read"), _imported(tmp_path, "remember"), _imported(tmp_path, "remember")
    assert usual["opened"] > 500
    assert first["opened"] > 500
    assert second["opened"] < 100, "of the folders that were asked for by themselves"
    for name in ("structures", "names", "source"):
        assert usual[name] == first[name] == second[name], name
    (kept,) = (tmp_path / "scion").iterdir()
    kept.write_bytes(kept.read_bytes()[:-100])
    broken = _imported(tmp_path, "remember")
    assert broken["opened"] > 500
    assert broken["structures"] == usual["structures"]
    assert _imported(tmp_path, "remember")["opened"] < 100


def test_without_a_place_to_keep_them_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "scion").write_text("no folder")
    found = _imported(tmp_path, "remember")
    assert found["opened"] > 500
    assert (tmp_path / "scion").read_text() == "no folder"


@pytest.mark.parametrize("how", ["read", "remember"])
def test_a_name_that_is_not_there_is_missed_as_ever(tmp_path: Path, how: str) -> None:
    program = """
import sys
if sys.argv[1] == "remember":
    from common.transformers_modules import remember_modules
    remember_modules()
import transformers
try:
    transformers.NoSuchModel
except AttributeError as error:
    print(error)
"""
    assert _printed(tmp_path, program, how) == "module transformers has no attribute NoSuchModel\n"
