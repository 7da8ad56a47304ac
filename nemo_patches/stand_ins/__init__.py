"""Stand-ins for TransformerEngine and apex, which can be built and run on NVIDIA's GPUs alone.

They have the signatures, the parameters with their names, shapes and attributes, the extra state and the optimizer state of the real
packages, and compute the same formulas with torch.  With them Megatron-core and NeMo take the branches that the real ones open:
construction, loading, saving and resuming are then those of a GPU, in a rehearsal or a test on a CPU.

What they were written after, by reading: TransformerEngine 2.7, 2.9 and 2.12, which are those of NVIDIA's NeMo images 25.09, 25.11 and
26.02, and apex 25.09.

What they cannot show: whether a kernel accepts a shape or chooses another one, how fast it is, its rounding in bfloat16, what it keeps
for the backward pass, FP8, overlapped communication within a linear layer, graphs, and whatever the packages do other than they say.
A real run never installs them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from nemo_patches.stand_ins.packages import StandInFinder, apex_modules, transformer_engine_modules

VERSIONS = ("2.7.0", "2.9.0", "2.12.0")  # of TransformerEngine


def install_transformer_engine(version: str) -> None:
    """Have `import transformer_engine` find the stand-in; before Megatron-core is imported, which looks once.

    Raises:
        ValueError: for a version that it was not written after.
        RuntimeError: if a real TransformerEngine or Megatron-core has been imported.
    """
    if version not in VERSIONS:
        raise ValueError(f"there is no stand-in for TransformerEngine {version}; there are {', '.join(VERSIONS)}")
    _require_early("transformer_engine")
    sys.modules.update(transformer_engine_modules(version))
    sys.meta_path.append(StandInFinder("transformer-engine", version))


def install_apex() -> None:
    """Have `import apex` find the stand-in, and the extensions that it is built with; before Megatron-core is imported.

    Raises:
        RuntimeError: if a real apex or Megatron-core has been imported.
    """
    _require_early("apex")
    sys.modules.update(apex_modules())


def install(names: str) -> None:
    """Install what a list names: `transformer-engine=VERSION` (2.9 stands for 2.9.0) and `apex`, with a comma between.

    Raises:
        ValueError: for another name or version, before anything is installed.
        RuntimeError: as `install_transformer_engine`.
    """
    known: dict[str, Callable[[], None]] = {
        f"transformer-engine={version.removesuffix('.0')}": partial(install_transformer_engine, version) for version in VERSIONS
    }
    known["apex"] = install_apex
    requested = [name.removesuffix(".0") for name in names.split(",")]
    if unknown := [name for name in requested if name not in known]:
        raise ValueError(f"there is no stand-in for {unknown[0]!r}; expected {' or '.join(known)}, with a comma between two")
    if len({name.partition("=")[0] for name in requested}) < len(requested):
        raise ValueError(f"{names!r} names a package twice; expected one version of each")
    for name in requested:
        known[name]()


def installed() -> tuple[str, ...]:
    """What stands in in this process, as `install` names it."""
    found = [f"transformer-engine={sys.modules['transformer_engine'].__version__}"] if stands_in() else []
    return (*found, *(["apex"] if getattr(sys.modules.get("apex"), "is_stand_in", False) else []))


def _require_early(package: str) -> None:
    if imported := {package, "megatron.core"} & set(sys.modules):
        raise RuntimeError(f"a stand-in is installed too late: {' and '.join(sorted(imported))} has been imported; install it first")


def stands_in() -> bool:
    """Whether this process has a stand-in in place of TransformerEngine."""
    return getattr(sys.modules.get("transformer_engine"), "is_stand_in", False)
