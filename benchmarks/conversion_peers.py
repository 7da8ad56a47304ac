"""NeMo 2.7.3's own importer and exporter of Llama on a CPU, one conversion per process.

Both assume a GPU with TransformerEngine.  Here the CPU is presented as the device and fused kernels are off; reading, mapping and writing are their own.

    PYTHON benchmarks/conversion_peers.py {import,export} SOURCE TARGET
"""

from __future__ import annotations

import functools
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))
warnings.filterwarnings("ignore")

FUSIONS = (
    "apply_rope_fusion",
    "persist_layer_norm",
    "gradient_accumulation_fusion",
    "bias_activation_fusion",
    "masked_softmax_fusion",
    "bias_dropout_fusion",
)


def main(direction: str, source: str, target: str) -> None:
    """`llm.import_ckpt` and `llm.export_ckpt` end in these."""
    from nemo_patches.cpu_device import present_cpu_as_device

    present_cpu_as_device()
    from nemo.collections.llm.gpt.model.llama import HFLlamaExporter, HFLlamaImporter

    without_fusions()
    converter = {"import": HFLlamaImporter, "export": HFLlamaExporter}[direction]
    converter(source).apply(Path(target))


def without_fusions() -> None:
    """Have every configuration of Megatron do without what is not there on a CPU."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    original = TransformerConfig.__post_init__

    @functools.wraps(original)
    def post_init(self: Any) -> None:
        for name in FUSIONS:
            setattr(self, name, False)
        self.use_cpu_initialization = True
        self.transformer_layer_spec = layer_spec
        original(self)

    TransformerConfig.__post_init__ = post_init


def layer_spec(config: Any, **_: Any) -> Any:
    """A layer whose parameters have TransformerEngine's names, which the converters' tables know: the norm is in the projection."""
    import torch
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.tensor_parallel import ColumnParallelLinear
    from megatron.core.transformer import transformer_block
    from megatron.core.transformer.identity_op import IdentityOp

    class Norm(torch.nn.Module):
        def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))

    class NormLinear(ColumnParallelLinear):
        def __init__(self, input_size: int, output_size: int, *, config: Any, **kwargs: Any) -> None:
            super().__init__(input_size, output_size, config=config, **kwargs)
            self.layer_norm_weight = torch.nn.Parameter(torch.ones(input_size, dtype=config.params_dtype))

    transformer_block.LayerNormImpl = Norm
    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    layer = spec.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = IdentityOp
    layer.self_attention.submodules.linear_qkv = layer.mlp.submodules.linear_fc1 = NormLinear
    layer.sharded_state_dict_keys_map = {}
    return spec


if __name__ == "__main__":
    main(*sys.argv[1:])
