"""A model's passes over a text in its windows, so many times, and nothing else but its loading: the least that bits per byte cost."""

import json
import sys

import pyarrow
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, source, times = sys.argv[1:4]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
window = min(2048, model.config.max_position_embeddings)
with pyarrow.CompressedInputStream(source, "zstd") as stream:
    texts = [json.loads(line)["text"] for line in stream.read().splitlines()]
with torch.inference_mode():
    for _ in range(int(times)):
        for text in texts:
            for part in tokenizer(text, return_tensors="pt")["input_ids"].split(window, dim=1):
                model(input_ids=part).logits.log_softmax(-1)
