"""Any amount of text that repeats little, made of yours: chains of words in which each word is followed by one that follows it in the text.

A chain of order one (Shannon 1948, "second-order word approximation"), drawn with a seed, in documents of 200 to 400 words and lines of 20.
Word frequencies, lengths and spelling are those of the text, so that hashing, JSON and compression cost what they cost there; n-grams of nine words
hardly repeat, as in a corpus with few duplicates.  For measuring how time and memory grow with the size of a corpus, for nothing else.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow

from common import command, native
from common.native import address
from data_prep.reading.documents import Documents
from data_prep.sharing.shards import ordered_map

_SOURCE = Path(__file__).with_name("synthetic_text.c")
_LEAST_WORDS, _MOST_WORDS, _LINE_WORDS = 200, 400, 20
_ROOM_BYTES = 1 << 22
_LONGEST_WORD = 64  # bytes; longer ones are left out


class WordChains:
    """Which words follow which, and how often."""

    def __init__(self, texts: Iterator[str]) -> None:
        number: dict[str, int] = {}
        words = np.array([number.setdefault(word, len(number)) for text in texts for word in text.split() if len(word) < 16], np.int64)
        in_json = [json.dumps(word, ensure_ascii=False)[1:-1].encode() for word in number]
        assert max(map(len, in_json)) <= _LONGEST_WORD
        self.words, self.offsets = b"".join(in_json), np.cumsum([0, *map(len, in_json)])
        order = np.argsort(words, kind="stable")
        self.followers = np.roll(words, -1)[order].astype(np.int32)  # the last word is followed by the first
        self.starts = np.cumsum([0, *np.bincount(words, minlength=len(number)).tolist()])


def write_file(job: tuple[WordChains, Path, int, int]) -> int:
    """Write one file of lines of JSON, compressed by zstd, and return their bytes.

    Raises:
        ValueError: without a compiler, as this would take hours.
    """
    chains, path, num_bytes, seed = job
    library = native.load(_SOURCE)
    if library is None:
        raise ValueError("there is no C compiler, without which this takes hours; install one, or measure on real text")
    library.synthetic_document.restype = ctypes.c_int64
    arrays = (
        address(chains.followers),
        address(chains.starts),
        ctypes.c_int64(len(chains.followers)),
        chains.words,
        address(chains.offsets),
    )
    room, state, written, number = np.empty(_ROOM_BYTES, np.uint8), ctypes.c_uint64(seed << 32), 0, 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyarrow.CompressedOutputStream(str(path), "zstd") as file:
        while written < num_bytes:
            used = 0
            while written + used < num_bytes:
                made = library.synthetic_document(
                    *arrays, ctypes.byref(state), ctypes.c_int64(seed), ctypes.c_int64(number), ctypes.c_int64(_LEAST_WORDS),
                    ctypes.c_int64(_MOST_WORDS), ctypes.c_int64(_LINE_WORDS), ctypes.c_void_p(room.ctypes.data + used),
                    ctypes.c_int64(_ROOM_BYTES - used), ctypes.c_int64(_LONGEST_WORD),
                )  # fmt: skip
                if not made:
                    break
                used, number = used + made, number + 1
            file.write(room[:used].data)
            written += used
    return written


def main(argv: Sequence[str] | None = None) -> int:
    """Write files of synthetic text into a folder."""
    parser = command.parser(
        __doc__,
        prog="benchmarks.synthetic_text",
        example="python -m benchmarks.synthetic_text --input text/sl/*.jsonl.gz --megabytes 1000 --files 8 --output synthetic/",
    )
    parser.add_argument("--input", type=Path, nargs="+", required=True, metavar="FILE", help="text files")
    parser.add_argument("--megabytes", type=float, required=True, metavar="N", help="of lines of JSON in all")
    parser.add_argument("--files", type=int, default=8, metavar="N", help="default: 8")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder")
    command.add_running_arguments(parser, skips_bad=False)
    arguments = parser.parse_args(argv)
    chains = WordChains(iter(Documents(arguments.input)))
    jobs = [
        (chains, arguments.output / f"{number:03d}.jsonl.zst", int(arguments.megabytes * 1e6 / arguments.files), number)
        for number in range(arguments.files)
    ]
    made = sum(ordered_map(write_file, jobs, workers=arguments.workers, name=lambda job: str(job[1])))
    print(json.dumps({"files": len(jobs), "bytes": made}))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
