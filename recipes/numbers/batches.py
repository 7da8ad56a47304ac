"""How many samples each optimizer step has: always as many, or more and more at the beginning (ramp-up), as a function of the step alone.

Megatron computes the size of a step from the samples that were seen before it.  As every step takes the next samples in the order of the
data, both follow from the step, whatever the number of ranks and wherever a run was interrupted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Stretch:
    """Steps of the same size that follow each other, up to the next stretch.

    Attributes:
        first_step: counted from 0.
        first_sample: samples that were seen before it.
        size: samples of each step over all ranks.
    """

    first_step: int
    first_sample: int
    size: int


@dataclass(frozen=True)
class Batches:
    """The global batches of a run.

    Attributes:
        stretches: in their order; the last does not end.
    """

    stretches: tuple[Stretch, ...]

    @property
    def ramp_steps(self) -> int:
        """Steps before the batches have their full size."""
        return self.stretches[-1].first_step

    def size(self, step: int) -> int:
        """Samples of a step, counted from 0."""
        return self._of_step(step).size

    def samples(self, steps: int) -> int:
        """In the first so many steps."""
        stretch = self._of_step(steps)
        return stretch.first_sample + (steps - stretch.first_step) * stretch.size

    def whole_steps(self, samples: int) -> int:
        """That so many samples fill."""
        stretch = self.stretches[bisect_right(self.stretches, samples, key=lambda one: one.first_sample) - 1]
        return stretch.first_step + (samples - stretch.first_sample) // stretch.size

    def steps_covering(self, samples: int) -> int:
        """The fewest steps that see so many samples."""
        steps = self.whole_steps(samples)
        return steps + (self.samples(steps) < samples)

    def parts(self, steps: int, *, first: int = 0) -> Iterator[tuple[int, int]]:
        """Size and number of steps of each stretch, from a step on to the end of a run of so many steps."""
        ends = [stretch.first_step for stretch in self.stretches[1:]] + [steps]
        for stretch, end in zip(self.stretches, ends, strict=True):
            if (number := min(end, steps) - max(stretch.first_step, first)) > 0:
                yield stretch.size, number

    def _of_step(self, step: int) -> Stretch:
        return self.stretches[bisect_right(self.stretches, step, key=lambda one: one.first_step) - 1]


def growing_batches(start: int, increment: int, samples: int, full_size: int) -> Batches:
    """Batches of `start` samples that grow by `increment` to their full size: each size lasts until an equal part of `samples` is seen.

    One that is passed in a single step is left out.
    """
    increments = (full_size - start) // increment
    stretches, step, sample = [], 0, 0
    while (reached := min(sample * increments // samples, increments)) < increments:
        size = start + reached * increment
        stretches.append(Stretch(step, sample, size))
        taken = -(-((reached + 1) * samples - sample * increments) // (increments * size))
        step, sample = step + taken, sample + taken * size
    return Batches((*stretches, Stretch(step, sample, full_size)))
