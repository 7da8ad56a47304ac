"""OPT (Zhang et al. 2022) as a NeMo model: configuration, layer, and padding that changes no logit.

NeMo has no OPT, but Megatron-core can express it: pre-LayerNorm, ReLU, biases everywhere, learned positions.  The
position offset of 2 of the Hugging Face model is no matter here: the converter keeps its rows 0 and 1 aside, so
position p reads row p.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel as MegatronGPTModel
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.transformer.spec_utils import ModuleSpec
from nemo.collections.llm.gpt.model.base import HAVE_TE, GPTConfig, transformer_engine_layer_spec
from torch import Tensor, nn

from nemo_patches.attention import ScaledDotProductAttention

_USE_TE = HAVE_TE and torch.cuda.is_available()


def opt_layer_spec(config: GPTConfig) -> ModuleSpec:
    """The layer: TransformerEngine's on a GPU where it is installed, else Megatron's with torch's attention."""
    if _USE_TE:
        return transformer_engine_layer_spec(config)
    spec = gpt_layer_specs.get_gpt_layer_local_spec(normalization=config.normalization)
    spec.submodules.self_attention.submodules.core_attention = ScaledDotProductAttention
    return spec


def causal_forward_step(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Per-token losses of a batch, without the attention mask tensor that NeMo's own step asks for: it is causal anyway."""
    return model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])


@dataclass
class OPTConfig(GPTConfig):
    """OPT for Megatron-core; sizes come from the checkpoint's `context/model.json`.

    Attributes:
        real_vocab_size: rows that stand for tokens; `vocab_size` counts the padding too.
    """

    real_vocab_size: int = 0

    normalization: str = "LayerNorm"
    activation_func: Callable[[Tensor], Tensor] = F.relu
    gated_linear_unit: bool = False
    add_bias_linear: bool = True
    add_qkv_bias: bool = True
    layernorm_zero_centered_gamma: bool = False
    position_embedding_type: str = "learned_absolute"
    transformer_layer_spec: Callable[[GPTConfig], ModuleSpec] = opt_layer_spec
    forward_step_fn: Callable[..., Tensor] = causal_forward_step
    # The fused bias and activation know GELU and SwiGLU alone; with ReLU they would skip activation and bias.
    bias_activation_fusion: bool = False
    masked_softmax_fusion: bool = False
    persist_layer_norm: bool = _USE_TE

    def configure_model(self, *args: Any, **kwargs: Any) -> MegatronGPTModel:
        """The Megatron model, with OPT's dropout and with padding rows taken out of the softmax."""
        if not self.bf16:  # Megatron's fused loss rounds the gradient of the logits to bfloat16 whatever the precision of the run
            self.cross_entropy_loss_fusion = False
        model = super().configure_model(*args, **kwargs)
        if model.pre_process:
            # OPT drops out after attention and after the second linear layer, and nowhere else; Megatron also after the embedding.
            model.embedding.embedding_dropout.p = 0.0
        if model.post_process:
            columns = self.vocab_size // parallel_state.get_tensor_model_parallel_world_size()
            first_column = parallel_state.get_tensor_model_parallel_rank() * columns
            real_columns = min(max(self.real_vocab_size - first_column, 0), columns)
            model.output_layer.register_forward_hook(partial(_mask_padding, real_columns=real_columns))
        return model


def _mask_padding(
    module: nn.Module, inputs: Any, output: tuple[Tensor, Tensor | None], *, real_columns: int
) -> tuple[Tensor, Tensor | None]:
    """Give padding rows probability zero and gradient zero; otherwise each would add exp(logit) to every softmax."""
    logits, bias = output
    if real_columns < logits.shape[-1]:
        logits[..., real_columns:] = torch.finfo(logits.dtype).min
    return logits, bias


def opt_config(
    model: Mapping[str, Any],
    *,
    padded_vocab_size: int | None = None,
    hidden_dropout: float = 0.0,
    attention_dropout: float = 0.0,
    **overrides: Any,
) -> OPTConfig:
    """The configuration of a checkpoint for a layout.

    Args:
        model: the `config` of the checkpoint's `context/model.json`, in Megatron's names.
        padded_vocab_size: rows of the table in the engine, a multiple of the tensor-parallel size; none are added by default.
        overrides: further fields of Megatron's configuration.
    """
    fields = dict(model)
    real_vocab_size = fields.pop("vocab_size")
    # In NeMo `seq_length` only sizes the position table; the length of the samples is the data module's.
    seq_length = fields.pop("max_position_embeddings")
    on_gpu = torch.cuda.is_available()
    return OPTConfig(
        **{
            **fields,
            "vocab_size": padded_vocab_size or real_vocab_size,
            "real_vocab_size": real_vocab_size,
            "seq_length": seq_length,
            "hidden_dropout": hidden_dropout,
            "attention_dropout": attention_dropout,
            "bias_dropout_fusion": on_gpu,
            "cross_entropy_loss_fusion": on_gpu,
            "use_cpu_initialization": not on_gpu,
            **overrides,
        }
    )
