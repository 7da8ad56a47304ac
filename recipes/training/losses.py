"""The loss of a step for the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from nemo.lightning.megatron_parallel import MaskedTokenLossReduction
from torch import Tensor


class StepLoss(MaskedTokenLossReduction):  # type: ignore[misc]
    """NeMo's mean over the tokens of a step that count, which asks the GPU for the number of tokens of every micro batch."""

    def reduce(self, losses_reduced_per_micro_batch: Sequence[dict[str, Any]]) -> Tensor:
        """The mean in nats, a scalar on the device; every rank of the last pipeline stage takes part."""
        if not losses_reduced_per_micro_batch:
            return torch.zeros((), device="cuda")
        total: Tensor = torch.stack([sums["loss_sum_and_ub_size"] for sums in losses_reduced_per_micro_batch]).sum(dim=0)
        torch.distributed.all_reduce(total, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
        return total[0] / total[1]
