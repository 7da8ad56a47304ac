"""A plan with a rehearsal: its words, its page, whether it fits, and the first step of the real run beside it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.lease import Fence, take_lease, this_process
from recipes.planner.hardware import GPUS
from recipes.planner.memory import RUNTIME_GIB
from recipes.rehearsal.apart import rehearse_apart
from recipes.rehearsal.fit import fit_of, fit_problems, summary
from recipes.rehearsal.page import rehearsal_page
from recipes.rehearsal.prediction import (
    REHEARSAL_NAME,
    FirstStep,
    compare_first_step,
    keep_rehearsal,
    read_first_steps,
    record_first_step,
    verdict,
)
from recipes.rehearse import main
from recipes.rules.compose import compose_recipe
from recipes.rules.published import published_inputs
from tests.pages import Page
from tests.processes import ROOT, Group, run_command

OVERRIDES = (
    "parallel=a100_40gb_16x4_tp1",
    "parallel.num_nodes=1",
    "parallel.devices_per_node=2",
    "parallel.pipeline_parallel_size=2",
    "schedule.global_batch_size=16",
)
RECIPE = compose_recipe("gams/focus_tied", list(OVERRIDES))


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The JSON and the page of a plan with a rehearsal."""
    directory = tmp_path_factory.mktemp("rehearsed_plan")
    words = ["--recipe", "gams/focus_tied", "--rehearse", "--json", "--page", str(directory / "plan.html"), *OVERRIDES]
    finished = run_command("recipes.plan", *words, log_dir=directory / "log", timeout_seconds=600)
    assert finished.code == 0, finished.stderr[-3000:]
    return json.loads(finished.stdout), (directory / "plan.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def document(planned: tuple[dict[str, Any], str]) -> dict[str, Any]:
    """The rehearsal alone."""
    found: dict[str, Any] = planned[0]["rehearsal"]
    return found


@pytest.mark.slow
def test_a_plan_has_the_ranks_of_its_stages_beside_its_own_figures(planned: tuple[dict[str, Any], str]) -> None:
    plan, rehearsal = planned[0], planned[0]["rehearsal"]
    assert [(report["rank"], report["stage"]) for report in rehearsal["ranks"]] == [(0, 0), (1, 1)]
    totals = [report["planned"]["total"] for report in rehearsal["ranks"]]
    assert max(totals) == plan["memory per device (GiB; state exact, activations counted)"]["total"]
    for report in rehearsal["ranks"]:
        assert report["fit"] == {
            "gpu": "a100-40gb",
            "GiB": 39.4,
            "needed": pytest.approx(report["most"] + RUNTIME_GIB),
            "fits": True,
            "in words": f"{report['most'] + RUNTIME_GIB:.1f} of 39.4 GiB, {39.4 - report['most'] - RUNTIME_GIB:.1f} left",
        }
        assert summary(report).endswith("left: fits")


@pytest.mark.slow
def test_every_phase_consists_of_what_it_has(document: dict[str, Any]) -> None:
    for report in document["ranks"]:
        assert report["phases"].keys() == report["phases consist of"].keys() >= {"build", "forward", "validation", "load, resumed"}
        for phase, parts in report["phases consist of"].items():
            assert sum(parts.values()) == pytest.approx(report["phases"][phase], abs=0.02), phase
        assert report["consists of"] == report["phases consist of"][report["fullest phase"]]
        assert report["phases consist of"]["forward"]["buffers of collectives"] > 0  # what the other stage sends
        # Adam's moments come with the first step, so the peak of a forward pass is later.
        assert report["phases"]["optimizer"] <= report["after the first step"] <= report["most"]
    last = document["ranks"][-1]
    assert last["phases consist of"]["forward"]["logits"] > document["ranks"][0]["phases consist of"]["forward"].get("logits", 0)


@pytest.mark.slow
def test_the_page_shows_every_rank_and_needs_nothing_else(planned: tuple[dict[str, Any], str], document: dict[str, Any]) -> None:
    page = Page(planned[1])
    assert page.outside == []
    assert [heading for heading in page.headings if heading.startswith("Rank ")] == ["Rank 0, stage 0", "Rank 1, stage 1"]
    assert page.headings.index("Rehearsal") < page.headings.index("All values")
    largest = document["ranks"][0]["largest"][0]
    assert f"<td>{largest['place']}</td>" in planned[1] and "<td>bfloat16 2,048 x 4 x 8,192</td>" in planned[1]
    alone = Page(rehearsal_page(document))
    assert alone.headings[0] == "Rank 0, stage 0" and "Where the host waits for the GPU" in alone.headings


def test_what_is_counted_and_does_not_fit_names_a_layout_that_would() -> None:
    recipe, inputs = published_inputs(compose_recipe("gams/focus", ["parallel=a100_40gb_16x4_tp1"]))
    fit = fit_of(recipe, inputs, 45.0, GPUS["a100-40gb"])
    assert fit["in words"] == "47.5 of 39.4 GiB, 8.1 too many"
    report = {"rank": 3, "most": 45.0, "fullest of all": "forward", "fullest phase": "forward", "peak": 45.0, "planned": {"total": 22.5}}
    [sentence] = fit_problems({"ranks": [{**report, "fit": fit}]})
    start = "rank 3 needs 47.5 of 39.4 GiB, 8.1 too many (a100-40gb), by its rehearsal: the peak is in forward; by the plan TP "
    assert sentence.startswith(start) and "micro batch" in sentence and sentence.endswith(" GiB)")
    assert "does not fit; by the plan TP " in summary({**report, "fit": fit})
    assert fit_of(recipe, inputs, 4000.0, GPUS["a100-40gb"])["advice"] == "by the plan no layout on 64 of them fits"
    assert summary({**report, "fit": None}).endswith("; no GPU is named to compare with")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("gams/focos",), "gams/focos"),
        (("gams/focus", "--rank", "64"), "there is no rank 64: the recipe has 64 processes, which are ranks 0 to 63"),
        (("gams/focus", "--ranks", "first,-1"), "'-1' is not a rank; expected numbers from 0 to 63, or first, last, stages, with commas between"),
        (("gams/focus", "--gpus", "6"), "--gpus is 6; expected a multiple of the 4 GPUs of a node"),
        (("gams/focus", "--gpus", "0"), "--gpus is 0; expected a multiple of the 4 GPUs of a node"),
        (("gams/focus", OVERRIDES[0], "schedule.micro_batch_size=16"), "the layout (TP 1 x PP 1 x DP 64, micro batch 16) needs "),
        (("sava/llama", "--gpus", "2"), "2 processes are not a multiple of tensor_parallel_size x pipeline_parallel_size (4 x 1 = 4); the nearest is 4"),
        (("low_resource/gemma2", "--gpus", "512"), "schedule.global_batch_size (8) must be a multiple of micro_batch_size x data-parallel size"),
        (("demo_adapt",), "recipe demo_adapt names no published model to use in the plan; give model.checkpoint and data.train"),
        (("gams/focus", "parallel.gpu=a100-41gb"), "parallel.gpu: there is no GPU a100-41gb; did you mean a100-"),
    ],
)  # fmt: skip
def test_what_cannot_be_rehearsed_is_refused_in_a_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        main(["--recipe", *arguments])
    assert sentence in str(error.value) and "\n" not in str(error.value)
    assert "recipes.rehearsal.rank" not in sys.modules, "torch would have GPUs from now on"


def test_a_rehearsal_that_fails_says_why_and_how_to_see_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^schedule.global_batch_size|^recipe gams/focus cannot run: schedule.global_batch_size \(7\)"):
        rehearse_apart("gams/focus", ["schedule.global_batch_size=7"])
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'RuntimeError: shapes differ' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(
        ValueError, match=r"^the rehearsal of gams/focus failed \(RuntimeError: shapes differ\); `python -m recipes.rehearse .*`"
    ):
        rehearse_apart("gams/focus", [])


@pytest.mark.slow
def test_the_first_step_is_compared_with_the_rehearsal_of_the_same_rank_and_layout(document: dict[str, Any], tmp_path: Path) -> None:
    assert compare_first_step(tmp_path, RECIPE, 0, measured_gib=14.0) is None  # not rehearsed
    keep_rehearsal(tmp_path, document)
    predicted = document["ranks"][1]["after the first step"]
    found = compare_first_step(tmp_path, RECIPE, 1, measured_gib=predicted * 1.02)
    assert found is not None and (found.predicted_gib, found.gpu_gib) == (predicted, 39.4)
    assert found.ratio == pytest.approx(1.02)
    assert compare_first_step(tmp_path, RECIPE, 2, measured_gib=14.0) is None
    other_batch = replace(RECIPE, schedule=replace(RECIPE.schedule, micro_batch_size=2))
    assert compare_first_step(tmp_path, other_batch, 1, measured_gib=14.0) is None
    longer = replace(RECIPE, schedule=replace(RECIPE.schedule, max_steps=7), run=replace(RECIPE.run, log_every_steps=3))
    assert compare_first_step(tmp_path, longer, 1, measured_gib=14.0) is not None
    for damaged in ("", "[]", '{"ranks": []}', '{"ranks": [{}], "settings": 1}'):
        (tmp_path / REHEARSAL_NAME).write_text(damaged)
        assert compare_first_step(tmp_path, RECIPE, 1, measured_gib=14.0) is None  # a training does not end for it


@pytest.mark.slow
def test_the_callback_records_the_first_step_once(
    document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from recipes.training.callbacks import FirstStepMemory

    monkeypatch.setenv("RANK", "1")
    keep_rehearsal(tmp_path, document)
    predicted = document["ranks"][1]["after the first step"]
    with take_lease(tmp_path, this_process("test")) as lease:
        callback = FirstStepMemory(tmp_path, RECIPE, Fence(lease.path, lease.token), measure=lambda: predicted)
        on_cpu = FirstStepMemory(tmp_path, RECIPE, Fence(lease.path, lease.token), measure=None)
        taken_over = FirstStepMemory(tmp_path, RECIPE, Fence(lease.path, "another"), measure=lambda: predicted)
        for silent, step in ((on_cpu, 1), (taken_over, 1), (callback, 2)):
            silent.on_train_batch_end(SimpleNamespace(global_step=step), None, None, None, 0)  # type: ignore[arg-type]
            assert read_first_steps(tmp_path) == []
        callback.on_train_batch_end(SimpleNamespace(global_step=1), None, None, None, 0)  # type: ignore[arg-type]
    [found] = read_first_steps(tmp_path)
    assert (found.rank, found.ratio) == (1, 1.0)
    assert capsys.readouterr().err.startswith(f"rank 1 has used {predicted:.2f} GiB in the first step; its rehearsal counted")


def test_the_verdict_names_the_rank_that_is_furthest_above_and_what_to_do(tmp_path: Path) -> None:
    near = FirstStep(0, 20.0, 20.4, 39.4, "without TransformerEngine, apex")
    far = FirstStep(63, 30.0, 38.0, 39.4, "uses TransformerEngine; without apex")
    less = FirstStep(1, 20.0, 15.0, 39.4, "without apex")
    for step in (near, far):
        record_first_step(tmp_path, step)
    assert read_first_steps(tmp_path) == [near, far]
    assert verdict([near]) == (True, "rank 0 has used 20.40 GiB in the first step; its rehearsal counted 20.00 (+2.0%)", "")
    is_right, told, advice = verdict([near, far])
    assert not is_right and told.startswith("rank 63 has used 38.00 GiB") and told.endswith("(+26.7%), the largest excess of 2 ranks")
    assert advice == (
        "more than 5% above: TransformerEngine keeps tensors that the rehearsal does not count; 0.0 of 39.4 GiB are left beside CUDA and NCCL,"
        " so later steps may run out of memory: use a smaller schedule.micro_batch_size, or a layout from `python -m recipes.plan`"
    )
    assert verdict([less])[:2][1].endswith("less was needed than counted, so the layout has more headroom than the plan shows")


@pytest.mark.long
def test_a_training_says_behind_its_first_step_what_its_rehearsal_counted(tmp_path: Path) -> None:
    group = Group([str(ROOT / "tests" / "recipes" / "first_step_rank.py"), str(tmp_path)], log_dir=tmp_path / "log")
    finished = group.wait(timeout_seconds=600)
    assert finished.code == 0, finished.stderr[-3000:]
    rehearsed, _, real = finished.stderr.partition("the real run\n")
    assert "in the first step" not in rehearsed
    [said] = [line for line in real.splitlines() if "in the first step" in line]
    words = said.split()
    assert said.startswith("rank 0 has used ") and said.endswith("(+0.0%)") and words[4] == words[-2]
