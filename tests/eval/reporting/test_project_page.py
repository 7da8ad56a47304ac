"""The page of a project, of outputs that are there and of some that are not."""

from __future__ import annotations

import json
from pathlib import Path

from common.artifacts import write_manifest
from eval.reporting.project_page import project_page, write_project_page
from recipes.pipelines.file import Pipeline, Task, pipeline_from_mapping, tasks_of
from recipes.pipelines.live_page import PAGE_NAME
from recipes.pipelines.state import Record, forget, save_space, write_record
from tests.eval.made_results import make_results


def _pipeline(root: Path) -> Pipeline:
    stages = {
        "clean": {"command": "data_prep.clean --input a=text.txt", "output": "text"},
        "train": {"train": {"recipe": "demo_adapt"}, "output": "run"},
        "export": {"command": "conversion.nemo_to_hf --input {train}/checkpoints/step_0000100", "output": "hf"},
        "evaluate": {"command": "eval.harness --model {export} --text sl=held_out.txt", "output": "results"},
    }
    return pipeline_from_mapping({"name": "Slovene & more", "work_dir": str(root), "stages": stages})


def _task(pipeline: Pipeline, stage: str) -> Task:
    return tasks_of(pipeline, stage)[0]


def test_what_is_there_is_shown_and_nothing_else(tmp_path: Path) -> None:
    pipeline = _pipeline(tmp_path / "work")
    empty = project_page(pipeline, {_task(pipeline, "clean"): "running"})
    assert "1 running, 3 not started." in empty and "Slovene &amp; more" in empty and 'http-equiv="refresh"' in empty
    assert "<h2>" not in empty

    counts = {"a": {"num_read": 1200, "num_kept": 1000, "removed": {"too short": {"documents": 150}, "language": {"documents": 50}}}}
    (tmp_path / "work/text").mkdir(parents=True)
    write_manifest(tmp_path / "work/text", stage="data_prep.clean", facts={"counts": counts}, arguments={}, inputs={})
    (tmp_path / "work/run").mkdir()
    steps = [{"step": 0, "validation_bits_per_byte_sl": 3.0}, {"step": 100, "loss": 2.5, "seconds_per_step": 36.0}]
    (tmp_path / "work/run/metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    recipe = {"name": "a", "model": {}, "data": {"sequence_length": 8}, "run": {"checkpoint_every_steps": 100}}
    recipe |= {"schedule": {"global_batch_size": 2, "micro_batch_size": 1, "learning_rate": 1e-3, "max_steps": 100}}
    (tmp_path / "work/run/recipe.json").write_text(json.dumps(recipe))
    (tmp_path / "work/hf").mkdir()
    write_manifest(tmp_path / "work/hf", stage="conversion.nemo_to_hf", facts={"method": "focus", "step": 100}, arguments={}, inputs={})
    make_results(tmp_path / "work/results", steps=(0, 100), methods=("focus",), tasks=("sl_boolq_gen",), items=30)
    write_manifest(tmp_path / "work/results", stage="eval.harness", facts={}, arguments={}, inputs={})
    for stage in pipeline.stages:
        write_record(pipeline, _task(pipeline, stage), Record((), True, "", "log", 30.0))
    page = write_project_page(pipeline, {}).read_text(encoding="utf-8")
    assert (tmp_path / "work" / PAGE_NAME).is_file() and "4 done." in page and "refresh" not in page
    assert (removed := "<td>1,200</td><td>1,000</td><td>too short (150), language (50)</td>") in page
    save_space(pipeline, _task(pipeline, "clean"))
    assert not (tmp_path / "work/text").exists() and removed in project_page(pipeline, {}), "what went is told when the text has gone too"
    forget(pipeline, _task(pipeline, "clean"))
    assert removed not in project_page(pipeline, {})
    assert "validation bits per byte sl" in page and "training loss" in page
    assert '<th scope="row">focus-100</th><td>100</td>' in page and '<th scope="row">source (not trained here)</th><td>0</td>' in page
    assert "sl_boolq_gen" in page and "(LAPT)" in page
    assert "All finished stages took 2 min in total." in page and "<td>100</td><td>60 min</td>" in page
    assert f"vllm serve {tmp_path}/work/hf" in page


def test_a_failure_is_told_with_its_log(tmp_path: Path) -> None:
    pipeline = _pipeline(tmp_path)
    write_record(pipeline, _task(pipeline, "clean"), Record((), False, "failed with exit code 2: no text", "logs/clean.log", 1.0))
    assert "failed with exit code 2: no text, see logs/clean.log" in project_page(pipeline, {})
