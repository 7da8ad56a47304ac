"""What forked writers report is what the rank gets, and nothing where they were ended before they did."""

from __future__ import annotations

import multiprocessing
import queue

import pytest

from nemo_patches.write_results import WriteResults


def test_a_forked_process_hands_over_more_than_a_pipe_holds() -> None:
    results, report = WriteResults(), {0: ["x" * 100] * 50_000, 1: RuntimeError("no space")}
    writer = multiprocessing.get_context("fork").Process(target=results.put, args=(report,))
    writer.start()
    writer.join(60)
    found = results.get_nowait()
    assert found[0] == report[0] and repr(found[1]) == repr(report[1])


def test_a_writer_that_was_ended_reported_nothing() -> None:
    results = WriteResults()
    with pytest.raises(queue.Empty):
        results.get_nowait()
    results.put([1] * 1000)
    results._file.truncate(500)
    with pytest.raises(queue.Empty):
        results.get_nowait()
