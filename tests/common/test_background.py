"""Work beside the main work."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from common.background import Background


def _priorities() -> tuple[int, int]:
    """Of this thread, and of a process that it starts."""
    code = "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"
    return os.getpriority(os.PRIO_PROCESS, 0), int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a priority is that of the whole process")
def test_work_that_yields_has_less_of_the_processor_than_the_main_work() -> None:
    usual, _ = _priorities()
    assert Background(_priorities).result() == (usual, usual)
    thread, child = Background(_priorities, yields=True).result()
    assert thread == child == min(usual + 5, 19)
    assert os.getpriority(os.PRIO_PROCESS, 0) == usual


def test_what_it_raises_is_raised_where_the_result_is_asked_for() -> None:
    def fails() -> None:
        raise ValueError("no")

    work = Background(fails, yields=True)
    with pytest.raises(ValueError, match="no"):
        work.result()
    with pytest.raises(ValueError, match="no"):
        work.raise_if_failed()
