"""SentencePiece's own BPE training on the lines of the text."""

import json
import sys
from collections.abc import Iterator

import pyarrow
from sentencepiece import SentencePieceTrainer

source, vocab_size, output = sys.argv[1:]


def lines() -> Iterator[str]:
    with pyarrow.CompressedInputStream(source, "zstd") as stream:
        for line in stream.read().splitlines():
            yield from json.loads(line)["text"].split("\n")


SentencePieceTrainer.train(
    sentence_iterator=lines(), model_prefix=output, model_type="bpe", vocab_size=int(vocab_size), byte_fallback=True, num_threads=1,
    minloglevel=2,
)  # fmt: skip
