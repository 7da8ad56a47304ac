"""The stand-ins as the module trees that Megatron-core and NeMo import from; what they only look for and never call is not there."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.metadata
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_patches.stand_ins import adam, linear, norms
from nemo_patches.stand_ins.attention import DotProductAttention
from nemo_patches.stand_ins.base import ExtraState, get_dummy_wgrad


def transformer_engine_modules(version: str) -> dict[str, types.ModuleType]:
    """Name -> module of the package TransformerEngine in a version, for `sys.modules`."""
    layer_norm, rms_norm = norms.of_version(version)
    lists = {"multi_tensor_l2norm": adam.multi_tensor_l2norm, "multi_tensor_scale": adam.multi_tensor_scale}
    pytorch = {
        "Linear": linear.Linear,
        "LayerNormLinear": linear.LayerNormLinear,
        "LayerNorm": layer_norm,
        "RMSNorm": rms_norm,
        "DotProductAttention": DotProductAttention,
        **_absent("GroupedLinear"),
    }
    content: dict[str, dict[str, Any]] = {
        "": {"__version__": version, "is_stand_in": True},
        "common": {},
        "common.recipe": _absent("DelayedScaling", "Format"),
        "pytorch": pytorch,
        "pytorch.module": {},
        "pytorch.ops": _absent("FusibleOperation", "Sequential"),
        "pytorch.module.base": {"TransformerEngineBaseModule": ExtraState, "get_dummy_wgrad": get_dummy_wgrad},
        "pytorch.tensor": _absent("QuantizedTensor"),
        "pytorch.float8_tensor": _absent("Float8Tensor"),
        "pytorch.fp8": {"FP8GlobalStateManager": _Fp8Off, **_absent("fp8_autocast")},
        "pytorch.distributed": _absent("CudaRNGStatesTracker", "activation_recompute_forward", "checkpoint"),
        "pytorch.cpu_offload": {"get_cpu_offload_context": _no_offload},
        "pytorch.router": _absent("fused_compute_score_for_moe_aux_loss", "fused_moe_aux_loss", "fused_topk_with_score_function"),
        "pytorch.optimizers": {
            "FusedAdam": adam.FusedAdam,
            "multi_tensor_applier": adam.multi_tensor_applier,
            **lists,
            **_absent("FusedSGD"),
        },
    }
    return _tree("transformer_engine", content)


def apex_modules() -> dict[str, types.ModuleType]:
    """Name -> module of apex and of the extensions that come with it, for `sys.modules`."""
    lists = {"multi_tensor_l2norm": adam.multi_tensor_l2norm, "multi_tensor_scale": adam.multi_tensor_scale}
    content: dict[str, dict[str, Any]] = {
        "": {"is_stand_in": True},
        "multi_tensor_apply": {"multi_tensor_applier": adam.multi_tensor_applier},
        "optimizers": {"FusedAdam": adam.ApexFusedAdam, **_absent("FusedSGD", "FusedLAMB")},
        "normalization": {},
        "normalization.fused_layer_norm": {"FusedLayerNormAffineFunction": norms.FusedLayerNormAffineFunction},
        "contrib": {},
        "contrib.layer_norm": {},
        "contrib.layer_norm.layer_norm": {"FastLayerNormFN": norms.FastLayerNormFN},
    }
    gradient = dict.fromkeys(("wgrad_gemm_accum_fp32", "wgrad_gemm_accum_fp16"), linear.accumulate_weight_gradient)
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


def _absent(*names: str) -> dict[str, type]:
    """Classes that may be named, inherited and looked for among the types of an object, but not made."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"the stand-in has no {type(self).__name__}: no recipe of this project uses it")

    return {name: type(name, (), {"__init__": refuse}) for name in names}


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


class StandInFinder(importlib.metadata.DistributionFinder):
    """Finds one distribution, of a name and version alone, on `sys.meta_path`: NeMo asks it for TransformerEngine's; it imports nothing."""

    def __init__(self, name: str, version: str) -> None:
        self._name, self._found = name, _NameAndVersion(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def find_spec(self, *_: Any) -> None:
        """No module."""

    def find_distributions(self, context: Any = None) -> Iterator[importlib.metadata.Distribution]:
        """The one distribution, if it is asked for or all are."""
        if context is None or context.name is None or context.name.replace("_", "-").lower() == self._name:
            yield self._found


class _NameAndVersion(importlib.metadata.Distribution):
    def __init__(self, text: str) -> None:
        self._text = text

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Path:
        return Path(path)
