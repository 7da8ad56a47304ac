"""A folder's config.json as an object of transformers, whichever version of it wrote the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from conversion.checkpoints.hf_files import CONFIG_NAME, in_words_of_both, read_json

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def load_config(directory: Path) -> PretrainedConfig:
    """What the installed transformers is to load a model by: given to `from_pretrained` as `config`, which would read the file alone.

    Raises:
        ValueError: if the file is missing or means different models to different versions.
        Exception: of any kind, from transformers, for a file that it does not know.
    """
    from transformers import AutoConfig

    said = read_json(directory / CONFIG_NAME, expected="expected a Hugging Face checkpoint folder")
    told = in_words_of_both(said, source=str(directory))
    config = AutoConfig.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    return config if told == said else type(config).from_dict(told)
