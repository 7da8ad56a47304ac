"""One real Slurm for all tests of a worker that need one; nothing that a test does to it may outlive the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.chains import LightChain, light_chain
from tests.slurm.running_slurm import RunningSlurm, running_slurm


@pytest.fixture(scope="session")
def slurm() -> Iterator[RunningSlurm]:
    """Sixteen nodes with four GPUs each (devices that are nothing), with accounting."""
    with running_slurm(nodes=16) as cluster:
        yield cluster


@pytest.fixture
def chain(slurm: RunningSlurm, tmp_path: Path) -> Iterator[LightChain]:
    with light_chain(slurm, tmp_path / "run") as made:
        yield made
