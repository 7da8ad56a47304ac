"""The stand-ins as the module trees that Megatron-core and NeMo import from; what they only look for and never call is not there."""

from __future__ import annotations

import contextlib
import importlib.machinery
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nemo_patches.stand_ins import adam, apex_functions, linear, norms
from nemo_patches.stand_ins.attention import DotProductAttention
from nemo_patches.stand_ins.base import ExtraState, get_dummy_wgrad


def transformer_engine_modules(version: str) -> dict[str, types.ModuleType]:
    """Name -> module of the package TransformerEngine in a version, for `sys.modules`."""
    layer_norm, rms_norm = norms.of_version(version)
    pytorch = {
        "Linear": linear.Linear,
        "LayerNormLinear": linear.LayerNormLinear,
        "LayerNorm": layer_norm,
        "RMSNorm": rms_norm,
        "DotProductAttention": DotProductAttention,
        "GroupedLinear": _absent("GroupedLinear"),
    }
    content: dict[str, dict[str, Any]] = {
        "": {"__version__": version, "is_stand_in": True},
        "common": {},
        "common.recipe": {name: _absent(name) for name in ("DelayedScaling", "Format")},
        "pytorch": pytorch,
        "pytorch.module": {},
        "pytorch.ops": {name: _absent(name) for name in ("FusibleOperation", "Sequential")},
        "pytorch.module.base": {"TransformerEngineBaseModule": ExtraState, "get_dummy_wgrad": get_dummy_wgrad},
        "pytorch.tensor": {"QuantizedTensor": _absent("QuantizedTensor")},
        "pytorch.float8_tensor": {"Float8Tensor": _absent("Float8Tensor")},
        "pytorch.fp8": {"FP8GlobalStateManager": _Fp8Off, "fp8_autocast": _absent("fp8_autocast")},
        "pytorch.distributed": {
            "CudaRNGStatesTracker": _absent("CudaRNGStatesTracker"),
            "activation_recompute_forward": _absent("activation_recompute_forward"),
            "checkpoint": _absent("checkpoint"),
        },
        "pytorch.cpu_offload": {"get_cpu_offload_context": _no_offload},
        "pytorch.router": {
            name: _absent(name) for name in ("fused_compute_score_for_moe_aux_loss", "fused_moe_aux_loss", "fused_topk_with_score_function")
        },
        "pytorch.optimizers": {
            "FusedAdam": adam.FusedAdam,
            "FusedSGD": _absent("FusedSGD"),
            "multi_tensor_applier": adam.multi_tensor_applier,
            "multi_tensor_l2norm": adam.multi_tensor_l2norm,
            "multi_tensor_scale": adam.multi_tensor_scale,
        },
    }
    return _tree("transformer_engine", content)


def apex_modules() -> dict[str, types.ModuleType]:
    """Name -> module of apex and of the extensions that come with it, for `sys.modules`."""
    lists = {"multi_tensor_l2norm": adam.multi_tensor_l2norm, "multi_tensor_scale": adam.multi_tensor_scale}
    content: dict[str, dict[str, Any]] = {
        "": {"is_stand_in": True},
        "multi_tensor_apply": {"multi_tensor_applier": adam.multi_tensor_applier},
        "optimizers": {"FusedAdam": adam.ApexFusedAdam, "FusedSGD": _absent("FusedSGD"), "FusedLAMB": _absent("FusedLAMB")},
        "normalization": {},
        "normalization.fused_layer_norm": {"FusedLayerNormAffineFunction": apex_functions.FusedLayerNormAffineFunction},
        "contrib": {},
        "contrib.layer_norm": {},
        "contrib.layer_norm.layer_norm": {"FastLayerNormFN": apex_functions.FastLayerNormFN},
    }
    gradient = dict.fromkeys(("wgrad_gemm_accum_fp32", "wgrad_gemm_accum_fp16"), apex_functions.accumulate_weight_gradient)
    return _tree("apex", content) | _tree("amp_C", {"": lists}) | _tree("fused_weight_gradient_mlp_cuda", {"": gradient})


def _tree(package: str, content: dict[str, dict[str, Any]]) -> dict[str, types.ModuleType]:
    """Modules by their whole name, each also an attribute of its parent."""
    modules: dict[str, types.ModuleType] = {}
    for path, attributes in content.items():
        name = f"{package}.{path}".rstrip(".")
        module = types.ModuleType(name, "A stand-in; see nemo_patches.stand_ins.")
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        for attribute, value in attributes.items():
            setattr(module, attribute, value)
        modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(modules[parent], last, module)
    return modules


def _absent(name: str) -> type:
    """A class that may be named, inherited and looked for among the types of an object, but not made."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        raise NotImplementedError(f"the stand-in has no {name}: no recipe of this project uses it")

    return type(name, (), {"__init__": __init__})


class _Fp8Off:
    """FP8GlobalStateManager where nothing is FP8."""

    @staticmethod
    def is_fp8_enabled() -> bool:
        """Never."""
        return False

    @staticmethod
    def reset() -> None:
        """Nothing to reset."""


def _no_offload(enabled: bool = False, *args: Any, **kwargs: Any) -> tuple[Any, Callable[[Tensor], Tensor]]:
    """The context and the hook of get_cpu_offload_context, neither of which does anything while offloading is off."""
    if enabled:
        raise NotImplementedError("the stand-in for TransformerEngine moves no activations to the host")
    return contextlib.nullcontext(), torch.nn.Identity()
