"""What of a pipeline is complete, what has changed, and what therefore runs."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from common.artifacts import read_manifest, write_manifest
from common.command import arguments_of
from data_prep import train_tokenizer
from recipes.pipelines.file import Pipeline, Task, command_of, output_of, pipeline_from_mapping, tasks_of, training_overrides
from recipes.pipelines.running import note_end, note_start
from recipes.pipelines.state import Record, forget, is_complete, write_record
from recipes.pipelines.work import Choice, find_work, remove_unneeded, tasks_to_run
from recipes.rules.compose import compose_recipe
from recipes.runs.run_dir import record_recipe
from tests.recipes.pipelines.small_pipeline import content
from tests.slurm import light_training


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return pipeline_from_mapping(content(tmp_path))


def complete(pipeline: Pipeline, *names: str) -> list[str]:
    everything = [task for stage in pipeline.stages for task in tasks_of(pipeline, stage)]
    return [task.name for task in tasks_to_run(pipeline, [task for task in everything if task.name in names])]


def test_what_is_complete_does_not_run_again(pipeline: Pipeline) -> None:
    assert len(complete(pipeline)) == 10
    done = ["tokenizer", "transfer.method=mean", "train.method=mean"]
    assert complete(pipeline, *done)[:3] == ["transfer.method=focus", "train.method=focus", "export.method=mean.step=5"]
    assert complete(pipeline, "report") == [], "what was removed to save space is not made again for nobody"
    assert complete(pipeline, "export.method=mean.step=5") == [name for name in complete(pipeline) if name != "export.method=mean.step=5"]


def write_output(pipeline: Pipeline, task: Task, text: str = "x", *, at: Path | None = None, **made_with: object) -> Path:
    output = at or output_of(pipeline, task)
    assert output is not None
    output.mkdir(parents=True, exist_ok=True)
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
        ValueError, match=rf"tokenizer: {tmp_path}/tokenizer is not what the stage would make now: --vocab-size 300 -> 400; give --rerun"
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
        f"stage tokenizer: {output} is not what the stage would make now: it was made with vocab_size=[400],"
        " and the stage has [300]; give --rerun to run it again, or choose another work_dir"
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        is_complete(pipeline, task)
    write_manifest(output, stage="data_prep.to_megatron", facts={})
    with pytest.raises(ValueError, match=r"it was written by data_prep.to_megatron, not by data_prep.train_tokenizer; give"):
        is_complete(pipeline, task)


def test_an_output_of_other_inputs_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    reading = replace(pipeline.stages["tokenizer"], command="data_prep.train_tokenizer --input {first} --vocab-size 300", output="second")
    both = replace(pipeline, stages={"first": pipeline.stages["tokenizer"], "second": reading})
    first, second = tasks_of(both, "first")[0], tasks_of(both, "second")[0]
    read = write_output(both, first)
    output = write_output(both, second)
    with pytest.raises(
        ValueError,
        match=r"stage second: .*second is not what the stage would make now: it was not made from the present output of stage first",
    ):
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
    light_training.save(run_dir, recipe.total_steps, "state")
    assert is_complete(pipeline, task)
    (run_dir / "recipe.json").unlink()
    record_recipe(run_dir, replace(recipe, schedule=replace(recipe.schedule, max_steps=recipe.total_steps - 1, train_tokens=None)))
    assert not is_complete(pipeline, task), "the recipe has become longer, and the run goes on"
    (run_dir / "recipe.json").unlink()
    record_recipe(run_dir, replace(recipe, seed=7))
    with pytest.raises(
        ValueError, match=r"stage train.method=mean: .*/mean/run is not what the stage would make now: seed was 7 and is 42; give"
    ):
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


CHANGE = ("--vocab-size 300", "--vocab-size 400")


def made(pipeline: Pipeline, *stages: str) -> None:
    """Outputs and records of stages that are not trainings."""
    for task in (task for stage in stages for task in tasks_of(pipeline, stage)):
        write_output(pipeline, tasks_of(pipeline, "tokenizer")[0], at=output_of(pipeline, task))
        write_record(pipeline, task, Record(tuple(command_of(pipeline, task)), True, "", "log"))


def changed(pipeline: Pipeline, stage: str, before: str, after: str) -> Pipeline:
    new = replace(pipeline.stages[stage], command=(pipeline.stages[stage].command or "").replace(before, after))
    return replace(pipeline, stages={**pipeline.stages, stage: new})


def test_a_changed_setting_runs_again_exactly_what_depends_on_it(pipeline: Pipeline) -> None:
    made(pipeline, "tokenizer", "transfer")
    other = changed(pipeline, "tokenizer", *CHANGE)
    work = find_work(other)
    assert work.sentences() == [
        "tokenizer: --vocab-size 300 -> 400",
        "so these run again too: transfer.method=mean, transfer.method=focus",
    ]
    assert len(work.tasks) == 10 and is_complete(other, tasks_of(other, "transfer")[0]), "nothing is removed before it starts"
    work.prepare()
    assert not any((other.root / name).exists() for name in ("tokenizer", "mean/hf", "focus/hf", "stages/tokenizer.json"))
    assert find_work(other).again == {}

    made(pipeline, "tokenizer", "transfer")
    focus = replace(pipeline, options={"method": {"focus": "--text other.txt"}})
    assert find_work(focus).sentences() == ["transfer.method=focus: --text c d.txt -> other.txt".replace("c d.txt", "'c d.txt'")]
    assert find_work(changed(pipeline, "tokenizer", "300", "300 --workers 7")).again == {}, "which changes nothing in an output"


def test_a_text_that_was_edited_is_read_again(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> None:
    text = tmp_path_factory.mktemp("texts") / "a.txt"
    text.write_text("Ena.")
    pipeline = changed(pipeline, "tokenizer", "'a b.txt'", f"sl={text.parent}")
    (task,) = tasks_of(pipeline, "tokenizer")
    note_start(pipeline, task, log="log")
    write_output(pipeline, task)
    assert note_end(pipeline, task, 0, "", log="log") is None and find_work(pipeline).again == {}
    text.write_text("Dva.")
    assert find_work(pipeline).again == {task: f"{text.parent} has changed since it was read"}
    shutil.rmtree(text.parent)
    assert find_work(pipeline).again == {}, "what is gone has been read"


def test_what_is_removed_half_way_is_still_seen_as_changed(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    other = changed(pipeline, "tokenizer", *CHANGE)
    for whole in range(3):
        made(pipeline, "tokenizer", "transfer")
        ends = iter([forget] * whole)
        with monkeypatch.context() as patch, pytest.raises(StopIteration):
            patch.setattr("recipes.pipelines.work.forget", lambda *removed, ends=ends: next(ends)(*removed))
            find_work(other).prepare()
        left = find_work(other)
        assert left.sentences()[0] == "tokenizer: --vocab-size 300 -> 400" and len(left.again) == 3 - whole and len(left.tasks) == 10
    shutil.rmtree(other.root / "tokenizer")  # to save space: the record still says how it was made
    made(other, "transfer")
    assert find_work(other).sentences()[0] == "tokenizer: --vocab-size 300 -> 400"


def test_trainings_and_what_others_made_run_again_only_when_told_to(pipeline: Pipeline) -> None:
    made(pipeline, "tokenizer", "transfer")
    task = tasks_of(pipeline, "train")[0]
    run_dir = output_of(pipeline, task)
    assert run_dir is not None
    record_recipe(run_dir, compose_recipe("demo_adapt", training_overrides(pipeline, task)))
    other = changed(pipeline, "tokenizer", *CHANGE)
    sentence = (
        f"tokenizer: --vocab-size 300 -> 400; so train.method=mean would run again, and {run_dir} (a training) be removed, with 3 other"
        " outputs; give --rerun to do that"
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        find_work(other)
    assert task in find_work(other, Choice(rerun=True)).again
    shutil.rmtree(run_dir)
    (pipeline.root / "stages" / "tokenizer.json").unlink()
    with pytest.raises(
        ValueError, match=r"made with vocab_size=\[300\], and the stage has \[400\]; so tokenizer would .*\(not made by this"
    ):
        find_work(other)


@pytest.mark.parametrize(
    ("choice", "tasks"),
    [
        (Choice(until="transfer"), {"tokenizer", "transfer"}),
        (
            Choice(start="export", until="report"),
            "stage export.method=mean.step=5 reads the output of train.method=mean, which is not complete and not",
        ),
        (Choice(only="tokenizer"), {"tokenizer"}),
        (Choice(start="transfer"), "stage transfer.method=mean reads the output of tokenizer, which is not complete"),
        (Choice(until="transfr"), "there is no stage transfr; did you mean transfer? there are tokenizer, transfer"),
        (Choice(start="report", until="tokenizer"), "there is no stage between report and tokenizer"),
    ],
)
def test_chosen_stages(pipeline: Pipeline, choice: Choice, tasks: set[str] | str) -> None:
    if isinstance(tasks, set):
        assert {task.stage for task in find_work(pipeline, choice).tasks} == tasks
        return
    with pytest.raises(ValueError, match=re.escape(tasks)):
        find_work(pipeline, choice)


def test_what_is_not_kept_goes_when_all_that_read_it_are_complete(pipeline: Pipeline) -> None:
    stages = {name: replace(stage, keep=name != "tokenizer") for name, stage in pipeline.stages.items() if name != "report"}
    pipeline = replace(pipeline, stages=stages)
    (tokenizer,) = tasks_of(pipeline, "tokenizer")
    made(pipeline, "tokenizer")
    for number, task in enumerate(tasks_of(pipeline, "transfer")):
        remove_unneeded(pipeline, among=[tokenizer])
        assert (pipeline.root / "tokenizer").exists(), number
        write_output(pipeline, tokenizer, at=output_of(pipeline, task))
        write_record(pipeline, task, Record(tuple(command_of(pipeline, task)), True, "", "log"))
    remove_unneeded(pipeline, among=[tokenizer])
    assert not (pipeline.root / "tokenizer").exists() and "tokenizer" not in {task.stage for task in find_work(pipeline).tasks}
