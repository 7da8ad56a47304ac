"""The planner: parameters by name, costs, ranked layouts, refusals, and its agreement with published throughput."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.planner import BOUND, Row, error, fit, rows, table
from conversion.families import FAMILIES
from nemo_patches.lora_parts import adapter_names
from recipes.numbers.batches import Batches, Stretch
from recipes.plan import main
from recipes.planner import costs
from recipes.planner.estimate import estimate_run, refusal
from recipes.planner.hardware import GPUS, find_gpu, gpu_of, has_known_rates, visible_gpu
from recipes.planner.layout import Layout, layout_of
from recipes.planner.memory import estimate_host, estimate_memory, host_refusal, kept_bytes, stage_memory
from recipes.planner.parameters import PlannedModel, count_parameters
from recipes.planner.ranking import judge, layouts, legal_tensor_sizes, ranked
from recipes.planner.report import parameter_section
from recipes.planner.throughput import CALIBRATED, exchanged_bytes, step_time
from recipes.rules.compose import compose_recipe
from recipes.rules.freezing import model_parameter_names
from recipes.rules.schema import RecomputationRecipe
from tests.conversion.tiny_families import CASES, PUBLISHED, tiny_model
from tests.processes import ROOT
from tests.recipes.numbers.test_arithmetic import OPT_1B
from tests.refusals import refused

GAMS = PlannedModel(OPT_1B, vocab_rows=80_000)
PAPER_GPU = GPUS["a100-40gb"]
ON_64 = Layout(
    tensor_parallel_size=1,
    pipeline_parallel_size=1,
    data_parallel_size=64,
    micro_batch_size=4,
    accumulation_steps=4,
    sequence_length=2048,
    devices_per_node=4,
)


@pytest.mark.parametrize("name", CASES)
def test_parameters_by_name_are_those_of_the_model(name: str) -> None:
    config = tiny_model(name).config
    tied = bool(config.get_text_config().tie_word_embeddings)
    model = FAMILIES[CASES[name].model_type].megatron_config(config.to_dict(), tied=tied, source=name)
    planned = PlannedModel(model, vocab_rows=model["vocab_size"])
    count = count_parameters(model, vocab_size=model["vocab_size"]).total  # that of the model itself, as test_arithmetic.py shows
    assert sum(parameter.numel for parameter in planned.parameters.values()) == count
    assert planned.rank(tensor_parallel_size=1, pipeline_parallel_size=1, stage=0).held == count
    assert set(planned.parameters) == set(model_parameter_names(CASES[name].model_type, model, source=name))
    assert sum(int(str(number)) for number in parameter_section(planned).values()) == count, "each has its part in the plan"


def test_experts_are_cut_only_where_sequences_are_too() -> None:
    """As they are trained alone; and each is cut, not all of a token's together."""
    config = FAMILIES["qwen3_moe"].megatron_config(PUBLISHED["qwen3-30b-a3b"], tied=False, source="x")
    found = list(layouts(PlannedModel(config, vocab_rows=151_936), ON_64, 64))
    assert {layout.tensor_parallel_size for layout in found} == {1, 2, 4}
    assert all(layout.sequence_parallel == (layout.tensor_parallel_size > 1) for layout in found)
    assert legal_tensor_sizes({**config, "moe_ffn_hidden_size": 770}, 151_936, limit=8) == [1, 2]


def test_frozen_parameters_need_neither_gradients_nor_optimizer() -> None:
    body = frozenset(name for name in GAMS.parameters if name.startswith("decoder."))
    whole, frozen = estimate_memory(GAMS, ON_64), estimate_memory(replace(GAMS, frozen=body), ON_64)
    trained = 2 * 80_000 * 2048 + 2048 * 2048
    assert frozen.parameters == whole.parameters
    assert (frozen.gradients, frozen.optimizer) == (4 * trained, 12 * trained / 64)


def test_names_of_adapters_are_the_engines() -> None:
    model = PlannedModel({**OPT_1B, "gated_linear_unit": True}, vocab_rows=80_000, adapter_rank=8)
    assert {name for name in model.parameters if ".lora." in name} == set(adapter_names(num_layers=24, is_gated=True))


def test_a_second_head_costs_a_matrix_and_its_logits() -> None:
    one, two = estimate_memory(GAMS, ON_64), estimate_memory(replace(GAMS, num_heads=2), ON_64)
    assert two.parameters - one.parameters == 2 * 80_000 * 2048
    # Of the first head the 32-bit softmax stays; its 16-bit logits are gone when the second head's are there.
    assert two.logits == one.logits + 4 * 2048 * 80_000 * 4


def test_logits_are_counted_as_rehearsals_count_them() -> None:
    """The 32-bit softmax, the copy of it that the compiled loss writes in, and the 16-bit gradients: what an H200 was seen to need."""
    assert estimate_memory(GAMS, ON_64).logits == 4 * 2048 * 80_000 * (4 + 4 + 2)
    assert estimate_memory(GAMS, ON_64, kernels="cpu").logits == 4 * 2048 * 80_000 * (4 + 2)


def test_a_node_holds_what_its_processes_save_and_load() -> None:
    """Of the optimizer a part each; of the model at most the largest tensor, where a replica's share is smaller; loaded chunks twice."""
    table, numbers = 80_000 * 2048, GAMS.rank(tensor_parallel_size=1, pipeline_parallel_size=1, stage=0)
    host = estimate_host(GAMS, ON_64)
    assert host.processes == 4
    assert host.save == 4 * (12 * numbers.trained / 64 + 2 * table)
    assert host.load == 4 * 2 * 2 * table
    alone = replace(ON_64, data_parallel_size=1, devices_per_node=1)
    assert estimate_host(GAMS, alone).save == 12 * numbers.trained + 2 * numbers.held
    [sentence] = host_refusal(GAMS, ON_64, memory_gib=13, has="the node has")
    assert sentence == (
        "saving and loading checkpoints take at most 14 GiB of a node: 2.3 while saving, 2.4 while loading, and 4 processes of 3 (assumed),"
        " but the node has 13 GiB; spread the run over more nodes with fewer devices each (parallel.num_nodes, parallel.devices_per_node);"
        " parallel.check_memory=false skips this check"
    )


def test_frozen_adapters_keep_what_was_dropped_alone() -> None:
    model = PlannedModel(OPT_1B, vocab_rows=80_000, adapter_rank=8)
    adapters = frozenset(name for name in model.parameters if name.startswith("decoder.layers.3.") and ".lora." in name)
    with_inputs, without = estimate_memory(model, ON_64), estimate_memory(replace(model, frozen=adapters), ON_64)
    widths = 4 * 2048 + 2048 + 8192  # queries, keys, values and the first feed-forward layer see the hidden state
    assert with_inputs.activations - without.activations == 4 * 2048 * 2 * widths


def test_frozen_linear_layers_do_not_keep_their_inputs() -> None:
    """Queries' and the feed-forward layer's input; ReLU keeps the other's for itself."""
    body = frozenset(
        f"decoder.layers.{index}.{name}.weight" for index in range(6) for name in ("self_attention.linear_qkv", "mlp.linear_fc1")
    )
    whole, frozen = estimate_memory(GAMS, ON_64), estimate_memory(replace(GAMS, frozen=body), ON_64)
    assert whole.activations - frozen.activations == 4 * 2048 * 6 * 2 * (2048 + 2048)
    split = replace(ON_64, pipeline_parallel_size=2, data_parallel_size=32)
    stages = [stage_memory(replace(GAMS, frozen=body), split, stage).activations for stage in (0, 1)]
    assert stages[0] < 2 * stages[1], "the first stage has twice the micro batches on their way, and the frozen layers"


def test_a_factorised_table_is_its_factors() -> None:
    model = PlannedModel({**OPT_1B, "share_embeddings_and_output_weights": True}, vocab_rows=80_000)
    whole = model.rank(tensor_parallel_size=2, pipeline_parallel_size=1, stage=0).held
    factors = replace(model, factorised_size=100).rank(tensor_parallel_size=2, pipeline_parallel_size=1, stage=0).held
    assert whole - factors == 40_000 * 2048 - (40_000 * 100 + 100 * 2048)


def test_mosaic_models_have_their_published_parameters() -> None:
    """So that what the time model is calibrated on is the models that were measured."""
    published = {("125m", 2048): 125_311_488, ("1b", 8192): 1_328_533_504, ("7b", 2048): 6_658_859_008, ("13b", 4096): 12_864_440_320}
    for (size, length), count in published.items():
        model = next(row.model for row in rows() if row.name.startswith(f"MPT-{size}, {length},"))
        assert count_parameters(model.config, vocab_size=50_368).total == count


def test_state_of_gams_is_that_of_a_hand_calculation() -> None:
    """1.540 B parameters: 2 + 4 bytes each, and 12 over the replicas; activations of 2 sequences fill what is left."""
    memory = estimate_memory(GAMS, ON_64)
    parameters = 1_540_476_928
    assert memory.state == pytest.approx(parameters * (2 + 4 + 12 / 64))
    assert memory.activations == pytest.approx(4 * 2048 * 24 * (16 * 2048 + 2 * 8192 + 4 * 32 + 8))
    split = estimate_memory(GAMS, replace(ON_64, tensor_parallel_size=4, data_parallel_size=16))
    whole_on_each = 2048 * 2048 + 2048 * (2 * 24 * 2 + 2) + 24 * 2 * 2048  # positions, norms, biases of row-parallel layers
    assert split.parameters == 2 * ((parameters - whole_on_each) / 4 + whole_on_each)


@pytest.mark.parametrize(("save", "failure"), [(10.0, 3e6), (60.0, 1e5), (600.0, 2e4)])
def test_checkpoint_interval_loses_the_least(save: float, failure: float) -> None:
    """Daly's closed form against the minimum of the expected time (his equation 20), and Young's root for short saves."""

    def lost(interval: float) -> float:
        return failure * math.expm1((interval + save) / failure) / interval

    found = costs.checkpoint_interval(save, failure)
    least = min(lost(found * (0.5 + step / 1000)) for step in range(1, 1000))
    assert lost(found) <= least * 1.0001
    if save < failure / 1e4:
        assert found == pytest.approx(math.sqrt(2 * save * failure), rel=0.01)


def test_gams_at_tensor_parallel_1_beats_the_papers_4_and_says_why() -> None:
    assert layout_of(compose_recipe("gams/opt_gams", ["parallel.tensor_parallel_size=1"])) == replace(ON_64, hidden_dropout=True)
    choices = ranked(GAMS, ON_64, PAPER_GPU, num_devices=64)
    # Micro batches of 8 would be hardly faster than the recipe's 4, and fit only with layers computed again, which makes them slower.
    assert [choice.layout.micro_batch_size for choice in choices[:2]] == [4, 8] and choices[0].layout == ON_64
    assert "4 layers of a stage recomputed" in str(choices[1].layout) and choices[1].tokens_per_second < choices[0].tokens_per_second
    larger = judge(GAMS, replace(ON_64, micro_batch_size=8, accumulation_steps=2), PAPER_GPU)
    assert not larger.fit.fits and choices[0].tokens_per_second < larger.tokens_per_second < 1.01 * choices[0].tokens_per_second
    by_size = {size: next(c for c in choices if c.layout.tensor_parallel_size == size) for size in (1, 2, 4)}
    assert by_size[1].tokens_per_second > by_size[2].tokens_per_second > by_size[4].tokens_per_second
    assert by_size[4].time.tensor_parallel > 0.1 and by_size[1].time.tensor_parallel == 0.0
    # What made 4 look natural: without the distributed optimizer 1 does not fit.
    alone = judge(GAMS, replace(ON_64, distributed_optimizer=False), PAPER_GPU)
    assert choices[0].fit.fits and not alone.fit.fits
    assert alone.memory.optimizer == 64 * choices[0].memory.optimizer
    fitting = [choice.fit.fits for choice in choices]
    assert fitting == sorted(fitting, reverse=True)


def test_ranked_layouts_are_legal() -> None:
    model = PlannedModel({**OPT_1B, "num_query_groups": 8}, vocab_rows=80_128)
    for choice in ranked(model, ON_64, PAPER_GPU, num_devices=48):
        layout = choice.layout
        assert layout.num_devices == 48 and layout.step_tokens == ON_64.step_tokens
        assert 8 % layout.tensor_parallel_size == 0 and 24 % layout.pipeline_parallel_size == 0


def test_cut_samples_need_less_memory_and_exchange_keys_and_values() -> None:
    """Llama 3.1's layer: 1,024 keys and as many values of a token, in 16 bit, three times around a ring of four."""
    config = FAMILIES["llama"].megatron_config(PUBLISHED["llama-3.1-8b"], tied=False, source="llama")
    model = PlannedModel(config, vocab_rows=128_256)
    whole = Layout(1, 1, 8, 1, 16, 32_768, 8)
    cut = replace(whole, context_parallel_size=4, data_parallel_size=2, accumulation_steps=64)
    assert (cut.num_devices, cut.step_tokens, cut.micro_batch_tokens) == (whole.num_devices, whole.step_tokens, 8192)
    one, four = (estimate_memory(model, layout) for layout in (whole, cut))
    assert four.state == one.state  # ranks that share samples share the optimizer's state, as replicas do
    assert four.activations <= one.activations / 4 and four.logits == one.logits / 4
    assert exchanged_bytes(model, whole) == 0 and exchanged_bytes(model, cut) == 3 * 3 * 8192 * 2 * (1024 + 1024)
    gpu = GPUS["h100-80gb"]
    times = [judge(model, layout, gpu).time for layout in (whole, cut)]
    assert times[1].attention == pytest.approx(times[0].attention)
    assert (
        times[1].context_parallel == pytest.approx(64 * 32 * exchanged_bytes(model, cut) / (0.77 * 450e9)) and not times[0].context_parallel
    )
    over_nodes = judge(model, replace(cut, devices_per_node=2), gpu).time
    assert over_nodes.context_parallel > times[1].context_parallel


def test_llama_3_at_131072_tokens_is_little_slower_than_at_8192() -> None:
    """Dubey et al. 2024, table 4: 380 TFLOP/s of a GPU with context parallel 16, 400 without, else the same; they gather keys as we do.

    What its interleaved pipeline saves is in both rows and not modelled, so the rates themselves are not compared.
    """
    sizes = {"hidden_size": 16_384, "intermediate_size": 53_248, "num_hidden_layers": 128, "num_attention_heads": 128}
    config = FAMILIES["llama"].megatron_config({**PUBLISHED["llama-3.1-8b"], **sizes}, tied=False, source="llama")
    model = PlannedModel(config, vocab_rows=128_256)
    short = Layout(8, 16, 128, 1, 16, 8192, 8)
    long = replace(short, data_parallel_size=8, sequence_length=131_072, context_parallel_size=16)
    assert long.num_devices == short.num_devices == 16_384 and long.step_tokens == short.step_tokens == 2**24
    slower, faster = (judge(model, layout, GPUS["h100-80gb"]) for layout in (long, short))
    assert slower.mfu / faster.mfu == pytest.approx(380 / 400, rel=0.15)
    assert slower.time.context_parallel / slower.time.total < 0.05


def test_cutting_samples_is_ranked_where_they_are_long() -> None:
    config = FAMILIES["llama"].megatron_config(PUBLISHED["llama-3.1-8b"], tied=False, source="llama")
    model, long = PlannedModel(config, vocab_rows=128_256), Layout(8, 1, 8, 1, 2, 65_536, 8)
    choices = ranked(model, long, GPUS["h100-80gb"], num_devices=64)
    assert {choice.layout.context_parallel_size for choice in choices} == {1, 2, 4, 8, 16, 32}
    assert all(choice.layout.num_devices == 64 and choice.layout.step_tokens == long.step_tokens for choice in choices)
    assert choices[0].fit.fits and choices[0].layout.context_parallel_size > 1
    assert {choice.layout.context_parallel_size for choice in ranked(GAMS, ON_64, PAPER_GPU, num_devices=64)} == {1}
    asked = replace(ON_64, context_parallel_size=2, data_parallel_size=32, accumulation_steps=8)
    assert {choice.layout.context_parallel_size for choice in ranked(GAMS, asked, PAPER_GPU, num_devices=64)} == {1, 2}


def test_a_layout_that_does_not_fit_is_refused_with_the_numbers() -> None:
    assert refusal(GAMS, ON_64, PAPER_GPU) == []
    assert refusal(GAMS, replace(ON_64, micro_batch_size=16, accumulation_steps=1), PAPER_GPU) == [
        "the layout (TP 1 x PP 1 x DP 64, micro batch 16) needs 72.1 GiB on each a100-40gb, which has 39.4: 8.9 of weights, gradients and"
        " optimizer, 36.1 of activations, 24.4 of logits; the fastest that fits is TP 1 x PP 1 x DP 64, micro batch 4 (26.6 GiB);"
        " parallel.check_memory=false skips this check"
    ]
    one = replace(ON_64, data_parallel_size=1, accumulation_steps=1, micro_batch_size=1)
    huge = PlannedModel({**OPT_1B, "num_layers": 240}, vocab_rows=80_000)
    assert "no layout on 1 of them fits" in refusal(huge, one, PAPER_GPU)[0]


def _korthikanti(name: str) -> tuple[PlannedModel, Layout]:
    row = next(row for row in rows() if row.name.startswith(f"GPT-{name},") and row.layout.sequence_parallel)
    return row.model, row.layout


@pytest.mark.parametrize("name", ["22B", "175B", "530B", "1T"])
def test_activations_are_those_of_korthikanti(name: str) -> None:
    """Per token and hidden unit: 10 + 24 / t bytes, with sequence parallelism 34 / t, all layers computed again 2 (2022, table 2)."""
    model, layout = _korthikanti(name)
    layers = model.config["num_layers"]
    unit = layers * layout.micro_batch_tokens * model.shape.hidden

    def bytes_per_unit(**changes: Any) -> float:
        return kept_bytes(model, replace(layout, **changes), range(layers)).whole / unit

    # Beyond the paper's: statistics of norms and of flash attention.
    assert bytes_per_unit(sequence_parallel=False) == pytest.approx(10 + 24 / 8, rel=2e-3)
    assert bytes_per_unit() == pytest.approx(34 / 8, rel=2e-3)
    assert bytes_per_unit(sequence_parallel=False, recomputation=RecomputationRecipe()) == 2
    assert bytes_per_unit(recomputation=RecomputationRecipe()) == 2 / 8
    # With the scores that their baseline keeps (equation 2), both together are a fifth: "5x".
    scores = 5 * model.config["num_attention_heads"] * layout.sequence_length / model.shape.hidden / 8
    assert bytes_per_unit() / (10 + 24 / 8 + scores) == pytest.approx(0.18, abs=0.03)


@pytest.mark.parametrize(
    ("name", "published", "within"),
    [("22B", 1.42 / 1.10, 0.09), ("175B", 18.13 / 13.75, 0.05), ("530B", 49.05 / 37.83, 0.05), ("1T", 94.42 / 71.49, 0.05)],
)
def test_computing_all_layers_again_costs_what_korthikanti_measured(name: str, published: float, within: float) -> None:
    """Table 5: all layers again over sequence parallelism with attention again, which a flash kernel does anyway."""
    model, layout = _korthikanti(name)
    whole = replace(layout, sequence_parallel=False, recomputation=RecomputationRecipe())
    gpu = next(row.gpu for row in rows() if row.name.startswith("GPT-"))
    times = [step_time(model, each, gpu, kernels="te").total for each in (whole, layout)]
    assert times[0] / times[1] == pytest.approx(published, rel=within)


def test_as_few_layers_are_computed_again_as_a_layout_needs_to_fit() -> None:
    found = next(choice for choice in ranked(GAMS, ON_64, PAPER_GPU, num_devices=64) if choice.layout.recomputation is not None)
    asked = found.layout.recomputation
    assert found.fit.fits and asked is not None and asked.num_layers is not None and asked.num_layers > 1
    fewer = replace(found.layout, recomputation=replace(asked, num_layers=asked.num_layers - 1))
    assert not judge(GAMS, fewer, PAPER_GPU).fit.fits
    assert not judge(GAMS, replace(found.layout, recomputation=None), PAPER_GPU).fit.fits
    assert f"micro batch {found.layout.micro_batch_size}, {asked.num_layers} layers of a stage recomputed" in str(found.layout)


def test_sequence_parallelism_is_ranked_and_asks_for_less_memory_and_time() -> None:
    two = replace(ON_64, tensor_parallel_size=2, data_parallel_size=32, accumulation_steps=8)
    layouts = [choice.layout for choice in ranked(GAMS, ON_64, PAPER_GPU, num_devices=64)]
    assert two in layouts and replace(two, sequence_parallel=True) in layouts
    whole, cut = (judge(GAMS, layout, PAPER_GPU) for layout in (two, replace(two, sequence_parallel=True)))
    assert cut.fit.needed_gib < whole.fit.needed_gib and cut.time.total < whole.time.total
    assert cut.time.tensor_parallel == whole.time.tensor_parallel  # as many bytes are sent
    assert not any(layout.sequence_parallel for layout in layouts if layout.tensor_parallel_size == 1)


def test_batches_that_grow_take_less_time_but_the_same_for_the_optimizer() -> None:
    """256 and 512 of 1,024 samples for 100 steps each: hours are those of each step, and of what is left where the run goes on."""
    batches = Batches((Stretch(0, 0, 256), Stretch(100, 25_600, 512), Stretch(200, 76_800, 1024)))
    full = estimate_run(GAMS, ON_64, PAPER_GPU, steps=1_000)
    grown = estimate_run(GAMS, ON_64, PAPER_GPU, steps=1_000, batches=batches)
    small, middle = (step_time(GAMS, replace(ON_64, accumulation_steps=passes), PAPER_GPU) for passes in (1, 2))
    assert small.optimizer == full.choice.time.optimizer and small.products == full.choice.time.products / 4
    assert grown.hours == pytest.approx((100 * small.total + 100 * middle.total + 800 * full.choice.time.total) / 3600)
    left = estimate_run(GAMS, ON_64, PAPER_GPU, steps=1_000, first_step=150, batches=batches)
    assert left.hours == pytest.approx((50 * middle.total + 800 * full.choice.time.total) / 3600)
    assert left.steps == 850


def test_layouts_that_cannot_share_out_smaller_batches_are_not_ranked() -> None:
    """Batches of 96, 192 ... samples: neither 64 replicas nor micro batches that leave some over."""
    asked = replace(ON_64, batch_unit=96)
    found = [choice.layout for choice in ranked(GAMS, asked, PAPER_GPU, num_devices=64)]
    assert found and all(96 % (layout.data_parallel_size * layout.micro_batch_size) == 0 for layout in found)
    assert any(
        96 % (choice.layout.data_parallel_size * choice.layout.micro_batch_size)
        for choice in ranked(GAMS, ON_64, PAPER_GPU, num_devices=64)
    )


def test_unknown_gpu_names_the_known_ones() -> None:
    assert find_gpu("A100-40GB") is PAPER_GPU
    with refused(f"there is no GPU h200; did you mean h200-141gb? Known are {', '.join(GPUS)}"):
        find_gpu("h200")


@pytest.mark.parametrize(
    ("name", "gib", "known"),
    [
        ("NVIDIA A100-SXM4-40GB", 39.4, "a100-40gb"),
        ("NVIDIA A100-SXM-64GB", 63.4, "a100-64gb"),
        ("NVIDIA A100 80GB PCIe", 79.2, "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", 79.1, "h100-80gb"),
        ("NVIDIA H100", 62.5, "h100-64gb"),
        ("NVIDIA H200", 139.8, "h200-141gb"),
        ("NVIDIA B200", 178.4, "b200-180gb"),
        ("AMD Instinct MI250X", 64.0, "mi250x-64gb"),
        ("NVIDIA GB200", 184.0, None),
        ("NVIDIA H100 PCIe", 79.1, None),
        ("NVIDIA GH200 480GB", 94.5, "gh200-96gb"),
        ("NVIDIA GH200 120GB", 94.9, "gh200-96gb"),
        ("NVIDIA H100", 93.1, "h100-94gb"),
        ("NVIDIA GH200 144G HBM3e", 139.5, None),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 19.6, None),
        ("NVIDIA GeForce RTX 4090", 23.6, None),
    ],
)
def test_the_gpu_of_a_machine_is_known_by_name_and_memory(name: str, gib: float, known: str | None) -> None:
    found = gpu_of(name, round(gib * 2**30))
    assert (found.name, has_known_rates(found)) == (known or name, known is not None)
    assert found.memory_gib == pytest.approx(gib), "its own, not the table's"
    assert find_gpu(known or "a100-40gb").peak_flops == found.peak_flops


def test_a_machine_without_a_driver_has_no_gpu() -> None:
    if any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists():
        pytest.skip("this machine has a driver")
    assert visible_gpu() is None


def test_a_run_of_gams() -> None:
    """13,413 steps on 64 A100: hours, energy and checkpoints hang together."""
    run = estimate_run(GAMS, ON_64, PAPER_GPU, steps=13_413)
    assert run.gpu_hours == pytest.approx(64 * 13_413 * run.choice.time.total / 3600)
    assert run.kwh == pytest.approx(run.gpu_hours * 0.4)
    assert run.checkpoint_bytes == 1_540_476_928 * 14
    assert run.checkpoint_steps == round(run.checkpoint_seconds / run.choice.time.total)
    assert 0.4 < run.choice.mfu < 0.6


@pytest.mark.parametrize("row", [row for row in rows() if row.uncovered is None], ids=lambda row: f"{row.source} {row.name}")
def test_published_throughput_within_15_percent(row: Row) -> None:
    assert abs(error(row)) < BOUND


def test_the_docs_show_every_published_row() -> None:
    """As `python -m benchmarks.planner --fit` prints them."""
    text = (ROOT / "docs" / "results" / "planner.md").read_text(encoding="utf-8")
    calibrating = [row for row in rows() if row.calibrates]
    assert len(calibrating) == 13
    left_out = {row.name: error(row, fit([other for other in calibrating if other is not row])) for row in calibrating}
    assert max(map(abs, left_out.values())) < BOUND, "the calibration carries to rows that are left out"
    assert table(rows(), left_out) in text


def test_the_calibration_is_the_fit() -> None:
    found = fit([row for row in rows() if row.calibrates])
    shares = ("products", "attention", "recomputation")
    assert [getattr(found, share) for share in shares] == pytest.approx([getattr(CALIBRATED, share) for share in shares], abs=6e-4)


def test_the_command_ranks_layouts_of_another_number_of_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--recipe", "gams/focus", "--gpu", "A100-80GB", "--gpus", "8", "--best", "2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    first, second = shown["fastest layouts on 8 x a100-80gb (calibrated)"]
    assert first.startswith("TP 1 x PP 1 x DP 8, micro batch ") and second != first
    assert shown["time on 64 x a100-80gb (calibrated)"]["GPU hours"] > 100
    with pytest.raises(ValueError, match=r"^--gpus is 0; expected a number above 0$"):
        main(["--recipe", "gams/focus", "--gpus", "0"])


def test_planning_needs_no_torch() -> None:
    code = "import sys, recipes.plan, recipes.planner.ranking; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=60).returncode == 0
