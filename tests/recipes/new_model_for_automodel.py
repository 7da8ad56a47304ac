"""A tiny model of random weights of a family that transformers 5 has: PYTHON -m tests.recipes.new_model_for_automodel CONFIG TOKENIZER OUTPUT."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


def main(config: str, tokenizer: str, output: str) -> None:
    """Write the folder."""
    values = json.loads(Path(config).read_text())
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(values.pop("model_type"), **values))
    model.save_pretrained(output)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
