"""The command that users type: its plan and script, what it refuses, and a run on four nodes of a real Slurm."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slurm import submit
from slurm.jobs.job import Job
from slurm.jobs.submission_plan import rehearsal_lines, rehearsed, require_fit
from slurm.sites.cluster import load_cluster
from slurm.sites.site import Association, NodeGroup, checked, parse_partitions, parse_qos, site_problems
from tests.conftest import Inputs
from tests.processes import ROOT
from tests.refusals import refused
from tests.slurm.running_slurm import ACCOUNT, OTHER_ACCOUNT, RunningSlurm

STEPS = 3


def _overrides(inputs: Inputs, *parallel: str) -> list[str]:
    return [
        f"model.checkpoint={inputs.checkpoint}",
        f"data.train=[{inputs.data}]",
        "data.sequence_length=48",
        "model.hidden_dropout=0.1",
        "schedule.global_batch_size=8",
        "schedule.micro_batch_size=4",
        f"schedule.max_steps={STEPS}",
        "schedule.warmup_steps=1",
        f"run.checkpoint_every_steps={STEPS}",
        "run.log_every_steps=1",
        "parallel.tensor_parallel_size=2",
        *parallel,
    ]


FOUR_NODES = ("parallel.num_nodes=4", "parallel.devices_per_node=1")


def _submit(slurm: RunningSlurm, inputs: Inputs, run_dir: Path, *words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    cluster = ["--cluster", "local", "--set", f"runtime.venv={sys.prefix}"]
    words = (*cluster, "--output", str(run_dir), *_overrides(inputs, *FOUR_NODES), *words)
    environment = {**slurm.environment, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "slurm.submit", "demo_adapt", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout, check=False)


def test_plan_and_script_are_printed_and_nothing_is_sent(slurm: RunningSlurm, inputs: Inputs, tmp_path: Path) -> None:
    done = _submit(slurm, inputs, tmp_path / "run", "--account", ACCOUNT, "--set", "allocation_gpu_hours=1000")
    assert done.returncode == 0, done.stderr
    plan, _, script = done.stdout.partition("\n\nThe script of the first job:\n\n")
    assert plan.splitlines()[:3] == [
        f"run         {tmp_path / 'run'} (new)",
        "recipe      demo_adapt: 3 steps of 384 tokens",
        "layout      4 nodes x 1 tasks = TP 2 x PP 1 x DP 2, micro batch 4, 1 accumulation steps",
    ]
    assert "GPU hours   at most 384 of the 1,000 allocated (38.4%)" in plan.splitlines()
    assert plan.splitlines()[-1] == "checked     account, partition and limits, with this Slurm"
    assert script.startswith("#!/bin/bash\n#SBATCH --job-name=run\n") and script.endswith(
        "Nothing was submitted; add --submit to submit.\n"
    )
    assert not (tmp_path / "run").exists()


def test_the_command_of_the_docs_plans(slurm: RunningSlurm, inputs: Inputs, tmp_path: Path) -> None:
    """As it stands there, but for the places of its files and a sequence that the smaller model of the tests can take."""
    [line] = [line for line in (ROOT / "docs/slurm.md").read_text().splitlines() if line.startswith("    python -m slurm.submit")]
    for there, here in {"work/small/nemo": inputs.checkpoint, "work/small/data": inputs.data, "work/small/run": tmp_path / "run"}.items():
        line = line.replace(there, str(here))
    _, *words = shlex.split(line)
    done = subprocess.run(
        [sys.executable, *words, "data.sequence_length=48", "--account", ACCOUNT],
        cwd=ROOT,
        env={**slurm.environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "4 nodes x 1 tasks = TP 2 x PP 1 x DP 2" in done.stdout and "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\n" in done.stdout


def test_submitting_imports_nothing_heavy(inputs: Inputs, tmp_path: Path) -> None:
    arguments = ["demo_adapt", "--cluster", "local", "--output", str(tmp_path / "run"), *_overrides(inputs, *FOUR_NODES)]
    code = f"import sys; from slurm.submit import main; main({arguments!r}); print(sorted({{'torch', 'nemo', 'transformers'}} & set(sys.modules)))"
    environment = {**os.environ, "PATH": str(tmp_path)}  # a laptop: no Slurm
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert (
        "checked     with the cluster file alone: there is no sinfo on this machine; run this where Slurm's commands are, on a login node"
        in done.stdout.splitlines()
    )


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--account", "nobody"], f"you have no account nobody; yours are {OTHER_ACCOUNT}, root, {ACCOUNT} (set account=NAME)"),
        (["--set", "gpu.name=gpus"], "there is no partition gpus; there are cpu, gpu (set gpu.name=NAME)"),
        (
            ["--account", ACCOUNT, "--set", "gpu.qos=long"],
            f"account {ACCOUNT} may not use the QOS long; it may use debug, normal",
        ),
        (
            ["--set", "gpu.time_limit=48:00:00"],
            "it asks for 48:00:00; the time limit of partition gpu is 24:00:00",
        ),
        (
            ["--set", "gpu.gpus_per_node=8", "parallel.devices_per_node=8", "schedule.micro_batch_size=1", "schedule.global_batch_size=16"],
            "it asks for 8 GPUs on a node; the nodes of partition gpu have 4",
        ),
    ],
)
def test_what_this_slurm_would_refuse_is_refused_first(
    words: list[str], message: str, slurm: RunningSlurm, inputs: Inputs, tmp_path: Path
) -> None:
    done = _submit(slurm, inputs, tmp_path / "run", "--submit", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == f"error: job 'run' on this Slurm cannot run: {message}"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "runtime.venv=/nowhere",
            "/nowhere/bin/python does not exist; make it with `make setup`, or set runtime.venv to one on the shared file system",
        ),
        (
            "runtime={kind: apptainer, image: /nowhere.sif}",
            "/nowhere.sif does not exist; download it with `python -m slurm.prefetch --cluster local --image SOURCE`",
        ),
    ],
)
def test_nothing_waits_in_the_queue_for_a_runtime_that_is_not_there(
    setting: str, message: str, slurm: RunningSlurm, inputs: Inputs, tmp_path: Path
) -> None:
    done = _submit(slurm, inputs, tmp_path / "run", "--submit", "--set", setting)
    assert (done.returncode, done.stderr) == (2, f"error: {message}\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_what_was_rehearsed_stays_in_the_directory_of_the_run(slurm: RunningSlurm, inputs: Inputs, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    plan = _submit(slurm, inputs, run_dir, "--account", ACCOUNT, "--rehearse", timeout=400)
    assert plan.returncode == 0, plan.stderr
    assert "\nrehearsed   rank 0: " in plan.stdout and "\n            rank 3: " in plan.stdout
    assert not run_dir.exists()
    done = _submit(slurm, inputs, run_dir, "--account", ACCOUNT, "--links", "1", "--submit", "--rehearse", timeout=400)
    assert done.returncode == 0, done.stderr
    assert [report["rank"] for report in json.loads((run_dir / "rehearsal.json").read_text())["ranks"]] == [0, 3]
    job_id = int(done.stdout.splitlines()[-1].removeprefix("sent jobs ").split(";")[0])
    assert slurm.wait(job_id, timeout_seconds=400) == "COMPLETED"
    assert not (run_dir / "first_step").exists()  # a CPU's memory was not rehearsed


def test_a_rehearsal_that_does_not_fit_refuses_the_submission() -> None:
    fit = {
        "gpu": "a100-40gb",
        "GiB": 39.4,
        "needed": 47.5,
        "fits": False,
        "in words": "47.5 of 39.4 GiB, 8.1 too many",
        "advice": "by the plan no layout on 8 of them fits",
    }
    report = {"rank": 3, "most": 45.0, "peak": 45.0, "fullest phase": "forward", "fullest of all": "forward", "planned": {"total": 22.5}}
    fuller = {**report, "rank": 7, "most": 46.0, "fit": {**fit, "in words": "48.5 of 39.4 GiB, 9.1 too many"}}
    rehearsal = {"ranks": [{**report, "fit": fit}, fuller]}
    sentence = "recipe gams/focus on vega cannot run: rank 7 needs 48.5 of 39.4 GiB, 9.1 too many (a100-40gb), by its rehearsal: the peak is in forward; by the plan no layout on 8 of them fits"
    with refused(sentence):
        require_fit(rehearsal, subject="recipe gams/focus on vega")
    assert rehearsal_lines(rehearsal)[1].startswith("            rank 7: 45.00 GiB counted in forward")


def test_without_gpus_there_is_nothing_to_rehearse() -> None:
    cluster = load_cluster("local", ("gpu.gpus_per_node=0",))
    with pytest.raises(ValueError, match="local has no GPUs, so there is nothing to rehearse; leave --rehearse out"):
        rehearsed("demo_adapt", [], cluster)


PARTITIONS = parse_partitions(
    "gpu|1-00:00:00|60|256|510000+|gpu:a100:4(S:0-1)\ngpu|1-00:00:00|2|256|510000|gpu:8\nlong|infinite|3|64|1000|(null)\n"
)
JOB = Job(name="job", command=("true",), time_limit_seconds=48 * 3600, log_dir=Path("/logs"), tasks_per_node=8, gpus_per_task=1)


def test_partitions_of_different_nodes_are_taken_together() -> None:
    assert PARTITIONS["gpu"].num_nodes == 62
    assert PARTITIONS["gpu"].gpus_per_node == 8
    assert (PARTITIONS["gpu"].time_limit_seconds, PARTITIONS["long"].time_limit_seconds) == (86400, None)


def test_nodes_that_have_what_is_asked_for_are_counted() -> None:
    partitions = parse_partitions(
        "CLUSTER: slaking\ngpu|1-00:00:00|2|64|512000|gpu:4\ngpu|1-00:00:00|100|64|128000|(null)\nbig|infinite|16|64|512000|gpu:4\n"
    )
    job = replace(JOB, tasks_per_node=4, time_limit_seconds=60, num_nodes=16)
    wanted = "it asks for 16 nodes with 4 GPUs; 2 of the 102 nodes of partition gpu have that; big would do"
    assert site_problems(job, load_cluster("local"), partitions, [], {}) == [wanted]
    assert site_problems(replace(job, num_nodes=2), load_cluster("local"), partitions, [], {}) == []
    on_cpus = replace(job, gpus_per_task=0, memory_gib=256)
    assert "16 nodes with 256 GiB; 2 of the 102" in site_problems(on_cpus, load_cluster("local"), partitions, [], {})[0]


QOS = parse_qos("normal||\ndebug|00:30:00|\nlprod|4-00:00:00|DenyOnLimit,PartitionTimeLimit\n")


def test_what_else_would_do_is_named() -> None:
    cluster = load_cluster("local", ("account=B25",))  # as projects write it; Slurm keeps lower case
    associations = [Association("b25", "gpu", ("normal",))]
    assert site_problems(JOB, cluster, PARTITIONS, associations, QOS) == [
        "it asks for 48:00:00; the time limit of partition gpu is 24:00:00; long would do"
    ]
    other = [Association("b25", "long", ("normal",))]
    assert site_problems(JOB, cluster, PARTITIONS, other, QOS)[0] == "account B25 may not use partition gpu; it may use long"


def test_a_qos_has_its_own_time_limit() -> None:
    short, long = (load_cluster("local", (f"gpu.qos={name}",)) for name in ("debug", "lprod"))
    assert site_problems(JOB, short, PARTITIONS, [], QOS)[1:] == ["it asks for 48:00:00; the time limit of QOS debug is 00:30:00"]
    assert site_problems(JOB, long, PARTITIONS, [], QOS) == []


def test_what_was_not_checked_is_not_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site without accounting knows partitions alone."""
    cluster = load_cluster("local", ("account=b25", "gpu.qos=debug"))
    rows = [Association("b25", "", ("debug",))]
    assert checked(cluster, [cluster.gpu], [], {}) == "partition and limits, with this Slurm; not account and QOS, which it does not report"
    assert checked(cluster, [cluster.gpu], rows, QOS) == "account, partition, QOS and limits, with this Slurm"
    assert site_problems(
        replace(JOB, tasks_per_node=1, time_limit_seconds=60), load_cluster("local", ("gpu.qos=dbg",)), PARTITIONS, [], QOS
    ) == ["there is no QOS dbg; there are debug, lprod, normal (set gpu.qos=NAME)"]


def test_numbers_of_large_sites() -> None:
    """sinfo writes 1024 nodes as 1K, unless told not to."""
    (found,) = parse_partitions("gpu|1-00:00:00|1.5K|128+|1M+|gpu:4\n").values()
    assert found.groups == (NodeGroup(1536, 128, 1 << 20, 4),)
    with pytest.raises(ValueError, match=r"sinfo says 'gpu\|1-00:00:00\|many"):
        parse_partitions("gpu|1-00:00:00|many|1|1|gpu:4\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--links", "-3", "--output", "run"], "the chain has -3 links; expected 1 to 100"),
        (["--links", "101", "--output", "run"], "the chain has 101 links; expected 1 to 100: submitting again resumes a run"),
        (["--output", ""], "argument --output: '' is not a directory; give a separate directory"),
        (["--output", str(ROOT)], "is the checkout or a parent of it; give a separate directory"),
    ],
)
def test_misuse_is_refused_before_anything_else(
    words: list[str], message: str, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((ValueError, SystemExit)) as error:
        submit.main(["demo_adapt", "--cluster", "local", *words, *_overrides(inputs)])
    assert message in f"{error.value} {capsys.readouterr().err}"
