"""Which numbers a recipe may have: one table over all keys of the schema."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from recipes.rules.schema import Recipe
from recipes.runs.retention import MIN_KEPT


@dataclass(frozen=True)
class Range:
    """Numbers from `least`, or above it, to `most`, or below it; what is not finite is in none.

    Attributes:
        because: what follows the expected range in the sentence.
    """

    least: float
    most: float = math.inf
    above_least: bool = False
    below_most: bool = False
    because: str = ""

    def __contains__(self, value: float) -> bool:
        low = value > self.least if self.above_least else value >= self.least
        high = value < self.most if self.below_most else value <= self.most
        return low and high and math.isfinite(value)

    def in_words(self, *, several: bool = False) -> str:
        """For example: at least 1; numbers above 0."""
        if self.above_least:
            text = f"{'numbers' if several else 'a number'} above {self.least:g}"
        elif math.isfinite(self.most) and not self.below_most:
            return f"{self.least:g} to {self.most:,.0f}{self.because}"
        else:
            text = f"{self.least:g} or more" if self.least == 0 else f"at least {self.least:g}"
        return text + (f" and below {self.most:g}" if math.isfinite(self.most) else "") + self.because


COUNT = Range(1)
NOT_NEGATIVE = Range(0)
POSITIVE = Range(0, above_least=True)
SHARE_BELOW_ONE = Range(0, 1, below_most=True)

# Every key that holds numbers; of optional ones where they are given, of lists and sections each number.
RANGES: Mapping[str, Range] = {
    "model.vocab_size": COUNT,
    "model.factorised_size": COUNT,
    "model.hidden_dropout": SHARE_BELOW_ONE,
    "model.attention_dropout": SHARE_BELOW_ONE,
    "model.expert_balance": NOT_NEGATIVE,
    "model.pad_vocabulary_to_multiple_of": COUNT,
    "data.sampling_exponent": Range(0, 1, because=", from equal shares of all languages to shares by size"),
    "parallel.num_nodes": COUNT,
    "parallel.devices_per_node": COUNT,
    "parallel.tensor_parallel_size": COUNT,
    "parallel.pipeline_parallel_size": COUNT,
    "parallel.context_parallel_size": COUNT,
    "parallel.node_memory_gib": POSITIVE,
    "data.sequence_length": COUNT,
    "data.shares": POSITIVE,
    "data.weights": POSITIVE,
    "data.blend": POSITIVE,
    "data.epochs": POSITIVE,
    "data.published_tokens": COUNT,
    "data.num_workers": NOT_NEGATIVE,
    "schedule.global_batch_size": COUNT,
    "schedule.micro_batch_size": COUNT,
    "schedule.learning_rate": POSITIVE,
    "schedule.min_learning_rate": NOT_NEGATIVE,
    "schedule.max_steps": COUNT,
    "schedule.train_tokens": COUNT,
    "schedule.epochs": POSITIVE,
    "schedule.published_steps": COUNT,
    "schedule.warmup_steps": NOT_NEGATIVE,
    "schedule.hold_steps": NOT_NEGATIVE,
    "schedule.decay_steps": COUNT,
    "schedule.constant_steps": NOT_NEGATIVE,
    "schedule.embedding_learning_rate": POSITIVE,
    "schedule.embedding_min_learning_rate": NOT_NEGATIVE,
    "schedule.embedding_weight_decay": NOT_NEGATIVE,
    "schedule.ramp_up.start_batch_size": COUNT,
    "schedule.ramp_up.batch_size_increment": COUNT,
    "schedule.ramp_up.samples": COUNT,
    "schedule.weight_decay": NOT_NEGATIVE,
    "schedule.adam_beta1": SHARE_BELOW_ONE,
    "schedule.adam_beta2": SHARE_BELOW_ONE,
    "schedule.adam_epsilon": POSITIVE,
    "schedule.clip_gradient_norm": NOT_NEGATIVE,  # 0: no clipping
    "recomputation.num_layers": COUNT,
    "masking.share": Range(0, 1, above_least=True, below_most=True),
    "masking.hidden": Range(0, 1),
    "masking.replaced": Range(0, 1),
    "masking.validation_parts": COUNT,
    "lora.rank": COUNT,
    "lora.alpha": POSITIVE,
    "lora.dropout": SHARE_BELOW_ONE,
    "run.checkpoint_every_steps": COUNT,
    "run.checkpoint_every_minutes": POSITIVE,
    "run.validate_every_steps": COUNT,
    "run.validation_batches": COUNT,
    "run.log_every_steps": COUNT,
    "run.keep_checkpoints": Range(MIN_KEPT, because=", so that an older one remains if the newest is damaged"),
    "run.keep_held_checkpoints": NOT_NEGATIVE,
    "run.hang_factor": Range(1),
    "run.hang_seconds": POSITIVE,
    "run.hang_other_seconds": POSITIVE,
    "run.skip_nonfinite_steps": NOT_NEGATIVE,
    "seed": Range(1, 2**31 - 1),  # numpy takes 32 bits, and Megatron adds numbers of ranks
}


LARGEST = 2**31 - 1  # of a count, and of the samples of a run, which Megatron's indices hold in 32 bits
_OF_ANY_SIZE = ("schedule.train_tokens", "data.published_tokens", "data.weights", "data.shares", "data.blend")


def samples_problems(recipe: Recipe) -> list[str]:
    """What is wrong with the length of a run whose steps are known."""
    samples = recipe.run_samples
    if samples <= LARGEST:
        return []
    return [f"the run has {samples:,} samples of {recipe.data.sequence_length:,} tokens; expected at most {LARGEST:,}: make it shorter"]


def range_problems(recipe: Recipe) -> list[str]:
    """A sentence for every key whose number is outside its range."""
    problems = []
    for key, numbers in _numbers(recipe):
        expected = RANGES.get(key)
        if expected is None:
            continue
        if all(number in expected for number in numbers):
            if key in _OF_ANY_SIZE or max(numbers) <= LARGEST:
                continue
            expected = Range(expected.least, LARGEST)
        is_one = len(numbers) == 1 and key not in ("data.shares", "data.weights", "data.blend", "data.epochs")
        found = f"{numbers[0]}" if isinstance(numbers[0], int) and is_one else f"{numbers[0]:g}" if is_one else f"{numbers}"
        problems.append(f"{key} is {found}; expected {expected.in_words(several=not is_one)}")
    return problems


def _numbers(section: Any, prefix: str = "") -> Iterator[tuple[str, list[float]]]:
    """Key and numbers of every value that has some; rules of `freeze` depend on the steps, see `recipes.rules.checks`."""
    for name, value in ((one.name, getattr(section, one.name)) for one in fields(section)):
        if is_dataclass(value):
            yield from _numbers(value, f"{prefix}{name}.")
            continue
        values = list(value.values()) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else [value]
        numbers = [number for number in values if isinstance(number, int | float) and not isinstance(number, bool)]
        if numbers:
            yield f"{prefix}{name}", numbers
