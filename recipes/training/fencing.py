"""What the ranks of a run do together so that none writes into a directory that another run has taken over."""

from __future__ import annotations

import time

import torch

from common.lease import RENEW_SECONDS, Fence
from recipes.runs.launch import process_rank


class SharedFence:
    """A lease that rank 0 looks at and all ranks go by."""

    def __init__(self, fence: Fence) -> None:
        self._fence, self._last_look, self._is_lost = fence, 0.0, False

    @property
    def token(self) -> str:
        """A name that no other run of the directory has."""
        return self._fence.token

    def may_write(self) -> bool:
        """Whether the directory is ours, looked up now; for rank 0 alone."""
        self._last_look = time.monotonic()
        self._is_lost = self._is_lost or not self._fence.is_held
        return not self._is_lost

    def is_lost(self) -> bool:
        """Whether rank 0 knows that the directory is no longer ours; looks now and then, because it is asked in every step."""
        if process_rank() == 0 and time.monotonic() - self._last_look > RENEW_SECONDS:
            self.may_write()
        return self._is_lost

    def check(self) -> None:
        """Look now and decide together; every rank takes part.

        Raises:
            LeaseLostError: on all ranks.
        """
        if largest_of_all_ranks(int(process_rank() == 0 and not self.may_write())):
            self.end()

    def end(self) -> None:
        """End this rank.

        Raises:
            LeaseLostError: always.
        """
        raise self._fence.error()


def largest_of_all_ranks(number: int) -> int:
    """What the ranks decide by; every rank takes part."""
    answer = torch.tensor(number, dtype=torch.int32, device="cuda")
    torch.distributed.all_reduce(answer, op=torch.distributed.ReduceOp.MAX)
    return int(answer.item())
