"""What goes into a mixture: budgets by language, corpus or domain, epochs, and which documents are held out.  Numbers in, decisions out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.artifacts import digest_bytes
from data_prep.reading.corpora import Corpus

KEYS = ("language", "corpus", "domain")
_SELECTOR = re.compile(rf"({'|'.join(KEYS)}):(.+)")


@dataclass(frozen=True)
class Selector:
    """Corpora that have something in common: `language:sl`, `corpus:kas`, `domain:web`."""

    key: str
    value: str

    @classmethod
    def parse(cls, text: str, option: str) -> Selector:
        """From `KEY:VALUE`.

        Raises:
            ValueError: naming the option, if it is of another form.
        """
        match = _SELECTOR.fullmatch(text)
        if match is None:
            raise ValueError(f"{option} {text} is not of the form KEY:VALUE with {', '.join(KEYS)} as the key, for example language:sl")
        return cls(match[1], match[2])

    def __str__(self) -> str:
        return f"{self.key}:{self.value}"

    def matches(self, corpus: Corpus) -> bool:
        """Whether a corpus is one of them."""
        return self.value == (corpus.name if self.key == "corpus" else getattr(corpus, self.key))


@dataclass(frozen=True)
class Budget:
    """Tokens for training, epochs counted: a number of them, or a share of all."""

    selector: Selector
    tokens: float | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """From `KEY:VALUE=NUMBER` or `KEY:VALUE=PERCENT%`.

        Raises:
            ValueError: if it is of another form.
        """
        head, _, amount = text.rpartition("=")
        try:
            number = float(amount.removesuffix("%"))
        except ValueError:
            number = 0.0
        if not head or not 0 < number < float("inf"):
            raise ValueError(f"--budget {text} is not of the form KEY:VALUE=TOKENS or KEY:VALUE=PERCENT%, for example language:it=75%")
        selector = Selector.parse(head, "--budget")
        return cls(selector, share=number / 100) if amount.endswith("%") else cls(selector, tokens=number)


def chosen_corpora(corpora: Sequence[Corpus], leave_out: Sequence[Selector]) -> list[Corpus]:
    """The corpora that nothing leaves out.

    Raises:
        ValueError: if a selector matches no corpus or nothing is left.
    """
    for selector in leave_out:
        _require_match(selector, corpora, "--leave-out")
    chosen = [corpus for corpus in corpora if not any(selector.matches(corpus) for selector in leave_out)]
    if not chosen:
        raise ValueError("--leave-out leaves no corpus")
    return chosen


def _require_match(selector: Selector, corpora: Sequence[Corpus], option: str) -> None:
    if not any(selector.matches(corpus) for corpus in corpora):
        known = sorted({corpus.name if selector.key == "corpus" else getattr(corpus, selector.key) or "(not known)" for corpus in corpora})
        raise ValueError(f"{option} {selector}: no corpus has this {selector.key}; there are {', '.join(known)}")


def require_budgets(budgets: Sequence[Budget], corpora: Sequence[Corpus], total: float | None) -> None:
    """Refuse budgets that contradict themselves, before anything is counted.

    Raises:
        ValueError: if they are of several keys, match no corpus or the same twice, or are shares that are not all.
    """
    if not budgets:
        if total is not None:
            raise ValueError("--tokens needs --budget with shares; give, for example, --budget language:sl=100%")
        return
    if len(keys := {budget.selector.key for budget in budgets}) > 1:
        raise ValueError(f"--budget speaks of {' and '.join(sorted(keys))}; budgets are by one of them, the rest can only be left out")
    if len({budget.selector for budget in budgets}) < len(budgets):
        raise ValueError("--budget names something twice; give each one budget")
    for budget in budgets:
        _require_match(budget.selector, corpora, "--budget")
    shares = [budget.share for budget in budgets if budget.share is not None]
    if shares and len(shares) < len(budgets):
        raise ValueError("--budget has shares and numbers of tokens; give all of them in per cent or none")
    if not shares and total is not None:
        raise ValueError("--tokens is the total of shares, but --budget gives numbers of tokens; leave out one of them")
    if shares and abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"the shares of --budget are {100 * sum(shares):g} % together; expected 100 %")
    if shares:
        for corpus in corpora:
            if not any(budget.selector.matches(corpus) for budget in budgets):
                key = budgets[0].selector.key
                value = corpus.name if key == "corpus" else getattr(corpus, key)
                raise ValueError(
                    f"the corpus {corpus.name} ({key} {value or 'not known'}) has no share; give it one or --leave-out corpus:{corpus.name}"
                )


def fractions(
    budgets: Sequence[Budget], corpora: Sequence[Corpus], available: Mapping[str, int], epochs: Mapping[str, float], total: float | None
) -> dict[str, float]:
    """The share of each corpus's training tokens that is taken; corpora of one budget give alike.

    Args:
        budgets: as `require_budgets` accepts; a corpus without one is taken whole.
        available: corpus -> tokens of its documents, once.
        epochs: corpus -> how often training sees its documents; 1 where it is not named.
        total: of shares; None for as many as there can be.

    Raises:
        ValueError: if a budget is more than there is, naming the largest possible.
    """
    seen = {corpus.name: available[corpus.name] * epochs.get(corpus.name, 1) for corpus in corpora}
    has = {b.selector: sum(seen[corpus.name] for corpus in corpora if b.selector.matches(corpus)) for b in budgets}
    largest = min((has[budget.selector] / budget.share for budget in budgets if budget.share is not None), default=0.0)
    total = largest if total is None else total
    taken = dict.fromkeys(seen, 1.0)
    for budget in budgets:
        wanted = budget.tokens if budget.tokens is not None else (budget.share or 0) * total
        have = has[budget.selector]
        if wanted > have * (1 + 1e-9):
            most = f"; the largest possible --tokens is {int(largest):,}" if budget.share is not None else ""
            raise ValueError(
                f"{budget.selector} has {have:,.0f} tokens for training, epochs counted, but its budget is {wanted:,.0f};"
                f" give it more --epochs or a smaller budget{most}"
            )
        for corpus in corpora:
            if budget.selector.matches(corpus):
                taken[corpus.name] = wanted / have if have else 0.0
    return taken


def ranks(hashes: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Numbers in an order that the seed alone decides, the same for equal hashes (SplitMix64 of the hash and the seed); of any shape."""
    start = np.uint64(int(digest_bytes(f"mixture {seed}".encode()).removeprefix("xxh3:")[:16], 16))
    with np.errstate(over="ignore"):
        mixed = hashes ^ start
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def ranks_by_weight(alike: NDArray[np.uint64], weights: NDArray[np.float64]) -> NDArray[np.uint64]:
    """An order of which the beginning has each document with a probability in proportion to its weight, up to 1 (sequential Poisson sampling, Ohlsson 1998).

    Args:
        alike: (num_documents,) `ranks`, in whose order documents of one weight stay.
        weights: (num_documents,) above 0; the rank of one of 0 is the last.
    """
    with np.errstate(divide="ignore", over="ignore"):
        places = (alike.astype(np.float64) + 1) / weights
    return places.view(np.uint64)  # positive floats are in the order of their bits
