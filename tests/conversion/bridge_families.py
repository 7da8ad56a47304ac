"""Megatron-Bridge's own converters on exports of ours, on a CPU; runs in the environment of `make test-bridge`.

    PYTHON -m tests.conversion.bridge_families FOLDER RESULT.json

FOLDER holds an export a family.  Each is read by `AutoBridge.from_hf_pretrained`, computed by the model that this makes, and written back; the
result says how far the logits are from transformers', whether the tensors came back bit for bit, or what was refused.  The layers are
Megatron-core's own with TransformerEngine's names, since Bridge's tables know those: a norm that belongs to the projection behind it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.conversion.other_version import batch, stock_logits
from tests.recipes.bridge_on_cpu import prepare


def layer_spec(config: Any, **_: Any) -> Any:
    """One layer for any of Bridge's providers."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.tensor_parallel import ColumnParallelLinear
    from megatron.core.transformer import transformer_block
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    class TELayerNormColumnParallelLinear(ColumnParallelLinear):  # Bridge tells how a tensor is cut by the name of its class
        def __init__(self, input_size: int, output_size: int, *, config: Any, **kwargs: Any) -> None:
            super().__init__(input_size, output_size, config=config, **kwargs)
            self.layer_norm_weight = torch.nn.Parameter(torch.ones(input_size, dtype=config.params_dtype))
            self._epsilon, self._added = config.layernorm_epsilon, float(config.layernorm_zero_centered_gamma)

        def forward(self, input_: Any, *args: Any, **kwargs: Any) -> Any:
            weight = self.layer_norm_weight + self._added
            return super().forward(torch.nn.functional.rms_norm(input_, weight.shape, weight, self._epsilon), *args, **kwargs)

    if config.normalization != "RMSNorm" or config.layernorm_zero_centered_gamma:
        raise NotImplementedError(f"a final norm of the kind {config.normalization} as TransformerEngine has it")
    transformer_block.LayerNormImpl = WrappedTorchNorm
    spec = get_gpt_layer_local_spec(
        config.num_moe_experts, moe_grouped_gemm=False, normalization="RMSNorm", qk_layernorm=config.qk_layernorm
    )
    layer = spec.submodules
    attention = layer.self_attention.submodules
    layer.input_layernorm = IdentityOp
    attention.linear_qkv = TELayerNormColumnParallelLinear
    if config.num_moe_experts:  # the norm before the experts is the router's too, and has a place of its own
        layer.pre_mlp_layernorm = WrappedTorchNorm
    else:
        layer.pre_mlp_layernorm = IdentityOp
        layer.mlp.keywords["submodules"].linear_fc1 = TELayerNormColumnParallelLinear
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = WrappedTorchNorm
    layer.sharded_state_dict_keys_map = {}
    return spec


def look(folder: Path) -> dict[str, Any]:
    """What Bridge makes of a folder."""
    from megatron.bridge import AutoBridge
    from safetensors.torch import load_file

    from benchmarks.conversion_peers import FUSIONS

    found: dict[str, Any] = {}
    try:
        bridge = AutoBridge.from_hf_pretrained(str(folder))
        found["bridge"] = type(bridge._model_bridge).__name__
        provider = bridge.to_megatron_provider(load_weights=True)
        found["provider"] = type(provider).__name__
        for name in (*FUSIONS, "cross_entropy_loss_fusion"):
            setattr(provider, name, False)
        if provider.num_moe_experts:  # kernels that GPUs alone have
            provider.moe_permute_fusion = provider.moe_grouped_gemm = provider.moe_router_fusion = False
            provider.moe_token_dispatcher_type = "allgather"
        provider.use_cpu_initialization, provider.params_dtype, provider.bf16, provider.fp16 = True, torch.float32, False, False
        provider.autocast_dtype = provider.pipeline_dtype = None
        provider.transformer_layer_spec = layer_spec
        provider.finalize()
        [model] = provider.provide_distributed_model(wrap_with_ddp=False)
        ids = batch()
        with torch.inference_mode():
            logits = model.eval()(ids, torch.arange(ids.shape[1])[None], causal_mask(ids.shape[1]))
        expected = stock_logits(folder)
        found["largest_difference"] = float((logits[..., : expected.shape[-1]].float() - expected).abs().max())
        found["largest_logit"] = float(expected.abs().max())
        with tempfile.TemporaryDirectory() as back:
            bridge.save_hf_pretrained([model], back)
            before, after = load_file(folder / "model.safetensors"), load_file(Path(back) / "model.safetensors")
        different = {
            name
            for name in before.keys() | after.keys()
            if name not in before or name not in after or not torch.equal(before[name], after[name])
        }
        found["not_back"] = sorted(different)
    except Exception as error:  # whatever Bridge refuses with is what is asked for
        found["refused"] = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        if os.environ.get("SCION_TRACEBACK"):
            import traceback

            traceback.print_exc()
    return found


def causal_mask(length: int) -> torch.Tensor:
    """(1, 1, length, length), True at what a token must not see, as Megatron's own attention wants it."""
    return torch.ones(length, length).triu(1).bool()[None, None]


def main(folder: str, result: str) -> None:
    """Look at all folders."""
    torch.set_num_threads(1)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    prepare()
    from megatron.core import parallel_state, tensor_parallel

    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(0)
    found = {path.name: look(path) for path in sorted(Path(folder).iterdir()) if path.is_dir()}
    Path(result).write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main(*sys.argv[1:])
