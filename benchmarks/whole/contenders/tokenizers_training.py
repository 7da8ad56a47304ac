"""Byte-level BPE trained by the tokenizers library on the documents of the text."""

import json
import sys
from collections.abc import Iterator

import pyarrow
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

source, vocab_size, output = sys.argv[1:]


def texts() -> Iterator[str]:
    with pyarrow.CompressedInputStream(source, "zstd") as stream:
        for line in stream.read().splitlines():
            yield json.loads(line)["text"]


tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train_from_iterator(
    texts(), trainers.BpeTrainer(vocab_size=int(vocab_size), show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
)
tokenizer.save(output)
