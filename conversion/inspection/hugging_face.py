"""A Hugging Face folder: config.json, the headers of the weight files, the tokenizer."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conversion.checkpoints.for_engine import for_engine
from conversion.checkpoints.hf_checkpoint import HFCheckpoint, companions, read_weights
from conversion.checkpoints.hf_files import (
    CONFIG_NAME,
    WeightFiles,
    find_weights,
    in_words_of_both,
    language_part,
    multimodal_sentence,
    read_json,
    require_listed,
    require_shard,
    rows_of_vocabulary,
    tied_by_config,
)
from conversion.checkpoints.token_names import TokenNames, possible_names
from conversion.checkpoints.untrained_rows import end_of_text_ids
from conversion.embeddings.layers import find_token_layers
from conversion.families import FAMILIES, family_of, language_config, reads_quantized
from conversion.formats.mxfp4 import num_weights
from conversion.inspection.description import Description, check_manifest
from conversion.inspection.places import HUGGING_FACE
from conversion.inspection.tokenizer import look_at

FORMAT = HUGGING_FACE
_SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "ffn_dim",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "sliding_window",
)
_LAYER = re.compile(r"(.*\.)?(?:layers?|h)\.(\d+)\.(.+)")

_MAX_DIGITS = 10  # of the number of a layer

Tensors = dict[str, tuple[tuple[int, ...], str]]


def describe(description: Description, directory: Path) -> None:
    """Fill in what the folder says, and name what `hf_to_nemo` refuses of it in the same words."""
    config: dict[str, Any] = {}
    with description.refusals():
        config = read_json(directory / CONFIG_NAME, expected="expected a Hugging Face checkpoint folder")
    listed = config.get("architectures")
    if language_part(config) is not None:
        description.notes.append(f"this is {multimodal_sentence(config)}; the sizes are those of its language model")
    with description.refusals():
        config = in_words_of_both(config, source=str(directory))
    description.architecture = ", ".join(map(str, listed)) if isinstance(listed, list) and listed else str(config.get("model_type"))
    is_covered = str(config.get("model_type")) in FAMILIES
    config = dict(language_config(config))
    description.sizes = {key: config[key] for key in _SIZES if isinstance(config.get(key), int)}
    description.vocab_size = config["vocab_size"] if isinstance(config.get("vocab_size"), int) else None
    manifest = check_manifest(description, directory)
    if manifest is not None:
        description.step = manifest.facts.get("step")
        description.consumed_tokens = manifest.facts.get("consumed_tokens")
    look_at(description, directory)
    hf = None
    with description.refusals():
        companions(directory)
        end_of_text_ids(directory)
    with description.refusals():
        hf = HFCheckpoint.open(directory, glances=True)
    tensors = (
        _tensors(description, directory) if hf is None else {name: (tensor.shape, tensor.dtype_name) for name, tensor in hf.tensors.items()}
    )
    _look_beside(description, directory)
    _weights(description, tensors, config)
    if hf is None:
        return
    if hf.renamed:
        description.notes.append(f"the one matrix of input and output stands under {', '.join(hf.renamed)} alone")
    if is_covered:
        with description.refusals():
            for_engine(hf)
    else:
        _look_at_other_family(description, hf, tensors, config)


def _look_at_other_family(description: Description, hf: HFCheckpoint, tensors: Tensors, config: Mapping[str, Any]) -> None:
    """What is worth knowing of a model that other commands take and none converts."""
    if language_part(hf.config) is None:
        try:
            family_of(hf.model_type, source=str(hf.directory))
        except ValueError as error:
            description.notes.append(str(error))
        with description.refusals():
            description.tie_word_embeddings = hf.tie_word_embeddings
    else:  # the other parts have layers too, whose number is theirs to say
        tensors = {name: tensor for name, tensor in tensors.items() if "language_model" in name or name in hf.token_tensors()}
    rows = rows_of_vocabulary(config)
    for name, matrix in hf.token_matrices().items():
        if rows and matrix.shape[:1] not in {(number,) for number in rows}:
            found = matrix.shape[0] if matrix.shape else 0
            description.problems.append(f"{name} has {found} rows, but config.json says vocab_size {config['vocab_size']}")
    try:
        description.notes.append(f"rows per token: {', '.join(find_token_layers(hf).by_token)}")
    except ValueError as error:  # the model may be sound, but its vocabulary stays as it is
        description.notes.append(str(error))
    description.notes += _gaps(tensors, config.get("num_hidden_layers"))


def _tensors(description: Description, directory: Path) -> Tensors:
    """Name -> shape and dtype, from whatever files can be read."""
    tensors: Tensors = {}
    files = WeightFiles(None, {})
    with description.refusals():
        files = find_weights(directory)
    for name in files.places:
        with description.refusals():
            require_shard(directory, files, name)
            found = {tensor.name: (tensor.shape, tensor.dtype_name) for tensor in read_weights(directory / name)}
            require_listed(directory, files, name, set(found))
            tensors |= found
    return tensors


def _look_beside(description: Description, directory: Path) -> None:
    """Say how many files the weights have, and which others lie beside them."""
    try:
        files = find_weights(directory)
    except ValueError:
        return
    description.layout = "1 file" if len(files.places) == 1 else f"{len(files.places)} shards"
    others = sorted(path.name for pattern in ("*.safetensors", "pytorch_model*.bin") for path in directory.glob(pattern))
    if unused := [name for name in others if name not in files.places]:
        description.notes.append(f"weights that nothing reads lie beside {', '.join(files.names[:1])}: {', '.join(unused)}")


def _weights(description: Description, tensors: Tensors, config: Mapping[str, Any]) -> None:
    if not tensors:
        return
    tied = tied_by_config(config)
    found = possible_names({name: shape for name, (shape, _) in tensors.items()}, config.get("vocab_size")) or [TokenNames("", "", ())]
    inputs, output = [names.input for names in found], next((names.output for names in found if names.output in tensors), None)
    counted = {name: tensor for name, tensor in tensors.items() if not (tied and name == output)}
    description.tie_word_embeddings = tied
    description.count((math.prod(shape), dtype) for shape, dtype in counted.values())
    if reads_quantized(config):
        description.parameters = sum(num_weights(name, shape) for name, (shape, _) in counted.items())
    embeddings = [math.prod(shape) for name, (shape, _) in counted.items() if name in (*inputs, output)]
    description.embedding_parameters = sum(embeddings)
    description.padded_vocab_size = next((tensors[name][0][0] for name in inputs if name in tensors and tensors[name][0]), None)
    if tied and output is not None:
        description.notes.append("the one matrix of input and output stands under two names")


def _gaps(tensors: Tensors, num_layers: object) -> list[str]:
    """Layers that lack what others have."""
    layers: dict[str, dict[int, set[str]]] = {}
    if isinstance(num_layers, int) and num_layers > len(tensors):
        return [f"config.json says num_hidden_layers {num_layers}, but there are {len(tensors)} tensors"]
    for name in tensors:
        if (found := _LAYER.fullmatch(name)) and len(found[2]) < _MAX_DIGITS:
            layers.setdefault(found[1] or "", {}).setdefault(int(found[2]), set()).add(found[3])
    gaps = []
    for block, members in layers.items():
        parts = set().union(*members.values())
        count = num_layers if isinstance(num_layers, int) else min(max(members) + 1, len(tensors))
        missing = [f"{block}layers.{number}.{part}" for number in range(count) for part in sorted(parts - members.get(number, set()))]
        if missing:
            gaps.append(f"{len(missing)} tensors of the layers are missing: {', '.join(missing[:5])}{' ...' if missing[5:] else ''}")
        if extra := sorted(number for number in members if number >= count):
            gaps.append(f"there are layers up to {extra[-1]}, but config.json says num_hidden_layers {count}")
    return gaps
