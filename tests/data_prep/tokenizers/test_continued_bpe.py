"""Merges that go on from an old tokenizer's, against plain recounting and the library itself."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from tokenizers import Tokenizer

from data_prep.tokenizers.continued_bpe import continue_merges
from data_prep.tokenizers.extension import merge_pairs
from tests.conversion.embedding_fixtures import byte_level, demo_text, sentencepiece_like, unigram

ENGLISH, SLOVENE = demo_text("en")[:40_000], demo_text("sl")[:12_000].splitlines()
NUM_NEW = 60


def description_of(tokenizer: Any) -> dict[str, Any]:
    return json.loads(tokenizer.backend_tokenizer.to_str())


def plain_tokens(description: dict[str, Any], sentences: list[str], num_new: int) -> list[str]:
    """All words cut again by the library after each merge, all pairs counted again."""
    tokens: list[str] = []
    current = json.loads(json.dumps(description))
    words = Counter(
        word for sentence in sentences for word, _ in Tokenizer.from_str(json.dumps(description)).pre_tokenizer.pre_tokenize_str(sentence)
    )
    while len(tokens) < num_new:
        model = Tokenizer.from_str(json.dumps(current)).model
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            pieces = [token.value for token in model.tokenize(word)]
            for pair in zip(pieces, pieces[1:]):
                pairs[pair] += count
        best = min((-count, pair) for pair, count in pairs.items() if "".join(pair) not in current["model"]["vocab"])[1]
        tokens.append("".join(best))
        current["model"]["vocab"][tokens[-1]] = len(current["model"]["vocab"])
        current["model"]["merges"].append(list(best))
    return tokens


def test_tokens_are_those_of_plain_recounting() -> None:
    description = description_of(byte_level(ENGLISH, num_tokens=400))
    extension = continue_merges(description, SLOVENE, NUM_NEW)
    assert list(extension.tokens) == plain_tokens(description, SLOVENE, NUM_NEW)


@pytest.mark.parametrize("kind", [byte_level, sentencepiece_like])
def test_every_token_is_reached_and_old_text_stays(kind: Any) -> None:
    source = kind(ENGLISH, num_tokens=400)
    description = description_of(source)
    extension = continue_merges(description, SLOVENE, NUM_NEW)
    assert len(set(extension.tokens)) == len(extension.tokens) == NUM_NEW
    new = Tokenizer.from_str(json.dumps(extension.description))
    for place, token in enumerate(extension.tokens):
        assert [piece.id for piece in new.model.tokenize(token)] == [extension.first_id + place], token
    assert merge_pairs(extension.description["model"])[: len(description["model"]["merges"])] == merge_pairs(description["model"])
    num_same = 0
    for line in ENGLISH.splitlines() + SLOVENE:
        before, after = source.backend_tokenizer.encode(line).ids, new.encode(line).ids
        if max(after, default=0) < extension.first_id:
            assert after == before
            num_same += 1
    assert num_same > 20
    used = {i for line in SLOVENE for i in new.encode(line).ids}
    assert sum(extension.first_id + place not in used for place in range(NUM_NEW)) == extension.num_intermediate


def test_a_token_that_is_there_already_gets_no_second_merge() -> None:
    """With a merge of its own, `ab` + `c` would give the old token `abc` where the old tokenizer gives two."""
    source = byte_level("bc " * 3 + "abc " * 2, num_tokens=400)
    description = description_of(source)
    model = description["model"]
    assert merge_pairs(model)
    description["model"]["merges"] = [["b", "c"], ["a", "bc"], ["a", "b"]]
    description["model"]["vocab"] = {t: i for t, i in model["vocab"].items() if len(t) == 1 or t.startswith("<")}
    for token in ("bc", "abc", "ab", "abd"):
        description["model"]["vocab"][token] = max(description["model"]["vocab"].values()) + 1
    extension = continue_merges(description, ["abd abd abd abdx abdx"], 2)
    assert "abd" not in extension.tokens and ["ab", "d"] not in extension.description["model"]["merges"]


def test_refused() -> None:
    with pytest.raises(ValueError, match="goes on from the source's merges, but its tokenizer is Unigram, which has none; take auxiliary"):
        continue_merges(description_of(unigram(ENGLISH, num_tokens=400)), SLOVENE, 5)
    with pytest.raises(ValueError, match=r"50 new tokens are wanted, but the text has only [0-9]+ more pairs of tokens that occur twice"):
        continue_merges(description_of(byte_level(ENGLISH, num_tokens=400)), ["kako lepo", "kako lepo"], 50)
