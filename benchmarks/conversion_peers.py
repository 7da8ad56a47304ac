"""The published converters on a CPU, one conversion per process: NeMo 2.7.3's importer and exporter of Llama, and Megatron-Bridge 0.3.1's.

Run by `benchmarks.conversion` with an interpreter that has them.  Both assume a GPU with TransformerEngine.  Here the CPU is presented
as the device, fused kernels are off, and Bridge finds empty modules where it imports packages that need CUDA to be installed;
reading, mapping and writing are their own.

    PYTHON benchmarks/conversion_peers.py {NeMo,Megatron-Bridge} {import,export} SOURCE TARGET
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import os
import sys
import types
import warnings
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))
warnings.filterwarnings("ignore")

# These look for the packages that are empty modules later, and must not find them.
LOOKS_FOR_PACKAGES = (
    "megatron.core",
    "megatron.core.extensions",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.optimizer",
    "torch._inductor.runtime.triton_heuristics",
    "transformers",
)
FUSIONS = (
    "apply_rope_fusion",
    "persist_layer_norm",
    "gradient_accumulation_fusion",
    "bias_activation_fusion",
    "masked_softmax_fusion",
    "bias_dropout_fusion",
)


def with_nemo(direction: str, source: str, target: str) -> None:
    """`llm.import_ckpt` and `llm.export_ckpt` end in these."""
    from nemo_patches.cpu_device import present_cpu_as_device

    present_cpu_as_device()
    from nemo.collections.llm.gpt.model.llama import HFLlamaExporter, HFLlamaImporter

    without_fusions()
    converter = {"import": HFLlamaImporter, "export": HFLlamaExporter}[direction]
    converter(source).apply(Path(target))


def with_bridge(direction: str, source: str, target: str) -> None:
    """`AutoBridge.import_ckpt` and `export_ckpt`; the export needs the original folder too, which lies beside."""
    for name in LOOKS_FOR_PACKAGES:
        importlib.import_module(name)
    import torch

    for name in ("transformer_engine", "transformer_engine.pytorch", "triton", "triton.language"):
        sys.modules[name] = empty_module(name)
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT="29517")
    torch.cuda.set_device = lambda *a: None
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    torch.cuda.get_rng_state = lambda *a, **k: torch.get_rng_state()
    torch.cuda.synchronize = lambda *a: None
    from megatron.bridge import AutoBridge

    without_fusions()
    if direction == "import":
        torch.distributed.init_process_group("gloo")
        AutoBridge.import_ckpt(source, target)
    else:
        AutoBridge.from_hf_pretrained(str(Path(target).parent / "hf")).export_ckpt(source, target)


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


class _Nothing(type):
    """A class whose every attribute is such a class, and that leaves what it decorates as it is."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args and callable(args[0]) else lambda function: function


def _nothing(name: str) -> Any:
    return _Nothing(name, (), {})


def empty_module(name: str) -> types.ModuleType:
    """A module in which every name is a class that does nothing."""
    module = types.ModuleType(name)
    module.__path__ = []
    module.__version__ = "2.10.0"  # type: ignore[attr-defined]
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__getattr__ = lambda attribute: _module_attribute(attribute)  # type: ignore[method-assign]
    return module


def _module_attribute(attribute: str) -> Any:
    if attribute.startswith("__"):
        raise AttributeError(attribute)
    return _nothing(attribute)


if __name__ == "__main__":
    {"NeMo": with_nemo, "Megatron-Bridge": with_bridge}[sys.argv[1]](*sys.argv[2:])
