"""What a run costs besides time: GPU hours, energy, carbon dioxide, checkpoints and how often to write them."""

from __future__ import annotations

import math

from recipes.planner.layout import Layout
from recipes.planner.parameters import PlannedModel

KG_PER_KWH = 0.432  # of the Italian grid, in SAVA's estimate (Moroni et al. 2025)
# 419 unexpected interruptions in 54 days on 16,384 GPUs (Dubey et al. 2024, section 3.3.4).
GPU_HOURS_PER_FAILURE = 54 * 24 * 16_384 / 419
WRITE_RATE = 2e9  # assumed: bytes per second that a run writes to a parallel file system


def energy_kwh(gpu_hours: float, watts: float) -> float:
    """Energy of the GPUs at their design power, as SAVA counts it: without hosts, network and cooling."""
    return gpu_hours * watts / 1000


def carbon_kg(gpu_hours: float, watts: float, *, kg_per_kwh: float = KG_PER_KWH) -> float:
    """Carbon dioxide of that energy; SAVA's 50,000 h at 400 W give 8,640 kg."""
    return energy_kwh(gpu_hours, watts) * kg_per_kwh


def checkpoint_bytes(model: PlannedModel, layout: Layout) -> int:
    """Size of a checkpoint with optimizer state: weights, and for what is trained a 32-bit copy and both moments, in any precision."""
    weights = sum(parameter.numel for parameter in model.parameters.values())
    trained = sum(parameter.numel for name, parameter in model.parameters.items() if name not in model.frozen)
    return weights * (2 if layout.is_half else 4) + trained * 12


def failure_seconds(num_devices: int) -> float:
    """Mean time between failures of a run on so many GPUs, at the rate that Meta saw."""
    return GPU_HOURS_PER_FAILURE / num_devices * 3600


def checkpoint_interval(save_seconds: float, mean_seconds_between_failures: float) -> float:
    """Seconds of computation between two saves that lose the least time to saves and to work done twice.

    Daly 2006, equation 37; for short saves it is Young's sqrt(2 * save * failure) (1974).

    Args:
        save_seconds: for which a save stops the computation.
    """
    if save_seconds >= 2 * mean_seconds_between_failures:
        return mean_seconds_between_failures
    share = save_seconds / (2 * mean_seconds_between_failures)
    return math.sqrt(2 * save_seconds * mean_seconds_between_failures) * (1 + math.sqrt(share) / 3 + share / 9) - save_seconds
