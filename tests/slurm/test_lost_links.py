"""What happens to links on a real Slurm: jobs requeued, nodes lost, daemons dead, links cancelled and preempted, time at its end."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from slurm.chains import causes
from slurm.chains.chain import ChainPlan
from slurm.chains.submissions import jobs_of
from slurm.jobs.queue import cancel_jobs, signal_steps
from tests.slurm.chains import LightChain, light_chain
from tests.slurm.running_slurm import running_slurm


@pytest.mark.slow
def test_a_requeued_job_makes_a_second_attempt_with_a_log_of_its_own(chain: LightChain) -> None:
    (job_id,) = chain.submit("--steps", 60, "--seconds-per-step", 0.1, plan=ChainPlan(links=1))
    chain.wait_for_step(12)
    chain.slurm.run("scontrol", "requeue", job_id)
    chain.wait_for_end()
    assert chain.causes() == [causes.REQUEUED, causes.FINISHED], chain.logs()
    first, second = chain.attempts()
    assert (first.job_id, second.job_id, second.restart) == (job_id, job_id, 1)
    logs = [(chain.run_dir / "attempts" / number / "log.txt").read_text() for number in ("001", "002")]
    assert "DUE TO JOB REQUEUE" in logs[0] and "attempt 2 of" in logs[1] and "attempt 2 of" not in logs[0]
    chain.check_losses(60)


@pytest.mark.slow
def test_an_ended_link_that_is_requeued_leaves_the_running_one_alone(chain: LightChain) -> None:
    first, second = chain.submit("--steps", 900, "--seconds-per-step", 0.1, plan=ChainPlan(links=2))
    chain.wait_for_step(7)
    signal_steps(first, "USR1")
    chain.wait_for(lambda: len(chain.attempts()) == 2)
    chain.slurm.run("scontrol", "requeue", first)
    log = chain.run_dir / "attempts" / f"job-{first}.log"
    sentence = f"job {second} of this run is running; this one does nothing"
    chain.wait_for(lambda: log.exists() and sentence in log.read_text())
    assert chain.causes() == [causes.SIGNALLED, None]


@pytest.mark.slow
def test_a_lost_node_is_left_out_from_then_on(chain: LightChain) -> None:
    chain.submit("--steps", 600, "--seconds-per-step", 0.1, plan=ChainPlan(links=3))
    chain.wait_for_step(12)
    node = chain.attempts()[0].nodes[1]
    try:
        chain.slurm.node("power-off", node)
        chain.wait_for(lambda: len(chain.attempts()) == 2)
        first, second = chain.attempts()
        assert first.end is not None and first.end.cause == causes.NODE_FAILURE, chain.logs()
        assert first.end.bad_nodes == (node,) and node not in second.nodes and second.start_step >= 10
        waiting = [job.job_id for job in jobs_of(chain.run_dir) if job.is_waiting]
        assert waiting and all(chain.slurm.job(int(job_id))["ExcNodeList"] == node for job_id in waiting)
    finally:
        chain.slurm.node("power-on", node)


@pytest.mark.long  # it ends when a training of a minute does
def test_a_training_on_a_node_that_slurm_has_lost_saves_nothing_beside_the_new_one(chain: LightChain) -> None:
    steps = 600
    chain.submit("--steps", steps, "--seconds-per-step", 0.1, plan=ChainPlan(links=2))
    chain.wait_for_step(12)
    node, process_id = chain.rank(0)
    try:
        chain.slurm.node("kill-slurmd", node)
        chain.wait_for(lambda: len(chain.attempts()) == 2)
        first, second = chain.attempts()
        assert first.end is not None and first.end.bad_nodes == (node,) and node not in second.nodes, chain.logs()
        assert first.job_id == second.job_id and second.start_step > first.end.step, "the old one lives on and saves"
        chain.wait_for_step(second.start_step + 20)
        # It finds at its next line of metrics that the new one has the lease.
        chain.wait_for(lambda: process_id not in chain.on_node(node, "ps", "-e", "-o", "pid=").split())
        chain.wait_for_end()
        assert chain.causes() == [first.end.cause, causes.FINISHED], chain.logs()
        chain.check_losses(steps)
    finally:
        chain.slurm.node("power-off", node)
        chain.slurm.node("power-on", node)


SQUEUE = """#!/bin/bash
if [ -n "${{SLURM_JOB_ID:-}}" ] && [ -e {until} ] && [ "$(date +%s)" -lt "$(cat {until})" ]; then
    echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2
    exit 1
fi
exec {real} "$@"
"""


@pytest.mark.long
def test_cancelling_a_waiting_link_and_a_controller_without_answers_cost_no_other_link(chain: LightChain, tmp_path: Path) -> None:
    until, program = tmp_path / "until", tmp_path / "bin" / "squeue"
    program.parent.mkdir()
    program.write_text(SQUEUE.format(until=until, real=shutil.which("squeue")))
    program.chmod(0o755)
    os.environ["PATH"] = f"{program.parent}:{os.environ['PATH']}"
    first, second, third = chain.submit("--steps", 60, "--seconds-per-step", 0.1, plan=ChainPlan(links=3))
    chain.wait_for_step(7)
    cancel_jobs([second])
    chain.wait_for_step(25)  # Slurm looks at dependencies every second
    assert [(job.job_id, job.is_waiting) for job in jobs_of(chain.run_dir)] == [(first, False), (third, True)], chain.logs()
    until.write_text(str(int(time.time()) + 10))
    signal_steps(first, "USR1")
    chain.wait_for_end()
    assert chain.causes() == [causes.SIGNALLED, causes.FINISHED] and chain.attempts()[1].job_id == third, chain.logs()
    chain.check_losses(60)


@pytest.mark.long
def test_a_dead_daemon_of_a_step_does_not_hold_the_nodes(chain: LightChain) -> None:
    chain.submit("--steps", 120, "--seconds-per-step", 0.1, plan=ChainPlan(links=1), step_wait_seconds=2)
    chain.wait_for_step(7)
    node = chain.attempts()[0].nodes[1]
    (daemon,) = chain.on_node(node, "pgrep", "-f", r"slurmstepd: \[[0-9]+\.0\]").split()
    chain.on_node(node, "kill", "-9", daemon)
    chain.wait_for_end()
    chain.check_losses(120)


@pytest.mark.long  # as another lost node in the usual tests
def test_the_lost_first_node_takes_no_step_with_it(chain: LightChain) -> None:
    chain.submit("--steps", 100, "--seconds-per-step", 0.1, plan=ChainPlan(links=2))
    chain.wait_for_step(12)
    node = chain.attempts()[0].nodes[0]
    try:
        chain.slurm.node("power-off", node)
        chain.wait_for(lambda: len(chain.attempts()) == 2)
        chain.wait_for_end()
        assert chain.causes() == [causes.NODE_FAILURE, causes.FINISHED], chain.logs()
        assert chain.attempts()[0].end.bad_nodes == (node,)  # type: ignore[union-attr]
        chain.check_losses(100)
    finally:
        chain.slurm.node("power-on", node)


@pytest.mark.long  # Slurm looks at time limits every half minute
def test_at_a_real_time_limit_the_next_link_takes_over(chain: LightChain) -> None:
    first, *_ = chain.submit("--steps", 400, "--seconds-per-step", 0.1, plan=ChainPlan(links=3, signal_seconds=600))
    chain.wait_for_step(3)
    chain.slurm.run("scontrol", "update", f"JobId={first}", "TimeLimit=10")  # less than the notice: Slurm signals at its next look
    chain.wait_for_end()
    assert chain.causes() == [causes.TIME_LIMIT, causes.FINISHED], chain.logs()
    chain.check_losses(400)


@pytest.mark.long  # a cluster of its own
def test_a_preempted_link_goes_on_when_the_urgent_job_is_over(tmp_path: Path) -> None:
    urgent = tmp_path / "urgent.conf"
    urgent.write_text("PartitionName=urgent Nodes=ALL PriorityTier=9 MaxTime=1:00:00 State=UP\n")
    preempting = ("--set", "PreemptType=preempt/partition_prio", "--set", "PreemptMode=REQUEUE", "--extra-conf", str(urgent))
    with running_slurm(nodes=2, options=preempting) as two_nodes, light_chain(two_nodes, tmp_path / "run") as chain:
        chain.submit("--steps", 150, "--seconds-per-step", 0.1, plan=ChainPlan(links=2))
        chain.wait_for_step(12)
        script = "#!/bin/bash\nsleep 3\n"
        two_nodes.submit(script, "--account=scion", "--partition=urgent", "--nodes=2", "--exclusive", "--time=5", "--output=/dev/null")
        chain.wait_for_end()
        assert chain.causes() == [causes.PREEMPTED, causes.FINISHED], chain.logs()
        assert chain.attempts()[1].start_step >= 10
        chain.check_losses(150)
