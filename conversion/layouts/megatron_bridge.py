"""The files of Megatron-Bridge beside the weights: `run_config.yaml`, the model configuration, and `train_state.pt`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from conversion.families.gemma3 import in_words_of_nemo

if TYPE_CHECKING:
    from torch import Tensor

_ACTIVATIONS = {
    "relu": "torch.nn.functional.relu",
    "silu": "torch.nn.functional.silu",
    "gelu_tanh": "megatron.core.activations.fast_gelu",
}
_PROVIDER = "megatron.bridge.models.gpt_provider.GPTModelProvider"
_GEMMA2_PROVIDER = "megatron.bridge.models.gemma.gemma2_provider.Gemma2ModelProvider"
_GEMMA3_PROVIDER = "megatron.bridge.models.gemma.gemma3_provider.Gemma3ModelProvider"
_IMPLIED_BY_GEMMA = ("post_norms", "scale_embeddings")
# What its general model does not compute, by the key or the activation that asks for it.
_LACKS = {
    "norms_of_all_heads": "norms over all heads of queries and keys",
    "add_proj_bias": "biases in the attention that do not depend on those of the feed-forward part",
    "embedding_multiplier": "multipliers of embeddings, scores, branches and logits",
    "longrope_positions": "rotary positions whose factors change with the length of a sample",
    "query_temperature_beta": "an attention temperature that depends on the position",
    "xielu": "the activation xIELU",
}
# What Megatron-core fixes of Llama 3.1's rotary positions; the scale alone can be chosen.
_FIXED_ROTARY = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "old_context_len": 8192}


def run_config(config: Mapping[str, Any], *, dtype: str, has_tokenizer: bool) -> dict[str, Any]:
    """The part of a run's configuration that Megatron-Bridge reads when it loads or exports a model.

    Args:
        config: `config` of `context/model.json`.
        dtype: of the weights.
        has_tokenizer: whether the folder has its files in `tokenizer/`.

    Raises:
        ValueError: if Megatron-Bridge's model would compute something else.
    """
    content: dict[str, Any] = {
        "model": _model(config, dtype),
        "checkpoint": {"save_optim": False, "save_rng": False, "fully_parallel_save": True, "ckpt_format": "torch_dist"},
    }
    if has_tokenizer:
        content["tokenizer"] = {
            "_target_": "megatron.bridge.training.tokenizers.config.TokenizerConfig",
            "tokenizer_type": "HuggingFaceTokenizer",
            "tokenizer_model": {"_target_": "pathlib.Path"},  # the empty path stands for `tokenizer/` beside the weights
        }
    return content


def refused(config: Mapping[str, Any]) -> str | None:
    """Why Megatron-Bridge's model would compute something else, in a sentence; None where it computes the same."""
    if lacking := [words for key, words in _LACKS.items() if key in config or key == config.get("activation_func")]:
        return (
            f"this model has {lacking[0]}, which Megatron-Bridge's has not; it would compute something else: export it with"
            " `python -m conversion.nemo_to_hf`"
        )
    if "num_moe_experts" in config:
        return "this model has experts (num_moe_experts), which are not converted to Megatron-Bridge: export it with `python -m conversion.nemo_to_hf`"
    if "yarn_factor" in config:
        return "the rotary positions of this model are YaRN's, which Megatron-Bridge configures differently; they are not supported"
    rotary = {key: config[key] for key in _FIXED_ROTARY if "scale_factor" in config}
    if unequal := [f"{key} {value}" for key, value in rotary.items() if value != _FIXED_ROTARY[key]]:
        return (
            f"the rotary positions of this model have {', '.join(unequal)}, but Megatron-Bridge has"
            f" {', '.join(f'{key} {value}' for key, value in _FIXED_ROTARY.items())} for all models; it would compute something else"
        )
    return None


def _model(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    if sentence := refused(config):
        raise ValueError(sentence)
    provider = _GEMMA2_PROVIDER if config.get("post_norms") else _PROVIDER
    if "rotary_base_local" in config:
        provider, config = _GEMMA3_PROVIDER, in_words_of_nemo(config)
    fields: dict[str, Any] = {
        key: list(value) if isinstance(value, tuple) else value for key, value in config.items() if key not in _IMPLIED_BY_GEMMA
    }
    seq_length = fields.pop("max_position_embeddings")
    activation = fields.pop("activation_func", "relu")
    if "scale_factor" in fields:
        for key in _FIXED_ROTARY:
            del fields[key]
        fields |= {"rope_scaling": True, "rope_scaling_factor": fields.pop("scale_factor")}
    return {
        "_target_": provider,
        **fields,
        "seq_length": seq_length,
        "activation_func": {"_target_": _ACTIVATIONS[activation], "_call_": False},
        "bias_activation_fusion": activation == "silu",
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        # Rows of padding come and go with tensor parallelism; the table in the file has none but the run's own.
        "make_vocab_size_divisible_by": 1,
        "should_pad_vocab": True,
        "bf16": dtype == "bfloat16",
        "fp16": dtype == "float16",
        "params_dtype": {"_target_": f"torch.{dtype}", "_call_": False},
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
    }


def train_state(*, step: int, samples: int) -> dict[str, Tensor]:
    """How far the training had come, as Megatron-Bridge saves it: scalars, `samples` counted over all ranks."""
    import torch

    return {
        "step": torch.tensor(step, dtype=torch.int32),
        "consumed_train_samples": torch.tensor(samples, dtype=torch.int32),
        "skipped_train_samples": torch.tensor(0, dtype=torch.int32),
        "consumed_valid_samples": torch.tensor(0, dtype=torch.int32),
        "floating_point_operations_so_far": torch.tensor(0, dtype=torch.float64),
        "do_train": torch.tensor(False),
        "do_valid": torch.tensor(False),
        "do_test": torch.tensor(False),
    }
