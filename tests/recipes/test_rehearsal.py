"""Runs of the papers' sizes, played as one rank of their world on GPUs that are not there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from recipes.compose import compose_recipe, recipe_names
from recipes.rehearse import main, wanted_ranks
from tests.conversion.tiny_families import PUBLISHED
from tests.processes import ROOT, Group
from tests.recipes.rehearsals import Case, as_json

SMALL = ("parallel.num_nodes=1", "parallel.devices_per_node=2", "schedule.global_batch_size=16")
PIPELINE = ("parallel.num_nodes=1", "parallel.devices_per_node=4", "parallel.pipeline_parallel_size=2")
# One of each family, procedure and feature at its real widths, with a few layers: each costs time and shows nothing new.
USUAL = {
    "opt, whole": Case("gams/focus_tied", overrides=SMALL),
    "opt, frozen body": Case("gams/focus_cse", overrides=SMALL, num_layers=2),
    "opt, two tokens": Case("gams/focus", overrides=(*SMALL, "+objective=two_tokens"), num_layers=2),
    "opt, answers": Case("gams/inz", num_layers=2, has_answers=True),
    "opt, tied pipeline": Case("gams/opt_gams", "stages", (*PIPELINE, "schedule.global_batch_size=32"), num_layers=2),
    "factors": Case("ofa/latent_100", num_layers=2),
    "llama2, lora": Case("low_resource/llama2", overrides=("procedure=lora",), num_layers=4),
    "llama2, two stages": Case("low_resource/llama2", overrides=("procedure=2_stage",), num_layers=4),
    "llama3, ends and two tokens over a tensor and a pipeline": Case("low_resource/llama3", "0,3", PIPELINE, num_layers=4),
    "llama3.1, two languages": Case("sava/llama", overrides=("parallel.num_nodes=1",), num_layers=2),
    "mistral, windows": Case(
        "sava/mistral", overrides=("parallel.num_nodes=1", "data.sequence_length=8192", "schedule.micro_batch_size=1"), num_layers=2
    ),
    "gemma2": Case("low_resource/gemma2", "last", num_layers=4),
    "qwen2": Case("low_resource/llama3", num_layers=4, hf=PUBLISHED["qwen2-7b"]),
    "qwen3": Case("low_resource/llama3", num_layers=4, hf=PUBLISHED["qwen3-8b"]),
}
PEAK_TOLERANCE = 0.025  # of the planner's bytes; what is left are gradients of activations that live for a moment


def rehearsed(cases: dict[str, Case], directory: Path, *, timeout_seconds: float) -> dict[str, list[Any]]:
    """Reports of all cases, from one process."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cases.json").write_text(as_json(cases))
    script = str(ROOT / "tests" / "recipes" / "rehearsals.py")
    group = Group([script, str(directory / "cases.json"), str(directory / "reports.json")], log_dir=directory / "log")
    finished = group.wait(timeout_seconds=timeout_seconds)
    assert finished.code == 0, finished.stderr[-3000:]
    found: dict[str, list[Any]] = json.loads((directory / "reports.json").read_text())
    return found


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Reports of the usual cases."""
    return rehearsed(USUAL, tmp_path_factory.mktemp("rehearsals"), timeout_seconds=600)


def test_state_of_a_rank_is_what_the_planner_counts(reports: dict[str, list[Any]]) -> None:
    for case in reports.values():
        for report in case:
            for part in ("parameters", "gradients", "optimizer"):
                assert report["consists of"][part] == pytest.approx(report["planned"][part], rel=0.02), part
            assert report["peak"] == pytest.approx(report["planned"]["total"], rel=PEAK_TOLERANCE)


def test_all_parts_of_a_run_are_rehearsed(reports: dict[str, list[Any]]) -> None:
    [report] = reports["gams"]
    assert {"build", "load", "forward", "backward", "optimizer", "validation", "save", "load, resumed", "save, resumed"} <= set(
        report["phases"]
    )
    assert set(report["attention kernels"]) == {"flash"}
    sent = {(row["group"], row["kind"]): row["GB"] for row in report["traffic of a step"]}
    gradients = 4 * report["planned"]["parameters"] / 2 * 2**30 / 1e9  # 32-bit numbers, and the planner's parameters have 16 bits
    assert sent["DP", "reduce-scatter"] == pytest.approx(gradients, rel=0.01)


def test_tensors_have_kinds_and_collectives_say_what_goes_on_beside_them(reports: dict[str, list[Any]]) -> None:
    [llama] = reports["llama"]
    assert llama["consists of"].get("other", 0) < 0.01 * llama["peak"]
    sent = {(row["group"], row["kind"], row["asynchronous"]): row["calls"] for row in llama["traffic of a step"]}
    assert sent["DP", "reduce-scatter", True] and ("DP", "reduce-scatter", False) not in sent  # overlap_communication
    assert sent["TP", "all-reduce", False] > sent.get(("TP", "all-reduce", True), 0)  # the forward pass needs its sums at once


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in recipe_names() if not name.startswith("demo")])
def test_every_published_recipe_runs_at_its_real_size(name: str, tmp_path: Path) -> None:
    found = rehearsed({name: Case(name, "stages")}, tmp_path, timeout_seconds=1200)
    for report in found[name]:
        assert report["rehearsal"]["processor seconds"] < 120 and report["rehearsal"]["memory (GiB)"] < 4
        for part in ("parameters", "gradients"):
            assert report["consists of"][part] == pytest.approx(report["planned"][part], rel=0.02), part
        assert report["peak"] == pytest.approx(report["planned"]["total"], rel=PEAK_TOLERANCE)


def test_named_ranks_are_those_of_the_stages() -> None:
    recipe = compose_recipe("gams/focus", ["parallel.pipeline_parallel_size=2"])
    assert wanted_ranks(recipe, "stages") == [0, 31, 32, 63]
    assert wanted_ranks(recipe, "last,first,5") == [0, 5, 63]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--rank", "64"), "there is no rank 64: the recipe has 64 processes, which are ranks 0 to 63"),
        (("--ranks", "middle"), "'middle' is no rank; expected numbers from 0 to 63, or first, last, stages, with commas between"),
        (("--gpus", "6"), "--gpus is 6; expected a multiple of the 4 GPUs of a node"),
        (("schedule.micro_batch_size=16",), "the layout (TP 1 x PP 1 x DP 64, micro batch 16) needs "),
    ],
)
def test_what_cannot_be_rehearsed_is_refused(arguments: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        main(["--recipe", "gams/focus", *arguments])
    assert sentence in str(error.value)
    assert "recipes.rehearsal.rank" not in sys.modules, "torch would have GPUs from now on"
