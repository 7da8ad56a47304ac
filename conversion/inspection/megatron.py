"""A distributed checkpoint in any of its folders: NeMo 2, of this project or not, Megatron-LM, Megatron-Bridge."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.artifacts import MANIFEST_NAME
from common.plain_files import any_tag_loader, read_yaml
from conversion.formats.dist_metadata import COMMON_NAME, DistMetadata, Entry, file_problems, read_dist_metadata
from conversion.formats.loading_safety import unsafe_parts
from conversion.formats.pickle_names import TENSORS, refusal, unknown_names
from conversion.formats.torch_file import TorchFile, read_torch_file
from conversion.inspection.description import Description, check_manifest, count_tokens
from conversion.inspection.places import MEGATRON_BRIDGE, MEGATRON_LM, NEMO, RUN_CONFIG, TRAIN_STATE, Place

MODEL = "context/model.json"
STOCK_MODEL = "context/model.yaml"
_SIZES = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "max_position_embeddings",
    "seq_length",
)
_INPUT, _OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"
_FILE = re.compile(r"__(\d+)_\w+\.distcp")


def describe(description: Description, place: Place) -> None:
    """Fill in what the folder says."""
    metadata, failure = None, ""
    try:
        metadata = read_dist_metadata(place.weights)
    except ValueError as error:
        failure = str(error)
    common = _common(description, place.weights, metadata)
    {NEMO: _describe_nemo, MEGATRON_LM: _describe_megatron_lm, MEGATRON_BRIDGE: _describe_bridge}[place.format](description, place, common)
    if metadata is None:
        description.problems.append(failure)
        return
    _describe_weights(description, metadata)
    ends = metadata.ends()
    problems = [*unsafe_parts(metadata), *file_problems(place.weights, ends)]
    description.problems += [problem for problem in problems if problem not in description.problems]
    if unused := sorted(path.name for path in place.weights.glob("*.distcp") if path.name not in ends):
        description.notes.append(f"files that nothing refers to lie beside the weights: {', '.join(unused)}")


def _describe_weights(description: Description, metadata: DistMetadata) -> None:
    prefix = metadata.prefix
    weights = {entry.key.removeprefix(prefix): entry for entry in metadata.weights(prefix).entries}
    if not weights:
        description.problems.append(f"{metadata.directory} holds no weights, only {len(metadata.entries)} other entries")
        return
    tables = [entry for name, entry in weights.items() if name in (_INPUT, _OUTPUT)]
    if tables and len(tables[0].shape) == 2:
        description.padded_vocab_size = tables[0].shape[0]
    rows = description.vocab_size
    description.count((_real_values(entry, rows) if entry in tables else entry.num_values, entry.dtype) for entry in weights.values())
    description.embedding_parameters = sum(_real_values(entry, rows) for entry in tables)
    if _INPUT in weights:
        description.tie_word_embeddings = _OUTPUT not in weights
    description.optimizer_state = any("optimizer" in entry.key for entry in metadata.entries)
    stacked = any(re.search(r"\blayers\.(?!\d)", name) for name in weights)
    files = metadata.ends()
    ranks = {found[1] for name in files if (found := _FILE.fullmatch(name))}
    description.layout = f"{len(files)} files of {len(ranks)} ranks, layers {'stacked' if stacked else 'with keys of their own'}"
    description.problems += _disagreements(weights, description)


def _real_values(entry: Entry, rows: int | None) -> int:
    """Values of a vocabulary table without its padding."""
    return (
        entry.num_values
        if rows is None or not entry.num_values or not entry.shape
        else entry.num_values // entry.shape[0] * min(rows, entry.shape[0])
    )


def _disagreements(weights: Mapping[str, Entry], description: Description) -> Iterable[str]:
    num_layers, rows = description.sizes.get("num_layers"), description.vocab_size
    for name, entry in weights.items():
        if re.search(r"\bdecoder\.layers\.(?!\d)", name) and num_layers is not None and entry.shape[:1] != (num_layers,):
            yield f"{name} holds {entry.shape[0] if entry.shape else 0} layers, but the configuration says {num_layers}"
        if name in (_INPUT, _OUTPUT) and rows is not None and (not entry.shape or entry.shape[0] < rows):
            yield f"{name} has {entry.shape[0] if entry.shape else 0} rows, fewer than the vocabulary of {rows}"
        if problem := entry.problem():
            yield problem


def _common(description: Description, weights: Path, metadata: DistMetadata | None) -> TorchFile | None:
    """What is not sharded."""
    place = None if metadata is None else metadata.common
    path = weights / (COMMON_NAME if place is None else place.file)
    try:
        common = read_torch_file(path) if place is None else read_torch_file(path, start=place.offset, length=place.length)
    except FileNotFoundError:
        description.problems.append(f"{path} is missing: the checkpoint is not complete")
        return None
    except (ValueError, OSError) as error:
        description.problems.append(str(error))
        return None
    if common is not None and isinstance(common.content, list) and len(common.content) == 1:  # as Megatron-core keeps an object
        return replace(common, content=common.content[0])
    return common


def _describe_nemo(description: Description, place: Place, common: TorchFile | None) -> None:
    directory = place.directory
    manifest = check_manifest(description, directory)
    if (directory / MODEL).is_file():
        _describe_own(description, directory)
    elif (directory / STOCK_MODEL).is_file():
        _describe_stock(description, directory / STOCK_MODEL)
    else:
        description.problems.append(f"{directory} has neither {MODEL} nor {STOCK_MODEL}: its model is unknown")
    content = common.content if common is not None and isinstance(common.content, dict) else {}
    description.step = content.get("global_step")
    samples = [value["consumed_samples"] for value in content.values() if isinstance(value, dict) and "consumed_samples" in value]
    description.consumed_samples = samples[0] if samples else None
    sequence_length = description.sizes.get("seq_length")
    if manifest is not None and manifest.stage == "recipes.train":
        description.step = manifest.facts.get("step", description.step)
        sequence_length = manifest.arguments.get("data", {}).get("sequence_length")
    _count_tokens_seen(description, sequence_length)


def _describe_own(description: Description, directory: Path) -> None:
    try:
        model = json.loads((directory / MODEL).read_text(encoding="utf-8"))
        config = model["config"]
        description.architecture = str(model["family"])
        description.sizes = {key: config[key] for key in _SIZES if isinstance(config.get(key), int)}
        description.vocab_size = config["vocab_size"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        description.problems.append(f"{directory / MODEL} cannot be read ({error!r})")
    description.tokenizer_size = count_tokens(directory / "context/hf/tokenizer.json")


def _describe_stock(description: Description, path: Path) -> None:
    """Of a folder that NeMo itself wrote."""
    config = _read_yaml(description, path)
    inner = config.get("config")
    inner = inner if isinstance(inner, dict) else {}
    description.architecture = str(inner.get("_target_") or config.get("_target_") or "unknown")
    description.sizes = {key: inner[key] for key in _SIZES if isinstance(inner.get(key), int)}
    if isinstance(inner.get("vocab_size"), int):
        description.vocab_size = inner["vocab_size"]


def _describe_megatron_lm(description: Description, place: Place, common: TorchFile | None) -> None:
    _check_manifest_above(description, place.directory)
    content = common.content if common is not None and isinstance(common.content, dict) else {}
    arguments = vars(content["args"]) if hasattr(content.get("args"), "__dict__") else {}
    description.step = content.get("iteration")
    _describe_arguments(description, arguments)
    description.consumed_samples = arguments.get("consumed_train_samples")
    _count_tokens_seen(description, arguments.get("seq_length"))


def _describe_bridge(description: Description, place: Place, common: TorchFile | None) -> None:
    _check_manifest_above(description, place.directory)
    model = _read_yaml(description, place.directory / RUN_CONFIG).get("model")
    model = model if isinstance(model, dict) else {}
    _describe_arguments(description, model)
    description.architecture = str(model.get("_target_") or "unknown")
    try:
        state = read_torch_file(place.directory / TRAIN_STATE)
    except (OSError, ValueError) as error:
        description.problems.append(str(error))
        return
    if state is not None and (unknown := unknown_names(state.names, TENSORS)):
        description.problems.append(refusal(place.directory / TRAIN_STATE, unknown))
    if state is not None and isinstance(state.content, dict):
        step, samples = (state.number(state.content.get(key)) for key in ("step", "consumed_train_samples"))
        description.step = int(step) if step is not None else None
        description.consumed_samples = int(samples) if samples is not None else None
    _count_tokens_seen(description, description.sizes.get("seq_length"))


def _check_manifest_above(description: Description, directory: Path) -> None:
    """Megatron's own layouts have a folder per iteration, and the manifest is above it."""
    check_manifest(description, directory.parent if (directory.parent / MANIFEST_NAME).is_file() else directory)


def _describe_arguments(description: Description, arguments: Mapping[str, Any]) -> None:
    description.sizes = {key: arguments[key] for key in _SIZES if isinstance(arguments.get(key), int)}
    if isinstance(arguments.get("vocab_size"), int):
        description.vocab_size = arguments["vocab_size"]


def _count_tokens_seen(description: Description, sequence_length: object) -> None:
    if description.consumed_samples is not None and isinstance(sequence_length, int):
        description.consumed_tokens = description.consumed_samples * sequence_length


def _read_yaml(description: Description, path: Path) -> dict[str, Any]:
    """A YAML mapping, with tags of Python objects as plain mappings."""
    try:
        content = read_yaml(path, loader=any_tag_loader())
    except (OSError, ValueError) as error:
        description.problems.append(f"{path} cannot be read ({error})")
        return {}
    return content if isinstance(content, dict) else {}
