"""Each method against a plain implementation, and what must hold for all of them."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from transformers import PreTrainedTokenizerFast

from conversion.embeddings import METHODS
from conversion.embeddings.methods import row_plan
from conversion.embeddings.methods.affine_maps import fit_map
from conversion.embeddings.methods.merge import alignment_weights, byte_ends
from conversion.embeddings.methods.method import TransferInputs
from conversion.embeddings.methods.neighbors import focus_plan, wechsel_plan
from conversion.embeddings.methods.random_rows import RowStatistics, random_rows, row_statistics
from conversion.embeddings.methods.row_plan import Origin, RowPlan, make_rows, weighted_sums
from conversion.embeddings.methods.words import read_dictionary
from conversion.embeddings.options import VectorOptions
from conversion.embeddings.spaces.helper_model import HelperModel
from conversion.embeddings.spaces.sparse_weights import sparsemax_of_sorted
from conversion.embeddings.spaces.static_vectors import train_token_vectors
from conversion.embeddings.spaces.token_vectors import TokenVectors
from conversion.embeddings.spaces.word_vectors import WordCorpus, WordVectors, train_word_vectors
from conversion.embeddings.vocabularies.vocabulary import Kind, Vocabulary
from conversion.formats.lazy_tensor import LazyTensor
from tests.conversion.embedding_fixtures import (
    byte_level,
    demo_text,
    marked_bpe,
    permuted,
    sentencepiece_like,
    transfer_inputs,
    unigram,
    wordpiece,
)
from tests.refusals import refused

ROTATION, _ = np.linalg.qr(np.random.default_rng(5).standard_normal((6, 6)))
QUICK = VectorOptions(size=12, epochs=3, min_count=3)
SMALL_TEXT = demo_text("en")[:8000] + demo_text("sl")[:8000]
PARALLEL = list(zip(demo_text("en").splitlines()[:150], demo_text("sl").splitlines()[:150]))
SIZE = 10
HELPER_SIZE = 6
# Adam's thousand steps would take minutes here; apart from its fit, tested below, sava-adam is sava.
# Methods that learn need a model to run: tests/conversion/embeddings/test_learned_methods.py.
QUICK_METHODS = [name for name in METHODS if name != "sava-adam" and not METHODS[name].learns]
pytestmark = pytest.mark.usefixtures("one_thread")
COPYING = [name for name in QUICK_METHODS if METHODS[name].copies]


def prepare(
    source: PreTrainedTokenizerFast, target: PreTrainedTokenizerFast, *, text: str | None = None, seed: int = 42, fallback: str = "mean"
) -> TransferInputs:
    return transfer_inputs(
        source,
        target,
        seed=seed,
        text=text.split("\n\n") if text else None,
        vectors=QUICK,
        word_vectors=words_of_small_text(rotated=False),
        source_word_vectors=words_of_small_text(rotated=True),
        dictionary=[(word, word) for word in sorted(set(SMALL_TEXT.split()))[::3]],
        helper=helper_model(target),
        encoder=small_encoder(),
        parallel=PARALLEL,
        num_atoms=HELPER_SIZE,
        fallback=fallback,
    )


@cache
def words_of_small_text(*, rotated: bool) -> WordVectors:
    return word_vectors(SMALL_TEXT, rotation=ROTATION if rotated else None)


@cache
def small_encoder() -> HelperModel:
    return helper_model(byte_level(SMALL_TEXT, num_tokens=400))


def word_vectors(text: str, *, rotation: np.ndarray | None = None, size: int = 6) -> WordVectors:
    """Vectors of the words of a text that follow from the words; neighbours by spelling are neighbours in the space."""
    counts = Counter(text.split())
    words = sorted(counts, key=lambda word: (-counts[word], word))
    unit = RowStatistics(np.zeros(size), np.ones(size))
    rows = random_rows([word[:3] for word in words], unit, seed=0, layer="") + 0.3 * random_rows(words, unit, seed=1, layer="")
    vectors = rows if rotation is None else rows @ rotation.astype(np.float32)
    return WordVectors("words", tuple(words), vectors, np.array([counts[word] for word in words], dtype=np.float64))


def helper_model(tokenizer: PreTrainedTokenizerFast, *, seed: int = 0, untied: bool = True) -> HelperModel:
    """A model of a few dimensions whose rows follow from the tokens, not from their ids."""
    vocabulary = Vocabulary.of(tokenizer)
    unit = RowStatistics(np.full(HELPER_SIZE, 0.3), np.ones(HELPER_SIZE))
    rows = [random_rows(vocabulary.keys, unit, seed=seed, layer=layer) for layer in ("input", "output")]
    return HelperModel("helper", vocabulary, rows[0], rows[1] if untied else None)


def rows_of(inputs: TransferInputs, plan: RowPlan, matrix: torch.Tensor, *, seed: int = 42, layer: str = "input") -> torch.Tensor:
    def statistics() -> RowStatistics:
        return row_statistics(LazyTensor.of("matrix", matrix), np.arange(len(inputs.source)))

    return make_rows(plan, matrix, keys=lambda: inputs.target.keys, statistics=statistics, seed=seed, layer=layer)


def matrix_for(inputs: TransferInputs, *, padding: int = 0, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(len(inputs.source) + padding, SIZE, generator=generator) * 0.5 + 0.1).to(dtype)


def random_vectors(inputs: TransferInputs, *, share: float = 0.9, seed: int = 0) -> TokenVectors:
    """Vectors in a low-dimensional cloud for most text tokens; some of the vectors are zero."""
    generator = np.random.default_rng(seed)
    ids = np.flatnonzero((inputs.target.kinds != Kind.SPECIAL) & (generator.random(len(inputs.target)) < share))
    vectors = generator.standard_normal((len(ids), 4)).astype(np.float32)
    vectors[generator.random(len(ids)) < 0.03] = 0
    return TokenVectors.of(vectors, ids, len(inputs.target))


@pytest.fixture(scope="module")
def slovene() -> str:
    return demo_text("sl")[:30_000]


@pytest.fixture(scope="module")
def pair(slovene: str) -> TransferInputs:
    source = byte_level(demo_text("en"), num_tokens=900, specials={"bos": "</s>", "eos": "</s>", "pad": "<pad>"})
    return prepare(source, sentencepiece_like(slovene, num_tokens=1000), text=slovene)


@pytest.fixture(scope="module")
def plans(pair: TransferInputs) -> dict[str, RowPlan]:
    return {name: METHODS[name].plan(pair) for name in QUICK_METHODS}


# ---- plain implementations ----


def plain_sparsemax(values: np.ndarray) -> np.ndarray:
    """By bisection of the threshold, which shares no step with sorting."""
    low, high = values.min() - 1, values.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(values - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(values - high, 0)


# ---- methods ----


def plain_space(pair: TransferInputs) -> tuple[dict[int, int], list[int]]:
    """Shared target ids with their source ids, and new target ids, of tokens of text."""
    by_bytes = {data: i for i, data in reversed(list(enumerate(pair.source.token_bytes))) if data}
    texts = [(i, data) for i, data in enumerate(pair.target.token_bytes) if data]
    return {i: by_bytes[data] for i, data in texts if data in by_bytes}, [i for i, data in texts if data not in by_bytes]


def cosines(vector: np.ndarray, others: np.ndarray) -> np.ndarray:
    return others @ vector / np.linalg.norm(others, axis=1) / np.linalg.norm(vector)


@pytest.mark.parametrize("pairs_per_dimension", [0.5, 1.0, 1.25, 3.0])
def test_least_squares_on_few_pairs_predict_no_worse_than_adam(pairs_per_dimension: float) -> None:
    """Held-out error of a noisy planted map: SAVA's 2,000 pairs are fewer than the 2,560 dimensions of its helper."""
    generator = np.random.default_rng(0)
    size, num_pairs = 40, round(40 * pairs_per_dimension)
    x = generator.standard_normal((num_pairs + 1000, size)) * np.arange(1, size + 1) ** -0.7
    x = x @ np.linalg.qr(generator.standard_normal((size, size)))[0]
    y = x @ generator.standard_normal((size, 60)) + generator.standard_normal((len(x), 60)) * 0.5 * x.std()
    exact, adam = (fit_map(x[:num_pairs], y[:num_pairs], fit=fit, seed=0)(x[num_pairs:]) for fit in ("least-squares", "adam"))
    errors = [np.square(rows - y[num_pairs:]).mean() for rows in (exact, adam)]
    print(f"{num_pairs} pairs, {size} dimensions: least squares {errors[0]:.4f}, Adam {errors[1]:.4f}")
    assert errors[0] < errors[1]


def test_procrustes_recovers_a_rotation() -> None:
    generator = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(generator.standard_normal((8, 8)))
    scaled = generator.standard_normal((300, 8))
    mapped = fit_map(scaled, scaled @ rotation, fit="procrustes", seed=0)(scaled)
    # Rows of one length each are needed for exactness; scaling of columns bends the rotation a little.
    assert np.mean([cosines(a, b[None])[0] for a, b in zip(mapped, scaled @ rotation)]) > 0.97


def test_sava_maps_helper_rows_by_a_fit_on_shared_rows(pair: TransferInputs, plans: dict[str, RowPlan]) -> None:
    shared, new = plain_space(pair)
    assert pair.helper is not None and pair.helper.output_rows is not None
    matrix = matrix_for(pair)
    for layer, helper in (("input", pair.helper.input_rows), ("output", pair.helper.output_rows)):
        mapping = fit_map(helper[list(shared)], matrix[list(shared.values())].numpy(), fit="least-squares", seed=0)
        rows = rows_of(pair, plans["sava"], matrix, layer=layer)
        np.testing.assert_allclose(rows[new].numpy(), mapping(helper[new]), atol=1e-5)


@pytest.mark.parametrize(("helper_size", "size"), [(8, 12), (12, 8)])
def test_adam_comes_near_least_squares(helper_size: int, size: int) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((400, helper_size))
    y = x @ generator.standard_normal((helper_size, size)) + generator.standard_normal((400, size)) * 0.5
    exact, adam = (fit_map(x, y, fit=fit, seed=0)(x) for fit in ("least-squares", "adam"))
    assert np.mean([cosines(a, b[None])[0] for a, b in zip(exact, adam)]) > 0.995


def test_omp_takes_an_atom_for_every_eight_dimensions(pair: TransferInputs) -> None:
    """As many as dimensions would rebuild the noise of a helper."""
    rows = np.random.default_rng(0).standard_normal((len(pair.target), 128)).astype(np.float32)
    for num_atoms in (None, 64):
        plan = METHODS["omp"].plan(prepare_like(pair, helper=HelperModel("helper", pair.target, rows), num_atoms=num_atoms))
        assert np.diff(plan.weights.indptr).max() == (num_atoms or 128 // 8)
    with refused("--num-atoms is 7; expected 1 to the 6 dimensions of the helper helper"):
        METHODS["omp"].plan(prepare_like(pair, num_atoms=7))


def inputs_of_abc() -> TransferInputs:
    """Tokens of three letters: ab and ▁c are the source's, bc, abc and aa (5, 6 and 7) the target's."""
    source_tokens = ["<unk>", "▁", "a", "b", "c", "ab", "▁c"]
    source = marked_bpe({t: i for i, t in enumerate(source_tokens)}, [("a", "b"), ("▁", "c")], {"unk": "<unk>"}, byte_fallback=False)
    target_tokens = ["<unk>", "▁", "a", "b", "c", "bc", "abc", "aa"]
    merges = [("b", "c"), ("a", "bc"), ("a", "a")]
    target = marked_bpe({t: i for i, t in enumerate(target_tokens)}, merges, {"unk": "<unk>"}, byte_fallback=False)
    return prepare(source, target)


def test_align_counts_a_hand_made_corpus() -> None:
    text = ["abc", "bc bc", "xbc", "aab"]  # the third has an unknown letter and is left out
    inputs = prepare_like(inputs_of_abc(), text=text)
    ids = np.array([5, 6, 7])
    weights = alignment_weights(inputs, ids).toarray()
    # abc is ab + c.  bc stands twice alone as b + c; in "aab" the source has a + ab: aa is covered by a and, in part, by ab.
    np.testing.assert_allclose(weights[1], [0, 0, 0, 0, 0.5, 0.5, 0])
    np.testing.assert_allclose(weights[0], [0, 0, 0, 0.5, 0.5, 0, 0])
    np.testing.assert_allclose(weights[2], [0, 0, 0.5, 0, 0, 0.5, 0])
    again = alignment_weights(prepare_like(inputs, text=text[::-1]), ids).toarray()
    np.testing.assert_array_equal(again, weights)


def test_byte_ends_follow_the_text(pair: TransferInputs) -> None:
    """A space before the text that the tokens alone have counts to the first."""
    ids = pair.tokenize([" čas  in\n"])[0]
    for text in (" čas  in\n", "čas  in\n"):
        ends = byte_ends(pair.target, ids, text)
        assert ends is not None and ends[-1] == len(text.encode())
    assert byte_ends(pair.target, pair.tokenize(["čas"])[0], "čar") is None


def plain_pooling(
    words: WordVectors, num_tokens: int, cut: Callable[[str], list[int]], variants: list[Callable[[str], str]], weighted: bool
) -> dict[int, np.ndarray]:
    sums: dict[int, np.ndarray] = {}
    totals: Counter[int] = Counter()
    for word, vector, count in zip(words.words, words.vectors, words.frequencies):
        for i in {i for variant in variants for i in cut(variant(word))}:
            weight = count if weighted else 1
            sums[i] = sums.get(i, 0) + weight * vector.astype(np.float64)
            totals[i] += weight
    return {i: total / totals[i] for i, total in sums.items()}


def test_word_vectors_from_files(tmp_path: Path) -> None:
    (tmp_path / "a.vec").write_text("3 2\nin 1 2\nje 0.5 -1\nna 3 4 \n", encoding="utf-8")
    vectors = WordVectors.read(tmp_path / "a.vec")
    assert vectors.words == ("in", "je", "na") and vectors.vectors.tolist() == [[1, 2], [0.5, -1], [3, 4]]
    np.testing.assert_allclose(vectors.frequencies, [1, 1 / 2, 1 / 3])
    for name, content, message in (
        ("b.vec", "in 1 2\nje 1\n", "{path}, line 2 has 1 numbers, but the first vector has 2; repair or remove the line"),
        ("c.vec", "in 1 x\n", "{path}, line 1 holds something that is not a number: could not convert string to float: 'x'"),
        ("d.vec", "in 1 nan\n", "{path}, line 1 holds NaN or infinite values; repair or remove the line"),
        ("e.vec", "", "{path} has no vectors; expected a word and its numbers on each line"),
        ("f.npy", "", "the vectors {path} are of an unknown kind; expected a name ending in .vec, .txt, .vec.gz, .txt.gz, .wv, .bin"),
    ):
        (tmp_path / name).write_text(content, encoding="utf-8")
        with refused(message.format(path=tmp_path / name)):
            WordVectors.read(tmp_path / name)


def test_dictionaries(tmp_path: Path, pair: TransferInputs) -> None:
    (tmp_path / "d.txt").write_text("dog pes\nat\ttik ob\n\n", encoding="utf-8")
    assert read_dictionary(tmp_path / "d.txt") == [("dog", "pes"), ("at", "tik ob")]
    (tmp_path / "bad.txt").write_text("dog\n", encoding="utf-8")
    with refused(f"{tmp_path / 'bad.txt'}, line 1 is not a pair of words with a tab or a space between: 'dog'"):
        read_dictionary(tmp_path / "bad.txt")
    with refused(
        "the dictionary has 1 pairs, of which the vectors words and words cover 0;"
        " expected at least 10: give a dictionary from the source to the target language"
    ):
        METHODS["wechsel"].plan(prepare_like(pair, dictionary=[("xx", "yy")]))
    with refused("the vectors words have 6 dimensions, but words have 5; give vectors of one size"):
        METHODS["wechsel"].plan(prepare_like(pair, word_vectors=word_vectors(SMALL_TEXT, size=5)))


def test_trained_word_vectors_know_any_word() -> None:
    corpus = WordCorpus.of([SMALL_TEXT], name="text")
    vectors, again = (train_word_vectors(corpus, size=8, epochs=1, min_count=3, seed=1) for _ in range(2))
    np.testing.assert_array_equal(vectors.vectors, again.vectors)
    assert vectors.of_any_word is not None
    inner = vectors.of_any_word(vectors.words[0])
    np.testing.assert_array_equal(inner, vectors.vectors[0])


def test_helper_of_another_vocabulary_is_refused(pair: TransferInputs) -> None:
    other = helper_model(sentencepiece_like("ωψχ φυτ", num_tokens=20, byte_fallback=False))
    with refused(
        f"the helper helper has none of the {len(pair.new_ids)} new tokens of the target vocabulary, so --method sava cannot be"
        " used; give a helper that was trained with the target tokenizer"
    ):
        METHODS["sava"].plan(prepare_like(pair, helper=other))


def test_random_draws_what_is_new_and_random_all_everything(pair: TransferInputs, plans: dict[str, RowPlan]) -> None:
    """SAVA, 3.1: the tokens "outside the intersection" are random; low-resource, 4.1: "new tokens"; GaMS, 4.2: the whole matrix."""
    assert plans["random-all"].is_drawn.all()
    plan = plans["random"]
    assert set(np.flatnonzero(plan.is_drawn)) == set(np.flatnonzero(~pair.overlap.is_matched))
    assert set(plan.counts()) == {"copied", "special", "random"}


# ---- what holds for every method ----


@pytest.mark.some(10)
@pytest.mark.parametrize("method", COPYING)
@pytest.mark.parametrize("make", [byte_level, sentencepiece_like, unigram, wordpiece])
def test_transfer_to_itself_copies_every_row(method: str, make: Callable[..., PreTrainedTokenizerFast], slovene: str) -> None:
    tokenizer = make(slovene, num_tokens=600)
    inputs = prepare(tokenizer, tokenizer, text=slovene if "text" in METHODS[method].needs else None)
    matrix = matrix_for(inputs, padding=7, dtype=torch.bfloat16 if make in (sentencepiece_like, wordpiece) else torch.float32)
    matrix[3, 2] = -0.0
    if method == "merge" and make in (unigram, wordpiece):
        with refused("--method merge follows merge rules, but the target tokenizer is not BPE; choose mean, which needs none"):
            METHODS[method].plan(inputs)
        return
    rows = rows_of(inputs, METHODS[method].plan(inputs), matrix)
    assert torch.equal(rows.view(torch.uint8), matrix[: len(rows)].contiguous().view(torch.uint8))


@pytest.mark.parametrize("method", COPYING)
def test_shared_rows_are_copied_bit_for_bit(pair: TransferInputs, plans: dict[str, RowPlan], method: str) -> None:
    matrix = matrix_for(pair, dtype=torch.bfloat16)
    rows = rows_of(pair, plans[method], matrix)
    shared = np.flatnonzero(pair.overlap.is_matched)
    assert len(shared) > 300
    assert torch.equal(rows[shared], matrix[pair.overlap.source_ids[shared]])


@pytest.mark.some(6)
@pytest.mark.parametrize("method", QUICK_METHODS)
def test_permuted_target_permutes_the_rows(slovene: str, method: str) -> None:
    source = byte_level(demo_text("en"), num_tokens=500)
    target = sentencepiece_like(slovene, num_tokens=500)
    order = np.random.default_rng(0).permutation(len(target))
    text = slovene if "text" in METHODS[method].needs else None
    one, other = prepare(source, target, text=text), prepare(source, permuted(target, order.tolist()), text=text)
    matrix = matrix_for(one)
    rows, permuted_rows = (rows_of(inputs, METHODS[method].plan(inputs), matrix) for inputs in (one, other))
    if method not in ("random", "random-all", "mean", "merge", "align"):
        # Sums of the same float32 products in another order; CLP's divisors can be small.
        torch.testing.assert_close(permuted_rows[order], rows, atol=1e-5, rtol=1e-3 if method == "clp" else 0)
    else:
        assert torch.equal(permuted_rows[order], rows)


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_no_row_is_empty_or_a_twin_of_another(pair: TransferInputs, plans: dict[str, RowPlan], method: str) -> None:
    matrix = matrix_for(pair)
    rows = rows_of(pair, plans[method], matrix)
    assert torch.isfinite(rows).all() and (rows.norm(dim=1) > 0).all()
    drawn = rows[np.flatnonzero(plans[method].is_drawn)]
    assert len(torch.unique(drawn, dim=0)) == len(drawn)


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_size_of_blocks_changes_no_bit(
    pair: TransferInputs, plans: dict[str, RowPlan], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = matrix_for(pair, padding=3)
    whole = rows_of(pair, plans[method], matrix)
    monkeypatch.setattr(row_plan, "_BLOCK_VALUES", 37 * SIZE)
    rows = rows_of(pair, plans[method], matrix)
    if plans[method].mapped is None:
        assert torch.equal(rows, whole)
    else:  # products of other shapes are summed in another order
        torch.testing.assert_close(rows, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.some(6)
@pytest.mark.parametrize("method", QUICK_METHODS)
def test_seed_alone_decides(pair: TransferInputs, plans: dict[str, RowPlan], method: str) -> None:
    matrix = matrix_for(pair)
    plan, again = plans[method], METHODS[method].plan(pair)
    assert torch.equal(rows_of(pair, plan, matrix), rows_of(pair, again, matrix))
    np.testing.assert_array_equal(plan.weights.toarray(), again.weights.toarray())
    drawn = np.flatnonzero(plan.is_drawn)
    assert len(drawn)
    ours, others = rows_of(pair, plan, matrix), rows_of(pair, plan, matrix, seed=43)
    assert not torch.isclose(ours[drawn], others[drawn]).any()
    assert not torch.isclose(ours[drawn], rows_of(pair, plan, matrix, layer="output")[drawn]).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("method", QUICK_METHODS)
def test_half_precision_is_float32_rounded_once(pair: TransferInputs, plans: dict[str, RowPlan], method: str, dtype: torch.dtype) -> None:
    matrix = matrix_for(pair, dtype=dtype)
    rows = rows_of(pair, plans[method], matrix)
    assert rows.dtype == dtype
    assert torch.equal(rows, rows_of(pair, plans[method], matrix.float()).to(dtype))


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_padding_rows_of_the_source_do_not_matter(pair: TransferInputs, plans: dict[str, RowPlan], method: str) -> None:
    padded = matrix_for(pair, padding=7)
    padded[len(pair.source) :] = 1e6
    assert torch.equal(rows_of(pair, plans[method], padded), rows_of(pair, plans[method], padded[: len(pair.source)]))
    assert plans[method].weights.shape == (len(pair.target), len(pair.source))


@pytest.mark.parametrize("method", ["mean", "focus"])
def test_output_layer_has_the_same_weights(pair: TransferInputs, plans: dict[str, RowPlan], method: str) -> None:
    plan = plans[method]
    output = matrix_for(pair, seed=1)
    rows = rows_of(pair, plan, output, layer="output")
    combined = np.flatnonzero(np.diff(plan.weights.indptr))
    expected = plan.weights[combined] @ output[: len(pair.source)].double().numpy()
    np.testing.assert_allclose(rows[combined].double().numpy(), expected, atol=1e-6)


def test_fallback_chain_is_recorded(pair: TransferInputs) -> None:
    vectors = random_vectors(pair, share=0.5)
    plan = focus_plan(pair, vectors)
    known = vectors.is_known[pair.new_ids]
    assert set(plan.origins[pair.new_ids[known]]) == {Origin.COMBINED}
    assert set(plan.origins[pair.new_ids[~known]]) == {Origin.FALLBACK_MEAN}
    unmatched_special = (pair.target.kinds == Kind.SPECIAL) & ~pair.overlap.is_matched
    assert set(plan.origins[unmatched_special]) == {Origin.FALLBACK_RANDOM}
    drawn = focus_plan(prepare_like(pair, fallback="random"), vectors)
    assert set(drawn.origins[pair.new_ids[~known]]) == {Origin.FALLBACK_RANDOM}


def prepare_like(inputs: TransferInputs, **changes: object) -> TransferInputs:
    return TransferInputs(**({field: getattr(inputs, field) for field in inputs.__dataclass_fields__} | changes))  # type: ignore[arg-type]


# ---- weights ----


@settings(max_examples=80, deadline=None)
@given(values=st.lists(st.floats(-1, 1), min_size=1, max_size=40), temperature=st.sampled_from([1.0, 0.1, 0.05]))
def test_sparsemax_is_the_projection_on_the_simplex(values: list[float], temperature: float) -> None:
    ordered = np.sort(np.array(values) / temperature)[::-1].copy()
    weights = sparsemax_of_sorted(ordered[None])[0][0]
    np.testing.assert_allclose(weights, plain_sparsemax(ordered), atol=1e-9)
    assert abs(weights.sum() - 1) < 1e-9 and (weights >= 0).all()


def test_threads_do_not_change_the_sums() -> None:
    generator = np.random.default_rng(0)
    weights = sparse.random(300, 200, density=0.1, format="csr", random_state=0)
    matrix = torch.from_numpy(generator.standard_normal((200, 64)))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = weighted_sums(weights, matrix)
        torch.set_num_threads(4)
        assert torch.equal(weighted_sums(weights, matrix), one)
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_allclose(one.numpy(), weights @ matrix.numpy(), atol=1e-5)


# ---- token vectors ----


def test_token_vectors_are_bit_stable(pair: TransferInputs) -> None:
    one, two = train_token_vectors(pair), train_token_vectors(pair)
    np.testing.assert_array_equal(one.vectors, two.vectors)
    np.testing.assert_array_equal(one.index, two.index)
    other = train_token_vectors(prepare_like(pair, seed=7))
    assert not np.allclose(one.vectors, other.vectors)


def test_rare_tokens_have_no_vector(pair: TransferInputs) -> None:
    counts = np.bincount([i for ids in pair.tokenize(list(pair.text or [])) for i in ids], minlength=len(pair.target))
    np.testing.assert_array_equal(train_token_vectors(pair).is_known, counts >= 3)


def test_vectors_of_tokens_used_alike_are_alike() -> None:
    generator = np.random.default_rng(0)
    topics = ["abcdefgh", "stuvwxyz"]
    lines = [" ".join(generator.choice(list(topics[i % 2]), size=8)) for i in range(600)]
    target = sentencepiece_like("\n".join(lines), num_tokens=40)
    options = VectorOptions(size=16, epochs=30, min_count=5)
    inputs = prepare_like(prepare(target, target, text="\n\n".join(lines)), vectors=options)
    vectors = train_token_vectors(inputs)
    groups = [vectors.rows(np.array([inputs.target.tokens.index(f"▁{letter}") for letter in topic]))[:] for topic in topics]
    one, other = (group / np.linalg.norm(group, axis=1, keepdims=True) for group in groups)
    assert (one @ one.T).mean() > (one @ other.T).mean() + 0.2


def test_size_of_the_text_decides_the_training() -> None:
    assert VectorOptions().for_text(20_000_000) == (300, 3, 10)
    assert VectorOptions().for_text(30_000) == (100, 20, 3)
    assert VectorOptions(768, 5, 2).for_text(30_000) == (768, 5, 2)
    with refused("--vector-epochs is -1; expected at least 1"):
        VectorOptions(epochs=-1)


def test_too_little_text_is_refused(pair: TransferInputs) -> None:
    num_tokens = len(pair.tokenize(["a"])[0])
    with refused(
        f"the text has {num_tokens} tokens, of which 0 are seen at least 3 times: too little to train vectors;"
        " give more --text or a lower --vector-min-count"
    ):
        train_token_vectors(prepare_like(pair, text=["a"]))


def test_focus_without_a_vector_of_what_is_shared_is_refused() -> None:
    target = sentencepiece_like("xyz xyz zyx", num_tokens=30, byte_fallback=False)
    with refused(
        f"none of the {len(prepare(target, target).shared_ids)} tokens that both vocabularies have has a vector, so --method focus"
        " has nothing to combine; give more --text or choose another method"
    ):
        focus_plan(prepare(target, target), TokenVectors.of(np.zeros((0, 4), np.float32), np.array([], dtype=np.int64), len(target)))


# ---- the published package ----

DEEPFOCUS = """
import sys, numpy as np, torch
from transformers import PreTrainedTokenizerFast
import deepfocus.focus
work = sys.argv[1]
data = np.load(f"{work}/inputs.npz")
source, target = (PreTrainedTokenizerFast.from_pretrained(f"{work}/{side}") for side in ("source", "target"))
names = target.convert_ids_to_tokens(data["ids"].tolist())
table = dict(zip(names, data["vectors"]))
deepfocus.focus.load_target_token_embedding = lambda **options: table
rows = deepfocus.focus.FOCUS(target, source, torch.from_numpy(data["matrix"]), auxiliary_embedding_mode="fasttext-wordlevel",
                             language_identifier="xx", verbosity="silent")
np.save(f"{work}/rows.npy", rows.numpy())
"""


LATENTIS = """
import sys, numpy as np, torch
from latentis.transform import TransformSequence
from latentis.transform.base import MeanLPNorm, StandardScaling
from latentis.transform.translate import Translator
from latentis.transform.translate.aligner import SGDAffineAligner, ZeroPadding
data = np.load(f"{sys.argv[1]}/inputs.npz")
x, y = (torch.from_numpy(data[name]) for name in ("x", "y"))
translator = Translator(
    aligner=SGDAffineAligner(num_steps=1000, lr=1e-3, random_seed=42),
    x_transform=TransformSequence([StandardScaling(), MeanLPNorm(p=2)]),
    y_transform=TransformSequence([StandardScaling(), MeanLPNorm(p=2)]),
    dim_matcher=ZeroPadding(),
)
translator.fit(x=x, y=y)
np.save(f"{sys.argv[1]}/rows.npy", translator(x=torch.from_numpy(data["new"]))["x"].detach().numpy())
"""


def run_peer(package: str, code: str, folder: Path) -> np.ndarray:
    """Run code with the Python that has the published packages; gives what it saved as rows.npy."""
    python = os.environ.get("SCION_PEER_PYTHON")
    if not python:
        pytest.skip(f"SCION_PEER_PYTHON does not name a Python that has {package} (docs/embeddings.md says how to make one)")
    if subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False).returncode:
        pytest.skip(f"{python} cannot import {package}")
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "USE_TORCH")}
    subprocess.run([python, "-c", code, str(folder)], check=True, timeout=300, env=environment)
    return np.load(folder / "rows.npy")


WECHSEL = """
import sys, numpy as np
from transformers import PreTrainedTokenizerFast
import wechsel
work = sys.argv[1]
data = np.load(f"{work}/inputs.npz")
source, target = (PreTrainedTokenizerFast.from_pretrained(f"{work}/{side}") for side in ("source", "target"))
rows, *_ = wechsel.create_target_embeddings(data["source_vectors"], data["target_vectors"], source, target, data["matrix"].copy(), 10, 0.1)
np.save(f"{work}/rows.npy", rows)
"""


@pytest.mark.peer
def test_wechsel_equals_its_package(tmp_path: Path, slovene: str) -> None:
    source = sentencepiece_like(demo_text("en"), num_tokens=700)
    target = sentencepiece_like(slovene, num_tokens=900)
    inputs = prepare(source, target)
    generator = np.random.default_rng(0)
    matrix = matrix_for(inputs)
    sides = []
    for vocabulary in (inputs.source, inputs.target):
        vectors = generator.standard_normal((len(vocabulary), 8)).astype(np.float32)
        sides.append(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    source.save_pretrained(str(tmp_path / "source"))
    target.save_pretrained(str(tmp_path / "target"))
    np.savez(tmp_path / "inputs.npz", source_vectors=sides[0], target_vectors=sides[1], matrix=matrix.numpy())
    expected = run_peer("wechsel", WECHSEL, tmp_path)
    # The package takes special tokens for neighbours too, and copies nothing but special tokens.
    spaces = [TokenVectors.of(side, np.arange(len(side)), len(side)) for side in sides]
    plan = wechsel_plan(inputs, *spaces)
    rows = rows_of(inputs, plan, matrix).numpy()
    same = plan.origins == Origin.COMBINED
    assert same.sum() > 300
    print(f"largest difference from wechsel: {np.abs(rows - expected)[same].max():.2e} over {same.sum()} rows")
    np.testing.assert_allclose(rows[same], expected[same], atol=2e-6)
    # As published: tokens of text that both have are combined like all others.
    published = rows_of(inputs, wechsel_plan(inputs.without_copies(), *spaces), matrix).numpy()
    text = inputs.target.is_text
    assert text.sum() > 1000
    np.testing.assert_allclose(published[text], expected[text], atol=2e-6)


@pytest.mark.peer
def test_sava_adam_equals_latentis(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((300, 12)).astype(np.float32) * 2 + 1
    y = (x @ generator.standard_normal((12, 20)) + generator.standard_normal((300, 20))).astype(np.float32)
    new = generator.standard_normal((50, 12)).astype(np.float32) * 2 + 1
    np.savez(tmp_path / "inputs.npz", x=x, y=y, new=new)
    expected = run_peer("latentis", LATENTIS, tmp_path)
    for fit, least in (("adam", 0.9999), ("least-squares", 0.99)):
        rows = fit_map(x, y, fit=fit, seed=42)(new)  # type: ignore[arg-type]
        cosine = np.mean([cosines(a, b[None])[0] for a, b in zip(rows, expected)])
        print(f"{fit} and latentis: mean cosine {cosine:.6f}, largest difference {np.abs(rows - expected).max():.2e}")
        assert cosine > least


@pytest.mark.peer
def test_focus_equals_deepfocus(tmp_path: Path, slovene: str) -> None:
    # Without byte tokens: deepfocus takes all bytes that are not text for one token.
    source = sentencepiece_like(demo_text("en") + slovene, num_tokens=1200, byte_fallback=False)
    target = sentencepiece_like(slovene, num_tokens=1500, byte_fallback=False)
    inputs = prepare(source, target)
    vectors, matrix = random_vectors(inputs), matrix_for(inputs)
    source.save_pretrained(str(tmp_path / "source"))
    target.save_pretrained(str(tmp_path / "target"))
    known = np.flatnonzero(vectors.is_known)
    np.savez(tmp_path / "inputs.npz", ids=known, vectors=vectors.rows(known)[:], matrix=matrix.numpy())
    expected = run_peer("deepfocus", DEEPFOCUS, tmp_path)
    plan = focus_plan(inputs, vectors)
    rows = rows_of(inputs, plan, matrix).numpy()
    same = np.isin(plan.origins, (Origin.COPIED, Origin.SPECIAL, Origin.COMBINED))
    assert (plan.origins == Origin.COMBINED).sum() > 300
    print(f"largest difference from deepfocus: {np.abs(rows - expected)[same].max():.2e} over {same.sum()} rows")
    np.testing.assert_allclose(rows[same], expected[same], atol=2e-6)  # both sum float32 products of weights near 0.1
