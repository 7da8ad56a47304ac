"""Choose which of our pinned packages to install on an image, and check that the image's own packages are unchanged.

Run by the Python of the image, so it needs only the standard library.  Packages compiled for the image's GPUs and against each other
(torch, TransformerEngine, apex, CUDA's libraries ...) are never replaced; everything else gets our version, in a separate layer:
a virtual environment that is searched before the image's packages and leaves them unchanged.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import site
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

# Compiled for the image's GPUs and drivers, or against its torch; as patterns of normalized names.
KEPT = (
    "torch", "torchvision", "torchaudio", "torchao", "triton", "pytorch-triton*", "triton-*", "transformer-engine*", "apex", "amd-apex",
    "flash-attn*", "xformers", "mamba-ssm", "causal-conv1d", "bitsandbytes", "deepspeed", "vllm", "aiter", "amd-aiter",
    "nvidia-*", "cuda-*", "cupy*", "rocm-*", "amdsmi", "numba-cuda", "mpi4py",
)  # fmt: skip
# Of our pins, those that are NeMo's path alone; on AMD's GPUs they are left out.
NEMO_ONLY = ("nemo-toolkit", "nemo-run", "megatron-core", "cuda-bindings", "cuda-pathfinder", "nvidia-*", "fiddle", "lightning", "torchx")
PATHS_NAME = "_image.pth"  # in the layer: where the image's packages are
_STATE_NAME = "image.json"


@dataclass(frozen=True)
class Choice:
    """What becomes of the pins.

    Attributes:
        install: name -> version, for the layer.
        kept: name -> the image's version, which is not touched.
        same: names that the image has at our version already.
        left_out: pins of NeMo's path where it is not wanted.
    """

    install: dict[str, str]
    kept: dict[str, str]
    same: tuple[str, ...]
    left_out: tuple[str, ...]


def normalized(name: str) -> str:
    """The one spelling of a package's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(text: str) -> dict[str, str]:
    """Name -> version of a requirements file in which everything is pinned.

    Raises:
        ValueError: for a line that is not a pin.
    """
    pins = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        name, equals, version = line.partition("==")
        if not equals or not re.fullmatch(r"[A-Za-z0-9._-]+", name) or not version:
            raise ValueError(f"line {number} is {line!r}; expected NAME==VERSION")
        pins[normalized(name)] = version.strip()
    return pins


def choose(pins: Mapping[str, str], installed: Mapping[str, str], *, without_nemo: bool = False, keep: Iterable[str] = ()) -> Choice:
    """What to install beside an image's packages.

    Args:
        installed: normalized name -> version, of the image.
        without_nemo: for images of AMD's GPUs.
        keep: further patterns of what the image's own version is kept of.

    Raises:
        ValueError: if the image has no torch, so that it is none to build on.
    """
    if "torch" not in installed:
        raise ValueError("the image has no torch; start from one of docs/slurm.md, or give its Python by PYTHON=/path/to/python")
    patterns = (*KEPT, *keep)
    kept = {name: version for name, version in installed.items() if _matches(name, patterns)}
    unwanted = {name for name in pins if without_nemo and _matches(name, NEMO_ONLY)}
    expected = {name: version for name, version in pins.items() if name not in unwanted and name not in kept}
    return Choice(
        install={name: version for name, version in expected.items() if installed.get(name) != version},
        kept=dict(sorted(kept.items())),
        same=tuple(sorted(name for name, version in expected.items() if installed.get(name) == version)),
        left_out=tuple(sorted(unwanted - set(kept))),
    )


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def installed_packages() -> dict[str, str]:
    """Normalized name -> version of what this Python would import: the first of each name on its path."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(normalized(name), distribution.version)
    return found


def write_layer(directory: Path, choice: Choice) -> None:
    """Leave in the layer what pip is to install, where the image's packages are, and what must stay as it is.

    `site.addsitedir` and not bare paths, so that what is installed as editable in the image is found too.
    """
    [packages] = directory.glob("lib/python3.*/site-packages")
    places = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()))
    lines = [f"import site; site.addsitedir({place!r})" for place in places if Path(place).is_dir()]
    (packages / PATHS_NAME).write_text("\n".join(lines) + "\n", encoding="utf-8")
    (directory / "layer.txt").write_text("".join(f"{name}=={version}\n" for name, version in choice.install.items()), encoding="utf-8")
    state = {"install": choice.install, "kept": choice.kept, "same": list(choice.same), "left_out": list(choice.left_out)}
    (directory / _STATE_NAME).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")


def problems(directory: Path, found: Mapping[str, str]) -> list[str]:
    """What is not as chosen, a sentence each.

    Args:
        found: normalized name -> version as the layer's Python sees them.
    """
    state = json.loads((directory / _STATE_NAME).read_text(encoding="utf-8"))
    expected = [(name, version, "the image's") for name, version in state["kept"].items()]
    expected += [(name, version, "pinned") for name, version in state["install"].items()]
    return [
        f"{name} is {found.get(name, 'missing')}; expected {version}, {whose}"
        for name, version, whose in expected
        if found.get(name) != version
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Choose, or check what was chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", type=Path, required=True, metavar="DIR", help="virtual environment to install the pinned packages into")
    parser.add_argument(
        "--requirements", type=Path, metavar="FILE", help="our pinned requirements; without this option the layer is only checked"
    )
    parser.add_argument("--without-nemo", action="store_true", help="leave out NeMo and what needs it, for images for AMD GPUs")
    parser.add_argument("--keep", nargs="*", default=[], metavar="NAME", help="further packages of the image to keep")
    arguments = parser.parse_args(argv)
    if arguments.requirements is None:
        wrong = problems(arguments.layer, installed_packages())
        print("\n".join(wrong) or f"{arguments.layer}: all pinned packages are installed, and the image's own packages are unchanged")
        return 1 if wrong else 0
    try:
        pins = read_pins(arguments.requirements.read_text(encoding="utf-8"))
        choice = choose(pins, installed_packages(), without_nemo=arguments.without_nemo, keep=arguments.keep)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    write_layer(arguments.layer, choice)
    print(f"kept from the image: {', '.join(f'{name} {version}' for name, version in choice.kept.items())}")
    print(f"{len(choice.install)} packages to install, {len(choice.same)} there already, left out: {', '.join(choice.left_out) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
