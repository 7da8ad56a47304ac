"""Attempts, claims and checkpoints of a run on disk, without Slurm."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recipes.runs.run_state import STOP_NAME, read_run_state, set_damaged_aside
from slurm.chains.attempts import End, begin_attempt, end_attempt, read_attempts, read_log
from slurm.chains.decision import CONTINUE, Limits, decide
from slurm.chains.submissions import claim_run, current_submission, jobs_of, read_chain_state, record_jobs, run_tag
from slurm.jobs.provenance import collect, kept_environment
from tests.processes import ROOT
from tests.slurm import light_training
from tests.slurm.running_slurm import RunningSlurm

CLAIM = "claim_run(Path(sys.argv[1]), command=('x',), limits=Limits(), signal_seconds=1)"
CLAIMING = f"import sys, time\nfrom pathlib import Path\nfrom slurm.chains.submissions import claim_run\nfrom slurm.chains.decision import Limits\n{CLAIM}\n"


def begin(run_dir: Path, job_id: str = "7", log: Path | None = None) -> int:
    attempt = begin_attempt(
        run_dir, job_id=job_id, restart=0, submission=1, nodes=("gn01",), start_step=5, started_at=3.0, daemon_starts={}, job_log=log
    )
    return attempt.number


def claim(run_dir: Path) -> int:
    return claim_run(run_dir, command=("x",), limits=Limits(attempts_without_progress=2), signal_seconds=60).number


def test_attempts_are_numbered_and_latest_follows(tmp_path: Path) -> None:
    log = tmp_path / "job-7.log"
    log.write_text("from Slurm\n")
    with log.open("a") as stream:
        assert begin(tmp_path, log=log) == 1
        stream.write("after the rename\n")
    assert read_log(tmp_path, 1) == "from Slurm\nafter the rename\n"
    first = read_attempts(tmp_path)[0]
    end_attempt(tmp_path, first, End("node failure", "gn01 is lost", 5, 9.0, ("gn01",)))
    assert begin(tmp_path, job_id="8_3") == 2
    assert (tmp_path / "attempts" / "latest").readlink() == Path("002")
    ended, running = read_attempts(tmp_path)
    assert ended.end == End("node failure", "gn01 is lost", 5, 9.0, ("gn01",))
    assert running.end is None and running.job_id == "8_3" and running.nodes == ("gn01",)


def test_an_attempt_that_died_before_its_record_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "attempts" / "001").mkdir(parents=True)
    assert read_attempts(tmp_path) == []
    assert begin(tmp_path) == 2


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / "attempts" / "001" / "attempt.json").write_text("{")
    with pytest.raises(ValueError, match=r"attempts/001/attempt.json is damaged .*remove the directory .*attempts/001 to forget"):
        read_attempts(tmp_path)


def test_a_claim_of_a_living_process_is_refused(tmp_path: Path) -> None:
    assert claim(tmp_path) == 1
    with pytest.raises(ValueError, match=rf"is being submitted by process \d+ on {socket.gethostname()}; wait until that has ended"):
        claim(tmp_path)
    current = current_submission(tmp_path)
    assert current is not None and current.number == 1 and current.claim.limits.attempts_without_progress == 2


def test_a_copy_of_a_run_has_no_part_in_its_jobs_and_a_moved_one_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, copy, moved = (tmp_path / name for name in ("run", "copy", "moved"))
    assert claim(run_dir) == 1
    record_jobs(run_dir, 1, ("7",))
    queue = f"7|7|N/A|RUNNING|None|gn01||{run_tag(run_dir, 1).comment}"
    (tmp_path / "squeue").write_text(f"#!/bin/sh\necho '{queue}'\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    shutil.copytree(run_dir, copy)
    assert [job.job_id for job in jobs_of(run_dir)] == ["7"] and jobs_of(copy) == [] and current_submission(copy) is None
    assert claim(copy) == 2 and current_submission(copy).claim.tag == run_tag(copy, 2)  # type: ignore[union-attr]
    run_dir.rename(moved)
    with pytest.raises(ValueError, match="moved is already submitted: job 7"):
        claim(moved)
    (tmp_path / "squeue").write_text("#!/bin/sh\n")
    assert claim(moved) == 2 and f"the run of {run_dir} was moved and continues in {moved}" in capsys.readouterr().err


def test_a_claim_of_a_killed_process_holds_nobody_up(slurm: RunningSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.use(monkeypatch)
    holder = subprocess.Popen(
        [sys.executable, "-c", f"{CLAIMING}print('held', flush=True)\ntime.sleep(60)", tmp_path], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    with pytest.raises(ValueError, match=f"by process {holder.pid} on"):
        claim(tmp_path)
    holder.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    assert claim(tmp_path) == 2, "its parent has not noticed yet"
    holder.wait()


def test_of_six_claims_at_once_one_wins(tmp_path: Path) -> None:
    go = tmp_path / "go"
    waiting = CLAIMING.replace(CLAIM, f"while not Path({str(go)!r}).exists(): pass\n{CLAIM}\ntime.sleep(5)")
    racers = [subprocess.Popen([sys.executable, "-c", waiting, tmp_path / "run"], cwd=ROOT, stderr=subprocess.PIPE) for _ in range(6)]
    try:
        go.touch()
        messages = []
        while len(messages) < 5:  # the winner sleeps, the others end
            for racer in list(racers):
                if racer.poll() is not None:
                    assert racer.stderr is not None
                    messages.append(racer.stderr.read().decode().splitlines()[-1])
                    racers.remove(racer)
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
    assert len(racers) == 1
    assert all("came first" in message or "is being submitted" in message for message in messages), messages
    assert [path.name for path in (tmp_path / "run" / "submissions").iterdir()] == ["001"]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    light_training.record_recipe(tmp_path, light_training.recipe(20, 5))
    for step in (5, 10, 15):
        light_training.save(tmp_path, step, f"state {step}")
    return tmp_path


def test_state_of_a_run(run_dir: Path) -> None:
    (run_dir / "metrics.jsonl").write_text('{"step": 15, "loss": 2.5}\n{"step": 15, "validation_loss": 3.0}\n{"step": 16, "lo')
    state = read_run_state(run_dir)
    assert (state.saved_step, state.total_steps, state.stop_requested, state.is_finished) == (15, 20, False, False)
    assert state.metrics == {"step": 15, "loss": 2.5}
    (run_dir / STOP_NAME).touch()
    light_training.save(run_dir, 20, "end")
    assert read_run_state(run_dir).stop_requested and read_run_state(run_dir).is_finished


def test_a_finished_run_that_is_submitted_with_more_steps_goes_on(run_dir: Path) -> None:
    light_training.save(run_dir, 20, "end")
    assert read_chain_state(run_dir).is_finished
    claim_run(run_dir, command=("x",), limits=Limits(), signal_seconds=60, total_steps=30)
    state = read_chain_state(run_dir)
    assert (state.saved_step, state.total_steps, state.is_finished) == (20, 30, False), "before the training itself has noted it"
    assert decide([], saved_step=state.saved_step, total_steps=state.total_steps).verdict == CONTINUE
    light_training.save(run_dir, 30, "end")
    assert read_chain_state(run_dir).is_finished


def test_state_before_the_first_start(tmp_path: Path) -> None:
    state = read_run_state(tmp_path / "none")
    assert (state.saved_step, state.total_steps, state.metrics, state.is_finished) == (0, None, {}, False)


def test_a_half_written_checkpoint_is_ignored(run_dir: Path) -> None:
    (run_dir / "checkpoints" / ".step_0000020.partial").mkdir()
    assert read_run_state(run_dir).saved_step == 15
    assert set_damaged_aside(run_dir, contents=True) == []


def test_a_flipped_bit_is_found_before_it_is_trained_on(run_dir: Path) -> None:
    newest = run_dir / "checkpoints" / "step_0000015"
    (newest / "weights" / "state").write_text("stave 15")
    assert read_run_state(run_dir).saved_step == 15, "a status is not worth reading every byte"
    assert set_damaged_aside(run_dir, contents=False) == [], "nor is it for a link, whose ranks read it"
    (sentence,) = set_damaged_aside(run_dir, contents=True)
    assert sentence.startswith(f"the checkpoint of step 15 is damaged ({newest}/weights/state was edited after recipes.train wrote it")
    assert read_run_state(run_dir).saved_step == 10


def test_damaged_checkpoints_are_set_aside_until_a_whole_one(run_dir: Path) -> None:
    checkpoints = run_dir / "checkpoints"
    (checkpoints / "step_0000015" / "scion.json").unlink()
    (checkpoints / "step_0000010" / "weights" / "state").write_text("st")
    assert read_run_state(run_dir).saved_step == 5
    first, second = set_damaged_aside(run_dir, contents=False)
    assert first == (
        f"the checkpoint of step 15 is damaged (it has no manifest); it was renamed to {checkpoints}/damaged_step_0000015"
        ", and the one before is used"
    )
    assert f"the checkpoint of step 10 is damaged ({checkpoints}/step_0000010/weights/state has 2 bytes, but its manifest says 8" in second
    assert light_training.newest_checkpoint(run_dir) == (5, checkpoints / "step_0000005")
    assert set_damaged_aside(run_dir, contents=True) == []


def test_provenance_has_the_node_list_and_no_secret() -> None:
    environment = {
        "SLURM_JOB_NODELIST": "gn01,gn02",
        "SLURM_JWT": "a",
        "NCCL_DEBUG": "INFO",
        "HF_TOKEN": "b",
        "WANDB_API_KEY": "c",
        "LS_COLORS": "d",
    }
    found = collect(environment, ["python", "-m", "recipes.train"])
    assert found["nodes"] == ["gn01", "gn02"]
    assert found["environment"] == {"NCCL_DEBUG": "INFO", "SLURM_JOB_NODELIST": "gn01,gn02"}
    assert found["packages"]["xxhash"] and found["command"][-1] == "recipes.train" and found["python"].startswith("3.")
    assert kept_environment({"SLURM_AUTH": "x", "SLURM_JOB_ID": "1"}) == {"SLURM_JOB_ID": "1"}


def test_ranks_that_start_at_once_record_one_recipe(tmp_path: Path) -> None:
    recipe = light_training.recipe(20, 5)
    for number in range(20):
        with ThreadPoolExecutor(8) as ranks:
            places = [tmp_path / str(number)] * 8
            assert list(ranks.map(light_training.record_recipe, places, [recipe] * 8)) == [None] * 8
        assert [path.name for path in places[0].iterdir()] == ["recipe.json"]


FULL_DISK = """
mount -t tmpfs -o size=200k tmpfs "$2" && cd "$2"
"$1" -c "import sys; sys.argv = ['', 'run']
$3
from slurm.chains.submissions import record_jobs
record_jobs(Path('run'), 1, ('7',))"
printf '#!/bin/sh\n' >squeue && chmod +x squeue && PATH=$PWD:$PATH # a Slurm without jobs
dd if=/dev/zero of=fill bs=1k 2>/dev/null
"$1" -m slurm.link begin --run run --submission 1
"""


def test_a_full_disk_ends_the_chain_with_a_sentence_and_not_with_a_traceback(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("this kernel lets nobody make a file system of his own (unshare -rm)")
    done = subprocess.run(
        ["unshare", "-rm", "bash", "-c", FULL_DISK, "_", sys.executable, tmp_path, CLAIMING],
        env={**os.environ, "PYTHONPATH": str(ROOT), "SLURM_JOB_ID": "7"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr == "error: the disk of run is full: the chain stops; free some space, then submit again\n"
