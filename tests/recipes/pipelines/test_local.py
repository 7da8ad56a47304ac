"""A pipeline's tasks on this machine: side by side where they fit, failures, signals, kills, one run at a time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from common.artifacts import read_manifest
from common.lease import InUseError
from recipes import run
from recipes.pipelines import forecast
from recipes.pipelines.file import Pipeline, pipeline_from_mapping, tasks_of
from recipes.pipelines.forecast import forecast_problems, forecasts, render_forecast
from recipes.pipelines.local import LOCK_NAME, LocalRun, only_run
from recipes.pipelines.machine import Machine, machine_problems
from recipes.pipelines.work import find_work
from tests.conftest import HELD_OUT
from tests.processes import ROOT

CORES = tuple(sorted(os.sched_getaffinity(0)))
QUICK = "recipes.plan --list"  # half a second


def pipeline_of(work_dir: Path, stages: dict[str, Any], **resources: object) -> Pipeline:
    return pipeline_from_mapping({"name": "p", "work_dir": str(work_dir), "stages": stages, "resources": {"cpu": {"cpus": 1} | resources}})


def run_here(pipeline: Pipeline, *, cores: int = 1, memory_gib: float = 8, free_gib: float = 8) -> int:
    machine = Machine((CORES * cores)[:cores] if cores > len(CORES) else CORES[:cores], (), memory_gib, free_gib)
    return LocalRun(find_work(pipeline), machine, {}).run()


@pytest.mark.parametrize(
    ("cores", "memory_gib", "free_gib", "beside"),
    [(2, 8, 8, True), (1, 8, 8, False), (2, 8, 3, False), (2, 8, 1, False)],
    ids=["both fit", "one core", "memory of one", "memory of none: one runs alone"],
)
def test_stages_run_beside_each_other_where_they_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cores: int, memory_gib: float, free_gib: float, beside: bool
) -> None:
    if cores > len(CORES):
        pytest.skip("this machine has one core")
    pipeline = pipeline_of(tmp_path / "work", {"a": {"command": QUICK}, "b": {"command": QUICK}}, memory_gib=2)
    assert run_here(pipeline, cores=cores, memory_gib=memory_gib, free_gib=free_gib) == 0
    told = [line.split(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert (told[:2] == ["a: started", "b: started"]) == beside and told[-1] in ("a: done", "b: done") and len(told) == 4
    assert f"{pipeline.root}/logs/a.log" and "gams/focus" in (pipeline.root / "logs" / "a.log").read_text()
    assert find_work(pipeline).tasks == ()


def test_gpus_are_shared_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, start = [], subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *words, **given: seen.append(given["env"]["CUDA_VISIBLE_DEVICES"]) or start(*words, **given)
    )
    stages = {"none": {"command": QUICK, "resources": "cpu"}} | {name: {"command": QUICK, "resources": "one"} for name in "abc"}
    content = {"name": "p", "work_dir": str(tmp_path), "stages": stages, "resources": {"cpu": {"cpus": 1}, "one": {"cpus": 1, "gpus": 1}}}
    assert LocalRun(find_work(pipeline_from_mapping(content)), Machine(CORES, ("3", "GPU-5"), 8, 8), {}).run() == 0
    assert seen[0] == "" and set(seen[1:]) <= {"3", "GPU-5"} and len(seen) == 4


def test_a_failure_is_told_with_its_log_and_what_does_not_depend_on_it_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stages = {
        "text": {"command": f"data_prep.train_tokenizer --input {tmp_path}/none.txt --vocab-size 300", "output": "text"},
        "after": {"command": f"data_prep.to_megatron --input {HELD_OUT} --tokenizer {{text}}", "output": "after"},
        "beside": {"command": QUICK},
    }
    pipeline = pipeline_of(tmp_path / "work", stages)
    assert run_here(pipeline) == 1
    told = capsys.readouterr().err
    assert "after: not started, it needs text\n" in told and "beside: done" in told
    last = told.splitlines()[-1]
    assert last.startswith("error: stage text failed with exit code 2: ") and "none.txt does not exist" in last
    assert last.endswith(f"{pipeline.root}/logs/text.log; fix the cause and run the pipeline again: complete stages are skipped")
    assert [task.name for task in find_work(pipeline).tasks] == ["text", "after"]


def test_one_run_at_a_time_works_in_a_directory(tmp_path: Path) -> None:
    with only_run(tmp_path), pytest.raises(InUseError, match=rf"{tmp_path} is in use by process {os.getpid()} on .*; wait for it"):
        only_run(tmp_path).__enter__()
    with only_run(tmp_path):
        pass


def test_a_run_waits_for_what_a_killed_one_had_started(tmp_path: Path) -> None:
    code = """
import os, subprocess, sys
from pathlib import Path
from recipes.pipelines.local import only_run
with only_run(Path(sys.argv[1])) as lock:
    subprocess.Popen(["sleep", "2"], pass_fds=[lock])
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, timeout=60, check=False).returncode == 9
    began = time.monotonic()
    with only_run(tmp_path):
        assert time.monotonic() - began > 0.5


def small(work_dir: Path) -> dict[str, Any]:
    return {
        "name": "small",
        "work_dir": str(work_dir),
        "axes": {"size": [400, 420]},
        "resources": {"cpu": {"cpus": 1}},
        "stages": {
            "tokenizer": {"command": f"data_prep.train_tokenizer --input {HELD_OUT} --vocab-size {{size}}", "output": "tokenizer_{size}"},
            "data": {"command": f"data_prep.to_megatron --input {HELD_OUT} --tokenizer {{tokenizer}} --workers 1", "output": "data_{size}"},
        },
    }


def digests(work_dir: Path) -> dict[str, str]:
    manifests = {path.name: read_manifest(path) for path in work_dir.glob("[td]*_*")}
    return {name: manifest.digest for name, manifest in manifests.items() if manifest is not None}


@pytest.mark.slow
def test_a_run_that_is_ended_or_killed_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    def command(name: str) -> list[str]:
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(small(tmp_path / name)))
        return [sys.executable, "-m", "recipes.run", str(file)]

    subprocess.run(command("whole"), cwd=ROOT, check=True, timeout=300)
    work = tmp_path / "killed"
    for number, seen in (
        (signal.SIGKILL, LOCK_NAME),
        (signal.SIGTERM, "logs/tokenizer.size=400.log"),
        (signal.SIGKILL, "stages/tokenizer.size=400.json"),
        (signal.SIGINT, "tokenizer_400"),
        (signal.SIGKILL, "logs/data.size=400.log"),
        (signal.SIGKILL, "data_400"),
    ):
        with subprocess.Popen(command("killed"), cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            end = time.monotonic() + 120
            while not (work / seen).exists() and process.poll() is None:
                assert time.monotonic() < end
                time.sleep(0.01)
            process.send_signal(number)
            _, told = process.communicate(timeout=120)
        # One that was at its end before the signal came is no less a run.
        assert process.returncode in (-number, 128 + number, 0), told
        if process.returncode == 128 + number:
            # What it waits for may be there already, so that the signal comes before the run begins.
            assert told.endswith(("stopped; run the same command to resume from here\n", "error: interrupted\n"))
    subprocess.run(command("killed"), cwd=ROOT, check=True, timeout=300)
    assert digests(work) == digests(tmp_path / "whole") and len(digests(work)) == 4


@pytest.mark.parametrize(
    ("stage", "resources", "machine", "sentence"),
    [
        (
            {},
            {"memory_gib": 64},
            {},
            "stage a: it asks for 64 GiB of memory, and this machine has 8; lower resources.cpu.memory_gib, or run",
        ),
        (
            {},
            {"gpus": 2},
            {"gpus": ("0",)},
            "stage a: it asks for 2 GPUs, and this machine has 1; lower resources.cpu.gpus, or run it elsewhere",
        ),
        (
            {},
            {"gpus": 1},
            {},
            "stage a: it asks for 1 GPU, and this machine has none; set machine.device of the project to cpu, or resources.cpu.gpus to 0, or run",
        ),
        (
            {"overrides": ""},
            {},
            {"gpus": ("0",)},
            r"stage a: it asks for 2 GPUs, and .*; lower parallel.devices_per_node \(it is 2\), or run",
        ),
        (
            {"overrides": "parallel.num_nodes=2"},
            {},
            {},
            "stage a: it asks for 2 nodes in its recipe; set parallel.num_nodes=1, or run it elsewhere",
        ),
        ({"overrides": ""}, {}, {}, None),
    ],
)
def test_what_a_machine_cannot_run(tmp_path: Path, stage: Any, resources: Any, machine: Any, sentence: str | None) -> None:
    a = {"command": QUICK} if not stage else {"train": {"recipe": "demo_adapt", **stage}, "output": "a"}
    pipeline = pipeline_of(tmp_path, {"a": a}, **resources)
    here = replace(Machine(CORES, (), 8, 8), **machine)
    problems = machine_problems(pipeline, tasks_of(pipeline, "a"), here)
    assert len(problems) == bool(sentence) and all(re.match(sentence or "", problem) for problem in problems), problems


def test_stages_that_a_machine_cannot_run_for_one_reason_are_named_together(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path, {name: {"command": QUICK} for name in "abc"}, gpus=1)
    [problem] = machine_problems(pipeline, [task for name in "abc" for task in tasks_of(pipeline, name)], Machine(CORES, (), 8, 8))
    assert problem.startswith("stages a, b, c: each asks for 1 GPU, and this machine has none; set machine.device")


def test_what_tasks_will_take_follows_the_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"x" * 2_000_000)
    stages = {
        "tokenizer": {"command": f"data_prep.train_tokenizer --input {text} --vocab-size 300", "output": "tokenizer"},
        "clean": {"command": f"data_prep.clean --input {text}", "output": "clean"},
        "data": {"command": "data_prep.to_megatron --input {clean} --tokenizer {tokenizer}", "output": "data"},
        "other": {"command": QUICK},
        "model": {"command": f"conversion.new_model --tokenizer {text}", "output": "model"},
        "nemo": {"command": "conversion.hf_to_nemo --input {model}", "output": "nemo"},
    }
    pipeline, machine = pipeline_of(tmp_path / "work", stages), Machine(CORES, (), 8, 8)
    found = {task.name: forecast for task, forecast in forecasts(find_work(pipeline), machine).items()}
    assert found["data"].disk == 2_000_000 * forecast.RATES["data_prep.to_megatron"].packs[0], (
        "the text of its input that is still to be made"
    )
    assert found["other"].seconds is None and found["nemo"].disk is None, "how large a model is that is still to be made, nobody knows"
    table = render_forecast(dict(zip(find_work(pipeline).tasks, found.values())))
    assert "| other" in table and "unknown" in table and "at least" in table.splitlines()[-1]
    expected = forecasts(find_work(pipeline), machine)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10_000))
    assert forecast_problems(pipeline, expected, machine)[0].endswith(
        f"and {tmp_path} has 0 MB free; free some, or choose another work_dir"
    )
    small_machine = replace(machine, memory_gib=0.1)
    assert forecast_problems(pipeline, expected, small_machine)[0].startswith("stage tokenizer: it takes about 0 GiB of memory, and this")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--submit"], "--submit, --account and --set are for a cluster; name one with --on, or leave them out"),
        (["--only", "a", "--until", "a"], "--only is for one stage alone; leave --until and --from out"),
        (["--until", "b"], "there is no stage b; there are a"),
    ],
)
def test_what_the_command_refuses(tmp_path: Path, words: list[str], sentence: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump({"name": "p", "work_dir": str(tmp_path / "work"), "stages": {"a": {"command": QUICK}}}))
    with pytest.raises(ValueError, match=re.escape(sentence)):
        run.main([str(file), *words])
    assert not (tmp_path / "work").exists()


def test_show_prints_the_stages_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump(small(tmp_path / "work")))
    assert run.main([str(file), "--show", "--until", "tokenizer"]) == 0
    told = capsys.readouterr().out
    assert f"\n  $ python -m data_prep.train_tokenizer --input {HELD_OUT} --vocab-size 420 --output {tmp_path}/work/tokenizer_420\n" in told
    assert "data <- tokenizer\n  # python -m data_prep.to_megatron" in told and not (tmp_path / "work").exists()
    assert run.main([str(file), "--show", "--on", "local"]) == 0
    told = capsys.readouterr().out
    assert "#SBATCH --array=0,1" in told and told.endswith("\nNothing was submitted; add --submit to submit.\n")
