"""The options of a transfer: each is a field of a dataclass here, from which the command's options are made.

No arrays here, so that `--help` answers at once.
"""

from __future__ import annotations

# ruff: noqa: RUF009 (`_material` returns a field)
import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from common.options import add_option, add_option_of, add_options, given, option, require_values, values_of, with_default
from conversion.embeddings import METHODS, RENAMED_METHODS
from conversion.embeddings.layers import OUTPUT_LAYERS
from conversion.embeddings.parallel_text import ParallelText
from data_prep.reading.corpora import text_files
from data_prep.reading.documents import SEPARATORS, SUFFIXES_IN_WORDS, Documents

FALLBACKS = ("mean", "random")
STATISTICS = ("dimension", "matrix")
MATCHINGS = ("exact", "case", "space", "case-space")  # which tokens of text count as shared, see vocabulary_map
VECTOR_SUFFIXES = (".vec", ".txt", ".vec.gz", ".txt.gz", ".wv", ".bin")
FULL = "full"
STRATEGIES = ("replace", "expand", "swap", "union", "prune", "keep")
# Nothing is new in these, so every row is a copy and no method has a say.
COPYING_STRATEGIES = ("prune", "keep")
# Where expand gets its tokens from when it learns them: a tokenizer trained on the text alone, or more merges of the source's own.
TOKENS_BY = ("auxiliary", "continued-bpe")
# All of the source's tokens stay in these, with their rows.
GROWING_STRATEGIES = ("expand", "union")
# All tokens stay where they are in these, but for some whose ids others get.
LASTING_STRATEGIES = ("keep", "swap")
OUTPUT_ROWS = ("mean", "learned")
LEARNING_DTYPES = ("float32", "bfloat16")


def _material(flag: str, words: str, kind: str, *, also: str = "", **how: Any) -> Any:
    """An option that some methods need or make use of.

    Args:
        kind: what it is, in words.
        also: what else than methods it serves.
    """
    return option(flag, words, None, more={"kind": kind, "also": also}, **how)


@dataclass(frozen=True)
class VocabularyOptions:
    """How the target's vocabulary is made; for `prune`, `min_count` is how often the text must have a token."""

    strategy: str = option(
        "--vocabulary",
        "replace: use that of --tokenizer; expand, union: add some or all tokens of another to the source's; swap: exchange as many;"
        " prune: remove unused tokens; keep: no change",
        "replace",
        choices=STRATEGIES,
    )
    num_new_tokens: int | None = option(
        "--new-tokens N", "number of tokens that expand adds or swap exchanges, usually 50 to 5,000", least=1
    )
    num_sentences: int = option(
        "--tokenizer-sentences N", "number of sentences of --text from which expand learns tokens (default: 30,000)", 30_000, least=1
    )  # Yamaguchi et al. 2024
    min_count: int = option("--min-count N", "prune: minimum count in --text of a token to keep", 1, least=1)
    tokens_by: str | None = option(
        "--tokens-by",
        "expand and swap without --tokenizer: train an auxiliary tokenizer on --text, or continue the merges of the source's own"
        " (default: auxiliary)",
        choices=TOKENS_BY,
    )
    swap_scripts: Sequence[str] | None = option(
        "--swap-script SCRIPT", "swap: give up only tokens written in these scripts, such as Han Cyrillic Arabic", nargs="+"
    )
    swap_text: Sequence[Path] | None = option(
        "--swap-text FILE",
        "swap: text of languages to give up, whose tokens go first; tokens of --text and --source-text stay",
        type=Path,
        nargs="+",
    )


@dataclass(frozen=True)
class VectorOptions:
    """How word vectors of target tokens are trained on text; what is None follows from the size of the text."""

    size: int | None = option("--vector-size N", "dimensions of fastText vectors (default: 300, or 100 for little text)", least=1)
    epochs: int | None = option("--vector-epochs N", "passes over the text (default: 3, more for little text)", least=1)
    min_count: int | None = option(
        "--vector-min-count N", "minimum count of a token with a vector (default: 10, fewer for little text)", least=1
    )

    def __post_init__(self) -> None:
        require_values(self)

    def for_text(self, num_tokens: int) -> tuple[int, int, int]:
        """Size, epochs and minimal count for a text of so many tokens.

        From a million tokens on 300, 3 and 10, as fastText's published vectors and FOCUS have them (Dobler and de Melo 2023,
        appendix).  With 3 passes over a small text all vectors stay alike: it is read until 600,000 tokens have been seen.
        """
        size = 300 if num_tokens >= 1_000_000 else 100
        epochs = min(100, max(3, -(-600_000 // max(num_tokens, 1))))
        min_count = min(10, max(3, num_tokens // 10_000))
        return self.size or size, self.epochs or epochs, self.min_count or min_count


@dataclass(frozen=True)
class LearningOptions:
    """How rows are learned by running the model.

    Attributes:
        learning_rate: what Adam moves a value by in the first step, as a share of the root mean square of the source's rows, so that it
            means the same for every model; it falls to zero in a straight line.
        output_rows: with token distillation, `mean` of the pieces or `learned` from the next token (`next-token` and `alm` always learn them).
        layer: with token distillation, the layer whose states are compared, from 1; None for the last, behind its norm.
        state: file that keeps what has been learned until the transfer is written; None to keep nothing.
    """

    num_steps: int = option("--steps N", "training steps", 200, least=1)
    device: str | None = option("--device", "cpu, cuda, cuda:1 ... (default: cuda if available)")
    dtype: str | None = option("--dtype", "dtype of the frozen weights (default: float32 on a CPU, else bfloat16)", choices=LEARNING_DTYPES)
    batch_size: int = option("--batch-size N", "windows of --text per step", 8, least=1)
    window_tokens: int = option("--sequence-length N", "maximum tokens of a window, of either tokenizer", 64, least=4)
    learning_rate: float = option("--learning-rate X", "Adam's first step, relative to the root mean square of the source's rows", 0.005)
    min_contexts: int = option("--min-contexts N", "minimum windows that have a token; rarer tokens keep their initial row", 3, least=1)
    output_rows: str = option(
        "--output-rows",
        "token-distillation: rows of an untied output layer, mean of the source tokens or learned; tied rows learn from both",
        "mean",
        choices=OUTPUT_ROWS,
    )
    layer: int | None = option(
        "--distilled-layer N", "token-distillation: number of the layer whose hidden states are matched (default: the last)", least=1
    )
    state: Path | None = None

    def __post_init__(self) -> None:
        require_values(self)
        if not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise ValueError(f"--learning-rate is {self.learning_rate}; expected a number above 0")


def _name_of_method(text: str) -> str:
    if text in RENAMED_METHODS:
        raise argparse.ArgumentTypeError(RENAMED_METHODS[text])
    return text


METHOD_NAME: dict[str, Any] = {"type": _name_of_method, "choices": tuple(METHODS)}


@dataclass(frozen=True)
class TransferRequest:
    """What to transfer and how.  The inputs of some methods are in `TransferInputs` too, opened.

    Attributes:
        tokenizer: folder of the target tokenizer; None where the vocabulary is made from the source's alone.
        method: None where all rows are copies.
        output_layer: None keeps the source's way, see `choose_output_layer`.
        factorised_size: dimensions of the coordinates that are transferred in place of rows, `full`, or None to transfer rows.
        special_tokens: target token -> source token, over the rules of `map_vocabulary`.
        learning: None for the defaults.
    """

    source: Path = option("--source DIR", "Hugging Face checkpoint of the source model, with its tokenizer", MISSING, required=True)
    tokenizer: Path | None = option(
        "--tokenizer DIR", "folder of the target tokenizer (replace, union; expand: in place of training one)", MISSING
    )
    method: str | None = option(
        "--method", "embedding initialisation method for new tokens; none with --vocabulary prune and keep", MISSING, **METHOD_NAME
    )
    vocabulary: VocabularyOptions = field(default_factory=VocabularyOptions)
    output_layer: str | None = option(
        "--output-layer",
        "tied: shared with the input embedding; copied: a copy of it, untied; transferred: the source's own, transferred too; random: newly drawn"
        " (default: as in the source)",
        choices=OUTPUT_LAYERS,
    )
    text: Documents | None = _material(
        "--text FILE",
        f"target-language text ({SUFFIXES_IN_WORDS})",
        "text in the target language",
        also="expand, prune",
        type=Path,
        nargs="+",
    )
    source_text: Documents | None = _material(
        "--source-text FILE",
        "source-language text",
        "text in the source language",
        also="expand and union measure on it what they change",
        type=Path,
        nargs="+",
    )
    helper: Path | None = _material(
        "--helper DIR",
        "model in the target language with the target tokenizer",
        "a model in the target language with the target tokenizer",
    )
    encoder: Path | None = _material("--encoder DIR", "encoder of both languages with its tokenizer", "an encoder of both languages")
    word_vectors: Path | None = _material(
        "--vectors FILE",
        f"vectors of target-language words ({', '.join(VECTOR_SUFFIXES)}); of both languages for ofa",
        "vectors of words in the target language",
    )
    source_word_vectors: Path | None = _material(
        "--source-vectors FILE", "vectors of source-language words", "vectors of words in the source language"
    )
    dictionary: Path | None = _material(
        "--dictionary FILE", "pairs of a source and a target word", "a dictionary from the source to the target language"
    )
    parallel: ParallelText | None = _material(
        "--parallel FILE", "sentence, tab, translation on each line", "sentences with their translations", type=Path
    )
    as_published: bool | None = _material(
        "--as-published",
        "follow the published code of the method where it differs from the paper or from our default (docs/embeddings.md)",
        "another way in the published code",
        action="store_const",
        const=True,
    )
    num_atoms: int | None = _material(
        "--num-atoms N",
        "maximum number of shared tokens combined for a new one (default: 64, at most an eighth of the helper's dimensions)",
        "how many shared tokens make a new one",
    )
    num_pairs: int | None = _material(
        "--num-pairs N",
        "number of shared tokens to fit the map on, sampled by the seed (default: all)",
        "on how many shared tokens a map is fitted",
    )
    vectors: VectorOptions = field(default_factory=VectorOptions)
    learning: LearningOptions | None = field(
        default=None, metadata={"flag": "--steps N and the other options of learning", "kind": "how to learn rows"}
    )
    fallback: str = option("--fallback", "row of a token that the method cannot initialise", "mean", choices=FALLBACKS)
    factorised_size: int | str | None = option(
        "--factorised-size N",
        "transfer a factorised embedding of N dimensions (or full), as OFA does, and keep both factors in factors.safetensors",
    )
    random_statistics: str = option(
        "--random-statistics", "mean and variance of random rows: per dimension or over the whole matrix", "dimension", choices=STATISTICS
    )
    matching: str = option(
        "--match", "also share rows of tokens that differ in case, in the leading space, or in both", "exact", choices=MATCHINGS
    )
    special_tokens: Mapping[str, str] = option(
        "--special-token TARGET=SOURCE", "copy the row of this source token to the target token", factory=dict, action="append"
    )
    seed: int = option("--seed", "random seed", 42)


# What methods learn from or are told: field of the request -> its option and what it is.
MATERIAL = {found.name: (found.metadata["flag"], found.metadata["kind"]) for found in fields(TransferRequest) if found.metadata.get("kind")}


def add_transfer_options(parser: argparse.ArgumentParser, *, method: str | None = None, leave_out: Sequence[str] = ()) -> None:
    """Add the options of a transfer.

    Args:
        method: whose options `--help` shows; the others' are known all the same, so that they are refused by name.  None for all.
        leave_out: fields of the request that the command has no option for.
    """
    uses = METHODS[method].uses if method is not None else None
    _add(parser, TransferRequest, leave_out=leave_out, uses=uses)
    add_option(parser, "--special-tokens FILE", "the same from a file: target token, tab, source token on each line", type=Path)
    has_pairs = uses is None or "parallel" in uses
    add_option(
        parser,
        "--parallel-columns",
        "names of the two columns to use, if --parallel has a header" if has_pairs else argparse.SUPPRESS,
        nargs=2,
        metavar=("SOURCE", "TARGET"),
    )
    add_option(parser, "--text-key", "key of the text in a .jsonl line", "text")
    add_option(parser, "--document-separator", "what ends a document in a .txt file (default: an empty line)", choices=SEPARATORS)
    add_options(parser.add_argument_group("vocabulary"), VocabularyOptions)
    for name, title, options in (
        ("vectors", "fastText vectors trained on --text", VectorOptions),
        ("learning", "training of new rows", LearningOptions),
    ):
        if name not in leave_out:
            serves = f"{title} ({', '.join(_users(name))})"
            _add(
                parser.add_argument_group(serves) if uses is None or name in uses else parser,
                options,
                hidden=uses is not None and name not in uses,
            )


def _add(
    parser: argparse._ActionsContainer,
    options: type,
    *,
    leave_out: Sequence[str] = (),
    uses: frozenset[str] | None = None,
    hidden: bool = False,
) -> None:
    for found in fields(options):
        metadata = found.metadata
        if "how" not in metadata or found.name in leave_out:
            continue
        words, also = with_default(metadata["words"], metadata["default"]), metadata.get("also")
        if metadata.get("kind") and uses is None:
            words += f" ({'; '.join(filter(None, (', '.join(_users(found.name)), also)))})"
        is_hidden = hidden or (uses is not None and metadata.get("kind") and found.name not in uses and not also)
        # Whether any option of learning is given decides whether there are any.
        has_default = options is not LearningOptions
        add_option_of(parser, found, words=argparse.SUPPRESS if is_hidden else words, has_default=has_default)


def _users(name: str) -> list[str]:
    return [method for method, row in METHODS.items() if name in row.uses]


def transfer_request(arguments: argparse.Namespace, **changes: Any) -> TransferRequest:
    """The request that the options make.

    Args:
        changes: fields that no option gives.

    Raises:
        ValueError: if an option cannot be read.
    """
    learning = given(arguments, LearningOptions) if "output_rows" in arguments else {}  # --steps may be another command's own
    readers: dict[str, Callable[[Any], Any]] = {
        "text": lambda paths: _documents(paths, arguments),
        "source_text": lambda paths: _documents(paths, arguments),
        "parallel": lambda path: _parallel_text(path, arguments.parallel_columns),
        "factorised_size": read_factorised_size,
        "special_tokens": lambda pairs: chosen_special_tokens(pairs, arguments.special_tokens),
    }
    values = {name: readers.get(name, lambda value: value)(value) for name, value in values_of(arguments, TransferRequest).items()}
    groups = {
        "vocabulary": VocabularyOptions(**values_of(arguments, VocabularyOptions)),
        "vectors": VectorOptions(**values_of(arguments, VectorOptions)),
        "learning": LearningOptions(**learning) if learning else None,
    }
    return TransferRequest(**values | groups | changes)


def _documents(paths: Sequence[Path] | None, arguments: argparse.Namespace) -> Documents | None:
    separator = arguments.document_separator or "blank-line"
    return None if paths is None else Documents(text_files(paths), text_key=arguments.text_key, separator=separator)


def read_factorised_size(value: str | None) -> int | str | None:
    """The option's value: a number of dimensions or `full`.

    Raises:
        ValueError: if it is neither.
    """
    if value is None or value == FULL:
        return value
    try:
        return int(value)
    except ValueError as error:
        raise ValueError(f"--factorised-size is {value!r}; expected a number of dimensions (OFA: 100, 200, 400) or {FULL}") from error


def chosen_special_tokens(options: Sequence[str] | None, file: Path | None) -> dict[str, str]:
    """Target token -> source token, by `TARGET=SOURCE` options and a file of lines with a tab between the two.

    Raises:
        ValueError: if an entry is not a pair, or if two speak of one target token.
    """
    pairs: list[tuple[str, str]] = []
    for pair in options or ():
        target, separator, source = pair.partition("=")
        if not (target and separator and source):
            raise ValueError(f"--special-token {pair} is not of the form TARGET=SOURCE, for example '<s>=</s>'")
        pairs.append((target, source))
    if file is not None:
        if not file.is_file():
            raise ValueError(f"the special tokens file {file} does not exist")
        for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
            if line.strip():
                target, separator, source = line.rstrip("\r").partition("\t")
                if not (target and separator and source):
                    raise ValueError(f"{file}, line {number} is not a target token and source token with a tab between: {line!r}")
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
