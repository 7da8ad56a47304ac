"""Embedding transfer: rows for the tokens of a new vocabulary, made from those of an old one.

`METHODS` lists the methods by the name that the command takes; each decides where every row comes from.  To add one, write
a function from `TransferInputs` to `RowPlan`, give it a row here and a test against a plain implementation.
"""

from __future__ import annotations

from conversion.embeddings.methods.method_table import Method

_WORDS = (("source_word_vectors", "source_text"), ("word_vectors", "text"))

_VARIANT = ("as_published",)

METHODS: dict[str, Method] = {
    "random": Method("simple.random_method", "Moroni et al. 2025"),
    "random-all": Method("simple.random_all_method", "GaMS: Vreš et al. 2024", copies=False),
    "mean": Method("simple.mean_method", "FVT: Gee et al. 2022"),
    "merge": Method("merge.merge_method", "Yamaguchi et al. 2024"),
    "align": Method("merge.align_method", "Yamaguchi et al. 2024", needs=("text",), reads=_VARIANT),
    "focus": Method("neighbors.focus_method", "Dobler and de Melo 2023", needs=("text",), reads=_VARIANT),
    "focus-words": Method("neighbors.focus_words_method", "Yamaguchi et al. 2024", needs=("word_vectors",)),
    "focus-cse": Method("neighbors.focus_cse_method", "GaMS: Vreš et al. 2024", needs=("encoder",)),
    "wechsel-cse": Method("neighbors.wechsel_cse_method", "GaMS: Vreš et al. 2024", needs=("encoder",), reads=_VARIANT),
    "wechsel": Method("words.wechsel_method", "Minixhofer et al. 2022", needs=("dictionary",), either=_WORDS, reads=_VARIANT),
    "ofa": Method("words.ofa_method", "Liu et al. 2024", needs=("word_vectors",), reads=_VARIANT),
    "ofa-aligned": Method("words.ofa_aligned_method", "after Liu et al. 2024", needs=("dictionary",), either=_WORDS),
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
