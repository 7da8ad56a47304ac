"""Low-rank adapters of a trained checkpoint, added into the weights that they belong to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conversion.lazy_tensor import LazyTensor
from conversion.qkv import interleave_qkv

if TYPE_CHECKING:
    from torch import Tensor

LORA_NAME = "lora.json"
_FACTOR = re.compile(r"(.+)\.lora\.(\w+)\.([ab])")


def write_lora(context_dir: Path, *, rank: int, alpha: float) -> None:
    """Say beside a checkpoint's model what its adapters are scaled by."""
    (context_dir / LORA_NAME).write_text(json.dumps({"rank": rank, "alpha": alpha}) + "\n", encoding="utf-8")


def merge_adapters(tensors: Mapping[str, LazyTensor], config: Mapping[str, Any], context_dir: Path) -> dict[str, LazyTensor]:
    """The tensors with alpha / rank * b @ a added to each weight that has adapters, and without these; nothing is read yet.

    The sum is made in float32 and rounded once, to the weight's dtype.

    Raises:
        ValueError: if there are adapters, but not the numbers that they are scaled by.
    """
    factors: dict[str, dict[str, dict[str, LazyTensor]]] = {}
    for name, tensor in tensors.items():
        if found := _FACTOR.fullmatch(name):
            factors.setdefault(f"{found[1]}.weight", {}).setdefault(found[2], {})[found[3]] = tensor
    if not factors:
        return dict(tensors)
    path = context_dir / LORA_NAME
    if not path.is_file():
        raise ValueError(f"the checkpoint has adapters, but {path} is missing, which says what they are scaled by; copy it again")
    settings = json.loads(path.read_text(encoding="utf-8"))
    scale = settings["alpha"] / settings["rank"]
    kept = {name: tensor for name, tensor in tensors.items() if not _FACTOR.fullmatch(name)}
    return kept | {name: _merged(kept[name], parts, config["num_query_groups"], scale) for name, parts in factors.items()}


def _merged(weight: LazyTensor, parts: Mapping[str, Mapping[str, LazyTensor]], num_query_groups: int, scale: float) -> LazyTensor:
    def add() -> Tensor:
        import torch

        products = {part: factors["b"].read().float() @ factors["a"].read().float() for part, factors in parts.items()}
        if "q" in products:
            q, k, v = (products[part].numpy() for part in "qkv")
            product = torch.from_numpy(interleave_qkv(q, k, v, num_query_groups=num_query_groups))
        else:
            product = torch.cat([products[part] for part in ("all", "gate", "up") if part in products])
        return (weight.read().float() + scale * product).to(weight.dtype)

    return LazyTensor.computed(weight.name, weight.shape, weight.dtype, add)
