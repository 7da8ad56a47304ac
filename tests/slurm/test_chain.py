"""Chains on a real Slurm: whatever ends a link, the run goes on, or stops with one clear message."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from slurm.chains import causes
from slurm.chains.chain import ChainPlan, submit_chains
from slurm.chains.decision import Limits
from slurm.chains.run_report import report_run
from slurm.chains.submissions import jobs_of, run_tag
from slurm.jobs.queue import Tag, cancel_jobs, queued_jobs, signal_steps
from tests.slurm import light_training
from tests.slurm.chains import LightChain, light_job, still_there
from tests.slurm.running_slurm import RunningSlurm


def test_a_signalled_link_saves_and_the_next_goes_on_to_the_end(chain: LightChain) -> None:
    first, *_ = chain.submit("--steps", 60, "--every", 1000, plan=ChainPlan(links=4))
    chain.wait_for_step(12)
    with pytest.raises(ValueError, match=rf"is already submitted: job {first} \(running\), job .* \(pending\)") as refused:
        chain.submit("--steps", 60)
    assert f"end it with `python -m slurm.stop {chain.run_dir}`" in str(refused.value)
    signal_steps(first, "USR1")
    chain.wait_for_end()
    assert chain.causes() == [causes.SIGNALLED, causes.FINISHED], chain.logs()
    chain.check_losses(60)
    one, two = chain.attempts()
    assert one.end is not None and 12 <= one.end.step == two.start_step < 60, "the second goes on from the step of the signal"
    assert one.nodes == ("gn01", "gn02")
    latest = chain.run_dir / "attempts" / "latest"
    assert latest.readlink() == Path("002") and f"from step {two.start_step}" in (latest / "log.txt").read_text()
    provenance = json.loads((latest / "provenance.json").read_text())
    assert provenance["command"][:3] == ["python", "-m", "tests.slurm.light_training"]
    assert provenance["nodes"] == ["gn01", "gn02"] and provenance["environment"]["SLURM_JOB_ID"] == two.job_id
    assert json.loads((latest / "recipe.json").read_text())["schedule"]["max_steps"] == 60
    assert chain.submit("--steps", 60, total_steps=60) == [], "a finished run does not restart"
    assert len(chain.attempts()) == 2
    chain.submit("--steps", 70, "--every", 1000, total_steps=70)
    chain.wait_for_end()
    assert [attempt.start_step for attempt in chain.attempts()] == [0, two.start_step, 60] and chain.causes()[-1] == causes.FINISHED
    chain.check_losses(70)


def test_a_killed_rank_costs_one_attempt_and_no_saved_step(chain: LightChain) -> None:
    chain.submit("--steps", 40, "--seconds-per-step", 0.1)
    chain.wait_for_step(12)
    node, process_id = chain.rank(3)
    chain.on_node(node, "kill", "-9", process_id)
    chain.wait_for_end()
    assert chain.causes() == [causes.FAILED, causes.FINISHED], chain.logs()
    killed, second = chain.attempts()
    assert killed.end is not None and killed.end.detail == "task 3 on gn02: Killed"
    assert second.start_step >= 10, "nothing is lost beyond the last interval"
    chain.check_losses(40)


@pytest.mark.slow
def test_a_training_that_hangs_is_ended_with_its_stacks_and_the_chain_goes_on(chain: LightChain) -> None:
    chain.submit("--steps", 30, "--hang-at", 17)
    chain.wait_for_end()
    assert chain.causes() == [causes.HUNG, causes.FINISHED], chain.logs()
    assert [attempt.start_step for attempt in chain.attempts()] == [0, 15]
    log = (chain.run_dir / "attempts" / "001" / "log.txt").read_text()
    assert "rank 0 on gn01 hangs: step 17 did not end in" in log and "in steps_of" in log, "the stack says where"
    chain.check_losses(30)


@pytest.mark.slow
def test_crashes_without_progress_stop_the_chain(chain: LightChain) -> None:
    plan = ChainPlan(links=6, limits=Limits(attempts_without_progress=2))
    chain.submit("--steps", 40, "--crash-at", 12, plan=plan)
    chain.wait_for_end()
    assert chain.causes() == [causes.FAILED] * 3, chain.logs()
    assert [attempt.start_step for attempt in chain.attempts()] == [0, 10, 10]
    assert (
        "chain: the chain ends: 2 attempts in a row saved no newer checkpoint than step 10; the last one: failed"
        " (task 0 on gn01: Exited with exit code 1; RuntimeError: the model is not a number); read its log, then submit again\n"
    ) in chain.logs()


def test_what_no_further_attempt_changes_stops_the_chain_at_once(chain: LightChain) -> None:
    chain.submit("--steps", 40, "--refuse")
    chain.wait_for_end()
    assert chain.causes() == [causes.REFUSED], chain.logs()
    sentence = "refused (error: data.train is missing; give it in the recipe); fix the cause, then submit again"
    assert f"chain: the chain ends: attempt 1: {sentence}" in chain.logs()
    assert chain.attempts()[0].end.step == 0  # type: ignore[union-attr]


@pytest.mark.slow
def test_damaged_checkpoints_and_another_number_of_nodes(chain: LightChain) -> None:
    """One that is cut is set aside before the training starts, one with a changed byte when a rank has found it."""
    first, *_ = chain.submit("--steps", 60, plan=ChainPlan(links=1))
    chain.wait_for_step(17)
    signal_steps(first, "USR1")
    chain.wait_for_end()
    assert "this was the last link of the submission, after attempt 1: signalled" in chain.logs()
    checkpoints = chain.run_dir / "checkpoints"
    *_, whole, changed, newest = sorted(checkpoints.glob("step_*"))
    (newest / "weights" / "state").write_text("cut")
    state = (changed / "weights" / "state").read_text()
    (changed / "weights" / "state").write_text(state[:-1] + ("0" if state[-1] != "0" else "1"))
    half_written = checkpoints / ".step_0000099.partial"
    half_written.mkdir()
    chain.submit("--steps", 60, num_nodes=3, plan=ChainPlan(links=2))
    chain.wait_for_end()
    assert chain.causes() == [causes.SIGNALLED, causes.DAMAGED, causes.FINISHED], chain.logs()
    _, second, third = chain.attempts()
    assert third.nodes == ("gn01", "gn02", "gn03") and third.submission == 2
    assert [attempt.start_step for attempt in (second, third)] == [int(path.name.removeprefix("step_")) for path in (changed, whole)]
    log = (chain.run_dir / "attempts" / "002" / "log.txt").read_text()
    for folder in (newest, changed):
        assert f"it was renamed to {checkpoints}/damaged_{folder.name}, and the one before is used" in log
    assert f"error: {changed}/weights/state was edited after recipes.train wrote it" in log
    assert "is damaged" not in (chain.run_dir / "attempts" / "latest" / "log.txt").read_text()
    chain.check_losses(60)


def test_members_of_large_arrays_are_found_in_the_queue(slurm: RunningSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    indices = {*range(0, 300, 3), *range(1, 200, 7), 301}
    job_id = slurm.submit(
        "#!/bin/bash\nsleep 1\n", "--hold", "--account=scion", "--comment=x/a", f"--array={','.join(map(str, sorted(indices)))}%4"
    )
    regular = slurm.submit("#!/bin/bash\nsleep 1\n", "--hold", "--account=scion", "--comment=x/b", "--array=0-198:3")
    try:
        found = [job.job_id for job in queued_jobs([Tag("x/a")])]
        assert found == [f"{job_id}_{index}" for index in sorted(indices)]
        assert len(queued_jobs([Tag("x/b")])) == 67 and [job.job_id for job in queued_jobs([Tag("x/b", 198)])] == [f"{regular}_198"]
    finally:
        cancel_jobs([str(job_id), str(regular)])


def test_cancelling_a_link_by_hand_ends_the_chain(chain: LightChain) -> None:
    first, *_ = chain.submit("--steps", 400)
    chain.wait_for_step(7)
    cancel_jobs([first])
    chain.wait_for_end()
    assert chain.causes() == [causes.CANCELLED], chain.logs()
    saved = chain.attempts()[0].end.step  # type: ignore[union-attr]
    assert saved >= 5 and f"it was cancelled manually; submit again to resume; step {saved} is saved" in chain.logs()


def test_jobs_that_no_submission_knows_leave_the_run_alone(chain: LightChain) -> None:
    """As after a crash of the submitting machine, whose jobs wait though nobody noted them."""
    submissions, plan = chain.run_dir / "submissions", ChainPlan(links=1, recording_seconds=1)
    (unrecorded,) = chain.submit("--steps", 20, exclude=("gn09",), plan=plan)
    hold(chain, unrecorded)
    recorded = (submissions / "001" / "jobs.json").read_text()
    (submissions / "001" / "jobs.json").unlink()
    assert [job.job_id for job in jobs_of(chain.run_dir)] == [unrecorded] == list(report_run(chain.run_dir).waiting_jobs)
    chain.slurm.run("scontrol", "release", unrecorded)
    chain.wait_for_end()
    assert f"submission 1 of {chain.run_dir} was interrupted before it recorded this job; the job does nothing" in chain.logs()

    (submissions / "001" / "jobs.json").write_text(recorded)
    (older,) = chain.submit("--steps", 20, plan=plan)
    hold(chain, older)
    (submissions / "003").mkdir()
    (submissions / "003" / "claim.json").write_text((submissions / "002" / "claim.json").read_text())
    chain.slurm.run("scontrol", "release", older)
    chain.wait_for_end()
    assert "this job is of submission 2" in chain.logs() and chain.logs().count("does nothing") == 2
    assert [attempt.start_step for attempt in chain.attempts()] == [0] * len(chain.attempts()), "nothing was trained"


def hold(chain: LightChain, job_id: str) -> None:
    """Put a job back into the queue, where it waits to be released; one that has not begun is held there."""
    chain.slurm.run("scontrol", "hold", job_id, check=False)
    chain.slurm.run("scontrol", "requeuehold", job_id, check=False)
    chain.wait_for(lambda: [job.is_waiting for job in jobs_of(chain.run_dir) if job.job_id == job_id] == [True])


@pytest.mark.long
def test_chains_in_an_array_end_each_by_itself(chain: LightChain, tmp_path: Path) -> None:
    runs = {index: tmp_path / f"run_{index}" for index in (0, 2)}
    job = replace(light_job(tmp_path / "run_%a", "--steps", 40), array="0,2%1", log_name="light-%A_%a.log")
    first, second = submit_chains(
        job, chain.slurm.cluster(), runs, ChainPlan(links=2), directory=tmp_path, tag=run_tag(tmp_path, 1), total_steps={0: 40, 2: 40}
    )
    chain.job_ids += [f"{job_id}_{index}" for job_id in (first, second) for index in runs]
    one, other = (LightChain(chain.slurm, run_dir, []) for run_dir in runs.values())
    one.wait_for_step(12)
    signal_steps(f"{first}_0", "USR1")  # while the other member waits
    chain.wait_for_end()
    assert one.causes() == [causes.SIGNALLED, causes.FINISHED] and other.causes() == [causes.FINISHED], one.logs()
    assert [attempt.job_id for attempt in one.attempts()] == [f"{first}_0", f"{second}_0"]
    for run in (one, other):
        run.check_losses(40)


def test_a_claim_that_cannot_be_sent_waits_for_nothing(chain: LightChain) -> None:
    with pytest.raises(ValueError, match=r"sbatch refused: .*more processors|sbatch refused"):
        chain.submit("--steps", 20, exclude=tuple(f"gn{number:02d}" for number in range(1, 17)))
    assert not still_there(chain.job_ids)
    assert light_training.newest_checkpoint(chain.run_dir) is None
    assert jobs_of(chain.run_dir) == []
