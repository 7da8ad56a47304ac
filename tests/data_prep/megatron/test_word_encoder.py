"""Ids are the tokenizer library's on every text, whatever the cache forgot; what is not known to be exact goes to the library."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from common import native
from data_prep.megatron.word_encoder import SOURCE, LibraryEncoder, NativeRules, WordEncoder, word_encoder
from data_prep.megatron.word_rules import _INERT, LETTER, NUMBER, WHITE_SPACE, NotExactError, categories, word_rules
from data_prep.reading.documents import Documents
from data_prep.tokenizers.files import load_tokenizer
from data_prep.tokenizers.sentencepiece_backend import ADVERSARIAL_TEXTS
from tests.data_prep.conftest import SLOVENE_TEXT
from tests.data_prep.trained import train_tokenizer

END = 1_000_000
MARK = "▁"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace("{1,3}", "")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LINES = SLOVENE_TEXT.read_text(encoding="utf-8").splitlines()[:400]
# Line ends and runs of spaces, so that pieces of both are learnt; digits and marks.
TRAINING = [*LINES, *("\n\n".join(LINES[i : i + 3]) for i in range(0, 200, 3)), "a  b   c    d 1995 12.345,67 (aha)! »Ne!«\t–\r\n" * 40]


def byte_level(
    pre_tokenizer: pre_tokenizers.PreTokenizer,
    *,
    normalizer: normalizers.Normalizer | None = None,
    alphabet: list[str] | None = None,
    **model: bool,
) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet() if alphabet is None else alphabet
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def split_byte_level(expression: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(expression), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def space_marked(
    *, byte_fallback: bool = True, pre_tokenizer: pre_tokenizers.PreTokenizer | None = None, prepend: bool = True, fuse_unk: bool = True
) -> Tokenizer:
    """BPE that writes spaces as ▁, as of Llama 2 and Mistral; without a pre-tokenizer its merges run across runs of spaces."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    # Parts of two words now and then, so that there are merges over what looks like a place to cut.
    trained.pre_tokenizer = pre_tokenizers.Split(Regex(f"{MARK}*[^{MARK}]*"), "isolated")
    specials = ["<unk>", "</s>", *(BYTES if byte_fallback else [])]
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=specials, limit_alphabet=60, show_progress=False)
    trained.train_from_iterator(TRAINING, trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=fuse_unk, byte_fallback=byte_fallback))
    if pre_tokenizer is None or isinstance(pre_tokenizer, pre_tokenizers.Split):
        steps = [normalizers.Replace(" ", MARK)]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), *steps] if prepend else steps)
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    return tokenizer


def normalized() -> Tokenizer:
    tokenizer = space_marked()
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(vocab_size=500, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(TRAINING[:200], trainer)
    return tokenizer


def with_added_token() -> Tokenizer:
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.add_tokens([AddedToken("e na", normalized=False), AddedToken("čč", normalized=False, lstrip=True)])
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


def digits_apart(*, individual: bool = True) -> Tokenizer:
    """As SmolLM2's: digits are cut out before the expression of GPT-2."""
    steps = [pre_tokenizers.Digits(individual_digits=individual), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    return byte_level(pre_tokenizers.Sequence(steps))


def gemma() -> Tokenizer:
    """As Gemma's: no pre-tokenizer that cuts, and hundreds of added tokens, among them runs of line ends and of ▁ as they are written."""
    tokenizer = space_marked(prepend=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    added = [
        *("\n" * count for count in range(2, 32)),
        *(MARK * count for count in range(2, 32)),
        "<table>",
        "</table>",
        "e na",
        "e",
        "na\n",
    ]
    added += [f"<unused{number}>" for number in range(99)]
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in added])
    return tokenizer


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "GPT-2": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "GPT-2, space in front": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "Llama 3": lambda: byte_level(split_byte_level(LLAMA3), ignore_merges=True),
    "Qwen": lambda: byte_level(split_byte_level(QWEN), normalizer=normalizers.NFC()),
    "Mistral": space_marked,
    "nothing in front": lambda: space_marked(prepend=False),
    "no bytes": lambda: space_marked(byte_fallback=False),
    "no bytes, unknowns apart": lambda: space_marked(byte_fallback=False, fuse_unk=False),
    "split": lambda: space_marked(pre_tokenizer=pre_tokenizers.Split(MARK, "merged_with_next")),
    "split, no bytes": lambda: space_marked(pre_tokenizer=pre_tokenizers.Split(MARK, "merged_with_next"), byte_fallback=False),
    "metaspace first": lambda: space_marked(pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first")),
    "metaspace never": lambda: space_marked(pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="never")),
    "metaspace unsplit": lambda: space_marked(pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="always", split=False)),
    "normalized": normalized,
    "digits": digits_apart,
    "some bytes": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), alphabet=[]),
    "runs of digits": lambda: digits_apart(individual=False),
    "Gemma": gemma,
    "unigram": unigram,
    "added token": with_added_token,
}  # fmt: skip
_MADE: dict[str, tuple[WordEncoder, WordEncoder, LibraryEncoder]] = {}


def made(name: str) -> tuple[WordEncoder, WordEncoder, LibraryEncoder]:
    """The encoder, one that forgets all the time, and the library."""
    if name not in _MADE:
        tokenizer = MAKERS[name]()
        usual = word_encoder(tokenizer)
        assert isinstance(usual, WordEncoder), usual.reason
        library = native.load(SOURCE)
        assert library is not None
        forgetful = WordEncoder(tokenizer, NativeRules(word_rules(tokenizer), library), num_slots=16, arena_size=64)
        _MADE[name] = usual, forgetful, LibraryEncoder(tokenizer)
    return _MADE[name]


def require_equal(name: str, texts: list[str]) -> None:
    usual, forgetful, library = made(name)
    expected_ids, expected_lengths = library.encode(texts, END)
    for encoder in (usual, forgetful):
        ids, lengths = encoder.encode(texts, END)
        assert ids.dtype == np.int32
        assert ids.tolist() == expected_ids.tolist()
        assert lengths.tolist() == expected_lengths.tolist()


WORDS = st.one_of(
    st.sampled_from([" ", "  ", "\n", "\n\n", "\r\n", "\t", MARK, "\u00a0", "\u2028", "\u3000", "'s", "'S", "'ſ", "'ll", "'LL", "'", "’", "1", "1995",
                     "²", "½", "٣", "č", "c\u030c", "\u030c", "ﬁ", "ſ", "ŉ", "漢字", "😀", "👩‍👩", "🇸🇮", "</s>", "<unk>", "<0x0A>", "e na", "čč", "\0",
                     "\u0600", "\ufeff", "\U0010ffff", "ǅ", "ª", "ⅷ", "x" * 70, "ab" * 300, "---", "?!", "»ne«"]),
    st.sampled_from([word for line in LINES[:40] for word in line.split()]),
    st.text(max_size=4),
)  # fmt: skip


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=150, deadline=None)
@given(texts=st.lists(st.lists(WORDS, max_size=12).map("".join), min_size=1, max_size=3))
@example(texts=list(ADVERSARIAL_TEXTS))
@pytest.mark.some(5)
def test_ids_are_the_librarys_on_random_text(name: str, texts: list[str]) -> None:
    require_equal(name, texts)


@pytest.mark.some(5)
@pytest.mark.parametrize("name", MAKERS)
def test_ids_are_the_librarys_on_the_demos_text(name: str) -> None:
    require_equal(name, [SLOVENE_TEXT.read_text(encoding="utf-8")[:200_000], *LINES, "\n".join(LINES)])
    hits, misses = made(name)[0].counts
    assert hits > 2 * misses > 0


@pytest.mark.slow
@pytest.mark.long
def test_every_code_point_is_cut_as_by_the_library() -> None:
    """Between letters, and between spaces, so that its category decides."""
    code_points = [*range(0xD800), *range(0xE000, 0x11000), *range(0x1F000, 0x20000)]
    for name in ("GPT-2", "Llama 3", "digits", "runs of digits"):
        require_equal(
            name, ["".join(f"a{chr(c)}1{chr(c)} {chr(c)}" for c in code_points[i : i + 5000]) for i in range(0, len(code_points), 5000)]
        )


def test_categories_are_those_of_unicode() -> None:
    found = categories()
    assert [found[ord(c)] for c in "ač漢"] == [LETTER] * 3
    assert [found[ord(c)] for c in "1٣½"] == [NUMBER] * 3
    assert [chr(c) for c in np.flatnonzero(found[:0x3001] == WHITE_SPACE)] == list(
        "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
    )


@pytest.mark.long
def test_text_that_is_taken_to_be_nfc_is() -> None:
    """Each of its characters beside each."""
    characters = [chr(c) for c in range(0x3000) if _INERT.fullmatch(chr(c))]
    assert len(characters) > 1_000 and set("aščćđžйжß–…€") <= set(characters) and not {"\u0301", "\u2126", "\u212b"} & set(characters)
    text = "".join(f"{one}{other}" for one in characters for other in characters)
    assert normalizers.NFC().normalize_str(text) == text


def test_words_part_only_where_no_merge_joins() -> None:
    tokenizer = Tokenizer(models.BPE({MARK: 0, "a": 1, ",": 2, "a,": 3, f"{MARK}a": 4, f"{MARK}{MARK}": 5, "\n": 6, "<unk>": 7},
                                     [("a", ","), (MARK, "a"), (MARK, MARK)], unk_token="<unk>"))  # fmt: skip
    tokenizer.normalizer = normalizers.Replace(" ", MARK)
    cuts = word_rules(tokenizer).cuts

    def parts(pair: str) -> bool:
        return bool(cuts[ord(pair[0]) if pair[0] < "\x80" else 128, ord(pair[1]) if pair[1] < "\x80" else 128])

    assert [parts(pair) for pair in ("a ", ", ", "\n ", ",a", "\na", "a\n", "aa", "ča")] == [True] * 8
    assert [parts(pair) for pair in ("a,", " a", "  ")] == [False] * 3
    assert [parts(pair) for pair in ("čš", "xy", "xč")] == [False] * 3  # unknown ones may become one <unk>


def refused(change: Callable[[Tokenizer], object], name: str = "Mistral", **model: object) -> str:
    description = json.loads(MAKERS[name]().to_str())
    description["model"].update(model)
    tokenizer = Tokenizer.from_str(json.dumps(description))
    change(tokenizer)
    with pytest.raises(NotExactError) as error:
        word_rules(tokenizer)
    assert isinstance(word_encoder(tokenizer), LibraryEncoder)
    return str(error.value)


def test_what_is_not_exact_goes_to_the_library() -> None:
    def nothing(tokenizer: Tokenizer) -> None:
        pass

    def added(tokenizer: Tokenizer) -> None:
        tokenizer.add_tokens(["beseda"])

    def many_added(tokenizer: Tokenizer) -> None:
        tokenizer.add_tokens([AddedToken("\n" * i, normalized=False) for i in range(2, 20)])

    def digits(tokenizer: Tokenizer) -> None:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel()])

    def stripped(tokenizer: Tokenizer) -> None:
        tokenizer.normalizer = normalizers.Strip()

    def unsplit(tokenizer: Tokenizer) -> None:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)

    def plain_spaces(tokenizer: Tokenizer) -> None:
        tokenizer.normalizer = normalizers.NFC()

    def space_in_front(tokenizer: Tokenizer) -> None:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(" ", MARK), normalizers.Prepend(" ")])

    def one_byte_less(tokenizer: Tokenizer) -> str:
        description = json.loads(tokenizer.to_str())
        del description["model"]["vocab"]["<0x41>"]
        with pytest.raises(NotExactError) as error:
            word_rules(Tokenizer.from_str(json.dumps(description)))
        return str(error.value)

    assert refused(added) == "its added tokens are matched in normalized text"
    assert refused(many_added) == "18 tokens were added to it, and it puts a space before its texts"
    assert refused(digits, "GPT-2") == "its pre-tokenizer is unknown"
    assert refused(stripped, "metaspace first") == "where its text begins depends on what its normalizer takes away"
    assert refused(unsplit, "unigram") == "its Unigram model may join across spaces"
    assert refused(space_in_front) == "it does not write spaces as ▁"
    assert refused(plain_spaces) == "it does not write spaces as ▁"
    assert refused(nothing, "no bytes", unk_token=None) == "it drops unknown characters"
    assert one_byte_less(space_marked()) == "some bytes have no token"


def test_settings_that_cut_or_pad_texts_are_not_used() -> None:
    tokenizer = MAKERS["GPT-2"]()
    expected = len(tokenizer.encode("ena dva tri štiri").ids)
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=50)
    for encoder in (LibraryEncoder(tokenizer), word_encoder(tokenizer)):
        assert len(encoder.encode(["ena dva tri štiri"], END)[0]) == expected + 1


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_ids_of_a_trained_tokenizer_are_those_of_sentencepiece(tokenizer_dir: Path, tmp_path: Path, byte_fallback: bool) -> None:
    from sentencepiece import SentencePieceProcessor

    directory = tokenizer_dir
    if not byte_fallback:
        directory = tmp_path / "t"
        train_tokenizer(Documents([SLOVENE_TEXT]), directory, vocab_size=1500, byte_fallback=False)
    reference = SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
    tokenizer = load_tokenizer(directory).backend_tokenizer
    encoder = word_encoder(tokenizer)
    assert isinstance(encoder, WordEncoder)
    texts = [*ADVERSARIAL_TEXTS, *LINES, "\n".join(LINES)]
    ids, lengths = encoder.encode(texts, END)
    rows = [row.tolist()[:-1] for row in np.split(ids, np.cumsum(lengths)[:-1])]
    assert rows == reference.encode(texts)
    # Nothing is normalized away: but a literal mark comes back as a space, and without byte fallback what is unknown is lost.
    for text, row in zip(texts, rows):
        decoded = tokenizer.decode(row, skip_special_tokens=False)
        assert decoded == text.replace(MARK, " ") or (not byte_fallback and 3 in row)


def real_tokenizer(shared: Path, name: str, tmp_path: Path) -> Tokenizer:
    if name == "OPT":
        for file in ("vocab.json", "merges.txt"):
            (tmp_path / file).write_bytes((shared / "opt_gpt2_bpe" / file).read_bytes())
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", "eos_token": "</s>"}))
        return load_tokenizer(tmp_path).backend_tokenizer
    folder = shared / {"Mistral": "mistral_v1"}[name]
    return load_tokenizer(folder).backend_tokenizer


def require_equal_on(paths: list[Path], tokenizer: Tokenizer) -> None:
    encoder, library = word_encoder(tokenizer), LibraryEncoder(tokenizer)
    assert isinstance(encoder, WordEncoder)
    for path in paths:
        batch: list[str] = []
        for text in [*Documents([path]), ""]:
            batch.append(text)
            if not text or sum(map(len, batch)) > 1 << 20:
                for found, expected in zip(encoder.encode(batch, END), library.encode(batch, END)):
                    assert np.array_equal(found, expected), path
                batch = []


@pytest.mark.some(1)
@pytest.mark.parametrize("name", ["OPT", "Mistral"])
def test_real_tokenizers_on_real_text_of_five_languages(shared_data: Path, tmp_path: Path, name: str) -> None:
    text = shared_data / "text"
    paths = [text / f"{language}/gnome_help.jsonl.gz" for language in ("sl", "it", "en", "hr", "sr")]
    require_equal_on(
        [*paths, text / "sr/ud_set.jsonl.gz", text / "it/php_manual.jsonl.gz"], real_tokenizer(shared_data / "tokenizers", name, tmp_path)
    )


def test_random_merges_are_refused() -> None:
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.model.dropout = 0.1
    with pytest.raises(
        ValueError, match=r"^the tokenizer leaves out merges at random \(dropout 0.1\), so that a text has other tokens each time"
    ):
        word_encoder(tokenizer)
