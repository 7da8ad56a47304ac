"""Low-rank adapters (LoRA) of a trained checkpoint, merged into their weights."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.plain_files import read_json
from conversion.families.qkv import interleave_qkv
from conversion.formats.lazy_tensor import LazyTensor

if TYPE_CHECKING:
    from torch import Tensor

LORA_NAME = "lora.json"
_PARTS = ({"all"}, {"gate", "up"}, {"q", "k", "v"})  # of a weight that have factors of their own
_LARGEST = 1e30
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
    rank, alpha = read_lora(context_dir)
    scale = alpha / rank
    kept = {name: tensor for name, tensor in tensors.items() if not _FACTOR.fullmatch(name)}
    if unfit := [name for name, parts in factors.items() if name not in kept or not _fit(kept[name], parts)]:
        raise ValueError(f"the checkpoint has adapters that fit no weight, first those of {unfit[0]}; copy it again")
    return kept | {name: _merged(kept[name], parts, config["num_query_groups"], scale) for name, parts in factors.items()}


def _fit(weight: LazyTensor, parts: Mapping[str, Mapping[str, LazyTensor]]) -> bool:
    """Whether the products of the factors make a matrix of the weight's shape."""
    shapes = [tuple(factors[side].shape for side in "ba" if side in factors) for factors in parts.values()]
    if set(parts) not in _PARTS or any(len(pair) != 2 or {*map(len, pair)} != {2} for pair in shapes):
        return False
    fit = all(b[1] == a[0] and a[1] == weight.shape[-1] for b, a in shapes)
    return fit and len(weight.shape) == 2 and sum(b[0] for b, _ in shapes) == weight.shape[0]


def read_lora(context_dir: Path) -> tuple[int, float]:
    """Rank and alpha of the adapters beside a checkpoint's model.

    Raises:
        ValueError: if the file does not say them.
    """
    path = context_dir / LORA_NAME
    if not path.is_file():
        raise ValueError(f"the checkpoint has adapters, but {path} is missing, which says what they are scaled by; copy it again")
    settings = read_json(path)
    alpha: Any
    rank: Any
    alpha, rank = (settings.get(key) if isinstance(settings, dict) else None for key in ("alpha", "rank"))
    if type(rank) is not int or rank < 1 or type(alpha) not in (int, float) or not -_LARGEST < alpha < _LARGEST:
        raise ValueError(f"{path} says no rank and alpha of adapters; copy the checkpoint again")
    return rank, float(alpha)


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
