"""Encoders of BERT's kind (Devlin et al. 2019), RoBERTa and XLM-R, on the blocks of Megatron's GPT.

Megatron-core's own BERT has its norms before each part and NeMo's has no RoBERTa; both build masks of all pairs of tokens.  What such an
encoder has and a decoder of this project has not is here: norms behind each part of a layer, the end of the embeddings, a head with a
dense layer, a norm and a bias for every token, and no causal mask.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.gpt import GPTModel as MegatronGPTModel
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear, get_cuda_rng_tracker
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
from torch import Tensor, nn

from nemo_patches.attention import ScaledDotProductAttention
from nemo_patches.documents import DocumentBlock, Documents
from nemo_patches.engine_model import EngineConfig, engine_config
from nemo_patches.masked_positions import masked_data_step, masked_forward_step, select_masked
from nemo_patches.norms import LayerNorm, sum_over_sequence


class PostNormLayer(TransformerLayer):  # type: ignore[misc]
    """A layer whose parts are normalised after they were added to the residual stream (Vaswani et al. 2017)."""

    def __init__(self, config: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        self.post_attention_layernorm = LayerNorm(config, config.hidden_size, eps=config.layernorm_epsilon)
        self.post_mlp_layernorm = LayerNorm(config, config.hidden_size, eps=config.layernorm_epsilon)

    def _forward_attention(self, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        hidden, context = super()._forward_attention(*arguments, **options)
        return self.post_attention_layernorm(hidden), context

    def _forward_mlp(self, *arguments: Any, **options: Any) -> Tensor:
        normalised: Tensor = self.post_mlp_layernorm(super()._forward_mlp(*arguments, **options))
        return normalised


class EmbeddingEnd(nn.Module):
    """What follows the sum of a token's row and its position's: the row of the first token type, a norm, dropout.

    Attributes:
        token_types: (num_types, hidden_size); a text by itself is of the first type.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self._config = config
        self.token_types = nn.Parameter(torch.zeros(config.num_token_types, config.hidden_size))
        self.layer_norm = LayerNorm(config, config.hidden_size, eps=config.layernorm_epsilon)
        sum_over_sequence(self.token_types, config.sequence_parallel)

    def forward(self, rows: Tensor) -> Tensor:
        """(sequence, batch, hidden_size) of rows in that shape."""
        normalised: Tensor = self.layer_norm(rows + self.token_types[0])
        # Ranks hold different parts of the sequence then, else the same.
        state: Any = get_cuda_rng_tracker().fork() if self._config.sequence_parallel and self.training else contextlib.nullcontext()
        with state:
            return F.dropout(normalised, self._config.hidden_dropout, self.training)


class PredictionHead(nn.Module):
    """What lies between the last layer and the table of tokens: a dense layer, GELU and a norm; whole on every rank."""

    def __init__(self, config: EncoderConfig, hidden_size: int, eps: float, **options: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.layer_norm = LayerNorm(config, hidden_size, eps=eps)
        for parameter in self.dense.parameters():
            sum_over_sequence(parameter, config.sequence_parallel)

    def forward(self, hidden: Tensor) -> Tensor:
        """(sequence, batch, hidden_size) of states in that shape."""
        features: Tensor = self.layer_norm(F.gelu(self.dense(hidden)))
        return features


def encoder_layers(config: EncoderConfig, vp_stage: int | None = None) -> TransformerBlockSubmodules:
    """The layers of a pipeline stage; the head takes the place of a final norm, so that it is on the last."""
    attention = SelfAttentionSubmodules(
        linear_qkv=ColumnParallelLinear, core_attention=BidirectionalAttention, linear_proj=RowParallelLinear
    )
    layer = TransformerLayerSubmodules(
        self_attention=ModuleSpec(module=SelfAttention, params={"attn_mask_type": AttnMaskType.no_mask}, submodules=attention),
        self_attn_bda=get_bias_dropout_add,
        mlp=ModuleSpec(module=MLP, submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)),
        mlp_bda=get_bias_dropout_add,
    )
    spec = ModuleSpec(module=PostNormLayer, submodules=layer)
    return TransformerBlockSubmodules([spec] * get_num_layers_to_build(config, vp_stage), layer_norm=PredictionHead)


@dataclass
class EncoderConfig(EngineConfig):
    """An encoder for Megatron-core; sizes come from the checkpoint's `context/model.json`.

    Attributes:
        num_token_types: rows of the table of token types.
    """

    num_token_types: int = 1

    normalization: str = "LayerNorm"
    gated_linear_unit: bool = False
    add_bias_linear: bool = True
    add_qkv_bias: bool = True
    layernorm_zero_centered_gamma: bool = False
    position_embedding_type: str = "learned_absolute"
    transformer_layer_spec: Callable[..., TransformerBlockSubmodules] = encoder_layers

    def __post_init__(self) -> None:
        super().__post_init__()
        self.data_step_fn = partial(masked_data_step, step=self.data_step_fn)
        self.forward_step_fn = partial(masked_forward_step, step=self.forward_step_fn)

    def configure_model(self, *args: Any, **kwargs: Any) -> MegatronGPTModel:
        """See `EngineConfig`."""
        model = super().configure_model(*args, **kwargs)
        if model.pre_process:
            model.embedding.end = EmbeddingEnd(self)
            model.embedding.register_forward_hook(lambda embedding, inputs, rows: embedding.end(rows))
        if model.post_process:
            _add_bias(model.output_layer, example=model.decoder.final_layernorm.dense.weight)
            select_masked(model)
        return model


def _add_bias(layer: ColumnParallelLinear, *, example: Tensor) -> None:
    """Give the output layer a bias, one number for each of this rank's tokens; Megatron's GPT has none.

    Megatron would add it into logits of their own, which are the largest tensor of a step; here it is added in place.
    """
    layer.bias = nn.Parameter(torch.zeros(layer.output_size_per_partition, dtype=example.dtype, device=example.device))
    set_tensor_model_parallel_attributes(layer.bias, True, 0, 1)
    layer.skip_bias_add = True
    layer.register_forward_hook(_with_bias, prepend=True)  # before padding rows are taken out of the softmax


def _with_bias(module: nn.Module, inputs: Any, output: tuple[Tensor, Tensor]) -> tuple[Tensor, None]:
    logits, bias = output
    return logits.add_(bias), None


def encoder_config(model: Mapping[str, Any], **arguments: Any) -> EncoderConfig:
    """The configuration of a checkpoint for a layout; see `engine_config`."""
    return engine_config(model, kind=EncoderConfig, **arguments)


class BidirectionalAttention(ScaledDotProductAttention):
    """The `core_attention` of a layer whose tokens all see each other: softmax(q k^T / sqrt(d)) v.

    Padding is a mask of keys alone, which no kernel needs for each pair of tokens; with intra-document masking, documents are computed separately.
    """

    mask_types = (AttnMaskType.no_mask, AttnMaskType.padding)

    def __init__(self, config: TransformerConfig, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        if self.is_over_ranks:
            raise ValueError(f"context_parallel_size {config.context_parallel_size} is for causal attention alone; set it to 1")

    def attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, *, dropout: float) -> Tensor:
        """See `ScaledDotProductAttention.attend`; without `visible` every query sees every key."""
        kernel = partial(F.scaled_dot_product_attention, dropout_p=dropout, scale=self.softmax_scale)
        return kernel(query, key, value, attn_mask=visible)

    def _visible(self, length: int, padding: Tensor) -> Tensor:
        """Which keys all queries see, (batch, 1, 1, sequence); where all of a sample is padding its result has no meaning, but is finite."""
        return ~padding | padding.all(dim=-1, keepdim=True)

    def _seen_in(self, documents: Documents, block: DocumentBlock) -> Tensor:
        return documents.same_document(block)
