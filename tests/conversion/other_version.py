"""What the tests of both versions of transformers do in the other one's environment: runs there as `python -m tests.conversion.other_version`.

save FOLDER             a tiny model of each family and a tokenizer, saved by transformers itself, each with the logits that it has there
save-new FOLDER         the same of families that the engine does not have
logits FOLDER FILE      logits of each checkpoint in a folder, loaded by transformers itself
commands FILE           our commands of a JSON file, `[[module, argument, ...], ...]`, one after the other
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.utils import logging

from conversion.families import FAMILIES
from tests.conversion.embedding_fixtures import byte_level, demo_text
from tests.conversion.new_families import NEW, config_of
from tests.conversion.tiny_families import CASES, tiny_model
from tests.processes import call_command

LOGITS = "expected.safetensors"
SPECIALS = {"bos": "</s>", "eos": "</s>", "pad": "<pad>"}


def batch() -> torch.Tensor:
    """(1, 40) ids that every tiny model has."""
    return torch.arange(40)[None] * 7 % 270 + 5


def stock_logits(directory: Path) -> torch.Tensor:
    """What the installed transformers computes for a folder that it loads without us."""
    config = AutoConfig.from_pretrained(directory)
    is_masked = config.model_type in FAMILIES and FAMILIES[config.model_type].masked
    library: Any = AutoModelForMaskedLM if is_masked else AutoModelForCausalLM
    if getattr(config, "vision_config", None) is not None and config.model_type not in FAMILIES:
        library = transformers.AutoModelForImageTextToText
    with torch.inference_mode():
        # The other attentions leave out Gemma 2's caps; the slopes of Apertus's activation are in bfloat16 in one version.
        model = (
            library.from_pretrained(directory, dtype=torch.float32, **({} if is_masked else {"attn_implementation": "eager"}))
            .float()
            .eval()
        )
        logits: torch.Tensor = model(batch()).logits
    return logits


def save(folder: Path) -> None:
    """Write the models, and one tokenizer beside each."""
    tokenizer = byte_level(demo_text("en")[:5000], num_tokens=270, specials=SPECIALS)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>"]})
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}"
    for name in CASES:
        model = tiny_model(name).float()
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        if not FAMILIES[CASES[name].model_type].masked:
            model.set_attn_implementation("eager")
        with torch.inference_mode():
            save_file({"logits": model(batch()).logits.contiguous()}, folder / name / LOGITS)


def save_new(folder: Path) -> None:
    """Write a model of each family of `new_families`, whose tensors are those that its table names."""
    tokenizer = byte_level(demo_text("en")[:5000], num_tokens=270, specials=SPECIALS)
    for name, new in NEW.items():
        torch.manual_seed(0)
        library: Any = transformers.AutoModelForImageTextToText if "text_config" in new.config else AutoModelForCausalLM
        said = {key: value for key, value in config_of(name, len(tokenizer) + 3).items() if key != "model_type"}
        model = library.from_config(AutoConfig.for_model(new.model_type, **said)).eval()
        for parameter in model.parameters():
            parameter.data.normal_(mean=0.05, std=0.1)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        shapes = {key: tuple(tensor.shape) for key, tensor in load_file(folder / name / "model.safetensors").items()}
        expected = {key: (len(tokenizer) + 3, width) for key, width in new.tokens.items()} | new.others
        assert expected.items() <= shapes.items(), (name, expected.items() - shapes.items())


def main(what: str, *paths: str) -> None:
    """Do one of the three."""
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    if what == "save":
        save(Path(paths[0]))
    elif what == "save-new":
        save_new(Path(paths[0]))
    elif what == "logits":
        folders = sorted(path for path in Path(paths[0]).iterdir() if path.is_dir())
        save_file({folder.name: stock_logits(folder).contiguous() for folder in folders}, paths[1])
    else:
        for module, *arguments in json.loads(Path(paths[0]).read_text(encoding="utf-8")):
            call_command(module, *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
