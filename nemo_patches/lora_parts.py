"""Which linear layers of a decoder get low-rank adapters (Hu et al. 2022), and which of their fused parts get one of their own.

Hugging Face has a projection each for what Megatron fuses, and PEFT gives each an adapter: so do these, which makes them the same
models.
"""

from __future__ import annotations

QKV, OUTPUT, FIRST, SECOND = "self_attention.linear_qkv", "self_attention.linear_proj", "mlp.linear_fc1", "mlp.linear_fc2"


def parts_of(linear: str, *, is_gated: bool) -> tuple[str, ...]:
    """The parts of a linear layer that have an adapter each, in the order in which their rows are fused."""
    if linear == QKV:
        return ("q", "k", "v")
    return ("gate", "up") if linear == FIRST and is_gated else ("all",)


def adapter_names(*, num_layers: int, is_gated: bool) -> list[str]:
    """Names of all parameters of the adapters of a model; layers are counted over the whole model."""
    return [
        f"decoder.layers.{layer}.{linear}.lora.{part}.{factor}"
        for layer in range(num_layers)
        for linear in (QKV, OUTPUT, FIRST, SECOND)
        for part in parts_of(linear, is_gated=is_gated)
        for factor in "ab"
    ]
