"""The options that say what to transfer and from what: shared by the commands that transfer and that compare transfers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common.plain_files import read_json
from conversion.embeddings import METHODS, RENAMED_METHODS
from conversion.embeddings.layers import OUTPUT_LAYERS
from conversion.embeddings.methods.learning_options import LEARNING_DTYPES, OUTPUT_ROWS, LearningOptions
from conversion.embeddings.parallel_text import ParallelText
from conversion.embeddings.settings import (
    FALLBACKS,
    MATCHINGS,
    NUM_SENTENCES,
    STATISTICS,
    STRATEGIES,
    TOKENS_BY,
    VECTOR_SUFFIXES,
    VectorOptions,
    VocabularyOptions,
    read_factorised_size,
)
from data_prep.reading.corpora import text_files
from data_prep.reading.documents import SEPARATORS, SUFFIXES_IN_WORDS, Documents

if TYPE_CHECKING:
    from conversion.embeddings.request import TransferRequest


def method_name(text: str) -> str:
    """A method's name as an option gives it; for one that is gone, the error says the name that it has now."""
    if text in RENAMED_METHODS:
        raise argparse.ArgumentTypeError(RENAMED_METHODS[text])
    return text


def add_transfer_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a transfer, all but method, seed and output."""
    parser.add_argument("--source", type=Path, required=True, metavar="DIR", help="model folder with its tokenizer")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="DIR", help="folder of the target tokenizer (replace, union; expand: instead of training one)"
    )
    parser.add_argument(
        "--vocabulary",
        choices=STRATEGIES,
        default="replace",
        help="that of --tokenizer; the source's with some or all tokens of another added; without unused ones; or as it is (default: replace)",
    )
    parser.add_argument("--new-tokens", type=int, metavar="N", help="tokens that expand adds, usually 50 to 5,000")
    parser.add_argument(
        "--tokenizer-sentences",
        type=int,
        default=NUM_SENTENCES,
        metavar="N",
        help=f"sentences of --text from which expand learns tokens (default: {NUM_SENTENCES:,})",
    )
    parser.add_argument(
        "--tokens-by",
        choices=TOKENS_BY,
        help="expand without --tokenizer: tokens of a tokenizer of the same kind trained on --text, or more merges of the source's own"
        " (default: auxiliary)",
    )
    parser.add_argument(
        "--min-count", type=int, default=1, metavar="N", help="prune keeps tokens that --text has so many times (default: 1)"
    )
    parser.add_argument(
        "--output-layer",
        choices=OUTPUT_LAYERS,
        help="one matrix with the input; a copy of it, trained apart; the source's own, transferred too; or drawn (default: as the source has it)",
    )
    parser.add_argument(
        "--text",
        type=Path,
        nargs="+",
        metavar="FILE",
        help=f"target-language text (align, focus; wechsel, ofa-aligned without --vectors; expand, prune; what learns; {SUFFIXES_IN_WORDS})",
    )
    parser.add_argument(
        "--source-text",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="source-language text (wechsel, ofa-aligned without --source-vectors; expand and union measure on it what they change)",
    )
    parser.add_argument(
        "--helper", type=Path, metavar="DIR", help="model in the target language with the target tokenizer (clp, sava, omp)"
    )
    parser.add_argument("--encoder", type=Path, metavar="DIR", help="encoder of both languages with its tokenizer (focus-cse, wechsel-cse)")
    parser.add_argument(
        "--vectors",
        type=Path,
        metavar="FILE",
        help=f"vectors of target-language words ({', '.join(VECTOR_SUFFIXES)}); of both languages for ofa",
    )
    parser.add_argument("--source-vectors", type=Path, metavar="FILE", help="vectors of source-language words (wechsel, ofa-aligned)")
    parser.add_argument("--dictionary", type=Path, metavar="FILE", help="pairs of a source and a target word (wechsel, ofa-aligned)")
    parser.add_argument("--parallel", type=Path, metavar="FILE", help="sentence, tab, translation on each line (trans-tokenization)")
    parser.add_argument(
        "--parallel-columns", nargs=2, metavar=("SOURCE", "TARGET"), help="names of two columns, where --parallel has more and a header"
    )
    parser.add_argument(
        "--num-atoms",
        type=int,
        metavar="N",
        help="most shared tokens in a new one's sum (omp; default: 64, but an eighth of the helper's dimensions)",
    )
    parser.add_argument(
        "--num-pairs", type=int, metavar="N", help="shared tokens on which the map is fitted, drawn by the seed (sava; default: all)"
    )
    parser.add_argument(
        "--as-published",
        action="store_const",
        const=True,
        help="do as the published code of the method where that is otherwise than its paper or than we do (docs/transfer.md)",
    )
    parser.add_argument("--text-key", default="text", help="key of the text in a .jsonl line (default: text)")
    parser.add_argument("--document-separator", choices=SEPARATORS, help="what ends a document in a .txt file (default: an empty line)")
    by_text = "by default by the size of the text"
    parser.add_argument("--vector-size", type=int, metavar="N", help=f"dimensions of fastText vectors, 300 or 100 {by_text}")
    parser.add_argument("--vector-epochs", type=int, metavar="N", help=f"passes over the text, 3 or more {by_text}")
    parser.add_argument("--vector-min-count", type=int, metavar="N", help=f"rarer tokens have no vector, 10 or less {by_text}")
    parser.add_argument(
        "--fallback", choices=FALLBACKS, default="mean", help="row of a token that the method has nothing for (default: mean)"
    )
    parser.add_argument(
        "--factorised-size",
        metavar="N",
        help="transfer coordinates of N dimensions (or full) instead of rows, as OFA does, and keep both factors in factors.safetensors",
    )
    parser.add_argument(
        "--random-statistics",
        choices=STATISTICS,
        default="dimension",
        help="mean and variance of drawn rows per dimension or over the matrix",
    )
    parser.add_argument(
        "--match",
        choices=MATCHINGS,
        default="exact",
        help="take the row of a source token also for one that differs in capitals, in the space before it, or in both (default: exact)",
    )
    parser.add_argument(
        "--special-token",
        action="append",
        default=[],
        metavar="TARGET=SOURCE",
        help="take the row of a target token from this source token",
    )
    parser.add_argument(
        "--special-tokens", type=Path, metavar="FILE", help="the same in a file: target token, tab, source token on each line"
    )


def add_learning_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of methods that learn rows by running the model."""
    default = LearningOptions()
    group = parser.add_argument_group("methods that learn (token-distillation, next-token, alm)")
    group.add_argument("--steps", type=int, metavar="N", help=f"batches to learn from (default: {default.num_steps})")
    group.add_argument("--device", help="cpu, cuda, cuda:1 ...; default: cuda where there is one")
    group.add_argument("--dtype", choices=LEARNING_DTYPES, help="of the frozen weights (default: float32 on a CPU, else bfloat16)")
    group.add_argument("--batch-size", type=int, metavar="N", help=f"windows of --text in a step (default: {default.batch_size})")
    group.add_argument(
        "--sequence-length", type=int, metavar="N", help=f"most tokens of a window, of either tokenizer (default: {default.window_tokens})"
    )
    group.add_argument(
        "--learning-rate",
        type=float,
        metavar="X",
        help=f"Adam's first step as a share of the root mean square of the source's rows (default: {default.learning_rate})",
    )
    group.add_argument(
        "--min-contexts",
        type=int,
        metavar="N",
        help=f"tokens in fewer windows of the text keep their start (default: {default.min_contexts})",
    )
    group.add_argument(
        "--output-rows",
        choices=OUTPUT_ROWS,
        help="token-distillation: rows of an output layer of its own by the mean of pieces or learned; tied rows learn from both (default: mean)",
    )
    group.add_argument(
        "--distilled-layer", type=int, metavar="N", help="token-distillation: layer whose states are compared (default: the last)"
    )


def learning_options(arguments: argparse.Namespace, *, state: Path) -> LearningOptions | None:
    """The options of learning, None where none is given.

    Args:
        state: file that keeps what has been learned.

    Raises:
        ValueError: if a value cannot be.
    """
    given = {
        "num_steps": arguments.steps,
        "device": arguments.device,
        "dtype": arguments.dtype,
        "batch_size": arguments.batch_size,
        "window_tokens": arguments.sequence_length,
        "learning_rate": arguments.learning_rate,
        "min_contexts": arguments.min_contexts,
        "output_rows": arguments.output_rows,
        "layer": arguments.distilled_layer,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    return LearningOptions(**chosen, state=state) if chosen else None


def transfer_request(
    arguments: argparse.Namespace, *, method: str | None, seed: int, learning: LearningOptions | None = None
) -> TransferRequest:
    """The request that the options make.

    Raises:
        ValueError: if an option cannot be read.
    """
    from conversion.embeddings.request import TransferRequest

    separator = arguments.document_separator or "blank-line"
    text, source_text = (
        Documents(text_files(paths), text_key=arguments.text_key, separator=separator) if paths is not None else None
        for paths in (arguments.text, arguments.source_text)
    )
    return TransferRequest(
        source=arguments.source,
        tokenizer=arguments.tokenizer,
        method=method,
        output_layer=arguments.output_layer,
        seed=seed,
        vocabulary=VocabularyOptions(
            arguments.vocabulary,
            arguments.new_tokens,
            num_sentences=arguments.tokenizer_sentences,
            min_count=arguments.min_count,
            tokens_by=arguments.tokens_by,
        ),
        text=text,
        source_text=source_text,
        helper=arguments.helper,
        encoder=arguments.encoder,
        word_vectors=arguments.vectors,
        source_word_vectors=arguments.source_vectors,
        dictionary=arguments.dictionary,
        parallel=_parallel_text(arguments.parallel, arguments.parallel_columns),
        num_atoms=arguments.num_atoms,
        num_pairs=arguments.num_pairs,
        as_published=arguments.as_published,
        vectors=VectorOptions(arguments.vector_size, arguments.vector_epochs, arguments.vector_min_count),
        fallback=arguments.fallback,
        factorised_size=read_factorised_size(arguments.factorised_size),
        random_statistics=arguments.random_statistics,
        special_tokens=chosen_special_tokens(arguments.special_token, arguments.special_tokens),
        matching=arguments.match,
        learning=learning,
    )


def take_recommended(arguments: argparse.Namespace) -> None:
    """Set the method that a comparison recommends, and pass over the material that served other methods of it.

    Raises:
        ValueError: if a method is named too, or the folder is no comparison.
    """
    from conversion.embeddings.request import MATERIAL
    from conversion.embeddings.vocabularies.strategies import read_by

    if arguments.method is not None:
        raise ValueError("--method and --method-from both say how rows are made; give one of them")
    path = arguments.method_from / "comparison.json"
    if not path.is_file():
        raise ValueError(f"--method-from {arguments.method_from} has no {path.name}; expected an output of conversion.transfer_compare")
    method = read_json(path).get("recommendation", {}).get("method")
    if method not in METHODS:
        raise ValueError(f"{path} recommends {method!r}, which is no method; make the comparison again")
    arguments.method = method
    used = METHODS[method].uses | read_by(VocabularyOptions(arguments.vocabulary, arguments.new_tokens), arguments.tokenizer)
    for field, (flag, _) in MATERIAL.items():
        if field not in used:
            setattr(arguments, flag.split()[0].removeprefix("--").replace("-", "_"), None)


def chosen_special_tokens(options: Sequence[str], file: Path | None) -> dict[str, str]:
    """Target token -> source token, by `TARGET=SOURCE` options and a file of lines with a tab between the two.

    Raises:
        ValueError: if an entry is no pair, or if two speak of one target token.
    """
    pairs: list[tuple[str, str]] = []
    for option in options:
        target, separator, source = option.partition("=")
        if not (target and separator and source):
            raise ValueError(f"--special-token {option} is not of the form TARGET=SOURCE, for example '<s>=</s>'")
        pairs.append((target, source))
    if file is not None:
        if not file.is_file():
            raise ValueError(f"the special tokens file {file} does not exist")
        for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
            if line.strip():
                target, separator, source = line.rstrip("\r").partition("\t")
                if not (target and separator and source):
                    raise ValueError(f"{file}, line {number} is no target token and source token with a tab between: {line!r}")
                pairs.append((target, source))
    chosen: dict[str, str] = {}
    for target, source in pairs:
        if target in chosen:
            raise ValueError(f"the target token {target!r} is given two sources, {chosen[target]!r} and {source!r}; give one")
        chosen[target] = source
    return chosen


def _parallel_text(path: Path | None, columns: Sequence[str] | None) -> ParallelText | None:
    if path is None:
        if columns is not None:
            raise ValueError("--parallel-columns names columns of --parallel FILE; give that too")
        return None
    return ParallelText(path, (columns[0], columns[1]) if columns is not None else None)
