"""A NeMo 2 checkpoint folder of this project: weights, model configuration, and the files that its Hugging Face form needs.

    weights/                distributed checkpoint (`dist_checkpoint`); NeMo's names, which begin with `module.`
    context/model.json      family and Megatron's configuration; `vocab_size` counts real rows, padding is added at load time
    context/io.json, model.yaml   the same for NeMo's own `load_context` (`nemo_context`)
    context/hf/             config.json, generation config and tokenizer of the source, byte for byte, and `kept.safetensors`

A trained checkpoint has optimizer state, padded rows and NeMo's own files besides; the same code reads it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.plain_files import require_plain_files
from conversion.checkpoints.factors import factors_of, fold_table
from conversion.checkpoints.hf_checkpoint import QUANTIZATION, copy_companions, copy_config
from conversion.checkpoints.hf_files import CONFIG_NAME
from conversion.checkpoints.lora import merge_adapters
from conversion.checkpoints.nemo_context import write_context
from conversion.families.family import Family
from conversion.families.mapping import KEPT
from conversion.formats.dist_checkpoint import read_dist_checkpoint, write_dist_checkpoint
from conversion.formats.lazy_tensor import LazyTensor
from conversion.formats.safetensors_file import read_safetensors, write_safetensors

WEIGHTS = "weights"
MODEL = "context/model.json"
HF = "context/hf"
KEPT_NAME = "kept.safetensors"
PREFIX = "module."

TRAINING_ONLY = ("second_head.weight",)  # what training adds and no export has

# The layers of a block are stacked; NeMo passes this on to Megatron when it loads.
COMMON = {"content_metadata": {"singleton_local_shards": False}}


@dataclass(frozen=True)
class NeMoCheckpoint:
    """A checkpoint folder whose tensors are read on demand.

    Attributes:
        family: the Hugging Face `model_type`.
        config: Megatron's configuration.
        hf_dtype: dtype of the weights that were converted, for example `float16`.
        tensors: name without `module.` -> tensor, one per layer, and what was kept aside; adapters are
            added to their weights, factors multiplied.
        factors: `coordinates` and `primitives` of a token table that is trained as these; empty where it is one matrix.
    """

    directory: Path
    family: str
    config: dict[str, Any]
    hf_dtype: str
    tensors: dict[str, LazyTensor]
    factors: dict[str, LazyTensor] = field(default_factory=dict)

    @classmethod
    def open(cls, directory: Path) -> NeMoCheckpoint:
        """Look at a folder: its model, and where each tensor lies.

        Raises:
            ValueError: if the folder or a part of it is missing, or its files are corrupt or truncated.
        """
        directory = Path(directory)
        if not directory.is_dir():
            raise ValueError(f"the checkpoint folder {directory} does not exist")
        require_plain_files(directory)
        if not (directory / WEIGHTS).is_dir() or not (directory / MODEL).is_file() or not (directory / HF / CONFIG_NAME).is_file():
            raise ValueError(
                f"{directory} is not a NeMo checkpoint of this project; expected {WEIGHTS}/, {MODEL} and {HF}/{CONFIG_NAME},"
                " as written by `python -m conversion.hf_to_nemo` or `python -m recipes.train`; to one that NeMo itself has saved,"
                " `python -m conversion.change_layout --to nemo --context` adds them"
            )
        family, config, hf_dtype = read_model(directory)
        saved = read_dist_checkpoint(directory / WEIGHTS, prefix=PREFIX)
        trained = merge_adapters(fold_table(saved), config, (directory / MODEL).parent)
        tensors = {name: tensor for name, tensor in trained.items() if name not in TRAINING_ONLY} | read_kept(directory)
        return cls(directory, family, config, hf_dtype, tensors, factors_of(saved, num_rows=config.get("vocab_size")))

    @property
    def hf_dir(self) -> Path:
        """What its Hugging Face side needs: config, generation config, tokenizer."""
        return self.directory / HF


def read_model(directory: Path) -> tuple[str, dict[str, Any], str]:
    """Family, Megatron's configuration and the Hugging Face side's dtype, from the `context` of a folder.

    Raises:
        ValueError: if it is missing or cannot be read.
    """
    path = directory / MODEL
    try:
        model = json.loads(path.read_text(encoding="utf-8"))
        return str(model["family"]), dict(model["config"]), str(model["hf_dtype"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error!r}); copy the checkpoint again") from error


def copy_context(source: Path, directory: Path) -> None:
    """Copy a folder `context` as that of another checkpoint.

    What is kept aside, which may be a vision tower, gets a second name where the file system has such: every checkpoint of a run has it.
    """
    shutil.copytree(source, directory, dirs_exist_ok=True, copy_function=_copy_or_link)


def _copy_or_link(source: str, path: str) -> None:
    if Path(source).name == KEPT_NAME:
        try:
            os.link(source, path)
            return
        except OSError:  # another file system, one without such links, or a file of another user
            Path(path).unlink(missing_ok=True)
    shutil.copyfile(source, path)


def read_kept(directory: Path) -> dict[str, LazyTensor]:
    """What was kept aside in a folder for its Hugging Face side."""
    path = directory / HF / KEPT_NAME
    return {tensor.name: tensor for tensor in read_safetensors(path)} if path.is_file() else {}


def write_nemo_checkpoint(
    directory: Path, tensors: Iterable[LazyTensor], *, family: Family, config: Mapping[str, Any], hf_dtype: str, hf_dir: Path
) -> dict[str, str]:
    """Write a checkpoint folder, holding few tensors at a time.

    Args:
        directory: exists, usually that of `staged_directory`.
        tensors: with Megatron's names; those that begin with `kept.` are kept aside.
        hf_dir: the Hugging Face folder whose config, generation config and tokenizer are copied.

    Returns:
        File name -> digest of each large file, for `write_manifest(known_digests=...)`.
    """
    tensors = list(tensors)
    (directory / WEIGHTS).mkdir()
    (directory / HF).mkdir(parents=True)
    weights = [tensor for tensor in tensors if not tensor.name.startswith(KEPT)]
    objects = extra_states([tensor.name for tensor in weights], num_experts=config.get("num_moe_experts", 0))
    digests = write_dist_checkpoint(directory / WEIGHTS, weights, prefix=PREFIX, common=COMMON, empty_objects=objects)
    if kept := [tensor for tensor in tensors if tensor.name.startswith(KEPT)]:
        write_safetensors(directory / HF / KEPT_NAME, kept)
    copy_config(hf_dir, directory / HF, without=(QUANTIZATION,))  # the weights are whole by now
    copy_companions(hf_dir, directory / HF)
    model = {"family": family.model_type, "config": dict(config), "hf_dtype": hf_dtype}
    (directory / MODEL).write_text(json.dumps(model, indent=2) + "\n", encoding="utf-8")
    write_context((directory / MODEL).parent, family, config, hf_dtype=hf_dtype)
    return {f"{WEIGHTS}/{name}": digest for name, digest in digests.items()}


def extra_states(names: Iterable[str], *, num_experts: int = 0) -> list[str]:
    """Names of the objects in which TransformerEngine keeps its FP8 scales; Megatron and NeMo refuse a checkpoint that lacks one.

    Linear layers have one with TransformerEngine and without it, attention with some versions of Megatron, norms that are modules
    of their own (the final one, those of query and key, those behind a layer) since TransformerEngine 2.
    """
    modules = [found[1] for name in names if (found := re.fullmatch(r"(.*\.(?:linear_\w+|\w+_layernorm))\.weight", name))]
    modules += [module.replace("linear_qkv", "core_attention") for module in modules if module.endswith("linear_qkv")]
    experts = [module for module in modules if ".experts." in module]  # whose weights are one tensor, and whose states are not
    modules = [module for module in modules if module not in experts]
    modules += [module.replace(".experts.experts.", f".experts.experts.{number}.") for module in experts for number in range(num_experts)]
    return [f"{module}._extra_state" for module in modules]
