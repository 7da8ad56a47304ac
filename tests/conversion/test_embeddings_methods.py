"""Each method against a plain implementation, and what must hold for all of them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse
from transformers import PreTrainedTokenizerFast

from conversion.embeddings import METHODS, READS_TEXT
from conversion.embeddings.focus import focus_plan
from conversion.embeddings.method import TransferInputs, VectorOptions
from conversion.embeddings.random_rows import random_rows, row_statistics
from conversion.embeddings.row_plan import Origin, RowPlan, make_rows, weighted_sums
from conversion.embeddings.sparse_weights import softmax_weights, sparsemax_of_sorted, sparsemax_weights
from conversion.embeddings.static_vectors import TokenVectors, train_token_vectors
from conversion.embeddings.vocabulary import Kind, Vocabulary
from conversion.embeddings.vocabulary_map import map_vocabulary
from tests.conversion.embedding_fixtures import byte_level, demo_text, permuted, sentencepiece_like, unigram, wordpiece

QUICK = VectorOptions(size=12, epochs=3, min_count=3)
SIZE = 10


def prepare(
    source: PreTrainedTokenizerFast, target: PreTrainedTokenizerFast, *, text: str | None = None, seed: int = 42, fallback: str = "mean"
) -> TransferInputs:
    source_vocabulary, target_vocabulary = Vocabulary.of(source), Vocabulary.of(target)
    return TransferInputs(
        source=source_vocabulary,
        target=target_vocabulary,
        overlap=map_vocabulary(source_vocabulary, target_vocabulary),
        seed=seed,
        tokenize=lambda texts: [encoding.ids for encoding in target.backend_tokenizer.encode_batch(texts, add_special_tokens=False)],
        text=text.split("\n\n") if text else None,
        vectors=QUICK,
        fallback=fallback,
    )


def rows_of(inputs: TransferInputs, plan: RowPlan, matrix: torch.Tensor, *, seed: int = 42, layer: str = "input") -> torch.Tensor:
    statistics = row_statistics(matrix, np.arange(len(inputs.source)))
    return make_rows(plan, matrix, keys=inputs.target.keys, statistics=statistics, seed=seed, layer=layer)


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
    return {name: method(pair) for name, method in METHODS.items()}


# ---- plain implementations ----


def plain_bpe(word: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    parts = list(word)
    while True:
        pairs = [(ranks[a, b], i) for i, (a, b) in enumerate(zip(parts, parts[1:])) if (a, b) in ranks]
        if not pairs:
            return parts
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def plain_sparsemax(values: np.ndarray) -> np.ndarray:
    """By bisection of the threshold, which shares no step with sorting."""
    low, high = values.min() - 1, values.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(values - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(values - high, 0)


def plain_focus(inputs: TransferInputs, vectors: TokenVectors, matrix: np.ndarray) -> dict[int, np.ndarray]:
    def vector(i: int) -> np.ndarray | None:
        return vectors.vectors[vectors.index[i]].astype(np.float64) if vectors.index[i] >= 0 else None

    bytes_to_source = {data: i for i, data in reversed(list(enumerate(inputs.source.token_bytes))) if data}
    shared = {i: bytes_to_source[data] for i, data in enumerate(inputs.target.token_bytes) if data in bytes_to_source}
    anchors = [i for i in shared if vector(i) is not None]
    rows = {}
    for i, data in enumerate(inputs.target.token_bytes):
        new = vector(i)
        if data is None or i in shared or new is None:
            continue
        similarities = np.array([new @ vector(a) / np.linalg.norm(new) / np.linalg.norm(vector(a)) for a in anchors])  # type: ignore[arg-type]
        weights = plain_sparsemax(similarities)
        rows[i] = sum(w * matrix[shared[a]].astype(np.float64) for w, a in zip(weights, anchors))
    return rows  # type: ignore[return-value]


# ---- methods ----


def test_mean_is_the_mean_of_naive_bpe_pieces(pair: TransferInputs, plans: dict[str, RowPlan], slovene: str) -> None:
    tokenizer = byte_level(demo_text("en"), num_tokens=900, specials={"bos": "</s>", "eos": "</s>", "pad": "<pad>"})
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    ranks = {tuple(merge): rank for rank, merge in enumerate(model["merges"])}
    alphabet = {bytes(data): token for data, token in zip(pair.source.token_bytes, pair.source.tokens) if data and len(data) == 1}
    matrix = matrix_for(pair)
    rows = rows_of(pair, plans["mean"], matrix)
    checked = 0
    for i in pair.new_ids:
        data = pair.target.token_bytes[i]
        pieces = plain_bpe("".join(alphabet[data[j : j + 1]] for j in range(len(data))), ranks)  # type: ignore[index, arg-type, misc]
        expected = np.mean([matrix[model["vocab"][piece]].double().numpy() for piece in pieces], axis=0)
        np.testing.assert_allclose(rows[i].double().numpy(), expected, atol=1e-6)  # float32 sums of a few values around 1
        checked += 1
    assert checked > 500


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000), num_source=st.integers(270, 420), num_target=st.integers(10, 300), share=st.sampled_from([0.3, 0.9, 1.0])
)
def test_focus_equals_a_plain_implementation(seed: int, num_source: int, num_target: int, share: float) -> None:
    generator = np.random.default_rng(seed)
    words = ["".join(generator.choice(list("abcčšž"), size=generator.integers(1, 7))) for _ in range(120)]
    source_text, target_text = " ".join(words[:80]), " ".join(words[40:])
    inputs = prepare(byte_level(source_text, num_tokens=num_source), sentencepiece_like(target_text, num_tokens=num_target))
    vectors = random_vectors(inputs, share=share, seed=seed)
    matrix = matrix_for(inputs, seed=seed)
    rows = rows_of(inputs, focus_plan(inputs, vectors), matrix)
    expected = plain_focus(inputs, vectors, matrix.numpy())
    for i, row in expected.items():
        np.testing.assert_allclose(rows[i].numpy(), row, atol=2e-6)  # similarities in float32 move the weights by 1e-7


def test_random_rows_are_normal_per_dimension(pair: TransferInputs) -> None:
    matrix = matrix_for(pair, padding=0).double()
    matrix[:, 3] = matrix[:, 3] * 10 + 5
    statistics = row_statistics(matrix, np.arange(len(matrix)))
    np.testing.assert_allclose(statistics.mean, matrix.numpy().mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(statistics.deviation, matrix.numpy().std(axis=0), atol=1e-12)
    rows = random_rows([str(i) for i in range(20_000)], statistics, seed=1, layer="input")
    standard = (rows - statistics.mean) / statistics.deviation
    assert np.abs(standard.mean(axis=0)).max() < 0.04 and np.abs(standard.std(axis=0) - 1).max() < 0.03  # five standard errors
    assert np.abs(np.corrcoef(standard.T) - np.eye(SIZE)).max() < 0.04
    whole = row_statistics(matrix, np.arange(len(matrix)), over="matrix")
    np.testing.assert_allclose(whole.mean, np.full(SIZE, matrix.numpy().mean()), atol=1e-12)
    np.testing.assert_allclose(whole.deviation, np.full(SIZE, matrix.numpy().std()), atol=1e-12)


def test_random_draws_what_is_new_and_nothing_else(pair: TransferInputs, plans: dict[str, RowPlan]) -> None:
    plan = plans["random"]
    assert set(np.flatnonzero(plan.is_drawn)) == set(np.flatnonzero(~pair.overlap.is_matched))
    assert set(plan.counts()) == {"copied", "special", "random"}


# ---- what holds for every method ----


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", [byte_level, sentencepiece_like, unigram, wordpiece], ids=lambda make: make.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_transfer_to_itself_copies_every_row(
    method: str, make: Callable[..., PreTrainedTokenizerFast], dtype: torch.dtype, slovene: str
) -> None:
    tokenizer = make(slovene, num_tokens=600)
    inputs = prepare(tokenizer, tokenizer, text=slovene if method in READS_TEXT else None)
    matrix = matrix_for(inputs, padding=7, dtype=dtype)
    matrix[3, 2] = -0.0
    rows = rows_of(inputs, METHODS[method](inputs), matrix)
    assert torch.equal(rows.view(torch.uint8), matrix[: len(rows)].contiguous().view(torch.uint8))


@pytest.mark.parametrize("method", METHODS)
def test_shared_rows_are_copied_bit_for_bit(pair: TransferInputs, plans: dict[str, RowPlan], method: str) -> None:
    matrix = matrix_for(pair, dtype=torch.bfloat16)
    rows = rows_of(pair, plans[method], matrix)
    shared = np.flatnonzero(pair.overlap.is_matched)
    assert len(shared) > 300
    assert torch.equal(rows[shared], matrix[pair.overlap.source_ids[shared]])


@pytest.mark.parametrize("method", METHODS)
def test_permuted_target_permutes_the_rows(slovene: str, method: str) -> None:
    source = byte_level(demo_text("en"), num_tokens=500)
    target = sentencepiece_like(slovene, num_tokens=500)
    order = np.random.default_rng(0).permutation(len(target))
    text = slovene if method in READS_TEXT else None
    one, other = prepare(source, target, text=text), prepare(source, permuted(target, order.tolist()), text=text)
    matrix = matrix_for(one)
    rows, permuted_rows = (rows_of(inputs, METHODS[method](inputs), matrix) for inputs in (one, other))
    if method == "focus":
        # A sum of the same float32 products in another order of anchors.
        torch.testing.assert_close(permuted_rows[order], rows, atol=1e-5, rtol=0)
    else:
        assert torch.equal(permuted_rows[order], rows)


@pytest.mark.parametrize("method", METHODS)
def test_no_row_is_empty_or_a_twin_of_another(pair: TransferInputs, plans: dict[str, RowPlan], method: str) -> None:
    matrix = matrix_for(pair)
    rows = rows_of(pair, plans[method], matrix)
    assert torch.isfinite(rows).all() and (rows.norm(dim=1) > 0).all()
    drawn = rows[np.flatnonzero(plans[method].is_drawn)]
    assert len(torch.unique(drawn, dim=0)) == len(drawn)


@pytest.mark.parametrize("method", METHODS)
def test_seed_alone_decides(pair: TransferInputs, plans: dict[str, RowPlan], method: str) -> None:
    matrix = matrix_for(pair)
    plan, again = plans[method], METHODS[method](pair)
    assert torch.equal(rows_of(pair, plan, matrix), rows_of(pair, again, matrix))
    np.testing.assert_array_equal(plan.weights.toarray(), again.weights.toarray())
    drawn = np.flatnonzero(plan.is_drawn)
    assert len(drawn)
    ours, others = rows_of(pair, plan, matrix), rows_of(pair, plan, matrix, seed=43)
    assert not torch.isclose(ours[drawn], others[drawn]).any()
    assert not torch.isclose(ours[drawn], rows_of(pair, plan, matrix, layer="output")[drawn]).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_half_precision_is_float32_rounded_once(pair: TransferInputs, plans: dict[str, RowPlan], method: str, dtype: torch.dtype) -> None:
    matrix = matrix_for(pair, dtype=dtype)
    rows = rows_of(pair, plans[method], matrix)
    assert rows.dtype == dtype
    assert torch.equal(rows, rows_of(pair, plans[method], matrix.float()).to(dtype))


@pytest.mark.parametrize("method", METHODS)
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
    weights = sparsemax_of_sorted(ordered[None])[0]
    np.testing.assert_allclose(weights, plain_sparsemax(ordered), atol=1e-9)
    assert abs(weights.sum() - 1) < 1e-9 and (weights >= 0).all()


def test_sparsemax_widens_until_the_support_is_inside() -> None:
    # 500 anchors that are almost alike: all of them belong to the support, far more than are looked at first.
    generator = np.random.default_rng(0)
    anchors = np.ones((500, 8)) + generator.standard_normal((500, 8)) * 1e-3
    weights = sparsemax_weights(np.ones((3, 8)), anchors)
    assert np.diff(weights.indptr).min() > 400
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-9)


def test_blocks_do_not_change_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    new, anchors = generator.standard_normal((37, 16)), generator.standard_normal((200, 16))
    for weigh in (sparsemax_weights, lambda a, b: softmax_weights(a, b, num_neighbors=10, temperature=0.1)):
        whole = weigh(new, anchors).toarray()
        for rows_at_once in (1, 7):
            monkeypatch.setattr("conversion.embeddings.sparse_weights._BLOCK_VALUES", rows_at_once * len(anchors))
            np.testing.assert_allclose(weigh(new, anchors).toarray(), whole, atol=1e-6)
            monkeypatch.undo()


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
    groups = [vectors.rows(np.array([inputs.target.tokens.index(f"▁{letter}") for letter in topic])) for topic in topics]
    one, other = (group / np.linalg.norm(group, axis=1, keepdims=True) for group in groups)
    assert (one @ one.T).mean() > (one @ other.T).mean() + 0.2


def test_size_of_the_text_decides_the_training() -> None:
    assert VectorOptions().for_text(20_000_000) == (300, 3, 10)
    assert VectorOptions().for_text(30_000) == (100, 20, 3)
    assert VectorOptions(768, 5, 2).for_text(30_000) == (768, 5, 2)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"size": 0}, "--vector-size is 0; expected at least 1"),
        ({"epochs": -1}, "--vector-epochs is -1; expected at least 1"),
        ({"min_count": 0}, "--vector-min-count is 0; expected at least 1"),
    ],
)
def test_impossible_training_is_refused(option: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError) as error:
        VectorOptions(**option)
    assert str(error.value) == message


def test_too_little_text_is_refused(pair: TransferInputs) -> None:
    with pytest.raises(ValueError) as error:
        train_token_vectors(prepare_like(pair, text=["a"]))
    num_tokens = len(pair.tokenize(["a"])[0])
    assert str(error.value) == (
        f"the text has {num_tokens} tokens, of which 0 are seen at least 3 times: too little to train vectors;"
        " give more --text or a lower --vector-min-count"
    )


def test_focus_without_anything_shared_is_refused() -> None:
    source = unigram("abc abc bca", num_tokens=40)
    target = sentencepiece_like("xyz xyz zyx", num_tokens=30, byte_fallback=False)
    inputs = prepare(source, target)
    ids = np.arange(len(inputs.target))
    nothing = prepare_like(inputs, overlap=type(inputs.overlap)(np.full(len(ids), -1), np.zeros(len(ids), dtype=np.uint8)))
    with pytest.raises(ValueError) as error:
        focus_plan(nothing, random_vectors(inputs))
    assert str(error.value) == (
        "source and target vocabulary share no token of text, so --method focus has nothing to combine; choose another method"
    )
    with pytest.raises(ValueError) as error:
        focus_plan(prepare(target, target), TokenVectors.of(np.zeros((0, 4), np.float32), np.array([], dtype=np.int64), len(target)))
    assert str(error.value) == (
        f"none of the {len(prepare(target, target).shared_ids)} tokens that both vocabularies have has a vector, so --method focus"
        " has nothing to combine; give more --text or choose another method"
    )


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


@pytest.mark.peer
def test_focus_equals_deepfocus(tmp_path: Path, slovene: str) -> None:
    python = os.environ.get("SCION_PEER_PYTHON")
    if not python:
        pytest.skip("SCION_PEER_PYTHON does not name a Python that has deepfocus 1.0.1 (docs/transfer.md says how to make one)")
    if subprocess.run([python, "-c", "import deepfocus"], capture_output=True, check=False).returncode:
        pytest.skip(f"{python} cannot import deepfocus")
    # Without byte tokens: deepfocus takes all bytes that are no text for one token.
    source = sentencepiece_like(demo_text("en") + slovene, num_tokens=1200, byte_fallback=False)
    target = sentencepiece_like(slovene, num_tokens=1500, byte_fallback=False)
    inputs = prepare(source, target)
    vectors, matrix = random_vectors(inputs), matrix_for(inputs)
    source.save_pretrained(str(tmp_path / "source"))
    target.save_pretrained(str(tmp_path / "target"))
    known = np.flatnonzero(vectors.is_known)
    np.savez(tmp_path / "inputs.npz", ids=known, vectors=vectors.rows(known), matrix=matrix.numpy())
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "USE_TORCH")}
    subprocess.run([python, "-c", DEEPFOCUS, str(tmp_path)], check=True, timeout=300, env=environment)
    expected = np.load(tmp_path / "rows.npy")
    plan = focus_plan(inputs, vectors)
    rows = rows_of(inputs, plan, matrix).numpy()
    same = np.isin(plan.origins, (Origin.COPIED, Origin.SPECIAL, Origin.COMBINED))
    assert (plan.origins == Origin.COMBINED).sum() > 300
    print(f"largest difference from deepfocus: {np.abs(rows - expected)[same].max():.2e} over {same.sum()} rows")
    np.testing.assert_allclose(rows[same], expected[same], atol=2e-6)  # both sum float32 products of weights near 0.1
