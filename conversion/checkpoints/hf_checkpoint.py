"""A Hugging Face checkpoint folder: read lazily, written as a stream.

Reads safetensors and `pytorch_model.bin`, whole or sharded, without running code from the file and without holding the
model; writes safetensors.  Tensor names are those of the causal language model: the first OPT files left out `model.`.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from common.artifacts import check_files, digest_files, read_manifest
from common.own_files import require_own
from common.plain_files import require_plain_files
from conversion.checkpoints.adapter import is_adapter
from conversion.checkpoints.hf_files import (
    CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    PROCESSOR_NAMES,
    WEIGHTS_NAMES,
    find_weights,
    in_words_of_both,
    language_part,
    read_json,
    require_listed,
    require_shard,
    tied_by_config,
)
from conversion.checkpoints.token_names import (
    TokenNames,
    missing_output_sentence,
    names_beside,
    output_name,
    possible_names,
    shared_matrix_names,
)
from conversion.formats.lazy_tensor import LazyTensor
from conversion.formats.mxfp4 import with_whole_numbers
from conversion.formats.safetensors_file import read_safetensors, write_safetensors
from conversion.formats.torch_file import read_state_dict
from data_prep.tokenizers.files import read_tokenizer_files, write_tokenizer_files

if TYPE_CHECKING:
    import torch
    from torch import Tensor

QUANTIZATION = "quantization_config"
_ROWS_OF_A_GLANCE = 16
DEFAULT_MAX_SHARD_BYTES = 5_000_000_000  # as the transformers library


@dataclass(frozen=True)
class HFCheckpoint:
    """A model folder whose tensors are read on demand.

    Attributes:
        config: config.json, in words that transformers 4 and 5 both read.
        tensors: name -> tensor, in the order of the files.
        weight_files: names of the files that hold the tensors, the index included.
        renamed: name in the files -> name here, of the one matrix of a tied model that stands under the name of the output layer alone.
        glances: whether matrices that should be the same are compared by their first and last rows alone.
    """

    directory: Path
    config: dict[str, Any]
    tensors: dict[str, LazyTensor]
    weight_files: tuple[str, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)
    glances: bool = False

    @classmethod
    def open(cls, directory: Path, *, glances: bool = False) -> HFCheckpoint:
        """Look at a folder: its config, and where each tensor lies.

        Raises:
            ValueError: if the folder, its config or its weights are missing, corrupt, or not safe to load.
        """
        directory = Path(directory)
        if not directory.is_dir():
            raise ValueError(f"the checkpoint folder {directory} does not exist")
        require_plain_files(directory)
        if is_adapter(directory):
            raise ValueError(
                f"{directory} is a LoRA adapter; merge it into its base model (merge_and_unload of PEFT) and give the folder of that"
            )
        config = read_json(directory / CONFIG_NAME, expected="expected a Hugging Face checkpoint folder")
        config = in_words_of_both(config, source=str(directory))
        files = find_weights(directory)
        tensors: list[LazyTensor] = []
        for name in files.places:
            require_shard(directory, files, name)
            shard = read_weights(directory / name)
            require_listed(directory, files, name, {tensor.name for tensor in shard})
            tensors.extend(shard)
        if config.get("model_type") == "opt":
            tensors = [t.renamed(f"model.{t.name}") if t.name.startswith("decoder.") else t for t in tensors]
        shared = shared_matrix_names([tensor.name for tensor in tensors]) if tied_by_config(config) else {}
        tensors = [tensor.renamed(shared.get(tensor.name, tensor.name)) for tensor in tensors]
        return cls(directory, config, {tensor.name: tensor for tensor in tensors}, files.names, shared, glances)

    def whole(self, *, quantized: bool) -> HFCheckpoint:
        """The same model without quantization.

        Args:
            quantized: whether its weights are in parts, by a quantization that is read (`Family.reads_quantized`); if not, this is it.

        Raises:
            ValueError: if parts are missing or do not fit.
        """
        if not quantized:
            return self
        config = {key: value for key, value in self.config.items() if key != QUANTIZATION}
        return replace(self, config=config, tensors=with_whole_numbers(self.tensors, source=str(self.directory)))

    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        return self.tensors[name].shape

    def dtype(self, name: str) -> torch.dtype:
        """Dtype of a tensor, without reading it."""
        return self.tensors[name].dtype

    def tensor(self, name: str) -> Tensor:
        """One tensor, of any shape; its values come from the file when they are touched, and changing them changes no file."""
        return self.tensors[name].read()

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors; a matrix that is stored under two names counts twice."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def model_type(self) -> str:
        """The architecture, for example `opt`; empty where config.json does not say."""
        return str(self.config.get("model_type", ""))

    @cached_property
    def tie_word_embeddings(self) -> bool:
        """Whether input embedding and output layer are one matrix.

        Raises:
            ValueError: if config.json and the tensors disagree: which of the two is meant cannot be guessed.
        """
        tied = tied_by_config(self.config)
        names = next(iter(self.possible_names), None)
        if self.output_name is None:
            # Of a model with several parts, transformers 4 asks the language model's, transformers 5 the whole.
            if not tied and not self.config.get("tie_word_embeddings"):
                raise ValueError(missing_output_sentence(self.directory, names.output if names else "lm_head.weight"))
            return True
        if tied and (names is None or not self._same(self.output_name, names.input)):
            raise ValueError(
                f"{self.directory}: config.json says that input and output embeddings are one matrix (tie_word_embeddings true),"
                f" but {self.output_name} differs from {names.input if names else 'the input embeddings'}; set it to false to keep both"
            )
        return tied

    @cached_property
    def possible_names(self) -> list[TokenNames]:
        """Names of the token matrices; several where it is not sure which they are."""
        shapes = {name: tensor.shape for name, tensor in self.tensors.items()}
        return possible_names(shapes, (language_part(self.config) or self.config).get("vocab_size"))

    @cached_property
    def output_name(self) -> str | None:
        """Name of the output layer's matrix; None where the files hold none."""
        found = next((names.output for names in self.possible_names if names.output in self.tensors), None)
        return output_name(self.tensors) if not self.possible_names else found

    def _same(self, first: str, second: str) -> bool:
        matrices = self.tensors[first], self.tensors[second]
        num_rows = matrices[0].shape[0] if matrices[0].shape else 0
        if not self.glances or num_rows < 2 * _ROWS_OF_A_GLANCE or matrices[0].shape != matrices[1].shape:
            return same_bits(*matrices)
        ends = ((0, _ROWS_OF_A_GLANCE), (num_rows - _ROWS_OF_A_GLANCE, num_rows))
        return all(same_bits(*(matrix.row_range("", *end) for matrix in matrices)) for end in ends)

    def token_matrices(self) -> dict[str, LazyTensor]:
        """Input embeddings and output layer by name, one of them where they are one matrix."""
        names = (*(names.input for names in self.possible_names), self.output_name)
        return {name: tensor for name, tensor in self.untied_tensors().items() if name in names}

    def token_tensors(self) -> set[str]:
        """Names of all tensors that follow the vocabulary, an output layer that is the input's matrix included."""
        found = {name for names in self.possible_names for name in (names.input, names.output, *names.biases)}
        return {*found, *names_beside(self.tensors)} & set(self.tensors)

    def untied_tensors(self) -> dict[str, LazyTensor]:
        """All tensors, each matrix once: without the output layer where it is the embedding."""
        return {name: tensor for name, tensor in self.tensors.items() if name != self.output_name or not self.tie_word_embeddings}

    def digest(self) -> str:
        """Identity of the checkpoint: that of its manifest, whose files are checked, else that of its config and weights.

        Raises:
            ValueError: if a file is not as the manifest says.
        """
        manifest = read_manifest(self.directory)
        if manifest is None:
            return digest_files(self.directory, (CONFIG_NAME, *self.weight_files))
        check_files(self.directory, manifest)
        return manifest.digest


def write_hf_checkpoint(
    directory: Path, config: Mapping[str, Any], tensors: Iterable[LazyTensor], *, max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES
) -> dict[str, str]:
    """Write config.json and the weights, holding one tensor at a time; see `write_hf_weights`."""
    write_json(directory / CONFIG_NAME, config)
    return write_hf_weights(directory, tensors, max_shard_bytes=max_shard_bytes)


def write_hf_weights(directory: Path, tensors: Iterable[LazyTensor], *, max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES) -> dict[str, str]:
    """Write the weights as safetensors, holding one tensor at a time.

    Args:
        directory: exists, usually that of `staged_directory`.
        tensors: in the order in which they fill the shards.
        max_shard_bytes: a shard ends before it would exceed this; a single larger tensor has a shard of its own.

    Returns:
        File name -> digest of each file of weights, for `write_manifest(known_digests=...)`.
    """
    shards = _split(tensors, max_shard_bytes)
    if len(shards) == 1:
        return {WEIGHTS_NAMES[0]: write_safetensors(directory / WEIGHTS_NAMES[0], shards[0])}
    digests, weight_map = {}, {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        digests[name] = write_safetensors(directory / name, shard)
        weight_map.update({tensor.name: name for tensor in shard})
    total = sum(tensor.nbytes for shard in shards for tensor in shard)
    write_json(directory / f"{WEIGHTS_NAMES[0]}.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})
    return digests


def companions(directory: Path) -> list[Path]:
    """What belongs to a checkpoint beside config, weights and tokenizer: generation config, what prepares images.

    Raises:
        ValueError: if one is a link that leads out of the folder.
    """
    return [require_own(directory / name) for name in (*PROCESSOR_NAMES, GENERATION_CONFIG_NAME) if (directory / name).is_file()]


def copy_companions(source_dir: Path, output_dir: Path) -> None:
    """Copy them, and the tokenizer's files, byte for byte.

    Raises:
        ValueError: if one is a link that leads out of the folder.
    """
    write_tokenizer_files(output_dir, read_tokenizer_files(source_dir))
    for path in companions(source_dir):
        shutil.copyfile(path, output_dir / path.name)


def copy_config(source_dir: Path, output_dir: Path, *, without: Collection[str] = ()) -> None:
    """Copy config.json byte for byte, unless it has the words of transformers 5 alone: then those of 4 are added.

    Args:
        without: keys that hold no more.
    """
    source_config = read_json(source_dir / CONFIG_NAME, expected="expected the source's config")
    new_config = {key: value for key, value in in_words_of_both(source_config, source=str(source_dir)).items() if key not in without}
    if new_config == source_config:
        shutil.copyfile(source_dir / CONFIG_NAME, output_dir / CONFIG_NAME)
    else:
        write_json(output_dir / CONFIG_NAME, new_config)


def copy_processor(source_dir: Path, output_dir: Path) -> None:
    """Copy the files that say how images become the input of a vision tower.

    Raises:
        ValueError: if one is a link that leads out of the folder.
    """
    for name in PROCESSOR_NAMES:
        if (source_dir / name).is_file():
            shutil.copyfile(require_own(source_dir / name), output_dir / name)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a config as the transformers library does, so that an unchanged one has the same bytes."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def same_bits(first: LazyTensor, second: LazyTensor) -> bool:
    """Whether two tensors are the same bit for bit."""
    if (first.shape, first.dtype_name) != (second.shape, second.dtype_name):
        return False
    if first.rows is None or second.rows is None:
        return np.array_equal(first.bits(), second.bits())
    return all(np.array_equal(a, b) for a, b in zip(first.checked_blocks(), second.checked_blocks(), strict=True))


def _split(tensors: Iterable[LazyTensor], max_shard_bytes: int) -> list[list[LazyTensor]]:
    shards: list[list[LazyTensor]] = [[]]
    room = max_shard_bytes
    for tensor in tensors:
        if shards[-1] and tensor.nbytes > room:
            shards.append([])
            room = max_shard_bytes
        shards[-1].append(tensor)
        room -= tensor.nbytes
    names = Counter(tensor.name for shard in shards for tensor in shard)
    assert all(count == 1 for count in names.values()), f"written twice: {[name for name, count in names.items() if count > 1]}"
    return shards


def read_weights(path: Path) -> list[LazyTensor]:
    """The tensors of one file.

    Raises:
        ValueError: if it is corrupt or not safe to load.
    """
    return read_safetensors(path) if path.suffix == ".safetensors" else read_state_dict(path)
