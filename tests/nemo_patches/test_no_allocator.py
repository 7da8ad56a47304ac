"""Megatron-core's allocator for generated text is not compiled where the engine is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from common.command import python_path
from nemo_patches import no_allocator
from tests.processes import ROOT

# What the import asks for is said to be there, and the compiler tells that it was called.
IMPORT = """
import torch.cuda, torch.utils.cpp_extension
torch.cuda.memory.MemPool = torch.cuda.MemPool = object
def load_inline(**options):
    print("compiled", options["name"])
    raise RuntimeError
torch.utils.cpp_extension.load_inline = load_inline
"""
ENGINE = "from megatron.core.inference.contexts import dynamic_context"
TELL = "\nprint(dynamic_context.has_unified_memory)\n"
QUIETLY = f"from nemo_patches.quiet import quiet_imports\nwith quiet_imports():\n    {ENGINE}"


@pytest.mark.long
@pytest.mark.parametrize(("how", "said"), [(ENGINE, ["compiled managed_alloc_runtime", "False"]), (QUIETLY, ["False"])])
def test_the_compiler_is_called_by_megatron_and_not_by_us(how: str, said: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": python_path(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORT + how + TELL], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split("\n")[:-1] == said


def test_another_version_is_imported_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert no_allocator.problem() is None
    monkeypatch.setattr(no_allocator, "_DIGESTS", {"0.15.3": "0" * 16})
    assert "has digest" in (no_allocator.problem() or "") and "expected 0000000000000000" in (no_allocator.problem() or "")
    monkeypatch.setattr(no_allocator, "_DIGESTS", {"0.14.0": "0" * 16})
    assert no_allocator.problem() == "megatron.core.inference.unified_memory is known for megatron-core 0.14.0; found 0.15.3"
