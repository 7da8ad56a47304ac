"""What the steps of a run amount to: tokens, bytes, operations, and the share of what its devices could do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipes.numbers.batches import Batches


@dataclass(frozen=True)
class Rates:
    """What turns steps into tokens, bytes and work.

    Attributes:
        positions_per_sample: that the model computes: tokens, and what fills up answers.
        batches: samples of each step over all ranks.
        bytes_per_token: of the training text.
        held_out_bytes_per_token: of each held-out text, by language.
        flops_per_token: forward and backward.
        num_devices: that share the work.
        peak_flops: of one device in the run's precision; None where it is not known.
    """

    positions_per_sample: int
    batches: Batches
    bytes_per_token: float
    held_out_bytes_per_token: Mapping[str, float]
    flops_per_token: float
    num_devices: int
    peak_flops: float | None

    def positions(self, steps: int) -> int:
        """In the first so many steps over all ranks."""
        return self.batches.samples(steps) * self.positions_per_sample

    def of_work(self, positions_per_second: float) -> dict[str, float]:
        """TFLOP/s of one device, and which share of the possible that is (MFU, Chowdhery et al. 2022, appendix B)."""
        flops = positions_per_second * self.flops_per_token / self.num_devices
        shares = {} if self.peak_flops is None else {"mfu": round(flops / self.peak_flops, 4)}
        return {"tflops_per_device": round(flops / 1e12, 6), **shares}


def new_rows(facts: Mapping[str, Any], *, vocab_size: int) -> range:
    """Rows of the token table that a transfer has made: those behind the old ones where it expanded a vocabulary, else all.

    Args:
        facts: of the checkpoint's manifest, which `conversion.transfer` began.
    """
    vocabulary = facts.get("vocabulary") or {}
    return range(vocab_size - vocabulary.get("num_new_tokens", vocab_size), vocab_size)
