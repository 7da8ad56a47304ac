"""What long samples and models over several nodes cost: windows by their pairs, tensor parallelism at the network's rate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recipes.numbers.arithmetic import flops_per_token, visible_share
from recipes.planner.activations import SINK_DIMENSIONS, WINDOW_BLOCK
from recipes.planner.hardware import GPUS
from recipes.planner.layout import Layout
from recipes.planner.parameters import PlannedModel
from recipes.planner.ranking import judge, ranked
from recipes.planner.throughput import CALIBRATED
from tests.processes import ROOT
from tests.recipes.numbers.test_arithmetic import OPT_1B

LENGTH = 64


@pytest.mark.parametrize("pattern", [None, 2, 6, [1, 0, 1, 1] * 3], ids=str)
def test_windows_show_as_many_pairs_as_their_mask(pattern: int | list[int] | None) -> None:
    from megatron.core.transformer.utils import is_layer_window_attention  # here, since collecting the tests needs no engine

    model = {**OPT_1B, "num_layers": 12, "window_size": (7, 0), "window_attn_skip_freq": pattern}
    pairs = [
        sum(min(query + 1, 8) if is_layer_window_attention((7, 0), pattern, layer) else query + 1 for query in range(LENGTH))
        for layer in range(1, 13)
    ]
    causal = 12 * LENGTH * (LENGTH + 1) / 2
    assert visible_share(model, LENGTH) == pytest.approx(sum(pairs) / causal, rel=0.03)  # (the diagonal, of which the formula has half)
    assert visible_share(model, 8) == visible_share({**model, "window_size": None}, LENGTH) == 1
    visited = visible_share(model, LENGTH, block=16)
    assert visible_share(model, LENGTH) < visited < 1 == visible_share(model, LENGTH, block=64)


def test_a_model_like_gemma_3_needs_a_fifth_of_the_attention() -> None:
    """40 of 48 layers see 1,024 of 65,536 tokens: a sixth of the scores and 3 % of the others."""
    model = {**OPT_1B, "num_layers": 48, "window_size": (1023, 0), "window_attn_skip_freq": 6}
    assert visible_share(model, 65_536) == pytest.approx(1 / 6 + 5 / 6 * 2 / 64, abs=0.001)
    sizes = {"vocab_size": 80_000, "sequence_length": 65_536}
    without = flops_per_token({**model, "window_size": None}, **sizes)
    products = flops_per_token({**model, "window_size": None}, vocab_size=80_000, sequence_length=0)
    attention = flops_per_token(model, **sizes) - products
    assert attention == pytest.approx((without - products) * visible_share(model, 65_536))


def test_the_planner_attends_as_the_engine_does() -> None:
    attention = (ROOT / "nemo_patches/attention.py").read_text()  # read, as importing it costs seconds
    assert f"\nWINDOW_BLOCK = {WINDOW_BLOCK}  #" in attention and f"\nSINK_DIMENSIONS = {SINK_DIMENSIONS}  #" in attention


def test_tensor_parallelism_over_two_nodes_runs_at_the_networks_rate() -> None:
    gpu, model = GPUS["a100-64gb"], PlannedModel(OPT_1B, vocab_rows=80_000)
    within = Layout(8, 1, 8, 1, 8, 2048, 8)
    over = replace(within, devices_per_node=4)
    seconds = [judge(model, layout, gpu).time.tensor_parallel for layout in (within, over)]
    slower = gpu.nvlink_rate * CALIBRATED.nvlink / (gpu.network_rate * CALIBRATED.network)
    assert slower > 5 and seconds[1] == pytest.approx(seconds[0] * slower)
    sizes = {choice.layout.tensor_parallel_size for choice in ranked(model, over, gpu, num_devices=64)}
    assert 8 in sizes and 16 not in sizes, "what is asked stands beside what it costs"
    assert 8 not in {
        choice.layout.tensor_parallel_size for choice in ranked(model, replace(over, tensor_parallel_size=4), gpu, num_devices=64)
    }
