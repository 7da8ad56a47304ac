"""WECHSEL by its package: fastText of the words of two texts, a dictionary and two tokenizers in, a matrix of new rows out."""

import json
import sys

import fasttext
import numpy as np
import pyarrow
from safetensors import safe_open
from transformers import AutoTokenizer
from wechsel import WECHSEL

model, target, target_text, source_text, dictionary, output = sys.argv[1:]


def vectors(text: str, name: str) -> object:
    with pyarrow.CompressedInputStream(text, "zstd") as stream, open(f"{output}.{name}", "w", encoding="utf-8") as lines:
        for line in stream.read().splitlines():
            lines.write(" ".join(json.loads(line)["text"].split()))
            lines.write("\n")
    return fasttext.train_unsupervised(f"{output}.{name}", model="cbow", dim=100, neg=10, epoch=3, minCount=10, minn=5, maxn=5)


with safe_open(f"{model}/model.safetensors", "pt") as weights:
    rows = weights.get_tensor("model.embed_tokens.weight").float().numpy()
source, target = (AutoTokenizer.from_pretrained(folder) for folder in (model, target))
method = WECHSEL(vectors(source_text, "source"), vectors(target_text, "target"), bilingual_dictionary=dictionary)
found, _ = method.apply(source, target, rows)
np.save(output, found)
