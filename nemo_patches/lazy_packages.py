"""Packages whose `__init__` runs when something is asked of them, and not because a module below them is imported.

Much of what NeMo is built on gathers in the `__init__` of a package all that lies below it: `from torchmetrics import Metric` imports
scipy, pandas and transformers, and one class of `nemo.collections.llm` imports 30 families of models, the clients of four clouds and a web
server.  A training uses none of that, and every one of its processes waits for it.

A package of `LAZY` is at first an empty module with a path, which is all that modules below it need.  The first name asked of it that is not
there runs its `__init__` in it, and from then on it is the module that it would have been.  Names of `at_once` are there without that.
Nothing is left out or replaced, so it only matters when code runs, and who asks for more gets it.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from nemo_patches.core import file_problem

_WALKED = ("__all__", "__version__")  # names of this form that somebody wants; others are asked of every module by who walks through all
_pending: dict[str, _Deferred] = {}


@dataclass(frozen=True)
class LazyPackage:
    """A package whose `__init__` only gathers what lies below it.

    Attributes:
        name: of the package, as it is imported.
        distribution: the one whose version decides.
        digests: version -> xxh3 of the file of its `__init__` in that version.
        at_once: name -> what gives its value, for names that are needed without the rest.
    """

    name: str
    distribution: str
    digests: Mapping[str, str]
    at_once: Mapping[str, Callable[[], Any]] = field(default_factory=dict)

    def problem(self) -> str | None:
        """Why it is imported whole, in a sentence; None if it fits or is not installed."""
        return file_problem(self.name, self.distribution, self.digests, Path(*self.name.split("."), "__init__.py"))


def import_lazily(packages: Sequence[LazyPackage] | None = None) -> None:
    """From now on, and for the life of the process, import these packages (`LAZY`) lazily; doing it twice is doing it once.

    One that is not the version that is known, or is imported already, is imported whole.
    """
    known = [finder for finder in sys.meta_path if isinstance(finder, _LazyFinder)]
    finder = known[0] if known else _LazyFinder()
    if not known:
        sys.meta_path.insert(0, finder)
    for package in LAZY if packages is None else packages:
        if package.name not in finder.packages and package.problem() is None:
            finder.packages[package.name] = package


def whole(name: str) -> ModuleType:
    """A package after its `__init__` has run."""
    module = importlib.import_module(name)
    if name in _pending:
        _pending[name].run()
    return module


class _LazyFinder(MetaPathFinder):
    def __init__(self) -> None:
        self.packages: dict[str, LazyPackage] = {}

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See importlib: where the package lies, with a loader that waits."""
        package = self.packages.get(fullname)
        spec = PathFinder.find_spec(fullname, path, target) if package is not None else None
        if package is None or spec is None or spec.loader is None:
            return None
        spec.loader = _Deferred(package, spec.loader)
        return spec


class _Gathering(ModuleType):
    """A module whose `__init__` has not run."""

    def __getattr__(self, name: str) -> Any:
        if (name.startswith("__") and name not in _WALKED) or self.__name__ not in _pending:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return _pending[self.__name__].attribute(name)

    def __dir__(self) -> list[str]:
        if self.__name__ in _pending:
            _pending[self.__name__].run()
        return sorted(self.__dict__)


class _Deferred(Loader):
    """Gives an empty package, and runs its `__init__` at the first name that is not there."""

    def __init__(self, package: LazyPackage, loader: Any) -> None:
        self._package, self._loader = package, loader
        self._lock = threading.RLock()
        self._runs = False
        self._module: ModuleType

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """See importlib: the usual module."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """See importlib: nothing runs yet; all that can be seen is as usual."""
        self._module = module
        module.__class__ = _Gathering
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        _pending[self._package.name] = self

    def attribute(self, name: str) -> Any:
        """A name that is not there yet."""
        with self._lock:  # another thread may be running the code and has its end waited for
            if name not in self._module.__dict__ and not self._runs and name in self._package.at_once:
                self._module.__dict__[name] = self._package.at_once[name]()
            elif name not in self._module.__dict__:
                self.run()
            if name in self._module.__dict__:
                return self._module.__dict__[name]
        if self._runs or "__getattr__" not in self._module.__dict__:
            raise AttributeError(f"module {self._package.name!r} has no attribute {name!r}")
        return getattr(self._module, name)  # the package answers for names itself

    def run(self) -> None:
        """Run the package's code, behind that of the packages above it; what it raises is raised again at the next name that is asked."""
        parent = self._package.name.rpartition(".")[0]
        if parent in _pending and not self._runs:
            _pending[parent].run()
        with self._lock:
            if self._runs or self._package.name not in _pending:
                return
            self._runs = True
            interrupts = any(map(self._is_half, sys.modules.copy().items()))
            try:
                self._loader.exec_module(self._module)
                # A module below may have asked in the middle of its own code: what asked it for the rest had an ImportError, and asks again.
                if not interrupts:
                    self._module.__class__ = ModuleType
                    del _pending[self._package.name]
            finally:
                self._runs = False

    def _is_half(self, item: tuple[str, ModuleType]) -> bool:
        """Whether a module below this package has begun its code and not ended it."""
        name, module = item
        return name.startswith(f"{self._package.name}.") and getattr(getattr(module, "__spec__", None), "_initializing", False)


def _from(module: str, name: str) -> Callable[[], Any]:
    return lambda: getattr(importlib.import_module(module), name)


def _when_called(module: str, name: str) -> Callable[[], Callable[..., Any]]:
    """A function that looks for the function of a package when it is called."""
    return lambda: lambda *arguments, **options: getattr(whole(module), name)(*arguments, **options)


def _nemo(name: str, digest: str, **at_once: Callable[[], Any]) -> LazyPackage:
    return LazyPackage(name, "nemo-toolkit", {"2.7.3": digest}, at_once)


_ASKED_OF_LLM = {  # by its own models, and by what asks a checkpoint for a state of modelopt's
    "fn": lambda: importlib.import_module("nemo.collections.llm.fn"),
    **{name: _from("nemo.collections.llm.gpt.model.base", name) for name in ("GPTConfig", "GPTModel")},
    **{name: _from("nemo.collections.llm.gpt.model.ssm", name) for name in ("SSMConfig", "MambaModel")},
}
LAZY = (
    LazyPackage(
        "torchmetrics",
        "torchmetrics",
        {"1.9.0": "1e8d99cce07e0c78"},
        {
            "__version__": _from("torchmetrics.__about__", "__version__"),
            "_logger": lambda: logging.getLogger("torchmetrics"),  # to which `__init__` adds a handler
            "Metric": _from("torchmetrics.utilities.checks", "Metric"),  # whose import has to begin in this module
            "MetricCollection": _from("torchmetrics.collections", "MetricCollection"),
        },
    ),
    LazyPackage("pandas", "pandas", {"2.3.3": "82f00df32a262ce4"}),
    LazyPackage("sklearn", "scikit-learn", {"1.9.1": "bacaad0f25b98d05"}),
    # transformers wants it for assisted generation
    LazyPackage(
        "sklearn.metrics", "scikit-learn", {"1.9.1": "40b1b2d884045f47"}, {"roc_curve": _when_called("sklearn.metrics", "roc_curve")}
    ),
    LazyPackage("wandb", "wandb", {"0.31.0": "e664fa31304680e8"}),
    LazyPackage("modelopt.torch", "nvidia-modelopt", {"0.37.0": "5e16d4bf392a56ea"}),
    # NeMo asks for these three at the start of every training.
    LazyPackage(
        "modelopt.torch.opt",
        "nvidia-modelopt",
        {"0.37.0": "ddabf8f80f4755eb"},
        {
            "ModeloptStateManager": _from("modelopt.torch.opt.conversion", "ModeloptStateManager"),
            "plugins": lambda: importlib.import_module("modelopt.torch.opt.plugins"),
        },
    ),
    LazyPackage(
        "modelopt.torch.opt.plugins",
        "nvidia-modelopt",
        {"0.37.0": "e77e5098d74310f7"},
        {"restore_sharded_modelopt_state": _from("modelopt.torch.opt.plugins.mcore_dist_checkpointing", "restore_sharded_modelopt_state")},
    ),
    LazyPackage(
        "nemo_run", "nemo_run", {"0.11.1": "a4b4e969657ef809"}, {name: _from("nemo_run.config", name) for name in ("Config", "Partial")}
    ),
    _nemo("nemo.collections.common", "dc69523666a4b109"),
    _nemo("nemo.collections.llm", "a1f940f892ffeff6", **_ASKED_OF_LLM),
    _nemo("nemo.collections.llm.gpt.data", "0cd0f029eb26f6da"),
    _nemo("nemo.collections.llm.gpt.model", "a80c89d589dfc786"),
    _nemo("nemo.collections.llm.modelopt", "98f438c29ebc0866"),
)
