"""The table of a sweep."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from recipes.pipelines.file import Pipeline, output_of, pipeline_from_mapping, tasks_of
from slurm import sweep
from slurm.jobs.job import ROOT
from slurm.sweep import require_summary, summarise


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    content = yaml.safe_load((ROOT / "recipes" / "pipelines" / "bundled" / "sweep.yaml").read_text()) | {"work_dir": str(tmp_path / "work")}
    return pipeline_from_mapping(content)


def add_result(pipeline: Pipeline, method: str, seed: int, value: float, *, model: str = "m") -> None:
    (task,) = (task for task in tasks_of(pipeline, "evaluate") if dict(task.point) == {"method": method, "seed": str(seed)})
    output = output_of(pipeline, task)
    assert output is not None
    (output / model).mkdir(parents=True)
    (output / model / "result.json").write_text(json.dumps({"texts": {"sl": {"bits_per_byte": value}, "en": {"bits_per_byte": 9.0}}}))


def test_table_of_methods_over_seeds(pipeline: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method, values in {"random": (3.0, 3.5, 4.0), "focus": (2.0, 2.5)}.items():
        for seed, value in enumerate(values, 1):
            add_result(pipeline, method, seed, value)
    (tmp_path / "sweep.yaml").write_text(
        (ROOT / "recipes" / "pipelines" / "bundled" / "sweep.yaml")
        .read_text()
        .replace("work_dir: sweep_output", f"work_dir: {tmp_path}/work")
    )
    assert sweep.main([str(tmp_path / "sweep.yaml")]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "Bits per byte on sl, mean and standard deviation over seed"
    assert [cell.strip() for cell in told[2].split("|")[1:-1]] == ["method", "mean", "deviation", "seed 1", "seed 2", "seed 3"]
    rows = {cells[1].strip(): [cell.strip() for cell in cells[2:-1]] for cells in (line.split("|") for line in told[4:7])}
    assert rows == {
        "random": ["3.5000", "0.5000", "3.0000", "3.5000", "4.0000"],
        "mean": ["-", "-", "-", "-", "-"],
        "focus": ["2.2500", "0.3536", "2.0000", "2.5000", "-"],
    }
    assert told[-1] == f"4 results are missing; see `python -m slurm.status {tmp_path}/work`"


def test_what_a_summary_refuses(pipeline: Pipeline) -> None:
    summary = require_summary(pipeline)
    for change, message in (
        (None, "the pipeline sweep has no summary; give its stage, text, rows and over"),
        (replace(summary, stage="evil"), "the summary names the stage evil; there are transfer, convert"),
        (replace(summary, over="method"), "expected each axis of stage evaluate once: method, seed"),
        (replace(summary, rows=("method", "seed")), "expected each axis of stage evaluate once: method, seed"),
    ):
        with pytest.raises(ValueError, match=message):
            require_summary(replace(pipeline, summary=change))
    add_result(pipeline, "mean", 1, 1.0)
    with pytest.raises(ValueError, match="has no text hr; it has sl, en"):
        summarise(pipeline, replace(summary, text="hr"))
    add_result(pipeline, "mean", 1, 1.0, model="second")
    with pytest.raises(ValueError, match="has the results of 2 models; a summary wants a stage that evaluates one"):
        summarise(pipeline, summary)
