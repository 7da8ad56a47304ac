"""Token ids in a model's configs, when its vocabulary changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Ids in configs that name no role of the tokenizer; those of the old vocabulary would mean other tokens.
_OTHER_ID_KEYS = (
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
)
_CONFIG_ROLES = ("bos", "eos", "pad", "sep")


def with_ids_of_roles(config: Mapping[str, Any], roles: Mapping[str, int]) -> dict[str, Any]:
    """A config with the ids of another tokenizer: they follow the roles, and those without a role in it are unset.

    Args:
        roles: role (`bos`, `eos`, ...) -> id in that tokenizer.
    """
    changed = dict(config)
    for role in _CONFIG_ROLES:
        key = f"{role}_token_id"
        if key in changed or role in roles:
            changed[key] = roles.get(role)
    return {**changed, **{key: None for key in _OTHER_ID_KEYS if changed.get(key) is not None}}


def with_new_ids(config: Mapping[str, Any], new_ids: Mapping[int, int]) -> dict[str, Any]:
    """A config whose token ids are renumbered; those that are gone are unset.

    Args:
        new_ids: old id -> new id.
    """
    keys = (*(f"{role}_token_id" for role in _CONFIG_ROLES), *_OTHER_ID_KEYS)
    return {**config, **{key: _renumbered(config[key], new_ids) for key in keys if key in config}}


def _renumbered(ids: Any, new_ids: Mapping[int, int]) -> Any:
    """An id, or ids in lists of any depth, by their new numbers; those that are gone are left out of lists."""
    if isinstance(ids, list):
        return [new for new in (_renumbered(old, new_ids) for old in ids) if new is not None]
    return new_ids.get(ids)
