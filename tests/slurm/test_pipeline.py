"""Pipelines on a real Slurm: one submission from text to report; failures that name themselves; nothing done twice."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from recipes import run
from recipes.pipelines.file import pipeline_from_mapping
from recipes.pipelines.local import LocalRun
from recipes.pipelines.machine import Machine
from recipes.pipelines.work import find_work
from slurm import status, stop, sweep
from slurm.chains.submissions import jobs_of
from slurm.jobs.job import ROOT
from slurm.jobs.queue import cancel_jobs
from slurm.sites.cluster import Cluster
from slurm.stages.pipeline_submission import submit_pipeline
from tests.conftest import Inputs
from tests.recipes.projects import tiny_project
from tests.slurm.chains import still_there
from tests.slurm.running_slurm import RunningSlurm


@pytest.fixture
def environment(slurm: RunningSlurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Slurm's commands as a user's shell has them, and the cluster with a CPU partition."""
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    cpu = ("cpu.name=cpu", "cpu.num_nodes=16", "cpu.cpus_per_node=32", "cpu.memory_gib=480", "cpu.time_limit=24:00:00")
    yield slurm.cluster(*cpu)
    slurm.run("scancel", "--account=scion", check=False)


def wait_for_end(job_ids: dict[str, tuple[str, ...]], *, timeout_seconds: float = 240) -> None:
    end = time.monotonic() + timeout_seconds
    everything = [job_id for ids in job_ids.values() for job_id in ids]
    while still_there(everything):
        if time.monotonic() > end:
            cancel_jobs(everything)
            raise AssertionError(f"not at its end after {timeout_seconds} s")
        time.sleep(0.2)


def small(work_dir: Path, text: Path) -> dict[str, Any]:
    """Two tokenizers and the data made with them."""
    return {
        "name": "small",
        "work_dir": str(work_dir),
        "axes": {"size": [400, 420]},
        "resources": {"cpu": {"cpus": 1, "memory_gib": 8, "time_limit": "00:10:00"}},
        "stages": {
            "tokenizer": {"command": f"data_prep.train_tokenizer --input '{text}' --vocab-size {{size}}", "output": "tokenizer_{size}"},
            "data": {"command": f"data_prep.to_megatron --input '{text}' --tokenizer {{tokenizer}} --workers 1", "output": "data_{size}"},
        },
    }


@pytest.mark.slow
def test_a_failed_stage_names_itself_and_the_rest_is_not_done_twice(
    environment: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, work = tmp_path / "some text.txt", tmp_path / "work"
    sent = (ROOT / "recipes" / "demo_text" / "sl.heldout.txt").read_text()
    pipeline = pipeline_from_mapping(small(work, text))
    job_ids = submit_pipeline(find_work(pipeline), environment)
    with pytest.raises(ValueError, match=r"work is already submitted: job \d+_0"):
        submit_pipeline(find_work(pipeline), environment)
    wait_for_end(job_ids)
    assert status.main([str(work)]) == 1
    told = capsys.readouterr().out
    assert "2 failed, 2 not started" in told and "some text.txt does not exist" in told and "logs/tokenizer-" in told

    text.write_text(sent)
    assert list(job_ids) == ["tokenizer", "data"]
    wait_for_end(submit_pipeline(find_work(pipeline), environment))
    assert status.main([str(work)]) == 0, capsys.readouterr().out
    assert capsys.readouterr().out.startswith(f"{work}: 4 complete")
    made = (work / "tokenizer_400" / "scion.json").stat().st_mtime_ns

    assert submit_pipeline(find_work(pipeline), environment) == {}, "nothing is left to do"
    (work / "data_420" / "scion.json").unlink()
    for path in (work / "data_420").iterdir():
        path.unlink()
    again = submit_pipeline(find_work(pipeline), environment)
    assert {stage: len(ids) for stage, ids in again.items()} == {"data": 1}
    wait_for_end(again)
    assert status.main([str(work)]) == 0 and (work / "tokenizer_400" / "scion.json").stat().st_mtime_ns == made

    here = pipeline_from_mapping(small(tmp_path / "here", text))
    assert LocalRun(find_work(here), Machine.here(), {}).run() == 0
    files = {path.relative_to(work) for path in work.glob("[td]*_*/**/*") if path.is_file() and path.name != "scion.json"}
    assert len(files) > 10 and all((work / file).read_bytes() == (here.root / file).read_bytes() for file in files)


def test_stopping_a_pipeline_takes_all_its_jobs_back(environment: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = ROOT / "recipes" / "demo_text" / "sl.heldout.txt"
    job_ids = submit_pipeline(find_work(pipeline_from_mapping(small(tmp_path / "work", text))), environment)
    assert stop.main([str(tmp_path / "work"), "--timeout", "60"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'work'}: no job of it is left\n"
    assert not still_there(job_id for ids in job_ids.values() for job_id in ids)
    assert stop.main([str(tmp_path / "work")]) == 1


@pytest.mark.long
def test_a_project_ends_with_the_same_numbers_as_on_this_machine(
    environment: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work, here = tmp_path / "work", tmp_path / "here"
    settings = [f"runtime.venv={sys.prefix}", "cpu.name=cpu", "cpu.num_nodes=16", "cpu.cpus_per_node=32", "cpu.memory_gib=480"]
    words = [
        *tiny_project.words(work),
        "--on",
        "local",
        "--account",
        "scion",
        *(f"--set={one}" for one in (*settings, "cpu.time_limit=24:00:00")),
    ]
    assert run.main([*words, "--submit"]) == 0 and "jobs for 19 stages" in capsys.readouterr().out
    job_ids = {"all": tuple(job.job_id for job in jobs_of(work))}
    wait_for_end(job_ids, timeout_seconds=1500)
    code, told = status.main([str(work)]), capsys.readouterr().out
    logs = {path.name: path.read_text(errors="replace")[-1500:] for path in (work / "logs").glob("*.log")}
    assert code == 0 and "19 complete" in told, f"{told}\n{logs}"
    assert run.main([*words, "--submit"]) == 0 and "everything is complete" in capsys.readouterr().out
    assert run.main(tiny_project.words(here)) == 0
    assert tiny_project.numbers(work) == tiny_project.numbers(here)
    assert (work / "index.html").is_file()


@pytest.mark.long
def test_a_sweep_of_methods_and_seeds_ends_in_its_table(
    environment: Cluster, inputs: Inputs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "recipes" / "pipelines" / "bundled" / "sweep.yaml").read_text()
    for name, path in (("model/hf", inputs.hf), ("tokenizer", inputs.tokenizer), ("data/vocabulary/sl", inputs.data)):
        text = text.replace(f"demo_tiny_output/{name}", str(path))
    content = yaml.safe_load(text.replace("0000100", "0000004").replace("_steps=100", "_steps=4"))
    content |= {"work_dir": str(tmp_path / "work"), "axes": {"method": ["random", "focus"], "seed": [1, 2]}}
    content["stages"]["train"]["train"]["overrides"] += " data.sequence_length=64 schedule.warmup_steps=1"
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    job_ids = submit_pipeline(find_work(pipeline_from_mapping(content)), environment)
    assert {stage: len(ids) for stage, ids in job_ids.items()} == {"transfer": 4, "convert": 4, "train": 12, "export": 4, "evaluate": 4}
    wait_for_end(job_ids, timeout_seconds=540)
    code = status.main([str(tmp_path / "work")])
    told = capsys.readouterr().out
    logs = {path.name: path.read_text(errors="replace")[-1500:] for path in (tmp_path / "work" / "logs").glob("*.log")}
    assert code == 0 and "20 complete" in told, f"{told}\n{logs}"
    assert sweep.main([str(file)]) == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[4:]]
    assert [row[0] for row in rows] == ["random", "focus"]
    for _, mean, deviation, *seeds in rows:
        assert len(set(seeds)) == 2, "each seed has a result of its own"
        assert abs(float(mean) - sum(map(float, seeds)) / 2) < 1e-4 and float(deviation) > 0
