"""Every patch fits the pinned libraries, and the catalogue tells of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import run_command


@pytest.mark.slow
def test_every_patch_fits_and_is_in_the_catalogue(tmp_path: Path) -> None:
    finished = run_command("nemo_patches.catalogue", log_dir=tmp_path)
    assert finished.code == 0, finished.stdout + finished.stderr
    kinds = {kind: finished.stdout.count(f"; {kind}): ") for kind in ("needed", "comfort", "replaced whole")}
    assert kinds["comfort"] == 3 and kinds["needed"] >= 4 and sum(kinds.values()) == len(finished.stdout.splitlines())
