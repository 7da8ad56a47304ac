"""Tokenized text for training: documents to Megatron's `.bin` and `.idx`, with an end-of-text token after each.

Documents are tokenized without special tokens, and text that spells one (`</s>`) is text: only the end of a document is
an end-of-text token.  Empty documents are left out and counted.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep import command
from data_prep.artifacts import Manifest, digest_file, staged_directory, write_manifest
from data_prep.documents import Documents, add_input_arguments, batches
from data_prep.megatron_index import STAGE, IndexedDatasetWriter, token_dtype
from data_prep.tokenizer_files import load_tokenizer, start_without_torch, tokenizer_digest

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

# Enough for all cores to share; the library needs some 150 bytes of memory for each token of a batch.
_BATCH_CHARACTERS = 1 << 21


def to_megatron(
    documents: Documents, tokenizer: PreTrainedTokenizerFast, output_dir: Path, *, arguments: argparse.Namespace | None = None
) -> Manifest:
    """Write documents as an indexed dataset into a new directory and return its manifest.

    Raises:
        ValueError: if the tokenizer has no end-of-text token or the documents cannot be read.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"the tokenizer in {tokenizer.name_or_path} has no end-of-text token, which must end each document;"
            " set eos_token in its tokenizer_config.json"
        )
    # Not tokenizer.vocab_size, which leaves out added tokens, whose ids come after it.
    vocab_size = max(tokenizer.get_vocab().values()) + 1
    with staged_directory(output_dir) as staging:
        with IndexedDatasetWriter(staging, token_dtype(vocab_size)) as writer:
            for token_ids, lengths in tokenize(documents.read("tokenizing"), tokenizer.backend_tokenizer, tokenizer.eos_token_id):
                writer.add_documents(token_ids, lengths)
        facts = {
            "tokenizer_digest": tokenizer_digest(tokenizer),
            "vocab_size": vocab_size,
            "eos_token_id": tokenizer.eos_token_id,
            "num_documents": documents.num_documents,
            "num_empty_documents": documents.num_empty,
            "num_tokens": writer.num_tokens,
            "text_bytes": documents.text_bytes,
        }
        inputs = {str(path): digest_file(path) for path in documents.paths}
        return write_manifest(
            staging,
            stage=STAGE,
            facts=facts,
            arguments=vars(arguments) if arguments else None,
            inputs=inputs,
            known_digests=writer.digests,
        )


def tokenize(texts: Iterable[str], tokenizer: Tokenizer, eos_token_id: int) -> Iterator[tuple[np.ndarray, list[int]]]:
    """Yield the token ids of texts, many at a time and in order, with the end-of-text token behind each.

    Yields:
        token ids, (sum of lengths,) int32, and the length of each text.

    Raises:
        ValueError: if a text's own tokens hold the end-of-text token.
    """
    import numpy as np

    tokenizer.encode_special_tokens = True  # "</s>" in a text is four characters
    for batch in batches(texts, _BATCH_CHARACTERS):
        rows = [encoding.ids for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False)]
        for text, row in zip(batch, rows):
            if eos_token_id in row:
                raise ValueError(
                    f"the tokenizer gives its end-of-text token {eos_token_id} inside the document that begins {text[:80]!r};"
                    " mark that token as special in its tokenizer.json"
                )
            row.append(eos_token_id)
        lengths = [len(row) for row in rows]
        yield np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=sum(lengths)), lengths


def main(argv: Sequence[str] | None = None) -> int:
    """Tokenize files into a directory of `text.bin`, `text.idx` and `scion.json`."""
    parser = command.parser(
        __doc__,
        prog="data_prep.to_megatron",
        example="python -m data_prep.to_megatron --input news.jsonl.gz --tokenizer tokenizer/ --output data/",
    )
    add_input_arguments(parser)
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="DIR", help="folder of a Hugging Face tokenizer")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="new directory")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="threads (default: all cores)")
    arguments = parser.parse_args(argv)
    if arguments.workers < 1:
        raise ValueError(f"--workers is {arguments.workers}; expected at least 1")
    # Read once, by the tokenizer library's thread pool at its first use.
    os.environ["RAYON_NUM_THREADS"] = str(arguments.workers)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    documents = Documents.from_arguments(arguments)
    manifest = to_megatron(documents, load_tokenizer(arguments.tokenizer), arguments.output, arguments=arguments)
    facts = manifest.facts
    print(
        f"{arguments.output}: {facts['num_documents']:,} documents, {facts['num_tokens']:,} tokens (end-of-text included),"
        f" {facts['text_bytes'] / facts['num_tokens']:.2f} bytes per token; {facts['num_empty_documents']:,} empty documents left out"
    )
    return command.DONE


if __name__ == "__main__":
    start_without_torch()
    command.run(main)
