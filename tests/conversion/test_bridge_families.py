"""Which exports Megatron-Bridge's own converters read, and whether they compute the same; needs the environment of `make test-bridge`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conversion import hf_to_nemo, nemo_to_hf
from conversion.checkpoints.hf_files import DEFAULT_ROPE_SCALING
from tests.conversion.tiny_families import save_tiny_model
from tests.processes import ROOT

if "SCION_BRIDGE" not in os.environ:
    pytest.skip("Megatron-Bridge is not installed here; run `make test-bridge`", allow_module_level=True)

TIMEOUT_SECONDS = 600
SAME, OTHERWISE, REFUSED = (
    ("llama2", "mistral", "qwen2", "qwen3", "qwen3_moe", "published_gpt_oss"),
    ("llama3", "yarn", "gpt_oss"),
    ("opt", "smollm3", "apertus", "bert"),
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> dict[str, dict[str, Any]]:
    base = tmp_path_factory.mktemp("families")
    for name in (*SAME, *OTHERWISE, *REFUSED):
        changes = {"rope_scaling": DEFAULT_ROPE_SCALING["gpt_oss"]} if name == "published_gpt_oss" else {}
        save_tiny_model(name.removeprefix("published_"), base / "source" / name, tokenizer_dir=tokenizer_dir, **changes)
        hf_to_nemo.convert(base / "source" / name, base / "nemo" / name)
        nemo_to_hf.export(base / "nemo" / name, base / "hf" / name)
    words = [os.environ["SCION_BRIDGE"], "-m", "tests.conversion.bridge_families", base / "hf", base / "found.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, dict[str, Any]] = json.loads((base / "found.json").read_text())
    return told


@pytest.mark.parametrize("name", SAME)
def test_bridge_computes_our_export(name: str, found: dict[str, dict[str, Any]]) -> None:
    assert found[name]["largest_difference"] < 1e-5 < found[name]["largest_logit"] and found[name]["not_back"] == []


@pytest.mark.parametrize("name", OTHERWISE)
def test_rotations_that_bridge_does_not_have(name: str, found: dict[str, dict[str, Any]]) -> None:
    """Read in silence, and computed otherwise, as docs/publishing.md says; the weights come back."""
    assert found[name]["largest_difference"] > 1e-2 and found[name]["not_back"] == []


@pytest.mark.parametrize("name", REFUSED)
def test_families_that_bridge_refuses(name: str, found: dict[str, dict[str, Any]]) -> None:
    assert "is not yet supported" in found[name]["refused"]
