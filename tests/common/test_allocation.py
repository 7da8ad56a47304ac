"""What glibc does with freed memory, counted in pages that the system had to clear."""

from __future__ import annotations

import platform
import resource
from pathlib import Path

import pytest

from tests.processes import Group

PAGE = resource.getpagesize()
NBYTES, TIMES = 48 << 20, 20
ALLOCATE = f"""
import resource
from common import allocation
allocation.{{policy}}()
import torch
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones({NBYTES} // 4)  # the first has to come from the system in any case
taken = []
for _ in range({TIMES}):
    before = faults()
    torch.ones({NBYTES} // 4)
    taken.append(faults() - before)
print(sorted(taken)[{TIMES} // 2])
"""

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="these are settings of glibc")


def test_kept_memory_is_used_again(tmp_path: Path) -> None:
    assert _pages("keep_freed_memory", tmp_path) < NBYTES // PAGE // 4 / TIMES


def test_returned_memory_is_asked_for_again(tmp_path: Path) -> None:
    assert _pages("return_freed_memory", tmp_path) >= NBYTES // PAGE


def _pages(policy: str, log_dir: Path) -> int:
    """Of the middle allocation: the system may take pages back by itself at any time, and does so in few."""
    finished = Group(["-c", ALLOCATE.format(policy=policy)], log_dir=log_dir).wait(timeout_seconds=300)
    assert finished.code == 0, finished.stderr
    return int(finished.stdout)
