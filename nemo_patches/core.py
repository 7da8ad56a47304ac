"""Patches that carry their guards: what is replaced, in which version, why, and when it can go.

Those with digests call or rely on the code that they know.  Of them, what is needed for right numbers is refused on any other code; what only saves
time or memory (`comfort`) is then left out.  A patch without digests has no use for the original's code; rehearsals call some originals, and their tests
show whether a torch fits.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import xxhash

from common.python_code import bare_dump

_originals: dict[str, Any] = {}


class PatchError(RuntimeError):
    """The installed library is not the one that the patches were written for."""


@dataclass(frozen=True)
class Patch:
    """One replaced function of a library.

    Attributes:
        target: `module:attribute.path` of the function.
        wrap: takes the original and gives its replacement.
        package: the distribution whose version decides.
        digests: version -> `source_digest` of the original in that version; none where the original does not matter.
        reason: why it is needed.
        remove_when: the condition that ends it.
        comfort: whether numbers are right without it.
    """

    target: str
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
    package: str
    digests: Mapping[str, str]
    reason: str
    remove_when: str
    comfort: bool = False

    def owner(self) -> tuple[Any, str]:
        """The object that holds the function, and the name it has there."""
        module_name, _, path = self.target.partition(":")
        *parents, name = path.split(".")
        owner: Any = importlib.import_module(module_name)
        for parent in parents:
            owner = getattr(owner, parent)
        return owner, name


def source_digest(function: Callable[..., Any]) -> str:
    """Digest of a function's code and signature; comments, layout and docstring do not count."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    return xxhash.xxh3_64_hexdigest(bare_dump(definition).encode())


def file_problem(name: str, package: str, digests: Mapping[str, str], path: Path) -> str | None:
    """Why a module is taken as it is, in a sentence; None if its file is the one that is known or its distribution is not installed.

    Args:
        name: of the module, as it is imported.
        package: the distribution whose version decides.
        digests: version -> xxh3 of the file in that version.
        path: of the file, below where the distribution lies.
    """
    try:
        distribution = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return None
    version = distribution.version.partition("+")[0]
    if (expected := digests.get(version)) is None:
        return f"{name} is known for {package} {', '.join(digests)}; found {version}"
    file = Path(str(distribution.locate_file(path)))
    found = xxhash.xxh3_64_hexdigest(file.read_bytes()) if file.is_file() else "none"
    return None if found == expected else f"{file} of {package} {version} has digest {found}; expected {expected}"


def misfit(patch: Patch) -> str | None:
    """What keeps a patch from fitting the installed library, in a sentence; None if it fits."""
    if patch.target in _originals:
        return None
    try:
        version = metadata.version(patch.package).partition("+")[0]
        owner, name = patch.owner()
        original = inspect.getattr_static(owner, name) if inspect.isclass(owner) else getattr(owner, name)
    except (ImportError, AttributeError) as error:
        return f"{patch.target} does not exist: {error}"
    if not patch.digests:
        return None
    expected = patch.digests.get(version)
    if expected is None:
        return f"{patch.target} is known for {patch.package} {', '.join(patch.digests)}; found {version}"
    if (found := source_digest(original)) != expected:
        return f"{patch.target} of {patch.package} {version} has digest {found}; expected {expected}"
    return None


def apply(patches: Iterable[Patch]) -> list[str]:
    """Apply all patches that fit, or none where one that is needed does not; applying twice is applying once.

    Returns:
        A sentence for each that was left out.

    Raises:
        PatchError: naming every needed patch that does not fit.
    """
    patches = tuple(patches)
    misfits = {patch.target: problem for patch in patches if (problem := misfit(patch))}
    # Nobody calls a function that is not there, so what replaces one whole is not needed.
    if problems := [problem for patch in patches if patch.digests and not patch.comfort and (problem := misfits.get(patch.target))]:
        raise PatchError(
            "these patches do not fit the installed libraries: " + "; ".join(problems) + ". Install the versions of requirements.txt"
        )
    for patch in patches:
        if patch.target not in _originals and patch.target not in misfits:
            owner, name = patch.owner()
            original = getattr(owner, name)
            setattr(owner, name, patch.wrap(original))
            _originals[patch.target] = original
    return [
        f"{problem}; skipped, which costs only time or memory"
        for patch in patches
        if patch.comfort and (problem := misfits.get(patch.target))
    ]


def revert(patches: Iterable[Patch]) -> None:
    """Put the originals back."""
    for patch in patches:
        if patch.target in _originals:
            owner, name = patch.owner()
            setattr(owner, name, _originals.pop(patch.target))
