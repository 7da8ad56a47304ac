"""How many tokens a folder's tokenizer has, and its digest, without transformers where its library adds nothing to tokenizer.json.

Transformers reads tokenizer.json, adds the tokens of tokenizer_config.json that are not in it, and has rules of single models.  To import it takes
longer than to convert a gigabyte, so where the two files show that nothing would be added or changed, tokenizer.json is read alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.python_path import python_path
from data_prep.tokenizers.files import CONFIG_NAME, backend_digest, load_tokenizer, tokenizer_digest

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
_MORE_SPECIAL = ("additional_special_tokens", "extra_special_tokens")
# What else may stand in the config: it says how texts and batches are handled, not which ids a text has.
_HARMLESS = (
    "tokenizer_class", "added_tokens_decoder", "add_prefix_space", "backend", "chat_template", "clean_up_tokenization_spaces", "errors",
    "is_local", "model_input_names", "model_max_length", "name_or_path", "padding_side", "split_special_tokens", "truncation_side",
)  # fmt: skip
_ADDING = ("add_bos_token", "add_eos_token")
_MAP_NAME = "special_tokens_map.json"  # goes before the config where that has no list of tokens
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True)
class Identity:
    """Number of tokens, and `tokenizer_digest`."""

    num_tokens: int
    digest: str


def tokenizer_identity(directory: Path) -> Identity:
    """The identity of the tokenizer in a folder, as `load_tokenizer` would give it.

    Raises:
        ValueError: if it cannot be loaded.
    """
    if (found := _plain_identity(directory)) is not None:
        return found
    tokenizer = load_tokenizer(directory)
    return Identity(len(tokenizer), tokenizer_digest(tokenizer))


def identity_by_another_process(directory: Path) -> Identity:
    """The same from a process of its own: reading a large vocabulary keeps the interpreter, and all other threads of this one would wait.

    Raises:
        ValueError: if it cannot be loaded.
        RuntimeError: if the process fails otherwise; it says on stderr how.
    """
    environment = {**os.environ, "PYTHONPATH": python_path(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", _IN_THE_PROCESS, str(directory)], env=environment, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise RuntimeError(f"the process that read the tokenizer in {directory} ended with {done.returncode}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if isinstance(answer, str):
        raise ValueError(answer)
    return Identity(*answer)


# Ctrl-C reaches this process too, which has nothing to clean up and is done within seconds; it says nothing when nobody listens any more.
_IN_THE_PROCESS = """
import json, signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
from data_prep.tokenizers.files import start_without_torch
from data_prep.tokenizers.identity import tokenizer_identity
start_without_torch()
try:
    found = tokenizer_identity(Path(sys.argv[1]))
    answer = [found.num_tokens, found.digest]
except ValueError as error:
    answer = str(error)
print()
print(json.dumps(answer))
"""


def _plain_identity(directory: Path) -> Identity | None:
    """By tokenizer.json alone; None where transformers might make something else of it, or might refuse it."""
    from tokenizers import Tokenizer

    path = directory / "tokenizer.json"
    if not path.is_file() or not (directory / CONFIG_NAME).is_file() or (directory / "added_tokens.json").exists():
        return None
    try:
        config = json.loads((directory / CONFIG_NAME).read_bytes())
        named = json.loads((directory / _MAP_NAME).read_bytes()) if (directory / _MAP_NAME).exists() else {}
        tokenizer = Tokenizer.from_file(str(path))
        backend = json.loads(tokenizer.to_str())
        if not _adds_nothing(config, named, backend):
            return None
    except Exception:  # the library raises anything for a broken file; transformers is to say what is wrong
        return None
    return Identity(tokenizer.get_vocab_size(with_added_tokens=True), backend_digest(backend))


def _adds_nothing(config: Mapping[str, Any], named: Mapping[str, Any], backend: Mapping[str, Any]) -> bool:
    """Whether transformers makes of tokenizer_config.json, and of the special tokens in a file of their own, no more than tokenizer.json says."""
    known = {token["id"]: _described(token) for token in backend["added_tokens"]}
    told = {int(number): _described(token) for number, token in config.get("added_tokens_decoder", {}).items()}
    special = {*_PLAIN_CLASSES[config["tokenizer_class"]], *_special_tokens(config), *_special_tokens(named)}
    cuts = backend["pre_tokenizer"] or {}
    prefixes = bool(config.get("add_prefix_space", False))
    return (
        set(config) <= {*_SPECIAL, *_MORE_SPECIAL, *_HARMLESS, *_ADDING}
        and not any(config.get(name) for name in _ADDING)
        and set(named) <= {*_SPECIAL, *_MORE_SPECIAL}
        and ("added_tokens_decoder" in config or all(isinstance(token, str) for token in named.values()))
        and all(known.get(number) == token for number, token in told.items())
        and special <= {content for content, *_ in known.values()}
        and cuts.get("add_prefix_space", prefixes) == prefixes
        and backend["truncation"] is None
        and backend["padding"] is None
    )


def _described(token: Mapping[str, Any]) -> list[Any]:
    return [token[key] for key in ("content", *_FLAGS)]


def _special_tokens(config: Mapping[str, Any]) -> set[str]:
    """The tokens that the config calls special.

    Raises:
        TypeError: if one is no text.
    """
    named = [config[name] for name in _SPECIAL if config.get(name) is not None]
    for name in _MORE_SPECIAL:
        more = config.get(name) or []
        named += more.values() if isinstance(more, dict) else more
    return {token["content"] if isinstance(token, dict) else token for token in named}
