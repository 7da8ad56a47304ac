"""Training vocabularies: SentencePiece BPE and Unigram from a table of words, byte-level BPE from text; smaller ones from the largest.

A BPE of N merges is the first N merges of a larger one, so several sizes cost one training.  Unigram models are pruned to their size
and share only the table of words.
"""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from data_prep.tokenizers.protobuf import Field, bytes_field, float_field, int_field, read_fields
from data_prep.tokenizers.word_counts import MAX_WORD_CHARACTERS

KINDS = ("bpe", "unigram", "byte-level")
# As in OPT, so that an unchanged model configuration still names the right tokens.
SPECIAL_TOKEN_IDS = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
_MAX_UTF8_BYTES = 4
_ROOM_FOR_COUNT = 32
_STEPS_OF_SCORE = 1024
_NORMAL = 1  # the type of an ordinary piece (sentencepiece_model.proto, SentencePiece.Type)
# The `tokenizers` library would take the spelling of a special token or a byte for the token, were it not sure to be cut into characters.
_SPELLING_CHARACTERS = "<>/0123456789ABCDEFxspadunk"


def train_sentencepiece(
    words: Mapping[str, int], kind: str, vocab_sizes: Sequence[int], *, byte_fallback: bool = True, character_coverage: float = 0.9995
) -> dict[int, bytes]:
    """Serialised SentencePiece models by size; the same words give the same bytes, whatever other sizes are asked for.

    Args:
        words: word -> how often it occurs, from `WordCounts`.
        kind: `bpe` or `unigram`.
        vocab_sizes: number of ids, with the 4 special tokens and the 256 bytes of the fallback.
        byte_fallback: spell characters outside the vocabulary as bytes; otherwise they become <unk>, and line feed and tab
            are pieces of their own.
        character_coverage: share of the text's characters, commonest first, that become pieces of their own.

    Raises:
        ValueError: if the text is too small or too rich for a vocabulary size, naming the nearest possible one.
    """
    if not 0.98 <= character_coverage <= 1:  # SentencePiece's own limits
        raise ValueError(f"--character-coverage is {character_coverage}; expected a share from 0.98 to 1")
    if kind == "unigram":
        return {size: with_exact_sums(_train(words, kind, size, byte_fallback, character_coverage)) for size in vocab_sizes}
    largest = _train(words, kind, max(vocab_sizes), byte_fallback, character_coverage)
    return {size: largest if size == max(vocab_sizes) else smaller_bpe(largest, size) for size in vocab_sizes}


def _train(words: Mapping[str, int], kind: str, vocab_size: int, byte_fallback: bool, character_coverage: float) -> bytes:
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in words.items()),
            input_format="tsv",
            model_writer=model,
            model_type=kind,
            vocab_size=max(vocab_size, len(SPECIAL_TOKEN_IDS)),  # below that, its refusal names no possible size
            byte_fallback=byte_fallback,
            user_defined_symbols=[] if byte_fallback else ["\n", "\t"],
            character_coverage=character_coverage,
            required_chars=_SPELLING_CHARACTERS if kind == "unigram" else "",
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=True,
            max_sentence_length=MAX_WORD_CHARACTERS * _MAX_UTF8_BYTES + _ROOM_FOR_COUNT,
            num_threads=2,  # stored in the model, so it must not depend on the machine
            minloglevel=2,
            bos_piece="<s>",
            bos_id=SPECIAL_TOKEN_IDS["<s>"],
            pad_piece="<pad>",
            pad_id=SPECIAL_TOKEN_IDS["<pad>"],
            eos_piece="</s>",
            eos_id=SPECIAL_TOKEN_IDS["</s>"],
            unk_piece="<unk>",
            unk_id=SPECIAL_TOKEN_IDS["<unk>"],
        )
    except RuntimeError as error:
        raise _explained(error, vocab_size) from error
    return model.getvalue()


def _explained(error: RuntimeError, vocab_size: int) -> Exception:
    """SentencePiece's refusal of a vocabulary size as a sentence; any other error as it is."""
    if found := re.search(r"set it to a value <= (\d+)", str(error)):
        return ValueError(f"--vocab-size {vocab_size} is too large for this text; the largest possible is {found[1]}")
    if found := re.search(r"smaller than required_chars. \d+ vs (\d+)", str(error)):
        return _too_small(vocab_size, int(found[1]))
    return error


def _too_small(vocab_size: int, smallest: int) -> ValueError:
    return ValueError(
        f"--vocab-size {vocab_size} is too small for the characters of this text; the smallest possible is {smallest},"
        " or less with a smaller --character-coverage"
    )


def smaller_bpe(model_proto: bytes, vocab_size: int) -> bytes:
    """The SentencePiece BPE model of a smaller size, bit for bit what training with that size gives.

    A model holds special pieces, then merges in the order they were made, then single characters; the score of an ordinary piece
    is minus its place among them (sentencepiece_model.proto: pieces are field 1, trainer_spec with vocab_size as its field 4 is field 2).

    Raises:
        ValueError: if the size has no room for the special pieces and characters.
    """
    special, ordinary, others = _parts(model_proto)
    characters = [text for text in ordinary if len(text.decode()) == 1]
    num_merges = vocab_size - len(special) - len(characters)
    if num_merges < 0:
        raise _too_small(vocab_size, len(special) + len(characters))
    kept = [*list(ordinary)[:num_merges], *characters]
    settings = [
        bytes_field(2, b"".join(int_field(4, vocab_size) if inner.number == 4 else inner.raw for inner in read_fields(part.value)))
        if part.number == 2 and isinstance(part.value, bytes)
        else part.raw
        for part in others
    ]
    return b"".join([*special, *(_piece(text, -float(place)) for place, text in enumerate(kept)), *settings])


def with_exact_sums(model_proto: bytes) -> bytes:
    """A Unigram model whose scores are multiples of 1/1024, so that sums of them are exact.

    "000" as "00" and "0" or as "0" and "00" has the same score, and rounding decides: SentencePiece adds up in 32 bits and the `tokenizers` library
    in 64.  Sums down to -16,384 are now the same number in both.
    """
    special, ordinary, others = _parts(model_proto)
    rounded = (_piece(text, round(score * _STEPS_OF_SCORE) / _STEPS_OF_SCORE) for text, score in ordinary.items())
    return b"".join([*special, *rounded, *(part.raw for part in others)])


def _parts(model_proto: bytes) -> tuple[list[bytes], dict[bytes, float], list[Field]]:
    """Special pieces as they are, ordinary ones with their scores, and all other fields of a model."""
    special: list[bytes] = []
    ordinary: dict[bytes, float] = {}
    others: list[Field] = []
    for part in read_fields(model_proto):
        if part.number != 1 or not isinstance(part.value, bytes):
            others.append(part)
            continue
        piece = {inner.number: inner.value for inner in read_fields(part.value)}
        text, score = piece[1], piece[2]
        assert isinstance(text, bytes) and isinstance(score, bytes)
        if piece.get(3, _NORMAL) == _NORMAL:
            ordinary[text] = struct.unpack("<f", score)[0]
        else:
            special.append(part.raw)
    return special, ordinary, others


def _piece(text: bytes, score: float) -> bytes:
    return bytes_field(1, bytes_field(1, text) + float_field(2, struct.pack("<f", score)))


def train_byte_level(texts: Iterable[str], vocab_sizes: Sequence[int]) -> dict[int, str]:
    """Byte-level BPE tokenizers (GPT-2's alphabet and way of parting words) by size, as the content of `tokenizer.json`.

    Raises:
        ValueError: if the text is too small for a vocabulary size, or the size for the 256 bytes.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    smallest = len(alphabet) + len(SPECIAL_TOKEN_IDS)
    if min(vocab_sizes) < smallest:
        raise ValueError(f"--vocab-size {min(vocab_sizes)} is too small for the bytes; the smallest possible is {smallest}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=max(vocab_sizes),
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKEN_IDS],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    found = tokenizer.get_vocab_size()
    if found < max(vocab_sizes):
        raise ValueError(f"--vocab-size {max(vocab_sizes)} is too large for this text; the largest possible is {found}")
    backend: dict[str, Any] = json.loads(tokenizer.to_str())
    return {size: json.dumps(_smaller_byte_level(backend, size, smallest), indent=2, ensure_ascii=False) for size in vocab_sizes}


def _smaller_byte_level(backend: Mapping[str, Any], vocab_size: int, smallest: int) -> dict[str, Any]:
    model = backend["model"]
    vocabulary = {token: number for token, number in model["vocab"].items() if number < vocab_size}
    return {**backend, "model": {**model, "vocab": vocabulary, "merges": model["merges"][: vocab_size - smallest]}}
