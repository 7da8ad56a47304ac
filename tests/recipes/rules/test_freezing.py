"""Frozen parameters keep their bits until their step, at every layout and over every interruption; clipping does not see them."""

from __future__ import annotations

import math
import shutil
from typing import Any

import pytest

from recipes.rules.freezing import NEVER, TOKEN_TABLE, first_trained_steps, model_parameter_names, pipeline_stages
from recipes.rules.schema import FreezeRule
from tests.recipes.watched_runs import Runs
from tests.refusals import refused

MODEL = {"num_layers": 5, "share_embeddings_and_output_weights": False}
NAMES = model_parameter_names("opt", MODEL, source="the model")
STEPS, UNTIL = 8, 4
CLIP = 0.01  # below the norm of every gradient here
# Two rules at once: body and positions until a step, one layer for good.
FREEZE = f"freeze=[{{trained:[embeddings],until_step:{UNTIL}}},{{frozen:[bottom_1_layers]}}]"
SETTINGS = (
    *(f"schedule.max_steps={STEPS}", "schedule.warmup_steps=1", "schedule.constant_steps=0", f"schedule.clip_gradient_norm={CLIP}"),
    *("run.checkpoint_every_steps=100", "run.validate_every_steps=100", FREEZE),
)
# Layouts sum in another order, so float32 losses and norms differ in the last digits.
LAYOUT_TOLERANCE = 1e-5


def _trained(*rules: FreezeRule, tied: bool = False) -> dict[str, float]:
    names = [name for name in NAMES if not tied or name != "output_layer.weight"]
    return first_trained_steps(rules, names, tied=tied)


def test_names_are_those_of_the_checkpoint() -> None:
    assert len(NAMES) == 2 + 5 * 12 + 2 + 1
    assert {"embedding.position_embeddings.weight", "decoder.layers.4.mlp.linear_fc1.layer_norm_bias", "output_layer.weight"} <= set(NAMES)


def test_everything_but_tables_and_final_norm() -> None:
    steps = _trained(FreezeRule(trained=("embeddings", "output", "final_norm"), until_step=1500))
    free = {"embedding.word_embeddings.weight", "output_layer.weight", "decoder.final_layernorm.weight", "decoder.final_layernorm.bias"}
    assert {name for name, step in steps.items() if step == 0} == free
    assert {step for name, step in steps.items() if name not in free} == {1500}


def test_both_ends_by_layers_of_the_whole_model() -> None:
    steps = _trained(FreezeRule(trained=("embeddings", "output", "top_2_layers", "bottom_2_layers")))
    layers = {int(name.split(".")[2]) for name, step in steps.items() if name.startswith("decoder.layers.") and step == 0}
    assert layers == {0, 1, 3, 4}
    assert all(steps[name] == NEVER for name in NAMES if name.startswith("decoder.layers.2."))


def test_the_last_step_of_several_rules_counts_and_patterns_match_names() -> None:
    steps = _trained(FreezeRule(frozen=("body",), until_step=10), FreezeRule(frozen=("*.layer_norm_*",), until_step=20))
    assert steps["decoder.layers.2.mlp.linear_fc1.layer_norm_weight"] == 20
    assert steps["decoder.layers.2.mlp.linear_fc1.weight"] == 10
    assert steps["embedding.word_embeddings.weight"] == 0


def test_output_is_the_token_table_where_they_are_one_matrix() -> None:
    assert _trained(FreezeRule(frozen=("output",)), tied=True)["embedding.word_embeddings.weight"] == NEVER


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (FreezeRule(), "freeze[0] has to give either frozen or trained, not both"),
        (FreezeRule(frozen=("body",), trained=("output",)), "freeze[0] has to give either frozen or trained, not both"),
        (FreezeRule(frozen=("*",)), "freeze leaves no trainable parameters in the first step; name what is trained"),
        (
            FreezeRule(frozen=("embeding",)),
            "freeze[0] names embeding, which matches no parameter of the model; the nearest are embeddings, "
            "embedding.word_embeddings.weight, and the ready-made sets are embeddings, positions, output, final_norm, layers, body, adapters,"
            " top_2_layers, bottom_2_layers",
        ),
    ],
)
def test_refusals(rule: FreezeRule, sentence: str) -> None:
    with refused(sentence):
        _trained(rule)


def test_more_layers_than_there_are_match_nothing() -> None:
    with pytest.raises(ValueError, match=r"freeze\[0\] names top_6_layers, which matches no parameter of the model"):
        _trained(FreezeRule(frozen=("top_6_layers",)))


def test_pipeline_stages_of_a_parameter() -> None:
    def stages(name: str, *, tied: bool = False) -> set[int]:
        return pipeline_stages(name, num_layers=4, num_stages=2, tied=tied)

    assert [stages(f"decoder.layers.{layer}.mlp.linear_fc2.bias") for layer in range(4)] == [{0}, {0}, {1}, {1}]
    assert (stages("embedding.position_embeddings.weight"), stages("output_layer.weight")) == ({0}, {1})
    assert stages("embedding.word_embeddings.weight", tied=True) == {0, 1}


# -- the engine -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uninterrupted(runs: Runs) -> list[dict[str, Any]]:
    """Tensor parallel 2, a checkpoint before, at and after the step of the release."""
    return runs.train_ranks("uninterrupted", *SETTINGS, "run.checkpoint_every_steps=2")


def _is_exact(seen: list[dict[str, Any]]) -> None:
    """Every parameter changes in its own first step, except those of the layer that is frozen for good, which never do."""
    names = {name for rank in seen for name in rank["parameters"]}
    assert any(".layers.1." in name for name in names)
    for rank in seen:
        for name in rank["parameters"]:
            # The rate of step 0 is 0, so nothing moves before step 1.
            expected = None if ".layers.0." in name else 1 if name == TOKEN_TABLE else UNTIL
            assert rank["first_changed"].get(name) == expected, name


@pytest.fixture(scope="module")
def data_parallel(runs: Runs) -> list[dict[str, Any]]:
    """Tensor parallel 1, the optimizer's state over two replicas."""
    return runs.train_ranks("data_parallel", *SETTINGS, tensor_parallel_size=1)


def test_frozen_tensors_keep_their_bits_at_tensor_parallel_2(uninterrupted: list[dict[str, Any]]) -> None:
    _is_exact(uninterrupted)


def test_frozen_tensors_keep_their_bits_at_data_parallel_2(
    uninterrupted: list[dict[str, Any]], data_parallel: list[dict[str, Any]]
) -> None:
    _is_exact(data_parallel)
    assert data_parallel[0]["losses"] == pytest.approx(uninterrupted[0]["losses"], abs=LAYOUT_TOLERANCE)


@pytest.mark.long
def test_parts_of_sequences_and_layers_computed_again_change_neither_losses_nor_norms(
    runs: Runs, uninterrupted: list[dict[str, Any]]
) -> None:
    """With the distributed optimizer and overlapped communication; what is frozen keeps its bits."""
    seen = runs.train_ranks("parts", *SETTINGS, "parallel.sequence_parallel=true", "+recomputation={}")
    _is_exact(seen)
    assert seen[0]["losses"] == pytest.approx(uninterrupted[0]["losses"], abs=1e-5)
    assert seen[0]["gradient_norms"] == pytest.approx(uninterrupted[0]["gradient_norms"], rel=1e-5)


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(("parallel.distributed_optimizer=false", "parallel.overlap_communication=false"), id="plain optimizer"),
        pytest.param(("parallel.pipeline_parallel_size=2",), id="pipeline"),
    ],
)
def test_frozen_tensors_keep_their_bits_at_other_layouts(
    runs: Runs, uninterrupted: list[dict[str, Any]], overrides: tuple[str, ...]
) -> None:
    seen = runs.train_ranks("_".join(overrides), *SETTINGS, *overrides, tensor_parallel_size=1)
    _is_exact(seen)
    assert seen[0]["losses"] == pytest.approx(uninterrupted[0]["losses"], abs=LAYOUT_TOLERANCE)


@pytest.mark.long
def test_frozen_tensors_keep_their_bits_in_mixed_precision(runs: Runs) -> None:
    """Released matrices change at once; bfloat16 does not hold such small changes of a norm's weights, which are 1."""
    seen = runs.train("mixed", *SETTINGS, "precision=bf16", tensor_parallel_size=1)
    changed = seen["first_changed"]
    assert not any(".layers.0." in name for name in changed)
    assert {step for name, step in changed.items() if name.startswith("decoder.")} == {UNTIL}
    assert {name for name in seen["parameters"] if ".layers.1." in name and name.endswith(".weight")} <= changed.keys()


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize(("step", "tensor_parallel_size"), [(2, 1), (4, 2), (6, 1)])
def test_resumed_before_at_and_after_the_release(
    runs: Runs, uninterrupted: list[dict[str, Any]], step: int, tensor_parallel_size: int
) -> None:
    """At the same layout bit for bit, at another one up to the order of sums."""
    name = f"resumed_{step}"
    shutil.copytree(runs.directory / "uninterrupted", runs.directory / name)
    for checkpoint in (runs.directory / name / "checkpoints").glob("step_*"):
        if int(checkpoint.name.removeprefix("step_")) > step:
            shutil.rmtree(checkpoint)
    seen = runs.train_ranks(name, *SETTINGS, "run.checkpoint_every_steps=2", tensor_parallel_size=tensor_parallel_size)
    expected = uninterrupted[0]["losses"][step:]
    assert seen[0]["losses"] == (expected if tensor_parallel_size == 2 else pytest.approx(expected, abs=LAYOUT_TOLERANCE))
    still_frozen = {name for name in seen[0]["parameters"] if name.startswith("decoder.") and ".layers.0." not in name}
    assert {seen[0]["first_changed"][name] for name in still_frozen} == {max(step, UNTIL)}
    assert not any(".layers.0." in name for name in seen[0]["first_changed"])


def test_gradient_norm_and_clipping_are_those_of_the_trained_parameters(
    runs: Runs, uninterrupted: list[dict[str, Any]], data_parallel: list[dict[str, Any]]
) -> None:
    """The reference is a run in which nothing is frozen: in step 0 it has the same weights, and so the same gradients."""
    changes = ("parallel.distributed_optimizer=false", "schedule.max_steps=2", "schedule.clip_gradient_norm=1000.0", "freeze=[]")
    free = runs.train_ranks("free", *SETTINGS, *changes, tensor_parallel_size=1)
    gradients = free[0]["gradients"]
    trained = gradients[TOKEN_TABLE]
    assert free[0]["gradient_norms"][0] == pytest.approx(math.hypot(*gradients.values()), rel=1e-5)
    assert free[0]["gradient_norms"][0] > 1.1 * trained > CLIP, "neither the frozen gradients nor clipping would show"
    for layout in (uninterrupted, data_parallel):
        assert layout[0]["gradient_norms"][0] == pytest.approx(trained, rel=1e-5)
        # After one step Adam's first moments are (1 - beta1) times the clipped gradient, whose norm is the limit; all else would be a leak.
        assert layout[0]["moments"][0] == pytest.approx(0.1 * CLIP, rel=1e-3)
