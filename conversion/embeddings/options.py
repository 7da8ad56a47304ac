"""The options of a transfer: each is a field of a dataclass here, from which the command's options are made.

No arrays here, so that `--help` answers at once.
"""

from __future__ import annotations

# ruff: noqa: RUF009 (`_option` and similar functions return fields)
import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any

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


def _option(flag: str, words: str, default: Any = None, *, kind: str = "", also: str = "", factory: Any = MISSING, **how: Any) -> Any:
    """A field with its option.

    Args:
        words: for `--help`, which adds the methods that it serves and the default.
        kind: what it is, in words, where a method may need it or make no use of it.
        also: what else than methods it serves.
        how: as of `add_argument`.
    """
    metadata = {"flag": flag, "words": words, "kind": kind, "also": also, "how": how}
    return field(default_factory=factory, metadata=metadata) if factory is not MISSING else field(default=default, metadata=metadata)


def _count(flag: str, words: str, default: int | None = None, **how: Any) -> Any:
    return _option(flag, words, default, type=int, metavar="N", **how)


def _path(flag: str, words: str, default: Any = None, **how: Any) -> Any:
    name, metavar = flag.split()
    return _option(name, words, default, type=Path, metavar=metavar, **how)


@dataclass(frozen=True)
class VocabularyOptions:
    """How the target's vocabulary is made; for `prune`, `min_count` is how often the text must have a token."""

    strategy: str = _option(
        "--vocabulary",
        "replace: use that of --tokenizer; expand, union: add some or all tokens of another to the source's; swap: exchange as many;"
        " prune: remove unused tokens; keep: no change",
        "replace",
        choices=STRATEGIES,
    )
    num_new_tokens: int | None = _count("--new-tokens", "number of tokens that expand adds or swap exchanges, usually 50 to 5,000")
    num_sentences: int = _count(
        "--tokenizer-sentences", "number of sentences of --text from which expand learns tokens", 30_000
    )  # Yamaguchi et al. 2024
    min_count: int = _count("--min-count", "prune: minimum count in --text of a token to keep", 1)
    tokens_by: str | None = _option(
        "--tokens-by",
        "expand and swap without --tokenizer: train an auxiliary tokenizer on --text, or continue the merges of the source's own"
        " (default: auxiliary)",
        choices=TOKENS_BY,
    )
    swap_scripts: Sequence[str] | None = _option(
        "--swap-script",
        "swap: give up only tokens written in these scripts, such as Han Cyrillic Arabic",
        nargs="+",
        metavar="SCRIPT",
    )
    swap_text: Sequence[Path] | None = _path(
        "--swap-text FILE",
        "swap: text of languages to give up, whose tokens go first; tokens of --text and --source-text stay",
        nargs="+",
    )


@dataclass(frozen=True)
class VectorOptions:
    """How word vectors of target tokens are trained on text; what is None follows from the size of the text."""

    size: int | None = _count("--vector-size", "dimensions of fastText vectors (default: 300, or 100 for little text)")
    epochs: int | None = _count("--vector-epochs", "passes over the text (default: 3, more for little text)")
    min_count: int | None = _count("--vector-min-count", "minimum count of a token with a vector (default: 10, fewer for little text)")

    def __post_init__(self) -> None:
        for name, value in (("--vector-size", self.size), ("--vector-epochs", self.epochs), ("--vector-min-count", self.min_count)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; expected at least 1")

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

    num_steps: int = _count("--steps", "training steps", 200)
    device: str | None = _option("--device", "cpu, cuda, cuda:1 ... (default: cuda if available)")
    dtype: str | None = _option(
        "--dtype", "dtype of the frozen weights (default: float32 on a CPU, else bfloat16)", choices=LEARNING_DTYPES
    )
    batch_size: int = _count("--batch-size", "windows of --text per step", 8)
    window_tokens: int = _count("--sequence-length", "maximum tokens of a window, of either tokenizer", 64)
    learning_rate: float = _option(
        "--learning-rate", "Adam's first step, relative to the root mean square of the source's rows", 0.005, type=float, metavar="X"
    )
    min_contexts: int = _count("--min-contexts", "minimum windows that have a token; rarer tokens keep their initial row", 3)
    output_rows: str = _option(
        "--output-rows",
        "token-distillation: rows of an untied output layer, mean of the source tokens or learned; tied rows learn from both",
        "mean",
        choices=OUTPUT_ROWS,
    )
    layer: int | None = _count(
        "--distilled-layer", "token-distillation: number of the layer whose hidden states are matched (default: the last)"
    )
    state: Path | None = None

    def __post_init__(self) -> None:
        limits = (
            ("--steps", self.num_steps, 1),
            ("--batch-size", self.batch_size, 1),
            ("--sequence-length", self.window_tokens, 4),
            ("--min-contexts", self.min_contexts, 1),
            ("--distilled-layer", 1 if self.layer is None else self.layer, 1),
        )
        for flag, value, least in limits:
            if value < least:
                raise ValueError(f"{flag} is {value}; expected {least} or more")
        if not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise ValueError(f"--learning-rate is {self.learning_rate}; expected a number above 0")
        for flag, word, known in (("--output-rows", self.output_rows, OUTPUT_ROWS), ("--dtype", self.dtype, (None, *LEARNING_DTYPES))):
            if word not in known:
                raise ValueError(f"{flag} is {word!r}; expected {' or '.join(filter(None, known))}")


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

    source: Path = _path("--source DIR", "Hugging Face checkpoint of the source model, with its tokenizer", MISSING, required=True)
    tokenizer: Path | None = _path(
        "--tokenizer DIR", "folder of the target tokenizer (replace, union; expand: in place of training one)", MISSING
    )
    method: str | None = _option(
        "--method", "embedding initialisation method for new tokens; none with --vocabulary prune and keep", MISSING, **METHOD_NAME
    )
    vocabulary: VocabularyOptions = field(default_factory=VocabularyOptions)
    output_layer: str | None = _option(
        "--output-layer",
        "tied: shared with the input embedding; copied: a copy of it, untied; transferred: the source's own, transferred too; random: newly drawn"
        " (default: as in the source)",
        choices=OUTPUT_LAYERS,
    )
    text: Documents | None = _path(
        "--text FILE", f"target-language text ({SUFFIXES_IN_WORDS})", kind="text in the target language", also="expand, prune", nargs="+"
    )
    source_text: Documents | None = _path(
        "--source-text FILE",
        "source-language text",
        kind="text in the source language",
        also="expand and union measure on it what they change",
        nargs="+",
    )
    helper: Path | None = _path(
        "--helper DIR",
        "model in the target language with the target tokenizer",
        kind="a model in the target language with the target tokenizer",
    )
    encoder: Path | None = _path("--encoder DIR", "encoder of both languages with its tokenizer", kind="an encoder of both languages")
    word_vectors: Path | None = _path(
        "--vectors FILE",
        f"vectors of target-language words ({', '.join(VECTOR_SUFFIXES)}); of both languages for ofa",
        kind="vectors of words in the target language",
    )
    source_word_vectors: Path | None = _path(
        "--source-vectors FILE", "vectors of source-language words", kind="vectors of words in the source language"
    )
    dictionary: Path | None = _path(
        "--dictionary FILE", "pairs of a source and a target word", kind="a dictionary from the source to the target language"
    )
    parallel: ParallelText | None = _path(
        "--parallel FILE", "sentence, tab, translation on each line", kind="sentences with their translations"
    )
    as_published: bool | None = _option(
        "--as-published",
        "follow the published code of the method where it differs from the paper or from our default (docs/embeddings.md)",
        kind="another way in the published code",
        action="store_const",
        const=True,
    )
    num_atoms: int | None = _count(
        "--num-atoms",
        "maximum number of shared tokens combined for a new one (default: 64, at most an eighth of the helper's dimensions)",
        kind="how many shared tokens make a new one",
    )
    num_pairs: int | None = _count(
        "--num-pairs",
        "number of shared tokens to fit the map on, sampled by the seed (default: all)",
        kind="on how many shared tokens a map is fitted",
    )
    vectors: VectorOptions = field(default_factory=VectorOptions)
    learning: LearningOptions | None = field(default=None, metadata={"kind": "how to learn rows"})
    fallback: str = _option("--fallback", "row of a token that the method cannot initialise", "mean", choices=FALLBACKS)
    factorised_size: int | str | None = _option(
        "--factorised-size",
        "transfer a factorised embedding of N dimensions (or full), as OFA does, and keep both factors in factors.safetensors",
        metavar="N",
    )
    random_statistics: str = _option(
        "--random-statistics", "mean and variance of random rows: per dimension or over the whole matrix", "dimension", choices=STATISTICS
    )
    matching: str = _option(
        "--match",
        "also share rows of tokens that differ in case, in the leading space, or in both",
        "exact",
        choices=MATCHINGS,
    )
    special_tokens: Mapping[str, str] = _option(
        "--special-token",
        "copy the row of this source token to the target token",
        factory=dict,
        action="append",
        metavar="TARGET=SOURCE",
    )
    seed: int = _option("--seed", "random seed", 42, type=int)


def _flag(option: Field[Any]) -> str:
    """An option as sentences name it."""
    if option.name == "learning":
        return "--steps N and the other options of learning"
    metadata = option.metadata
    return " ".join(filter(None, (metadata["flag"], metadata["how"].get("metavar", ""))))


# What methods learn from or are told: field of the request -> its option and what it is.
MATERIAL = {option.name: (_flag(option), option.metadata["kind"]) for option in fields(TransferRequest) if option.metadata.get("kind")}


def add_transfer_options(parser: argparse.ArgumentParser, *, method: str | None = None, leave_out: Sequence[str] = ()) -> None:
    """Add the options of a transfer.

    Args:
        method: whose options `--help` shows; the others' are known all the same, so that they are refused by name.  None for all.
        leave_out: fields of the request that the command has no option for.
    """
    uses = METHODS[method].uses if method is not None else None
    _add(parser, TransferRequest, leave_out=leave_out, uses=uses)
    parser.add_argument(
        "--special-tokens", type=Path, metavar="FILE", help="the same from a file: target token, tab, source token on each line"
    )
    has_pairs = uses is None or "parallel" in uses
    parser.add_argument(
        "--parallel-columns",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="names of the two columns to use, if --parallel has a header" if has_pairs else argparse.SUPPRESS,
    )
    parser.add_argument("--text-key", default="text", help="key of the text in a .jsonl line (default: text)")
    parser.add_argument("--document-separator", choices=SEPARATORS, help="what ends a document in a .txt file (default: an empty line)")
    _add(parser.add_argument_group("vocabulary"), VocabularyOptions)
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
    for option in fields(options):
        metadata, default = option.metadata, option.default
        if "flag" not in metadata or option.name in leave_out:
            continue
        words, also = metadata["words"], metadata["also"]
        if metadata["kind"]:
            words += f" ({'; '.join(filter(None, (', '.join(_users(option.name)), also)))})" if uses is None else ""
        if default not in (None, MISSING):
            words += f" (default: {f'{default:,}' if isinstance(default, int) else default})"
        elif option.name == "special_tokens":
            default = []
        is_hidden = hidden or (uses is not None and metadata["kind"] and option.name not in uses and not also)
        # Whether any option of learning is given decides whether there are any.
        given = None if default is MISSING or options is LearningOptions else default
        parser.add_argument(metadata["flag"], default=given, help=argparse.SUPPRESS if is_hidden else words, **metadata["how"])


def _users(name: str) -> list[str]:
    return [method for method, row in METHODS.items() if name in row.uses]


def transfer_request(arguments: argparse.Namespace, **changes: Any) -> TransferRequest:
    """The request that the options make.

    Args:
        changes: fields that no option gives.

    Raises:
        ValueError: if an option cannot be read.
    """
    learning = _values(arguments, LearningOptions) if "output_rows" in arguments else {}
    readers: dict[str, Callable[[Any], Any]] = {
        "text": lambda paths: _documents(paths, arguments),
        "source_text": lambda paths: _documents(paths, arguments),
        "parallel": lambda path: _parallel_text(path, arguments.parallel_columns),
        "factorised_size": read_factorised_size,
        "special_tokens": lambda pairs: chosen_special_tokens(pairs, arguments.special_tokens),
    }
    given = {name: readers.get(name, lambda value: value)(value) for name, value in _values(arguments, TransferRequest, whole=True).items()}
    groups = {
        "vocabulary": VocabularyOptions(**_values(arguments, VocabularyOptions)),
        "vectors": VectorOptions(**_values(arguments, VectorOptions)),
        "learning": LearningOptions(**learning) if learning else None,
    }
    return TransferRequest(**given | groups | changes)


def _values(arguments: argparse.Namespace, options: type, *, whole: bool = False) -> dict[str, Any]:
    """The values of a dataclass's options by field: those that are given, or the whole of them."""
    of_flag = {option.name: option.metadata["flag"][2:].replace("-", "_") for option in fields(options) if "flag" in option.metadata}
    found = {name: getattr(arguments, flag) for name, flag in of_flag.items() if flag in arguments}
    return {name: value for name, value in found.items() if whole or value is not None}


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


def chosen_special_tokens(options: Sequence[str], file: Path | None) -> dict[str, str]:
    """Target token -> source token, by `TARGET=SOURCE` options and a file of lines with a tab between the two.

    Raises:
        ValueError: if an entry is not a pair, or if two speak of one target token.
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
