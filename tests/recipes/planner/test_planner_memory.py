"""The planner's bytes against what autograd keeps and what Megatron allocates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conversion.families import FAMILIES
from recipes.planner.activations import layer_activations
from recipes.planner.layout import Layout
from recipes.planner.memory import stage_memory
from recipes.planner.parameters import PlannedModel
from recipes.rules.base_models import base_model
from recipes.rules.schema import MODULES
from tests.conversion.tiny_families import PUBLISHED
from tests.gloo import run_on_gloo
from tests.recipes.numbers.test_arithmetic import OPT_1B
from tests.recipes.small_inputs import LENGTH, MICRO_BATCH

TOKENS = MICRO_BATCH * LENGTH
# Grouped heads, a feed-forward layer that is not a multiple of the hidden size, windows that bind, capped scores.
_SIZES = {"hidden_size": 128, "num_attention_heads": 4, "max_position_embeddings": LENGTH, "vocab_size": 512}
_HF: dict[str, dict[str, Any]] = {
    "opt": {"ffn_dim": 320, "word_embed_proj_dim": 128},
    "opt dropout": {"ffn_dim": 320, "word_embed_proj_dim": 128},
    "llama": {},
    "llama ungrouped": {"num_key_value_heads": 4},
    "mistral": {"sliding_window": 16},
    "gemma2": {"head_dim": 48, "sliding_window": 16, "query_pre_attn_scalar": 48, "attn_logit_softcapping": 50.0},
    # Of its layers half have a window.
    "gemma3_text": {"head_dim": 48, "sliding_window": 16, "query_pre_attn_scalar": 48, "sliding_window_pattern": 2},
    "gemma3_text ungrouped": {"head_dim": 48, "sliding_window": 16, "sliding_window_pattern": 2, "num_key_value_heads": 4},
    "qwen3": {"head_dim": 48},
    "qwen3_moe": {"head_dim": 48, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True},
    "qwen3_moe shares of all": {"head_dim": 48, "num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 96},
    # Sinks, and experts that no ranks share.
    "gpt_oss": {"head_dim": 48, "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 64, "sliding_window": 16},
    "gpt_oss documents": {"head_dim": 48, "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 64, "sliding_window": 16},
    # Of its layers half rotate.
    "smollm3": {"no_rope_layers": [1, 0], "pad_token_id": 1},
    "phi3": {"partial_rotary_factor": 0.5, "pad_token_id": 1},
    "phi3 whole": {"sliding_window": 16, "pad_token_id": 1},
    "llama biases": {"attention_bias": True},
    "olmo2": {"head_dim": 48},
    "olmo2 ungrouped": {"num_key_value_heads": 4},
    "olmo3": {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "ministral3": {},
    "apertus": {"pad_token_id": 1},
    "granite": {"embedding_multiplier": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.6, "logits_scaling": 2.0},
    "opt documents": {"ffn_dim": 320, "word_embed_proj_dim": 128},
    "llama documents": {},
    "gemma2 documents": {"head_dim": 48, "sliding_window": 16, "query_pre_attn_scalar": 48, "attn_logit_softcapping": 50.0},
}


# Where tensor-parallel ranks have parts of sequences, and where parts of layers are computed again.
_CUT = (
    "opt dropout cut",
    "gemma2 cut",
    "llama documents cut",
    "qwen3 mlp again cut",
    "olmo2 cut",
    "apertus cut",
    "qwen3_moe cut",
    "qwen3_moe shares of all cut",
    "qwen3_moe mlp again cut",
    "gpt_oss cut",
)
_AGAIN = (
    "opt mlp again",
    "olmo2 mlp again",
    "apertus mlp again",
    "gemma2 mlp again",
    "qwen3_moe mlp again",
    "mistral core_attn again",
    "llama documents core_attn again",
    "llama core_attn again",
)


def _models() -> dict[str, dict[str, Any]]:
    from transformers import AutoConfig

    made = {}
    for name, changes in _HF.items():
        kind = name.split()[0]
        sizes = {**_SIZES, "num_hidden_layers": 2, "intermediate_size": 320, "num_key_value_heads": 2, **changes}
        config = AutoConfig.for_model(kind, **sizes).to_dict()
        made[name] = FAMILIES[kind].megatron_config(config, tied=False, source=name)
    return made


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("tensor_parallel_size", "context_parallel_size"),
    [(1, 1), (2, 1), (1, 2)],
)
def test_activations_are_those_that_autograd_keeps(tensor_parallel_size: int, context_parallel_size: int, tmp_path: Path) -> None:
    models = _models()
    plain = dict(models)
    if context_parallel_size > 1:  # with which sinks have no gradient
        models = {name: model for name, model in models.items() if not name.startswith("gpt_oss")}
    if tensor_parallel_size > 1:  # experts are trained so only where sequences are cut too
        models = {name: model for name, model in models.items() if "num_moe_experts" not in model}
    for name in _CUT if tensor_parallel_size > 1 else _AGAIN:
        models[name] = plain[next(kind for kind in sorted(plain, key=len, reverse=True) if name.startswith(kind))]
    ranks = run_on_gloo(
        "tests.recipes.planner_ranks:kept_by_a_layer",
        world_size=tensor_parallel_size * context_parallel_size,
        directory=tmp_path / "ranks",
        models=models,
        tensor_parallel_size=tensor_parallel_size,
        context_parallel_size=context_parallel_size,
    )
    for kept in ranks:
        for name, model in models.items():
            for precision in ("bf16", "32"):
                counted = layer_activations(
                    model,
                    sequence_length=LENGTH,
                    tensor_parallel_size=tensor_parallel_size,
                    context_parallel_size=context_parallel_size,
                    is_half=precision == "bf16",
                    hidden_dropout="dropout" in name,
                    document_mask="documents" in name,
                    sequence_parallel="cut" in name,
                    recomputed=tuple(module for module in MODULES if f"{module} again" in name),
                    kernels="cpu",
                )
                assert counted.of(TOKENS // context_parallel_size) == pytest.approx(kept[f"{name} {precision}"], rel=2e-3), (
                    name,
                    precision,
                )  # statistics of norms


_WORLD = 64
_OPT = ("opt", {**OPT_1B, "vocab_size": 80_000})
_LLAMA = ("llama", "llama-3.1-8b")
_GEMMA3 = ("gemma3_text", base_model("gemma-3-12b")[1])
_GPT_OSS = ("gpt_oss", "gpt-oss-20b")
_GEMMA = ("gemma2", "gemma-2-9b")  # one matrix for input and output: the last stage of a pipeline has a copy
_CASES = [
    {"model": _OPT, "tensor": 1, "pipeline": 1, "rank": 0},
    {"model": _OPT, "tensor": 4, "pipeline": 1, "rank": 63},
    {"model": _OPT, "tensor": 2, "pipeline": 2, "rank": 0},
    {"model": _OPT, "tensor": 2, "pipeline": 2, "rank": 63},
    {"model": _OPT, "tensor": 2, "pipeline": 1, "rank": 7, "context": 4},
    {"model": _OPT, "tensor": 1, "pipeline": 1, "rank": 5, "distributed_optimizer": False},
    {"model": _OPT, "tensor": 1, "pipeline": 1, "rank": 0, "frozen": "decoder."},
    {"model": _LLAMA, "tensor": 4, "pipeline": 1, "rank": 1},
    {"model": _LLAMA, "tensor": 2, "pipeline": 4, "rank": 20},
    {"model": _LLAMA, "tensor": 2, "pipeline": 1, "rank": 0, "frozen": "decoder.", "adapter_rank": 8},
    {"model": _GEMMA, "tensor": 2, "pipeline": 2, "rank": 0},
    {"model": _GEMMA, "tensor": 2, "pipeline": 2, "rank": 63},
    {"model": _GPT_OSS, "tensor": 1, "pipeline": 4, "rank": 0},
    {"model": _GPT_OSS, "tensor": 4, "pipeline": 2, "rank": 63},
    {"model": _GPT_OSS, "tensor": 2, "pipeline": 4, "rank": 17, "distributed_optimizer": False},
    {"model": _GEMMA3, "tensor": 8, "pipeline": 1, "rank": 3},
    {"model": _GEMMA3, "tensor": 4, "pipeline": 2, "rank": 63},
]


@pytest.mark.slow
def test_state_is_what_megatron_allocates_on_ranks_of_64(tmp_path: Path) -> None:
    """Weights, gradients and Adam's state of full-size models; to the bytes that Megatron adds to make its buckets divide."""
    calls = []
    for case in _CASES:
        family, model = case["model"]
        if isinstance(model, str):
            tied = bool(PUBLISHED[model].get("tie_word_embeddings"))
            model = FAMILIES[family].megatron_config(PUBLISHED[model], tied=tied, source=model)
        calls.append({**case, "family": family, "model": model})
    [found] = run_on_gloo(
        "tests.recipes.planner_ranks:allocated_by_ranks", world_size=1, directory=tmp_path / "ranks", cases=calls, num_ranks=_WORLD
    )
    for call, allocated in zip(calls, found, strict=True):
        tensor, pipeline = call["tensor"], call["pipeline"]
        model = PlannedModel(call["model"], vocab_rows=call["model"]["vocab_size"])
        if start := call.get("frozen"):
            frozen = frozenset(name for name in model.parameters if name.startswith(start))
            model = replace(model, frozen=frozen, adapter_rank=call.get("adapter_rank", 0))
        context = call.get("context", 1)
        layout = Layout(
            tensor,
            pipeline,
            _WORLD // tensor // pipeline // context,
            1,
            1,
            64,
            4,
            distributed_optimizer=call.get("distributed_optimizer", True),
            context_parallel_size=context,
        )
        stage = call["rank"] * pipeline // _WORLD
        predicted = stage_memory(model, layout, stage)
        for part in ("parameters", "gradients", "optimizer"):
            assert getattr(predicted, part) == pytest.approx(allocated[part], rel=1e-5), (call["family"], tensor, pipeline, part)
