"""The exact bytes that each token of a vocabulary stands for, whatever the tokenizer's way of spelling them.

`Ġčas` of a byte-level vocabulary is spelled with letters for bytes, `▁čas` of a SentencePiece one with a mark for the
space, `<0x0A>` names a byte, and WordPiece marks the tokens that do *not* follow a space.  Only the bytes can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep.tokenizers.token_bytes import BYTE_TO_CHARACTER, BYTE_TOKEN, Spelling, bytes_of, spelling_of, stands_alone

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ROLES = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")


class Kind(IntEnum):
    """What an id of a vocabulary is."""

    TEXT = 0  # stands for bytes of text
    BYTE = 1  # `<0xXX>`: the last resort of SentencePiece for one byte
    SPECIAL = 2  # a sign with a role, never part of a text
    HOLE = 3  # an id below the highest one that no token has


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a tokenizer by id.

    Attributes:
        tokens: the spelling in the tokenizer's files; None where no token has the id.
        token_bytes: the bytes of text a token stands for; None for special tokens and holes.
        kinds: (num_tokens,) of `Kind`.
        roles: role (`bos`, `eos`, ...) -> id, for the roles that the tokenizer fills.
        model: the tokenizer's model (BPE, Unigram or WordPiece) without normalizer and pre-tokenizer.
        unknown_id: what the model writes for what it cannot spell.
        merges: the pairs that BPE joins, from the first to the last; None for other models.
    """

    tokens: tuple[str | None, ...]
    token_bytes: tuple[bytes | None, ...]
    kinds: np.ndarray
    roles: Mapping[str, int]
    spelling: Spelling
    model: Any
    unknown_id: int | None
    merges: tuple[tuple[str, str], ...] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast) -> Vocabulary:
        """Read the vocabulary of a fast tokenizer.

        Raises:
            ValueError: if its model is none of BPE, Unigram and WordPiece, or marks the ends of words instead of their beginnings.
        """
        backend = tokenizer.backend_tokenizer
        description = json.loads(backend.to_str())
        spelling = spelling_of(description)
        ids = backend.get_vocab(with_added_tokens=True)
        tokens: list[str | None] = [None] * (max(ids.values(), default=-1) + 1)
        for token, token_id in ids.items():
            tokens[token_id] = token
        unknown_id = _unknown_id(description["model"], ids)
        roles = _roles(tokenizer, ids, unknown_id)
        added = {entry["id"]: entry for entry in description["added_tokens"]}
        special_ids = {*roles.values(), *(i for i, entry in added.items() if entry["special"]), *tokenizer.all_special_ids}
        kinds = np.full(len(tokens), Kind.TEXT, dtype=np.uint8)
        token_bytes: list[bytes | None] = [None] * len(tokens)
        for token_id, token in enumerate(tokens):
            if token is None:
                kinds[token_id] = Kind.HOLE
            elif token_id in special_ids:
                kinds[token_id] = Kind.SPECIAL
            elif spelling.byte_tokens and (match := BYTE_TOKEN.fullmatch(token)):
                kinds[token_id] = Kind.BYTE
                token_bytes[token_id] = bytes([int(match[1], 16)])
            elif token_id in added and spelling.form != "space-marker":
                token_bytes[token_id] = token.encode()  # found in the text as it is written, before any spelling
            else:
                token_bytes[token_id] = bytes_of(token, spelling)
        return cls(tuple(tokens), tuple(token_bytes), kinds, roles, spelling, backend.model, unknown_id, _merges(description["model"]))

    @cached_property
    def is_text(self) -> np.ndarray:
        """(num_tokens,) bool: the token stands for bytes of text."""
        return np.isin(self.kinds, (Kind.TEXT, Kind.BYTE))

    @cached_property
    def byte_lengths(self) -> np.ndarray:
        """(num_tokens,) how many bytes of text a token stands for; 0 for special tokens and holes."""
        return np.array([len(data or b"") for data in self.token_bytes], dtype=np.int64)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """A name for each id that depends on its meaning alone: equal under any spelling and any order of the vocabulary.

        Text reads as itself with `▁` for a space; bytes that are no UTF-8 become private characters, so that n-grams of
        characters stay meaningful.  Tokens of the same bytes are told apart by their kind and their rank among equals.
        """
        seen: dict[str, int] = {}
        keys = []
        hole, special, byte = int(Kind.HOLE), int(Kind.SPECIAL), int(Kind.BYTE)  # members of an enum are slow to look up
        for token_id, (token, data, kind) in enumerate(zip(self.tokens, self.token_bytes, self.kinds.tolist())):
            if kind == hole:
                key = f"\ue200{token_id}"
            elif kind == special:
                key = f"\ue201{token}"
            else:
                key = ("\ue202" if kind == byte else "") + _readable(data or b"")
            rank = seen.get(key, 0)
            seen[key] = rank + 1
            keys.append(f"{key}\ue203{rank}" if rank else key)
        return tuple(keys)

    def pieces(self, data: bytes) -> list[int]:
        """Ids of the tokens into which the tokenizer's model cuts the given bytes.

        The model is asked directly: a normalizer would change the bytes, and a pre-tokenizer would put a space before them.
        What the vocabulary has no token for is left out, so the pieces may cover less than the bytes.
        """
        return [piece for piece in self._cut(data) if self._is_piece[piece]]

    @cached_property
    def _is_piece(self) -> list[bool]:
        is_piece = self.is_text.copy()
        if self.unknown_id is not None:
            is_piece[self.unknown_id] = False
        return is_piece.tolist()

    def _cut(self, data: bytes) -> Iterator[int]:
        if self.spelling.form == "byte-level":
            yield from self._model_ids("".join(BYTE_TO_CHARACTER[byte] for byte in data))
            return
        for text, stray in _utf8_runs(data):
            if self.spelling.form == "wordpiece":
                yield from self._wordpiece_ids(text)
            elif text:
                yield from self._model_ids(text.replace(" ", self.spelling.space_marker or " "))
            yield from (self._byte_ids[byte] for byte in stray if byte in self._byte_ids)

    def _model_ids(self, text: str) -> Iterator[int]:
        return (token.id for token in self.model.tokenize(text))

    def _wordpiece_ids(self, text: str) -> Iterator[int]:
        """Longest match first, as WordPiece does, but a text without a space before it continues a word."""
        for position, word in enumerate(text.split(" ")):
            prefix = self.spelling.continuing_prefix if position == 0 else ""
            while word:
                ends = (end for end in range(len(word), 0, -1) if self._piece_id(prefix + word[:end]) is not None)
                end = next(ends, 0)
                if end:
                    yield self._piece_id(prefix + word[:end])  # type: ignore[misc]
                word = word[max(end, 1) :]
                prefix = self.spelling.continuing_prefix

    def _piece_id(self, piece: str) -> int | None:
        # Punctuation stands alone in WordPiece: it has no continuing form.
        token_id = self.model.token_to_id(piece)
        if token_id is None and piece.startswith(self.spelling.continuing_prefix):
            bare = piece[len(self.spelling.continuing_prefix) :]
            token_id = self.model.token_to_id(bare) if stands_alone(bare) else None
        return token_id

    @cached_property
    def _byte_ids(self) -> dict[int, int]:
        ids = np.flatnonzero(self.kinds == Kind.BYTE)
        return {self.token_bytes[i][0]: int(i) for i in reversed(ids)}  # type: ignore[index]


def _unknown_id(model: dict[str, Any], ids: Mapping[str, int]) -> int | None:
    if model["type"] == "Unigram":
        return model.get("unk_id")
    return ids.get(model["unk_token"]) if model.get("unk_token") else None


def _merges(model: dict[str, Any]) -> tuple[tuple[str, str], ...] | None:
    """Pairs to join; files from before tokenizers 0.20 write them as one string with a space between."""
    if model["type"] != "BPE":
        return None
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    return tuple((first, second) for first, second in pairs)


def _roles(tokenizer: PreTrainedTokenizerFast, ids: Mapping[str, int], unknown_id: int | None) -> dict[str, int]:
    named = {role: getattr(tokenizer, f"{role}_token", None) for role in ROLES}
    roles = {role: ids[str(token)] for role, token in named.items() if token is not None and str(token) in ids}
    if unknown_id is not None:
        roles.setdefault("unk", unknown_id)
    return roles


def _readable(data: bytes) -> str:
    return "".join(text.replace(" ", "▁") + "".join(chr(0xE000 + byte) for byte in stray) for text, stray in _utf8_runs(data))


def _utf8_runs(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Cut bytes into pairs of valid UTF-8 text and the stray bytes after it."""
    while data:
        try:
            yield data.decode(), b""
            return
        except UnicodeDecodeError as error:
            # Lone surrogates and cut-off characters: one stray byte at a time keeps all that follows readable.
            yield data[: error.start].decode(), data[error.start : error.start + 1]
            data = data[error.start + 1 :]
