"""Embedding transfer: initialise the rows of a new vocabulary from those of an old one.

`METHODS` lists the methods by the name that the command takes; each decides where every row comes from.  To add one, write
a function from `TransferInputs` to `RowPlan`, give it a row here and a test against a plain implementation.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Method:
    """A row of the table of methods.

    Attributes:
        function: module of this package and function that decides where every row comes from.
        paper: where it is described.
        needs: fields of `TransferRequest` that it cannot do without.
        either: pairs of fields of which it needs one.
        reads: further fields that it may read; any other that is given is an error.  `--method NAME --help` shows the options of all these.
        copies: tokens that both vocabularies have keep their rows.
        learns: runs the model, which takes long, and torch.
    """

    function: str
    paper: str
    needs: tuple[str, ...] = ()
    either: tuple[tuple[str, str], ...] = ()
    reads: tuple[str, ...] = ()
    copies: bool = True
    learns: bool = False

    def plan(self, inputs: Any) -> Any:
        """The `RowPlan` for `TransferInputs`: where every row comes from.

        Imports the method only now: `--help` reads the table, and must not wait for numpy.
        """
        module, _, name = self.function.partition(".")
        return getattr(import_module(f"conversion.embeddings.methods.{module}"), name)(inputs)

    @property
    def uses(self) -> frozenset[str]:
        """All fields that it may read."""
        return frozenset((*self.needs, *self.reads, *(name for pair in self.either for name in pair)))


_WORDS = (("source_word_vectors", "source_text"), ("word_vectors", "text"))

_VARIANT = ("as_published",)

_TRAINED = ("vectors", *_VARIANT)  # on text

METHODS: dict[str, Method] = {
    "random": Method("simple.random_method", "Moroni et al. 2025"),
    "random-all": Method("simple.random_all_method", "GaMS: Vreš et al. 2024", copies=False),
    "mean": Method("simple.mean_method", "FVT: Gee et al. 2022"),
    "merge": Method("merge.merge_method", "Yamaguchi et al. 2024"),
    "align": Method("merge.align_method", "Yamaguchi et al. 2024", needs=("text",), reads=_VARIANT),
    "focus": Method("neighbors.focus_method", "Dobler and de Melo 2023", needs=("text",), reads=_TRAINED),
    "focus-words": Method("neighbors.focus_words_method", "Yamaguchi et al. 2024", needs=("word_vectors",)),
    "focus-cse": Method("neighbors.focus_cse_method", "GaMS: Vreš et al. 2024", needs=("encoder",)),
    "wechsel-cse": Method("neighbors.wechsel_cse_method", "GaMS: Vreš et al. 2024", needs=("encoder",), reads=_VARIANT),
    "wechsel": Method("words.wechsel_method", "Minixhofer et al. 2022", needs=("dictionary",), either=_WORDS, reads=_TRAINED),
    "ofa": Method("words.ofa_method", "Liu et al. 2024", needs=("word_vectors",), reads=_VARIANT),
    "ofa-aligned": Method("words.ofa_aligned_method", "after Liu et al. 2024", needs=("dictionary",), either=_WORDS, reads=("vectors",)),
    "trans-tokenization": Method("translation.trans_tokenization_method", "Remy et al. 2024", needs=("parallel",), reads=_VARIANT),
    "clp": Method("helpers.clp_method", "Ostendorff and Rehm 2023", needs=("helper",)),
    "clp-plus": Method("helpers.clp_plus_method", "Yamaguchi et al. 2024", needs=("helper",)),
    "sava": Method("helpers.sava_method", "Moroni et al. 2025", needs=("helper",), reads=("num_pairs",)),
    "sava-adam": Method("helpers.sava_adam_method", "Moroni et al. 2025", needs=("helper",), reads=("num_pairs",)),
    "sava-plain": Method("helpers.sava_plain_method", "Moroni et al. 2025", needs=("helper",), reads=("num_pairs",)),
    "sava-procrustes": Method("helpers.sava_procrustes_method", "Moroni et al. 2025", needs=("helper",), reads=("num_pairs", *_VARIANT)),
    "omp": Method("helpers.omp_method", "Goddard and Fernandes Neto 2025", needs=("helper",), reads=("num_atoms", *_VARIANT)),
    "token-distillation": Method(
        "learned.token_distillation_method", "Dobler et al. 2025", needs=("text",), reads=("learning",), learns=True
    ),
    "next-token": Method("learned.next_token_method", "baseline of Dobler et al. 2025", needs=("text",), reads=("learning",), learns=True),
    "alm": Method("learned.alm_method", "after Minixhofer et al. 2025", needs=("text",), reads=("learning",), learns=True),
}

# Sentences about names that are gone.
RENAMED_METHODS = {
    "clp-random": "clp-random is called random: shared tokens keep their rows and the others are drawn (random-all draws every row)",
}
