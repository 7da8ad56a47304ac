"""The mapping of target tokens to identical source tokens.

Tokens of text are the same when their bytes are; special tokens when their role is.  On request, tokens that differ only in
capitals or in the space before them are taken for alike where no token is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from conversion.embeddings.vocabularies.vocabulary import ROLES, Kind, Vocabulary

# A role that the source does not fill is looked for under the name of its nearest relative: encoders begin with [CLS] and end with [SEP].
RELATED_ROLES = {"bos": ("bos", "cls"), "eos": ("eos", "sep"), "cls": ("cls", "bos"), "sep": ("sep", "eos")}
# Roles that a tokenizer without a token for them gives to another: GPT-2's end of text is also its unknown token, Llama's also the padding.
_OFTEN_BORROWED = ("unk", "pad")


class Match(IntEnum):
    """Why a target token is the same as a source token."""

    NONE = 0
    BYTES = 1
    ROLE = 2  # special token of the same role
    SPELLING = 3  # special token that is spelled the same, where no role says more
    CHOSEN = 4  # named by the user
    CASE = 5  # same but for capitals
    SPACE = 6  # same but for the space before it
    CASE_SPACE = 7  # same but for both


# Each way of matching, from the strictest on: what is compared in the end, and how such a match is called.
MATCHINGS: dict[str, tuple[Match, ...]] = {
    "exact": (),
    "case": (Match.CASE,),
    "space": (Match.SPACE,),
    "case-space": (Match.CASE, Match.SPACE, Match.CASE_SPACE),
}
SPECIAL_MATCHES = (Match.ROLE, Match.SPELLING, Match.CHOSEN)
TEXT_MATCHES = (Match.BYTES, Match.CASE, Match.SPACE, Match.CASE_SPACE)


@dataclass(frozen=True)
class VocabularyMap:
    """The same tokens of two vocabularies.

    Attributes:
        source_ids: (num_target_tokens,) int64, -1 where there is none.
        matches: (num_target_tokens,) of `Match`.
    """

    source_ids: np.ndarray
    matches: np.ndarray

    @property
    def is_matched(self) -> np.ndarray:
        """(num_target_tokens,) bool: there is a same token."""
        return self.source_ids >= 0


def map_vocabulary(
    source: Vocabulary,
    target: Vocabulary,
    *,
    special_tokens: Mapping[str, str] | None = None,
    known_ids: np.ndarray | None = None,
    matching: str = "exact",
) -> VocabularyMap:
    """Find for each target token the source token that is the same.

    Among several source tokens of the same bytes a token of text goes before `<0xXX>`, then the same spelling before others,
    then the lowest id.  `<0xXX>` in the target stands for the source's own `<0xXX>` if the target has also a token of
    text for that byte (then neither is used for it in texts), else for whatever the source writes the byte with.

    Args:
        special_tokens: target token -> source token, both as spelled in their tokenizers; goes before every rule.
        known_ids: (num_target_tokens,) the source id of each token that was taken over from the source as it is, -1 for others; goes
            before all but `special_tokens`.
        matching: one of `MATCHINGS`; what is not exact is looked for only where nothing is the same, whatever the order of the tokens.

    Raises:
        ValueError: if a name in `special_tokens` is not a token of its vocabulary.
    """
    source_ids = np.full(len(target), -1, dtype=np.int64)
    matches = np.full(len(target), Match.NONE, dtype=np.uint8)
    for target_id, source_id in _same_bytes(source, target):
        source_ids[target_id], matches[target_id] = source_id, Match.BYTES
    for target_id, source_id, match in _same_special(source, target):
        source_ids[target_id], matches[target_id] = source_id, match
    if known_ids is not None:
        known = known_ids >= 0
        source_ids[known] = known_ids[known]
        matches[known & target.is_text] = Match.BYTES
        matches[known & ~target.is_text & (matches != Match.ROLE)] = Match.SPELLING  # rows of ids without a token stay as they are
    for match in MATCHINGS[matching]:
        left = np.flatnonzero((source_ids < 0) & (target.kinds == Kind.TEXT))
        for target_id, source_id in _alike(source, target, left.tolist(), match):
            source_ids[target_id], matches[target_id] = source_id, match
    for target_id, source_id in _chosen(source, target, special_tokens or {}):
        source_ids[target_id], matches[target_id] = source_id, Match.CHOSEN
    return VocabularyMap(source_ids, matches)


def _same_bytes(source: Vocabulary, target: Vocabulary) -> Iterator[tuple[int, int]]:
    texts, single_bytes = _ids_by_bytes(source, Kind.TEXT), _ids_by_bytes(source, Kind.BYTE)
    # Only these can be another's that is spelled <0xXX>.
    target_texts = {target.token_bytes[i] for i in np.flatnonzero((target.kinds == Kind.TEXT) & (target.byte_lengths == 1)).tolist()}
    byte = int(Kind.BYTE)  # members of an enum are slow to look up
    for target_id, (data, kind) in enumerate(zip(target.token_bytes, target.kinds.tolist())):
        if not data:
            continue
        first, second = (single_bytes, texts) if kind == byte and data in target_texts else (texts, single_bytes)
        found = first.get(data)
        found = second.get(data) if found is None else found
        if isinstance(found, list):
            spelled_alike = (i for i in found if source.tokens[i] == target.tokens[target_id])
            yield target_id, next(spelled_alike, found[0])
        elif found is not None:
            yield target_id, found


def _ids_by_bytes(vocabulary: Vocabulary, kind: Kind) -> dict[bytes, int | list[int]]:
    """The id of a kind by the bytes that it stands for; a list of them, in ascending order, where there are several."""
    wanted = int(kind)
    if not (vocabulary.kinds == wanted).any():
        return {}
    ids: dict[bytes, int] = {}
    several: dict[bytes, list[int]] = {}
    for token_id, (data, its_kind) in enumerate(zip(vocabulary.token_bytes, vocabulary.kinds.tolist())):
        if data and its_kind == wanted and ids.setdefault(data, token_id) != token_id:
            several.setdefault(data, [ids[data]]).append(token_id)
    return {**ids, **several}


def _alike(source: Vocabulary, target: Vocabulary, ids: Sequence[int], match: Match) -> Iterator[tuple[int, int]]:
    """For target tokens of text the source token of the lowest id that differs only in what the match disregards."""
    lowest: dict[str, int] = {}
    for source_id in np.flatnonzero(source.kinds == Kind.TEXT).tolist():
        if (form := _form(source.token_bytes[source_id], match)) is not None:
            lowest.setdefault(form, source_id)
    for target_id in ids:
        form = _form(target.token_bytes[target_id], match)
        if form is not None and form in lowest:
            yield target_id, lowest[form]


def _form(data: bytes | None, match: Match) -> str | None:
    """What is compared of a token; None for bytes that are not text and for white space, where nothing would be left."""
    try:
        text = (data or b"").decode()
    except UnicodeDecodeError:
        return None
    if not text.strip():
        return None
    if match in (Match.SPACE, Match.CASE_SPACE):
        text = text.removeprefix(" ")
    return text.casefold() if match in (Match.CASE, Match.CASE_SPACE) else text


def _same_special(source: Vocabulary, target: Vocabulary) -> Iterator[tuple[int, int, Match]]:
    roles_of: dict[int, list[str]] = {}
    for role in ROLES:
        if role in target.roles:
            roles_of.setdefault(target.roles[role], []).append(role)
    for target_id in np.flatnonzero(target.kinds == Kind.SPECIAL).tolist():
        by_role = [found for role in roles_of.get(target_id, ()) if (found := _with_role(source, role)) is not None]
        spelled_alike = source.backend.token_to_id(target.tokens[target_id] or "")
        # Where one token has roles that are several tokens' in the source, it is meant to be the one that is spelled alike.
        if spelled_alike is not None and (not by_role or (len({*by_role}) > 1 and source.kinds[spelled_alike] == Kind.SPECIAL)):
            yield target_id, spelled_alike, Match.ROLE if spelled_alike in by_role else Match.SPELLING
        elif by_role:
            yield target_id, by_role[0], Match.ROLE


def _with_role(source: Vocabulary, role: str) -> int | None:
    for related in RELATED_ROLES.get(role, (role,)):
        source_id = source.roles.get(related)
        if source_id is not None and not (related in _OFTEN_BORROWED and _is_borrowed(source, source_id)):
            return source_id
    return None


def _is_borrowed(source: Vocabulary, source_id: int) -> bool:
    """Whether a token has a role of its own besides those that are often borrowed: its row means that role alone."""
    return any(source.roles.get(role) == source_id for role in ROLES if role not in _OFTEN_BORROWED)


def _chosen(source: Vocabulary, target: Vocabulary, special_tokens: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    for target_token, source_token in special_tokens.items():
        for token, vocabulary, side in ((target_token, target, "target"), (source_token, source, "source")):
            if token not in vocabulary.tokens:
                raise ValueError(
                    f"the {side} tokenizer has no token {token!r}; give --special-token TARGET=SOURCE with tokens as they are spelled there"
                )
        yield target.tokens.index(target_token), source.tokens.index(source_token)


def ids_of_same_tokens(source: Vocabulary, target: Vocabulary) -> dict[int, int]:
    """Source id -> target id of the token with the same meaning, else with the same spelling, else with the same role."""
    hole = int(Kind.HOLE)  # members of an enum are slow to look up
    keys, tokens = set(source.keys), {token or "" for token in source.tokens}  # of a large target no more is held than the source asks for
    by_key = {key: i for i, (key, kind) in enumerate(zip(target.keys, target.kinds.tolist())) if kind != hole and key in keys}
    spelled = {token: i for i, token in enumerate(target.tokens) if token in tokens}
    by_role = {source.roles[role]: target.roles[role] for role in reversed(ROLES) if role in source.roles and role in target.roles}
    found = (
        (i, by_key.get(key, spelled.get(token or "", by_role.get(i)))) for i, (key, token) in enumerate(zip(source.keys, source.tokens))
    )
    return {source_id: target_id for source_id, target_id in found if target_id is not None}
