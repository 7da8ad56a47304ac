"""FOCUS by its package, as its README calls it: text and two tokenizers in, a matrix of new rows out."""

import json
import os
import sys

os.environ["XDG_CACHE_HOME"] = os.environ["HF_DATASETS_CACHE"] = f"{sys.argv[-1]}.cache"  # no round finds what another tokenized
import numpy as np
import pyarrow
from deepfocus import FOCUS
from safetensors import safe_open
from transformers import AutoTokenizer

model, target, text, output = sys.argv[1:]
with pyarrow.CompressedInputStream(text, "zstd") as stream, open(f"{output}.txt", "w", encoding="utf-8") as lines:
    for line in stream.read().splitlines():
        lines.write(json.loads(line)["text"])
        lines.write("\n")
with safe_open(f"{model}/model.safetensors", "pt") as weights:
    rows = weights.get_tensor("model.embed_tokens.weight").float()
source, target = (AutoTokenizer.from_pretrained(folder) for folder in (model, target))
found = FOCUS(
    target_tokenizer=target, source_tokenizer=source, source_embeddings=rows, target_training_data_path=f"{output}.txt", fasttext_model_dim=100,
    fasttext_model_epochs=3, fasttext_model_min_count=10, verbosity="silent",
)  # fmt: skip
np.save(output, found.numpy())
