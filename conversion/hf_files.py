"""The files of a Hugging Face model folder: its config, and which files hold its weights; found without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conversion.plain_name import is_plain_name

CONFIG_NAME = "config.json"
GENERATION_CONFIG_NAME = "generation_config.json"
WEIGHTS_NAMES = ("model.safetensors", "pytorch_model.bin")

# Where config.json is silent, the default of the architecture's config class in transformers speaks; all others tie.
_UNTIED_BY_DEFAULT = (
    "code_llama", "codegen", "deepseek_v2", "deepseek_v3", "glm", "glm4", "gpt_neox", "gpt_oss", "gptj", "granite", "llama", "ministral",
    "mistral", "mixtral", "nemotron", "olmo", "olmo2", "olmo3", "persimmon", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
    "stablelm",
)  # fmt: skip


@dataclass(frozen=True)
class WeightFiles:
    """The files that hold the weights of a folder.

    Attributes:
        index: name of the index, or None where one file holds all.
        places: file name -> names of the tensors that the index places in it; None where there is no index.
    """

    index: str | None
    places: dict[str, list[str] | None]

    @property
    def names(self) -> tuple[str, ...]:
        """All files, the index first."""
        return (*([self.index] if self.index else []), *self.places)


def find_weights(directory: Path) -> WeightFiles:
    """The weight files of a folder: a whole file goes before an index, safetensors before pickles.

    Raises:
        ValueError: if there are none, or the index is corrupt or leads out of its folder.
    """
    for name in WEIGHTS_NAMES:
        if (directory / name).is_file():
            return WeightFiles(None, {name: None})
        if (directory / f"{name}.index.json").is_file():
            return _read_index(directory, f"{name}.index.json")
    raise ValueError(f"{directory} holds no weights; expected {' or '.join(WEIGHTS_NAMES)}, or an index with its shards")


def _read_index(directory: Path, index_name: str) -> WeightFiles:
    weight_map = read_json(directory / index_name, expected="").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{directory / index_name} has no weight_map; copy or download it again")
    places: dict[str, list[str] | None] = {}
    for tensor_name, file_name in sorted(weight_map.items(), key=lambda item: str(item[1])):
        if not is_plain_name(file_name):
            raise ValueError(f"{directory / index_name} names the file {file_name!r}, which is not inside its folder; do not trust it")
        listed = places.setdefault(file_name, [])
        assert listed is not None
        listed.append(tensor_name)
    return WeightFiles(index_name, places)


def require_shard(directory: Path, files: WeightFiles, file_name: str) -> None:
    """Refuse a shard that is not there.

    Raises:
        ValueError: saying how many tensors it should hold.
    """
    listed = files.places[file_name]
    if listed is not None and not (directory / file_name).is_file():
        raise ValueError(f"{directory / file_name} is missing; {files.index} places {len(listed)} tensors in it; copy or download it again")


def require_listed(directory: Path, files: WeightFiles, file_name: str, found: set[str]) -> None:
    """Refuse a shard that holds other tensors than the index says.

    Raises:
        ValueError: naming them.
    """
    listed = files.places[file_name]
    if listed is not None and (unequal := sorted(found ^ set(listed))):
        raise ValueError(f"{files.index} and {directory / file_name} disagree about {', '.join(unequal)}; copy or download both again")


def read_json(path: Path, *, expected: str) -> dict[str, Any]:
    """A JSON object from a file.

    Args:
        expected: ends the sentence that says that the file is missing.

    Raises:
        ValueError: if it is missing or something else.
    """
    if not path.is_file():
        raise ValueError(f"{path.parent} has no {path.name}; {expected}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON ({error}); copy or download it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}; expected a JSON object")
    return content


def tied_by_config(config: Mapping[str, Any]) -> bool:
    """Whether config.json says that input embedding and output layer are one matrix."""
    return bool(config.get("tie_word_embeddings", config.get("model_type") not in _UNTIED_BY_DEFAULT))
