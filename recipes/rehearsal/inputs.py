"""Stand-ins for what a recipe trains: a checkpoint that is described and holds no numbers, and as many tokens as the rehearsed steps read."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from common.artifacts import Manifest
from common.plain_files import write_json
from conversion.checkpoints.nemo_checkpoint import COMMON, MODEL, PREFIX, WEIGHTS, extra_states
from conversion.families import family_of
from conversion.families.mapping import megatron_shapes
from conversion.formats.dist_checkpoint import describe_dist_checkpoint
from conversion.formats.lazy_tensor import LazyTensor
from data_prep.megatron.index import PREFIX as DATA_PREFIX
from data_prep.megatron.index import index_parts, token_dtype
from recipes.numbers.steps import has_answers
from recipes.rules.inputs import RunInputs
from recipes.rules.masking import CHECKPOINT_TOKENIZER
from recipes.rules.published import recipe_with_inputs
from recipes.rules.schema import MASKED, Recipe

FACTORS_NAME = "factors.safetensors"


def complete_recipe(recipe: Recipe, directory: Path) -> tuple[Recipe, RunInputs]:
    """As `recipe_with_inputs`, with stand-ins for the factors that a published run trained.

    Raises:
        ValueError: as `recipe_with_inputs`.
    """
    completed, inputs = recipe_with_inputs(recipe)
    size = recipe.model.factorised_size
    if size is None or recipe.model.factors is not None or recipe.model.checkpoint:
        return completed, inputs
    path = directory / FACTORS_NAME
    _write_factors(path, vocab_size=inputs.model["vocab_size"], hidden_size=inputs.model["hidden_size"], size=size)
    return replace(completed, model=replace(completed.model, factors=str(path))), inputs


def with_stand_ins(recipe: Recipe, inputs: RunInputs, directory: Path, *, num_samples: int) -> tuple[Recipe, RunInputs]:
    """A recipe with real paths: its own where they are there, else those of stand-ins below a directory.

    Args:
        num_samples: that the rehearsed steps read.
    """
    model, data = recipe.model, recipe.data
    if not (Path(model.checkpoint) / "context").is_dir():  # a folder of Hugging Face has none
        _describe_checkpoint(directory / "checkpoint", inputs)
        if recipe.objective == MASKED:
            _write_tokenizer(directory / "checkpoint" / CHECKPOINT_TOKENIZER)
        model = replace(model, checkpoint=str(directory / "checkpoint"))
    train, manifests = [], []
    for number, (path, manifest) in enumerate(zip(data.train, inputs.train, strict=True)):
        if not Path(path).is_dir():
            name = Path(path).name if data.blend else f"train-{number}"  # by which the blend knows it
            path, manifest = _write_data(directory / name, manifest, recipe.data.sequence_length, num_samples)
        train.append(path)
        manifests.append(manifest)
    validation, held_out = {}, {}
    for language, path in data.validation.items():
        manifest = inputs.validation[language]
        if not Path(path).is_dir():
            path, manifest = _write_data(directory / f"held-out-{language}", manifest, recipe.data.sequence_length, num_samples)
        validation[language], held_out[language] = path, manifest
    recipe = replace(recipe, model=model, data=replace(data, train=tuple(train), validation=validation))
    return recipe, replace(inputs, train=tuple(manifests), validation=held_out)


def _describe_checkpoint(directory: Path, inputs: RunInputs) -> None:
    """What the converter would write, as far as it is not a number."""
    table = family_of(inputs.family, source="the recipe's model").table
    tensors = [LazyTensor(name, shape, "bfloat16", _no_numbers) for name, shape in megatron_shapes(table, inputs.model).items()]
    (directory / WEIGHTS).mkdir(parents=True)
    (directory / MODEL).parent.mkdir()
    names = [tensor.name for tensor in tensors]
    describe_dist_checkpoint(directory / WEIGHTS, tensors, prefix=PREFIX, common=COMMON, empty_objects=extra_states(names))
    model = {"family": inputs.family, "config": dict(inputs.model), "hf_dtype": "bfloat16"}
    (directory / MODEL).write_text(json.dumps(model, indent=2) + "\n", encoding="utf-8")


def _write_tokenizer(directory: Path) -> None:
    """One of four tokens, with what masking asks for; the first is that of the data, which is zeros."""
    specials = {"pad_token": "<pad>", "eos_token": "</s>", "mask_token": "<mask>"}
    ids = {token: token_id for token_id, token in enumerate(("a", *specials.values()))}
    added = [
        {"id": ids[token], "content": token, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for token in specials.values()
    ]
    directory.mkdir(parents=True)
    backend = {"version": "1.0", "added_tokens": added, "model": {"type": "BPE", "vocab": ids, "merges": []}}
    write_json(directory / "tokenizer.json", backend)
    write_json(directory / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **specials})


def _no_numbers() -> np.ndarray:
    raise AssertionError("a stand-in has no numbers")


def _write_data(directory: Path, manifest: Manifest, length: int, num_samples: int) -> tuple[str, Manifest]:
    """One document of zeros, or pairs of a question and its answer where there are such; the file takes no space on disk.

    Args:
        manifest: of the data set that it stands for.
        length: tokens of a sample.
    """
    facts = dict(manifest.facts)
    if has_answers(manifest):
        lengths = np.array([length // 2, length - length // 2] * num_samples, dtype=np.int32)
        facts |= {"num_pairs": num_samples, "longest_pair": length}
    else:
        lengths = np.array([num_samples * length + 1], dtype=np.int32)
    num_tokens = int(lengths.sum())
    dtype = token_dtype(facts["vocab_size"])
    directory.mkdir(parents=True)
    with (directory / f"{DATA_PREFIX}.bin").open("wb") as stream:
        stream.truncate(num_tokens * dtype.itemsize)
    with (directory / f"{DATA_PREFIX}.idx").open("wb") as stream:
        for part in index_parts(lengths, dtype):
            stream.write(part)
    return str(directory), Manifest(stage=manifest.stage, facts={**facts, "num_tokens": num_tokens, "text_bytes": 4 * num_tokens})


def _write_factors(path: Path, *, vocab_size: int, hidden_size: int, size: int) -> None:
    """Factors of a token table, all zero, as `conversion.transfer --factorised-size` would write them; they take no space on disk."""
    shapes: Sequence[tuple[str, tuple[int, int]]] = (("input.coordinates", (vocab_size, size)), ("input.primitives", (size, hidden_size)))
    header, offset = {}, 0
    for name, shape in shapes:
        num_bytes = 4 * shape[0] * shape[1]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": (offset, offset + num_bytes)}
        offset += num_bytes
    text = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + offset)
