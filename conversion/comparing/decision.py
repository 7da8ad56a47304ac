"""Which method is best, how significant that is, and how much text it takes to decide.

Scoring is most of what a comparison costs, so documents are scored in rounds: after each, methods that are significantly worse than the best get no
further text, and nothing does when what is left cannot differ by more than a tie.  Documents are the units of every interval and test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from conversion.measuring.significance import LEAST_UNITS, Difference, holm

LEVEL = 0.05
TIE = 0.02  # bits per byte: a few steps of training move every method by many times as much
SCREENING_ERROR = 0.01  # bits per byte: how far a difference between two methods may be off where products are in bfloat16
_FIRST_DOCUMENTS = 12  # all of one sign have p = 5e-4, which is below 0.05 also when it is shared among a hundred tests
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class DecisionRule:
    """When a comparison has read enough text.

    Attributes:
        tie: methods whose difference is significantly smaller, in bits per byte, need not be distinguished.
        every_document: score all documents by all methods.
    """

    tie: float = TIE
    every_document: bool = False

    def __post_init__(self) -> None:
        if not (self.tie >= 0 and math.isfinite(self.tie)):
            raise ValueError(f"--tie is {self.tie}; expected a number of bits per byte, 0 or more")

    def round_ends(self, num_documents: int) -> list[int]:
        """How many documents are scored after each round: 12, twice as many, and so on, and at last all."""
        ends = []
        size = _FIRST_DOCUMENTS
        while not self.every_document and 2 * size <= num_documents:
            ends.append(size)
            size *= 2
        return [*ends, num_documents]


def spread_order(num_documents: int) -> list[int]:
    """An order whose every prefix is spread over all documents (multiples of the golden ratio, modulo 1)."""
    return sorted(range(num_documents), key=lambda place: place * _GOLDEN % 1)


@dataclass(frozen=True)
class Standing:
    """The best method and how the others differ from it, from the nearest to the farthest.

    Attributes:
        values: method -> bits per byte, on the documents that it was scored on.
        behind: method -> how many bits per byte more it needs than the best, on the documents that both were scored on.
        p_values: method -> of no difference, adjusted for the number of methods and of looks at the scores.
    """

    best: str
    values: Mapping[str, float]
    behind: Mapping[str, Difference]
    p_values: Mapping[str, float]
    tie: float = field(default=TIE)

    @classmethod
    def of(cls, values: Mapping[str, float], best: str, behind: Mapping[str, Difference], *, looks: int, tie: float) -> Standing:
        """Adjust p-values by Holm for the methods, and by the number of looks (Bonferroni)."""
        names = sorted(behind, key=lambda name: behind[name].value)
        adjusted = holm([min(1.0, behind[name].p_value * looks) for name in names])
        return cls(best, values, {name: behind[name] for name in names}, dict(zip(names, adjusted)), tie)

    @property
    def significantly_worse(self) -> list[str]:
        """Methods that the best is ahead of, more than chance explains, and not significantly by less than a tie."""
        ahead = (name for name, found in self.behind.items() if found.can_decide and found.value > 0 and self.p_values[name] < LEVEL)
        return [name for name in ahead if name not in self.tied]

    @property
    def far_behind(self) -> list[str]:
        """Those of the significantly worse whose interval is farther off than what lower precision may do."""
        return [name for name in self.significantly_worse if self.behind[name].low > SCREENING_ERROR]

    @property
    def tied(self) -> list[str]:
        """Methods whose difference is significantly less than a tie."""
        return [name for name, found in self.behind.items() if found.can_decide and -self.tie <= found.low and found.high <= self.tie]

    @property
    def open(self) -> list[str]:
        """Methods of which more text could tell something."""
        known = {*self.significantly_worse, *self.tied}
        return [name for name in self.behind if name not in known]

    def recommendation(self, text: str, needs: Mapping[str, Sequence[str]]) -> str:
        """What to take and how sure that is.

        Args:
            text: name of the text that decides.
            needs: method -> the options of the material that it cannot do without.
        """
        documents = max([found.units for found in self.behind.values()], default=0)
        head = f"Take {self.best} ({figure_of(self.values[self.best])} bits per byte of {text})"
        if not self.behind:
            return f"{head}: it is the only one that was measured."
        if documents < LEAST_UNITS:
            return (
                f"No recommendation: {self.best} is lowest on {text} ({figure_of(self.values[self.best])}), but {documents} documents are too"
                f" few to decide; give at least {LEAST_UNITS}, better 30."
            )
        worse = self.significantly_worse
        others = [name for name in self.behind if name not in worse]
        if not others:
            nearest = next(iter(self.behind))
            return f"{head}. All {len(worse)} others are significantly worse, the nearest ({nearest}) {_difference(self.behind[nearest])}."
        sure = f"{len(worse)} of {len(self.behind)} others are significantly worse." if worse else "No other is significantly worse."
        tied = [name for name in others if name in self.tied]
        sentence = f"{head}. {sure}"
        for words, names in (
            (f"As good, within a tie of {self.tie:g} bits per byte", tied),
            ("Not distinguishable from it", [name for name in others if name not in tied]),
        ):
            if names:
                sentence += f" {words}: {', '.join(f'{name} ({_difference(self.behind[name])})' for name in names)}."
        if simpler := [name for name in others if set(needs[name]) < set(needs[self.best])]:
            without = ", ".join(option for option in needs[self.best] if option not in needs[simpler[0]])
            sentence += f" Of these {simpler[0]} needs no {without}."
        return sentence


def _difference(found: Difference) -> str:
    if not math.isfinite(found.high - found.low):
        return figure_of(found.value, sign="+")
    return f"{figure_of(found.value, sign='+')} [{figure_of(found.low, sign='+')}, {figure_of(found.high, sign='+')}]"


def figure_of(value: float, *, sign: str = "") -> str:
    """Bits per byte as they are printed: to a thousandth, smaller ones to their first digit, so that no difference looks like none."""
    if 1e-6 <= abs(value) < 5e-4:
        return f"{value:{sign}.{-math.floor(math.log10(abs(value)))}f}"
    return f"{value:{sign}.3f}" if abs(value) < 100 else f"{value:{sign},.0f}"
