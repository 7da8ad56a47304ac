"""Which tokens are hidden, behind what, and which recipes are refused for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recipes.rules.masking import MaskVocabulary, mask_sample, parts_of_sample, read_mask_vocabulary
from recipes.rules.schema import MaskingRecipe
from tests.conversion.embedding_fixtures import byte_level, demo_text, sentencepiece_like

BERT = MaskingRecipe()
SPECIALS = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}


def vocabulary(num_tokens: int = 1000, *, num_special: int = 5) -> MaskVocabulary:
    """Every third token begins a word; the last special one is the mask."""
    ids = np.arange(num_tokens)
    return MaskVocabulary(num_special - 1, ids >= num_special, ids % 3 == 0)


def sample(length: int = 40_000, seed: int = 3) -> np.ndarray:
    tokens = np.random.default_rng(seed).integers(5, 1000, size=length)
    tokens[::100] = 2  # ends of text
    return tokens


def test_shares_are_those_of_bert() -> None:
    tokens = sample()
    seen, chosen = mask_sample(tokens, vocabulary(), BERT, seed=1, number=7)
    assert np.array_equal(seen[~chosen], tokens[~chosen])
    assert not chosen[tokens == 2].any()
    assert chosen[tokens != 2].mean() == pytest.approx(0.15, abs=0.006)
    hidden, kept = seen[chosen] == 4, seen[chosen] == tokens[chosen]
    assert hidden.mean() == pytest.approx(0.8, abs=0.02)
    assert kept.mean() == pytest.approx(0.1, abs=0.015)
    assert (~hidden & ~kept).mean() == pytest.approx(0.1, abs=0.015)
    others = seen[chosen][~hidden & ~kept]
    assert others.min() >= 5, "special tokens stand in nobody's place"
    assert len(np.unique(others)) > 300


def test_seed_and_number_decide_and_nothing_else() -> None:
    tokens = sample(500)
    first = mask_sample(tokens, vocabulary(), BERT, seed=1, number=7)
    np.random.seed(9)
    again = mask_sample(tokens, vocabulary(), BERT, seed=1, number=7)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    for seed, number in ((2, 7), (1, 8)):
        assert not np.array_equal(mask_sample(tokens, vocabulary(), BERT, seed=seed, number=number)[1], first[1])


def test_whole_words_are_chosen_whole() -> None:
    tokens, words = sample(), replace(BERT, whole_words=True)
    _, chosen = mask_sample(tokens, vocabulary(), words, seed=1, number=0)
    continues = (tokens % 3 != 0) & (tokens >= 5)
    continues &= np.roll(tokens, 1) != 2  # nor does a word go on behind the end of a text
    continues[0] = False
    assert np.array_equal(chosen[continues], np.roll(chosen, 1)[continues])
    assert chosen[tokens != 2].mean() == pytest.approx(0.15, abs=0.01)
    _, single = mask_sample(tokens, vocabulary(), BERT, seed=1, number=0)
    assert not np.array_equal(single[continues], np.roll(single, 1)[continues])


def test_parts_cover_every_token_once() -> None:
    tokens = sample(1000)
    parts = parts_of_sample(tokens, vocabulary(), num_parts=7, number=3)
    assert np.array_equal(parts == -1, tokens == 2)
    sizes = np.bincount(parts[parts >= 0])
    assert len(sizes) == 7 and sizes.max() - sizes.min() <= 1
    alone = parts_of_sample(tokens, vocabulary(), num_parts=1000, number=3)
    assert np.bincount(alone[alone >= 0]).max() == 1
    assert not np.array_equal(parts, parts_of_sample(tokens, vocabulary(), num_parts=7, number=4))


@pytest.mark.parametrize("kind", [byte_level, sentencepiece_like])
def test_what_is_read_of_a_tokenizer(kind, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    tokenizer = kind(demo_text("sl")[:20_000], num_tokens=400, specials=SPECIALS)
    tokenizer.save_pretrained(str(tmp_path))
    found = read_mask_vocabulary(tmp_path)
    assert found.mask_id == tokenizer.mask_token_id
    assert set(np.flatnonzero(~found.is_ordinary)) == set(tokenizer.all_special_ids)
    text = "Mlinarjeva hči je naštela sedemnajst vreč."
    ids = tokenizer(f" {text}", add_special_tokens=False).input_ids
    assert found.begins_word[ids].sum() == len(text.split())
