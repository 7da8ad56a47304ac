"""The catalogue lists every patch, and every patch fits the pinned libraries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.processes import ROOT, run_command


@pytest.mark.slow
def test_every_patch_fits_and_is_in_the_catalogue(tmp_path: Path) -> None:
    finished = run_command("nemo_patches.catalogue", log_dir=tmp_path)
    assert finished.code == 0, finished.stdout + finished.stderr
    installed = [line.split("  ")[0] for line in finished.stdout.splitlines()]
    text = (ROOT / "nemo_patches" / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([\w.]+:[\w.]+)` \|", text, re.MULTILINE) == [line for line in installed if ":" in line]
    assert re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE) == [line for line in installed if ":" not in line]
