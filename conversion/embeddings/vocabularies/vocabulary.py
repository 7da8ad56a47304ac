"""The exact bytes of each token of a vocabulary, however the tokenizer spells them.

`Ġčas` of a byte-level vocabulary is spelled with letters for bytes, `▁čas` of a SentencePiece one with a mark for the
space, `<0x0A>` names a byte, and WordPiece marks the tokens that do *not* follow a space.  Only the bytes can be compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from conversion.embeddings.vocabularies.packed_texts import PackedBytes, PackedStrings
from data_prep.tokenizers.files import backend_rows
from data_prep.tokenizers.plain_tokenizer import AnyTokenizer, described, special_token
from data_prep.tokenizers.token_bytes import BYTE_TO_CHARACTER, BYTE_TOKEN, Spelling, bytes_of, spelling_of, stands_alone

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

# End of text before its beginning: of a token with both roles texts teach only the end, where it is to be predicted.
ROLES = ("eos", "bos", "unk", "pad", "cls", "sep", "mask")
_BLOCK_TOKENS = 8192  # that are objects of Python at a time
_BYTE_TOKEN_LENGTH = len("<0x00>")


class Kind(IntEnum):
    """What an id of a vocabulary is."""

    TEXT = 0  # stands for bytes of text
    BYTE = 1  # `<0xXX>`: the last resort of SentencePiece for one byte
    SPECIAL = 2  # a sign with a role, never part of a text
    HOLE = 3  # an id below the highest one that no token has
    UNREACHED = 4  # would stand for bytes of text, but no text is cut into it, so that its row was never trained; see `as_source`


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a tokenizer by id.

    Attributes:
        tokens: the spelling in the tokenizer's files; None where no token has the id.
        token_bytes: the bytes of text a token stands for; None for special tokens and holes.
        kinds: (num_tokens,) of `Kind`.
        roles: role (`bos`, `eos`, ...) -> id, for the roles that the tokenizer fills.
        backend: the tokenizer itself, of the tokenizers library.
        unknown_id: what its model writes for what it cannot spell.
    """

    tokens: PackedStrings
    token_bytes: PackedBytes
    kinds: np.ndarray
    roles: Mapping[str, int]
    spelling: Spelling
    backend: Tokenizer
    unknown_id: int | None

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def of(cls, tokenizer: AnyTokenizer) -> Vocabulary:
        """Read the vocabulary of a fast tokenizer.

        Raises:
            ValueError: if its model is none of BPE, Unigram and WordPiece, or marks the ends of words instead of their beginnings.
        """
        backend = tokenizer.backend_tokenizer
        description = described(backend)
        spelling = spelling_of(description)
        tokens, token_bytes = _packed(backend, spelling)
        unknown_id = _unknown_id(description["model"], backend)
        roles = _roles(tokenizer, unknown_id)
        added = {entry["id"]: entry for entry in description["added_tokens"]}
        special_ids = {*roles.values(), *(i for i, entry in added.items() if entry["special"]), *tokenizer.all_special_ids}
        kinds = np.where(tokens.packed.is_known, Kind.TEXT, Kind.HOLE).astype(np.uint8)
        others: dict[int, bytes | None] = {}
        if spelling.byte_tokens:
            for token_id in np.flatnonzero(tokens.packed.lengths == _BYTE_TOKEN_LENGTH).tolist():
                if match := BYTE_TOKEN.fullmatch(tokens[token_id] or ""):
                    kinds[token_id], others[token_id] = Kind.BYTE, bytes([int(match[1], 16)])
        if spelling.form != "space-marker":  # found in the text as it is written, before any spelling
            others |= {i: entry["content"].encode() for i, entry in added.items() if i not in others}
        for token_id in special_ids:
            if token_id is not None and token_id < len(tokens) and kinds[token_id] != Kind.HOLE:
                kinds[token_id], others[token_id] = Kind.SPECIAL, None
        return cls(tokens, token_bytes.with_others(others), kinds, roles, spelling, backend, unknown_id)

    def as_source(self) -> Vocabulary:
        """The same with the tokens marked that are not a source of rows, because no text is cut into them.

        An added token takes its text before the model sees it, so what contains that is never reached (GPT-NeoX has `    ` and `ĠĠĠĠ`);
        nor is what BPE or Unigram itself cuts into others, or what is cut before the model sees it (`a b`, or `12` where digits stand alone).
        """
        texts = np.flatnonzero(self.kinds == Kind.TEXT).tolist()
        unreached = [*(i for i in texts if not self._is_reached(i)), *self._cut_before_the_model(texts)]
        kinds = self.kinds.copy()
        kinds[unreached] = Kind.UNREACHED
        return replace(self, kinds=kinds)

    def _cut_before_the_model(self, ids: Sequence[int]) -> list[int]:
        """Those that the pre-tokenizer cuts and that come of their own text neither alone nor behind a letter."""
        cutter = self.backend.pre_tokenizer
        if cutter is None:
            return []
        left = {i: text for i in ids if i not in self._added and (text := _text(self.token_bytes[i]))}
        for front in ("", "x"):
            numbers = list(left)
            for start in range(0, len(numbers), _BLOCK_TOKENS):
                block = numbers[start : start + _BLOCK_TOKENS]
                found = self.backend.encode_batch_fast([front + left[i] for i in block], add_special_tokens=False)
                for i, encoding in zip(block, found):
                    if i in encoding.ids:
                        del left[i]
        is_marked = self.spelling.form == "space-marker"
        return [i for i, text in left.items() if len(cutter.pre_tokenize_str((self.tokens[i] or "") if is_marked else text)) > 1]

    def _is_reached(self, token_id: int) -> bool:
        if token_id in self._added:
            return True
        if self._added_text is not None and self._added_text.search(self.token_bytes[token_id] or b""):
            return False
        return self.spelling.form == "wordpiece" or self._model_ids(self.tokens[token_id] or "") == [token_id]

    @cached_property
    def _added(self) -> dict[int, AddedToken]:
        return dict(self.backend.get_added_tokens_decoder())

    @cached_property
    def _added_ids(self) -> dict[bytes, int]:
        """Bytes -> id of the added tokens of text that are found anywhere in a text."""
        return {
            data: i
            for i, token in self._added.items()
            if not token.single_word and self.kinds[i] == Kind.TEXT and (data := self.token_bytes[i])
        }

    @cached_property
    def _added_text(self) -> re.Pattern[bytes] | None:
        """Finds the added tokens of text, the longest first."""
        texts = sorted(self._added_ids, key=len, reverse=True)
        return re.compile(b"|".join(map(re.escape, texts))) if texts else None

    @cached_property
    def model(self) -> Any:
        """The tokenizer's model (BPE, Unigram or WordPiece) without normalizer and pre-tokenizer."""
        return self.backend.model

    @cached_property
    def merges(self) -> tuple[tuple[str, str], ...] | None:
        """The pairs that BPE joins, from the first to the last; None for other models."""
        return _merges(json.loads(self.backend.to_str())["model"])

    @cached_property
    def is_text(self) -> np.ndarray:
        """(num_tokens,) bool: the token stands for bytes of text."""
        return np.isin(self.kinds, (Kind.TEXT, Kind.BYTE))

    @cached_property
    def byte_lengths(self) -> np.ndarray:
        """(num_tokens,) how many bytes of text a token stands for; 0 for special tokens and holes."""
        return self.token_bytes.lengths.astype(np.int64)

    @cached_property
    def keys(self) -> Sequence[str]:
        """A name for each id that depends on its meaning alone: equal under any spelling and any order of the vocabulary.

        Text reads as itself with `▁` for a space; bytes that are not UTF-8 become private characters, so that n-grams of
        characters stay meaningful.  Tokens of the same bytes are distinguished by their kind and their rank among equals.
        """
        made, blocks, hashes = self._keys_without_ranks(), [], []
        while block := list(islice(made, _BLOCK_TOKENS)):
            blocks.append(PackedBytes.of_strings(block, np.ones(len(block), dtype=bool)))
            hashes.append(np.fromiter(map(hash, block), np.int64, len(block)))
        packed, hashed = PackedBytes.concatenated(blocks), np.concatenate([np.empty(0, np.int64), *hashes])
        in_order = np.sort(hashed)
        repeated = in_order[1:][in_order[1:] == in_order[:-1]]
        seen: dict[bytes | None, int] = {}
        ranked: dict[int, bytes | None] = {}
        for token_id in np.flatnonzero(np.isin(hashed, repeated)).tolist():  # all that have an equal, and it may be some that share a hash
            key = packed[token_id]
            rank = seen.get(key, 0)
            seen[key] = rank + 1
            if rank:
                ranked[token_id] = (key or b"") + f"\ue203{rank}".encode()
        return cast(Sequence[str], PackedStrings(packed.with_others(ranked) if ranked else packed))

    def _keys_without_ranks(self) -> Iterator[str]:
        hole, special, byte = int(Kind.HOLE), int(Kind.SPECIAL), int(Kind.BYTE)  # members of an enum are slow to look up
        for token_id, (token, data, kind) in enumerate(zip(self.tokens, self.token_bytes, self.kinds.tolist())):
            if kind == hole:
                yield f"\ue200{token_id}"
            elif kind == special:
                yield f"\ue201{token}"
            else:
                yield ("\ue202" if kind == byte else "") + _readable(data or b"")

    def pieces(self, data: bytes) -> list[int]:
        """Ids of the tokens into which the tokenizer's model cuts the given bytes.

        The model is asked directly: a normalizer would change the bytes, and a pre-tokenizer would put a space before them.
        Added tokens of text go before it.  What the vocabulary has no token for is left out, so the pieces may cover less than the bytes.
        """
        is_piece = self._is_piece
        return [piece for piece in self._cut_around_added(data) if is_piece[piece]]

    def _cut_around_added(self, data: bytes) -> Iterator[int]:
        start = 0
        for found in self._added_text.finditer(data) if self._added_text is not None else ():
            yield from self._cut(data[start : found.start()])
            yield self._added_ids[found[0]]
            start = found.end()
        yield from self._cut(data[start:])

    @cached_property
    def _is_piece(self) -> list[bool]:
        is_piece = self.is_text.copy()
        if self.unknown_id is not None:
            is_piece[self.unknown_id] = False
        return is_piece.tolist()

    def _cut(self, data: bytes) -> list[int]:
        if self.spelling.form == "byte-level":
            return self._model_ids(data.decode("latin-1").translate(_CHARACTER_OF_LATIN))
        if self.spelling.form != "wordpiece":
            try:
                return self._marked_ids(data.decode())  # as nearly all can be read
            except UnicodeDecodeError:
                pass
        ids: list[int] = []
        for text, stray in _utf8_runs(data):
            ids += self._wordpiece_ids(text) if self.spelling.form == "wordpiece" else self._marked_ids(text)
            ids += [self._byte_ids[byte] for byte in stray if byte in self._byte_ids]
        return ids

    def _marked_ids(self, text: str) -> list[int]:
        return self._model_ids(text.replace(" ", self.spelling.space_marker or " ")) if text else []

    def _model_ids(self, text: str) -> list[int]:
        return [token.id for token in self.model.tokenize(text)]

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


def _packed(backend: Tokenizer, spelling: Spelling) -> tuple[PackedStrings, PackedBytes]:
    """The tokens by id, and the bytes that each stands for by its spelling alone."""
    num = backend.get_vocab_size(with_added_tokens=False)
    num += sum(backend.model.token_to_id(token.content) is None for token in backend.get_added_tokens_decoder().values())
    blocks = list(_packed_blocks(backend, spelling, num))
    if not all(tokens.is_known.all() for tokens, _ in blocks):  # ids without a token: the highest is not known by their number
        num = backend_rows(backend)
        blocks = list(_packed_blocks(backend, spelling, num))
    return PackedStrings(PackedBytes.concatenated([tokens for tokens, _ in blocks])), PackedBytes.concatenated([data for _, data in blocks])


def _packed_blocks(backend: Tokenizer, spelling: Spelling, num: int) -> Iterator[tuple[PackedBytes, PackedBytes]]:
    for start in range(0, num, _BLOCK_TOKENS):
        found = list(map(backend.id_to_token, range(start, min(start + _BLOCK_TOKENS, num))))
        is_known = np.array([token is not None for token in found], dtype=bool) if None in found else np.ones(len(found), dtype=bool)
        tokens = [token or "" for token in found]
        yield PackedBytes.of_strings(tokens, is_known), _packed_bytes(tokens, is_known, spelling)


def _packed_bytes(tokens: Sequence[str], is_known: np.ndarray, spelling: Spelling) -> PackedBytes:
    """What `bytes_of` gives for each, of the characters of all at once where each has its own meaning."""
    if spelling.form == "plain":
        return PackedBytes.of_strings(tokens, is_known)
    if spelling.form == "space-marker" and len(spelling.space_marker) == 1:
        return PackedBytes.of_strings(tokens, is_known, as_space=spelling.space_marker)
    if spelling.form != "byte-level":
        return PackedBytes.of(bytes_of(token, spelling) if known else None for token, known in zip(tokens, is_known))
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    characters = np.frombuffer("".join(tokens).encode("utf-32-le"), np.uint32)
    data = _BYTE_OF[np.minimum(characters, len(_BYTE_OF) - 1)]
    packed = PackedBytes(data.astype(np.uint8).tobytes(), lengths, is_known)
    literal = np.unique(np.searchsorted(np.cumsum(lengths), np.flatnonzero(data == _NO_BYTE), side="right"))
    return packed.with_others({i: bytes_of(tokens[i], spelling) for i in literal.tolist()}) if len(literal) else packed


def _bytes_of_characters() -> np.ndarray:
    """The byte of each character of byte-level vocabularies; the last is any other's."""
    table = np.full(max(map(ord, BYTE_TO_CHARACTER)) + 2, _NO_BYTE, np.uint16)
    table[[ord(character) for character in BYTE_TO_CHARACTER]] = np.arange(256)
    return table


_NO_BYTE = 256
_CHARACTER_OF_LATIN = dict(enumerate(BYTE_TO_CHARACTER))
_BYTE_OF = _bytes_of_characters()


def _unknown_id(model: dict[str, Any], backend: Tokenizer) -> int | None:
    if model["type"] == "Unigram":
        return model.get("unk_id")
    return backend.token_to_id(model["unk_token"]) if model.get("unk_token") else None


def _merges(model: dict[str, Any]) -> tuple[tuple[str, str], ...] | None:
    """Pairs to join; files from before tokenizers 0.20 write them as one string with a space between."""
    if model["type"] != "BPE":
        return None
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    return tuple((first, second) for first, second in pairs)


def _roles(tokenizer: AnyTokenizer, unknown_id: int | None) -> dict[str, int]:
    named = {role: special_token(tokenizer, role) for role in ROLES}
    ids = {role: tokenizer.backend_tokenizer.token_to_id(token) for role, token in named.items() if token is not None}
    roles = {role: token_id for role, token_id in ids.items() if token_id is not None}
    if unknown_id is not None:
        roles.setdefault("unk", unknown_id)
    return roles


def _text(data: bytes | None) -> str:
    """What bytes say; empty where they are not text."""
    try:
        return (data or b"").decode()
    except UnicodeDecodeError:
        return ""


def _readable(data: bytes) -> str:
    try:
        return data.decode().replace(" ", "▁")  # as nearly all can be read
    except UnicodeDecodeError:
        pass
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
