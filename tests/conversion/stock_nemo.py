"""Loads checkpoints as a stock NeMo does and saves their logits; run by `test_engine` in a process of its own.

Of this project it has the CPU stand-in alone, and of TransformerEngine, which NeMo's Gemma 2 and 3 insist on, the stand-in below.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

from nemo_patches.cpu_device import present_cpu_as_device
from nemo_patches.quiet import quiet_imports

with quiet_imports():
    present_cpu_as_device()
    import nemo.lightning as nl
    import torch
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer import transformer_block
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from nemo.collections.llm.gpt.model import gemma2, gemma3
    from nemo.lightning import io
    from safetensors.torch import load_file, save_file


ATTENTION_VARIABLES = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")


class Norm(torch.nn.Module):
    """TENorm for RMSNorm whose weights count from 1."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.zeros(hidden_size)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


class NormLinear(ColumnParallelLinear):
    """TELayerNormColumnParallelLinear."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        self.layer_norm_weight = torch.nn.Parameter(torch.zeros(input_size))

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config.layernorm_epsilon) * (1 + self.layer_norm_weight)
        return super().forward(x, *args, **kwargs)


class LinearNorm(RowParallelLinear):
    """NeMo's TERowParallelLinearLayerNorm."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        self.post_layernorm = Norm(config, output_size, config.layernorm_epsilon)

    def forward(self, x: torch.Tensor) -> Any:
        output, bias = super().forward(x)
        return self.post_layernorm(output), bias


class Attention(DotProductAttention):
    """NeMo's Gemma3TEDotProductAttention: the window as it is given, in the layers that NeMo's own pattern names."""

    def __init__(self, config: Any, layer_number: int, *args: Any, **kwargs: Any) -> None:
        config = copy.deepcopy(config)
        has_window = gemma3._is_local_attn_layer(layer_number, config.interleaved_attn_pattern)
        config.window_size = (config.window_size, 0) if has_window else None
        super().__init__(config, layer_number, *args, **kwargs)


def without_new_argument(forward: Any) -> Any:
    """NeMo's forward pass of Gemma 3 as it is, where Megatron-core hands over an argument (None here) that it does not know."""

    def forward_without(*args: Any, rotary_pos_cos_sin: None = None, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    return forward_without


def main(ids_path: str, output_dir: str, *checkpoint_dirs: str) -> None:
    """Write NAME.safetensors with `logits`, and NAME.json with what the context built."""
    every_id = load_file(ids_path)["ids"]
    final_norm = transformer_block.LayerNormImpl
    gemma2.TELayerNormColumnParallelLinear, gemma2.TERowParallelLinearLayerNorm = NormLinear, LinearNorm
    gemma3.TELayerNormColumnParallelLinear, gemma3.TERowParallelLinearLayerNorm, gemma3.TENorm = NormLinear, LinearNorm, Norm
    gemma3.Gemma3TEDotProductAttention, gemma3.Gemma3SelfAttention.forward = (
        Attention,
        without_new_argument(gemma3.Gemma3SelfAttention.forward),
    )
    for directory in map(Path, checkpoint_dirs):
        transformer_block.LayerNormImpl = Norm if directory.name.startswith("gemma") else final_norm
        for name in ATTENTION_VARIABLES:  # models that want different kernels refuse what the one before has chosen
            os.environ.pop(name, None)
        strategy = nl.MegatronStrategy(ddp="pytorch", setup_optimizers=False, process_group_backend="gloo")
        trainer = nl.Trainer(devices=1, accelerator="cpu", strategy=strategy, logger=False, enable_checkpointing=False)
        model, _ = io.ModelConnector().nemo_load(directory, trainer=trainer)
        model_parallel_cuda_manual_seed(1, force_reset_rng=True)  # seeding is skipped where there is no GPU
        # Stock NeMo has Gemma 2's window on the wrong layers, so it is right within the window.
        ids = every_id[:, :8] if directory.name == "gemma2" else every_id
        with torch.inference_mode():
            logits = model.module.eval()(ids, torch.arange(ids.shape[1]).expand_as(ids), None)
        save_file({"logits": logits.float().contiguous()}, Path(output_dir) / f"{directory.name}.safetensors")
        context = io.load_context(directory)
        ours = sorted(name for name in sys.modules if name.partition(".")[0] in ("conversion", "nemo_patches", "recipes"))
        # OPT and encoders come last: NeMo does not have them, and their contexts bring in more of this project.
        found = {
            "model": type(context.model).__name__,
            "config": type(context.model.config).__name__,
            "dtype": str(context.model.config.params_dtype),
            "tokens": len(io.load_context(directory, subpath="model.tokenizer").tokenizer),
            "eos_token_id": getattr(context.model.config.generation_config, "eos_token_id", None),
            "modules of this project": ours,
        }
        (Path(output_dir) / f"{directory.name}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
