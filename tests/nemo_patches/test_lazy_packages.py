"""Packages that are imported lazily: nothing runs until something is asked, and then all is there."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import xxhash

from nemo_patches import lazy_packages
from nemo_patches.lazy_packages import LazyPackage, import_lazily, whole
from tests.processes import ROOT

INIT = '''"""Gathers."""
import gathered_runs
gathered_runs.RUNS.append(__name__)
from gathered import other
from gathered.base import Base
__all__ = ["Base"]
LATE = Base.value + 1
'''


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What ran, of a package with two modules; its version is pytest's, which is surely installed."""
    (tmp_path / "gathered").mkdir()
    (tmp_path / "gathered_runs.py").write_text("RUNS = []\n")
    (tmp_path / "gathered/__init__.py").write_text(INIT)
    (tmp_path / "gathered/base.py").write_text("class Base:\n    value = 1\n")
    (tmp_path / "gathered/other.py").write_text("import gathered_runs\ngathered_runs.RUNS.append(__name__)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    finder = lazy_packages._LazyFinder()
    finder.packages["gathered"] = LazyPackage("gathered", "pytest", {}, {"Base": lambda: importlib.import_module("gathered.base").Base})
    sys.meta_path.insert(0, finder)
    yield importlib.import_module("gathered_runs").RUNS
    sys.meta_path[:] = before
    lazy_packages._pending.pop("gathered", None)
    for name in [name for name in sys.modules if name.startswith("gathered")]:
        del sys.modules[name]


def test_modules_below_and_names_that_are_there_at_once_run_nothing(runs: list[str]) -> None:
    from gathered import Base  # type: ignore[import-not-found]

    assert Base is sys.modules["gathered.base"].Base
    assert not hasattr(sys.modules["gathered"], "__wrapped__")  # asked by who walks through all modules
    assert runs == []


def test_any_other_name_runs_the_package_once_and_leaves_the_usual_module(runs: list[str]) -> None:
    import gathered

    assert gathered.LATE == 2
    assert runs == ["gathered", "gathered.other"]
    assert type(gathered) is ModuleType
    assert type(gathered.__loader__).__name__ == type(gathered.__spec__.loader).__name__ == "SourceFileLoader"
    with pytest.raises(AttributeError, match="module 'gathered' has no attribute 'never'"):
        _ = gathered.never
    assert runs == ["gathered", "gathered.other"]


@pytest.mark.parametrize("ask", ["from gathered import *", "import gathered; dir(gathered)", "from gathered import other"])
def test_whoever_asks_for_all_gets_all(runs: list[str], ask: str) -> None:
    names: dict[str, object] = {}
    exec(ask, names)
    assert "gathered" in runs
    assert {"Base", "LATE", "other", "__all__"} <= set(dir(sys.modules["gathered"]))


def test_what_the_package_raises_is_raised_whenever_it_is_asked(runs: list[str], tmp_path: Path) -> None:
    (tmp_path / "gathered/__init__.py").write_text("import gathered_runs\ngathered_runs.RUNS.append(1)\nraise ImportError('no')\n")
    for times in (1, 2):
        with pytest.raises(ImportError, match="no"):
            exec("from gathered import anything", {})
        assert len(runs) == times


def test_a_module_below_that_asks_in_the_middle_of_its_code_leaves_no_hole(runs: list[str], tmp_path: Path) -> None:
    """In the usual order the package would have run before; here its code misses a name, swallows that, and runs again when asked."""
    (tmp_path / "gathered/__init__.py").write_text("try:\n    from gathered.base import Base\nexcept ImportError:\n    pass\nFIRST = 1\n")
    (tmp_path / "gathered/base.py").write_text("import gathered\nFIRST = gathered.FIRST\nclass Base:\n    value = FIRST\n")
    sys.modules.pop("gathered.base", None)
    finder = sys.meta_path[0]
    assert isinstance(finder, lazy_packages._LazyFinder)
    finder.packages["gathered"] = LazyPackage("gathered", "pytest", {})
    import gathered.base

    assert gathered.Base.value == 1


def test_a_package_that_is_not_the_one_known_is_imported_whole(runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sys.meta_path.pop(0)
    digest = xxhash.xxh3_64_hexdigest((tmp_path / "gathered/__init__.py").read_bytes())
    unknown = LazyPackage("gathered", "pytest", {"0.1": digest})
    assert unknown.problem() == f"gathered is known for pytest 0.1; found {pytest.__version__}"
    edited = LazyPackage("gathered", "pytest", {pytest.__version__: digest})
    problem = edited.problem()  # pytest has no such file
    assert problem is not None and problem.endswith(f"has digest none; expected {digest}")
    import_lazily([unknown, edited])
    importlib.import_module("gathered.base")
    assert runs == ["gathered", "gathered.other"]


ENGINE = """
import ast, json, sys, time
import recipes.training.engine
heavy = sorted({"pandas._libs", "matplotlib.tests", "wandb.sdk", "datasets", "peft", "leptonai", "nemo_run.run", "scipy", "sklearn.utils",
    "nemo.collections.llm.api", "nemo.collections.llm.gpt.model.qwen2", "torch._inductor.compile_fx"} & set(sys.modules))
# What every start asks: whether the model is one of modelopt's.
from nemo.collections.llm.modelopt.model_utils import mto, restore_modelopt_state
mto.ModeloptStateManager, mto.plugins.restore_sharded_modelopt_state
from nemo_patches import lazy_packages
waiting = sorted(lazy_packages._pending)
missing = []
for package in lazy_packages.LAZY:
    module = lazy_packages.whole(package.name)
    for node in ast.parse(open(module.__file__).read()).body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in (alias.asname or alias.name for alias in node.names if alias.name != "*"):
                same = getattr(sys.modules.get(node.module), node.names[0].name, None) if len(node.names) == 1 else None
                if not hasattr(module, name) or (same is not None and getattr(module, name) is not same):
                    missing.append(f"{package.name}.{name}")
    missing += [f"{package.name}.{name}" for name in package.at_once if not hasattr(module, name)]
import nemo.collections.llm as llm
missing += sorted({name for name in llm.__all__ if not hasattr(llm, name)} - {"tokenizer"})  # which NeMo lists and does not have
print(json.dumps({"heavy": heavy, "waiting": waiting, "missing": missing, "left": sorted(lazy_packages._pending)}))
"""


@pytest.mark.slow
def test_the_engine_starts_without_what_it_does_not_use_and_all_of_it_is_there_when_asked(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ENGINE], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["heavy"] == []
    assert found["waiting"] == sorted(package.name for package in lazy_packages.LAZY)
    assert found["missing"] == []
    assert found["left"] == []


def test_whole_gives_the_package_after_its_code_has_run(runs: list[str]) -> None:
    assert whole("gathered").__dict__["LATE"] == 2
