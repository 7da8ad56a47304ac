"""Spans of labels as seqeval finds them, and words in pieces of their own."""

from __future__ import annotations

import random

import pytest

from data_prep.tokenizers.frame import frame_of
from eval.protocols.zero_shot import f1_of_counts, span_counts, spans, word_counts
from eval.tuning.word_pieces import WordCutter
from tests.conversion.embedding_fixtures import byte_level, demo_text, unigram

_LABELS = (
    "O", "B-PER", "I-PER", "B-LOC", "I-LOC", "E-LOC", "S-ORG", "X", "SYM", ".", "NOUN", "SCONJ", "CCONJ", "I-X-Y", "B",
)  # fmt: skip
# f1_score of seqeval 1.2.2 on the labels that `_drawn` draws from the seed, to the last digit.
_OF_SEQEVAL = {
    0: 0.6382978723404256,
    1: 0.7346938775510204,
    2: 0.5714285714285715,
    3: 0.5862068965517241,
    4: 0.8076923076923077,
    5: 0.46511627906976744,
    6: 0.5106382978723404,
    7: 0.6956521739130435,
}


def _drawn(seed: int) -> tuple[list[list[str]], list[list[str]]]:
    draw = random.Random(seed)
    gold = [[draw.choice(_LABELS) for _ in range(draw.randint(1, 9))] for _ in range(6)]
    return gold, [[draw.choice(_LABELS) if draw.random() < 0.4 else label for label in labels] for labels in gold]


def _f1(gold: list[list[str]], predicted: list[list[str]]) -> float:
    return float(f1_of_counts(span_counts(gold, predicted).sum(axis=0)[None])[0])


@pytest.mark.parametrize("seed", _OF_SEQEVAL)
def test_f1_is_that_of_seqeval(seed: int) -> None:
    assert _f1(*_drawn(seed)) == pytest.approx(_OF_SEQEVAL[seed], abs=1e-12)


def test_spans_by_hand() -> None:
    """A span without B begins all the same; another kind ends one; equal parts of speech in a row are one."""
    names = ["B-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-ORG"]
    assert spans([names]) == [{("PER", 0, 1), ("LOC", 3, 3), ("LOC", 4, 4), ("ORG", 5, 5)}]
    assert spans([["NOUN", "NOUN", "VERB"], ["SCONJ"]]) == [{("OUN", 0, 1), ("ERB", 2, 2)}, {("CONJ", 4, 4)}]
    gold, predicted = [names, ["O"]], [["B-PER", "O", "O", "I-LOC", "B-LOC", "O"], ["B-LOC"]]
    assert span_counts(gold, predicted).tolist() == [[2, 3, 4], [0, 1, 0]]
    assert _f1(gold, predicted) == pytest.approx(2 * 2 / (4 + 4))
    assert word_counts(gold, predicted).tolist() == [[4, 6], [0, 1]]
    assert _f1([["O"]], [["O"]]) == 0.0
    with pytest.raises(ValueError, match="sentence 1 has 1 words and 2 predicted labels"):
        span_counts([["O"]], [["O", "O"]])


@pytest.mark.parametrize("make", [byte_level, unigram])
def test_each_word_has_pieces_of_its_own(make) -> None:
    """Together they are the text as it is written, and the first piece of each stands at its place."""
    tokenizer = make(demo_text("sl"), num_tokens=400)
    words = ["Zjutraj", "je", "megla", "Žlahtnost", ",", "zares", "."]
    cutter = WordCutter(tokenizer, max_tokens=64)
    (passage,) = cutter.passages([words])
    assert list(passage.token_ids) == tokenizer(" ".join(words), add_special_tokens=False)["input_ids"]
    ends = (*passage.places[1:], len(passage.token_ids))
    assert [tokenizer.decode(passage.token_ids[a:b]).strip() for a, b in zip(passage.places, ends)] == words


def test_long_sentences_are_cut_between_words_and_long_words_lose_their_end() -> None:
    tokenizer = byte_level(demo_text("sl"), num_tokens=400)
    words = ["je", "Žlahtnost" * 9, *("in",) * 20]
    whole = WordCutter(tokenizer, max_tokens=512).passages([words])[0]
    cutter = WordCutter(tokenizer, max_tokens=10)
    passages = cutter.passages([words, ["je"]])
    assert (cutter.cut_sentences, cutter.cut_words) == (1, 1)
    assert [p.sentence for p in passages] == [0] * (len(passages) - 1) + [1] and max(len(p.token_ids) for p in passages) == 10
    seen = [(p.first_word + index, p.token_ids[place]) for p in passages[:-1] for index, place in enumerate(p.places)]
    assert [word for word, _ in seen] == list(range(len(words))), "each word once, in order"
    assert [first for _, first in seen] == [whole.token_ids[place] for place in whole.places]


def test_a_frame_that_leaves_no_place_is_refused() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = byte_level(demo_text("en"), num_tokens=300, specials={"bos": "<s>", "eos": "</s>"})
    ids = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<s>", "</s>")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=ids)
    assert (frame_of(tokenizer).front, frame_of(tokenizer).back) == ((ids[0][1],), (ids[1][1],))
    with pytest.raises(ValueError, match=r"^passages of 2 tokens leave no room for a word between 2 special tokens$"):
        WordCutter(tokenizer, max_tokens=2)
