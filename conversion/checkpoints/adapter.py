"""A LoRA adapter in the folder format of PEFT, applied to its base model in memory.

`conversion.nemo_to_hf` writes whole models, into which it has added the adapters of a LoRA run (`conversion.checkpoints.lora`); this is for adapters
that were trained elsewhere, or kept apart.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.artifacts import digest_files
from conversion.checkpoints.hf_files import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"


def is_adapter(directory: Path) -> bool:
    """Whether a folder holds an adapter and no model of its own."""
    return (directory / CONFIG_NAME).is_file() and not (directory / "config.json").is_file()


def adapter_digest(directory: Path) -> str:
    """Identity of an adapter: its weights, and what they are scaled by and put on."""
    return digest_files(directory, [CONFIG_NAME, WEIGHTS_NAME])


def find_base(directory: Path, base: Path | None) -> Path:
    """The folder of the model that an adapter belongs to.

    Args:
        base: as the user says; None for what the adapter's config names.

    Raises:
        ValueError: if the adapter is of another kind or not whole, or its base is not on this disk.
    """
    config: dict[str, Any] = read_json(directory / CONFIG_NAME, expected="expected a LoRA adapter as PEFT saves it")
    if config.get("peft_type") != "LORA":
        raise ValueError(
            f"the adapter in {directory} is of the kind {config.get('peft_type')}; expected LORA, which can be added to a model's weights"
        )
    if not (directory / WEIGHTS_NAME).is_file():
        raise ValueError(f"{directory / WEIGHTS_NAME} is missing; save the adapter again, as safetensors")
    named = str(config.get("base_model_name_or_path") or "")
    folder = base or Path(named)
    if named and base is None and not folder.is_absolute() and not folder.is_dir():
        folder = directory / named
    if (base is None and not named) or not folder.is_dir():
        problem = f"{base}, which does not exist" if base else f"{named or 'no model'}, which is not a folder here"
        raise ValueError(f"the adapter in {directory} belongs to {problem}; give the folder of its base model with --base")
    return folder


def add_adapter(model: PreTrainedModel, directory: Path) -> PreTrainedModel:
    """The model with the adapter's products added to its weights, in the dtype of these.

    Raises:
        ValueError: if the adapter has tensors too few or too many for this model, or of another shape.
    """
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(directory / WEIGHTS_NAME)
        adapted: Any = get_peft_model(model, LoraConfig.from_pretrained(str(directory)))
        # PEFT itself leaves what it does not find at random numbers, and warns.
        expected = set(get_peft_model_state_dict(adapted, save_embedding_layers=False))
        lacks, unknown = sorted(expected - set(tensors)), sorted(set(tensors) - expected)
        if lacks or unknown:
            problem = (
                f"lacks {len(lacks)} tensors, first {lacks[0]}" if lacks else f"has {len(unknown)} tensors of no place, first {unknown[0]}"
            )
            raise ValueError(f"the adapter {problem}")
        set_peft_model_state_dict(adapted, tensors)
        merged: PreTrainedModel = adapted.merge_and_unload(safe_merge=True)
    except (ValueError, RuntimeError, KeyError, TypeError, OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"the adapter in {directory} does not fit its base model: {reason}; give its own base with --base") from error
    return merged
