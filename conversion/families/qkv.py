"""Megatron's fused query-key-value projection: interleaved by query group, and split again.

Weights and biases alike: only the rows move.
"""

from __future__ import annotations

import numpy as np

from conversion.formats.lazy_tensor import Bits


def interleave_qkv(q: Bits, k: Bits, v: Bits, *, num_query_groups: int) -> Bits:
    """Stack separate projections into the fused one.

    The rows of a query group stay together: its queries, then its one key, then its one value (grouped-query attention:
    Ainslie et al. 2023, section 2.2; with one group per head it is multi-head, with one group multi-query attention).

    Args:
        q: (num_attention_heads * head_dim, ...)
        k, v: (num_query_groups * head_dim, ...)

    Returns:
        ((num_attention_heads + 2 * num_query_groups) * head_dim, ...), dtype of the inputs

    Raises:
        ValueError: if the rows of q are not a multiple of those of k, or those of k not a multiple of the groups.
    """
    if q.shape[0] % k.shape[0] or k.shape[0] % num_query_groups or k.shape != v.shape:
        raise ValueError(f"q, k and v of {q.shape[0]}, {k.shape[0]} and {v.shape[0]} rows do not make {num_query_groups} query groups")
    columns = q.shape[1:]
    return np.concatenate([part.reshape(num_query_groups, -1, *columns) for part in (q, k, v)], axis=1).reshape(-1, *columns)


def separate_qkv(qkv: Bits, *, num_attention_heads: int, num_query_groups: int) -> tuple[Bits, Bits, Bits]:
    """The inverse of `interleave_qkv`: q, k and v, as views.

    Returns:
        (num_query_groups, heads_per_group * head_dim, ...) for q, (num_query_groups, head_dim, ...) for k and v;
        `joined_groups` copies one of them into the form that `interleave_qkv` takes.
    """
    heads_per_group = num_attention_heads // num_query_groups
    groups = qkv.reshape(num_query_groups, -1, *qkv.shape[1:])
    head_dim = groups.shape[1] // (heads_per_group + 2)
    q, k, v = np.split(groups, [heads_per_group * head_dim, (heads_per_group + 1) * head_dim], axis=1)
    return q, k, v


def joined_groups(part: Bits) -> Bits:
    """One of the three as a matrix or vector of its own: (rows, ...), contiguous."""
    return np.ascontiguousarray(part).reshape(-1, *part.shape[2:])
