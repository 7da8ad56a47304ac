"""slurm.status and slurm.stop, on a real Slurm where there is one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from slurm import status, stop
from slurm.chains import causes, run_report
from slurm.chains.attempts import Attempt, End
from slurm.chains.chain import ChainPlan
from slurm.chains.run_report import RunReport, render_report, report_run, why_it_waits
from slurm.jobs.queue import QueuedJob, exclude_nodes
from tests.slurm.chains import light_chain
from tests.slurm.running_slurm import RunningSlurm

ENDED = Attempt(1, "41", 0, 1, ("gn01", "gn02"), 0, 1e9, end=End(causes.NODE_FAILURE, "Node failure on gn02", 400, 1e9 + 7260, ("gn02",)))
REPORT = RunReport(
    run="runs/sl",
    state="running",
    reason="attempt 1: node failure",
    step=412,
    saved_step=400,
    total_steps=1000,
    loss=2.7312,
    tokens_per_second=51200.4,
    seconds_to_end=11520.0,
    running_job="42",
    waiting_jobs=("43", "44"),
    attempts=(ENDED, replace(ENDED, number=2, job_id="42", start_step=400, end=None)),
)


def test_a_report_is_readable() -> None:
    lines = render_report(REPORT).splitlines()
    assert lines[0] == "runs/sl: running, job 42, 2 links wait"
    assert lines[2] == "step 412 of 1000, step 400 is saved, loss 2.7312, 51,200 tokens/s, 3 h 12 min of training left"
    first, second = ([cell.strip() for cell in line.split(" | ")] for line in lines[-2:])
    assert first[1:3] == ["41", "gn01 + 1"] and first[4:7] == ["0", "400", "2 h 01 min"]
    assert first[-1].startswith("node failure: Node failure on gn02")
    assert "it runs" in second[-1]


def test_a_report_names_why_links_wait() -> None:
    waiting = replace(REPORT, state="waiting", running_job=None, waits_because="job 43 waits (Slurm's reason: BadConstraints)")
    assert render_report(waiting).splitlines()[:2] == ["runs/sl: waiting, 2 links wait", "job 43 waits (Slurm's reason: BadConstraints)"]


def test_a_job_that_has_started_and_does_not_run_is_told() -> None:
    told = {state: why_it_waits(QueuedJob("42", state, "None", ("gn01",))) for state in ("RUNNING", "COMPLETING", "SUSPENDED")}
    assert told == {
        "RUNNING": "",
        "COMPLETING": "job 42 is completing",
        "SUSPENDED": "job 42 is suspended; `scontrol resume 42` (an operator's command) resumes it",
    }


def test_a_report_has_the_first_step_beside_the_rehearsal() -> None:
    told = "rank 0 has used 25.00 GiB in the first step; its rehearsal counted 20.00 (+25.0%); more than 5% above"
    assert render_report(replace(REPORT, first_step=told)).splitlines()[3] == told


def test_a_link_that_no_node_is_left_for_says_so(slurm: RunningSlurm, tmp_path: Path) -> None:
    with light_chain(slurm, tmp_path / "a run") as chain:
        first, second = chain.submit("--steps", 600, "--seconds-per-step", 0.1, plan=ChainPlan(links=2))
        chain.wait_for_step(2)
        names = [f"gn{number:02d}" for number in range(2, 17)]
        exclude_nodes(second, names)
        with pytest.raises(ValueError, match=r"or end it with `python -m slurm.stop '.*/a run'`"):
            chain.submit("--steps", 600)
        chain.kill_script(first)  # so that nobody is left to look again at what there is
        chain.wait_for(lambda: "BadConstraints" in report_run(chain.run_dir).waits_because)
        told = render_report(report_run(chain.run_dir)).splitlines()[:2]
        assert told[0].endswith("a run: waiting, 1 links wait")
        assert told[1].startswith(f"job {second} waits (Slurm's reason: BadConstraints); it excludes gn02, gn03,")
        assert told[1].endswith(f"which failed; `scontrol update JobId={second} ExcNodeList=` allows it")
        chain.slurm.run("scontrol", "update", f"JobId={second}", "ExcNodeList=")
        chain.wait_for(lambda: report_run(chain.run_dir).running_job == second)


def test_status_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"none is not the directory of a run; submit one with `python -m slurm.submit`"):
        report_run(tmp_path / "none")
    assert status.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}: not submitted\nno attempt yet\nstep 0 of ?, step 0 is saved")
    assert stop.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == f"{tmp_path} has no waiting or running job\n"


def test_a_run_is_watched_stopped_and_taken_up_again(slurm: RunningSlurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "run"
    with light_chain(slurm, run_dir) as chain:
        jobs = chain.submit("--steps", 300, "--seconds-per-step", 0.1)
        chain.wait_for_step(12)
        assert status.main([str(run_dir), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["state"], found["running_job"], found["waiting_jobs"]) == ("running", jobs[0], jobs[1:])
        assert found["reason"] == "the first attempt runs"
        assert found["step"] >= 12 and found["total_steps"] == 300 and found["tokens_per_second"] == 16
        assert found["seconds_to_end"] == 300 - found["step"] and found["attempts"][0]["end"] is None

        assert stop.main([str(run_dir), "--timeout", "60"]) == 0
        saved = chain.attempts()[0].end.step  # type: ignore[union-attr]
        assert f"has stopped; step {saved} is saved" in capsys.readouterr().out
        assert chain.causes() == [causes.STOPPED] and saved >= 12, chain.logs()
        assert status.main([str(run_dir)]) == 1
        assert capsys.readouterr().out.startswith(
            f"{run_dir}: stopped\nstopped by slurm.stop, step {saved} is saved; submit again to resume\n"
        )

        chain.submit("--steps", 300, "--seconds-per-step", 0, plan=ChainPlan(links=2))
        chain.wait_for_end()
        assert chain.causes() == [causes.STOPPED, causes.FINISHED], chain.logs()
        assert chain.attempts()[1].start_step == saved
        chain.check_losses(300)
        assert status.main([str(run_dir)]) == 0
        assert f"{run_dir}: finished\nfinished: 300 of 300 steps" in capsys.readouterr().out


def test_status_of_a_run_whose_job_died_without_a_word(slurm: RunningSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with light_chain(slurm, tmp_path / "run") as chain:
        (job_id,) = chain.submit("--steps", 300, plan=ChainPlan(links=1))
        chain.wait_for_step(7)
        chain.kill_script(job_id)
        chain.wait_for_end()
        assert chain.causes() == [None]
        report = report_run(chain.run_dir)
        assert report.state == "out of links" and report.attempts[0].end is not None
        assert report.attempts[0].end.cause in (causes.FAILED, causes.VANISHED) and report.attempts[0].end.step == report.saved_step
        monkeypatch.setattr(run_report, "is_disk_full", lambda place: place == chain.run_dir)
        assert report_run(chain.run_dir).reason == f"{report.reason}; its disk is full now: free some space first"
