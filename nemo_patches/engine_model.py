"""Decoders as NeMo models: one configuration for every family, with what NeMo and Megatron-core lack or get wrong.

- Padding rows of the vocabulary change no logit and get no gradient.
- Layers run without TransformerEngine: torch's attention, with windows and capped scores, and norms whose weights count from 1.
- Llama 3.1's slower rotations take all four numbers of the checkpoint; Megatron-core alone fixes three of them.
- Gemma 2's scaled embeddings, norms after each part and capped logits, with the windows on the layers that Hugging Face gives them.
- Gemma 3's two rotations, one for layers with a window and one for those without; YaRN's; OLMo 3's, which are both.
- Ministral 3's attention temperature, which depends on the position.
- OLMo 2's layers without norms before their parts, and its norms over all heads; Granite's multipliers; Apertus's xIELU.
- gpt-oss's sinks, and its experts with biases, which no tensor-parallel ranks share; without TransformerEngine everywhere.
- Intra-document attention masking, without a mask of all pairs of tokens.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core import parallel_state
from megatron.core.extensions.transformer_engine import TEColumnParallelLinear
from megatron.core.fusions.fused_bias_geglu import quick_gelu
from megatron.core.models.gpt import GPTModel as MegatronGPTModel
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_block import LayerNormImpl, TransformerBlockSubmodules, get_num_layers_to_build
from nemo.collections.llm.gpt.model.base import HAVE_TE, GPTConfig, gpt_data_step, transformer_engine_layer_spec
from nemo.collections.llm.gpt.model.gemma2 import logit_softcapping
from nemo.collections.llm.gpt.model.llama import apply_rope_scaling
from torch import Tensor, nn

from nemo_patches.attention import CappedAttention, ScaledDotProductAttention, SinkAttention, TEDocumentAttention
from nemo_patches.biased_experts import FirstLinearOfExpert, SecondLinearOfExpert
from nemo_patches.documents import documents_data_step, mask_documents
from nemo_patches.factorised_embedding import factorise_embedding
from nemo_patches.lora import (
    FirstLinearWithLoRA,
    LoRA,
    QKVWithLoRA,
    RowParallelLinearWithLoRA,
    RowParallelLinearWithLoRAAndNorm,
    initialise_adapters,
)
from nemo_patches.multipliers import add_times, divide_logits, multiply
from nemo_patches.norms import LayerNorm, NormOfAllHeads, RMSNorm, RowParallelLinearWithNorm, TERowParallelLinearWithNorm
from nemo_patches.rotations import (
    SelfAttentionOfTwoBases,
    SelfAttentionWithTemperature,
    append_position,
    rotate_by_two_bases,
    slow_by_length,
    yarn_frequencies,
)
from nemo_patches.second_head import add_second_head, second_head_of, two_tokens_data_step
from nemo_patches.stand_ins import stands_in
from nemo_patches.whole_experts import has_biased_experts
from nemo_patches.xielu import XIELU, xielu

USE_TE = HAVE_TE and (torch.cuda.is_available() or stands_in())

ACTIVATIONS: Mapping[str, Callable[..., Tensor]] = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
    "xielu": xielu,
}


def causal_forward_step(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Losses of a batch in nats, without the attention mask tensor that NeMo's own step asks for: it is causal anyway.

    Args:
        batch: tokens, position_ids, labels and loss_mask, each (samples, tokens), the tokens of this rank.

    Returns:
        (samples, tokens); before the last pipeline stage the states for the next one, (tokens, samples, hidden_size)
    """
    if (head := second_head_of(model)) is not None:
        head.loss_mask, head.targets = batch.get("loss_mask"), batch.get("targets")
    return model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"], packed_seq_params=batch.get("documents"))


def layer_spec(config: EngineConfig, vp_stage: int | None = None) -> ModuleSpec | TransformerBlockSubmodules:
    """The layers: TransformerEngine's on a GPU where it is installed, else Megatron's with torch's attention and norms.

    Adapters are on Megatron's own linear layers alone, and so are experts with biases trained.
    """
    use_te = USE_TE and config.lora is None and not has_biased_experts(vars(config))
    spec = transformer_engine_layer_spec(config) if use_te else _local_layer_spec(config)
    layer, attention, mlp = spec.submodules, spec.submodules.self_attention.submodules, spec.submodules.mlp.submodules  # or of experts
    if config.num_moe_experts is not None and not use_te:  # as with TransformerEngine, where nothing takes that norm in
        layer.sharded_state_dict_keys_map = {"input_layernorm.": "self_attention.linear_qkv.layer_norm_"}
    if not config.pre_norms:
        layer.input_layernorm = layer.pre_mlp_layernorm = IdentityOp
        if use_te:  # whose usual linear layers have a norm of their own
            attention.linear_qkv = mlp.linear_fc1 = TEColumnParallelLinear
    if config.norms_of_all_heads:
        attention.q_layernorm = ModuleSpec(NormOfAllHeads, params={"num_heads": config.num_attention_heads})
        attention.k_layernorm = ModuleSpec(NormOfAllHeads, params={"num_heads": config.num_query_groups})
    if config.residual_multiplier != 1.0:
        layer.self_attn_bda = layer.mlp_bda = add_times(config.residual_multiplier)
    if config.rotary_base_local is not None:
        spec.submodules.self_attention.module = SelfAttentionOfTwoBases
    if config.query_temperature_beta is not None:
        spec.submodules.self_attention.module = SelfAttentionWithTemperature
    if use_te and config.document_mask:
        attention.core_attention = TEDocumentAttention
    if config.attn_logit_softcapping:  # TransformerEngine has no such attention
        attention.core_attention = CappedAttention
    if config.post_norms:
        attention.linear_proj = mlp.linear_fc2 = TERowParallelLinearWithNorm if use_te else RowParallelLinearWithNorm
    if config.lora is not None:
        attention.linear_qkv, mlp.linear_fc1 = QKVWithLoRA, FirstLinearWithLoRA
        attention.linear_proj = mlp.linear_fc2 = RowParallelLinearWithLoRAAndNorm if config.post_norms else RowParallelLinearWithLoRA
    if config.add_proj_bias:
        attention.linear_proj = type("WithBias", (_WithBias, attention.linear_proj), {})
    if use_te:
        return spec
    # A block of its own, because Megatron's default for the final norm knows LayerNorm alone where apex is installed, and without it no parts
    # of sequences.
    final = RMSNorm if config.normalization == "RMSNorm" else LayerNorm if LayerNormImpl is WrappedTorchNorm else LayerNormImpl
    return TransformerBlockSubmodules([spec] * get_num_layers_to_build(config, vp_stage), layer_norm=final)


class _WithBias(nn.Module):
    """A linear layer that has a bias, whatever it is told."""

    def __init__(self, *args: Any, bias: bool, **kwargs: Any) -> None:
        super().__init__(*args, bias=True, **kwargs)


def _local_layer_spec(config: EngineConfig) -> ModuleSpec:
    spec = gpt_layer_specs.get_gpt_layer_local_spec(num_experts=config.num_moe_experts, normalization=config.normalization)
    layer, attention = spec.submodules, spec.submodules.self_attention.submodules
    attention.core_attention = ScaledDotProductAttention if config.softmax_type == "vanilla" else SinkAttention
    if has_biased_experts(vars(config)):
        experts = layer.mlp.submodules.experts.submodules
        experts.linear_fc1, experts.linear_fc2 = FirstLinearOfExpert, SecondLinearOfExpert
    if config.normalization == "RMSNorm":
        layer.input_layernorm = layer.pre_mlp_layernorm = RMSNorm
        attention.q_layernorm = attention.k_layernorm = RMSNorm if config.qk_layernorm else IdentityOp
    elif layer.input_layernorm is WrappedTorchNorm:
        layer.input_layernorm = layer.pre_mlp_layernorm = LayerNorm
    return spec


@dataclass
class EngineConfig(GPTConfig):
    """A decoder for Megatron-core; the values come from the checkpoint's `context/model.json`.

    Attributes:
        real_vocab_size: rows that stand for tokens; `vocab_size` counts the padding too.
        scale_factor, low_freq_factor, high_freq_factor, old_context_len: Llama 3.1's rotary positions; no scaling if `scale_factor` is None.
        yarn_factor, yarn_old_context_len, yarn_beta_fast, yarn_beta_slow, yarn_truncate: YaRN's rotary positions; none if `yarn_factor` is None.
        yarn_attention_factor: times which queries and keys are taken then.
        longrope_short_factor, longrope_long_factor, longrope_positions: LongRoPE's; none if `longrope_positions` is None.
        longrope_attention_factor: times which what rotates of queries and keys is taken then.
        query_temperature_beta, query_temperature_positions: queries grow by `beta` times the logarithm of how often their position has so many; None
            if they do not.
        query_pre_attn_scalar: what takes the place of the head's size in the scale of the scores.
        attn_logit_softcapping, final_logit_softcapping: largest score and logit, approached as by tanh.
        rotary_base_local: base of the rotations in layers with a window, where it is another than in those without; see `nemo_patches.rotations`.
        rope_scaling_factor: what positions are divided by in layers without a window, where there are two bases.
        pre_norms: norms before attention and feed-forward part.
        post_norms: norms after attention and feed-forward part, before they are added to the residual stream.
        add_proj_bias: a bias after the attention also where linear layers have none.
        norms_of_all_heads: a norm over all queries of a token together, and one over all its keys.
        embedding_multiplier, residual_multiplier: of the embeddings, and of what attention and feed-forward part add.
        attention_multiplier: of the scores, in place of one over the root of the head's size.
        logits_scaling: what logits are divided by.
        scale_embeddings: times the root of the hidden size.
        lora: adapters on the linear layers of every block.
        predicts_two_tokens: a second head for the token after the next, in training.
        factorised_size: dimensions of a token's coordinates, where the table is trained as OFA's factors.
        document_mask: intra-document attention masking, with positions from 0 in each document; see `nemo_patches.documents`.
    """

    real_vocab_size: int = 0
    scale_factor: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    old_context_len: int = 8192
    yarn_factor: float | None = None
    yarn_old_context_len: int = 0
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    yarn_truncate: bool = True
    yarn_attention_factor: float = 1.0
    longrope_short_factor: list[float] | None = None
    longrope_long_factor: list[float] | None = None
    longrope_positions: int | None = None
    longrope_attention_factor: float = 1.0
    query_temperature_beta: float | None = None
    query_temperature_positions: int = 0
    query_pre_attn_scalar: float | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    rotary_base_local: float | None = None
    rope_scaling_factor: float = 1.0
    pre_norms: bool = True
    post_norms: bool = False
    norms_of_all_heads: bool = False
    add_proj_bias: bool = False
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    attention_multiplier: float | None = None
    logits_scaling: float = 1.0
    scale_embeddings: bool = False
    lora: LoRA | None = None
    predicts_two_tokens: bool = False
    factorised_size: int | None = None
    document_mask: bool = False

    transformer_layer_spec: Callable[..., ModuleSpec | TransformerBlockSubmodules] = layer_spec
    forward_step_fn: Callable[..., Tensor] = causal_forward_step
    masked_softmax_fusion: bool = False

    def __post_init__(self) -> None:
        if any(number is not None for number in (self.query_pre_attn_scalar, self.attention_multiplier, self.yarn_factor)):
            # From these alone: NeMo makes configurations of configurations.
            width = self.query_pre_attn_scalar or self.kv_channels or self.hidden_size // self.num_attention_heads
            self.softmax_scale = self.attention_multiplier or width**-0.5
            if self.rotary_base_local is None:  # else layers without a window alone, see `nemo_patches.rotations`
                self.softmax_scale *= self.yarn_attention_factor**2
        if self.longrope_positions is not None:
            # Megatron multiplies rotations by 0.1 * mscale * log(scaling) + 1, unless it fuses them.
            self.yarn_rotary_scaling_factor, self.yarn_mscale_all_dim = math.e, 0.0
            self.yarn_mscale = 10 * (self.longrope_attention_factor - 1)
            self.apply_rope_fusion = False
        self.data_step_fn = documents_data_step if self.document_mask else gpt_data_step
        if self.context_parallel_size > 1:
            if self.predicts_two_tokens:
                self.data_step_fn = partial(two_tokens_data_step, step=self.data_step_fn)
            # Around a ring of ranks, TransformerEngine knows no windows.
            self.cp_comm_type = "p2p" if self.window_size is None else "all_gather"
        super().__post_init__()

    def configure_model(self, *args: Any, **kwargs: Any) -> MegatronGPTModel:
        """The Megatron model, with padding rows taken out of the softmax and the family's own steps before and after the layers."""
        if not self.bf16:  # Megatron's fused loss rounds the gradient of the logits to bfloat16 whatever the precision of the run
            self.cross_entropy_loss_fusion = False
        if self.num_moe_experts is not None and not hasattr(moe_utils, "te_general_gemm"):
            moe_utils.te_general_gemm = None  # Megatron-core 0.15 asks for it always, and has it with TransformerEngine alone
        with _sites_kernels():
            model = super().configure_model(*args, **kwargs)
        if self.scale_factor is not None:
            model.rotary_pos_emb.inv_freq = apply_rope_scaling(
                model.rotary_pos_emb.inv_freq, self.scale_factor, self.low_freq_factor, self.high_freq_factor, self.old_context_len
            )
        if self.yarn_factor is not None:
            rotary = model.rotary_pos_emb
            rotary.inv_freq = yarn_frequencies(
                rotary.inv_freq,
                base=self.rotary_base,
                factor=self.yarn_factor,
                positions=self.yarn_old_context_len,
                turns=(self.yarn_beta_fast, self.yarn_beta_slow),
                truncate=self.yarn_truncate,
            )
        if self.longrope_positions is not None:
            slow_by_length(
                model.rotary_pos_emb,
                short=self.longrope_short_factor or [],
                long=self.longrope_long_factor or [],
                positions=self.longrope_positions,
            )
        if self.rotary_base_local is not None:
            rotate_by_two_bases(model, local=self.rotary_base_local, scaling=self.rope_scaling_factor)
        if self.query_temperature_beta is not None:
            append_position(model.rotary_pos_emb)
        if self.activation_func is xielu:
            for layer in model.decoder.layers:
                layer.mlp.activation_func = XIELU(self)
        if self.document_mask:
            mask_documents(model)
        if self.recompute_granularity == "selective" and "mlp" in self.recompute_modules:
            for layer in model.decoder.layers:
                layer.mlp.register_forward_hook(_return_copied_bias)
        if self.lora is not None:
            initialise_adapters(model, self.lora)
        if self.factorised_size is not None:
            factorise_embedding(model, self.factorised_size)
        if model.pre_process:
            # The families drop out after attention and after the second linear layer, and nowhere else; Megatron also after the embedding.
            model.embedding.embedding_dropout.p = 0.0
            if self.scale_embeddings:
                model.embedding.register_forward_hook(partial(_scale, factor=self.hidden_size**0.5))
            if self.embedding_multiplier != 1.0:
                model.embedding.register_forward_hook(partial(multiply, factor=self.embedding_multiplier))
            if self.recompute_granularity is not None:
                model.embedding.register_forward_hook(_ask_for_gradient)
        if model.post_process:
            heads = [model.output_layer, *([add_second_head(model)] if self.predicts_two_tokens else [])]
            columns = self.vocab_size // parallel_state.get_tensor_model_parallel_world_size()
            first_column = parallel_state.get_tensor_model_parallel_rank() * columns
            real_columns = min(max(self.real_vocab_size - first_column, 0), columns)
            for head in heads:
                if self.logits_scaling != 1.0:
                    head.register_forward_hook(partial(divide_logits, divisor=self.logits_scaling))
                if self.final_logit_softcapping:
                    head.register_forward_hook(partial(_cap, cap=self.final_logit_softcapping))
                head.register_forward_hook(partial(_mask_padding, real_columns=real_columns))
        return model


@contextlib.contextmanager
def _sites_kernels() -> Iterator[None]:
    """Keep which kernels for attention the environment leaves TransformerEngine: Megatron-core asserts that it leaves all, and sets them."""
    said = {name: os.environ.pop(name) for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN") if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(said)


def _scale(module: nn.Module, inputs: Any, output: Tensor, *, factor: float) -> Tensor:
    return output * torch.tensor(factor, dtype=output.dtype, device=output.device)  # rounded to the dtype first, as Hugging Face does


def _ask_for_gradient(module: nn.Module, inputs: Any, output: Tensor) -> None:
    """Recomputed layers of Megatron get gradients for their parameters only if their input requires one: a frozen table would prevent them."""
    if torch.is_grad_enabled() and not output.requires_grad:
        output.requires_grad_()


def _return_copied_bias(module: nn.Module, inputs: Any, output: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
    """Of a recomputed feed-forward part: autograd would take the parameter itself for a result, and recompute it endlessly."""
    hidden, bias = output
    return hidden, None if bias is None else bias.clone()


def _cap(module: nn.Module, inputs: Any, output: tuple[Tensor, Tensor | None], *, cap: float) -> tuple[Tensor, Tensor | None]:
    logits, bias = output
    return logit_softcapping(logits, cap), bias


def _mask_padding(
    module: nn.Module, inputs: Any, output: tuple[Tensor, Tensor | None], *, real_columns: int
) -> tuple[Tensor, Tensor | None]:
    """Give padding rows probability zero and gradient zero; otherwise each would add exp(logit) to every softmax."""
    logits, bias = output
    if real_columns < logits.shape[-1]:
        logits[..., real_columns:] = torch.finfo(logits.dtype).min
    return logits, bias


Config = TypeVar("Config", bound=EngineConfig)


def engine_config(
    model: Mapping[str, Any],
    *,
    padded_vocab_size: int | None = None,
    hidden_dropout: float = 0.0,
    attention_dropout: float = 0.0,
    kind: type[Config] = EngineConfig,  # type: ignore[assignment]
    **overrides: Any,
) -> Config:
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
    activation = fields.pop("activation_func")
    if "window_size" in fields:
        fields["window_size"] = tuple(fields["window_size"])  # Megatron caches masks by it
    on_gpu = torch.cuda.is_available()
    if has_biased_experts(model):
        fields["expert_tensor_parallel_size"] = 1
    return kind(
        **{
            **fields,
            "vocab_size": padded_vocab_size or real_vocab_size,
            "real_vocab_size": real_vocab_size,
            "seq_length": seq_length,
            "activation_func": ACTIVATIONS[activation],
            # The fused bias and activation know exact GELU and SwiGLU alone; with ReLU they would skip activation and bias.
            "bias_activation_fusion": on_gpu and activation == "silu",
            "hidden_dropout": hidden_dropout,
            "attention_dropout": attention_dropout,
            "bias_dropout_fusion": on_gpu,
            "cross_entropy_loss_fusion": on_gpu,
            "use_cpu_initialization": not on_gpu,
            **overrides,
        }
    )
