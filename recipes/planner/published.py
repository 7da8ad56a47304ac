"""Published training throughput, on A100s and of long samples on H100s: what the time model is calibrated on, and what it is checked against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from recipes.planner.hardware import GIGA, GPUS, Gpu
from recipes.planner.layout import Layout
from recipes.planner.parameters import PlannedModel
from recipes.rules.schema import RecomputationRecipe

SCALING_LOSS = "12 % below the same job on 128 GPUs, more than its network's rate explains; congestion and stragglers are not modelled"
OUTLIER = "18 % below the same job on 16 and on 64 GPUs in the same table, so it is the measurement that is odd"
INTERLEAVED = "interleaved pipeline schedule, whose shorter waiting is not modelled"
HELD_TO_500_W = "H100 held to 500 of their 700 W, which slows their products"
TITAN_EIGHT_BIT = f"{HELD_TO_500_W}; products in 8 bit, and torch's own exchange of keys"
NEMO_EIGHT_BIT = "products in 8 bit; whether its operations have half of the scores, as here, or all of them is not said"

WIDE = "an MFU of 56 %, more than the calibrated share of the peak allows; no row of the calibration has products half as wide"

A100_40, A100_80 = (replace(GPUS[name], network_rate=200 * GIGA, devices_per_node=8) for name in ("a100-40gb", "a100-80gb"))
FMS_80 = replace(A100_80, network_rate=50 * GIGA)
H100_80 = GPUS["h100-80gb"]
H100_96 = replace(H100_80, memory_gib=94.0, memory_rate=2400 * GIGA)


@dataclass(frozen=True)
class Row:
    """One published number.

    Attributes:
        tokens_per_second: per GPU, as published.
        uncovered: why the model does not claim to predict it; None where it does.
        calibrates: whether the shares of `Efficiency` are fitted on it.
    """

    name: str
    source: str
    model: PlannedModel
    gpu: Gpu
    layout: Layout
    tokens_per_second: float
    uncovered: str | None = None
    calibrates: bool = False


def _gpt(layers: int, hidden: int, heads: int, *, vocab_size: int, positions: int, activation: str = "gelu") -> dict[str, Any]:
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "ffn_hidden_size": 4 * hidden,
        "num_attention_heads": heads,
        "max_position_embeddings": positions,
        "vocab_size": vocab_size,
        "share_embeddings_and_output_weights": True,
        "activation_func": activation,
    }


_LLAMA = {
    "normalization": "RMSNorm",
    "activation_func": "silu",
    "gated_linear_unit": True,
    "add_bias_linear": False,
    "position_embedding_type": "rope",
    "share_embeddings_and_output_weights": False,
}
LLAMA2_7B = {**_LLAMA, "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 11008, "num_attention_heads": 32} | {
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
LLAMA2_13B = {**LLAMA2_7B, "num_layers": 40, "hidden_size": 5120, "ffn_hidden_size": 13824, "num_attention_heads": 40}
LLAMA3_8B = {**LLAMA2_7B, "ffn_hidden_size": 14336, "num_query_groups": 8, "vocab_size": 128256, "max_position_embeddings": 8192}

# Layers, hidden size and heads of MosaicML's models (their YAML files).
MPT = {
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
}


def mpt(size: str, sequence_length: int) -> dict[str, Any]:
    """An MPT model; its position table has a row per token of a sample."""
    layers, hidden, heads = MPT[size]
    return _gpt(layers, hidden, heads, vocab_size=50368, positions=sequence_length)


# Model, tokens of a sample, GPUs, memory (GiB), micro batch, passes, recomputed, tokens per second and GPU; * calibrates.
# llm-foundry, scripts/train/benchmarking/README.md: FSDP, flash attention; 40 GB rows in pure bfloat16.
_FOUNDRY = """
1b    2048  64 40 10 1 0 19001 *
1b    2048 128 40 10 1 0 18647 *
1b    2048   8 80 14 4 0 20513 *
1b    8192   8 40  2 8 0 13474 *
1b    8192   8 80  3 4 0 13814 *
7b    2048  64 40 18 1 1  3665 *
7b    2048   8 80  6 2 0  4641 *
7b    8192   8 40  3 4 1  2887 *
7b    8192   8 80  8 2 1  3206 *
1b    2048   8 40  8 8 0 19271
1b    4096   8 40  4 8 0 16856
1b    2048  32 40 10 1 0 15555
1b    1024   8 80 18 4 0 22112
1b    4096   8 80  7 4 0 17807
1b   16384   8 80  2 4 0  9956
3b    2048  64 40  6 1 0  9736
3b    2048 128 40  6 1 0  9538
3b    2048   8 80 10 2 0 10811
3b    8192   8 80  3 6 0  7695
3b    8192   8 40  1 8 0  7149
7b    2048 128 40 18 1 1  3623
7b    4096   8 80 16 2 1  3684
7b    1024   8 80 64 2 1  4357
13b   2048   8 80  2 3 0  2262
13b   2048  64 40 16 1 1  1976
13b   4096   8 80 10 3 1  2060
760m  2048   8 80 24 2 0 32434
760m  2048 128 40 12 1 0 28940
350m  2048   8 80 32 2 0 58782
350m  2048  64 40 18 1 0 52689
125m  2048   8 80 32 2 0 141737
125m  2048   8 40 26 3 0 136334
"""


def _planned(config: Mapping[str, Any]) -> PlannedModel:
    return PlannedModel(config, vocab_rows=config["vocab_size"])


def _foundry_rows() -> list[Row]:
    rows = []
    for line in _FOUNDRY.split("\n")[1:-1]:
        size, *numbers = line.replace("*", "").split()
        length, gpus, memory, micro, passes, recomputed, rate = map(int, numbers)
        pure = memory == 40
        rows.append(
            Row(
                name=f"MPT-{size}, {length}, {gpus} x {memory} GB" + (", recomputed" if recomputed else ""),
                source="llm-foundry",
                model=_planned(mpt(size, length)),
                gpu=A100_40 if pure else A100_80,
                layout=Layout(
                    *(1, 1, gpus, micro, passes, length, 8),
                    recomputed=float(recomputed),
                    shards_parameters=True,
                    gradient_bytes=2 if pure else 4,
                ),
                tokens_per_second=rate,
                uncovered=OUTLIER if line.startswith("1b    2048  32") else None,
                calibrates="*" in line,
            )
        )
    return rows


def _nemo_rows() -> list[Row]:
    """NeMo Megatron Launcher 23.08 and its conf/training/gpt3/5b.yaml: global batch 2048, micro batch 4, distributed Adam, no recomputation."""
    model = _planned(_gpt(24, 4096, 32, vocab_size=51200, positions=2048))
    return [
        Row(
            name=f"GPT-5B, 2048, {gpus} x 80 GB",
            source="NeMo Launcher 23.08",
            model=model,
            gpu=A100_80,
            layout=Layout(1, 1, gpus, 4, 2048 // 4 // gpus, 2048, 8, hidden_dropout=True, gradient_bytes=2),
            tokens_per_second=rate,
            uncovered=SCALING_LOSS if gpus == 256 else None,
            calibrates=gpus != 256,
        )
        for gpus, rate in ((8, 5043), (128, 5152), (256, 4528))
    ]


def _other_rows() -> list[Row]:
    titan = Layout(1, 1, 64, 1, 1, 8192, 8, recomputed=0.5, shards_parameters=True)
    return [
        Row("Llama3-8B, 8192, 64 x 80 GB, half recomputed", "torchtitan", _planned(LLAMA3_8B), A100_80, titan, 2973, calibrates=True),
        Row(
            "Llama2-7B, 4096, 128 x 80 GB",
            "fms-fsdp",
            _planned(LLAMA2_7B),
            FMS_80,
            Layout(1, 1, 128, 2, 1, 4096, 8, gradient_bytes=2),
            3700,
            calibrates=True,
        ),
        Row(
            "Llama2-13B, 4096, 64 x 80 GB",
            "torchtitan",
            _planned(LLAMA2_13B),
            A100_80,
            replace(titan, micro_batch_size=2, sequence_length=4096, recomputed=0.0),
            2162,
        ),
    ]


def _megatron_rows() -> list[Row]:
    """Korthikanti et al. 2022, tables 3 and 5: tensor parallel 8 within a node, without flash kernels; all layers recomputed, or attention.

    The second is what sequence parallelism and a flash kernel do here.  The seconds were written down without access to the paper; its summary
    confirms the gain of the 530B model alone.
    """
    found = []
    for name, layers, hidden, heads, pipeline, batch, micro, whole_seconds, selective_seconds in (
        ("22B", 48, 6144, 64, 1, 4, 4, 1.42, 1.10),
        ("175B", 96, 12288, 96, 8, 64, 1, 18.13, 13.75),
        ("530B", 105, 20480, 128, 35, 280, 1, 49.05, 37.83),
        ("1T", 128, 25600, 160, 64, 512, 1, 94.42, 71.49),
    ):
        kept = Layout(8, pipeline, 1, micro, batch // micro, 2048, 8, hidden_dropout=True)
        for words, layout, seconds in (
            ("all layers recomputed", replace(kept, recomputation=RecomputationRecipe()), whole_seconds),
            ("sequence parallel", replace(kept, sequence_parallel=True), selective_seconds),
        ):
            found.append(
                Row(
                    name=f"GPT-{name}, 2048, TP 8 x PP {pipeline} x 80 GB, {words}",
                    source="Korthikanti et al. 2022",
                    model=_planned(_gpt(layers, hidden, heads, vocab_size=51200, positions=2048)),
                    gpu=A100_80,
                    layout=layout,
                    tokens_per_second=batch * 2048 / layout.num_devices / seconds,
                    uncovered=INTERLEAVED if name == "175B" else WIDE if pipeline > 8 else None,
                )
            )
    return found


# Tokens of a sample, samples of a pass, ranks among which each is cut, share of the forward pass done again, tokens per second and GPU.
# torchtitan, docs/performance.md: Llama-3.1-8B on eight H100, the first row in bfloat16.
_TITAN_LONG = (
    (8192, 2, 1, 0.5, 6667),
    (32_768, 1, 1, 1.0, 3890),
    (65_536, 1, 2, 1.0, 2540),
    (131_072, 1, 4, 1.0, 1071),
    (262_144, 1, 8, 1.0, 548),
)

# Thousands of tokens (1,024) of a sample, TP, PP, DP, CP, teraflops of a GPU; Llama-2-7B on as many H100 as a sample has thousands of tokens.
# NeMo, docs/source/performance/performance_long_sequence.md, container 24.03.
_NEMO_LONG = """
4    1 1 4 1  768
8    1 2 4 1  730
16   2 1 8 1  660
32   2 1 8 2  610
64   4 1 8 2  574
128  4 1 8 4  555
256  4 1 8 8  549
512  8 1 4 16 549
1024 8 1 4 32 536
"""


def _long_rows() -> list[Row]:
    """Samples of up to a million tokens."""
    found = []
    for length, micro, context, recomputed, rate in _TITAN_LONG:
        layout = Layout(
            *(1, 1, 8 // context, micro, 1, length, 8), context_parallel_size=context, recomputed=recomputed, shards_parameters=True
        )
        config = {**LLAMA3_8B, "max_position_embeddings": length}
        name = f"Llama3-8B, {length}, CP {context} x 96 GB, " + ("recomputed" if recomputed == 1 else "half recomputed")
        uncovered = HELD_TO_500_W if length == 8192 else TITAN_EIGHT_BIT
        found.append(Row(name, "torchtitan", _planned(config), H100_96, layout, rate, uncovered))
    for line in _NEMO_LONG.split("\n")[1:-1]:
        thousands, tensor, pipeline, data, context, teraflops = map(int, line.split())
        length = 1024 * thousands
        model = _planned({**LLAMA2_7B, "max_position_embeddings": length})
        layout = Layout(tensor, pipeline, data, 1, 2 * pipeline, length, 8, context_parallel_size=context)
        name = f"Llama2-7B, {length}, TP {tensor} x PP {pipeline} x CP {context}, H100"
        tokens_per_second = teraflops * 1e12 / model.flops_per_token(length)
        found.append(Row(name, "NeMo 24.03", model, H100_80, layout, tokens_per_second, NEMO_EIGHT_BIT))
    return found


def rows() -> list[Row]:
    """All published numbers, those of calibration first."""
    return sorted([*_foundry_rows(), *_nemo_rows(), *_other_rows(), *_megatron_rows(), *_long_rows()], key=lambda row: not row.calibrates)
