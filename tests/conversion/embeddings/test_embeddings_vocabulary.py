"""Tokens are compared by their exact bytes, across all spellings."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from conversion.embeddings.options import TransferRequest, VocabularyOptions
from conversion.embeddings.vocabularies.strategies import target_tokenizer
from conversion.embeddings.vocabularies.vocabulary import Kind, Vocabulary
from conversion.embeddings.vocabularies.vocabulary_map import Match, map_vocabulary
from data_prep.tokenizers.files import load_tokenizer, tokenizer_digest
from data_prep.tokenizers.sentencepiece_backend import hf_tokenizer
from data_prep.tokenizers.token_bytes import Spelling, byte_level_alphabet, bytes_of, spell
from tests.conversion.embedding_fixtures import (
    SPECIALS,
    byte_level,
    demo_text,
    marked_bpe,
    permuted,
    sentencepiece_like,
    unigram,
    wordpiece,
    wrap,
)
from tests.refusals import refused

BYTE_LEVEL = Spelling("byte-level")
MARKED = Spelling("space-marker", space_marker="▁", byte_tokens=True)
WORDPIECE = Spelling("wordpiece", continuing_prefix="##")
SPELLINGS = ("byte-level", "marked", "unigram", "wordpiece")


@pytest.fixture(scope="module")
def vocabularies() -> dict[str, Vocabulary]:
    english, slovene = demo_text("en"), demo_text("sl")
    return {
        "byte-level": Vocabulary.of(byte_level(english + slovene, num_tokens=1200)),
        "byte-level 2": Vocabulary.of(byte_level(slovene, num_tokens=1500)),
        "marked": Vocabulary.of(sentencepiece_like(slovene, num_tokens=900)),
        "unigram": Vocabulary.of(unigram(slovene + english, num_tokens=700)),
        "wordpiece": Vocabulary.of(wordpiece(slovene + english, num_tokens=900)),
    }


@pytest.mark.parametrize(
    ("token", "spelling", "expected"),
    [
        ("Ġthe", BYTE_LEVEL, b" the"),
        ("ĠĠĠĠ", BYTE_LEVEL, b"    "),
        ("ĠÃ¨", BYTE_LEVEL, " è".encode()),
        ("ðŁĺ", BYTE_LEVEL, b"\xf0\x9f\x98"),
        ("Ā", BYTE_LEVEL, b"\x00"),
        ("漢", BYTE_LEVEL, "漢".encode()),  # put into a byte-level vocabulary as plain text
        ("▁the", MARKED, b" the"),
        ("▁", MARKED, b" "),
        ("▁▁▁▁", MARKED, b"    "),
        ("▁è", MARKED, " è".encode()),
        ("é", MARKED, "é".encode()),
        ("Ġ", MARKED, "Ġ".encode()),
        ("\n", MARKED, b"\n"),
        ("a▁b", MARKED, b"a b"),
        ("the", WORDPIECE, b" the"),
        ("##ing", WORDPIECE, b"ing"),
        (".", WORDPIECE, b"."),
        ("##.", WORDPIECE, b"."),
        ("##", WORDPIECE, b" ##"),
        ("#", WORDPIECE, b"#"),
        ("a", WORDPIECE, b" a"),
        ("č", WORDPIECE, " č".encode()),
        ("„", WORDPIECE, "„".encode()),
        ("€", WORDPIECE, " €".encode()),  # a currency sign is not punctuation to BERT
        ("漢", WORDPIECE, "漢".encode()),
        ("\u3042", WORDPIECE, " \u3042".encode()),
        ("Ġa", Spelling("plain"), "Ġa".encode()),
    ],
)
def test_bytes_of_a_token(token: str, spelling: Spelling, expected: bytes) -> None:
    assert bytes_of(token, spelling) == expected


@pytest.mark.parametrize("spelling", [BYTE_LEVEL, MARKED, WORDPIECE, Spelling("plain")], ids=lambda spelling: spelling.form)
@pytest.mark.parametrize("data", [b" the", b"the", b".", " è".encode(), b"\n", b"  ", b"a b", b"\xc3", " 漢".encode(), "▁".encode()])
def test_spelling_of_bytes_is_read_back(spelling: Spelling, data: bytes) -> None:
    token = spell(data, spelling)
    if token is None:
        cannot = {"space-marker": (b"\xc3", "▁".encode()), "plain": (b"\xc3",), "byte-level": ()}
        assert spelling.form == "wordpiece" or data in cannot[spelling.form]
    else:
        assert bytes_of(token, spelling) == data


def test_alphabet_is_that_of_gpt2() -> None:
    assert dict(enumerate(byte_level_alphabet())) == bytes_to_unicode()


def test_byte_tokens_are_bytes_only_where_the_tokenizer_says_so() -> None:
    vocabulary, merges = {"<s>": 0, "</s>": 1, "<unk>": 2, "<0x0A>": 3, "\n": 4, "a": 5, "▁": 6}, []
    specials = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
    fallback = Vocabulary.of(marked_bpe(vocabulary, merges, specials, byte_fallback=True))
    assert fallback.token_bytes[3] == b"\n" and fallback.kinds[3] == Kind.BYTE
    literal = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    assert Vocabulary.of(wrap(literal, specials)).token_bytes[3] == b"<0x0A>"


def _truth(tokenizer_words: Vocabulary) -> list[tuple[bytes | None, bool]]:
    """For each id its bytes and whether it is a fallback byte, from the published alphabets."""
    from_char = {char: byte for byte, char in bytes_to_unicode().items()}
    form = tokenizer_words.spelling.form
    result: list[tuple[bytes | None, bool]] = []
    for token, kind in zip(tokenizer_words.tokens, tokenizer_words.kinds):
        assert token is not None
        if kind == Kind.SPECIAL:
            result.append((None, False))
        elif form == "byte-level":
            result.append((bytes(from_char[char] for char in token), False))
        elif token.startswith("<0x"):
            result.append((bytes.fromhex(token[3:5]), True))
        else:
            result.append((token.replace("▁", " ").encode(), False))
    return result


def _require_exact(source: Vocabulary, target: Vocabulary) -> int:
    """Zero wrong and zero missed; gives the number of shared tokens."""
    mapped = map_vocabulary(source, target)
    by_bytes: dict[bytes, dict[bool, list[int]]] = {}
    for source_id, (data, is_byte) in enumerate(_truth(source)):
        if data:
            by_bytes.setdefault(data, {}).setdefault(is_byte, []).append(source_id)
    truths = _truth(target)
    texts = {data for data, is_byte in truths if not is_byte}
    wrong, missed, shared = [], [], 0
    for target_id, (data, is_byte) in enumerate(truths):
        if data is None:
            continue
        candidates = by_bytes.get(data, {})
        first = is_byte and data in texts  # fallback twin of a text token of the same vocabulary
        right = candidates.get(first) or candidates.get(not first) or []
        found = int(mapped.source_ids[target_id])
        shared += bool(right)
        if right and found == -1:
            missed.append(target.tokens[target_id])
        elif found not in (right or [-1]):
            wrong.append(target.tokens[target_id])
    assert not wrong and not missed
    return shared


@pytest.mark.parametrize("source", ["byte-level", "marked", "unigram"])
@pytest.mark.parametrize("target", ["byte-level", "byte-level 2", "marked", "unigram"])
def test_no_wrong_and_no_missed_token(vocabularies: dict[str, Vocabulary], source: str, target: str) -> None:
    assert _require_exact(vocabularies[source], vocabularies[target]) > 300


def test_wordpiece_meets_the_others(vocabularies: dict[str, Vocabulary]) -> None:
    source, target = vocabularies["wordpiece"], vocabularies["marked"]
    mapped = map_vocabulary(source, target)
    pairs = {target.tokens[i]: source.tokens[s] for i, s in enumerate(mapped.source_ids) if s >= 0}
    assert pairs["▁in"] == "in" and pairs["a"] == "##a" and pairs["."] == "."
    assert "▁." not in pairs  # WordPiece does not know of a space before punctuation


def _tiny(tokens: list[str], *, merges: list[tuple[str, str]] | None = None, specials: dict[str, str] = SPECIALS) -> Vocabulary:
    names = [*dict.fromkeys(specials.values()), *tokens]
    return Vocabulary.of(marked_bpe({token: i for i, token in enumerate(names)}, merges or [], specials, byte_fallback=True))


def _pairs(source: Vocabulary, target: Vocabulary, **options: dict[str, str]) -> dict[str | None, str | None]:
    mapped = map_vocabulary(source, target, **options)
    return {target.tokens[i]: source.tokens[s] if s >= 0 else None for i, s in enumerate(mapped.source_ids)}


def test_real_token_goes_before_fallback_byte() -> None:
    both, only_byte, only_real = _tiny(["<0x0A>", "\n"]), _tiny(["<0x0A>"]), _tiny(["\n"])
    assert _pairs(both, only_real)["\n"] == "\n"
    assert _pairs(only_byte, only_real)["\n"] == "<0x0A>"
    assert _pairs(both, only_byte)["<0x0A>"] == "\n"  # what the source writes a line feed with
    assert _pairs(both, both) == {token: token for token in both.tokens}


def test_lowest_id_among_equals_whatever_the_order() -> None:
    # A plain-text token in a byte-level vocabulary stands for the same bytes as its byte-level spelling.
    vocabulary = {"<s>": 0, "漢": 1, "æ¼¢": 2, "a": 3}
    for new_ids in ([0, 1, 2, 3], [3, 2, 1, 0]):
        tokenizer = byte_level("漢", num_tokens=300, specials={"bos": "<s>"})
        backend = Tokenizer(models.BPE(vocab={token: new_ids[i] for token, i in vocabulary.items()}, merges=[]))
        backend.decoder = tokenizer.backend_tokenizer.decoder
        source = Vocabulary.of(wrap(backend, {"bos": "<s>"}))
        target = _tiny(["漢"])
        mapped = map_vocabulary(source, target)
        assert mapped.source_ids[-1] == min(new_ids[1], new_ids[2]) or source.tokens[mapped.source_ids[-1]] == "漢"


def test_token_with_id_zero_is_found() -> None:
    source = Vocabulary.of(permuted(byte_level("aaa bbb", num_tokens=262), [*range(1, 262), 0]))
    shared = map_vocabulary(source, source)
    assert source.kinds[0] == Kind.TEXT and shared.source_ids[0] == 0 and shared.matches[0] == Match.BYTES


def test_special_tokens_by_role() -> None:
    opt = Vocabulary.of(byte_level("abc", num_tokens=262, specials={"bos": "</s>", "eos": "</s>", "unk": "</s>", "pad": "<pad>"}))
    target = _tiny(["a"])
    pairs = _pairs(opt, target)
    assert pairs["<s>"] == "</s>" and pairs["</s>"] == "</s>" and pairs["<pad>"] == "<pad>"
    assert pairs["<unk>"] is None  # the source has lent the role to its end of text, whose row means something else
    # Where the target has one token for both, it is the source's of the same spelling, else its end of text.
    assert _pairs(target, opt)["</s>"] == "</s>"
    assert _pairs(target, Vocabulary.of(byte_level("abc", num_tokens=262)))["<|endoftext|>"] == "</s>"
    bert = Vocabulary.of(wordpiece("abc abd", num_tokens=20))
    assert {token: _pairs(bert, target)[token] for token in SPECIALS.values()} == {
        "<s>": "[CLS]",
        "</s>": "[SEP]",
        "<pad>": "[PAD]",
        "<unk>": "[UNK]",
    }


@pytest.mark.parametrize("character", ["\n", "\u00a0"])
def test_another_character_may_become_a_space_first(character: str) -> None:
    plain = sentencepiece_like("to je to", num_tokens=300)
    description = json.loads(plain.backend_tokenizer.to_str())
    first = {"type": "Replace", "pattern": {"String": character}, "content": " "}
    description["normalizer"] = {"type": "Sequence", "normalizers": [first, description["normalizer"]]}
    changed = Vocabulary.of(wrap(Tokenizer.from_str(json.dumps(description)), SPECIALS))
    assert list(changed.token_bytes) == list(Vocabulary.of(plain).token_bytes)


def test_tokens_that_no_text_reaches_are_no_sources() -> None:
    """Added tokens take their text first; what BPE has no merge for, it never makes."""
    plain = byte_level("a b", num_tokens=262)
    description = json.loads(plain.backend_tokenizer.to_str())
    model, added = description["model"], description["added_tokens"]
    model["merges"] += [["Ġ", "Ġ"], ["ĠĠ", "ĠĠ"]]
    model["vocab"] |= {token: len(model["vocab"]) + i for i, token in enumerate(("ĠĠ", "ĠĠĠĠ", "unmerged"))}
    target = Vocabulary.of(wrap(Tokenizer.from_str(json.dumps(description)), {}))
    assert [target.tokens[i] for i in np.flatnonzero(target.as_source().kinds == Kind.UNREACHED)] == ["unmerged"]
    added.append(dict(added[0], id=len(model["vocab"]), content="    ", special=False, normalized=True))
    changed = wrap(Tokenizer.from_str(json.dumps(description)), {})
    source = Vocabulary.of(changed).as_source()
    four = changed("a    b")["input_ids"][1]
    assert source.tokens[four] == "    " and source.pieces(b"     a") == changed("     a")["input_ids"]
    assert map_vocabulary(source, target).source_ids[target.tokens.index("ĠĠĠĠ")] == four
    back = map_vocabulary(target.as_source(), source).source_ids
    assert back[four] == back[source.tokens.index("ĠĠĠĠ")] == target.tokens.index("ĠĠĠĠ")
    assert back[source.tokens.index("unmerged")] == -1


def test_tokens_that_are_cut_before_the_model_are_no_sources() -> None:
    plain = byte_level("a b", num_tokens=259)
    description = json.loads(plain.backend_tokenizer.to_str())
    model = description["model"]
    model["merges"] += [["1", "2"], ["a", "Ġ"], ["aĠ", "b"], ["Ġ", "b"], ["Ġ", "Ġ"], ["i", "n"]]
    pairs = ["".join(pair) for pair in model["merges"] if "".join(pair) not in model["vocab"]]
    model["vocab"] |= {token: len(model["vocab"]) + i for i, token in enumerate(pairs)}
    steps = [{"type": "Digits", "individual_digits": True}, description["pre_tokenizer"]]
    description["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    source = Vocabulary.of(wrap(Tokenizer.from_str(json.dumps(description)), {})).as_source()
    assert [source.tokens[i] for i in np.flatnonzero(source.kinds == Kind.UNREACHED)] == ["12", "aĠ", "aĠb"]
    marked = sentencepiece_like(demo_text("en")[:5000], num_tokens=200)
    assert not (Vocabulary.of(marked).as_source().kinds == Kind.UNREACHED).any()


def test_added_tokens_that_a_decoder_takes_for_bytes_come_back_as_they_are(tmp_path: Path) -> None:
    """A target's own with their ids; in a union spelled in bytes, with merges."""
    source, target = byte_level("abc", num_tokens=262), byte_level("abc", num_tokens=262)
    target.add_tokens(["谁", "đuveč"])
    for name, tokenizer in (("source", source), ("target", target)):
        tokenizer.save_pretrained(tmp_path / name)
    assert target.decode(target("đuveč")["input_ids"]) == "\x11uve\r"
    request = TransferRequest(tmp_path / "source", tmp_path / "target", None, VocabularyOptions("replace"))
    found = target_tokenizer(request, source)
    replaced, union = found.tokenizer, target_tokenizer(replace(request, vocabulary=VocabularyOptions("union")), source).tokenizer
    assert "1 added tokens of" in found.warnings[0] and found.digest == tokenizer_digest(target)
    text = "x谁 đuveč xđuvečy"
    assert replaced(text)["input_ids"] == target(text)["input_ids"]
    assert replaced.decode(replaced(text)["input_ids"]) == text == union.decode(union(text)["input_ids"])
    assert [union.decode(union(token)["input_ids"]) for token in ("谁", "đuveč")] == ["谁", "đuveč"]
    assert [len(union(token)["input_ids"]) for token in ("谁", "đuveč")] == [1, 1] and len(union) > len(source)


def test_special_tokens_are_never_text() -> None:
    source = Vocabulary.of(sentencepiece_like("[PAD] [PAD]", num_tokens=40))
    assert b" [PAD]" in source.token_bytes
    target = _tiny(["[", "]"], specials={"pad": "[PAD]", "unk": "<unk>"})
    assert _pairs(source, target)["[PAD]"] == "<pad>"
    assert target.token_bytes[target.tokens.index("[PAD]")] is None


def test_chosen_special_tokens_go_first() -> None:
    source, target = _tiny(["a"]), _tiny(["a"])
    assert _pairs(source, target, special_tokens={"<s>": "</s>"})["<s>"] == "</s>"
    with refused("the target tokenizer has no token '<bos>'; give --special-token TARGET=SOURCE with tokens as they are spelled there"):
        map_vocabulary(source, target, special_tokens={"<bos>": "</s>"})


def _alike(matching: str, source: list[str], target: list[str]) -> dict[str, tuple[str, Match]]:
    one, other = _tiny(source), _tiny(target)
    mapped = map_vocabulary(one, other, matching=matching)
    return {
        str(other.tokens[i]): (str(one.tokens[source_id]), Match(mapped.matches[i]))
        for i, source_id in enumerate(mapped.source_ids.tolist())
        if source_id >= 0 and other.kinds[i] == Kind.TEXT
    }


@pytest.mark.parametrize("order", [1, -1])
def test_matching_may_disregard_case_and_space(order: int) -> None:
    source = ["dan", "▁Dan", "ST", "▁noc", "▁", "Č", "straße", "▁\n"][::order]
    target = ["▁dan", "dan", "DAN", "st", "noc", "▁NOC", "▁▁", "\n", "▁č", "STRASSE"][::order]
    exact = {"dan": ("dan", Match.BYTES)}
    assert _alike("exact", source, target) == exact
    case = exact | {"▁dan": ("▁Dan", Match.CASE), "DAN": ("dan", Match.CASE), "st": ("ST", Match.CASE)}
    case |= {"▁NOC": ("▁noc", Match.CASE), "STRASSE": ("straße", Match.CASE)}
    assert _alike("case", source, target) == case
    space = exact | {"▁dan": ("dan", Match.SPACE), "noc": ("▁noc", Match.SPACE)}
    assert _alike("space", source, target) == space
    # What is disregarded grows: a token that differs in capitals alone goes before one that differs in the space.
    both = case | {"noc": ("▁noc", Match.SPACE), "▁č": ("Č", Match.CASE_SPACE)}
    assert _alike("case-space", source, target) == both


@pytest.mark.parametrize("matching", ["case", "space", "case-space"])
def test_exact_goes_first_on_whole_vocabularies(vocabularies: dict[str, Vocabulary], matching: str) -> None:
    source, target = vocabularies["byte-level"], vocabularies["marked"]
    exact, found = (map_vocabulary(source, target, matching=each) for each in ("exact", matching))
    assert np.array_equal(found.source_ids[exact.is_matched], exact.source_ids[exact.is_matched])
    assert np.array_equal(found.matches[exact.is_matched], exact.matches[exact.is_matched])
    for target_id in np.flatnonzero(found.is_matched & ~exact.is_matched):
        one, other = (target.token_bytes[target_id] or b"").decode(), (source.token_bytes[found.source_ids[target_id]] or b"").decode()
        assert one != other and one.strip().casefold() == other.strip().casefold()
    for vocabulary in vocabularies.values():
        assert map_vocabulary(vocabulary, vocabulary, matching=matching).source_ids.tolist() == list(range(len(vocabulary)))


@pytest.mark.parametrize("name", SPELLINGS)
def test_pieces_are_the_bytes_of_the_token(vocabularies: dict[str, Vocabulary], name: str) -> None:
    source, target = vocabularies[name], vocabularies["byte-level 2"]
    texts = [data for data in target.token_bytes if data]
    covered = 0
    for data in texts:
        joined = b"".join(source.token_bytes[i] or b"" for i in source.pieces(data))
        if name == "wordpiece":  # it has no token for a space alone, nor for stray bytes
            joined, data = joined.replace(b" ", b""), data.decode(errors="ignore").replace(" ", "").encode()
        covered += joined == data
    own = [source.pieces(data) == [i] for i, data in enumerate(source.token_bytes) if data]
    assert np.mean(own) > 0.7
    # WordPiece knows few capital letters inside of words.
    assert covered == len(texts) if name != "wordpiece" else covered > 0.8 * len(texts)


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=12))
def test_pieces_of_any_bytes(vocabularies: dict[str, Vocabulary], data: bytes) -> None:
    for name in ("byte-level", "marked", "unigram"):
        source = vocabularies[name]
        specials = [token.encode() for token, its_bytes in zip(source.tokens, source.token_bytes, strict=True) if its_bytes is None]
        if not any(special in data for special in specials):  # such a spelling is that token, which writes nothing
            assert b"".join(source.token_bytes[i] or b"" for i in source.pieces(data)) == data


def test_pieces_leave_out_what_the_source_cannot_write() -> None:
    source = Vocabulary.of(sentencepiece_like("abc abc abc xabc", num_tokens=40, byte_fallback=False))
    assert [source.tokens[i] for i in source.pieces("abcč".encode())] == ["abc"]
    assert source.pieces("č".encode()) == [] and source.pieces(b"\xff") == []


def test_keys_depend_on_meaning_alone(vocabularies: dict[str, Vocabulary]) -> None:
    for vocabulary in vocabularies.values():
        assert len(set(vocabulary.keys)) == len(vocabulary)
        "".join(vocabulary.keys).encode()  # all valid text: fastText writes UTF-8
    shared = map_vocabulary(vocabularies["byte-level"], vocabularies["marked"])
    ids = np.flatnonzero((shared.matches == Match.BYTES) & (vocabularies["marked"].kinds == Kind.TEXT))
    keys = [(vocabularies["marked"].keys[i], vocabularies["byte-level"].keys[shared.source_ids[i]]) for i in ids]
    assert keys and all(a == b for a, b in keys)


def test_unknown_models_are_refused() -> None:
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    with refused("the tokenizer's model is WordLevel; supported are BPE, Unigram and WordPiece"):
        Vocabulary.of(words)
    suffixed = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a</w>": 0}, [], end_of_word_suffix="</w>")))
    with refused("the tokenizer marks the ends of words with '</w>'; known are marks at the beginnings of words, and byte-level"):
        Vocabulary.of(suffixed)


@pytest.fixture(scope="module")
def real_vocabularies(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Vocabulary]:
    sentencepiece = pytest.importorskip("sentencepiece")
    opt_dir = tmp_path_factory.mktemp("opt")
    for name in ("vocab.json", "merges.txt"):
        shutil.copyfile(shared_data / "tokenizers" / "opt_gpt2_bpe" / name, opt_dir / name)
    (opt_dir / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "GPT2Tokenizer", "bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "</s>"}'
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(shared_data / "tokenizers" / "mistral_v1" / "tokenizer.model"))
    mistral = wrap(hf_tokenizer(model), {"bos": "<s>", "eos": "</s>", "unk": "<unk>"})
    return {"opt": Vocabulary.of(load_tokenizer(opt_dir)), "mistral": Vocabulary.of(mistral)}


@pytest.mark.slow
def test_real_vocabularies_are_exact(real_vocabularies: dict[str, Vocabulary]) -> None:
    opt, mistral = real_vocabularies["opt"], real_vocabularies["mistral"]
    assert len(opt) == 50265 and len(mistral) == 32000
    assert int((mistral.kinds == Kind.BYTE).sum()) == 256
    assert _require_exact(opt, mistral) > 10_000
    assert _require_exact(mistral, opt) > 10_000
    for vocabulary in (opt, mistral):
        assert map_vocabulary(vocabulary, vocabulary).source_ids.tolist() == list(range(len(vocabulary)))
    assert mistral.tokens[int(map_vocabulary(mistral, opt).source_ids[opt.tokens.index("Ċ")])] == "<0x0A>"
