"""Pipelines as files: references, axes, refusals, what has to run; without Slurm."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from common.artifacts import read_manifest, write_manifest
from common.command import arguments_of
from data_prep import train_tokenizer
from recipes.numbers import arithmetic
from recipes.pipelines.checks import task_problems
from recipes.pipelines.file import (
    Pipeline,
    Resources,
    Task,
    command_of,
    load_pipeline,
    needs_of,
    output_of,
    pipeline_from_mapping,
    tasks_of,
    training_overrides,
)
from recipes.pipelines.state import Record, is_complete, tasks_to_run, write_record
from recipes.rules.compose import compose_recipe
from recipes.runs.run_dir import record_recipe
from slurm.jobs.job import ROOT
from slurm.jobs.render import render_job
from slurm.sites.cluster import load_cluster
from slurm.stage import run_task
from slurm.stages.pipeline_jobs import dependencies, stage_jobs
from tests.slurm import light_training

PIPELINES = sorted((ROOT / "recipes" / "pipelines" / "bundled").glob("*.yaml"))


def content(work_dir: Path) -> dict[str, Any]:
    return {
        "name": "small",
        "work_dir": str(work_dir),
        "axes": {"method": ["mean", "focus"], "step": [5, 10]},
        "options": {"method": {"focus": "--text 'c d.txt'"}},
        "stages": {
            "tokenizer": {"command": "data_prep.train_tokenizer --input 'a b.txt' --vocab-size 300", "output": "tokenizer"},
            "transfer": {
                "command": "conversion.transfer --tokenizer {tokenizer} --method {method} {method_options}",
                "output": "{method}/hf",
            },
            "train": {
                "train": {"recipe": "demo_adapt", "overrides": "model.checkpoint={transfer} data.train=[x]"},
                "output": "{method}/run",
            },
            "export": {"command": "conversion.nemo_to_hf --input {train}/checkpoints/step_{step:07}", "output": "{method}/hf_{step}"},
            "report": {"command": "eval.harness --model source={tokenizer} {export}", "output": "report"},
        },
    }


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return pipeline_from_mapping(content(tmp_path))


def test_a_stage_is_repeated_over_the_axes_of_its_output(pipeline: Pipeline) -> None:
    names = {stage: [task.name for task in tasks_of(pipeline, stage)] for stage in pipeline.stages}
    assert names["tokenizer"] == ["tokenizer"] and names["train"] == ["train.method=mean", "train.method=focus"]
    assert names["export"][1] == "export.method=mean.step=10" and len(names["export"]) == 4


def test_references_become_paths_values_and_lists(pipeline: Pipeline, tmp_path: Path) -> None:
    export = tasks_of(pipeline, "export")[2]
    assert command_of(pipeline, export) == [
        *("python", "-m", "conversion.nemo_to_hf", "--input", f"{tmp_path}/focus/run/checkpoints/step_0000005"),
        *("--output", f"{tmp_path}/focus/hf_5"),
    ]
    report = command_of(pipeline, tasks_of(pipeline, "report")[0])
    assert report[4:9] == [f"source={tmp_path}/tokenizer", *(f"{tmp_path}/{m}/hf_{s}" for m in ("mean", "focus") for s in (5, 10))]
    assert command_of(pipeline, tasks_of(pipeline, "tokenizer")[0])[4] == "a b.txt"
    assert command_of(pipeline, tasks_of(pipeline, "train")[0])[5:7] == [f"model.checkpoint={tmp_path}/mean/hf", "data.train=[x]"]


def test_options_of_some_values_are_words_for_these_alone(pipeline: Pipeline, tmp_path: Path) -> None:
    mean, focus = (command_of(pipeline, task) for task in tasks_of(pipeline, "transfer"))
    assert mean[5:] == ["--method", "mean", "--output", f"{tmp_path}/mean/hf"]
    assert focus[5:] == ["--method", "focus", "--text", "c d.txt", "--output", f"{tmp_path}/focus/hf"]


def test_references_within_options_are_filled_and_waited_for(tmp_path: Path) -> None:
    changed = content(tmp_path)
    changed["options"]["method"]["focus"] = "--source {tokenizer} --weight {step:03}"
    changed["stages"]["transfer"] |= {"command": "conversion.transfer {method_options}", "output": "{method}/{step}/hf"}
    pipeline = pipeline_from_mapping(changed)
    mean, *_, focus = tasks_of(pipeline, "transfer")
    assert command_of(pipeline, focus)[3:7] == ["--source", f"{tmp_path}/tokenizer", "--weight", "010"]
    assert [[need.name for need in needs_of(pipeline, task)] for task in (mean, focus)] == [[], ["tokenizer"]]


def test_a_check_is_repeated_over_the_axes_that_it_names_and_those_of_its_stages(tmp_path: Path) -> None:
    changed = content(tmp_path)
    changed["stages"]["verify"] = {"command": "conversion.verify {export} {train}/checkpoints/step_{step:07}"}
    changed["stages"]["all"] = {"command": "conversion.verify {export}"}
    pipeline = pipeline_from_mapping(changed)
    tasks = tasks_of(pipeline, "verify")
    assert len(tasks) == 4 and len(tasks_of(pipeline, "all")) == 1
    last = ["conversion.verify", f"{tmp_path}/focus/hf_10", f"{tmp_path}/focus/run/checkpoints/step_0000010"]
    assert command_of(pipeline, tasks[-1])[2:] == last


def test_needs_follow_from_references(pipeline: Pipeline) -> None:
    assert [need.name for need in needs_of(pipeline, tasks_of(pipeline, "export")[3])] == ["train.method=focus"]
    assert len(needs_of(pipeline, tasks_of(pipeline, "report")[0])) == 5


def test_a_frozen_copy_is_the_same_pipeline(pipeline: Pipeline) -> None:
    assert pipeline_from_mapping(json.loads(json.dumps(asdict(pipeline)))) == pipeline


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: c["stages"]["report"].update(command="eval.harness --model {eksport}"),
            r"stage report names \{eksport\}; there are token",
        ),
        (
            lambda c: c["stages"]["transfer"].update(output="hf"),
            r"stage transfer is repeated over method, but all would write to one place",
        ),
        (lambda c: c["stages"]["report"].pop("command"), "stage report has neither command nor train; expected one of them"),
        (lambda c: c["stages"]["report"].update(command="rm -rf /"), "the command of stage report does not begin with a module of this"),
        (lambda c: c["stages"]["report"].update(command="os.path"), "the command of stage report does not begin with a module of this"),
        (lambda c: c["stages"]["report"].update(command="eval.harness 'x"), "cannot be split into words: No closing quotation"),
        (lambda c: c["stages"]["report"].update(command="eval.harness --output x"), "has --output; give it as `output`"),
        (lambda c: c["stages"]["report"].update(resources="big"), "stage report asks for the resources big; there are cpu"),
        (lambda c: c["stages"]["report"].update(output="{tokenizer}/x"), "the output of stage report names stage tokenizer"),
        (
            lambda c: c["stages"]["tokenizer"].update(command="data_prep.train_tokenizer --input {report}"),
            "wait for each other in a circle",
        ),
        (lambda c: c["stages"]["train"].pop("output"), "stage train trains but has no output; give the directory of the run"),
        (lambda c: c["options"]["method"].update(fokus="x"), "options.method.fokus is for no value of an axis; method has mean, focus"),
        (lambda c: c["stages"]["report"].update(command="eval.harness {step_options}"), r"stage report names \{step_options\}; there are"),
        (lambda c: c["stages"]["transfer"].update(output="hf", command="conversion.transfer {method_options}"), "all would write to one"),
        (
            lambda c: c["stages"]["report"].update(output="tokenizer"),
            "tokenizer and report have one output, .*/tokenizer; give each its own",
        ),
        (lambda c: c["stages"]["report"].update(output="./tokenizer/x/../"), "tokenizer and report have one output"),
        (lambda c: c["stages"]["report"].update(output="tokenizer/report"), "lies within that of tokenizer; put it beside"),
        (lambda c: c["stages"]["report"].update(output="../report"), "the output of report is .*; expected a path below work_dir"),
        (lambda c: c["stages"]["report"].update(output="/report"), "the output of report is /report; expected a path below work_dir"),
        (lambda c: c.update(work_dir=""), "work_dir is '', the checkout or what it lies in; give a directory of its own"),
        (lambda c: c["axes"].update(report=[1]), "report is both a stage and an axis"),
        (
            lambda c: c["stages"]["report"].update(comand="x"),
            "unknown key stages.report.comand; the nearest known key is stages.report.command",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    changed = content(tmp_path)
    change(changed)
    with pytest.raises(ValueError, match=message):
        pipeline_from_mapping(changed)


@pytest.mark.parametrize(
    ("change", "sentences"),
    [
        (
            lambda stages: stages["tokenizer"].update(command="data_prep.train_tokenizer --input x --vocab-sze 300"),
            ["stage tokenizer: python -m data_prep.train_tokenizer: error: the following arguments are required: --vocab-size"],
        ),
        (
            lambda stages: stages["verify"].update(output="{method}/{step}/verified"),
            ["stage verify.method=mean.step=5: python -m conversion.verify: error: unrecognized arguments: --output"],
        ),
        (
            lambda stages: stages["train"]["train"].update(
                overrides="schedule.global_batch_size=30 schedule.micro_batch_size=8 schedule.min_learning_rate=1"
            ),
            ["stage train.method=mean: schedule.global_batch_size (30) must be a multiple of", "schedule.min_learning_rate (1"],
        ),
        (
            lambda stages: stages["train"]["train"].update(overrides="schedule.max_steps=100 run.checkpoint_every_steps=10"),
            ["stage export.method=mean.step=5: it reads the checkpoint of step 5, but the training saves every 10 steps and the last, 100"],
        ),
        (
            lambda stages: stages["train"]["train"].update(
                overrides="schedule.max_steps=13 run.checkpoint_every_steps=5 run.keep_checkpoints=2"
            ),
            [
                "stage export.method=mean.step=5: it reads the checkpoint of step 5, of which the training, 13 steps long, keeps the newest 2"
            ],
        ),
        (
            lambda stages: stages["train"]["train"].update(
                overrides="schedule.max_steps=13 run.checkpoint_every_steps=5 run.keep_checkpoints=3"
            ),
            [],
        ),
    ],
)
def test_what_commands_and_recipes_would_refuse_is_refused_before_anything_is_sent(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], sentences: list[str]
) -> None:
    changed = content(tmp_path)
    stages = changed["stages"]
    stages["transfer"]["command"] += " --source x"
    stages["train"]["train"]["overrides"] = "schedule.max_steps=100 run.checkpoint_every_steps=5"
    stages["verify"] = {"command": "conversion.verify {export} {train}/checkpoints/step_{step:07}"}
    stages["report"]["command"] += " --text x=y"
    change(stages)
    pipeline = pipeline_from_mapping(changed)
    problems = task_problems(pipeline, [task for stage in pipeline.stages for task in tasks_of(pipeline, stage)])
    assert [any(problem.startswith(sentence) or sentence in problem for problem in problems) for sentence in sentences] == [True] * len(
        sentences
    )
    assert bool(problems) == bool(sentences), problems


def complete(pipeline: Pipeline, *names: str) -> list[str]:
    everything = [task for stage in pipeline.stages for task in tasks_of(pipeline, stage)]
    return [task.name for task in tasks_to_run(pipeline, [task for task in everything if task.name in names])]


def test_what_is_complete_does_not_run_again(pipeline: Pipeline) -> None:
    assert len(complete(pipeline)) == 10
    done = ["tokenizer", "transfer.method=mean", "train.method=mean"]
    assert complete(pipeline, *done)[:3] == ["transfer.method=focus", "train.method=focus", "export.method=mean.step=5"]
    assert complete(pipeline, "report") == [], "what was removed to save space is not made again for nobody"
    assert complete(pipeline, "export.method=mean.step=5") == [name for name in complete(pipeline) if name != "export.method=mean.step=5"]


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


def test_members_of_an_array_have_one_layout(tmp_path: Path) -> None:
    changed = content(tmp_path)
    changed["options"]["method"]["focus"] = "parallel.num_nodes=2"
    changed["stages"]["train"]["train"]["overrides"] += " {method_options}"
    pipeline = pipeline_from_mapping(changed)
    with pytest.raises(
        ValueError, match=r"train.method=focus wants 2 nodes x 2 tasks and train.method=mean 1 x 2, but the members of a job"
    ):
        stage_jobs(pipeline, load_cluster("local"), tasks_of(pipeline, "train"), frozen_path=Path("/p.json"))


def write_output(pipeline: Pipeline, task: Task, text: str = "x", **made_with: object) -> Path:
    output = output_of(pipeline, task)
    assert output is not None
    output.mkdir(parents=True)
    (output / "file").write_text(text)
    arguments, _ = arguments_of(train_tokenizer.main, command_of(pipeline, task)[3:])
    write_manifest(output, stage="data_prep.train_tokenizer", facts={}, arguments=arguments | made_with)
    return output


def test_complete_by_manifest_and_not_when_damaged(pipeline: Pipeline) -> None:
    (task,) = tasks_of(pipeline, "tokenizer")
    assert not is_complete(pipeline, task)
    output = write_output(pipeline, task)
    assert is_complete(pipeline, task)
    (output / "file").write_text("cut off here")
    with pytest.raises(ValueError, match=r"tokenizer/file has 12 bytes, but its manifest says 1"):
        is_complete(pipeline, task)


def test_an_output_of_another_command_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    (task,) = tasks_of(pipeline, "tokenizer")
    write_output(pipeline, task)
    write_record(pipeline, task, Record(tuple(command_of(pipeline, task)), True, "", "log"))
    assert is_complete(pipeline, task)
    changed = replace(pipeline.stages["tokenizer"], command="data_prep.train_tokenizer --input 'a b.txt' --vocab-size 400")
    other = replace(pipeline, stages={**pipeline.stages, "tokenizer": changed})
    with pytest.raises(
        ValueError, match=rf"was made by another command, with '300' where it now has '400'; remove {tmp_path}/tokenizer to"
    ):
        is_complete(other, task)


def test_an_output_that_this_pipeline_did_not_make_is_taken_only_for_what_it_is(pipeline: Pipeline, tmp_path: Path) -> None:
    """As when somebody ran the commands by hand, or another program, in the same folder."""
    (task,) = tasks_of(pipeline, "tokenizer")
    output = write_output(pipeline, task, workers=7, vocab_size=[300])
    assert is_complete(pipeline, task), "made with the same arguments, by other processes"
    shutil.rmtree(output)
    write_output(pipeline, task, vocab_size=[400])
    sentence = (
        f"stage tokenizer: {output} was not made by what the stage would run: it was made with vocab_size=[400],"
        " and the stage has [300]; remove it, or choose another work_dir"
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        is_complete(pipeline, task)
    write_manifest(output, stage="data_prep.to_megatron", facts={})
    with pytest.raises(ValueError, match=r"it was written by data_prep.to_megatron, not by data_prep.train_tokenizer; remove it"):
        is_complete(pipeline, task)


def test_an_output_of_other_inputs_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    reading = replace(pipeline.stages["tokenizer"], command="data_prep.train_tokenizer --input {first} --vocab-size 300", output="second")
    both = replace(pipeline, stages={"first": pipeline.stages["tokenizer"], "second": reading})
    first, second = tasks_of(both, "first")[0], tasks_of(both, "second")[0]
    read = write_output(both, first)
    output = write_output(both, second)
    with pytest.raises(ValueError, match=r"stage second: .*second was not made .*: it was not made from the output of stage first"):
        is_complete(both, second)
    arguments, _ = arguments_of(train_tokenizer.main, command_of(both, second)[3:])
    manifest = read_manifest(read)
    assert manifest is not None
    write_manifest(output, stage="data_prep.train_tokenizer", facts={}, arguments=arguments, inputs={"text": manifest.digest})
    assert is_complete(both, second)


def test_a_finished_run_of_another_recipe_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    task = tasks_of(pipeline, "train")[0]
    run_dir = output_of(pipeline, task)
    assert run_dir is not None
    recipe = compose_recipe("demo_adapt", training_overrides(pipeline, task))
    record_recipe(run_dir, recipe)
    light_training.save(run_dir, arithmetic.total_steps(recipe), "state")
    assert is_complete(pipeline, task)
    (run_dir / "recipe.json").unlink()
    record_recipe(
        run_dir, replace(recipe, schedule=replace(recipe.schedule, max_steps=arithmetic.total_steps(recipe) - 1, train_tokens=None))
    )
    assert not is_complete(pipeline, task), "the recipe has become longer, and the run goes on"
    (run_dir / "recipe.json").unlink()
    record_recipe(run_dir, replace(recipe, seed=7))
    with pytest.raises(ValueError, match=r"stage train.method=mean: .*/mean/run was not made by what .*: seed was 7 and is 42; remove it"):
        is_complete(pipeline, task)


def test_a_folder_of_outputs_is_complete_when_its_end_was_recorded(pipeline: Pipeline, tmp_path: Path) -> None:
    (task,) = tasks_of(pipeline, "report")
    part = tmp_path / "report" / "mean-5"
    part.mkdir(parents=True)
    (part / "result.json").write_text("{}")
    write_manifest(part, stage="eval.harness", facts={})
    assert not is_complete(pipeline, task)
    write_record(pipeline, task, Record(tuple(command_of(pipeline, task)), True, "", "log"))
    assert is_complete(pipeline, task)


def test_a_failed_stage_names_itself_and_what_to_do(pipeline: Pipeline, capfd: pytest.CaptureFixture[str]) -> None:
    (task,) = tasks_of(pipeline, "tokenizer")
    assert run_task(pipeline, task, [sys.executable, *command_of(pipeline, task)[1:]], log="logs/tokenizer-7.log") == 1
    written = capfd.readouterr().err
    assert "pipeline: stage tokenizer failed with exit code 2: " in written and "a b.txt" in written
    assert "all that it wrote is in logs/tokenizer-7.log; put that right and submit the pipeline again, what is complete is not" in written
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
    file = tmp_path / "demo.yaml"  # with a folder of its own, whatever was made in the checkout
    file.write_text(re.sub("(?m)^work_dir: .*", f"work_dir: {tmp_path}/work", (PIPELINES[0].parent / "demo.yaml").read_text()))
    code = (
        "import sys, time; start = time.monotonic()\n"
        "from slurm.pipeline import main\n"
        f"main([{str(file)!r}, '--cluster', 'local'])\n"
        "heavy = {'torch', 'transformers', 'nemo', 'megatron', 'lightning'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert time.process_time() < 5, time.process_time()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "chain of 3, gpu" in done.stdout and done.stdout.endswith("Nothing was sent; add --submit to send it.\n")
