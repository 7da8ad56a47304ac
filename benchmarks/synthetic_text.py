"""Any amount of text that repeats little, made of yours: chains of words in which each word is followed by one that follows it in the text.

A chain of order one (Shannon 1948, "second-order word approximation"), drawn with a seed, in documents of about --words words and lines of about 20.
Word frequencies, lengths and spelling are those of the text, so that hashing, JSON and compression cost what they cost there; n-grams of nine words
hardly repeat, as in a corpus with few duplicates.  For measuring how time and memory grow (`python -m data_prep.plan --measure`), for nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep import command
from data_prep.reading.documents import Documents
from data_prep.reading.shards import JsonLinesWriter, ordered_map

_CHAINS = 4096  # drawn side by side
_LINE_WORDS = 20


class WordChains:
    """Which words follow which, and how often."""

    def __init__(self, texts: Iterator[str]) -> None:
        number: dict[str, int] = {}
        words = np.array([number.setdefault(word, len(number)) for text in texts for word in text.split()], np.int64)
        self.words = [word.encode() for word in number]
        words = np.append(words, words[:1])  # the last word is followed by the first
        order = np.argsort(words[:-1], kind="stable")
        self._followers = words[1:][order]
        self._counts = np.bincount(words[:-1], minlength=len(number))
        self._starts = np.cumsum(self._counts) - self._counts

    def draw(self, generator: np.random.Generator, num_words: int) -> NDArray[np.int64]:
        """(chains, num_words) numbers of words."""
        drawn = np.empty((num_words, _CHAINS), np.int64)
        now = self._followers[generator.integers(len(self._followers), size=_CHAINS)]
        for step in range(num_words):
            drawn[step] = now
            now = self._followers[self._starts[now] + (generator.random(_CHAINS) * self._counts[now]).astype(np.int64)]
        return drawn.T


def write_file(job: tuple[WordChains, Path, int, int, int]) -> int:
    """Write one file of documents and return the bytes of their text."""
    chains, path, num_bytes, num_words, seed = job
    generator, written = np.random.default_rng(seed), 0
    with JsonLinesWriter(path) as file:
        while written < num_bytes:
            for row in chains.draw(generator, num_words).tolist():
                lines = (row[start : start + _LINE_WORDS] for start in range(0, generator.integers(num_words // 2, num_words), _LINE_WORDS))
                text = b"\n".join(b" ".join([chains.words[word] for word in line]) for line in lines)
                file.write({"id": f"{seed}-{written}", "text": text.decode()})
                written += len(text)
                if written >= num_bytes:
                    break
    return written


def main(argv: Sequence[str] | None = None) -> int:
    """Write files of synthetic text into a folder."""
    parser = command.parser(
        __doc__,
        prog="benchmarks.synthetic_text",
        example="python -m benchmarks.synthetic_text --input text/sl/*.jsonl.gz --megabytes 1000 --files 8 --output synthetic/",
    )
    parser.add_argument("--input", type=Path, nargs="+", required=True, metavar="FILE", help="text files")
    parser.add_argument("--megabytes", type=float, required=True, metavar="N", help="of text in all")
    parser.add_argument("--files", type=int, default=8, metavar="N", help="default: 8")
    parser.add_argument("--words", type=int, default=400, metavar="N", help="of a document, at most (default: 400)")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder")
    command.add_running_arguments(parser, skips_bad=False)
    arguments = parser.parse_args(argv)
    chains = WordChains(iter(Documents(arguments.input)))
    jobs = [
        (chains, arguments.output / f"{number:03d}.jsonl.gz", int(arguments.megabytes * 1e6 / arguments.files), arguments.words, number)
        for number in range(arguments.files)
    ]
    made = sum(ordered_map(write_file, jobs, workers=arguments.workers, name=lambda job: str(job[1])))
    print(json.dumps({"files": len(jobs), "bytes": made, "different_words": len(chains.words)}))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
