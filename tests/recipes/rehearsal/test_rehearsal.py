"""Runs of the papers' sizes, played as one rank of their world on simulated GPUs."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recipes.rehearsal.run import requested_ranks, require_torch
from recipes.rehearse import main
from recipes.rules.compose import compose_recipe, recipe_names
from tests.conftest import Inputs
from tests.conversion.tiny_families import PUBLISHED
from tests.processes import ROOT, Group
from tests.recipes.rehearsals import Case, as_json

TP1 = "parallel=a100_40gb_16x4_tp1"
SMALL = (TP1, "parallel.num_nodes=1", "parallel.devices_per_node=2", "schedule.global_batch_size=16")
NODE = ("parallel.devices_per_node=4", "parallel.tensor_parallel_size=2")
PIPELINE = ("parallel.num_nodes=1", "parallel.devices_per_node=4", "parallel.pipeline_parallel_size=2")
CUT = ("parallel.num_nodes=1", "parallel.devices_per_node=4", "parallel.tensor_parallel_size=1", "schedule.micro_batch_size=1")
# One of each family, procedure and feature at its real widths, with a few layers: each costs time and shows nothing new.
CASES = {
    "opt, frozen body": Case("gams/focus_cse", overrides=SMALL, num_layers=2),
    "opt, two tokens": Case("gams/focus", overrides=(*SMALL, "+objective=two_tokens"), num_layers=2),
    "opt, adapters, answers, nothing overlaps": Case(
        "gams/inz", overrides=("parallel.overlap_communication=false",), num_layers=2, has_answers=True
    ),
    "opt, tied pipeline": Case("gams/opt_gams", "0,2", (TP1, *PIPELINE, "schedule.global_batch_size=32"), num_layers=2),
    "factors": Case("ofa/latent_100", num_layers=2),
    "roberta, masked": Case("ofa/mono", num_layers=2),
    "llama2, adapters after a pass": Case("low_resource/llama2", overrides=(*NODE, "procedure=2_stage"), num_layers=2),
    "llama3, both ends, two tokens, tensors and pipeline": Case("low_resource/llama3", "0,3", (*NODE, *PIPELINE), num_layers=4),
    "llama3.1, two languages": Case("sava/llama", overrides=("parallel.num_nodes=1",), num_layers=2),
    "llama3.1, parts of sequences, all layers again": Case(
        "sava/llama",
        overrides=("parallel.num_nodes=1", "parallel.sequence_parallel=true", "+recomputation={method: block}"),
        num_layers=4,
    ),
    "opt, parts of sequences, parts of layers again": Case(
        "gams/focus",
        overrides=(
            *SMALL,
            "parallel.tensor_parallel_size=2",
            "parallel.sequence_parallel=true",
            "+recomputation={granularity: selective, modules: [core_attn, mlp]}",
        ),
        num_layers=4,
    ),
    "mistral, windows": Case(
        "sava/mistral", overrides=("parallel.num_nodes=1", "data.sequence_length=8192", "schedule.micro_batch_size=1"), num_layers=2
    ),
    "mistral, windows, documents": Case(
        "sava/mistral",
        overrides=("parallel.num_nodes=1", "data.sequence_length=8192", "schedule.micro_batch_size=1", "data.document_mask=true"),
        num_layers=2,
    ),
    "llama3.1, cut samples": Case(
        "sava/llama", overrides=(*CUT, "parallel.context_parallel_size=2", "data.sequence_length=8192"), num_layers=2
    ),
    "mistral, windows, documents, cut samples": Case(
        "sava/mistral",
        "last",
        overrides=(*CUT, "parallel.context_parallel_size=4", "data.sequence_length=32768", "data.document_mask=true"),
        num_layers=2,
    ),
    "gemma2": Case("low_resource/gemma2", "last", NODE, num_layers=4),
    "qwen2": Case("low_resource/llama3", overrides=NODE, num_layers=2, hf=PUBLISHED["qwen2-7b"]),
    "qwen3, experts": Case(
        "low_resource/llama3", overrides=(*NODE, "parallel.sequence_parallel=true"), num_layers=2, hf=PUBLISHED["qwen3-30b-a3b"]
    ),
    "gpt-oss, whole experts": Case(
        "low_resource/llama3", "0,3", (*NODE, *PIPELINE, "parallel.sequence_parallel=true"), num_layers=2, hf=PUBLISHED["gpt-oss-20b"]
    ),
    "ministral3": Case("low_resource/llama3", overrides=NODE, num_layers=2, hf=PUBLISHED["ministral-3-8b"]),
    "ministral3, tied, documents": Case(
        "low_resource/llama3", overrides=(*NODE, "data.document_mask=true"), num_layers=2, hf=PUBLISHED["ministral-3-3b"]
    ),
    "qwen3": Case("low_resource/llama3", overrides=NODE, num_layers=4, hf=PUBLISHED["qwen3-8b"]),
}
LEFT = ("opt, frozen body", "qwen3")  # whose checkpoints other processes resume from
DOCUMENTS = "mistral, windows, documents"
# Which every change meets; the others are long, as each is a minute of a core.
USUAL = (
    *LEFT,
    "opt, adapters, answers, nothing overlaps",
    "opt, tied pipeline",
    "llama3, both ends, two tokens, tensors and pipeline",
    DOCUMENTS,
)
PUBLISHED_RECIPES = [name for name in recipe_names() if "/" in name]
# A layer more costs time and shows nothing new: with their real number they are rehearsed by `make rehearsals`.
REAL_DEPTH = bool(os.environ.get("SCION_REAL_DEPTH"))
FEWER_DOCUMENTS = {"times_longer": 8}  # of 65,536 tokens: each has kernels of its own in every layer
FEW_LAYERS = {"num_layers": 4}
GAMS3 = {"num_layers": 6, "overrides": ("recomputation.num_layers=6",), **FEWER_DOCUMENTS}  # as many layers as it takes to have a whole one
DEMOS = [name for name in recipe_names() if "/" not in name]
PEAK_TOLERANCE = 0.03  # of the planner's bytes, with few layers; what is left are gradients of activations that live for a moment


def rehearsed(cases: dict[str, Case], directory: Path, *, timeout_seconds: float | None, stand_ins: str = "") -> dict[str, Any]:
    """Reports of all cases, from one process, perhaps with stand-ins; of one that fails, its traceback."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cases.json").write_text(as_json(cases))
    script = str(ROOT / "tests" / "recipes" / "rehearsals.py")
    group = Group([script, str(directory / "cases.json"), str(directory / "reports.json"), stand_ins], log_dir=directory / "log")
    finished = group.wait(timeout_seconds=timeout_seconds)
    assert finished.code == 0, finished.stderr[-3000:]
    found: dict[str, Any] = json.loads((directory / "reports.json").read_text())
    return found


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where checkpoints are left for other processes."""
    return tmp_path_factory.mktemp("kept")


def _demos(inputs: Inputs, *names: str) -> dict[str, Case]:
    """Recipes that name no published model, with a real checkpoint and data."""
    given = (f"model.checkpoint={inputs.checkpoint}", f"data.train=[{inputs.data}]", "data.sequence_length=64")
    return {name: Case(name, "stages", given) for name in names}


@pytest.fixture(scope="session")
def published(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Reports of all bundled recipes."""
    return _published(inputs, tmp_path_factory.mktemp("published"))


def _published(inputs: Inputs, directory: Path, *, stand_ins: str = "") -> dict[str, Any]:
    """Reports of all bundled recipes, those that are published at their real widths.

    Recipes that differ in their checkpoint alone are one rehearsal.  All ranks that differ are played of one recipe of each paper, of the
    others the first and the last in turns.
    """
    same: dict[str, list[str]] = {}
    for name in PUBLISHED_RECIPES:
        recipe = compose_recipe(name)
        same.setdefault(repr(replace(recipe, name="", model=replace(recipe.model, method=None))), []).append(name)
    cases = _demos(inputs, *DEMOS)
    papers = set[str]()
    for number, (first, *_) in enumerate(same.values()):
        paper = first.partition("/")[0]
        smaller: dict[str, Any] = GAMS3 if paper == "gams3" else FEW_LAYERS
        if REAL_DEPTH:
            smaller = FEWER_DOCUMENTS if paper == "gams3" else {}
        cases[first] = Case(first, ("0", "last")[number % 2] if paper in papers else "stages", **smaller)
        papers.add(paper)
    found = rehearsed(cases, directory, timeout_seconds=None if REAL_DEPTH else 3600, stand_ins=stand_ins)
    return found | {name: found[names[0]] for names in same.values() for name in names}


@pytest.fixture(scope="session")
def reports(inputs: Inputs, kept: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Reports of the usual cases, and of a recipe of the demo; of some the checkpoints are left."""
    usual = {title: CASES[title] for title in USUAL}
    left = {title: replace(CASES[title], keep=str(kept / title)) for title in LEFT}
    return rehearsed(usual | left | _demos(inputs, "demo_adapt", "language"), tmp_path_factory.mktemp("rehearsals"), timeout_seconds=1800)


@pytest.fixture(scope="session")
def further(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Reports of the cases that are not usual."""
    cases = {title: case for title, case in CASES.items() if title not in USUAL}
    return rehearsed(cases, tmp_path_factory.mktemp("further"), timeout_seconds=1800)


@pytest.mark.slow
@pytest.mark.parametrize("case", USUAL)
def test_a_rank_has_what_the_planner_counts(case: str, reports: dict[str, Any]) -> None:
    _is_as_planned(reports[case])
    _waits_a_few_times_for_a_save(reports[case])


@pytest.mark.long
@pytest.mark.parametrize("case", [title for title in CASES if title not in USUAL])
def test_a_rank_of_every_family_and_feature_has_what_the_planner_counts(case: str, further: dict[str, Any]) -> None:
    _is_as_planned(further[case])
    _waits_a_few_times_for_a_save(further[case])


def _is_as_planned(found: Any) -> None:
    assert isinstance(found, list), found
    for report in found:
        for part in ("parameters", "gradients", "optimizer"):
            least = report["consists of"].get(part, 0)
            most = least + report["consists of"].get("small tensors", 0)  # adapters' moments are below the size that has a kind
            assert 0.98 * least - 0.002 <= report["planned"][part] <= 1.02 * most + 0.002, part
        assert report["peak"] == pytest.approx(report["planned"]["total"], rel=PEAK_TOLERANCE)
        # A rank has more or less than its share of the optimizer's state of single matrices, as buffers are cut anywhere.
        assert report["phases"]["load, resumed"] == pytest.approx(report["planned"]["load, resumed"], rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["demo_adapt", "language"])
def test_a_real_checkpoint_and_real_data_are_rehearsed(name: str, reports: dict[str, Any]) -> None:
    """Of two processes, and of one alone."""
    _runs_to_the_end(reports[name])


@pytest.mark.long
@pytest.mark.parametrize("name", DEMOS)
def test_the_demos_recipes_run_on_gpus(name: str, published: dict[str, Any]) -> None:
    _runs_to_the_end(published[name])


def _runs_to_the_end(found: Any) -> None:
    assert isinstance(found, list), found
    assert [report["rank"] for report in found] in ([0], [0, 1])
    for report in found:
        assert {"load", "backward", "save", "load, resumed", "save, resumed"} <= set(report["phases"])


@pytest.mark.slow
def test_all_parts_of_a_run_are_rehearsed(reports: dict[str, Any]) -> None:
    [report] = reports["opt, frozen body"]
    assert {"build", "load", "forward", "backward", "optimizer", "validation", "save", "load, resumed", "save, resumed"} <= set(
        report["phases"]
    )
    assert set(report["attention kernels"]) == {"flash"}
    sent = {(row["group"], row["kind"]): row["GB"] for row in report["traffic of a step"]}
    gradients = 4 * report["planned"]["parameters"] / 2 * 2**30 / 1e9  # 32-bit numbers, and the planner's parameters have 16 bits
    assert sent["DP", "reduce-scatter"] == pytest.approx(gradients, rel=0.01)
    # Where all ranks are replicas, their group has the ranks of all; what is asked of all ranks is not traffic of gradients.
    assert {("DP", "all-gather"), ("all ranks", "all-reduce")} <= sent.keys()


@pytest.mark.slow
def test_documents_that_do_not_see_each_other_have_the_usual_kernels(reports: dict[str, Any]) -> None:
    """Each for itself, and short ones together with a mask: none has all scores in memory."""
    [report] = reports["mistral, windows, documents"]
    assert set(report["attention kernels"]) == {"flash", "memory-efficient"}
    assert not any("documents.py" in place for place in report["waits of a step"]), "where documents begin is read on the host"


@pytest.mark.slow
def test_tensors_have_kinds_and_collectives_say_what_goes_on_beside_them(reports: dict[str, Any]) -> None:
    [llama] = reports["qwen3"]
    assert llama["consists of"].get("other", 0) < 0.01 * llama["peak"]
    sent = {(row["group"], row["kind"], row["asynchronous"]): row["calls"] for row in llama["traffic of a step"]}
    assert sent["DP", "reduce-scatter", True] and ("DP", "reduce-scatter", False) not in sent  # overlap_communication
    assert sent["TP", "all-reduce", False] > sent.get(("TP", "all-reduce", True), 0)  # the forward pass needs its sums at once


@pytest.mark.slow
def test_a_report_says_what_is_computed_beside_a_collective(reports: dict[str, Any]) -> None:
    """That a call returns at once says little: what counts are the products between its beginning and the wait for it."""
    [overlapping] = reports["qwen3"]
    rows = {(row["group"], row["kind"], row["asynchronous"]): row for row in overlapping["traffic of a step"]}
    reduced, gathered = rows["DP", "reduce-scatter", True], rows["DP", "all-gather", True]
    assert reduced["overlapped"] > 0.5 and reduced["TFLOP beside"] > 0
    assert 0 < gathered["overlapped"] <= 1
    [waiting] = reports["opt, adapters, answers, nothing overlaps"]
    for row in waiting["traffic of a step"]:
        assert row["overlapped"] == 0 == row["TFLOP beside"], row
    first, last = reports["llama3, both ends, two tokens, tensors and pipeline"]
    for row in first["traffic of a step"] + last["traffic of a step"]:
        if row["group"] == "PP":
            assert row["overlapped"] == 0, "Megatron waits at once for what goes from stage to stage"


def _waits_a_few_times_for_a_save(found: list[dict[str, Any]]) -> None:
    """The host, and not once for each part of a parameter, to read the same count of Adam's steps."""
    for report in found:
        assert sum(report["waits of a save"].values()) <= 12, report["waits of a save"]


@pytest.mark.slow
def test_a_rank_saves_its_part_of_the_model_and_of_the_optimizer(reports: dict[str, Any]) -> None:
    """All of its own part of the optimizer's state, and of the model what its replicas do not save."""
    for case, replicas in (("opt, frozen body", 2), ("llama3, both ends, two tokens, tensors and pipeline", 1), ("opt, tied pipeline", 2)):
        for report in reports[case]:
            planned, host = report["planned"], report["host"]
            assert host["save"] <= 1.02 * planned["host, save"], case
            assert max(host["load"], host["resume"]) <= 1.01 * planned["host, load"], case
            least = planned["optimizer"]
            assert least < host["save"] < 1.02 * (least + planned["parameters"]), case
            assert host["asynchronous save"] == pytest.approx(host["save"], rel=0.01)
            if replicas == 1:
                assert host["save"] == pytest.approx(least + planned["parameters"], rel=0.02)


@pytest.mark.long
@pytest.mark.parametrize("name", PUBLISHED_RECIPES)
def test_every_published_recipe_runs_at_its_real_widths(name: str, published: dict[str, Any]) -> None:
    _is_as_planned(published[name])
    for report in published[name]:
        assert report["rehearsal"]["memory (GiB)"] < 4, "it runs on a laptop"


def _elsewhere(stand_ins: str, reports: dict[str, Any], kept: Path, directory: Path) -> dict[str, Any]:
    """Reports of a process with other kernels, which resumes from what the usual one has left."""
    found = {}
    for title in LEFT:
        assert isinstance(reports[title], list), reports[title]
        found[title] = replace(CASES[title], resume=str(kept / title), keep=str(kept / f"{title}, {stand_ins}"))
    if "transformer-engine" in stand_ins:  # whose attention takes the bounds of documents from a tensor, which has no values here
        found[DOCUMENTS] = CASES[DOCUMENTS]
    return rehearsed(found, directory, timeout_seconds=600, stand_ins=stand_ins)


def _is_as_without(found: dict[str, Any], reports: dict[str, Any], stand_ins: list[str]) -> None:
    """The state of a rank is the same, whoever computes."""
    for title in LEFT:
        assert isinstance(found[title], list), found[title]
        [mine], [theirs] = found[title], reports[title]
        assert mine["stand-ins"] == stand_ins and theirs["stand-ins"] == []
        for part in ("parameters", "gradients", "optimizer"):
            assert mine["consists of"][part] == pytest.approx(theirs["consists of"][part], rel=0.01), part
        assert mine["peak"] == pytest.approx(mine["planned"]["total"], rel=0.05)
        assert mine["phases"]["load, resumed"] > 0


@pytest.mark.slow
def test_transformer_engine_and_apex_start_from_the_converters_checkpoint_and_from_one_without_them(
    reports: dict[str, Any], kept: Path, tmp_path: Path
) -> None:
    """Stand-ins of the newest image: norms with extra state, fused Adam, gradients of weights that are accumulated by a kernel."""
    found = _elsewhere("transformer-engine=2.12,apex", reports, kept, tmp_path)
    _is_as_without(found, reports, ["transformer-engine=2.12.0", "apex"])
    assert isinstance(found[DOCUMENTS], list), found[DOCUMENTS]


@pytest.mark.long
@pytest.mark.skipif(not REAL_DEPTH, reason="in `make rehearsals`; what they need of the stand-ins is in the test above")
def test_every_published_recipe_runs_with_transformer_engine_and_apex(inputs: Inputs, tmp_path: Path) -> None:
    found = _published(inputs, tmp_path, stand_ins="transformer-engine=2.9,apex")
    assert {name: reports for name, reports in found.items() if not isinstance(reports, list)} == {}


@pytest.mark.long
@pytest.mark.parametrize("stand_ins", ["apex", "transformer-engine=2.7", "transformer-engine=2.9,apex"])
def test_all_that_may_be_installed_is_rehearsed_and_resumed_from_without_it(
    stand_ins: str, reports: dict[str, Any], kept: Path, tmp_path: Path
) -> None:
    found = _elsewhere(stand_ins, reports, kept, tmp_path / "with")
    _is_as_without(found, reports, stand_ins.replace("2.7", "2.7.0").replace("2.9", "2.9.0").split(","))
    back = {title: replace(CASES[title], resume=str(kept / f"{title}, {stand_ins}")) for title in LEFT}
    _is_as_without(rehearsed(back, tmp_path / "back", timeout_seconds=600), reports, [])


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ("transformer-engine=1.13", "there is no stand-in for 'transformer-engine=1.13'; expected transformer-engine=2.7 or "),
        ("flash-attn", "there is no stand-in for 'flash-attn'; expected "),
        ("apex,apex", "'apex,apex' names a package twice; expected one version of each"),
    ],
)
def test_what_has_no_stand_in_is_refused(names: str, sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        main(["--recipe", "gams/focus", "--with", names])
    assert str(error.value).startswith(sentence)


def test_a_torch_that_cannot_rehearse_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    require_torch()
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.9.0a0+50eac811a6")
    with pytest.raises(ValueError, match=r"a rehearsal needs torch 2\.13 or newer, found 2\.9\.0a0"):
        require_torch()


def test_named_ranks_are_those_of_the_stages() -> None:
    recipe = compose_recipe("gams/focus", ["parallel.pipeline_parallel_size=2"])
    assert requested_ranks(recipe, "stages") == [0, 31, 32, 63]
    assert requested_ranks(recipe, "last,first,5") == [0, 5, 63]
