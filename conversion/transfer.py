"""Give a model the vocabulary of another language: Hugging Face checkpoint + target tokenizer -> checkpoint with new embeddings.

Tokens that both vocabularies have keep their rows bit for bit; the rows of new tokens are made by the chosen method, and all
other weights are copied unchanged.  `transfer.json` in the output says for each token where its row came from.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from conversion.embeddings import METHODS
from conversion.embeddings.layers import OUTPUT_LAYERS
from conversion.embeddings.method import FALLBACKS, VectorOptions
from conversion.embeddings.random_rows import STATISTICS
from conversion.embeddings.word_vectors import VECTOR_SUFFIXES
from data_prep import command
from data_prep.documents import SEPARATORS, SUFFIXES, Documents
from data_prep.tokenizer_files import start_without_torch


def main(argv: Sequence[str] | None = None) -> int:
    """Transfer the embeddings into a new checkpoint folder and print where the rows came from."""
    arguments = _parser().parse_args(argv)
    from conversion.embeddings.checkpoint import TransferRequest, plan_transfer, write_transfer
    from conversion.embeddings.report import summary

    text = None
    if arguments.text is not None:
        text = Documents(arguments.text, text_key=arguments.text_key, separator=arguments.document_separator)
    request = TransferRequest(
        source=arguments.source,
        tokenizer=arguments.tokenizer,
        method=arguments.method,
        output_layer=arguments.output_layer,
        seed=arguments.seed,
        text=text,
        helper=arguments.helper,
        encoder=arguments.encoder,
        word_vectors=arguments.vectors,
        source_word_vectors=arguments.source_vectors,
        dictionary=arguments.dictionary,
        vectors=VectorOptions(arguments.vector_size, arguments.vector_epochs, arguments.vector_min_count),
        fallback=arguments.fallback,
        random_statistics=arguments.random_statistics,
        special_tokens=_pairs(arguments.special_token),
    )
    transfer = plan_transfer(request)
    manifest = write_transfer(transfer, arguments.output, arguments=vars(arguments))
    facts = manifest.facts
    print(f"{arguments.output}: {facts['vocab_size']:,} tokens by {facts['method']}, output layer {facts['head']}, seed {facts['seed']}")
    print(summary(transfer.inputs, transfer.plan))
    return command.DONE


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__,
        prog="conversion.transfer",
        example="python -m conversion.transfer --source opt-1.3b/ --tokenizer slovene/ --method focus --text sl.jsonl.gz --output opt-sl/",
    )
    parser.add_argument("--source", type=Path, required=True, metavar="DIR", help="model folder with its tokenizer")
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="DIR", help="folder of the target tokenizer")
    parser.add_argument("--method", choices=tuple(METHODS), required=True, help="how rows of new tokens are made")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="new directory")
    parser.add_argument(
        "--output-layer",
        choices=OUTPUT_LAYERS,
        help="one matrix with the input; a copy of it, trained apart; the source's own, transferred too; or drawn (default: as the source has it)",
    )
    parser.add_argument("--seed", type=int, default=42, help="decides all that is drawn (default: 42)")
    parser.add_argument(
        "--text", type=Path, nargs="+", metavar="FILE", help=f"target-language text for focus and align ({', '.join(SUFFIXES)})"
    )
    parser.add_argument(
        "--helper", type=Path, metavar="DIR", help="model in the target language with the target tokenizer (clp, sava, omp)"
    )
    parser.add_argument("--encoder", type=Path, metavar="DIR", help="encoder of both languages with its tokenizer (focus-cse, wechsel-cse)")
    parser.add_argument(
        "--vectors",
        type=Path,
        metavar="FILE",
        help=f"vectors of target-language words ({', '.join(VECTOR_SUFFIXES)}); for ofa of both languages",
    )
    parser.add_argument("--source-vectors", type=Path, metavar="FILE", help="vectors of source-language words (wechsel)")
    parser.add_argument("--dictionary", type=Path, metavar="FILE", help="pairs of a source and a target word (wechsel)")
    parser.add_argument("--text-key", default="text", help="key of the text in a .jsonl line (default: text)")
    parser.add_argument("--document-separator", choices=SEPARATORS, default="blank-line", help="what ends a document in a .txt file")
    by_text = "by default by the size of the text"
    parser.add_argument("--vector-size", type=int, metavar="N", help=f"dimensions of fastText vectors, 300 or 100 {by_text}")
    parser.add_argument("--vector-epochs", type=int, metavar="N", help=f"passes over the text, 3 or more {by_text}")
    parser.add_argument("--vector-min-count", type=int, metavar="N", help=f"rarer tokens have no vector, 10 or less {by_text}")
    parser.add_argument(
        "--fallback", choices=FALLBACKS, default="mean", help="row of a token that the method has nothing for (default: mean)"
    )
    parser.add_argument(
        "--random-statistics",
        choices=STATISTICS,
        default="dimension",
        help="mean and variance of drawn rows per dimension or over the matrix",
    )
    parser.add_argument(
        "--special-token",
        action="append",
        default=[],
        metavar="TARGET=SOURCE",
        help="take the row of a target token from this source token",
    )
    return parser


def _pairs(values: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for value in values:
        target, separator, source = value.partition("=")
        if not (target and separator and source):
            raise ValueError(f"--special-token {value} is not of the form TARGET=SOURCE, for example '<s>=</s>'")
        pairs[target] = source
    return pairs


if __name__ == "__main__":
    start_without_torch()
    command.run(main)
