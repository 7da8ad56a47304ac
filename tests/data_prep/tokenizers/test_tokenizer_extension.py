"""New tokens are reached by the real tokenizers, old ids stay, and old text changes only where a new token applies."""

from __future__ import annotations

import json
import re
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models
from transformers import PreTrainedTokenizerFast

from data_prep.mixing.sentences import sample_sentences, sentences
from data_prep.tokenizers.auxiliary import train_candidates
from data_prep.tokenizers.continued_bpe import continue_merges
from data_prep.tokenizers.extension import (
    Candidate,
    Extension,
    candidates_of,
    extend_tokenizer,
    fits_a_word,
    joined,
    joining_steps,
    next_id,
)
from data_prep.tokenizers.pruning import prune_tokenizer
from tests.conversion.embedding_fixtures import byte_level, demo_text, sentencepiece_like, unigram, wordpiece
from tests.data_prep.packed import refusal

KINDS = {"byte-level": byte_level, "marked": sentencepiece_like, "unigram": unigram, "wordpiece": wordpiece}


@cache
def source(kind: str) -> PreTrainedTokenizerFast:
    return KINDS[kind](demo_text("en"), num_tokens=900)


def description(tokenizer: PreTrainedTokenizerFast) -> dict:
    return json.loads(tokenizer.backend_tokenizer.to_str())


@cache
def candidates(kind: str) -> tuple[Candidate, ...]:
    return tuple(train_candidates(description(source(kind)), sentences([demo_text("sl")])))


def extended(kind: str, num_new: int | None = 300) -> tuple[Extension, Tokenizer]:
    extension = extend_tokenizer(description(source(kind)), candidates(kind), num_new, fits=fits_a_word(source(kind).backend_tokenizer))
    return extension, Tokenizer.from_str(json.dumps(extension.description))


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", KINDS)
def test_every_new_token_is_reached_and_no_old_one_moves(kind: str) -> None:
    extension, new = extended(kind)
    old = source(kind).backend_tokenizer
    assert len(extension.tokens) == 300 and extension.first_id == old.get_vocab_size()
    for place, token in enumerate(extension.tokens):
        assert [piece.id for piece in new.model.tokenize(token)] == [extension.first_id + place]
    for token, token_id in old.get_vocab().items():
        assert new.token_to_id(token) == token_id
    if kind != "unigram":  # there a better cut may show up for a rare old token
        reached = [t for t, i in old.get_vocab(with_added_tokens=False).items() if [p.id for p in old.model.tokenize(t)] == [i]]
        assert all([p.id for p in new.model.tokenize(t)] == [old.token_to_id(t)] for t in reached)


@pytest.mark.parametrize("kind", KINDS)
def test_new_tokens_shorten_the_new_language_and_text_survives(kind: str) -> None:
    extension, new = extended(kind)
    old = source(kind).backend_tokenizer
    slovene, english = (demo_text(language)[-3000:] for language in ("sl", "en"))
    assert len(ids_of(new, slovene)) < 0.8 * len(ids_of(old, slovene))
    assert len({i for i in ids_of(new, demo_text("sl")) if i >= extension.first_id}) > 0.9 * 300
    for text in (slovene, english):
        if kind != "wordpiece":
            assert new.decode(ids_of(new, text)) == old.decode(ids_of(old, text))
    for line in english.splitlines():
        if not any(i >= extension.first_id for i in ids_of(new, line)):
            assert ids_of(new, line) == ids_of(old, line)


@pytest.mark.parametrize("kind", ["marked", "unigram"])
@pytest.mark.parametrize("apart", [True, False])
def test_numbers_are_cut_as_the_source_cuts_them(kind: str, apart: bool) -> None:
    """A source that keeps digits apart gets no token such as `▁1` or `19`, which would be in the numbers of every language."""
    years = [f"Leta {1800 + i % 200} je bilo {i % 30} dni." for i in range(2000)]
    old = description(KINDS[kind](re.sub(r"\d", "", demo_text("en")), num_tokens=700))
    numbers = [*"0123456789", *([] if apart else ["▁1"])]
    if kind == "unigram":
        old["model"]["vocab"] += [[number, -5.0] for number in numbers]
    else:
        old["model"]["vocab"] |= {number: next_id(old) + place for place, number in enumerate(numbers)}
    text = [*demo_text("sl").splitlines(), *years]
    found = [extend_tokenizer(old, train_candidates(old, text), None, fits=fits_a_word(Tokenizer.from_str(json.dumps(old))))]
    found += [continue_merges(old, text, 300)] if kind == "marked" else []
    for extension in found:
        assert any(re.search(".[0-9]|[0-9].", token) for token in extension.tokens) != apart, extension.tokens


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_text_gives_the_same_tokens(kind: str) -> None:
    again = train_candidates(description(source(kind)), sentences([demo_text("sl")]))
    assert tuple(again) == candidates(kind)


def test_more_tokens_than_there_are() -> None:
    few = [Candidate(b" dan"), Candidate(b" the"), Candidate(b" dane")]
    assert refusal(extend_tokenizer, description(source("byte-level")), few, 9) == (
        "9 new tokens are wanted, but the auxiliary tokenizer has only 2 that the source tokenizer lacks; give more text or ask for fewer"
    )


def bpe(vocabulary: list[str], merges: list[tuple[str, str]]) -> dict:
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=merges))
    return json.loads(tokenizer.to_str()) | {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}}


def test_steps_across_old_merges() -> None:
    """`abc` as (a, bc) would never be reached where the old rules join a and b first."""
    old = bpe(["a", "b", "c", "d", "ab"], [("a", "b")])
    extension = extend_tokenizer(old, [Candidate(b"bc"), Candidate(b"abc"), Candidate(b"abcd")], None)
    assert extension.tokens == ("bc", "abc", "abcd") and extension.num_intermediate == 0
    assert extension.description["model"]["merges"] == [["a", "b"], ["b", "c"], ["ab", "c"], ["abc", "d"]]
    longer = extend_tokenizer(old, [Candidate(b"abcd")], None)
    assert longer.tokens == ("abc", "abcd") and longer.num_intermediate == 1
    # Both must fit: the last place is left to a token that needs only one.
    tight = extend_tokenizer(old, [Candidate(b"abcd"), Candidate(b"cd")], 1)
    assert tight.tokens == ("cd",)
    # A token on the way that is there, or wanted anyway, goes before another.
    detour = bpe(["a", "b", "c", "bc"], [])
    assert extend_tokenizer(detour, [Candidate(b"abc")], None).description["model"]["merges"] == [["b", "c"], ["a", "bc"]]
    wanted = bpe(["a", "b", "c"], [])
    assert extend_tokenizer(wanted, [Candidate(b"abc"), Candidate(b"bc")], None).tokens == ("bc", "abc")


def test_excluded_tokens_do_not_come_as_steps_to_others() -> None:
    old = bpe(["▁", "a", "b", "c"], [])
    candidates = [Candidate(b"abc"), Candidate(b"ab"), Candidate(b"ca")]
    assert extend_tokenizer(old, candidates, None).tokens == ("ab", "abc", "ca")
    assert extend_tokenizer(old, candidates, None, excluded={"ab", "bc"}).tokens == ("ca",)
    text = ["abc"] * 9 + ["ca"] * 3
    assert continue_merges(old, text, 1, excluded={"▁a", "▁c", "ab", "bc"}).tokens == ("ca",)


def test_unknown_letters_become_tokens() -> None:
    old = bpe(["a", "b"], [])
    extension = extend_tokenizer(old, [Candidate("ačb".encode())], None)
    assert extension.tokens == ("č", "ač", "ačb")
    new = Tokenizer.from_str(json.dumps(extension.description))
    assert new.encode("ačb").tokens == ["ačb"] and new.encode("č").tokens == ["č"]


@pytest.mark.parametrize("kind", KINDS)
def test_added_tokens_beyond_the_vocabulary_keep_their_ids(kind: str) -> None:
    tokenizer = KINDS[kind](demo_text("en"), num_tokens=700)
    tokenizer.add_tokens([AddedToken("<|user|>", special=True), AddedToken("extra", special=False)])
    before = tokenizer.backend_tokenizer.get_vocab()
    extension = extend_tokenizer(description(tokenizer), candidates(kind), 40)
    after = Tokenizer.from_str(json.dumps(extension.description))
    assert extension.first_id == len(before)
    assert {token: after.token_to_id(token) for token in before} == before
    assert before["<|user|>"] in ids_of(after, "a <|user|> b")


def test_merges_as_strings_stay_strings() -> None:
    old = description(source("byte-level"))
    strings = old | {"model": old["model"] | {"merges": [" ".join(merge) for merge in old["model"]["merges"]]}}
    extension = extend_tokenizer(strings, candidates("byte-level"), 50)
    assert all(isinstance(merge, str) for merge in extension.description["model"]["merges"])
    pairs = extend_tokenizer(old, candidates("byte-level"), 50)
    assert [merge.split(" ") for merge in extension.description["model"]["merges"]] == pairs.description["model"]["merges"]


@pytest.mark.some(5)
@pytest.mark.parametrize("auxiliary", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_auxiliary_tokenizer_of_another_kind(kind: str, auxiliary: str) -> None:
    slovene = description(KINDS[auxiliary](demo_text("sl"), num_tokens=1200))
    extension = extend_tokenizer(description(source(kind)), candidates_of(slovene), None, fits=fits_a_word(source(kind).backend_tokenizer))
    new = Tokenizer.from_str(json.dumps(extension.description))
    ids = [[piece.id for piece in new.model.tokenize(token)] for token in extension.tokens]
    assert ids == [[extension.first_id + place] for place in range(len(ids))] and len(ids) > 150


def test_words_that_the_source_would_cut_are_no_candidates() -> None:
    fits = fits_a_word(source("byte-level").backend_tokenizer)
    assert fits(b" dan") and fits(b"dan") and fits(b"\xc4") and fits(b"    ") and fits(b"\n\n")
    assert not fits(b"dan noc") and not fits(b"dan,") and not fits(b" dan1")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("abcd", min_size=2, max_size=6), min_size=1, max_size=12), st.text("abcd ", max_size=40))
def test_any_tokens_are_reached(words: list[str], text: str) -> None:
    old = description(bpe_tokenizer())
    extension = extend_tokenizer(old, [Candidate(word.encode()) for word in words], None)
    new = Tokenizer.from_str(json.dumps(extension.description))
    for place, token in enumerate(extension.tokens):
        assert [piece.id for piece in new.model.tokenize(token)] == [extension.first_id + place]
    known = set(old["model"]["vocab"]) | set(extension.tokens)
    assert set(words) <= known
    ids = ids_of(new, text)
    if all(i < extension.first_id for i in ids):
        assert ids == ids_of(bpe_tokenizer().backend_tokenizer, text)


@cache
def bpe_tokenizer() -> PreTrainedTokenizerFast:
    return sentencepiece_like("abcd dcba abab cdcd bcbc abcabc adad dabc", num_tokens=30, specials={"unk": "<unk>"}, byte_fallback=False)


def test_joining_is_that_of_the_library() -> None:
    model = description(source("byte-level"))["model"]
    ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
    for token in list(model["vocab"])[300:]:
        assert joined(token, ranks) == [piece.value for piece in source("byte-level").backend_tokenizer.model.tokenize(token)]
    assert joining_steps("abc", {("b", "c"): 0, ("a", "bc"): 1}) == {"a", "b", "c", "bc", "abc"}


def test_sentences_are_drawn_evenly_and_some_are_held_out() -> None:
    texts = [f"Stavek {i}. Drugi {i}!\nTretji {i}" for i in range(1000)]
    assert list(sentences(texts))[:4] == ["Stavek 0.", "Drugi 0!", "Tretji 0", "Stavek 1."]
    sample, held_out = sample_sentences(texts, 100)
    assert len(sample) == 100 and len(held_out) == 150 and not set(sample) & set(held_out)
    assert int(sample[-1].rstrip(".!").split()[1]) > 980
    everything, held_out = sample_sentences(texts, 10_000)
    assert len(everything) == 2850 and set(everything) | set(held_out) == set(sentences(texts))


# ---- pruning ----


def pruned(kind: str, text: str, *, min_count: int = 1) -> tuple[tuple[int, ...], Tokenizer]:
    counts: dict[int, int] = {}
    for token_id in ids_of(source(kind).backend_tokenizer, text):
        counts[token_id] = counts.get(token_id, 0) + 1
    pruning = prune_tokenizer(description(source(kind)), counts, min_count=min_count)
    return pruning.old_ids, Tokenizer.from_str(json.dumps(pruning.description))


@pytest.mark.parametrize("kind", KINDS)
def test_pruned_tokenizer_cuts_its_text_as_before(kind: str) -> None:
    text = demo_text("en")[:4000]
    old_ids, new = pruned(kind, text)
    old = source(kind).backend_tokenizer
    assert len(old_ids) == new.get_vocab_size() < old.get_vocab_size()
    assert sorted(new.get_vocab().values()) == list(range(len(old_ids)))
    assert [old_ids[i] for i in ids_of(new, text)] == ids_of(old, text)
    assert all(new.id_to_token(i) == old.id_to_token(old_id) for i, old_id in enumerate(old_ids))


@pytest.mark.parametrize("kind", KINDS)
def test_rare_tokens_are_spelled_with_what_is_left(kind: str) -> None:
    text = demo_text("en")
    old_ids, new = pruned(kind, text, min_count=20)
    all_ids, _ = pruned(kind, text)
    assert len(old_ids) < len(all_ids)
    old = source(kind).backend_tokenizer
    reached = {i for i, token in enumerate(map(new.id_to_token, range(len(old_ids)))) if [p.id for p in new.model.tokenize(token)] == [i]}
    before = {i for i, old_id in enumerate(old_ids) if [p.id for p in old.model.tokenize(old.id_to_token(old_id))] == [old_id]}
    assert before <= reached
    unknown = new.token_to_id("[UNK]" if kind == "wordpiece" else "<unk>")
    assert unknown is None or unknown not in ids_of(new, text)
    if kind != "wordpiece":
        assert new.decode(ids_of(new, text)) == old.decode(ids_of(old, text))


def test_ids_around_a_text_are_renumbered() -> None:
    tokenizer = source("marked")
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "</s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
    }
    moved = description(tokenizer) | {"post_processor": template}
    moved["model"]["vocab"] = {token: (i + 7 if i > 0 else 0) for token, i in moved["model"]["vocab"].items()}
    for entry in moved["added_tokens"]:
        entry["id"] = moved["model"]["vocab"][entry["content"]]
    template["special_tokens"]["</s>"]["ids"] = [moved["model"]["vocab"]["</s>"]]
    pruning = prune_tokenizer(moved, {}, min_count=1)
    new = Tokenizer.from_str(json.dumps(pruning.description))
    assert new.encode("").ids == [new.token_to_id("</s>")] == [1]
    roberta = description(tokenizer) | {
        "post_processor": {
            "type": "RobertaProcessing",
            "sep": ["</s>", 1],
            "cls": ["<s>", 0],
            "trim_offsets": True,
            "add_prefix_space": False,
        }
    }
    assert prune_tokenizer(roberta, {}, min_count=1).description["post_processor"]["sep"] == ["</s>", 1]
