"""Every method against plain code, on vocabularies drawn at random; and what the published code does otherwise."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.linalg import orthogonal_procrustes

from conversion.embeddings import METHODS
from conversion.embeddings.methods.affine_maps import fit_map
from conversion.embeddings.methods.merge import alignment_weights
from conversion.embeddings.methods.method import TransferInputs
from conversion.embeddings.methods.row_plan import Origin
from conversion.embeddings.methods.words import word_alignment
from tests.conversion.embedding_fixtures import byte_level, sentencepiece_like
from tests.conversion.embeddings.test_embeddings_methods import (
    HELPER_SIZE,
    QUICK_METHODS,
    SIZE,
    cosines,
    inputs_of_abc,
    matrix_for,
    plain_pooling,
    plain_sparsemax,
    prepare,
    rows_of,
    word_vectors,
)
from tests.refusals import refused

Rows = dict[int, np.ndarray]


class World:
    """Two random vocabularies and the matrix of the source, with what the plain code below needs of them."""

    def __init__(self, seed: int, *, num_source: int, num_target: int) -> None:
        generator = np.random.default_rng(seed)
        words = ["".join(generator.choice(list("abcčšž"), size=generator.integers(1, 7))) for _ in range(150)]
        self.text = " ".join(generator.choice(words[50:], size=600))
        source = byte_level(" ".join(words[:100]), num_tokens=num_source)
        target = sentencepiece_like(self.text, num_tokens=num_target)
        vectors = word_vectors(" ".join(words))
        rotation, _ = np.linalg.qr(generator.standard_normal((vectors.vectors.shape[1],) * 2))
        lines = [" ".join(words[i : i + 6]) for i in range(0, 150, 6)] * 4
        self.inputs = replace(
            prepare(source, target, text=self.text.replace(" ", "\n\n")),
            word_vectors=vectors,
            source_word_vectors=replace(vectors, vectors=vectors.vectors @ rotation.astype(np.float32)),
            dictionary=[(word, word) for word in words[::2]],
            parallel=[(line, line) for line in lines],
        )
        self.matrix = matrix_for(self.inputs, seed=seed)
        self.rows64 = self.matrix.double().numpy()
        by_bytes = {data: i for i, data in reversed(list(enumerate(self.inputs.source.token_bytes))) if data}
        texts = {i: data for i, data in enumerate(self.inputs.target.token_bytes) if data}
        self.shared = {i: by_bytes[data] for i, data in texts.items() if data in by_bytes}
        self.new = {i: data for i, data in texts.items() if data not in by_bytes}


def with_ngrams(world: World) -> TransferInputs:
    """The inputs with word vectors that have one for any word, as fastText's models of n-grams."""
    vectors = world.inputs.word_vectors
    assert vectors is not None
    size = vectors.vectors.shape[1]

    def of_any_word(word: str) -> np.ndarray | None:
        return None if "ž" in word else np.random.default_rng(list(word.encode())).standard_normal(size).astype(np.float32)

    world.inputs = replace(world.inputs, word_vectors=replace(vectors, of_any_word=of_any_word))
    return world.inputs


def plain_mean(world: World) -> Rows:
    pieces = {i: world.inputs.source.pieces(data) for i, data in world.new.items()}
    return {i: np.mean([world.rows64[piece] for piece in ids], axis=0) for i, ids in pieces.items() if ids}


def plain_merge(world: World) -> Rows:
    target = world.inputs.target
    ids = {token: i for i, token in enumerate(target.tokens)}

    def row(token: str) -> np.ndarray:
        if ids[token] in world.shared:
            return world.rows64[world.shared[ids[token]]]
        parts = [(row(a) + row(b)) / 2 for a, b in target.merges or () if a + b == token]
        return np.mean(parts, axis=0) if parts else plain_mean(world)[ids[token]]

    return {i: row(target.tokens[i] or "") for i in world.new}


def plain_align(world: World) -> Rows:
    inputs = world.inputs
    tuples: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
    for text in inputs.text or ():
        (target_ids,), (source_ids,) = inputs.tokenize([text]), inputs.tokenize_source([text])
        places = [n for n, i in enumerate(source_ids) for _ in inputs.source.token_bytes[i] or b""]
        assert len(places) == len(text.encode())
        position = 0
        for target_id in target_ids:
            length = len(inputs.target.token_bytes[target_id] or b"")
            touched = sorted(set(places[position : position + length]))
            tuples[target_id].append(tuple(source_ids[n] for n in touched))
            position += length
    merged = plain_merge(world)
    return {
        i: np.mean([np.mean(world.rows64[list(ids)], axis=0) for ids in tuples[i]], axis=0) if i in tuples else merged[i] for i in world.new
    }


def piece_means(world: World, side: str) -> Rows:
    encoder, vocabulary = world.inputs.encoder, getattr(world.inputs, side)
    assert encoder is not None
    pieces = {i: encoder.vocabulary.pieces(data) for i, data in enumerate(vocabulary.token_bytes) if data}
    return {i: np.mean(encoder.input_rows[ids].astype(np.float64), axis=0) for i, ids in pieces.items() if ids}


def plain_helper(world: World) -> Rows:
    assert world.inputs.helper is not None
    return dict(enumerate(world.inputs.helper.input_rows.astype(np.float64)))


def plain_focus(world: World, space: Rows) -> Rows:
    anchors = [i for i in world.shared if i in space]
    vectors, copied = np.array([space[i] for i in anchors]), world.rows64[[world.shared[i] for i in anchors]]
    return {i: plain_sparsemax(cosines(space[i], vectors)) @ copied for i in world.new if i in space}


def plain_wechsel(world: World, source: Rows, target: Rows) -> Rows:
    anchors = list(source)
    vectors, rows = np.array(list(source.values())), {}
    for i in world.new:
        if i not in target:
            continue
        similarities = cosines(target[i], vectors)
        order = np.argsort(-similarities)
        if similarities[order[9]] - similarities[order[10]] < 1e-5:
            continue  # a tie: either may be the tenth
        exponents = np.exp(similarities[order[:10]] / 0.1)
        rows[i] = exponents / exponents.sum() @ world.rows64[[anchors[n] for n in order[:10]]]
    return rows


def plain_words(world: World, method: str) -> Rows:
    inputs = world.inputs
    assert inputs.word_vectors is not None
    variants: list[Callable[[str], str]] = [str, lambda word: f" {word}"]
    if method == "ofa":
        variants += [str.capitalize, lambda word: f" {word.capitalize()}"]
    # With the rotation of the source's vectors undone both sides have the same words in one space.
    source, target = (
        plain_pooling(inputs.word_vectors, 0, lambda word: tokenize([word])[0], variants, method == "wechsel")  # noqa: B023
        for tokenize in (inputs.tokenize_source, inputs.tokenize)
    )
    text = {i: vector for i, vector in source.items() if inputs.source.token_bytes[i]}
    return plain_wechsel(world, text, target)


def plain_clp(world: World) -> Rows:
    helper, rows = plain_helper(world), {}
    anchors, copied = np.array([helper[i] for i in world.shared]), world.rows64[list(world.shared.values())]
    for i in world.new:
        similarities = cosines(helper[i], anchors)
        if abs(similarities.sum()) > 0.05 * np.abs(similarities).sum():  # else the division blows up every rounding
            rows[i] = similarities / similarities.sum() @ copied
    return rows


def plain_omp(world: World, *, raw: bool = False) -> Rows:
    helper = plain_helper(world)
    atoms, copied = np.array([helper[i] for i in world.shared]), world.rows64[list(world.shared.values())]
    compared = atoms if raw else atoms / np.linalg.norm(atoms, axis=1, keepdims=True)
    rows = {}
    for i in world.new:
        chosen: list[int] = []
        residual = helper[i]
        for _ in range(3):
            scores = np.abs(compared @ residual)
            best, second = np.sort(scores)[::-1][:2]
            chosen.append(int(np.argmax(scores)))
            if best - second < 1e-4 * best:
                break  # a tie, decided by rounding
            solution, *_ = np.linalg.lstsq(atoms[chosen].T, helper[i], rcond=None)
            residual = helper[i] - atoms[chosen].T @ solution
        else:
            rows[i] = solution @ copied[chosen]
    return rows


def plain_word_space(world: World) -> Rows:
    """The vector of each token's text, as a word."""
    vectors = world.inputs.word_vectors
    assert vectors is not None and vectors.of_any_word is not None
    texts = {i: (data or b"").decode(errors="replace").strip() for i, data in enumerate(world.inputs.target.token_bytes)}
    found = {i: vectors.of_any_word(text) for i, text in texts.items() if text and "\ufffd" not in text}
    return {i: np.array(vector, dtype=np.float64) for i, vector in found.items() if vector is not None}


def plain_sava(world: World, *, scaled: bool = True, pairs: Sequence[int] | None = None) -> Rows:
    helper, shared = plain_helper(world), list(world.shared) if pairs is None else pairs
    x, y = np.array([helper[i] for i in shared]), world.rows64[[world.shared[i] for i in shared]]
    new = np.array([helper[i] for i in world.new])

    def unit(rows: np.ndarray, like: np.ndarray) -> np.ndarray:
        if not scaled:
            return rows
        standard = (rows - like.mean(axis=0)) / like.std(axis=0, ddof=1)
        return standard / np.linalg.norm(standard, axis=1, keepdims=True)

    center = unit(x, x).mean(axis=0)
    inputs, outputs = unit(x, x) - center, unit(y, y)
    scale = np.square(inputs).sum() / inputs.shape[1]  # few pairs: the ridge that predicts best what it leaves out, on average
    ridges = np.geomspace(1e-6, 1e3, 46) * scale if len(x) < 10 * inputs.shape[1] else [0.0]
    inverses = [np.linalg.pinv(inputs.T @ inputs + ridge * np.eye(inputs.shape[1])) @ inputs.T for ridge in ridges]
    hats = [inputs @ inverse + 1 / len(x) for inverse in inverses]
    errors = [np.square(outputs - hat @ outputs).mean() / (1 - np.trace(hat) / len(x)) ** 2 for hat in hats]
    mapped = (unit(new, x) - center) @ inverses[int(np.argmin(errors))] @ outputs + outputs.mean(axis=0)
    if scaled:
        mapped *= np.linalg.norm((y - y.mean(axis=0)) / y.std(axis=0, ddof=1), axis=1).mean() * y.std(axis=0, ddof=1)
        mapped += y.mean(axis=0)
    return dict(zip(world.new, mapped))


REFERENCES: dict[str, Callable[[World], Rows]] = {
    "mean": plain_mean,
    "merge": plain_merge,
    "align": plain_align,
    "focus-words": lambda world: plain_focus(world, plain_word_space(world)),
    "focus-cse": lambda world: plain_focus(world, piece_means(world, "target")),
    "wechsel-cse": lambda world: plain_wechsel(world, piece_means(world, "source"), piece_means(world, "target")),
    "wechsel": lambda world: plain_words(world, "wechsel"),
    "ofa": lambda world: plain_words(world, "ofa"),
    "clp": plain_clp,
    "clp-plus": lambda world: plain_focus(world, plain_helper(world)),
    "sava": plain_sava,
    "sava-plain": lambda world: plain_sava(world, scaled=False),
    "omp": plain_omp,
}


@pytest.mark.parametrize("method", REFERENCES)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000), num_source=st.integers(300, 420), num_target=st.integers(60, 250))
def test_method_equals_plain_code_on_random_vocabularies(method: str, seed: int, num_source: int, num_target: int) -> None:
    world = World(seed, num_source=num_source, num_target=num_target)
    inputs = replace(world.inputs, num_atoms=3) if method == "omp" else world.inputs
    if method == "focus-words":
        inputs = with_ngrams(world)
    plan = METHODS[method].plan(inputs)
    rows = rows_of(inputs, plan, world.matrix).double().numpy()
    expected = REFERENCES[method](world)
    assert len(expected) > len(world.new) / 3
    for i, row in expected.items():
        # Similarities in float32 move weights by 1e-6; pooled words and the fitted rotation add theirs.
        np.testing.assert_allclose(rows[i], row, atol=5e-5 if method in ("clp", "wechsel", "ofa", "omp") else 5e-6, err_msg=method)


# ---- what holds for every method ----


@pytest.fixture(scope="module")
def world() -> World:
    return World(7, num_source=400, num_target=250)


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_two_threads_give_what_one_gives(world: World, method: str) -> None:
    threads = torch.get_num_threads()
    rows = []
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            rows.append(rows_of(world.inputs, METHODS[method].plan(world.inputs), world.matrix))
    finally:
        torch.set_num_threads(threads)
    # Products of similarities may be summed in another order; sums of rows never are.
    torch.testing.assert_close(rows[0], rows[1], atol=1e-5, rtol=1e-4)


# ---- planted ----


# ---- as published ----


def test_published_omp_compares_atoms_at_their_own_length(world: World) -> None:
    assert world.inputs.helper is not None
    lengths = np.random.default_rng(0).uniform(0.2, 5, (len(world.inputs.target), 1)).astype(np.float32)
    helper = replace(world.inputs.helper, input_rows=world.inputs.helper.input_rows * lengths)
    uneven = World.__new__(World)
    uneven.__dict__.update(world.__dict__, inputs=replace(world.inputs, helper=helper, num_atoms=3, as_published=True))
    rows = rows_of(uneven.inputs, METHODS["omp"].plan(uneven.inputs), world.matrix).double().numpy()
    expected, normalised = plain_omp(uneven, raw=True), plain_omp(uneven)
    assert len(expected) > 50
    for i, row in expected.items():
        np.testing.assert_allclose(rows[i], row, atol=5e-5)
    both = [i for i in expected if i in normalised]
    assert np.mean([not np.allclose(expected[i], normalised[i]) for i in both]) > 0.3


def test_published_omp_takes_as_many_atoms_as_there_are_dimensions(world: World) -> None:
    plan = METHODS["omp"].plan(replace(world.inputs, num_atoms=None, as_published=True))
    assert np.diff(plan.weights.indptr).max() == HELPER_SIZE
    plan = METHODS["omp"].plan(replace(world.inputs, num_atoms=None))
    assert np.diff(plan.weights.indptr).max() == 1


def test_sava_s_map_on_some_pairs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """SAVA, appendix B: "to ablate the number of tokens used to learn the mapping"; Figure 10 has two thousand and more."""
    monkeypatch.setattr("conversion.embeddings.methods.affine_maps._BLOCK_ROWS", 7)
    wanted: list[set[int]] = []
    known = sorted(world.shared)
    for number in (HELPER_SIZE - 1, 20):
        drawn = set(np.random.default_rng(world.inputs.seed).permutation(len(known))[:number])
        pairs = [i for place, i in enumerate(known) if place in drawn]
        wanted.append(set(pairs))
        inputs = replace(world.inputs, num_pairs=number)
        plan = METHODS["sava"].plan(inputs)
        few = [f"--method sava has {number} pairs for a map of {HELPER_SIZE} dimensions"] if number < HELPER_SIZE else []
        assert [warning.partition(",")[0] for warning in plan.warnings] == few
        rows = rows_of(inputs, plan, world.matrix).double().numpy()
        for i, row in plain_sava(world, pairs=pairs).items():
            np.testing.assert_allclose(rows[i], row, atol=1e-4)
        assert all(np.array_equal(rows[i], world.matrix[j].double().numpy()) for i, j in world.shared.items()), "all shared rows are copied"
    assert wanted[0] < wanted[1]
    for number in (1, len(known) + 1):
        with refused(f"--num-pairs is {number}; expected 2 to the {len(known)} shared tokens that the helper knows"):
            METHODS["sava"].plan(replace(world.inputs, num_pairs=number))


@pytest.mark.parametrize("method", ["wechsel", "wechsel-cse"])
def test_published_wechsel_combines_shared_tokens_too(world: World, method: str) -> None:
    """GaMS, equation 2 and the sentence before it: "between every pair x in V^t, y in V^s"."""
    plan = METHODS[method].plan(replace(world.inputs, as_published=True))
    counts = plan.counts()
    assert "copied" not in counts and counts["combined"] > len(world.new) and counts["special"]
    assert set(plan.origins[world.inputs.target.is_text]) <= {Origin.COMBINED, Origin.FALLBACK_RANDOM}


@pytest.mark.parametrize("method", ["wechsel", "ofa"])
def test_published_word_methods_count_a_word_once_for_each_spelling(world: World, method: str) -> None:
    """A list of words for every token, to which each spelling adds: as both packages are written."""
    words = world.inputs.word_vectors
    assert words is not None
    plain = replace(words, of_any_word=None)
    inputs = replace(world.inputs, as_published=True, word_vectors=plain, source_word_vectors=plain)
    spellings: list[Callable[[str], str]] = [str, lambda word: f" {word}"]
    if method == "ofa":
        spellings.append(lambda word: f" {word[0].upper()}{word[1:]}")
    lists: dict[int, list[int]] = {}
    for number, word in enumerate(words.words):
        for spelling in spellings:
            for token_id in set(inputs.tokenize([spelling(word)])[0]):
                lists.setdefault(token_id, []).append(number)
    assert any(len(numbers) > len(set(numbers)) < 20 for numbers in lists.values())
    found = plain.pooled(
        inputs.target,
        inputs.tokenize,
        variants=spellings,
        by_frequency=method == "wechsel",
        each_variant=True,
    )
    for token_id, numbers in lists.items():
        if not inputs.target.is_text[token_id]:
            continue
        weights = words.frequencies[numbers] if method == "wechsel" else np.ones(len(numbers))
        expected = weights / weights.sum() @ words.vectors[numbers].astype(np.float64)
        np.testing.assert_allclose(found.rows(np.array([token_id]))[0], expected, atol=1e-6)
    counted_once = METHODS[method].plan(replace(inputs, as_published=False)).weights
    assert abs(METHODS[method].plan(inputs).weights - counted_once).max() > 1e-3


def test_published_rotation_of_sava_scales_twice() -> None:
    """Outside columns and lengths, inside columns again: its code puts a whole translator where an aligner is asked for."""
    generator = np.random.default_rng(5)
    x = generator.standard_normal((60, 6)) @ generator.standard_normal((6, 6)) + 1.0
    y = (x @ np.linalg.qr(generator.standard_normal((6, 6)))[0] + 0.3 * generator.standard_normal((60, 6))) * np.linspace(0.2, 3, 6) - 2.0

    def columns(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return rows.mean(0), rows.std(0, ddof=1)

    (x_mean, x_std), (y_mean, y_std) = columns(x), columns(y)
    scaled_x, scaled_y = (x - x_mean) / x_std, (y - y_mean) / y_std
    length = np.linalg.norm(scaled_y, axis=1).mean()
    unit_x, unit_y = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (scaled_x, scaled_y))
    (inner_x_mean, inner_x_std), (inner_y_mean, inner_y_std) = columns(unit_x), columns(unit_y)
    inner_x, inner_y = (unit_x - inner_x_mean) / inner_x_std, (unit_y - inner_y_mean) / inner_y_std
    u, _, vt = np.linalg.svd(inner_x.T @ inner_y)
    expected = (inner_x @ (u @ vt) * inner_y_std + inner_y_mean) * length * y_std + y_mean
    np.testing.assert_allclose(fit_map(x, y, fit="ortho", seed=0)(x), expected, atol=1e-5)
    assert np.abs(fit_map(x, y, fit="procrustes", seed=0)(x) - expected).max() > 1e-2


def test_published_wechsel_repeats_pairs() -> None:
    vectors = word_vectors("ena Ena dva tri Tri štiri pet šest sedem osem devet deset enajst", size=4)
    other = replace(vectors, vectors=np.random.default_rng(0).standard_normal(vectors.vectors.shape).astype(np.float32))
    dictionary = [(word, word) for word in vectors.words if word.islower()]
    rows: Counter[tuple[str, str]] = Counter()
    for word, _ in dictionary:
        for one in (word, word.lower(), word.title()):
            for two in (word, word.lower(), word.title()):
                if one in vectors.words and two in vectors.words:
                    rows[one, two] += 1
    index = vectors.index
    pairs = [(index[one], index[two]) for (one, two), count in rows.items() for _ in range(count)]
    x, y = vectors.vectors[[a for a, _ in pairs]].astype(float), other.vectors[[b for _, b in pairs]].astype(float)
    np.testing.assert_allclose(word_alignment(vectors, other, dictionary, repeats=True), orthogonal_procrustes(x, y)[0], atol=1e-10)
    assert not np.allclose(word_alignment(vectors, other, dictionary), orthogonal_procrustes(x, y)[0])


def test_published_align_counts_characters_lines_and_whole_overlaps() -> None:
    inputs = replace(inputs_of_abc(), text=["abc", "bc bc\naab"], as_published=True)
    weights = alignment_weights(inputs, np.array([5, 6, 7])).toarray()
    # bc twice in a line counts once, as its last: "▁" is not a part of it; in "aab" only the first a is inside aa, ab reaches over it.
    np.testing.assert_allclose(weights[0], [0, 0, 0, 0.5, 0.5, 0, 0])
    np.testing.assert_allclose(weights[1], [0, 0, 0, 0, 0.5, 0.5, 0])
    np.testing.assert_allclose(weights[2], [0, 0, 1, 0, 0, 0, 0])


def test_published_focus_draws_what_it_cannot_combine(world: World) -> None:
    plan = METHODS["focus"].plan(replace(world.inputs, as_published=True))
    assert Origin.FALLBACK_MEAN not in set(plan.origins) and Origin.FALLBACK_RANDOM in set(plan.origins)


def test_published_trans_tokenization_translates_shared_tokens_too(world: World) -> None:
    plan = METHODS["trans-tokenization"].plan(replace(world.inputs, as_published=True))
    shared = np.array(list(world.shared))
    assert set(plan.origins[shared]) == {Origin.COMBINED}
    for i in shared:
        assert plan.weights[i, world.shared[int(i)]] > 0
    assert (np.diff(plan.weights.indptr)[shared] > 1).any()


def test_size_of_the_world(world: World) -> None:
    assert len(world.shared) > 60 and len(world.new) > 80 and world.matrix.shape[1] == SIZE
