"""Patches: refused where the library changed, applied once, put back."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from dataclasses import replace

import pytest

from nemo_patches import core
from nemo_patches.core import Patch, PatchError


@pytest.fixture
def library(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module whose functions stand for a library's; its version is pytest's, which is surely installed."""
    assert hasattr(tmp_path, "joinpath")
    path = tmp_path.joinpath("patched_library.py")
    path.write_text('def answer(question):\n    """Docstring."""\n    return 41\n\n\ndef other():\n    return 1\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    import patched_library  # type: ignore[import-not-found]

    yield patched_library
    del sys.modules["patched_library"]
    core._originals.clear()


def _patch(library: types.ModuleType, **changes: object) -> Patch:
    patch = Patch(
        target="patched_library:answer",
        wrap=lambda original: lambda question: original(question) + 1,
        package="pytest",
        digests={pytest.__version__: core.source_digest(library.answer)},
        reason="off by one",
        remove_when="it is not",
    )
    return replace(patch, **changes)  # type: ignore[arg-type]


def test_applies_once_and_reverts(library: types.ModuleType) -> None:
    patch = _patch(library)
    core.apply([patch])
    core.apply([patch])
    assert library.answer("?") == 42
    core.revert([patch])
    assert library.answer("?") == 41


def test_digest_ignores_comments_and_docstring_but_not_code_or_signature() -> None:
    digests = []
    for source in (
        "def f(a):\n    return a\n",
        'def f(a):\n    """Say."""\n    # why\n    return a\n',
        "def f(a):\n    return -a\n",
        "def f(a, b=0):\n    return a\n",
    ):
        import linecache

        name = f"<digest-test-{len(digests)}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        space: dict[str, object] = {}
        exec(compile(source, name, "exec"), space)
        digests.append(core.source_digest(space["f"]))  # type: ignore[arg-type]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_changed_body_is_refused_and_nothing_is_applied(library: types.ModuleType) -> None:
    good = _patch(library, target="patched_library:other", digests={pytest.__version__: core.source_digest(library.other)})
    bad = _patch(library, digests={pytest.__version__: "0123456789abcdef"})
    with pytest.raises(PatchError, match=r"patched_library:answer of pytest .* has digest .*; expected 0123456789abcdef"):
        core.apply([good, bad])
    assert library.other() == 1


def test_unknown_version_is_refused_where_numbers_need_the_patch(library: types.ModuleType) -> None:
    said = rf"patched_library:answer is known for pytest 0\.1; found {pytest.__version__}"
    with pytest.raises(PatchError, match=said):
        core.apply([_patch(library, digests={"0.1": "x"})])
    good = _patch(library, target="patched_library:other", wrap=lambda original: lambda: 2, digests={})
    gone = _patch(library, target="patched_library:gone", digests={})
    [left_out] = core.apply([good, gone, _patch(library, digests={"0.1": "x"}, comfort=True)])
    assert re.match(said, left_out) and (library.answer("?"), library.other()) == (41, 2)


def test_vanished_function_is_refused(library: types.ModuleType) -> None:
    with pytest.raises(PatchError, match=r"patched_library:gone does not exist"):
        core.apply([_patch(library, target="patched_library:gone")])
