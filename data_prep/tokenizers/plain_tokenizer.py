"""A folder's tokenizer without transformers, where tokenizer.json says all.

Transformers reads tokenizer.json, adds the tokens of tokenizer_config.json that are not in it, and has rules of single models.  To import it takes
longer than to convert a gigabyte, so where the two files show that nothing would be added or changed, tokenizer.json is read alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from common.allocation import return_free_pieces
from common.plain_files import require_plain_files
from data_prep.tokenizers.files import (
    CHAT_TEMPLATES,
    CONFIG_NAME,
    backend_digest,
    backend_rows,
    load_tokenizer,
    require_bounded_ids,
    require_own_ids,
    rows_needed,
    tokenizer_digest,
)

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerFast

# Classes whose only rule is which tokens are special where the config does not say.
_PLAIN_CLASSES = {
    "PreTrainedTokenizerFast": (),
    "TokenizersBackend": (),
    "GPT2Tokenizer": ("<|endoftext|>",),
    "GPT2TokenizerFast": ("<|endoftext|>",),
    "Qwen2Tokenizer": ("<|endoftext|>",),
    "Qwen2TokenizerFast": ("<|endoftext|>",),
}
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_ADDITIONAL, _EXTRA = "additional_special_tokens", "extra_special_tokens"
# What else may stand in the config: it says how texts and batches are handled, not which ids a text has.
_HARMLESS = (
    "tokenizer_class", "added_tokens_decoder", "add_prefix_space", "backend", "chat_template", "clean_up_tokenization_spaces", "errors",
    "is_local", "model_input_names", "model_max_length", "name_or_path", "padding_side", "split_special_tokens", "truncation_side",
)  # fmt: skip
_ADDING = ("add_bos_token", "add_eos_token")
_MAP_NAME = "special_tokens_map.json"  # goes before the config where that has no list of tokens
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_STEPS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
# What the library tells of a model besides its vocabulary and merges.
_MODEL_SETTINGS = {
    "BPE": (
        "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges",
    ),
    "WordPiece": ("unk_token", "continuing_subword_prefix", "max_input_chars_per_word"),
}  # fmt: skip


@dataclass(frozen=True)
class PlainTokenizer:
    """What a transfer asks a tokenizer of transformers, under the same names.

    Attributes:
        directory: its folder.
        special_tokens: role with `_token` -> token.
        additional_special_tokens: special ones without a role.
        chat_template: one, or name -> template of several.
    """

    directory: Path
    backend_tokenizer: Tokenizer
    special_tokens: Mapping[str, str]
    additional_special_tokens: tuple[str, ...]
    chat_template: str | dict[str, str] | None

    def get_vocab(self) -> dict[str, int]:
        """Token -> id."""
        return self.backend_tokenizer.get_vocab(with_added_tokens=True)

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """Id -> token of those that are found in a text before anything else."""
        return self.backend_tokenizer.get_added_tokens_decoder()

    @property
    def all_special_tokens(self) -> list[str]:
        """Each once, those with a role first."""
        return list(dict.fromkeys([*self.special_tokens.values(), *self.additional_special_tokens]))

    @property
    def all_special_ids(self) -> list[int]:
        """Their ids."""
        return [self.backend_tokenizer.token_to_id(token) for token in self.all_special_tokens]


AnyTokenizer: TypeAlias = "PreTrainedTokenizerFast | PlainTokenizer"


def read_tokenizer(directory: Path) -> AnyTokenizer:
    """The tokenizer of a folder, by transformers only where that might make something else of it than its tokenizer.json says.

    Raises:
        ValueError: if it cannot be loaded.
    """
    if Path(directory).is_dir():
        require_plain_files(Path(directory))
    return _plain(Path(directory)) or load_tokenizer(directory)


def by_transformers(tokenizer: AnyTokenizer) -> PreTrainedTokenizerFast:
    """The same tokenizer for what asks it more.

    Raises:
        ValueError: if it cannot be loaded.
    """
    return load_tokenizer(tokenizer.directory) if isinstance(tokenizer, PlainTokenizer) else tokenizer


def special_token(tokenizer: AnyTokenizer, role: str) -> str | None:
    """The token of a role (`bos`, `eos` ...); None where it has none."""
    name = f"{role}_token"
    found = tokenizer.special_tokens.get(name) if isinstance(tokenizer, PlainTokenizer) else getattr(tokenizer, name, None)
    return None if found is None else str(found)


def described(backend: Tokenizer) -> dict[str, Any]:
    """What tokenizer.json says, without vocabulary and merges where the library tells the rest by itself: to write and read all takes longer."""
    model = backend.model
    settings = _MODEL_SETTINGS.get(type(model).__name__)
    if settings is None:
        content: dict[str, Any] = json.loads(backend.to_str())
        return content
    steps = {name: getattr(backend, name) for name in _STEPS}
    return {
        "truncation": backend.truncation,
        "padding": backend.padding,
        "added_tokens": [
            {"id": number, "content": token.content, **{flag: getattr(token, flag) for flag in _FLAGS}}
            for number, token in sorted(backend.get_added_tokens_decoder().items())
        ],
        **{name: None if step is None else json.loads(step.__getstate__()) for name, step in steps.items()},
        "model": {"type": type(model).__name__, **{name: getattr(model, name) for name in settings}},
    }


def read_plain_backend(directory: Path) -> Tokenizer | None:
    """tokenizer.json alone; None where transformers might make something else of it, or might refuse it."""
    found = _read_plain(directory)
    return found[0] if found else None


def _plain(directory: Path) -> PlainTokenizer | None:
    """The same with its special tokens; None also where a class of transformers has some that the config does not name."""
    found = _read_plain(directory)
    if found is None:
        return None
    backend, config, named = found
    has_own_roles = not _PLAIN_CLASSES[config["tokenizer_class"]] or {"bos_token", "eos_token", "unk_token", "pad_token"} <= set(config)
    tells_otherwise = "added_tokens_decoder" not in config and any(
        _contents(config.get(name)) != _contents(token) for name, token in named.items()
    )
    if not has_own_roles or tells_otherwise or config.get(_EXTRA):
        return None
    roles = {name: _content(config[name]) for name in _SPECIAL if config.get(name) is not None}
    if "eos_token" not in roles and "sep_token" in roles:
        roles["eos_token"] = roles["sep_token"]  # as `load_tokenizer`
    additional = tuple(map(_content, config.get(_ADDITIONAL) or ()))
    return PlainTokenizer(directory, backend, roles, additional, _chat_template(directory, config))


def _read_plain(directory: Path) -> tuple[Tokenizer, dict[str, Any], dict[str, Any]] | None:
    """tokenizer.json, the config, and the special tokens in a file of their own."""
    from tokenizers import Tokenizer

    path = directory / "tokenizer.json"
    if not path.is_file() or not (directory / CONFIG_NAME).is_file() or (directory / "added_tokens.json").exists():
        return None
    try:
        config = json.loads((directory / CONFIG_NAME).read_bytes())
        named = json.loads((directory / _MAP_NAME).read_bytes()) if (directory / _MAP_NAME).exists() else {}
        require_bounded_ids(path)
        tokenizer = Tokenizer.from_file(str(path))
        require_own_ids(tokenizer, directory)
        return_free_pieces()  # the library takes more than twice what it keeps
        if not _adds_nothing(config, named, described(tokenizer)):
            return None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # the library raises anything for a broken file, a panic of Rust too; transformers is to say what is wrong
        return None
    return tokenizer, config, named


def _adds_nothing(config: Mapping[str, Any], named: Mapping[str, Any], backend: Mapping[str, Any]) -> bool:
    """Whether transformers makes of tokenizer_config.json, and of the special tokens in a file of their own, no more than tokenizer.json says."""
    known = {token["id"]: _described(token) for token in backend["added_tokens"]}
    described = {int(number): _described(token) for number, token in config.get("added_tokens_decoder", {}).items()}
    special = {*_PLAIN_CLASSES[config["tokenizer_class"]], *_special_tokens(config), *_special_tokens(named)}
    cuts = backend["pre_tokenizer"] or {}
    prefixes = bool(config.get("add_prefix_space", False))
    return (
        set(config) <= {*_SPECIAL, _ADDITIONAL, _EXTRA, *_HARMLESS, *_ADDING}
        and not any(config.get(name) for name in _ADDING)
        and set(named) <= {*_SPECIAL, _ADDITIONAL, _EXTRA}
        and ("added_tokens_decoder" in config or all(isinstance(token, str) for token in named.values()))
        and all(known.get(number) == token for number, token in described.items())
        and special <= {content for content, *_ in known.values()}
        and cuts.get("add_prefix_space", prefixes) == prefixes
        and backend["truncation"] is None
        and backend["padding"] is None
    )


def _described(token: Mapping[str, Any]) -> list[Any]:
    return [token[key] for key in ("content", *_FLAGS)]


def _content(token: str | Mapping[str, str]) -> str:
    return token if isinstance(token, str) else token["content"]


def _contents(value: Any) -> Any:
    """The token of a role, or the list of those without one."""
    return list(map(_content, value)) if isinstance(value, list) else value if value is None else _content(value)


def _special_tokens(config: Mapping[str, Any]) -> set[str]:
    """The tokens that the config calls special.

    Raises:
        TypeError: if one is not text.
    """
    named = [config[name] for name in _SPECIAL if config.get(name) is not None]
    for name in (_ADDITIONAL, _EXTRA):
        more = config.get(name) or []
        named += more.values() if isinstance(more, dict) else more
    return {token["content"] if isinstance(token, dict) else token for token in named}


def _chat_template(directory: Path, config: Mapping[str, Any]) -> str | dict[str, str] | None:
    """As transformers reads it: files go before the config, which may have a list of several."""
    files = [directory / "chat_template.jinja", *sorted((directory / CHAT_TEMPLATES).glob("*.jinja"))]
    found = {"default" if path.parent == directory else path.stem: path.read_text(encoding="utf-8") for path in files if path.is_file()}
    if found:
        return found["default"] if list(found) == ["default"] else found
    templates: str | Sequence[Mapping[str, str]] | None = config.get("chat_template")
    return (
        templates if templates is None or isinstance(templates, str) else {template["name"]: template["template"] for template in templates}
    )


@dataclass(frozen=True)
class Identity:
    """`rows_needed` and `tokenizer_digest` of a tokenizer."""

    rows_needed: int
    digest: str


def tokenizer_identity(directory: Path) -> Identity:
    """The identity of the tokenizer in a folder, as `load_tokenizer` would give it.

    Raises:
        ValueError: if it cannot be loaded.
    """
    if (found := _plain_identity(directory)) is not None:
        return found
    tokenizer = load_tokenizer(directory)
    return Identity(rows_needed(tokenizer), tokenizer_digest(tokenizer))


def _plain_identity(directory: Path) -> Identity | None:
    """By tokenizer.json alone; None where transformers might make something else of it, or might refuse it."""
    tokenizer = read_plain_backend(directory)
    if tokenizer is None:
        return None
    return Identity(backend_rows(tokenizer), backend_digest(tokenizer))
