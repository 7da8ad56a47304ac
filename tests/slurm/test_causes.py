"""Causes of an end, read from logs as Slurm 22.05 wrote them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm.chains import causes
from slurm.chains.attempts import Attempt
from slurm.chains.causes import Cause, cause_by_slurm, cause_of_clean_end, cause_of_failure
from slurm.chains.run_report import confirmed_by_site

STEP_ENDS = """srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
slurmstepd-gn01: error: *** STEP 36259650.0 ON gn01 CANCELLED AT 2026-11-21T11:14:35 ***
"""


def job_ends(reason: str) -> str:
    return f"step 7/9  loss 1.0\nslurmstepd-gn01: error: *** JOB 36259651 ON gn01 CANCELLED AT 2026-11-21T11:14:59{reason} ***\n{STEP_ENDS}"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (job_ends(""), causes.CANCELLED),
        (job_ends(" DUE TO TIME LIMIT"), causes.TIMED_OUT),
        (job_ends(" DUE TO PREEMPTION"), causes.PREEMPTED),
        (job_ends(" DUE TO JOB REQUEUE"), causes.REQUEUED),
        (job_ends(" DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"), causes.NODE_FAILURE),
        ("step 3\n" + STEP_ENDS + "srun: error: gn01: task 1: Killed\n", causes.FAILED),
        (job_ends(" DUE TO TIME LIMIT").replace("36259651", "7") + "srun: error: gn01: task 1: Killed\n", causes.FAILED),
        ("we read: error: *** JOB 36259651 ON gn01 CANCELLED AT x ***\nsrun: error: gn01: task 1: Killed\n", causes.FAILED),
        ("20%|##  | " + job_ends("").partition("\n")[2], causes.CANCELLED),
        ("Node failure on gn03 is what we read\nsrun: error: gn01: task 1: Killed\n", causes.FAILED),
        ("srun is never Out Of Memory\nsrun: error: gn01: task 1: Killed\n", causes.FAILED),
        ("OSError: [Errno 28] No space left on device\nsrun: error: gn01: task 0: Exited with exit code 1\n", causes.DISK_FULL),
        ("error: the disk is full while writing x\nsrun: error: gn01: task 0: Exited with exit code 2\n", causes.DISK_FULL),
        (
            "error: the disk of /runs/sl is full (unexpected pos 704 vs 598); free some space and give the same command again\n",
            causes.DISK_FULL,
        ),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.\n",
            causes.OUT_OF_MEMORY,
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried\nsrun: error: gn01: task 3: Exited with exit code 1\n", causes.OUT_OF_MEMORY),
        ("[rank3]: torch.OutOfMemoryError: CUDA out\nsrun: error: gn01: task 3: Exited with exit code 1\n", causes.OUT_OF_MEMORY),
        (
            "torch.OutOfMemoryError: CUDA out of memory\ntrained on\nRuntimeError: x\nsrun: error: gn01: task 0: Exited with exit code 1\n",
            causes.FAILED,
        ),
        (
            "error: could not write the compile cache: No space left on device\nstep 9\nsrun: error: gn01: task 1: Killed\n",
            causes.FAILED,
        ),
        ("OSError: [Errno 28] No space left on device\nerror: x\nsrun: error: gn01: task 0: Exited with exit code 2\n", causes.REFUSED),
        ("error: a/b was replaced on its file server\nsrun: error: gn01: task 0: Exited with exit code 7\n", causes.FAILED),
        ("srun: error: gn01: task 3: Out Of Memory\n", causes.OUT_OF_MEMORY),
        ("srun: fatal: SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually exclusive.\n", causes.REFUSED),
        ("srun: unrecognized option '--x'\n", causes.REFUSED),
        ("error: data.train is missing\nsrun: error: gn01: task 0: Exited with exit code 2\n", causes.REFUSED),
        ("RuntimeError: x\nsrun: error: gn01: task 0: Exited with exit code 1\n", causes.FAILED),
        ("error: no step\nsrun: error: gn02: task 3: Killed\nsrun: error: gn01: tasks 0-1: Exited with exit code 5\n", causes.HUNG),
        ("error: taken over by x\nsrun: error: gn01: task 0: Exited with exit code 4\n", causes.TAKEN_OVER),
        ("error: in use by x\nsrun: error: gn01: task 0: Exited with exit code 3\n", causes.IN_USE),
        ("error: x was edited\nsrun: error: gn01: task 2: Exited with exit code 6\n", causes.DAMAGED),
        ("step 7\n", causes.VANISHED),
        ("", causes.VANISHED),
    ],
)
def test_what_the_log_says(log: str, cause: str) -> None:
    assert cause_of_failure(log, job="36259651").name == cause


def test_a_disk_that_has_room_is_not_full(tmp_path: Path) -> None:
    """As where a library's own cache is on another disk, or somebody has made room."""
    attempt = Attempt(1, "7", 0, 1, (), 0, 0.0)
    assert confirmed_by_site(Cause(causes.DISK_FULL, "x"), tmp_path, attempt) == Cause(causes.FAILED, "x")
    (tmp_path / "file").write_text("")  # nothing can be made in it, nor removed, as on a file system that is read-only
    assert confirmed_by_site(Cause(causes.DISK_FULL, "x"), tmp_path / "file", attempt) == Cause(causes.FAILED, "x")


@pytest.mark.parametrize(
    ("line", "nodes"),
    [
        ("srun: error: Node failure on gn03", ("gn03",)),
        ("srun: error: Task launch for StepId=36259653.0 failed on node gn03: Communication connection failure", ("gn03",)),
        ("srun: error: Node failure on gn03,gn05\nsrun: error: Node failure on gn03", ("gn03", "gn05")),
    ],
)
def test_nodes_that_failed(line: str, nodes: tuple[str, ...]) -> None:
    cause = cause_of_failure(f"step 1\n{line}\n{STEP_ENDS}srun: error: gn02: tasks 0-2: Killed\n")
    assert (cause.name, cause.bad_nodes, cause.detail) == (causes.NODE_FAILURE, nodes, line.splitlines()[0])


def test_what_slurm_did_to_a_training_that_had_time_to_save() -> None:
    assert cause_by_slurm("step 9\n" + STEP_ENDS) is None
    lost = cause_by_slurm(f"srun: error: Node failure on gn02\n{job_ends(' DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS')}")
    assert lost is not None and (lost.name, lost.bad_nodes) == (causes.NODE_FAILURE, ("gn02",))
    cancelled = cause_by_slurm(job_ends(""))
    assert cancelled is not None and cancelled.name == causes.CANCELLED


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("TIMEOUT", causes.TIMED_OUT),
        ("PREEMPTED", causes.PREEMPTED),
        ("NODE_FAIL", causes.NODE_FAILURE),
        ("CANCELLED", causes.CANCELLED),
        ("OUT_OF_MEMORY", causes.OUT_OF_MEMORY),
        ("FAILED", causes.VANISHED),
        ("COMPLETING", causes.VANISHED),
        (None, causes.VANISHED),
    ],
)
def test_what_slurm_says_where_the_log_is_silent(state: str | None, cause: str) -> None:
    assert cause_of_failure("step 7\n", slurm_state=state).name == cause


def test_a_job_that_started_again_without_a_word_lost_its_node() -> None:
    assert cause_of_failure("step 7\n", was_requeued=True).name == causes.NODE_FAILURE
    assert cause_of_failure(job_ends(" DUE TO PREEMPTION"), was_requeued=True).name == causes.PREEMPTED


def test_the_detail_names_the_task_and_its_error() -> None:
    log = "Traceback (most recent call last):\nRuntimeError: the model is not a number\n" + STEP_ENDS
    log += "srun: error: gn02: task 3: Exited with exit code 1\nsrun: error: gn01: task 0: Terminated\n"
    assert cause_of_failure(log).detail == "task 3 on gn02: Exited with exit code 1; RuntimeError: the model is not a number"
    assert cause_of_failure("error: no such recipe\nsrun: error: gn01: task 0: Exited with exit code 2\n").detail == "error: no such recipe"


@pytest.mark.parametrize(
    ("finished", "stop", "left", "cause"),
    [
        (True, True, 3.0, causes.FINISHED),
        (False, True, 3.0, causes.STOPPED),
        (False, False, 640.0, causes.TIME_LIMIT),
        (False, False, None, causes.TIME_LIMIT),
        (False, False, 5000.0, causes.SIGNALLED),
    ],
)
def test_ends_with_exit_code_0(finished: bool, stop: bool, left: float | None, cause: str) -> None:
    assert cause_of_clean_end(is_finished=finished, stop_requested=stop, seconds_left=left, signal_seconds=600).name == cause
