"""The files of a tokenizer derived from another: what decides ids is new, all else is copied byte for byte."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.tokenizers.extension import merge_pairs, vocabulary_of
from data_prep.tokenizers.files import load_tokenizer, read_tokenizer_files, without_a_callers_settings, write_tokenizer_files
from data_prep.tokenizers.sentencepiece_file import SENTENCEPIECE_FILES
from data_prep.tokenizers.token_bytes import without_respellings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def read_description(directory: Path, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Content of tokenizer.json, or what it would be; names also the added tokens that only other files of the folder name.

    Args:
        tokenizer: as loaded from the folder.
    """
    loaded: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    path = Path(directory) / "tokenizer.json"
    if not path.is_file():
        return loaded
    return without_a_callers_settings({**json.loads(path.read_text(encoding="utf-8")), "added_tokens": loaded["added_tokens"]})


def derived_files(
    directory: Path, tokenizer: PreTrainedTokenizerFast, description: Mapping[str, Any], *, new_ids: Mapping[int, int] | None = None
) -> dict[str, bytes]:
    """Name -> content of all files of the derived tokenizer.

    Args:
        directory: of the old tokenizer.
        tokenizer: as loaded from the folder; names the special tokens where no tokenizer_config.json does.
        description: content of the new tokenizer.json.
        new_ids: old id -> new id of the tokens that are kept; None where no id has changed.
    """
    # SentencePiece's own file cannot follow: its trainer wrote it, and nothing else can.
    old = {name: content for name, content in read_tokenizer_files(directory).items() if name not in SENTENCEPIECE_FILES}
    files = {**old, "tokenizer.json": _json_bytes(description)}
    if "tokenizer_config.json" not in old:
        # Without it the class would be guessed from the model, and might add tokens of its own.
        files["tokenizer_config.json"] = _json_bytes({"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer.special_tokens_map})
    if without_respellings(description.get("decoder")) != description.get("decoder"):
        # From transformers 5 on the class of a single model has a decoder of its own.
        config = {
            **tokenizer.special_tokens_map,
            **json.loads(files["tokenizer_config.json"]),
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
        files["tokenizer_config.json"] = _json_bytes(config)
    model = description["model"]
    if "vocab.json" in old and model["type"] == "BPE":
        listed = json.loads(old["vocab.json"])
        added = {entry["content"] for entry in description["added_tokens"]}
        files["vocab.json"] = json.dumps(
            {token: i for token, i in model["vocab"].items() if token in listed or token not in added}, ensure_ascii=False
        ).encode()
    if "merges.txt" in old and model["type"] == "BPE":
        first_line = old["merges.txt"].split(b"\n", 1)[0].decode()
        lines = [first_line] if first_line.startswith("#version") else []
        files["merges.txt"] = "".join(f"{line}\n" for line in (*lines, *map(" ".join, merge_pairs(model)))).encode()
    if "vocab.txt" in old:
        vocabulary = vocabulary_of(model)
        files["vocab.txt"] = "".join(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.__getitem__)).encode()
    if new_ids is not None:
        _renumber(files, new_ids)
    return files


def load_files(files: Mapping[str, bytes]) -> PreTrainedTokenizerFast:
    """The tokenizer that `AutoTokenizer` loads from some files."""
    with tempfile.TemporaryDirectory() as directory:
        write_tokenizer_files(Path(directory), files)
        return load_tokenizer(Path(directory))


def _renumber(files: dict[str, bytes], new_ids: Mapping[int, int]) -> None:
    """Give the ids in the files around tokenizer.json their new numbers."""
    if "tokenizer_config.json" in files:
        config = json.loads(files["tokenizer_config.json"])
        if decoder := config.get("added_tokens_decoder"):
            config["added_tokens_decoder"] = {str(new_ids[int(i)]): entry for i, entry in decoder.items()}
            files["tokenizer_config.json"] = _json_bytes(config)
    if "added_tokens.json" in files:
        added = json.loads(files["added_tokens.json"])
        files["added_tokens.json"] = _json_bytes({token: new_ids[i] for token, i in added.items()})


def _json_bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
