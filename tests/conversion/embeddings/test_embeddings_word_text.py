"""WECHSEL and OFA from raw text: word vectors trained on each language, brought together by a dictionary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conversion.embeddings import METHODS
from conversion.embeddings.methods import words
from conversion.embeddings.methods.method import TransferInputs
from conversion.embeddings.methods.words import read_dictionary, word_alignment
from conversion.embeddings.options import VectorOptions
from conversion.embeddings.spaces.word_vectors import WordCorpus, WordVectors, train_word_vectors
from tests.conversion.embedding_fixtures import CIPHER, demo_text, sentencepiece_like, transfer_inputs
from tests.refusals import refused


@pytest.fixture(scope="module")
def slovene() -> str:
    return demo_text("sl")


@pytest.fixture(scope="module")
def inputs(slovene: str) -> TransferInputs:
    """The source's language is the target's under a cipher, so that every word has its one translation."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    source, target = sentencepiece_like(slovene.translate(CIPHER), num_tokens=700), sentencepiece_like(slovene, num_tokens=700)
    words = sorted(set(slovene.split()))
    torch.set_num_threads(threads)
    return transfer_inputs(
        source,
        target,
        text=[slovene],
        source_text=[slovene.translate(CIPHER)],
        dictionary=[(word.translate(CIPHER), word) for word in words[::2]],
        vectors=VectorOptions(size=32, epochs=10, min_count=5),
    )


def retrieval(source: WordVectors, target: WordVectors, rotation: np.ndarray, pairs: dict[str, set[str]], *, num_best: int) -> float:
    """Share of source words with a translation among the nearest target words."""
    index = source.index
    rows = source.vectors[[index[word] for word in pairs]] @ rotation
    cosines = (rows / np.linalg.norm(rows, axis=1, keepdims=True)) @ (
        target.vectors / np.linalg.norm(target.vectors, axis=1, keepdims=True)
    ).T
    best = np.argsort(-cosines, axis=1)[:, :num_best]
    return float(np.mean([any(target.words[i] in translations for i in row) for row, translations in zip(best, pairs.values())]))


def test_trained_vectors_translate_words_that_the_dictionary_lacks(inputs: TransferInputs, slovene: str) -> None:
    source, target = (
        train_word_vectors(WordCorpus.of(texts or (), name="text"), size=32, epochs=10, min_count=5, seed=seed)
        for seed, texts in enumerate((inputs.source_text, inputs.text))
    )
    rotation = word_alignment(source, target, inputs.dictionary or ())
    known = {word for _, word in inputs.dictionary or ()}
    held_out = {word.translate(CIPHER): {word} for word in target.words if word.isalpha() and word not in known}
    assert len(held_out) > 150
    assert retrieval(source, target, rotation, held_out, num_best=1) > 0.6  # 0.78 with half of the words; chance is 0.002
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(32), atol=1e-10)


@pytest.mark.parametrize("method", ["wechsel", "ofa-aligned"])
def test_new_tokens_take_the_rows_of_their_translations(inputs: TransferInputs, method: str) -> None:
    plan = METHODS[method].plan(inputs)
    weights = plan.weights.tocsr()
    source_ids = {token: i for i, token in enumerate(inputs.source.tokens)}
    hits = total = 0
    for i in np.flatnonzero(np.diff(weights.indptr)):
        translation = source_ids.get((inputs.target.tokens[i] or "").translate(CIPHER))
        if translation is None or len(inputs.target.tokens[i] or "") < 4:
            continue
        total += 1
        hits += translation in weights[i].indices
    assert total > 100 and hits > 0.5 * total  # ten of 700 at random would be 1 in 70


def test_vectors_that_are_given_go_before_text(inputs: TransferInputs) -> None:
    generator = np.random.default_rng(0)
    words = tuple(sorted({word for _, word in inputs.dictionary or ()}))
    target = WordVectors("given", words, generator.standard_normal((len(words), 9)).astype(np.float32), np.ones(len(words)))
    one_side = replace(inputs, word_vectors=target, vectors=VectorOptions(epochs=1, min_count=5))
    # Those that are trained get the dimensions of those that are given.
    assert METHODS["wechsel"].plan(one_side).weights.nnz
    source = WordVectors("given too", tuple(word.translate(CIPHER) for word in words), target.vectors, target.frequencies)
    no_text = replace(one_side, source_word_vectors=source, text=None, source_text=None)
    assert METHODS["wechsel"].plan(no_text).weights.nnz


def test_ofa_of_two_tables_is_ofa_of_their_union(inputs: TransferInputs) -> None:
    generator = np.random.default_rng(0)
    words = tuple(sorted({word for _, word in inputs.dictionary or ()}))
    target = WordVectors("target", words, generator.standard_normal((len(words), 9)).astype(np.float32), np.ones(len(words)))
    rotation = np.linalg.qr(generator.standard_normal((9, 9)))[0]
    source_words = tuple(word.translate(CIPHER) for word in words)
    source = WordVectors("source", source_words, target.vectors @ rotation.astype(np.float32), target.frequencies)
    union = WordVectors("union", source_words + words, np.concatenate([target.vectors] * 2), np.ones(2 * len(words)))
    aligned = METHODS["ofa-aligned"].plan(replace(inputs, word_vectors=target, source_word_vectors=source))
    plain = METHODS["ofa"].plan(replace(inputs, word_vectors=union))
    np.testing.assert_allclose(aligned.weights.toarray(), plain.weights.toarray(), atol=1e-4)


def test_same_text_and_seed_give_the_same_weights(inputs: TransferInputs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether both sides are trained one after the other or beside each other."""
    quick = replace(inputs, vectors=VectorOptions(size=8, epochs=1, min_count=5))
    plans = []
    for threads in (1, 2):
        monkeypatch.setattr(words, "num_threads", lambda threads=threads: threads)
        plans.append(METHODS["wechsel"].plan(quick).weights)
    one, two = plans
    other = METHODS["wechsel"].plan(replace(quick, seed=7)).weights
    assert (one != two).nnz == 0 and (one != other).nnz > 0


def test_too_little_text_is_refused(inputs: TransferInputs) -> None:
    with refused(
        "--source-text has 4 words, of which 0 are seen at least 5 times: too little to train vectors;"
        " give more text or a lower --vector-min-count"
    ):
        METHODS["wechsel"].plan(replace(inputs, source_text=["just a few words"]))


def test_long_lines_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conversion.embeddings.spaces.word_vectors.MAX_SENTENCE_TOKENS", 3)
    corpus = WordCorpus.of(["Mama, kje si?\n\nTu sem."], name="text")
    assert list(corpus) == [["Mama", ",", "kje"], ["si", "?"], ["Tu", "sem", "."]] and len(corpus) == 8


# ---- real dictionaries and text ----


@pytest.mark.parametrize(
    ("name", "num_pairs", "first"), [("muse_nc.en-sl", 62_907, ("and", "in")), ("wechsel_italian", 98_522, ("free", "gratis"))]
)
def test_published_dictionaries_are_read(shared_data: Path, name: str, num_pairs: int, first: tuple[str, str]) -> None:
    pairs = read_dictionary(shared_data / "dictionaries" / f"{name}.txt.gz")
    assert len(pairs) == num_pairs and pairs[0] == first
