"""Folders with SentencePiece's own file alone give the ids of the published tokenizers."""

from __future__ import annotations

import io
import json
import struct
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from transformers import LlamaTokenizer, XLMRobertaTokenizer

from data_prep.reading.documents import Documents
from data_prep.tokenizers.files import load_tokenizer
from data_prep.tokenizers.protobuf import provide_sentencepiece_messages
from data_prep.tokenizers.sentencepiece_backend import ADVERSARIAL_TEXTS
from data_prep.tokenizers.sentencepiece_file import read_settings
from tests.data_prep.packed import refusal
from tests.processes import ROOT

SLOVENE = (ROOT / "recipes/demo_text/sl.train.txt").read_text(encoding="utf-8")
TEXTS = [*SLOVENE[-6000:].split("\n"), "Dva  presledka, tab\tin ½ ﬁ Ａ.", " začetek", "konec ", "漢字 😀"]
LLAMA = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}


@cache
def trained(**options: Any) -> bytes:
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(SLOVENE.split("\n")),
        model_writer=model,
        **{"vocab_size": 700, "minloglevel": 2, "hard_vocab_limit": False} | options,
    )
    return model.getvalue()


def folder(directory: Path, model: bytes, *, name: str = "tokenizer.model", **config: Any) -> Path:
    directory.mkdir()
    (directory / name).write_bytes(model)
    if config:
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def test_settings_are_read() -> None:
    settings = read_settings(trained(**LLAMA))
    assert (settings.model_type, settings.charsmap, settings.add_dummy_prefix, settings.remove_extra_whitespaces) == (2, b"", True, False)
    default = read_settings(trained(model_type="unigram", add_dummy_prefix=False))
    assert (default.model_type, default.add_dummy_prefix, default.remove_extra_whitespaces) == (1, False, True) and len(
        default.charsmap
    ) > 1000


def test_like_llama(tmp_path: Path) -> None:
    directory = folder(tmp_path / "llama", trained(**LLAMA), tokenizer_class="LlamaTokenizer", pad_token="</s>", chat_template="{{ x }}")
    tokenizer = load_tokenizer(directory)
    published = LlamaTokenizer(str(directory / "tokenizer.model"), legacy=True)
    assert len(tokenizer) == len(published) == 700
    for text in [*TEXTS, *(text for text in ADVERSARIAL_TEXTS if "<" not in text and "▁" not in text)]:
        expected = published.sp_model.encode(text)
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == expected
        assert tokenizer(text)["input_ids"] == [1, *expected]  # <s> by the class's default
    assert tokenizer("a</s>b", add_special_tokens=False)["input_ids"].count(2) == 1
    assert (tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token) == ("</s>", "<s>", "</s>", "<unk>")
    assert tokenizer.chat_template == "{{ x }}"
    assert tokenizer.decode(tokenizer(TEXTS[0], add_special_tokens=False)["input_ids"]) == TEXTS[0]


def test_like_mistral_with_pieces_of_several_spaces(tmp_path: Path) -> None:
    model = trained(**LLAMA, user_defined_symbols="")
    spaced = trained(**LLAMA, split_by_whitespace=False, allow_whitespace_only_pieces=True, vocab_size=900)
    for name, proto in (("one", model), ("several", spaced)):
        directory = folder(tmp_path / name, proto)
        processor = SentencePieceProcessor(model_proto=proto)
        tokenizer = load_tokenizer(directory)
        for text in (*TEXTS, "a    b  c", "  "):
            assert tokenizer(text, add_special_tokens=False)["input_ids"] == processor.encode(text)


def test_like_xlm_r(tmp_path: Path) -> None:
    proto = trained(model_type="unigram", normalization_rule_name="identity")
    directory = folder(tmp_path / "xlm-r", proto, name="sentencepiece.bpe.model")
    tokenizer = load_tokenizer(directory)
    published = XLMRobertaTokenizer(str(directory / "sentencepiece.bpe.model"))
    assert tokenizer.get_vocab() == published.get_vocab()
    for text in [*TEXTS, "a\n", "\n", "\ufb01\u0301", "  a  b  "]:
        assert tokenizer(text)["input_ids"] == published(text)["input_ids"], text
    assert tokenizer.mask_token_id == published.mask_token_id == len(published) - 1
    assert (tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2, 3)


def test_added_tokens_follow_the_pieces(tmp_path: Path) -> None:
    directory = folder(tmp_path / "added", trained(**LLAMA))
    (directory / "added_tokens.json").write_text('{"<pad>": 700, "<|user|>": 701}')
    assert load_tokenizer(directory)("<|user|>", add_special_tokens=False)["input_ids"] == [701]
    (directory / "added_tokens.json").write_text('{"<pad>": 705}')
    assert refusal(load_tokenizer, directory) == (
        f"{directory} gives the added token '<pad>' id 705, which does not follow the 701 others; add its tokenizer.json"
    )


@pytest.mark.parametrize("legacy", [True, False])
def test_a_space_before_what_follows_an_added_token(legacy: bool, tmp_path: Path) -> None:
    """`legacy` decides whether there is one, in every conversation; as the class in Python has it, of `tokenizer.model` itself."""
    user = {"content": "<|user|>", "special": True, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    directory = folder(tmp_path / "chat", trained(**LLAMA), legacy=legacy, added_tokens_decoder={"700": user})
    tokenizer = load_tokenizer(directory)
    provide_sentencepiece_messages()
    slow = LlamaTokenizer.from_pretrained(directory, legacy=legacy, extra_special_tokens={"user_token": "<|user|>"})
    for text in ("<|user|>medved", "a<|user|> medved<|user|>", " a", "a", "", "  a b<|user|>\na", "<|user|>", "<|user|><|user|>a"):
        assert tokenizer.tokenize(text) == slow.tokenize(text), text


def appended(proto: bytes, *pieces: str, score: float) -> bytes:
    """A model with more pieces, the field 1 of its file, each with its text as field 1 and its score as field 2."""
    for piece in pieces:
        body = b"\x0a" + bytes([len(piece.encode())]) + piece.encode() + b"\x15" + struct.pack("<f", score)
        proto += b"\x0a" + bytes([len(body)]) + body
    return proto


def test_models_that_the_library_would_read_otherwise_are_refused(tmp_path: Path) -> None:
    proto = trained(**LLAMA)
    assert len(load_tokenizer(folder(tmp_path / "apart", appended(proto, "jjzz", "qqxx", score=0.5)))) == 702
    with pytest.raises(ValueError, match=r"its pieces '(xyz|zwx)' and '(xyz|zwx)' have equal scores and may overlap"):
        load_tokenizer(folder(tmp_path / "merged", appended(proto, "xyz", "zwx", score=0.0)))
    with pytest.raises(ValueError, match="cannot be read as a fast tokenizer: the ids of"):
        load_tokenizer(folder(tmp_path / "nfkc", trained(**LLAMA | {"normalization_rule_name": "nmt_nfkc"})))
    xlm_r = trained(model_type="unigram")  # with letters and marks that its published fast tokenizer takes at once
    with pytest.raises(ValueError, match=r"the ids of 'ﬁ\u0301' are \[\d+, \d+, \d+, 3\] in SentencePiece, but \[\d+, \d+, \d+\] here"):
        load_tokenizer(folder(tmp_path / "xlm-r", xlm_r, name="sentencepiece.bpe.model"))
    own_table = folder(tmp_path / "camembert", proto, name="sentencepiece.bpe.model", tokenizer_class="CamembertTokenizer")
    with pytest.raises(ValueError, match=r"is of 'CamembertTokenizer', whose ids are not those of the file, by a table of its own"):
        load_tokenizer(own_table)
    (own_table / "tokenizer_config.json").unlink()
    (own_table / "config.json").write_text('{"model_type": "mbart"}')
    with pytest.raises(ValueError, match="is of 'mbart'"):
        load_tokenizer(own_table)


def test_unusable_files_are_named(tmp_path: Path) -> None:
    words = folder(tmp_path / "words", trained(model_type="word"))
    assert (
        refusal(load_tokenizer, words)
        == f"{words / 'tokenizer.model'} is a word model; supported are BPE and Unigram: add its tokenizer.json"
    )
    cut = folder(tmp_path / "cut", trained(**LLAMA)[:-20])
    with pytest.raises(ValueError) as error:
        load_tokenizer(cut)
    assert str(error.value).startswith(f"{cut / 'tokenizer.model'} cannot be read: ") and str(error.value).endswith(
        "; copy or download it again"
    )


def test_published_models(shared_data: Path, tmp_path: Path) -> None:
    proto = (shared_data / "tokenizers/mistral_v1/tokenizer.model").read_bytes()
    tokenizer, processor = load_tokenizer(folder(tmp_path / "published", proto)), SentencePieceProcessor(model_proto=proto)
    for language in ("en/gnome_help", "sl/gnome_help", "sr/gnome_help"):
        for text in list(Documents([shared_data / "text" / f"{language}.jsonl.gz"]))[:60]:
            lines = text.split("\n")
            assert tokenizer(lines, add_special_tokens=False)["input_ids"] == processor.encode(lines)
