"""Embedding transfer: rows for the tokens of a new vocabulary, made from those of an old one.

`METHODS` lists the methods by the name that the command takes; each decides where every row comes from.  To add one, write
a function from `TransferInputs` to `RowPlan`, give it a row here and a test against a plain implementation.
"""

from __future__ import annotations

from conversion.embeddings.helper_methods import (
    clp_method,
    clp_plus_method,
    omp_method,
    sava_adam_method,
    sava_method,
    sava_plain_method,
    sava_procrustes_method,
)
from conversion.embeddings.learned_methods import alm_method, next_token_method, token_distillation_method
from conversion.embeddings.merge_methods import align_method, merge_method
from conversion.embeddings.method import Method
from conversion.embeddings.neighbor_methods import focus_cse_method, focus_method, wechsel_cse_method
from conversion.embeddings.simple_methods import mean_method, random_all_method, random_method
from conversion.embeddings.translation_methods import trans_tokenization_method
from conversion.embeddings.word_methods import ofa_aligned_method, ofa_method, wechsel_method

_WORDS = (("source_word_vectors", "source_text"), ("word_vectors", "text"))

_VARIANT = ("as_published",)

METHODS: dict[str, Method] = {
    "random": Method(random_method, "Moroni et al. 2025"),
    "random-all": Method(random_all_method, "GaMS: Vreš et al. 2024", copies=False),
    "mean": Method(mean_method, "FVT: Gee et al. 2022"),
    "merge": Method(merge_method, "Yamaguchi et al. 2024"),
    "align": Method(align_method, "Yamaguchi et al. 2024", needs=("text",), reads=_VARIANT),
    "focus": Method(focus_method, "Dobler and de Melo 2023", needs=("text",), reads=_VARIANT),
    "focus-cse": Method(focus_cse_method, "GaMS: Vreš et al. 2024", needs=("encoder",)),
    "wechsel-cse": Method(wechsel_cse_method, "GaMS: Vreš et al. 2024", needs=("encoder",)),
    "wechsel": Method(wechsel_method, "Minixhofer et al. 2022", needs=("dictionary",), either=_WORDS, reads=_VARIANT),
    "ofa": Method(ofa_method, "Liu et al. 2024", needs=("word_vectors",), reads=_VARIANT),
    "ofa-aligned": Method(ofa_aligned_method, "after Liu et al. 2024", needs=("dictionary",), either=_WORDS),
    "trans-tokenization": Method(trans_tokenization_method, "Remy et al. 2024", needs=("parallel",), reads=_VARIANT),
    "clp": Method(clp_method, "Ostendorff and Rehm 2023", needs=("helper",)),
    "clp-plus": Method(clp_plus_method, "Yamaguchi et al. 2024", needs=("helper",)),
    "sava": Method(sava_method, "Moroni et al. 2025", needs=("helper",)),
    "sava-adam": Method(sava_adam_method, "Moroni et al. 2025", needs=("helper",)),
    "sava-plain": Method(sava_plain_method, "Moroni et al. 2025", needs=("helper",)),
    "sava-procrustes": Method(sava_procrustes_method, "Moroni et al. 2025", needs=("helper",), reads=_VARIANT),
    "omp": Method(omp_method, "Goddard and Fernandes Neto 2025", needs=("helper",), reads=("num_atoms", *_VARIANT)),
    "token-distillation": Method(token_distillation_method, "Dobler et al. 2025", needs=("text",), reads=("learning",), learns=True),
    "next-token": Method(next_token_method, "baseline of Dobler et al. 2025", needs=("text",), reads=("learning",), learns=True),
    "alm": Method(alm_method, "after Minixhofer et al. 2025", needs=("text",), reads=("learning",), learns=True),
}

# Sentences about names that are gone.
RENAMED_METHODS = {
    "clp-random": "clp-random is called random: shared tokens keep their rows and the others are drawn (random-all draws every row)",
}
