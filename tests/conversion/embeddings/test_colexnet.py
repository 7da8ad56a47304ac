"""Vectors of ColexNet+: what their keys stand for, and OFA's token vectors of them beside a plain loop."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from conversion.embeddings.spaces.colexnet import spellings, text_of
from conversion.embeddings.spaces.word_vectors import WordVectors
from conversion.embeddings.vocabularies.vocabulary import Vocabulary
from tests.conversion.embedding_fixtures import byte_level, demo_text
from tests.refusals import refused

KEYS = ("slv:$hiša$", "slv:$mlin", "slv:ar$", "deu:$haus$", "$house$", "eng:$mill$", "slv:$v$hiši$", "hrv:$1:2$")


def save(path: Path, keys: tuple[str, ...] = KEYS, *, size: int = 5) -> np.ndarray:
    vectors = np.random.default_rng(3).standard_normal((len(keys), size)).astype(np.float32)
    lines = [f"{len(keys)} {size}", *(" ".join([key, *map(repr, map(float, row))]) for key, row in zip(keys, vectors, strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return vectors


def test_keys_are_runs_of_text(tmp_path: Path) -> None:
    vectors = save(tmp_path / "colexnet.wv")
    found = WordVectors.read(tmp_path / "colexnet.wv")
    assert found.words == (" hiša ", " mlin", "ar ", " haus ", " house ", " mill ", " v hiši ", " 1:2 ")
    assert found.marks_boundaries and np.array_equal(found.vectors, vectors)


def test_a_table_of_one_language_has_words(tmp_path: Path) -> None:
    save(tmp_path / "one.vec", ("hiša", "mlin", "ura:", "net:x", "$"))
    found = WordVectors.read(tmp_path / "one.vec")
    assert found.words == ("hiša", "mlin", "ura:", "net:x", "$") and not found.marks_boundaries


def test_spellings() -> None:
    ours, published = ([[spell(text_of(key)) for spell in spellings(as_published=way)] for key in KEYS[:3]] for way in (False, True))
    assert ours == [["hiša", " hiša", "Hiša", " Hiša"], ["mlin", " mlin", "Mlin", " Mlin"], ["ar", "", "", ""]]
    assert published == [[" hiša ", "  hiša ", "Hiša "], [" mlin", "  mlin", "Mlin"], ["ar ", " ar ", " Ar "]]


@pytest.mark.parametrize("as_published", [False, True])
def test_vectors_of_tokens_are_those_of_a_plain_loop(as_published: bool, tmp_path: Path) -> None:
    """A list of keys for every token; the published code adds to it once for each spelling."""
    tokenizer = byte_level(demo_text("sl"), num_tokens=600)
    words = sorted(set(re.findall(r"\w+", demo_text("sl"))))[:300]
    keys = tuple(f"slv:{'' if number % 5 == 0 else '$'}{word.lower()}{'' if number % 7 == 0 else '$'}" for number, word in enumerate(words))
    vectors = save(tmp_path / "colexnet.vec", keys)

    def ids_of(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False).input_ids)

    lists: dict[int, list[int]] = {}
    for number, key in enumerate(keys):
        text = key[4:].replace("$", " ")
        word = text.strip()
        if as_published:
            texts = [text, " " + text, word[0].upper() + text.lstrip()[1:] if text[0] == " " else f" {text[0].upper()}{text[1:]}"]
        else:
            texts = [word] + ([" " + word, word.capitalize(), " " + word.capitalize()] if text[0] == " " else [])
        found = [token_id for spelled in texts for token_id in set(ids_of(spelled))]
        for token_id in found if as_published else dict.fromkeys(found):
            lists.setdefault(token_id, []).append(number)
    read, vocabulary = WordVectors.read(tmp_path / "colexnet.vec"), Vocabulary.of(tokenizer)
    ways = spellings(as_published=as_published)
    pooled = read.pooled(vocabulary, lambda texts: list(map(ids_of, texts)), variants=ways, by_frequency=False, each_variant=as_published)
    expected = {token_id: numbers for token_id, numbers in lists.items() if vocabulary.is_text[token_id]}
    assert set(np.flatnonzero(pooled.is_known)) == set(expected) and len(expected) > 100
    for token_id, numbers in expected.items():
        np.testing.assert_allclose(pooled.rows(np.array([token_id]))[0], vectors[numbers].astype(np.float64).mean(axis=0), atol=1e-6)


def test_what_is_no_text_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "colexnet_vectors.wv"
    path.write_bytes(pickle.dumps({"vectors": [1]}))
    save(tmp_path / "keys.vec", (*KEYS, "slv:$$"))
    for file, sentence in (
        (
            path,
            f"the vectors {path} are a pickle, as gensim's own form is, and are not opened; save them as text where you trust them:"
            " KeyedVectors.load('colexnet_vectors.wv').save_word2vec_format('colexnet_vectors.vec')",
        ),
        (
            tmp_path / "keys.vec",
            f"{tmp_path / 'keys.vec'} has the key 'slv:$$' among keys of ColexNet+, which stands for no text; expected a language, a colon and"
            " a run of characters, such as slv:$hiša$",
        ),
    ):
        with refused(sentence):
            WordVectors.read(file)
