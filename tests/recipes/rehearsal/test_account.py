"""The account of a rehearsal, whose storages end whenever Python finds that nothing refers to them."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from recipes.rehearsal.account import Account


class Ring:
    """Something that refers to itself, so that only the collector of cycles ends it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.itself = tensor, self


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.enable()


@pytest.mark.slow
def test_storages_may_end_while_the_fullest_moment_is_kept(thresholds: None) -> None:
    """The collector runs at whatever object is made next: here at each that one look makes."""
    account = Account()
    kept = [torch.empty(8) for _ in range(50)]
    for tensor in kept:
        account.allocated(tensor, "empty")
    before = account.now
    for objects in range(12):
        gc.disable()
        account.allocated(Ring(torch.empty(64)).tensor, "empty")
        gc.set_threshold(gc.get_count()[0] + objects)
        gc.enable()
        account.enter(f"phase {objects}")
        with account.phase(f"phase {objects}"):
            pass
        gc.collect(1)
        assert account.now == before
    assert all(len(peak.blocks) in (50, 51) for peak in account.peaks.values())
