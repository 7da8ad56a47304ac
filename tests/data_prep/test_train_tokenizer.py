"""Ids are equal in SentencePiece and Hugging Face, nothing of a text is lost or turned into a special token, and the same text gives the same files."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from common.artifacts import check_files, read_manifest
from data_prep.reading.documents import Documents
from data_prep.tokenizers.files import load_tokenizer, tokenizer_digest
from data_prep.tokenizers.sentencepiece_backend import ADVERSARIAL_TEXTS, SPACE
from data_prep.tokenizers.sentencepiece_to_hf import export, require_equal_ids
from data_prep.tokenizers.training import train_byte_level, train_sentencepiece
from data_prep.tokenizers.word_counts import MAX_WORD_CHARACTERS, WordCounts, count_words
from data_prep.train_tokenizer import main, train_tokenizers
from tests.data_prep.packed import refusal
from tests.data_prep.trained import count_texts, train_tokenizer

Write = Callable[[str, str | bytes], Path]


def train(texts: list[str], vocab_size: int, **options: float) -> bytes:
    return train_sentencepiece(count_texts(texts).words, "bpe", [vocab_size], **options)[vocab_size]


@pytest.fixture(scope="module")
def model(tokenizer_dir: Path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(tokenizer_dir / "tokenizer.model"))


@pytest.fixture(scope="module")
def tokenizer(tokenizer_dir: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(str(tokenizer_dir))


@pytest.fixture(scope="module")
def without_fallback(tmp_path_factory: pytest.TempPathFactory, slovene_text: Path) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer") / "unk"
    train_tokenizer(Documents([slovene_text]), directory, vocab_size=1000, byte_fallback=False)
    return directory


def test_loads_as_a_fast_tokenizer_with_the_promised_ids(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.is_fast and len(tokenizer) == tokenizer.vocab_size == 2000
    assert tokenizer.convert_tokens_to_ids(["<s>", "<pad>", "</s>", "<unk>"]) == [0, 1, 2, 3]
    assert (tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2, 3)
    encoded = tokenizer("Dež je padal.")
    assert set(encoded) == {"input_ids", "attention_mask"}
    assert not {0, 1, 2, 3} & set(encoded["input_ids"]), "no special token is added"


@pytest.mark.parametrize("text", ADVERSARIAL_TEXTS, ids=range(len(ADVERSARIAL_TEXTS)))
def test_hostile_text(model: sentencepiece.SentencePieceProcessor, tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = tokenizer(text)["input_ids"]
    assert ids == tokenizer.encode(text) == model.encode(text)
    assert tokenizer.decode(ids) == model.decode(ids) == text.replace(SPACE, " ")
    assert tokenizer.decode(ids, skip_special_tokens=True) == text.replace(SPACE, " "), "text that spells a special token is text"
    assert not {0, 1, 2, 3} & set(ids)


@settings(max_examples=500, deadline=None)
@given(text=st.text(max_size=60) | st.text(alphabet="aačeijnors vk.▁\n<>/", max_size=60))
def test_any_text(model: sentencepiece.SentencePieceProcessor, tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = tokenizer(text)["input_ids"]
    assert ids == model.encode(text)
    assert tokenizer.decode(ids) == text.replace(SPACE, " ")


def test_any_sequence_of_pieces(model: sentencepiece.SentencePieceProcessor, tokenizer: PreTrainedTokenizerFast) -> None:
    """Where merges compete: pieces glued together are seldom tokenized into the same pieces again."""
    random.seed(0)
    pieces = [model.id_to_piece(i).replace(SPACE, " ") for i in range(260, 2000)]
    texts = ["".join(random.choices(pieces, k=6)) for _ in range(20_000)]
    assert tokenizer(texts)["input_ids"] == model.encode(texts)


def test_saving_the_loaded_tokenizer_keeps_it(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(str(tmp_path))
    assert tokenizer_digest(again) == tokenizer_digest(tokenizer)
    assert list(map(again.encode, ADVERSARIAL_TEXTS)) == list(map(tokenizer.encode, ADVERSARIAL_TEXTS))


def test_without_fallback_unknown_characters_are_unk_and_line_breaks_are_kept(without_fallback: Path) -> None:
    model = sentencepiece.SentencePieceProcessor(model_file=str(without_fallback / "tokenizer.model"))
    tokenizer = load_tokenizer(without_fallback)
    for text in ADVERSARIAL_TEXTS:
        assert tokenizer(text)["input_ids"] == model.encode(text)
    assert tokenizer.decode(tokenizer.encode("dan\n\tnoč")) == "dan\n\tnoč"
    assert tokenizer.encode("😀😀 漢").count(3) == 2, "one <unk> for neighbouring unknown characters, as in SentencePiece"


def test_manifest_tells_what_the_next_stage_must_know(tokenizer_dir: Path, slovene_text: Path) -> None:
    manifest = read_manifest(tokenizer_dir)
    assert manifest is not None and manifest.stage == "data_prep.train_tokenizer"
    check_files(tokenizer_dir, manifest)
    assert manifest.facts["tokenizer_digest"] == tokenizer_digest(load_tokenizer(tokenizer_dir))
    assert manifest.facts["vocab_size"] == 2000
    assert manifest.facts["special_token_ids"] == {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    assert manifest.facts["num_documents"] == len(slovene_text.read_text(encoding="utf-8").splitlines())
    assert list(manifest.inputs) == [str(slovene_text)]


@pytest.mark.parametrize("kind", ["bpe", "byte-level"])
def test_a_mask_token_is_the_last_id(kind: str, slovene_text: Path, tmp_path: Path) -> None:
    """Beside it the tokenizer is that of one id less; text that spells it is text."""
    without, with_mask = (
        train_tokenizer(Documents([slovene_text]), tmp_path / f"{size}", vocab_size=size, kind=kind, mask_token=size == 600).facts
        for size in (599, 600)
    )
    plain, masked = (load_tokenizer(tmp_path / name) for name in ("599", "600"))
    assert masked.mask_token_id == 599 == len(plain) and len(masked) == 600 == with_mask["vocab_size"]
    assert with_mask["special_token_ids"] == {**without["special_token_ids"], "<mask>": 599}
    assert with_mask["tokenizer_digest"] == tokenizer_digest(masked)
    for text in (*ADVERSARIAL_TEXTS, "a <mask> b"):
        assert masked.encode(text) == plain.encode(text)
    assert masked.decode(masked.encode("a <mask> b")) == "a <mask> b"


def test_same_text_same_files(tokenizer_dir: Path, slovene_text: Path, tmp_path: Path) -> None:
    again = train_tokenizer(Documents([slovene_text]), tmp_path / "again", vocab_size=2000)
    first = read_manifest(tokenizer_dir)
    assert first is not None and again.files == first.files


def trained_on_lines(lines: list[str], kind: str, vocab_size: int) -> bytes:
    """SentencePiece's own way: every line is a sentence."""
    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=proto, model_type=kind, vocab_size=vocab_size, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, max_sentence_length=1 << 20, num_threads=2, minloglevel=2,
        required_chars="<>/0123456789ABCDEFxspadunk" if kind == "unigram" else "",
        bos_id=0, pad_id=1, eos_id=2, unk_id=3,
    )  # fmt: skip
    return proto.getvalue()


def test_words_train_what_lines_train(slovene_text: Path) -> None:
    """The same BPE; of Unigram almost the same, whose candidates come from the distinct words, not from running text."""
    lines = slovene_text.read_text(encoding="utf-8").splitlines()
    models = {
        kind: [
            sentencepiece.SentencePieceProcessor(model_proto=proto)
            for proto in (train_sentencepiece(count_texts(lines).words, kind, [3000])[3000], trained_on_lines(lines, kind, 3000))
        ]
        for kind in ("bpe", "unigram")
    }
    by_words, by_lines = ([(model.id_to_piece(i), model.get_score(i)) for i in range(3000)] for model in models["bpe"])
    assert by_words == by_lines
    by_words, by_lines = (sum(map(len, model.encode(lines))) for model in models["unigram"])
    assert by_words == pytest.approx(by_lines, rel=0.01)


@pytest.mark.parametrize("vocab_size", [1000, 3000])
def test_unigram_scores_add_up_exactly(slovene_text: Path, tmp_path: Path, vocab_size: int) -> None:
    """Words that can be cut in two ways of the same score are cut alike by both libraries, in long texts too."""
    train_tokenizer(Documents([slovene_text]), tmp_path / "out", vocab_size=vocab_size, kind="unigram")
    texts = ["1.250.000", "000 0000 00000 " * 40, "aaa aaaa", "…" * 7, "-" * 50, *slovene_text.read_text(encoding="utf-8").splitlines()]
    require_equal_ids(tmp_path / "out", texts)
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "out/tokenizer.model"))
    assert all((model.get_score(i) * 1024).is_integer() for i in range(vocab_size))


@pytest.mark.slow
def test_smaller_sizes_are_what_training_them_gives(slovene_text: Path) -> None:
    texts = slovene_text.read_text(encoding="utf-8").splitlines()
    words = count_texts(texts).words
    for kind in ("bpe", "unigram"):
        several = train_sentencepiece(words, kind, [900, 2500, 1400])
        assert list(several) == [900, 2500, 1400]
        assert several == {size: train_sentencepiece(words, kind, [size])[size] for size in several}
    several_tokenizers = train_byte_level(texts, [900, 2500, 1400])
    assert several_tokenizers == {size: train_byte_level(texts, [size])[size] for size in several_tokenizers}


@pytest.mark.long
def test_several_tokenizers_from_one_reading(slovene_text: Path, tmp_path: Path, tokenizer_dir: Path) -> None:
    """Each folder is what training it alone gives, and each tokenizer gives text back."""
    kinds, sizes = ["bpe", "unigram", "byte-level"], [2000, 1000]
    manifest = train_tokenizers(Documents([slovene_text]), tmp_path / "out", kinds=kinds, vocab_sizes=sizes)
    check_files(tmp_path / "out", manifest)
    names = [f"{kind}-{size}" for kind in kinds for size in sizes]
    assert sorted(manifest.facts["tokenizers"]) == sorted(names)
    for name in names:
        tokenizer = load_tokenizer(tmp_path / "out" / name)
        found = read_manifest(tmp_path / "out" / name)
        assert found is not None and found.facts["tokenizer_digest"] == tokenizer_digest(tokenizer)
        assert found.facts == manifest.facts["tokenizers"][name]
        assert len(tokenizer) == found.facts["vocab_size"] == int(name.rpartition("-")[2])
        assert (tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2, 3)
        for text in ADVERSARIAL_TEXTS:
            ids = tokenizer.encode(text)
            assert tokenizer.decode(ids) == (text if name.startswith("byte") else text.replace(SPACE, " "))
            assert not {0, 1, 2, 3} & set(ids)
    alone = read_manifest(tokenizer_dir)
    assert alone is not None and all(record == manifest.files[f"bpe-2000/{file}"] for file, record in alone.files.items())


def test_names_given_twice(slovene_text: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^--model bpe --vocab-size 900 900 names something twice; name each once$"):
        train_tokenizers(Documents([slovene_text]), tmp_path / "out", kinds=["bpe"], vocab_sizes=[900, 900])


def test_a_long_line_is_text_like_any_other(slovene_text: Path) -> None:
    """SentencePiece drops lines over its limit in silence; one document of one line would teach it nothing."""
    lines = slovene_text.read_text(encoding="utf-8").splitlines()
    one_line = " ".join(lines)
    assert len(one_line) > 5 * MAX_WORD_CHARACTERS
    assert train([one_line], 1000) == train(lines, 1000)


def test_a_long_word_is_cut_not_dropped(slovene_text: Path) -> None:
    """As long as words may be, of four bytes a character; dropped, its character would not be among the pieces."""
    text = slovene_text.read_text(encoding="utf-8").splitlines()
    word = "\U00010348" * (MAX_WORD_CHARACTERS + 5)
    counts = count_texts([*text, word])
    assert {len(found): count for found, count in counts.words.items() if "\U00010348" in found} == {MAX_WORD_CHARACTERS: 1, 5: 1}
    model = sentencepiece.SentencePieceProcessor(model_proto=train([*text, word], 1000))
    assert "\U00010348" in {model.id_to_piece(i) for i in range(1000)}


def test_a_line_with_reserved_characters_is_not_left_out(slovene_text: Path) -> None:
    text = slovene_text.read_text(encoding="utf-8")
    assert train([text.replace(" je ", "\0je\u2585")], 1000) == train([text], 1000)
    counts = count_texts(["a\0b\u2585\u2585c\td"])
    assert counts.words == {"a": 1, "b": 1, "c": 1, "d": 1} and counts.lost_bytes == 8


@given(st.lists(st.text(alphabet="ab \n\t", max_size=60), max_size=5))
def test_words_are_counted_as_by_hand(texts: list[str]) -> None:
    counts = count_texts(texts)
    assert sorted(counts.words.elements()) == sorted(word for text in texts for word in text.split())
    assert counts.num_documents + counts.num_empty == len(texts) and counts.num_empty == sum(not text.strip() for text in texts)
    assert set(counts.joints) == {unit for text in texts if text.strip() for unit in text.replace("\t", " ").split(" ") if "\n" in unit}


def test_the_rarest_words_are_forgotten_and_counted() -> None:
    counts = WordCounts()
    counts.count("a a a b b č d d e")
    counts.forget_rare(2)  # words seen once go; then those seen twice, as three are left
    assert counts.words == {"a": 3} and counts.lost_bytes == 2 + 1 + 2 + 2
    counts.forget_rare(0)
    assert not counts.words and counts.lost_bytes == 10


def test_same_counts_for_any_number_of_workers(write: Write, slovene_text: Path) -> None:
    text = slovene_text.read_text(encoding="utf-8").splitlines()
    paths = [write(f"{number}.txt", "\n".join(text[number::3])) for number in range(3)]
    one, four = (count_words(Documents(paths), workers=workers, max_distinct=1000) for workers in (1, 4))
    assert list(one.words.items()) == list(four.words.items()) and one == four
    assert len(one.words) <= 1000 and one.lost_bytes


def test_vocabulary_too_large(slovene_text: Path, tmp_path: Path, hidden_leftovers: Callable[[], list[str]]) -> None:
    text = slovene_text.read_text(encoding="utf-8").splitlines()[:20]
    with pytest.raises(ValueError) as error:
        train(text, 90_000)
    largest = int(str(error.value).rpartition(" ")[2])
    assert str(error.value) == f"--vocab-size 90000 is too large for this text; the largest possible is {largest}"
    assert sentencepiece.SentencePieceProcessor(model_proto=train(text, largest)).get_piece_size() == largest
    with pytest.raises(ValueError, match=f"^--vocab-size {largest + 1} is too large for this text; the largest possible is {largest}$"):
        train_tokenizer(_documents(tmp_path, text), tmp_path / "out", vocab_size=largest + 1)
    assert not (tmp_path / "out").exists() and not hidden_leftovers()


@pytest.mark.parametrize("vocab_size", [-1, 0, 100, 272])
def test_vocabulary_too_small(vocab_size: int) -> None:
    text = ["abcdefghijkl"]  # with the space 13 characters, 256 bytes and 4 special tokens
    assert train(text, 273)
    assert refusal(train, text, vocab_size) == (
        f"--vocab-size {vocab_size} is too small for the characters of this text;"
        " the smallest possible is 273, or less with a smaller --character-coverage"
    )


def test_character_coverage_is_a_share() -> None:
    with pytest.raises(ValueError, match=r"^--character-coverage is 0\.5; expected a share from 0\.98 to 1$"):
        train(["a"], 300, character_coverage=0.5)


def test_different_ids_are_an_error_that_names_the_text(tmp_path: Path, slovene_text: Path) -> None:
    """A model with SentencePiece's default normalizer, which has no exact counterpart."""
    lines = slovene_text.read_text(encoding="utf-8").splitlines()
    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=proto, model_type="bpe", vocab_size=500, byte_fallback=True, minloglevel=2
    )
    export(proto.getvalue(), tmp_path)
    with pytest.raises(ValueError) as error:
        require_equal_ids(tmp_path, lines)
    model = sentencepiece.SentencePieceProcessor(model_proto=proto.getvalue())
    found = load_tokenizer(tmp_path).encode(" ")
    assert model.encode(" ") == [] != found
    assert str(error.value) == (
        f"the ids of ' ' are [] in SentencePiece, but {found} in the exported Hugging Face tokenizer;"
        " train again with another --vocab-size or without the text that differs"
    )


def test_every_line_of_a_document_is_compared(tmp_path: Path) -> None:
    """An id list that is right for a document but wrong for its second line alone."""
    directory = tmp_path / "tokenizer"
    train_tokenizer(_documents(tmp_path, ["ena dva tri štiri"]), directory, vocab_size=285)
    backend = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    # Prefixes only what does not begin with "d".
    backend["normalizer"]["normalizers"][0] = {"type": "Replace", "pattern": {"Regex": r"\A(?=[^d])"}, "content": SPACE}
    (directory / "tokenizer.json").write_text(json.dumps(backend), encoding="utf-8")
    require_equal_ids(directory, ["ena\ntri"])
    with pytest.raises(ValueError, match=r"^the ids of 'dva' are "):
        require_equal_ids(directory, ["ena\ndva"])


def test_bad_input_is_found_before_training(write: Write, tmp_path: Path, hidden_leftovers: Callable[[], list[str]]) -> None:
    path = write("a.jsonl", '{"text": "a"}\n{"txt": "a"}\n')
    with pytest.raises(ValueError, match=r"line 2 has no key 'text', only 'txt'; name the key of the text with --text-key$"):
        main(["--input", str(path), "--vocab-size", "300", "--output", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists() and not hidden_leftovers()


def test_existing_output_is_refused(write: Write, tmp_path: Path) -> None:
    write("note.txt", "keep me")
    assert (
        refusal(main, ["--input", str(write("a.txt", "a")), "--vocab-size", "300", "--output", str(tmp_path)])
        == f"the output directory {tmp_path} exists and is not empty; remove it or choose another --output"
    )
    assert (tmp_path / "note.txt").read_text() == "keep me"


def test_command(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("a.jsonl.gz", gzip.compress(json.dumps({"body": "Dan\n\nje lep."}).encode()))
    arguments = ["--input", str(path), "--text-key", "body", "--vocab-size", "270", "--output", str(tmp_path / "out")]
    assert main(arguments) == 0
    assert capsys.readouterr().out == (
        f"{tmp_path / 'out'}: 270 ids, trained on 1 documents (0.0 MB, 0.00% of it left out); ids are equal in SentencePiece and Hugging Face on every word\n"
    )
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None and manifest.arguments["input"] == [str(path)] and manifest.facts["byte_fallback"] is True


def test_options_that_contradict(write: Write, tmp_path: Path) -> None:
    path = write("a.txt", "dan " * 300)
    common = ["--vocab-size", "300", "--output", str(tmp_path / "out")]
    for arguments, sentence in {
        (): "give either --input FILE... or --corpora YAML",
        ("--input", str(path), "--compare", "x"): "--compare names tokenizers for a --report, which is not asked for; add --report DIR",
        ("--input", str(path), "--workers", "0"): "--workers is 0; expected at least 1",
        ("--input", str(tmp_path / "out")): f"the input file {tmp_path / 'out'} does not exist",
        ("--input", str(path), "--model", "bpe", "byte-level", "--vocab-size", "100", "266"): (
            "--vocab-size 100 is too small for the characters of this text; the smallest possible is 264, or less with a smaller --character-coverage"
        ),
        ("--input", str(path), "--model", "byte-level", "--vocab-size", "100"): (
            "--vocab-size 100 is too small for the bytes; the smallest possible is 260"
        ),
        ("--input", str(path), "--model", "byte-level", "--vocab-size", "9000"): (
            "--vocab-size 9000 is too large for this text; the largest possible is 263"
        ),
    }.items():
        assert refusal(main, [*common, *arguments]) == sentence
        assert not (tmp_path / "out").exists()


def test_long_lines_are_refused_where_they_stand(write: Write, tmp_path: Path) -> None:
    path = write("a.txt", "dan\n" + "a" * (2 << 20) + "\n")
    assert (
        refusal(main, ["--input", str(path), "--vocab-size", "300", "--max-document-mib", "1", "--output", str(tmp_path / "out")])
        == f"{path}, line 2: the line is longer than 1 MiB; split it, or allow more with --max-document-mib"
    )


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("byte_fallback", [True, False])
def test_real_text(shared_data: Path, tmp_path: Path, byte_fallback: bool) -> None:
    """Slovene news and help, tokenizer of 16,000; then text of other languages that it never saw."""
    text = shared_data / "text"
    documents = Documents([text / "sl/ud_ssj.jsonl.gz", text / "sl/gnome_help.jsonl.gz"])
    train_tokenizer(documents, tmp_path / "out", vocab_size=16_000, byte_fallback=byte_fallback)
    unseen = Documents([text / "sr/gnome_help.jsonl.gz", text / "it/kind_fiction.jsonl.gz"])
    require_equal_ids(tmp_path / "out", unseen)
    if byte_fallback:
        tokenizer = load_tokenizer(tmp_path / "out")
        for document in [*documents, *unseen]:
            assert tokenizer.decode(tokenizer.encode(document)) == document


def _documents(directory: Path, lines: list[str]) -> Documents:
    path = directory / "lines.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return Documents([path])
