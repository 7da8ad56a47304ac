"""Linear layers of experts with biases (gpt-oss), which Megatron-core alone does not train without TransformerEngine.

Its feed-forward part adds an expert's second bias in place to what the linear layer returns.  Where no ranks have parts of an expert, that layer
passes its result through a reduction over one rank, which returns it as it is, and autograd refuses to add to that in place.

And it takes experts for cut among tensor-parallel ranks unless there is expert parallelism, and sums their gradients over data-parallel ranks
alone.  Those with biases are whole on every tensor-parallel rank, each of which gives them tokens of its own.
"""

from __future__ import annotations

from typing import Any

from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from torch import nn


class FirstLinearOfExpert(ColumnParallelLinear):  # type: ignore[misc]
    """Megatron's layer with the gradients of an expert's tokens on all ranks that have the expert."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _sum_over_all_copies(self)


class SecondLinearOfExpert(RowParallelLinear):  # type: ignore[misc]
    """Megatron's layer, which leaves it to the dispatcher of tokens to reduce, so that a bias can be added in place to its product."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.explicit_expert_comm = True
        _sum_over_all_copies(self)


def _sum_over_all_copies(linear: nn.Module) -> None:
    # Gradients are summed as those of dense layers, but in buffers of experts: over all ranks that have these experts, and by tensor-parallel ranks
    # not once more.  Each of these has a part of them, which counts in the norm.
    attributes = {"allreduce": False, "sequence_parallel": False, "tensor_model_parallel": True}
    for parameter in linear.parameters():
        for name, value in attributes.items():
            setattr(parameter, name, value)
