"""What a save waits for of the parameters that other replicas have updated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from recipes.training.kept_saves import Gathering
from recipes.training.shard_files import storage_name


class _Group:
    """As Megatron's group of buckets."""

    def __init__(self, size: int) -> None:
        self.intra_distributed_optimizer_instance_size = size
        self.param_gather_dispatched, self.param_gather_handle = False, None
        self.buckets = [SimpleNamespace(param_data=torch.zeros(3))]
        self.num_gathered = 0

    def start_param_sync(self, *, force_sync: bool) -> None:
        assert force_sync
        self.num_gathered += 1
        self.param_gather_dispatched, self.param_gather_handle = True, None


def _module(*groups: _Group) -> Any:
    return SimpleNamespace(bucket_groups=list(groups), expert_parallel_bucket_groups=[])


def test_what_passes_gather_one_after_the_other_is_over_when_each_has_been_seen() -> None:
    first, second, alone = _Group(2), _Group(2), _Group(1)
    gathering = Gathering([_module(first, alone), _module(second)])
    assert gathering.storages == {storage_name(group.buckets[0].param_data) for group in (first, second)}
    first.param_gather_dispatched, first.param_gather_handle = True, "under way"
    assert not gathering.is_over()
    first.param_gather_handle = None
    assert not gathering.is_over()
    first.param_gather_dispatched = False  # as behind its backward passes
    second.param_gather_dispatched = True
    assert gathering.is_over()
    gathering.do_now()
    assert [group.num_gathered for group in (first, second, alone)] == [0, 0, 0]


def test_what_is_gathered_between_two_steps_is_not_gathered_again_but_what_is_before_a_change_is() -> None:
    group = _Group(2)
    Gathering([_module(group)]).do_now()
    assert group.num_gathered == 1 and group.param_gather_dispatched
    assert Gathering([_module(group)]).is_over()
    group.param_gather_dispatched = False
    Gathering([_module(group)]).do_before_change()
    assert group.num_gathered == 2
    assert not group.param_gather_dispatched, "the step that follows changes it"
