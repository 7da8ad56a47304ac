"""What the options of a transfer may be, and what they are made into: no arrays here, so that `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass

FALLBACKS = ("mean", "random")
STATISTICS = ("dimension", "matrix")
MATCHINGS = ("exact", "case", "space", "case-space")  # which tokens of text count as shared, see vocabulary_map
VECTOR_SUFFIXES = (".vec", ".txt", ".vec.gz", ".txt.gz", ".wv", ".bin")
FULL = "full"
STRATEGIES = ("replace", "expand", "union", "prune", "keep")
# Nothing is new in these, so every row is a copy and no method has a say.
COPYING_STRATEGIES = ("prune", "keep")
# Where expand gets its tokens from when it learns them: a tokenizer trained on the text alone, or more merges of the source's own.
TOKENS_BY = ("auxiliary", "continued-bpe")
# All of the source's tokens stay in these, with their rows.
GROWING_STRATEGIES = ("expand", "union")
NUM_SENTENCES = 30_000  # as Yamaguchi et al. (2024)


@dataclass(frozen=True)
class VocabularyOptions:
    """How the target's vocabulary is made.

    Attributes:
        strategy: one of `STRATEGIES`.
        num_new_tokens: for `expand`, how many; all others leave it out.
        num_sentences: of the text, from which tokens are learned.
        tokens_by: for `expand` without a tokenizer, one of `TOKENS_BY`; None for the first.
        min_count: for `prune`, how often the text must have a token.
    """

    strategy: str = "replace"
    num_new_tokens: int | None = None
    num_sentences: int = NUM_SENTENCES
    min_count: int = 1
    tokens_by: str | None = None


@dataclass(frozen=True)
class VectorOptions:
    """How word vectors of target tokens are trained on text; what is None follows from the size of the text.

    Attributes:
        size: dimensions of a vector.
        epochs: passes over the text.
        min_count: tokens seen less often have no vector.
    """

    size: int | None = None
    epochs: int | None = None
    min_count: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("--vector-size", self.size), ("--vector-epochs", self.epochs), ("--vector-min-count", self.min_count)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; expected at least 1")

    def for_text(self, num_tokens: int) -> tuple[int, int, int]:
        """Size, epochs and minimal count for a text of so many tokens.

        From a million tokens on 300, 3 and 10, as fastText's published vectors and FOCUS have them (Dobler and de Melo 2023,
        appendix).  With 3 passes over a small text all vectors stay alike: it is read until 600,000 tokens have been seen.
        """
        size = 300 if num_tokens >= 1_000_000 else 100
        epochs = min(100, max(3, -(-600_000 // max(num_tokens, 1))))
        min_count = min(10, max(3, num_tokens // 10_000))
        return self.size or size, self.epochs or epochs, self.min_count or min_count


def read_factorised_size(value: str | None) -> int | str | None:
    """The option's value: a number of dimensions or `full`.

    Raises:
        ValueError: if it is neither.
    """
    if value is None or value == FULL:
        return value
    try:
        return int(value)
    except ValueError as error:
        raise ValueError(f"--factorised-size is {value!r}; expected a number of dimensions (OFA: 100, 200, 400) or {FULL}") from error
