"""As Megatron's preprocessing does it: documents one by one through the tokenizer, lists of ids into an IndexedDatasetBuilder."""

import json
import sys
from pathlib import Path

import pyarrow
import torch
from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
from transformers import AutoTokenizer

source, tokenizer_dir, output = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)
Path(output).mkdir()
builder = IndexedDatasetBuilder(f"{output}/text.bin", dtype=DType.optimal_dtype(len(tokenizer)))
with pyarrow.CompressedInputStream(source, "zstd") as stream:
    for line in stream.read().splitlines():
        ids = tokenizer(json.loads(line)["text"], add_special_tokens=False)["input_ids"]
        builder.add_item(torch.IntTensor([*ids, tokenizer.eos_token_id]))
        builder.end_document()
builder.finalize(f"{output}/text.idx")
