"""A GGUF file as transformers reads it, written as a Hugging Face checkpoint."""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

source, output = Path(sys.argv[1]), sys.argv[2]
AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32).save_pretrained(output)
