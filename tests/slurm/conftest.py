"""One real Slurm for all tests that need one; nothing that a test does to it may outlive the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.running_slurm import RunningSlurm, running_slurm


@pytest.fixture(scope="session")
def slurm() -> Iterator[RunningSlurm]:
    """Sixteen nodes with four GPUs each (devices that are nothing), with accounting."""
    with running_slurm(nodes=16) as cluster:
        yield cluster
