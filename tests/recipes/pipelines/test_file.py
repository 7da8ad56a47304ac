"""Pipelines as files: references, axes, refusals, what the commands of stages would refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from recipes.pipelines.checks import task_problems
from recipes.pipelines.file import Pipeline, command_of, dependencies_of, pipeline_from_mapping, tasks_of
from tests.recipes.pipelines.small_pipeline import content


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
    assert [[need.name for need in dependencies_of(pipeline, task)] for task in (mean, focus)] == [[], ["tokenizer"]]


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
    assert [need.name for need in dependencies_of(pipeline, tasks_of(pipeline, "export")[3])] == ["train.method=focus"]
    assert len(dependencies_of(pipeline, tasks_of(pipeline, "report")[0])) == 5


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
            r"stage transfer is repeated over method, but all its runs would write to the same place",
        ),
        (lambda c: c["stages"]["report"].pop("command"), "stage report has neither command nor train; expected one of them"),
        (lambda c: c["stages"]["report"].update(command="rm -rf /"), "the command of stage report does not begin with a module of this"),
        (lambda c: c["stages"]["report"].update(command="os.path"), "the command of stage report does not begin with a module of this"),
        (lambda c: c["stages"]["report"].update(command="eval.harness 'x"), "cannot be split into words: No closing quotation"),
        (lambda c: c["stages"]["report"].update(command="eval.harness --output x"), "has --output; give it as `output`"),
        (lambda c: c["stages"]["report"].update(resources="big"), "stage report requests the resources big; known are cpu"),
        (lambda c: c["stages"]["report"].update(output="{tokenizer}/x"), "the output of stage report names stage tokenizer"),
        (
            lambda c: c["stages"]["tokenizer"].update(command="data_prep.train_tokenizer --input {report}"),
            "depend on each other in a cycle",
        ),
        (lambda c: c["stages"]["train"].pop("output"), "stage train trains but has no output; give the directory of the run"),
        (lambda c: c["options"]["method"].update(fokus="x"), "options.method.fokus names no value of the axis; method has mean, focus"),
        (lambda c: c["stages"]["report"].update(command="eval.harness {step_options}"), r"stage report names \{step_options\}; there are"),
        (
            lambda c: c["stages"]["transfer"].update(output="hf", command="conversion.transfer {method_options}"),
            "all its runs would write to the same place",
        ),
        (
            lambda c: c["stages"]["report"].update(output="tokenizer"),
            "tokenizer and report have the same output, .*/tokenizer; give each its own",
        ),
        (lambda c: c["stages"]["report"].update(output="./tokenizer/x/../"), "tokenizer and report have the same output"),
        (lambda c: c["stages"]["report"].update(output="tokenizer/report"), "lies within that of tokenizer; move it outside"),
        (lambda c: c["stages"]["report"].update(output="../report"), "the output of report is .*; expected a path below work_dir"),
        (lambda c: c["stages"]["report"].update(output="/report"), "the output of report is /report; expected a path below work_dir"),
        (lambda c: c.update(work_dir=""), "work_dir is '', the checkout or a parent of it; give a separate directory"),
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
    stages["train"]["train"]["overrides"] += " model.checkpoint={transfer} data.train=[x]"
    pipeline = pipeline_from_mapping(changed)
    problems = task_problems(pipeline, [task for stage in pipeline.stages for task in tasks_of(pipeline, stage)])
    assert [any(problem.startswith(sentence) or sentence in problem for problem in problems) for sentence in sentences] == [True] * len(
        sentences
    )
    assert bool(problems) == bool(sentences), problems
