"""What a merge takes from the model of the chat: its template, the special tokens that this names, and where its turns end."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conversion.checkpoints.hf_files import CONFIG_NAME, GENERATION_CONFIG_NAME, language_part, read_json, with_language_values
from conversion.merging.models import Model
from data_prep.tokenizers.files import load_tokenizer, read_tokenizer_files

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_ROLES = ("bos_token", "eos_token")
_TOKENIZER_CONFIG, _TOKENS_MAP = "tokenizer_config.json", "special_tokens_map.json"


def chat_files(source: Model, target: Model) -> dict[str, bytes]:
    """Name -> content of the files of the target that follow the chat of the source.

    The beginning and the end of text are the source's, as its template may name them by their roles, and generation also stops where it
    does in the source.

    Raises:
        ValueError: if the source has no chat template, or one with tokens that the target does not have.
    """
    chat, own = load_tokenizer(source.hf.directory), load_tokenizer(target.hf.directory)
    template = chat.chat_template
    if not isinstance(template, str):
        raise ValueError(f"{source.name} has no chat template, or several; leave --chat-from out, or name another model")
    known, specials = own.get_vocab(), {str(token.content) for token in chat.added_tokens_decoder.values() if token.special}
    roles = {role: str(token) for role in _ROLES if (token := getattr(chat, role)) and token != getattr(own, role)}
    named = {token for role, token in roles.items() if re.search(rf"\b{role}\b", template)}
    if missing := sorted(token for token in specials | named if (token in template or token in named) and token not in known):
        raise ValueError(
            f"the chat template of {source.name} spells {', '.join(missing)}, which {target.name} does not have; give it these with"
            f" `python -m conversion.edit_vocabulary --input {target.hf.directory} --append-tokens FILE --output DIR`"
        )
    roles = {role: token for role, token in roles.items() if token in known}
    files = {"chat_template.jinja": template.encode(), **_tokenizer_configs(target.hf.directory, own, roles)}
    tokens = [*map(chat.convert_ids_to_tokens, _ends(source)), chat.eos_token]
    ids: dict[str, Any] = {f"{role}_id": known[token] for role, token in roles.items()}
    ends = list(dict.fromkeys([*(known[token] for token in tokens if token in known), *_ends(target)]))
    if ends != _ends(target):
        ids["eos_token_id"] = ends if len(ends) > 1 else ends[0]
    for name in (CONFIG_NAME, GENERATION_CONFIG_NAME) if ids else ():
        if (target.hf.directory / name).is_file():
            files[name] = _json_bytes(with_language_values(read_json(target.hf.directory / name, expected=""), **ids))
    return files


def _tokenizer_configs(directory: Path, tokenizer: PreTrainedTokenizerFast, roles: Mapping[str, str]) -> dict[str, bytes]:
    """The files that say which tokens have a role, with some changed, and without a chat template of their own."""
    old = read_tokenizer_files(directory)
    config = (
        json.loads(old[_TOKENIZER_CONFIG])
        if _TOKENIZER_CONFIG in old
        else {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer.special_tokens_map}
    )
    config.pop("chat_template", None)
    files = {_TOKENIZER_CONFIG: _json_bytes({**config, **roles})}
    if _TOKENS_MAP in old:
        files[_TOKENS_MAP] = _json_bytes({**json.loads(old[_TOKENS_MAP]), **roles})
    return files


def _ends(model: Model) -> list[int]:
    """Ids after which generation stops."""
    path = model.hf.directory / GENERATION_CONFIG_NAME
    generation = read_json(path, expected="") if path.is_file() else {}
    ids = generation.get("eos_token_id", (language_part(model.hf.config) or model.hf.config).get("eos_token_id"))
    return [i for i in (ids if isinstance(ids, list) else [ids]) if isinstance(i, int)]


def _json_bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
