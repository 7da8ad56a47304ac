"""Schedules in the engine: the rate of every step, batches that grow, tables with a rate of their own; interrupted, and at other layouts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.artifacts import read_manifest
from conversion.checkpoints.factors import COORDINATES, PRIMITIVES
from recipes.numbers.arithmetic import embedding_learning_rate, learning_rate
from recipes.rules.schema import RampUpRecipe, ScheduleRecipe
from tests.nemo_patches.test_stand_ins import NEWEST
from tests.processes import call_command
from tests.recipes.watched_runs import SEQUENCE_LENGTH, Runs

STEPS = 10
# Layouts sum in another order, so float32 losses differ in the last digits.
LAYOUT_TOLERANCE = 1e-5
RAMP = ("+schedule.ramp_up.start_batch_size=4", "+schedule.ramp_up.batch_size_increment=4", "+schedule.ramp_up.samples=28")
# All of them in one run: batches of 4, 8 and 12 samples, a rate that is held and falls, tables at ten times the others' rate.
SETTINGS = (
    *RAMP,
    "schedule.global_batch_size=12",
    f"schedule.max_steps={STEPS}",
    "schedule.constant_steps=1",
    "schedule.decay_style=wsd",
    "schedule.decay_steps=4",
    "schedule.wsd_decay_style=minus_sqrt",
    "schedule.embedding_learning_rate=1e-2",
    "schedule.embedding_min_learning_rate=1e-3",
    "schedule.embedding_weight_decay=0.3",
    "run.checkpoint_every_steps=4",
    "run.validate_every_steps=5",
)
SCHEDULE = ScheduleRecipe(
    global_batch_size=12,
    micro_batch_size=2,
    learning_rate=1e-3,
    min_learning_rate=1e-4,
    warmup_steps=2,
    constant_steps=1,
    decay_style="wsd",
    decay_steps=4,
    wsd_decay_style="minus_sqrt",
    embedding_learning_rate=1e-2,
    embedding_min_learning_rate=1e-3,
    ramp_up=RampUpRecipe(4, 4, 28),
)


@pytest.fixture(scope="module")
def untied(untied_hf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny OPT whose output layer is a matrix of its own."""
    checkpoint = tmp_path_factory.mktemp("untied") / "nemo"
    call_command("conversion.hf_to_nemo", "--input", untied_hf, "--output", checkpoint)
    return checkpoint


@pytest.fixture(scope="module")
def whole(runs: Runs) -> dict[str, Any]:
    return runs.train("whole", *SETTINGS, tensor_parallel_size=1)


def _steps(runs: Runs, name: str) -> list[dict[str, Any]]:
    return [record for record in runs.records(name) if "loss" in record]


def test_rates_and_batches_are_the_closed_forms_at_every_step(runs: Runs, whole: dict[str, Any]) -> None:
    records, batches = _steps(runs, "whole"), SCHEDULE.batches
    assert [record["batch_size"] for record in records] == [4, 4, 4, 4, 8, 8, 12, 12, 12, 12]
    assert [record["batch_size"] for record in records] == [batches.size(step) for step in range(STEPS)]
    assert [record["tokens"] for record in records] == [batches.samples(step) * SEQUENCE_LENGTH for step in range(1, STEPS + 1)]
    for key, rate in (("learning_rate", learning_rate), ("embedding_learning_rate", embedding_learning_rate)):
        assert [record[key] for record in records] == pytest.approx([rate(step, SCHEDULE, steps=STEPS) for step in range(STEPS)], rel=1e-12)


@pytest.mark.long
def test_a_ramp_that_passes_over_the_data_takes_every_whole_batch_of_them(runs: Runs) -> None:
    """`schedule.epochs` in place of `max_steps`: steps are those that the samples fill with batches that grow."""
    settings = [setting for setting in SETTINGS if not setting.startswith("schedule.max_steps")]
    manifest = read_manifest(runs.inputs.held_out)
    assert manifest is not None
    samples = (manifest.facts["num_tokens"] - 1) // SEQUENCE_LENGTH  # each reads the first token of the next as the last that it predicts
    data = (f"data.train=[{runs.inputs.held_out}]", "schedule.max_steps=null", "schedule.epochs=1")
    runs.train("passes", *settings, *data, tensor_parallel_size=1)
    batches, sizes = SCHEDULE.batches, [record["batch_size"] for record in _steps(runs, "passes")]
    assert sizes == [batches.size(step) for step in range(batches.whole_steps(samples))]
    assert sizes[-1] == 12 and 0 <= samples - sum(sizes) < 12


@pytest.mark.slow
def test_in_the_middle_of_the_ramp_it_goes_on_at_other_layouts(runs: Runs, whole: dict[str, Any]) -> None:
    """From data parallel 2 at tensor and at pipeline parallel 2 and back: the same samples at the same rates."""
    cut = runs.train("cut", *SETTINGS, tensor_parallel_size=1, at_step=["file", 4, str(runs.directory / "cut/exit")])
    assert (len(cut["losses"]), cut["losses"]) == (5, whole["losses"][:5]), "cut behind the first step of 8 samples"
    tensor = runs.train("tensor", *SETTINGS, after="cut")
    assert tensor["losses"] == pytest.approx(whole["losses"][5:], abs=LAYOUT_TOLERANCE)
    pipeline = runs.train("pipeline", *SETTINGS, "parallel.pipeline_parallel_size=2", tensor_parallel_size=1, after="cut")
    assert pipeline["losses"] == pytest.approx(whole["losses"][5:], abs=LAYOUT_TOLERANCE)
    again = runs.train("again", *SETTINGS, tensor_parallel_size=1, after="cut")
    assert again["losses"] == whole["losses"][5:], "the same layout goes on bit for bit"
    for name in ("tensor", "pipeline", "again"):
        assert _rates(runs, name) == pytest.approx(_rates(runs, "whole"), rel=1e-12)


TABLES = {
    "tied": ["embedding.word_embeddings.weight"],
    "factors": [COORDINATES, PRIMITIVES],
    "untied": ["embedding.word_embeddings.weight", "output_layer.weight", "second_head.weight"],
}
# What the engine's fused kernels round differently from plain AdamW, at rates of 1e-3 and 1e-2 over 4 steps.
ROUNDING = 1e-6


@pytest.mark.some(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "tensor_parallel_size", "overrides", "kernels"),
    [
        ("tensor", "tied", 2, (), ""),
        ("kernels", "tied", 2, (), NEWEST),
        ("pipeline", "tied", 1, ("parallel.pipeline_parallel_size=2",), ""),
        ("replicas", "tied", 1, ("parallel.distributed_optimizer=false", "freeze=[{frozen:[bottom_1_layers]}]"), ""),
        ("heads", "untied", 2, ("+objective=two_tokens",), ""),
        ("factors", "factors", 2, (), ""),
        ("adapters", "untied", 2, ("+procedure=lora",), ""),
    ],
)
def test_tables_are_updated_as_by_plain_adamw_with_groups(
    runs: Runs,
    untied: Path,
    factorised: Path,
    name: str,
    kind: str,
    tensor_parallel_size: int,
    overrides: tuple[str, ...],
    kernels: str,
) -> None:
    """Step by step: the tables at ten times the rate and another decay, positions and all else as they were."""
    checkpoint = {
        "tied": (),
        "untied": (f"model.checkpoint={untied}",),
        "factors": (
            f"model.checkpoint={factorised / 'nemo'}",
            f"model.factors={factorised / 'hf/factors.safetensors'}",
            "model.factorised_size=6",
        ),
    }[kind]
    settings = (
        *checkpoint,
        "schedule.max_steps=4",
        "schedule.warmup_steps=1",
        "schedule.constant_steps=0",
        "schedule.decay_style=linear",
        "schedule.embedding_learning_rate=1e-2",
        "schedule.embedding_weight_decay=0.3",
        "schedule.clip_gradient_norm=0",
        "run.checkpoint_every_steps=4",
        "run.validate_every_steps=null",
    )
    schedule = replace(SCHEDULE, warmup_steps=1, constant_steps=0, decay_style="linear", embedding_min_learning_rate=None, decay_steps=None)
    rates = [(learning_rate(step, schedule, steps=4), embedding_learning_rate(step, schedule, steps=4)) for step in range(4)]
    assert rates[1] == (1e-3, 1e-2)
    ranks = runs.train_ranks(
        f"tables-{name}",
        *settings,
        *overrides,
        tensor_parallel_size=tensor_parallel_size,
        at_step=["plain", TABLES[kind], rates, (0.01, 0.3)],
        transformer_engine=kernels,
    )
    for rank in ranks:
        assert rank["furthest"] and max(rank["furthest"].values()) < ROUNDING, rank["furthest"]
    assert {table for rank in ranks for table in rank["furthest"]} >= set(TABLES[kind][: 3 if name == "heads" else 2])


def _rates(runs: Runs, name: str) -> list[float]:
    return [record[key] for record in _steps(runs, name) for key in ("learning_rate", "embedding_learning_rate", "batch_size")]
