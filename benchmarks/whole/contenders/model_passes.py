"""A model's passes over a text in its windows and nothing else but its loading: the least that bits per byte cost."""

import json
import sys

import pyarrow
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, source, _ = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
window = min(2048, model.config.max_position_embeddings)
with pyarrow.CompressedInputStream(source, "zstd") as stream, torch.inference_mode():
    for line in stream.read().splitlines():
        ids = tokenizer(json.loads(line)["text"], return_tensors="pt")["input_ids"]
        for part in ids.split(window, dim=1):
            model(input_ids=part).logits.log_softmax(-1)
