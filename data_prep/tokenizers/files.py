"""Loading a Hugging Face tokenizer from a local folder, and its identity."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.artifacts import digest_bytes
from data_prep.own_files import require_own

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "chat_template.jinja",
)
CHAT_TEMPLATES = "additional_chat_templates"


def load_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """The fast tokenizer in a local folder; nothing is downloaded.

    Where SentencePiece's file is the only one, its conversion is ours, see `data_prep.tokenizers.sentencepiece_file`.

    Raises:
        ValueError: if the folder is missing, holds no tokenizer, or only one without a fast form.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise ValueError(f"the tokenizer folder {directory} does not exist")
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        raise ValueError(f"{directory} holds no tokenizer; expected one of {', '.join(TOKENIZER_FILES[:2])} or vocab.json with merges.txt")
    if not (directory / "tokenizer.json").is_file() and any((directory / name).is_file() for name in TOKENIZER_FILES[1:3]):
        from data_prep.tokenizers.sentencepiece_file import load_sentencepiece

        return load_sentencepiece(directory)
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(directory), use_fast=True, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library raises anything from OSError to KeyError for a broken tokenizer file
        if "trust_remote_code" in str(error):
            raise ValueError(
                f"the tokenizer in {directory} is a program of its own (auto_map in its configuration), which is not run; save it as"
                " tokenizer.json where you trust it, and leave auto_map out"
            ) from error
        raise ValueError(f"the tokenizer in {directory} cannot be loaded: {' '.join(str(error).split())}") from error
    if not tokenizer.is_fast:
        raise ValueError(f"the tokenizer in {directory} has no fast form; add its tokenizer.json")
    if tokenizer.eos_token is None and tokenizer.sep_token is not None:  # BERT's, whose texts end with [SEP]
        tokenizer.eos_token = tokenizer.sep_token
    return tokenizer


def start_without_torch() -> None:
    """Keep transformers from importing torch, which takes longer than most work of a command that only tokenizes.

    Holds for the whole process: to be called only where a process begins, never by an importable function.
    """
    os.environ["USE_TORCH"] = "0"
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"


def start_with_torch() -> None:
    """Take `start_without_torch` back, before transformers has been imported: the command is to run a model after all."""
    os.environ.pop("USE_TORCH", None)


def tokenizer_digest(tokenizer: PreTrainedTokenizerFast) -> str:
    """Digest of what decides the ids: vocabulary, merges, normalizer, pre- and post-processing, special tokens.

    Independent of the files it came from (`tokenizer.json` or `vocab.json` with `merges.txt`) and of padding or truncation settings.
    """
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    backend.pop("padding", None)
    backend.pop("truncation", None)
    return digest_bytes(json.dumps(backend, sort_keys=True, ensure_ascii=False).encode())


def tokenizer_files(directory: Path) -> list[Path]:
    """The tokenizer's files in a folder, to be copied byte for byte; chat templates besides the first are in a folder of their own.

    Raises:
        ValueError: if one is a link that leads out of the folder.
    """
    named = [directory / name for name in TOKENIZER_FILES if (directory / name).is_file()]
    folder = require_own(directory / CHAT_TEMPLATES)
    templates = sorted(path for path in folder.glob("*.jinja") if path.is_file())
    return [require_own(path) for path in (*named, *templates)]


def read_tokenizer_files(directory: Path) -> dict[str, bytes]:
    """Content of the tokenizer's files by their name in the folder."""
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in tokenizer_files(directory)}


def write_tokenizer_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write files by their name in a folder, which exists."""
    for name, content in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(content)
