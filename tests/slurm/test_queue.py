"""What Slurm's programs are given and how their answers are read, with programs that answer as odd sites do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm.chains.run_report import why_it_waits
from slurm.jobs.job import Job
from slurm.jobs.queue import (
    QueuedJob,
    Tag,
    cancel_jobs,
    expand_nodes,
    gpu_count,
    job_state,
    own_job_id,
    partition_nodes,
    patient,
    queued_jobs,
    seconds_left,
    send_job,
)
from slurm.sites import site


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for programs, the first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{script}\n")
    (folder / name).chmod(0o755)


def test_a_job_gets_nothing_of_the_callers_settings_of_slurm(
    answer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program(
        answer, "sbatch", f'env >{answer}/env; echo "$@" >{answer}/words; echo "12 jobs of yours wait"; echo "1001;vega"; echo good luck'
    )
    left_out = ("SBATCH_ACCOUNT", "SBATCH_NO_REQUEUE", "SLURM_ARRAY_JOB_ID", "SLURM_MEM_PER_CPU", "SRUN_CPUS_PER_TASK", "SCION_BY_RANK_NIC")
    for name in (*left_out, "SLURM_CONF", "HF_HOME"):
        monkeypatch.setenv(name, "7")
    assert send_job(answer / "job.sh", Tag("scion-x-1")) == "1001"
    names = {line.partition("=")[0] for line in (answer / "env").read_text().splitlines()}
    assert not names & set(left_out) and {"SLURM_CONF", "HF_HOME"} <= names
    assert (answer / "words").read_text() == f"--parsable --comment=scion-x-1 {answer}/job.sh\n"
    assert f"{', '.join(sorted(left_out))} of this shell are not passed to sbatch" in capsys.readouterr().err
    program(answer, "sbatch", "echo welcome")
    with pytest.raises(ValueError, match="sbatch printed 'welcome', expected the id of the job"):
        send_job(answer / "job.sh")
    left = {"SLURM_JOB_ID": "1001", "SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "3"}
    assert (own_job_id(left, is_array=False), own_job_id(left, is_array=True)) == ("1001", "77_3")


def test_a_job_is_ours_by_its_tag(answer: Path) -> None:
    lines = [
        "17|17|N/A|RUNNING|None|gn01||scion-x-1",
        "18|18|N/A|PENDING|Priority|||",
        "19|19|N/A|PENDING|Priority|||scion-y-1",
        "CLUSTER: a",
    ]
    program(answer, "squeue", "\n".join(f"echo '{line}'" for line in ["CLUSTER: vega", *lines]))
    assert [job.job_id for job in queued_jobs([Tag("scion-x-1")])] == ["17"]
    program(answer, "scontrol", "echo 'JobId=18 JobState=RUNNING Comment=scion-z-1'")
    program(answer, "sacct", "echo 'TIMEOUT|sbatch --parsable --comment=scion-x-1 job.sh'")
    assert [job_state("18", Tag(comment)) for comment in ("scion-z-1", "scion-x-1", "scion-y-1")] == ["RUNNING", "TIMEOUT", None]


def test_answers_of_a_site_with_several_clusters(answer: Path) -> None:
    for name in ("sinfo", "squeue"):
        line = "gn01|idle|gpu:a100:4(S:0-1)" if name == "sinfo" else "1-02:03:04"
        program(answer, name, f"echo 'CLUSTER: vega'; echo '{line}'; echo")
    assert partition_nodes("gpu") == {"gn01": ("idle", "gpu:a100:4(S:0-1)")} and seconds_left("7") == 93784


def test_every_question_is_asked_again_while_slurm_does_not_answer(answer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm.jobs.queue._ASK_AGAIN_SECONDS", 0.01)
    for name, words in (("scancel", "exit 0"), ("scontrol", "echo 'JobState=FAILED Comment=scion-x-1'")):
        once = f"{answer}/{name}.once"
        program(answer, name, f"[ -e {once} ] || {{ touch {once}; echo 'Unable to contact slurm controller' >&2; exit 1; }}; {words}")
    with pytest.raises(ValueError, match="scancel refused: Unable to contact"):
        cancel_jobs(["7"])
    (answer / "scancel.once").unlink()
    with patient(10):
        cancel_jobs(["7"])
        assert job_state("7", Tag("scion-x-1")) == "FAILED"
    program(answer, "scancel", "echo 'scancel: error: Kill job error on job id 7: Invalid job id specified' >&2; exit 1")
    cancel_jobs(["7"])


def test_an_array_beyond_the_limit_of_this_slurm_is_refused(answer: Path) -> None:
    program(answer, "scontrol", "echo 'MaxArraySize            = 1001'")
    job = Job(name="job", command=("true",), time_limit_seconds=60, log_dir=answer, array="0-1199%4")
    assert site.array_problems(job)[0].startswith("its array has the index 1199; MaxArraySize of this Slurm is 1001")
    assert site.array_problems(replace(job, array="0-1000")) == []


@pytest.mark.parametrize(
    ("resources", "count"),
    [
        ("gpu:8(S:0-3)", 8),
        ("gpu:turing:1,gpu:ampere:3", 4),
        ("gpu:4(S:0,2),craynetwork:4", 4),
        ("gpu:ampere:6(S:0-1),gpu:1g.10gb:28(S:0-1)", 6),
        ("gpu:nvidia_a100_3g.20gb:2", 0),
        ("mps:400,shard:a100:32,gpu:a100:no_consume:2", 2),
        ("(null)", 0),
    ],
)
def test_gpus_of_a_node(resources: str, count: int) -> None:
    assert gpu_count(resources) == count


def test_a_held_job_is_named_with_what_releases_it() -> None:
    held = QueuedJob("7", "PENDING", "launch failed requeued held", ())
    assert why_it_waits(held) == "job 7 is held (Slurm's reason: launch failed requeued held); `scontrol release 7` lets it start"
    assert replace(held, state="REQUEUE_HOLD").is_waiting


def test_nodes_are_those_that_the_short_form_can_stand_for(answer: Path) -> None:
    program(answer, "scontrol", "echo '--> Site: welcome'; echo welcome; printf '%s\\n' gn01x2 gn02x2 a1; echo bye")
    assert expand_nodes("gn[01-02]x[2,3],a1") == ("gn01x2", "gn02x2", "a1")
