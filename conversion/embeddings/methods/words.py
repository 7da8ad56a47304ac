"""Methods that use word vectors: WECHSEL and OFA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from common.background import Background
from common.devices import num_threads
from conversion.embeddings.methods.method import TransferInputs
from conversion.embeddings.methods.neighbors import wechsel_plan
from conversion.embeddings.methods.row_plan import RowPlan
from conversion.embeddings.spaces import colexnet
from conversion.embeddings.spaces.word_vectors import WordCorpus, WordVectors, train_word_vectors


def wechsel_method(inputs: TransferInputs) -> RowPlan:
    """A new token is the softmax mean of the ten nearest source tokens in word vectors aligned by a dictionary.

    WECHSEL (Minixhofer et al. 2022): vectors of words in each language give vectors of tokens; an orthogonal map, fitted on the
    dictionary, brings the source's to the target's; weights are the softmax of cosines at temperature 0.1.  Where vectors are not
    given they are trained on text.  The published code copies no tokens but special ones, fits on each pair of the dictionary up
    to nine times, and counts a word twice for a token that it contains with and without a space before it.

    Raises:
        ValueError: if the vectors have different sizes, if the dictionary covers too little of them, or if a text is too small.
    """
    source_words, target_words, rotation = _aligned_words(inputs)
    source = source_words.token_vectors(inputs.source, inputs.tokenize_source, each_variant=inputs.as_published)
    rotated = replace(source, vectors=(source.vectors[:].astype(np.float64) @ rotation).astype(np.float32))
    vectors = target_words.token_vectors(inputs.target, inputs.tokenize, each_variant=inputs.as_published)
    return wechsel_plan(inputs.without_copies() if inputs.as_published else inputs, rotated, vectors)


def ofa_method(inputs: TransferInputs) -> RowPlan:
    """Copy what both vocabularies have; a new token is the softmax mean of its ten nearest in one space of words of both languages.

    OFA (Liu et al. 2024, section 3.2): a token's vector is the unweighted mean of the words that contain it, written with and
    without a space before and with a capital or not.  The published code has no capital without a space, and counts a word for a token as
    often as it has spellings with it.  Its factorisation, `factorise`, serves any method.

    Raises:
        ValueError: if no source token has a vector.
    """
    assert inputs.word_vectors is not None
    return _ofa_plan(inputs, inputs.word_vectors, "ofa")


def ofa_aligned_method(inputs: TransferInputs) -> RowPlan:
    """OFA where there is no table of both languages: two of one language each are brought into one space by a dictionary, as in WECHSEL.

    Raises:
        ValueError: for the reasons of WECHSEL.
    """
    source, target, rotation = _aligned_words(inputs)
    rotated = (source.vectors.astype(np.float64) @ rotation).astype(np.float32)
    words = WordVectors(
        f"{source.name} and {target.name}",
        source.words + target.words,
        np.concatenate([rotated, target.vectors]),
        np.concatenate([source.frequencies, target.frequencies]),
    )
    return _ofa_plan(inputs, words, "ofa-aligned")


def _ofa_plan(inputs: TransferInputs, words: WordVectors, name: str) -> RowPlan:
    variants = colexnet.spellings(as_published=bool(inputs.as_published)) if words.marks_boundaries else _spellings(inputs)
    source, target = (
        words.pooled(vocabulary, tokenize, variants=variants, by_frequency=False, each_variant=inputs.as_published)
        for vocabulary, tokenize in ((inputs.source, inputs.tokenize_source), (inputs.target, inputs.tokenize))
    )
    return wechsel_plan(inputs, source, target, name=name)


def _spellings(inputs: TransferInputs) -> list[Callable[[str], str]]:
    """How a word may stand in a text."""
    variants: list[Callable[[str], str]] = [str, lambda word: f" {word}"]
    if inputs.as_published:
        return [*variants, lambda word: f" {word[:1].upper()}{word[1:]}"]
    return [*variants, str.capitalize, lambda word: f" {word.capitalize()}"]


def _aligned_words(inputs: TransferInputs) -> tuple[WordVectors, WordVectors, np.ndarray]:
    """Vectors of source and target words, and the rotation from the first to the second; trained once for all methods of a seed."""
    return inputs.once(("aligned words", inputs.seed, inputs.as_published), lambda: _align_words(inputs))


def _align_words(inputs: TransferInputs) -> tuple[WordVectors, WordVectors, np.ndarray]:
    assert inputs.dictionary is not None
    given = inputs.source_word_vectors, inputs.word_vectors
    texts = inputs.source_text, inputs.text
    corpora = [
        None if words else WordCorpus.of(text or (), name=flag) for words, text, flag in zip(given, texts, ("--source-text", "--text"))
    ]
    # Both sides need the same number of dimensions: that of vectors which are given, else what suits the smaller text.
    sizes = [words.vectors.shape[1] for words in given if words] + [
        inputs.vectors.for_text(len(corpus))[0] for corpus in corpora if corpus is not None
    ]
    size = sizes[0] if any(given) else min(sizes)
    if not any(given) and num_threads() > 1:  # one thread trains each, so that it is repeatable: both beside each other
        beside = Background(lambda: _trained(inputs, corpora[1], size))
        source, target = _trained(inputs, corpora[0], size), beside.result()
    else:
        source, target = (words or _trained(inputs, corpus, size) for words, corpus in zip(given, corpora))
    return source, target, word_alignment(source, target, inputs.dictionary, repeats=inputs.as_published)


def _trained(inputs: TransferInputs, corpus: WordCorpus | None, size: int) -> WordVectors:
    assert corpus is not None
    _, epochs, min_count = inputs.vectors.for_text(len(corpus))
    return train_word_vectors(corpus, size=size, epochs=epochs, min_count=min_count, seed=inputs.seed)


def word_alignment(source: WordVectors, target: WordVectors, dictionary: Sequence[tuple[str, str]], *, repeats: bool = False) -> np.ndarray:
    """The orthogonal matrix R for which `source @ R` is nearest to `target` over the pairs of a dictionary (Procrustes).

    Each pair counts as it is, in small letters and with a capital on either side, where the vectors have such words; each pair
    of words counts once.

    Args:
        repeats: count a pair of words as often as it comes up so, up to nine times where it has no capitals (as WECHSEL's code).

    Returns:
        (size, size) float64

    Raises:
        ValueError: if the sizes differ or if fewer than ten pairs are covered.
    """
    from scipy.linalg import orthogonal_procrustes

    sizes = source.vectors.shape[1], target.vectors.shape[1]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"the vectors {source.name} have {sizes[0]} dimensions, but {target.name} have {sizes[1]}; give vectors of one size"
        )
    source_index, target_index = source.index, target.index
    pairs = [
        (source_index[one], target_index[other])
        for source_word, target_word in dictionary
        for one in _casings(source_word)
        for other in _casings(target_word)
        if one in source_index and other in target_index
    ]
    if not repeats:
        pairs = sorted(set(pairs))
    if len(pairs) < _FEWEST_PAIRS:
        raise ValueError(
            f"the dictionary has {len(dictionary)} pairs, of which the vectors {source.name} and {target.name} cover {len(pairs)};"
            f" expected at least {_FEWEST_PAIRS}: give a dictionary from the source to the target language"
        )
    rows, columns = np.array(pairs).T
    rotation, _ = orthogonal_procrustes(source.vectors[rows].astype(np.float64), target.vectors[columns].astype(np.float64))
    return rotation


def read_dictionary(path: Path) -> list[tuple[str, str]]:
    """Pairs of a source and a target word, one a line with a tab or a space between (`.gz` too), as MUSE and WECHSEL have them.

    Raises:
        ValueError: if the file is missing or a line has no two words.
    """
    import gzip

    if not Path(path).is_file():
        raise ValueError(f"the dictionary {path} does not exist")
    pairs = []
    with gzip.open(path, "rt", encoding="utf-8") if Path(path).suffix == ".gz" else open(path, encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            words = [word.strip() for word in (line.split("\t") if "\t" in line else line.split())]
            if len(words) != 2 or not all(words):
                raise ValueError(f"{path}, line {number} is not a pair of words with a tab or a space between: {line.strip()!r}")
            pairs.append((words[0], words[1]))
    return pairs


_FEWEST_PAIRS = 10


def _casings(word: str) -> tuple[str, str, str]:
    return word, word.lower(), word.title()
