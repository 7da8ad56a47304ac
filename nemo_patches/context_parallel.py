"""Context parallelism: samples split over ranks, and attention over all their chunks.

A sample is cut into twice as many pieces as there are ranks; rank r has piece r from the front and piece r from the end, as
`megatron.core.utils.get_batch_on_this_cp_rank` deals them out.  Under a causal mask the last tokens see the most, so every rank then has as
many pairs of tokens as any other.

Keys and values are gathered from all ranks for one layer at a time, and again for its backward pass, behind which the gradients of each
rank's part are summed where it lies (the exchange of Megatron's all-gather; Dubey et al. 2024, section 3.3.2, train Llama 3 at 131,072 tokens so).
Kept in between is what this rank has of queries, keys and values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import _fork_rng, _get_all_rng_states, _set_all_rng_states
from torch import Tensor
from torch.distributed import ProcessGroup


class Span(NamedTuple):
    """Tokens of a sample that follow each other on a rank.

    Attributes:
        rows: where the rank has them.
        first: place of the first one in the sample.
    """

    rows: slice
    first: int

    @property
    def end(self) -> int:
        """Place after the last one."""
        return self.first + self.rows.stop - self.rows.start

    def blocks(self, size: int) -> Iterator[Span]:
        """The same tokens, so many at a time."""
        for row in range(self.rows.start, self.rows.stop, size):
            yield Span(slice(row, min(row + size, self.rows.stop)), self.first + row - self.rows.start)


def spans(length: int, *, rank: int, size: int) -> tuple[Span, Span]:
    """The two pieces that a rank has.

    Args:
        length: tokens that the rank has of a sample.
    """
    piece = length // 2
    return Span(slice(0, piece), rank * piece), Span(slice(piece, length), (2 * size - 1 - rank) * piece)


def on_this_rank(samples: Tensor) -> Tensor:
    """(samples, length, ...) -> (samples, length / ranks, ...), what this rank has of each sample."""
    size = context_parallel_size()
    if size == 1:
        return samples
    mine = spans(samples.shape[1] // size, rank=parallel_state.get_context_parallel_rank(), size=size)
    return torch.cat([samples[:, span.first : span.end] for span in mine], dim=1)


def context_parallel_size() -> int:
    """Ranks among which a sample is cut; 1 where no ranks are."""
    return max(1, parallel_state.get_context_parallel_world_size())


class Part(NamedTuple):
    """Some queries with the keys that any of them sees.

    Attributes:
        queries: rows of this rank.
        samples: of the micro batch.
        keys: places in the sample.
        attend: queries, keys and values, each (tokens, samples, heads or groups, head_dim) -> (queries, samples, heads * head_dim).
    """

    queries: slice
    samples: slice
    keys: slice
    attend: Callable[[Tensor, Tensor, Tensor], Tensor]


def attend_over_pieces(
    query: Tensor, key: Tensor, value: Tensor, parts: Sequence[Part], *, group: ProcessGroup, draws: bool = False
) -> Tensor:
    """Attention of this rank's queries to the keys of all ranks of a group.

    Args:
        query: (tokens, samples, heads, head_dim), the tokens of this rank.
        key, value: (tokens, samples, query_groups, head_dim)
        parts: which have every query once; the same are recomputed, one at a time, in the backward pass.
        draws: whether they draw random numbers, which are then drawn again.

    Returns:
        (tokens, samples, heads * head_dim)
    """
    output: Tensor = _OverPieces.apply(query, key, value, parts, group, draws)
    return output


class _OverPieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, parts: Sequence[Part], group: ProcessGroup, draws: bool) -> Tensor:
        """See `attend_over_pieces`."""
        ctx.save_for_backward(query, key, value)
        ctx.parts, ctx.group = parts, group
        ctx.random_states = _get_all_rng_states() if draws else None
        keys, values = gather_keys(key, value, group)
        output = query.new_empty(*query.shape[:2], query.shape[2] * value.shape[3])
        for part in parts:
            seen = keys[part.keys, part.samples], values[part.keys, part.samples]
            output[part.queries, part.samples] = part.attend(query[part.queries, part.samples], *seen)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Of query, key and value, in their shapes; the gradient is (tokens, samples, heads * head_dim)."""
        query, key, value = ctx.saved_tensors
        whole = gather_keys(key, value, ctx.group)
        of_query = torch.empty_like(query)
        of_whole = torch.zeros_like(whole, dtype=torch.float32)  # to which many parts add
        with _as_drawn(ctx.random_states):
            for part in ctx.parts:
                places = slice(None), part.keys, part.samples
                given = query[part.queries, part.samples].detach().requires_grad_(), whole[places].detach().requires_grad_()
                with torch.enable_grad():
                    output = part.attend(given[0], *given[1].unbind())
                mine, seen = torch.autograd.grad(output, given, gradient[part.queries, part.samples])
                of_query[part.queries, part.samples] = mine
                of_whole[places] += seen
        of_key, of_value = sum_by_rank(of_whole.to(key.dtype), ctx.group)
        return of_query, of_key, of_value, None, None, None


@contextlib.contextmanager
def _as_drawn(states: Any) -> Iterator[None]:
    """The random state that a forward pass began with; nothing where it drew no number."""
    if states is None:
        yield
        return
    with _fork_rng():
        _set_all_rng_states(*states)
        yield


def gather_keys(key: Tensor, value: Tensor, group: ProcessGroup) -> Tensor:
    """Keys and values of all ranks, in the order of the sample: (2, tokens * num_ranks, samples, query_groups, head_dim).

    Args:
        key, value: (tokens, samples, query_groups, head_dim), the tokens of this rank.
    """
    size = group.size()
    mine = torch.stack([key, value])
    found = mine.new_empty(size * 2, *mine.shape[1:])
    torch.distributed.all_gather_into_tensor(found, mine, group=group)
    pieces = found.unflatten(0, (size, 2)).chunk(2, dim=2)
    front, end = ([half[rank] for rank in range(size)] for half in pieces)
    return torch.cat([*front, *reversed(end)], dim=1)


def sum_by_rank(whole: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over all ranks of what this one has: the backward of `gather_keys`, (2, tokens, samples, query_groups, head_dim).

    Args:
        whole: (2, tokens * num_ranks, samples, query_groups, head_dim)
    """
    size = group.size()
    pieces = whole.chunk(2 * size, dim=1)
    by_rank = torch.cat([torch.cat([pieces[rank], pieces[2 * size - 1 - rank]], dim=1) for rank in range(size)])
    mine = whole.new_empty(2, whole.shape[1] // size, *whole.shape[2:])
    torch.distributed.reduce_scatter_tensor(mine, by_rank, group=group)
    return mine
