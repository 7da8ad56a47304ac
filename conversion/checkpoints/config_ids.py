"""Token ids in a model's configs, when its vocabulary changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conversion.checkpoints.hf_files import language_part

_PART = "text_config"
_CONFIG_ROLES = ("bos", "eos", "pad", "sep", "cls", "mask", "unk")
_ALWAYS_SET = ("bos", "eos", "pad", "sep")  # also where a config is silent: what transformers assumes then is another tokenizer's
# Tokens that stand for an image or a sound, in either of the library's words.
_BESIDE_TEXT = ("image", "boi", "eoi", "video", "vision_start", "vision_end", "audio", "boa", "eoa")
_IMAGE_KEYS = tuple(f"{token}_token_{word}" for token in _BESIDE_TEXT for word in ("index", "id"))
_OTHER_ID_KEYS = {  # and the role that is meant
    "decoder_start_token_id": "bos",
    "forced_bos_token_id": "bos",
    "forced_eos_token_id": "eos",
    "suppress_tokens": "",
    "begin_suppress_tokens": "",
    **dict.fromkeys(_IMAGE_KEYS, ""),
}


@dataclass(frozen=True)
class Renumbered:
    """A config with new ids, and what is gone from it: (key, old id), each once."""

    config: dict[str, Any]
    lost: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class NewRoles:
    """Ids by role (`bos`, `eos`, ...) in the old tokenizer and in the new one."""

    old: Mapping[str, int]
    new: Mapping[str, int]

    def ids(self, role: str, new_ids: Mapping[int, int]) -> Mapping[int, int]:
        """Old id -> new id where a role is meant: one token often has several of them, which may part."""
        return {**new_ids, self.old[role]: self.new[role]} if role in self.old and role in self.new else new_ids


def with_new_ids(
    config: Mapping[str, Any], new_ids: Mapping[int, int], *, roles: NewRoles | None = None, num_rows: int | None = None
) -> Renumbered:
    """A config whose token ids are renumbered, also those of a language model in it; those that are gone are left out of lists, or unset.

    The token of an image that is gone becomes one that no text has, as transformers cannot run a model without it.

    Args:
        new_ids: old id -> new id.
        roles: of another tokenizer, whose token for a role goes first; None where it is the same tokenizer.
        num_rows: of the new vocabulary.
    """
    part = language_part(config)
    if part is not None:
        whole = with_new_ids({key: value for key, value in config.items() if key != _PART}, new_ids, roles=roles, num_rows=num_rows)
        inner = with_new_ids(part, new_ids, roles=roles, num_rows=num_rows)
        ordered = {key: inner.config if key == _PART else whole.config[key] for key in config}
        return Renumbered(whole.config | ordered, tuple(dict.fromkeys((*whole.lost, *inner.lost))))
    roles = roles or NewRoles({}, {})
    gone: dict[tuple[str, int], None] = {}
    changed = dict(config)
    for role in _CONFIG_ROLES:
        key = f"{role}_token_id"
        if key not in config and not (role in roles.new and role in _ALWAYS_SET):
            continue
        old, of_role = config.get(key), roles.new.get(role)
        if of_role is None:
            changed[key] = _renumbered(key, old, new_ids, gone)
        elif isinstance(old, list):  # besides the role's token others, such as the end of a turn
            others = _renumbered(key, old, roles.ids(role, new_ids), gone) or []
            changed[key] = list(dict.fromkeys(others if of_role in others else [of_role, *others]))
        else:
            changed[key] = of_role
    for key, role in _OTHER_ID_KEYS.items():
        if key in config:
            changed[key] = _renumbered(key, config[key], roles.ids(role, new_ids), gone)
            if key in _IMAGE_KEYS and changed[key] is None and config[key] is not None:
                changed[key] = num_rows
    for key, words in _WORD_KEYS.items():
        if isinstance(config.get(key), list):
            found = [words(key, word, new_ids, gone) for word in config[key]]
            changed[key] = [word for word in found if word is not None] or (None if config[key] else [])
    return Renumbered(changed, tuple(gone))


def sees_nothing(renumbered: Renumbered) -> bool:
    """Whether tokens that stand for an image are gone."""
    return any(key in _IMAGE_KEYS for key, _ in renumbered.lost)


def _renumbered(key: str, ids: Any, new_ids: Mapping[int, int], gone: dict[tuple[str, int], None]) -> Any:
    """An id, or those of a list that are left; None where nothing is."""
    if isinstance(ids, list):
        found = [new for new in (_renumbered(key, old, new_ids, gone) for old in ids) if new is not None]
        return found if found or not ids else None
    if not isinstance(ids, int) or isinstance(ids, bool) or ids < 0:  # negative ones stand for no token
        return ids
    if ids not in new_ids:
        gone[key, ids] = None
    return new_ids.get(ids)


def _word(key: str, word: Any, new_ids: Mapping[int, int], gone: dict[tuple[str, int], None]) -> Any:
    """A word of several ids, whole or not at all: what remains of it would be another; or alternatives to choose a word from."""
    if isinstance(word, list) and any(isinstance(part, list) for part in word):
        return [found for found in (_word(key, part, new_ids, gone) for part in word) if found is not None] or None
    found = _renumbered(key, word, new_ids, gone)
    return found if not isinstance(word, list) or (found is not None and len(found) == len(word)) else None


def _biased_word(key: str, pair: Any, new_ids: Mapping[int, int], gone: dict[tuple[str, int], None]) -> Any:
    """A pair of a word and what is added to its score."""
    word = _word(key, pair[0], new_ids, gone)
    return None if word is None else [word, *pair[1:]]


def _placed_id(key: str, pair: Any, new_ids: Mapping[int, int], gone: dict[tuple[str, int], None]) -> Any:
    """A pair of a position and an id."""
    token_id = _renumbered(key, pair[1], new_ids, gone)
    return None if token_id is None else [pair[0], token_id]


_WORD_KEYS = {"bad_words_ids": _word, "force_words_ids": _word, "sequence_bias": _biased_word, "forced_decoder_ids": _placed_id}
