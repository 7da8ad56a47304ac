from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from conversion.families.mapping import FuseGateUp
from conversion.families.qkv import interleave_qkv, joined_groups, separate_qkv
from conversion.formats.lazy_tensor import Bits, LazyTensor

# Rows are labelled by name, head and row within the head; head_dim is 2.
LABELS = {
    "multi-head": (
        2,
        2,
        "q0a q0b q1a q1b | k0a k0b k1a k1b | v0a v0b v1a v1b",
        "q0a q0b k0a k0b v0a v0b  q1a q1b k1a k1b v1a v1b",
    ),
    "grouped": (
        4,
        2,
        "q0a q0b q1a q1b q2a q2b q3a q3b | k0a k0b k1a k1b | v0a v0b v1a v1b",
        "q0a q0b q1a q1b k0a k0b v0a v0b  q2a q2b q3a q3b k1a k1b v1a v1b",
    ),
    "multi-query": (
        3,
        1,
        "q0a q0b q1a q1b q2a q2b | k0a k0b | v0a v0b",
        "q0a q0b q1a q1b q2a q2b k0a k0b v0a v0b",
    ),
}


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("columns", [(), (3,)], ids=["bias", "weight"])
def test_golden_order(kind: str, columns: tuple[int, ...]) -> None:
    heads, groups, separate, fused = LABELS[kind]
    value = {label: number for number, label in enumerate(separate.replace("|", "").split())}

    def rows(labels: str) -> Bits:
        column = np.array([value[label] for label in labels.split()])
        return np.broadcast_to(column.reshape(-1, *(1 for _ in columns)), (len(column), *columns))

    q, k, v = (rows(part) for part in separate.split("|"))
    assert np.array_equal(interleave_qkv(q, k, v, num_query_groups=groups), rows(fused))
    parts = separate_qkv(rows(fused), num_attention_heads=heads, num_query_groups=groups)
    for part, expected in zip(parts, (q, k, v), strict=True):
        assert np.array_equal(joined_groups(part), expected)


def test_rows_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=re.escape("q, k and v of 8, 4 and 2 rows do not make 2 query groups")):
        interleave_qkv(np.zeros(8), np.zeros(4), np.zeros(2), num_query_groups=2)


def test_golden_order_of_gate_and_up() -> None:
    """Gate above up, in the one place that knows it: the table's rule."""
    rule = FuseGateUp("mlp.{gate,up}", "fc1", ("gate_up_size", "hidden_size"))
    sizes = {"gate_up_size": 4, "hidden_size": 3}
    gate, up = torch.tensor([[1.0, 2, 3], [4, 5, 6]]), torch.tensor([[-1.0, -2, -3], [-4, -5, -6]])
    lazy = [LazyTensor.of("mlp.gate", gate), LazyTensor.of("mlp.up", up)]
    [fused] = rule.to_megatron(lazy, ["fc1"], sizes)
    assert fused.read().tolist() == [[1, 2, 3], [4, 5, 6], [-1, -2, -3], [-4, -5, -6]]
    assert (fused.name, fused.shape) == ("fc1", (4, 3))
    for part, expected in zip(rule.to_hf([fused], ["mlp.gate", "mlp.up"], sizes), (gate, up), strict=True):
        assert part.shape == (2, 3)
        assert torch.equal(part.read(), expected)
