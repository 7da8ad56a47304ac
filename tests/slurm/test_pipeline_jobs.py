"""A pipeline as jobs: which there are, what each waits for, what a failed one says; without Slurm."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from recipes.pipelines.file import Pipeline, Resources, command_of, pipeline_from_mapping, tasks_of
from recipes.pipelines.load import load_pipeline
from recipes.pipelines.work import find_work
from recipes.rules.base_models import BASE_MODELS
from slurm.jobs.job import ROOT
from slurm.jobs.render import render_job
from slurm.sites.cluster import load_cluster
from slurm.stage import run_task
from slurm.stages.pipeline_jobs import dependencies, stage_jobs
from slurm.stages.pipeline_submission import plan_pipeline
from tests.recipes.pipelines.small_pipeline import content

PIPELINES = sorted((ROOT / "recipes" / "pipelines" / "bundled").glob("*.yaml"))


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return pipeline_from_mapping(content(tmp_path))


def test_jobs_of_the_rest(pipeline: Pipeline, tmp_path: Path) -> None:
    cluster = load_cluster("local")
    everything = [task for stage in pipeline.stages for task in tasks_of(pipeline, stage)]
    rest = [task for task in everything if task.name not in ("tokenizer", "transfer.method=mean", "train.method=mean")]
    jobs = stage_jobs(pipeline, cluster, rest, frozen_path=tmp_path / "p.json")
    assert [(job.stage, job.job.array, job.waits_for) for job in jobs] == [
        ("transfer", "1", ()),
        ("train", "1", ("transfer",)),
        ("export", "0,1,2,3", ("train",)),
        ("report", None, ("export",)),
    ]
    ids = {"transfer": ["7"], "train": ["8", "9"], "export": ["10"]}
    assert [dependencies(job, jobs, ids) for job in jobs] == [(), ("aftercorr:7",), ("afterany:8:9",), ("afterok:10",)]
    everywhere = stage_jobs(
        replace(pipeline, resources={"cpu": Resources(at_once=1)}), cluster, everything, frozen_path=tmp_path / "p.json"
    )
    assert everywhere[2].job.array == "0,1%1" and dependencies(everywhere[2], everywhere, ids) == ("aftercorr:7",)
    assert (jobs[1].job.tasks_per_node, jobs[1].job.kind, jobs[2].job.kind) == (2, "gpu", "cpu")
    assert all(render_job(job.job, cluster) for job in jobs)
    own = tmp_path / "elsewhere" / "own.yaml"
    own.parent.mkdir()
    own.write_text((ROOT / "recipes" / "conf" / "recipe" / "demo_adapt.yaml").read_text())
    train = replace(pipeline.stages["train"], train=replace(pipeline.stages["train"].train, recipe=str(own)))
    with_own = replace(pipeline, stages={**pipeline.stages, "train": train})
    assert own in stage_jobs(with_own, cluster, tasks_of(pipeline, "train"), frozen_path=tmp_path / "p.json")[0].job.paths, "for containers"


def test_members_of_an_array_have_one_layout(tmp_path: Path) -> None:
    changed = content(tmp_path)
    changed["options"]["method"]["focus"] = "parallel.num_nodes=2"
    changed["stages"]["train"]["train"]["overrides"] += " {method_options}"
    pipeline = pipeline_from_mapping(changed)
    with pytest.raises(
        ValueError, match=r"train.method=focus wants 2 nodes x 2 tasks and train.method=mean 1 x 2, but the members of a job"
    ):
        stage_jobs(pipeline, load_cluster("local"), tasks_of(pipeline, "train"), frozen_path=Path("/p.json"))


def test_a_failed_stage_names_itself_and_what_to_do(pipeline: Pipeline, capfd: pytest.CaptureFixture[str]) -> None:
    (task,) = tasks_of(pipeline, "tokenizer")
    assert run_task(pipeline, task, [sys.executable, *command_of(pipeline, task)[1:]], log="logs/tokenizer-7.log") == 1
    written = capfd.readouterr().err
    assert "pipeline: stage tokenizer failed with exit code 2: " in written and "a b.txt" in written
    assert "its output is in logs/tokenizer-7.log; fix the cause and run the pipeline again: complete stages are skipped" in written
    after = tasks_of(pipeline, "transfer")[0]
    assert run_task(pipeline, after, ["false"], log="logs/transfer-8_0.log") == 1
    assert "stage transfer.method=mean cannot start, because stage tokenizer is not complete (failed with exit" in capfd.readouterr().err


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_every_bundled_pipeline_is_sound(path: Path) -> None:
    pipeline = load_pipeline(path)
    everything = [task for stage in pipeline.stages for task in tasks_of(pipeline, stage)]
    cluster = load_cluster("local")
    for job in stage_jobs(pipeline, cluster, everything, frozen_path=Path("/p.json")):
        render_job(job.job, cluster)


@pytest.mark.long
def test_planning_a_whole_pipeline_is_quick_and_light(tmp_path: Path) -> None:
    words = [str(ROOT / "recipes" / "projects" / "demo_tiny.yaml"), f"machine.work_dir={tmp_path}/work", "--on", "local"]
    code = (
        "import sys, time; start = time.monotonic()\n"
        "from recipes.run import main\n"
        f"main({words})\n"
        "heavy = {'torch', 'transformers', 'nemo', 'megatron', 'lightning'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert time.process_time() < 5, time.process_time()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "chain of 4, gpu" in done.stdout and done.stdout.endswith("Nothing was submitted; add --submit to submit.\n")


SPREAD = "precision=bf16 parallel.devices_per_node=4 parallel.num_nodes=16 schedule.global_batch_size=256 parallel.gpu=b200"


@pytest.mark.parametrize(
    ("overrides", "memory_gib", "sentence"),
    [
        (
            "",
            None,
            r"stage train.method=mean: the layout \(TP 2 .* needs 79.4 GiB on each a100-64gb, .*; no layout on 2 of them fits; parallel",
        ),
        (
            SPREAD,
            10,
            r"stage train.method=mean: saving and loading checkpoints take at most .* but a job on leonardo with so many GPUs has 10 GiB",
        ),
        (SPREAD, None, None),
    ],
)
def test_memory_is_refused_by_the_shape_of_the_model_that_a_training_starts_from(
    tmp_path: Path, overrides: str, memory_gib: int | None, sentence: str | None
) -> None:
    """On the GPUs of the cluster, whatever GPU the recipe was written for; nothing is there but the source's config.json."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "config.json").write_text(json.dumps(BASE_MODELS["llama-3.1-8b"]))
    changed = content(tmp_path / "work")
    changed["stages"] = {name: changed["stages"][name] for name in ("tokenizer", "transfer", "train")}
    changed["stages"]["transfer"]["command"] += f" --source {tmp_path}/source"
    changed["stages"]["train"]["train"]["overrides"] += f" {overrides}"
    changed["resources"] = {"cpu": {"memory_gib": memory_gib}}
    work, cluster = (
        find_work(pipeline_from_mapping(changed)),
        load_cluster("leonardo", ("account=x", "runtime.image=/x.sif", f"scratch={tmp_path}")),
    )
    if sentence is None:
        assert len(plan_pipeline(work, cluster)) == 3
        return
    with pytest.raises(ValueError, match=sentence):
        plan_pipeline(work, cluster)
