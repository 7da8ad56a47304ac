"""Token sequences that begin alike, so that a model reads what they share once: the question of several answers, the passage of several questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_LEAST_SHARE = 0.5  # of a sequence: less in common is not worth a pass of its own for what differs


@dataclass(frozen=True)
class Stem:
    """What some sequences begin with, at least a token.

    Attributes:
        length: tokens in common; all of a sequence that stands alone.
        members: numbers of the sequences.
    """

    length: int
    members: tuple[int, ...]

    def num_tokens(self, sequences: Sequence[Sequence[int]]) -> int:
        """Tokens that are read."""
        return self.length + sum(len(sequences[member]) - self.length for member in self.members)


def stems_of(sequences: Sequence[Sequence[int]], *, most: int) -> list[Stem]:
    """Divide sequences, no two alike, by their beginnings, such that few tokens are read; longest first.

    Neighbours in the order of their tokens are put together where they have at least half in common and where that saves more than is lost
    by the shorter beginning of those already together.

    Args:
        most: sequences that are put together.
    """
    order = sorted(range(len(sequences)), key=lambda number: tuple(sequences[number]))
    stems: list[Stem] = []
    for before, number in zip([None, *order], order, strict=False):
        ids = sequences[number]
        if before is not None:
            last = stems[-1]
            common = min(last.length, _in_common(sequences[before], ids))
            together = len(last.members)
            if together < most and common >= _LEAST_SHARE * len(ids) and together * common > (together - 1) * last.length:
                stems[-1] = Stem(common, (*last.members, number))
                continue
        stems.append(Stem(len(ids), (number,)))
    return sorted(stems, key=lambda stem: (-max(len(sequences[member]) for member in stem.members), stem.members))


def most_together(batch_size: int) -> int:
    """Sequences of a beginning: instructions that all of a task share are read again now and then, so that no piece of work is a whole task."""
    return 2 * batch_size


def _in_common(first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens that both begin with."""
    shorter = min(len(first), len(second))
    return next((place for place in range(shorter) if first[place] != second[place]), shorter)
