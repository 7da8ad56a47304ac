"""Inspect tokenized data: any document as text and tokens, its origin, and the samples that training will read.

Reads outputs of `data_prep.to_megatron`, and datasets of other tools by the path of their .bin without the suffix.  Without further options it
prints a summary; the exit code is 1 if --check finds a changed file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from common import command
from common.artifacts import MANIFEST_NAME, Manifest, check_files
from common.options import add_option
from common.tables import markdown_table
from data_prep.megatron.index import TokenFile, open_dataset
from data_prep.megatron.shard import LINES
from data_prep.megatron.windows import TrainingWindows
from data_prep.tokenizers.files import load_tokenizer, start_without_torch, tokenizer_digest
from data_prep.tokenizers.frame import front_sentence

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class Dataset:
    """Tokens, with the manifest and the lines of the documents where Scion wrote them."""

    path: Path
    prefix: Path
    tokens: TokenFile
    manifest: Manifest | None = None
    lines: Any = None

    @classmethod
    def open(cls, path: Path) -> Dataset:
        """From a folder, or the path of a `.bin` or `.idx` with or without its suffix.

        Raises:
            ValueError: if there is no dataset.
        """
        if path.is_dir():
            if not (path / MANIFEST_NAME).exists():
                raise ValueError(_no_dataset(path))
            prefix, manifest = open_dataset(path)
            return cls(path, prefix, TokenFile(prefix), manifest, np.load(path / LINES) if (path / LINES).exists() else None)
        prefix = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
        return cls(path, prefix, TokenFile(prefix))

    def source(self, number: int) -> str:
        """File and line of a document."""
        if self.manifest is None or self.lines is None:
            return "source not recorded"
        shards = self.manifest.facts["shards"]
        ends = list(accumulate(shard["num_documents"] for shard in shards))
        shard = shards[int(np.searchsorted(ends, number, side="right"))]
        return f"{shard['source']}, line {self.lines[number]}"


_MOST_SHOWN = 1_000_000  # tokens of a document


def _no_dataset(path: Path) -> str:
    inside = sorted(child.name for child in path.iterdir() if (child / MANIFEST_NAME).exists())
    if inside:
        return f"{path} is not a dataset, but has {len(inside)}: {', '.join(inside[:10])}; name them, as in {path / inside[0]}"
    return f"{path} has no {MANIFEST_NAME}; name a dataset of another tool by its file, {path}/NAME.bin"


def describe(dataset: Dataset) -> str:
    """What is in a dataset."""
    data = dataset.tokens
    lengths = np.sort(data.lengths)
    quantiles = ", ".join(f"{lengths[min(len(lengths) - 1, int(q * len(lengths)))]:,}" for q in (0, 0.5, 0.9, 1)) if len(lengths) else "-"
    text = (
        f"{dataset.path}: {len(data):,} documents, {data.num_tokens:,} tokens of {data.dtype.itemsize} bytes;"
        f" tokens a document (least, median, 90 %, most): {quantiles}\n"
    )
    if dataset.manifest is None:
        return text
    text += front_sentence(dataset.manifest.facts) + "\n"
    rows = [
        [shard["source"], f"{shard['num_documents']:,}", f"{shard['num_empty_documents']:,}", f"{sum(shard['bad_input'].values()):,}",
         f"{shard['text_bytes']:,}", f"{shard['num_tokens']:,}", f"{shard['text_bytes'] / max(1, shard['num_tokens']):.2f}"]
        for shard in dataset.manifest.facts.get("shards", [])
    ]  # fmt: skip
    header = ("file", "documents", "empty", "skipped", "bytes", "tokens", "bytes/token")
    return text + "\n" + markdown_table(header, rows) + "\n"


def shown_tokens(ids: Sequence[int], tokenizer: PreTrainedTokenizerFast | None, most: int) -> str:
    """Ids, with their tokens where a tokenizer is known."""
    names = tokenizer.convert_ids_to_tokens(list(ids[:most])) if tokenizer else None
    shown = [f"{i}:{name}" for i, name in zip(ids, names)] if names is not None else list(map(str, ids[:most]))
    return " ".join(shown) + (f" ... {len(ids) - most:,} more (--max-tokens)" if len(ids) > most else "")


def shown(ids: Sequence[int], tokenizer: PreTrainedTokenizerFast | None, most: int) -> Iterator[str]:
    """Text and tokens, as lines."""
    if tokenizer is not None:
        yield "text: " + repr(tokenizer.decode(list(ids), skip_special_tokens=False))
    yield "tokens: " + shown_tokens(ids, tokenizer, most)


def _load_tokenizer(arguments: argparse.Namespace, datasets: Sequence[Dataset]) -> PreTrainedTokenizerFast | None:
    if arguments.tokenizer is None:
        return None
    tokenizer = load_tokenizer(arguments.tokenizer)
    digest = tokenizer_digest(tokenizer)
    for dataset in datasets:
        expected = dataset.manifest.facts["tokenizer_digest"] if dataset.manifest else digest
        if expected != digest:
            raise ValueError(
                f"{dataset.path} was made with tokenizer {expected}, but {arguments.tokenizer} is {digest}; its text would be wrong"
            )
    return tokenizer


def _documents(datasets: Sequence[Dataset], numbers: Sequence[int], tokenizer: PreTrainedTokenizerFast | None, most: int) -> Iterator[str]:
    if len(datasets) > 1:
        raise ValueError("--document needs exactly one dataset; name only that")
    [dataset] = datasets
    for number in numbers:
        if not 0 <= number < len(dataset.tokens):
            raise ValueError(f"{dataset.path} has documents 0 to {len(dataset.tokens) - 1}, but no {number}")
        length = int(dataset.tokens.lengths[number])
        yield f"document {number}: {dataset.source(number)}, {length:,} tokens"
        # A document may be a corpus of another tool, in one piece.
        yield from shown(dataset.tokens[number][:_MOST_SHOWN].tolist(), tokenizer, most)
        if length > _MOST_SHOWN:
            yield f"(the text and tokens of the first {_MOST_SHOWN:,})"


def _windows(datasets: Sequence[Dataset], arguments: argparse.Namespace, tokenizer: PreTrainedTokenizerFast | None) -> Iterator[str]:
    missing = [name for name in ("sequence_length", "num_samples", "seed") if getattr(arguments, name) is None]
    if missing:
        raise ValueError(
            f"--window needs {', '.join('--' + name.replace('_', '-') for name in missing)}: they decide the order of the samples"
        )
    command.require_at_least(1, arguments, "sequence_length", "num_samples")
    weights = arguments.weights or [dataset.tokens.num_tokens for dataset in datasets]
    if len(weights) != len(datasets) or min(weights) <= 0:
        raise ValueError(f"--weights has {len(weights)} numbers; expected {len(datasets)} above 0, one for each dataset")
    if not all(0 <= number < arguments.num_samples for number in arguments.window):
        raise ValueError(f"--window {' '.join(map(str, arguments.window))}: the run has samples 0 to {arguments.num_samples - 1}")
    windows = TrainingWindows(
        [dataset.prefix for dataset in datasets],
        weights,
        sequence_length=arguments.sequence_length,
        num_samples=arguments.num_samples,
        seed=arguments.seed,
    )
    for number in arguments.window:
        yield f"sample {number}"
        for piece in windows.pieces(number):
            dataset = datasets[piece.dataset]
            place = f"{dataset.path}, document {piece.document}, tokens {piece.start} to {piece.end - 1} of {len(dataset.tokens[piece.document])}"
            yield f"  {place} ({dataset.source(piece.document)})"
        yield from shown(windows.tokens(number).tolist(), tokenizer, arguments.max_tokens)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments, look and print."""
    parser = command.parser(
        __doc__,
        example="python -m data_prep.inspect data/ --tokenizer tokenizer/ --window 0 --sequence-length 2048 --num-samples 100000 --seed 1234",
    )
    parser.add_argument("path", type=Path, nargs="+", metavar="DATA", help="output of data_prep.to_megatron, or path of a .bin")
    add_option(parser, "--tokenizer DIR", "folder of the tokenizer, to show text and tokens", type=Path)
    add_option(parser, "--document N", "show these documents (numbered from 0)", type=int, nargs="+")
    add_option(parser, "--window N", "show these training samples, in training order (numbered from 0)", type=int, nargs="+")
    add_option(parser, "--sequence-length N", "sequence length of the training run, in tokens (data.sequence_length)", type=int)
    add_option(parser, "--num-samples N", "number of samples of the training run: steps x schedule.global_batch_size", type=int)
    add_option(parser, "--seed N", "seed of the training run", type=int)
    add_option(
        parser, "--weights W", "weights of the blend in the training run (data.weights; default: number of tokens)", type=float, nargs="+"
    )
    add_option(parser, "--max-tokens N", "maximum number of token ids to list", 200)
    add_option(parser, "--check", "also verify the digests of all files, which reads them once", False)
    arguments = parser.parse_args(argv)
    datasets = [Dataset.open(path) for path in arguments.path]
    if arguments.check:
        for dataset in datasets:
            try:
                check_files(dataset.path, dataset.manifest or Manifest("", files={}))
            except ValueError as error:
                print(f"wrong: {error}")
                return command.WRONG
    tokenizer = _load_tokenizer(arguments, datasets)
    if arguments.document:
        print(*_documents(datasets, arguments.document, tokenizer, arguments.max_tokens), sep="\n")
    if arguments.window:
        print(*_windows(datasets, arguments, tokenizer), sep="\n")
    if not arguments.document and not arguments.window:
        print("\n".join(map(describe, datasets)), end="")
    return command.DONE


if __name__ == "__main__":
    start_without_torch()
    command.run(main)
