"""Methods that look at vectors of words: WECHSEL and OFA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from conversion.embeddings.method import TransferInputs
from conversion.embeddings.neighbor_methods import wechsel_plan
from conversion.embeddings.row_plan import RowPlan
from conversion.embeddings.word_vectors import WordVectors


def wechsel_method(inputs: TransferInputs) -> RowPlan:
    """A new token is the softmax mean of the ten nearest source tokens in word vectors aligned by a dictionary.

    WECHSEL (Minixhofer et al. 2022): vectors of words in each language give vectors of tokens; an orthogonal map, fitted on the
    dictionary, brings the source's to the target's; weights are the softmax of cosines at temperature 0.1.

    Raises:
        ValueError: if the vectors have different sizes, or if the dictionary covers too little of them.
    """
    source_words, target_words, dictionary = inputs.source_word_vectors, inputs.word_vectors, inputs.dictionary
    assert source_words is not None and target_words is not None and dictionary is not None
    rotation = word_alignment(source_words, target_words, dictionary)
    source = source_words.token_vectors(inputs.source, inputs.tokenize_source)
    rotated = replace(source, vectors=(source.vectors.astype(np.float64) @ rotation).astype(np.float32))
    return wechsel_plan(inputs, rotated, target_words.token_vectors(inputs.target, inputs.tokenize))


def ofa_method(inputs: TransferInputs) -> RowPlan:
    """Copy what both vocabularies have; a new token is the softmax mean of its ten nearest in one space of words of both languages.

    OFA (Liu et al. 2024, section 3.2): a token's vector is the unweighted mean of the words that contain it, written with and
    without a space before and with a capital or not.  Its factorisation, `factorise`, serves any method.

    Raises:
        ValueError: if no source token has a vector.
    """
    words = inputs.word_vectors
    assert words is not None
    variants = (str, lambda word: f" {word}", str.capitalize, lambda word: f" {word.capitalize()}")
    source = words.pooled(inputs.source, inputs.tokenize_source, variants=variants, by_frequency=False)
    target = words.pooled(inputs.target, inputs.tokenize, variants=variants, by_frequency=False)
    return wechsel_plan(inputs, source, target, name="ofa")


def word_alignment(source: WordVectors, target: WordVectors, dictionary: Sequence[tuple[str, str]]) -> np.ndarray:
    """The orthogonal matrix R for which `source @ R` is nearest to `target` over the pairs of a dictionary (Procrustes).

    Each pair counts as it is, in small letters and with a capital on either side, where the vectors have such words; each pair
    of words counts once (WECHSEL's code repeats it up to nine times).

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
    pairs = {
        (source_index[one], target_index[other])
        for source_word, target_word in dictionary
        for one in _casings(source_word)
        for other in _casings(target_word)
        if one in source_index and other in target_index
    }
    if len(pairs) < _FEWEST_PAIRS:
        raise ValueError(
            f"the dictionary has {len(dictionary)} pairs, of which the vectors {source.name} and {target.name} cover {len(pairs)};"
            f" expected at least {_FEWEST_PAIRS}: give a dictionary from the source to the target language"
        )
    rows, columns = np.array(sorted(pairs)).T
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
                raise ValueError(f"{path}, line {number} is no pair of words with a tab or a space between: {line.strip()!r}")
            pairs.append((words[0], words[1]))
    return pairs


_FEWEST_PAIRS = 10


def _casings(word: str) -> set[str]:
    return {word, word.lower(), word.title()}
