"""Leases between real processes: one wins, a dead one is followed, a stopped one that wakes up writes nothing."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from common import system_errors
from common.lease import Fence, Holder, InUseError, Lease, LeaseLostError, take_lease, this_process, wait_for_lease
from tests.processes import ROOT

QUICK = 0.1  # seconds between renewals
PATIENT = 1.5  # seconds without one


def _take(directory: Path, holder: Holder | None = None, **options: Any) -> Lease:
    return take_lease(directory, holder or this_process("test"), **{"patience_seconds": PATIENT, "renew_seconds": QUICK, **options})


def _elsewhere(**changes: Any) -> Holder:
    """This process as one on another machine would see it."""
    return replace(this_process("test"), **{"boot_id": "another", "host": "gn02", **changes})


def test_a_directory_has_one_holder_and_is_free_behind_it(tmp_path: Path) -> None:
    with _take(tmp_path / "run") as lease:
        lease.check()
        with pytest.raises(
            InUseError, match=rf"run is in use by test, process {os.getpid()} on \S+; wait for its end, end it, or"
        ) as refused:
            _take(tmp_path / "run")
        assert refused.value.exit_code == 3 and isinstance(refused.value, ValueError)
        lease.check()
    assert list(tmp_path.iterdir()) == [], "what was made for the lease alone goes with it"
    with _take(tmp_path / "run"):
        (tmp_path / "run/recipe.json").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["recipe.json"]


def _race(directory: Path, start: Any, results: Any) -> None:
    start.wait()
    try:
        with _take(directory) as lease:
            time.sleep(1)
            results.put(lease.is_held)
    except InUseError:
        results.put(None)


@pytest.mark.parametrize("behind_a_dead_one", [False, True])
def test_of_candidates_at_the_same_time_one_wins(tmp_path: Path, behind_a_dead_one: bool) -> None:
    for number in range(3):
        directory = tmp_path / str(number)
        directory.mkdir()
        if behind_a_dead_one:
            (directory / ".lease-0000007").write_text(json.dumps(asdict(replace(this_process("dead"), pid=2**22 + 1))))
        context = multiprocessing.get_context("fork")
        start, results = context.Event(), context.Queue()
        candidates = [context.Process(target=_race, args=(directory, start, results)) for _ in range(6)]
        for candidate in candidates:
            candidate.start()
        start.set()
        found = [results.get(timeout=30) for _ in candidates]
        for candidate in candidates:
            candidate.join()
        assert sorted(found, key=str) == [None] * 5 + [True]


def _come_and_go(directory: Path, results: Any) -> None:
    held = 0
    end = time.monotonic() + 2
    while time.monotonic() < end:
        try:
            with _take(directory):
                descriptor = os.open(directory / "inside", os.O_CREAT | os.O_EXCL)  # fails where another one is inside
                held += 1
                os.unlink(directory / "inside")
                os.close(descriptor)
        except InUseError:
            pass
    results.put(held)


def test_never_two_inside_however_often_they_come_and_go(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=_come_and_go, args=(tmp_path, results)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * 4
    assert sum(results.get(timeout=5) for _ in processes) > 10
    assert list(tmp_path.iterdir()) == []


# A process that is stopped behind its look at the lease still does what it was about to: so it stops itself, in front of the look.
_HOLDER = """
import os, signal, sys, time
from pathlib import Path
from common.lease import LeaseLostError, take_lease, this_process
from common import command

def main(argv):
    directory = Path(sys.argv[1])
    with take_lease(directory, this_process("training"), renew_seconds=0.1) as lease:
        while True:
            time.sleep(0.05)
            if (directory / "stop").exists():
                os.kill(os.getpid(), signal.SIGSTOP)
            lease.check()
            (directory / "saved").touch()

command.run(main)
"""


def _start_holder(directory: Path) -> subprocess.Popen[str]:
    (directory / "saved").unlink(missing_ok=True)
    process = subprocess.Popen([sys.executable, "-c", _HOLDER, str(directory)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not (directory / "saved").exists():
        time.sleep(0.02)
    return process


def test_a_stopped_holder_that_was_followed_wakes_up_and_writes_nothing(tmp_path: Path) -> None:
    process = _start_holder(tmp_path)
    with pytest.raises(InUseError):  # it runs
        _take(tmp_path, _elsewhere())
    (tmp_path / "stop").touch()
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    with pytest.raises(InUseError, match=f"training, process {process.pid}"):  # on this machine it is known to live
        _take(tmp_path)
    with _take(tmp_path, _elsewhere()) as lease:  # from elsewhere it cannot be told from a dead one
        (tmp_path / "saved").unlink()
        process.send_signal(signal.SIGCONT)
        _, said = process.communicate(timeout=10)
        assert process.returncode == 4
        assert (
            said
            == f"error: {tmp_path} was taken over by test, process {os.getpid()} on gn02; this process ends and writes nothing more there\n"
        )
        assert not (tmp_path / "saved").exists()
        lease.check()


def test_a_killed_holder_is_followed_at_once_on_its_machine_and_with_patience_elsewhere(tmp_path: Path) -> None:
    process = _start_holder(tmp_path)
    process.kill()
    time.sleep(0.2)  # not yet waited for: it is a zombie
    start = time.monotonic()
    with _take(tmp_path, patience_seconds=60):
        assert time.monotonic() - start < 5
    process.communicate()

    process = _start_holder(tmp_path)
    process.kill()
    process.communicate()
    start = time.monotonic()
    with _take(tmp_path, _elsewhere()):
        assert time.monotonic() - start >= PATIENT


def test_clocks_of_machines_need_not_agree(tmp_path: Path) -> None:
    """A time in the future or long past says nothing; that it changes does."""
    with _take(tmp_path, _elsewhere(), renew_seconds=3600) as lease:
        for moment in (0, 2**31):
            os.utime(lease.path, (moment, moment))
            _take(tmp_path, this_process("after")).release()
            assert not lease.is_held
            lease.path.write_text(json.dumps(asdict(_elsewhere(token=lease.token))))


def test_a_process_number_that_came_again_is_another_process(tmp_path: Path) -> None:
    (tmp_path / ".lease-0000001").write_text(json.dumps(asdict(replace(this_process("before a reboot"), started=1))))
    with _take(tmp_path, patience_seconds=60) as lease:
        assert [path.name for path in tmp_path.iterdir()] == [lease.path.name] == [".lease-0000002"]


def test_slurm_knows_that_a_job_has_ended_whose_process_lives_on(tmp_path: Path) -> None:
    job = {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "0"}
    old = _take(tmp_path, this_process("training", environment=job))
    for later, ended in (({"SLURM_JOB_ID": "18"}, ()), (job, ()), ({"SLURM_JOB_ID": "18"}, ("16",))):
        with pytest.raises(InUseError, match="of Slurm job 17"):
            _take(tmp_path, this_process("training", environment=later), ended_jobs=ended)
    with _take(tmp_path, this_process("training", environment={**job, "SLURM_RESTART_COUNT": "1"})) as restarted:
        with pytest.raises(LeaseLostError):
            old.check()
        with _take(tmp_path, this_process("training", environment={"SLURM_JOB_ID": "18"}), ended_jobs=("17",)):
            assert not restarted.is_held


def test_an_unfinished_file_of_a_dead_candidate_keeps_nobody_away(tmp_path: Path) -> None:
    (tmp_path / ".lease-0000001").touch()
    with _take(tmp_path) as lease:
        assert lease.is_held


def test_processes_of_one_launch_find_the_lease_that_their_first_takes(tmp_path: Path) -> None:
    with _take(tmp_path, this_process("training", launch="job 5")) as lease:
        fence = wait_for_lease(tmp_path, "job 5", timeout_seconds=5)
        assert isinstance(fence, Fence) and (fence.path, fence.is_held) == (lease.path, True)
        with pytest.raises(InUseError, match="rank 0 did not get the lease"):
            wait_for_lease(tmp_path, "job 6", timeout_seconds=0.1)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [("file", "file exists already; "), ("file/run", "file/run cannot exist: a part of its path is a file, not a ")],
)
def test_a_place_that_is_a_file_is_told_in_a_sentence(tmp_path: Path, place: str, sentence: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError) as error:
        _take(tmp_path / place)
    assert (system_errors.sentence(error.value) or "").startswith(f"{tmp_path}/{sentence}")
