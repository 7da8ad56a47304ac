"""How tokenizers spell bytes: from a token to its bytes of text, and back.

`Ġčas` of a byte-level vocabulary is spelled with letters for bytes, `▁čas` of a SentencePiece one with a mark for the
space, `<0x0A>` names a byte, and WordPiece marks the tokens that do *not* follow a space.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

_CHINESE = (("\u3400", "\u4dbf"), ("\u4e00", "\u9fff"), ("\uf900", "\ufaff"), ("\U00020000", "\U0002fa1f"))


@dataclass(frozen=True)
class Spelling:
    """How a tokenizer writes bytes as tokens.

    Attributes:
        form: `byte-level`, `space-marker`, `wordpiece` or `plain`.
        space_marker: the character that stands for a space (`▁`), where the form is `space-marker`.
        continuing_prefix: what begins a token that continues a word (`##`), where the form is `wordpiece`.
        byte_tokens: whether `<0xXX>` stands for a byte.
    """

    form: str
    space_marker: str = ""
    continuing_prefix: str = ""
    byte_tokens: bool = False


def bytes_of(token: str, spelling: Spelling) -> bytes:
    """The bytes of text that an ordinary token stands for."""
    if spelling.form == "byte-level":
        try:
            return bytes(_CHARACTER_TO_BYTE[character] for character in token)
        except KeyError:  # a token that was put into the vocabulary as plain text
            return token.encode()
    if spelling.form == "space-marker":
        return token.replace(spelling.space_marker, " ").encode()
    if spelling.form == "wordpiece":
        if token.startswith(spelling.continuing_prefix) and token != spelling.continuing_prefix:
            return token[len(spelling.continuing_prefix) :].encode()
        return token.encode() if stands_alone(token) else b" " + token.encode()
    return token.encode()


def spell(data: bytes, spelling: Spelling) -> str | None:
    """The token that stands for the given bytes of text, or None where a tokenizer of this kind has no way to write it."""
    if spelling.form == "byte-level":
        return "".join(BYTE_TO_CHARACTER[byte] for byte in data)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if spelling.form == "space-marker":
        return None if spelling.space_marker in text else text.replace(" ", spelling.space_marker)
    if spelling.form == "wordpiece":
        begins_word = text.startswith(" ")
        text = text.removeprefix(" ")
        if not text or any(character.isspace() for character in text) or (begins_word and stands_alone(text)):
            return None
        return text if begins_word or stands_alone(text) else spelling.continuing_prefix + text
    return text


def byte_level_alphabet() -> tuple[str, ...]:
    """The character that byte-level tokenizers write for each byte (Radford et al. 2019, the GPT-2 code).

    Printable characters of Latin-1 stand for their own byte; the other bytes, in order, for the characters from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte) if byte in printable else chr(next(others)) for byte in range(256))


BYTE_TO_CHARACTER = byte_level_alphabet()
_CHARACTER_TO_BYTE = {character: byte for byte, character in enumerate(BYTE_TO_CHARACTER)}


def respellings(tokens: Iterable[str]) -> list[tuple[str, str]]:
    """What a byte-level decoder has to read in place of some added tokens: (expression for the whole token, its bytes as they are spelled).

    An added token stands in the vocabulary as it is written, and the decoder takes what consists of letters such as é and đ for bytes.
    """
    byte_level = Spelling("byte-level")
    return [
        (rf"\A{re.escape(token)}\z", spell(token.encode(), byte_level) or "")
        for token in tokens
        if bytes_of(token, byte_level) != token.encode()
    ]


def respelling_decoder(decoder: Mapping[str, Any] | None, tokens: Iterable[str]) -> Any:
    """A decoder of tokenizer.json that gives added tokens back as they are written, where it is byte-level; else as it is."""
    steps = [{"type": "Replace", "pattern": {"Regex": found}, "content": spelled} for found, spelled in respellings(tokens)]
    known = list(_steps(decoder))
    if not any(step["type"] == "ByteLevel" for step in known):
        return decoder
    new = [step for step in steps if step not in known]
    return {"type": "Sequence", "decoders": [*new, *known]} if new else decoder


def without_respellings(decoder: Mapping[str, Any] | None) -> Any:
    """The decoder as it was before `respelling_decoder`."""
    steps = list(_steps(decoder))
    kept = [step for step in steps if step["type"] != "Replace" or not str(step["pattern"].get("Regex")).startswith(r"\A")]
    return decoder if len(kept) == len(steps) else kept[0] if len(kept) == 1 else {"type": "Sequence", "decoders": kept}


def spelling_of(description: dict[str, Any]) -> Spelling:
    """Read from the content of a tokenizer.json how the tokenizer spells.

    Raises:
        ValueError: if its model is none of BPE, Unigram and WordPiece, or marks the ends of words instead of their beginnings.
    """
    model = description["model"]
    kind = model.get("type")
    if kind not in ("BPE", "Unigram", "WordPiece"):
        raise ValueError(f"the tokenizer's model is {kind}; supported are BPE, Unigram and WordPiece")
    if kind == "WordPiece":
        return Spelling("wordpiece", continuing_prefix=model.get("continuing_subword_prefix") or "##")
    if model.get("end_of_word_suffix"):
        raise ValueError(
            f"the tokenizer marks the ends of words with {model['end_of_word_suffix']!r}; known are marks at the beginnings of words, and byte-level"
        )
    steps = [(part, step) for part in ("normalizer", "pre_tokenizer", "decoder") for step in _steps(description.get(part))]
    if any(step["type"] == "ByteLevel" for _, step in steps):
        return Spelling("byte-level")
    byte_tokens = bool(model.get("byte_fallback")) or any(step["type"] == "ByteFallback" for _, step in steps)
    marker = next((found for part, step in steps if (found := _space_marker(part, step))), "")
    return Spelling("space-marker" if marker else "plain", space_marker=marker, byte_tokens=byte_tokens)


def _steps(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder, with sequences flattened."""
    if part is None:
        return
    nested = [value for key in ("normalizers", "pretokenizers", "decoders") for value in part.get(key, ())]
    if nested:
        for inner in nested:
            yield from _steps(inner)
    else:
        yield part


def _space_marker(part: str, step: Mapping[str, Any]) -> str:
    """What a step writes for a space, or reads as one; a normalizer that makes a space of another character says nothing of that."""
    if step["type"] == "Metaspace":
        return step.get("replacement") or "▁"
    if step["type"] == "Replace":
        pattern, content = next(iter(step["pattern"].values()), ""), step.get("content", "")
        of_space, becomes = (pattern, content) if part == "normalizer" else (content, pattern)
        return becomes if of_space == " " else ""
    return ""


def stands_alone(token: str) -> bool:
    """Whether BERT's pre-tokenizer cuts this off its neighbours, so that nothing says if a space came before it."""
    if len(token) != 1:
        return False
    is_ascii_symbol = token.isascii() and token.isprintable() and not token.isalnum()
    is_chinese = any(first <= token <= last for first, last in _CHINESE)
    return is_ascii_symbol or is_chinese or unicodedata.category(token).startswith("P")
