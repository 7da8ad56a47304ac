"""The tokenizer's library alone, in one thread: documents in batches, ids discarded."""

import itertools
import json
import os
import sys

import pyarrow

os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer

source, tokenizer_dir, _ = sys.argv[1:]
tokenizer = Tokenizer.from_file(f"{tokenizer_dir}/tokenizer.json")
with pyarrow.CompressedInputStream(source, "zstd") as stream:
    texts = (json.loads(line)["text"] for line in stream.read().splitlines())
    while batch := list(itertools.islice(texts, 64)):
        tokenizer.encode_batch_fast(batch, add_special_tokens=False)
