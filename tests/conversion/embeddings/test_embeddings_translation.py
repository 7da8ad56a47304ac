"""Trans-tokenization: words of translations are aligned, and their counts shared out over tokens."""

from __future__ import annotations

import gzip
import math
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import digamma

from conversion.embeddings import METHODS
from conversion.embeddings.methods.alignment_model import align_words
from conversion.embeddings.methods.method import TransferInputs
from conversion.embeddings.methods.row_plan import Origin
from conversion.embeddings.methods.translation import add_shares, translation_weights
from conversion.embeddings.parallel_text import ParallelText
from conversion.embeddings.vocabularies.vocabulary import Vocabulary
from conversion.embeddings.vocabularies.vocabulary_map import map_vocabulary
from tests.conversion.embedding_fixtures import CIPHER, byte_level, demo_text, sentencepiece_like, transfer_inputs, wordpiece
from tests.refusals import refused

# ---- the model ----


def plain_direction(given_side: list[list[int]], made_side: list[list[int]]) -> list[list[list[float]]]:
    """The same model word by word: probabilities [sentence][made place][given place]."""
    made_words = {word for sentence in made_side for word in sentence}
    size = max(made_words) + 1
    translation: defaultdict[tuple[int | None, int], float] = defaultdict(lambda: 1.0)
    posteriors: list[list[list[float]]] = []
    for _ in range(5):
        counts: Counter[tuple[int | None, int]] = Counter()
        posteriors = []
        for given_sentence, made_sentence in zip(given_side, made_side):
            m, n = len(given_sentence), len(made_sentence)
            rows = []
            for i, made in enumerate(made_sentence):
                places = [math.exp(-4 * abs((i + 1) / n - (j + 1) / m)) for j in range(m)]
                scores = [0.92 * place / sum(places) * translation[word, made] for place, word in zip(places, given_sentence)]
                none = 0.08 * translation[None, made]
                total = sum(scores) + none
                rows.append([score / total for score in scores])
                for word, probability in zip(given_sentence, rows[-1]):
                    counts[word, made] += probability  # type: ignore[assignment]
                counts[None, made] += none / total  # type: ignore[assignment]
            posteriors.append(rows)
        totals: Counter[int | None] = Counter()
        for pair, count in counts.items():
            totals[pair[0]] += count  # type: ignore[assignment]
        for pair, count in counts.items():
            translation[pair] = math.exp(digamma(count + 0.01) - digamma(totals[pair[0]] + 0.01 * size))
    return posteriors


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), num_sentences=st.integers(1, 8))
def test_alignment_equals_a_plain_implementation(seed: int, num_sentences: int) -> None:
    generator = np.random.default_rng(seed)
    source, target = ([generator.integers(0, 6, generator.integers(1, 6)).tolist() for _ in range(num_sentences)] for _ in range(2))
    aligned = align_words([np.array(words) for words in source], [np.array(words) for words in target])
    one_way, other_way = plain_direction(source, target), plain_direction(target, source)
    expected = [
        one_way[s][i][j] * other_way[s][j][i] for s in range(num_sentences) for i in range(len(target[s])) for j in range(len(source[s]))
    ]
    np.testing.assert_allclose(aligned.probabilities, expected, atol=1e-10)


def test_alignment_of_nothing() -> None:
    assert len(align_words([], []).probabilities) == 0
    empty = np.array([], dtype=np.int64)
    assert len(align_words([empty, np.array([1])], [np.array([0, 2]), empty]).probabilities) == 0


# ---- counts of words to counts of tokens ----


def test_counts_are_shared_out_evenly_and_in_order() -> None:
    shares: defaultdict[tuple[int, int], float] = defaultdict(float)
    add_shares(shares, (7, 8), (1, 2), 4.0)
    assert shares == {(7, 1): 3.0, (7, 2): 1.0, (8, 1): 1.0, (8, 2): 3.0}
    shares.clear()
    add_shares(shares, (7,), (1, 2, 3), 6.0)
    assert shares == pytest.approx({(7, 1): 2.0, (7, 2): 2.0, (7, 3): 2.0})
    shares.clear()
    add_shares(shares, (7, 8), (1, 2, 1), 6.0)  # 1 is the first and the last third; 2 is half in the first half
    assert shares == pytest.approx({(7, 1): 4.0, (7, 2): 2.0, (8, 1): 4.0, (8, 2): 2.0})


# ---- the method ----


@pytest.fixture(scope="module")
def inputs() -> TransferInputs:
    """Sentences of the demo's text and the same under a cipher: every word has its one translation."""
    slovene = demo_text("sl")
    sentences = [line for line in slovene.split("\n") if line.strip()]
    source, target = byte_level(slovene.translate(CIPHER), num_tokens=700), sentencepiece_like(slovene, num_tokens=700)
    return transfer_inputs(source, target, parallel=[(sentence.translate(CIPHER), sentence) for sentence in sentences])


def test_new_tokens_take_the_rows_of_their_translations(inputs: TransferInputs) -> None:
    plan = METHODS["trans-tokenization"].plan(inputs)
    source_ids = {data: i for i, data in enumerate(inputs.source.token_bytes) if data}
    hits = total = 0
    for i in np.flatnonzero(plan.origins == Origin.COMBINED):
        translation = source_ids.get((inputs.target.token_bytes[i] or b"").decode(errors="replace").translate(CIPHER).encode())
        if translation is None or len(inputs.target.token_bytes[i] or b"") < 4:
            continue
        total += 1
        row = plan.weights[i]
        hits += row.indices[row.data.argmax()] == translation
    assert total > 100 and hits > 0.75 * total
    np.testing.assert_allclose(plan.weights[plan.origins == Origin.COMBINED].sum(axis=1), 1, atol=1e-12)


def test_order_of_sentences_does_not_matter(inputs: TransferInputs) -> None:
    pairs = list(inputs.parallel or ())
    one, other = (translation_weights(replace(inputs, parallel=order)) for order in (pairs, pairs[::-1]))
    np.testing.assert_allclose(one.toarray(), other.toarray(), atol=1e-9)


def test_words_that_tokens_do_not_spell_are_cut_alone(inputs: TransferInputs) -> None:
    """WordPiece forgets spaces before punctuation and has no token for some letters; its words align all the same."""
    tokenizer = wordpiece(demo_text("sl").translate(CIPHER).lower(), num_tokens=700)
    tokens = Vocabulary.of(tokenizer)
    changed = replace(
        inputs,
        source=tokens,
        overlap=map_vocabulary(tokens, inputs.target),
        tokenize_source=lambda texts: [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts],
    )
    weights = translation_weights(changed)
    target_id = inputs.target.tokens.index("▁mama")
    best = weights[target_id].indices[weights[target_id].data.argmax()]
    assert tokens.tokens[best] == "mama".translate(CIPHER)


def test_too_little_parallel_text_is_refused(inputs: TransferInputs) -> None:
    with refused(
        "the parallel text has 1 pairs of sentences, in which no two words align at least 1 times;"
        " give more --parallel text, with the source's language first"
    ):
        METHODS["trans-tokenization"].plan(replace(inputs, parallel=[("besede", "words")]))


# ---- files ----


def test_parallel_text_from_files(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("Good day.\tDober dan.\n\nYes\tDa\nNo\t \n", encoding="utf-8")
    assert list(ParallelText(tmp_path / "a.tsv")) == [("Good day.", "Dober dan."), ("Yes", "Da")]
    with gzip.open(tmp_path / "b.tsv.gz", "wt", encoding="utf-8") as stream:
        stream.write("page\tsl\ten\n1\tDa\tYes\n")
    table = ParallelText(tmp_path / "b.tsv.gz", ("en", "sl"))
    assert list(table) == list(table) == [("Yes", "Da")]


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        (
            "c.tsv",
            "Yes\tDa\nNo\n",
            None,
            "{path}, line 2 has 1 columns; expected 2 with tabs between (for more columns than two, name them in the first line and with"
            " --parallel-columns)",
        ),
        ("d.tsv", "en\tsl\nYes\n", ("en", "sl"), "{path}, line 2 has 1 columns; expected 2 with tabs between"),
        ("e.tsv", "en\tsl\nYes\tDa\n", ("en", "it"), "{path} has no column 'it', only 'en', 'sl'; name two with --parallel-columns"),
        ("f.tsv", "\t\n", None, "there is no pair of sentences in {path}; give a file with text"),
        (
            "g.csv",
            "",
            None,
            "the parallel text {path} is of an unknown kind; expected a name ending in .tsv, .txt, .tsv.gz, .txt.gz",
        ),
    ],
)
def test_bad_parallel_text_is_refused(tmp_path: Path, name: str, content: str, columns: tuple[str, str] | None, message: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with refused(message.format(path=path)):
        list(ParallelText(path, columns))


# ---- real translations ----
