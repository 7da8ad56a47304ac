"""The shapes that a learning rate can have between its warmup and its tail, as closed forms of the step.

Those of Megatron-core's OptimizerParamScheduler, with its names, and NeMo's warmup, hold and linear decay (WarmupHoldAnnealLinear).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from recipes.rules.schema import ScheduleRecipe

# What is left of the way from the lowest rate to the highest, for the share of the decay that is over.
DECAYS: Mapping[str, Callable[[float], float]] = {
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
    "exponential": lambda done: 2.0 * 0.5**done - 1.0,
    "minus_sqrt": lambda done: 1.0 - math.sqrt(done),  # "1-sqrt"
}
STYLES = ("cosine", "linear", "inverse_square_root", "wsd", "warmup_hold", "fixed")


def decay_span(schedule: ScheduleRecipe, *, steps: int) -> tuple[int, int]:
    """The step at which the decay begins and how many it takes; for styles that decay over a span."""
    end = steps - schedule.constant_steps
    if schedule.decay_style == "wsd":
        assert schedule.decay_steps is not None, "recipes.rules.schedule_checks"
        start = end - schedule.decay_steps
    else:
        start = schedule.warmup_steps + (schedule.hold_steps or 0)
    return start, end - start


def parts_of_run(schedule: ScheduleRecipe, *, steps: int) -> dict[str, int]:
    """Steps of each part of a run, by its name."""
    warmup, style = schedule.warmup_steps, schedule.decay_style
    if style in ("fixed", "inverse_square_root"):
        return {"warmup": warmup, style.replace("_", " "): steps - warmup}
    start, length = decay_span(schedule, steps=steps)
    held = {"stable" if style == "wsd" else "hold": start - warmup} if style in ("wsd", "warmup_hold") else {}
    shape = {"wsd": f"{schedule.wsd_decay_style}", "warmup_hold": "linear"}.get(style, style).replace("_", " ")
    return {"warmup": warmup, **held, shape: length, "constant": schedule.constant_steps}


def in_words(schedule: ScheduleRecipe, *, steps: int) -> str:
    """The rates at which the parts of a run begin and end, for example: 0 -> 0.0002 (2,000 steps) -> 2e-05 (cosine, 10,900) -> 2e-05 (500)."""

    def rate(step: int) -> str:
        return f"{rate_of_step(step, schedule, steps=steps, highest=schedule.learning_rate, lowest=schedule.min_learning_rate):.3g}"

    step, words = 0, rate(0)
    for name, number in parts_of_run(schedule, steps=steps).items():
        if number:
            step += number
            words += f" -> {rate(step)} ({name}, {number:,} steps)"
    return words


def rate_of_step(step: int, schedule: ScheduleRecipe, *, steps: int, highest: float, lowest: float) -> float:
    """The learning rate of optimizer step `step`, counted from 0, between two rates that may be the schedule's or others.

    Args:
        steps: of the whole run.
    """
    if step < schedule.warmup_steps:
        return highest * step / schedule.warmup_steps
    if schedule.decay_style == "fixed":
        return highest
    if schedule.decay_style == "inverse_square_root":
        return max(lowest, highest * math.sqrt(max(schedule.warmup_steps, 1) / max(step, 1)))
    start, length = decay_span(schedule, steps=steps)
    if step < start:
        return highest
    done = min(step - start, length) / length if length > 0 else 1.0
    shape = {"wsd": schedule.wsd_decay_style, "warmup_hold": "linear"}.get(schedule.decay_style, schedule.decay_style)
    assert shape is not None, "recipes.rules.schedule_checks"
    return lowest + (highest - lowest) * DECAYS[shape](done)
