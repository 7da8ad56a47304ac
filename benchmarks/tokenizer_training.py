"""Training SentencePiece on your text: as its users do it, and as data_prep.train_tokenizer does, in one run.

Each measurement is a process of its own.  "as it is" feeds one document a line, as most scripts do, and SentencePiece leaves long lines out; "by
paragraph" feeds lines of the text.  Neither writes a Hugging Face tokenizer or compares ids, which the command does.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from common import command
from common.tables import markdown_table
from data_prep.reading.documents import Documents

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 4192  # SentencePiece's default, in bytes
WAYS = (
    "SentencePiece, documents as they are",
    "SentencePiece by paragraph",
    "data_prep.train_tokenizer",
    "data_prep.train_tokenizer, six sizes",
)


def _lines(way: str, paths: Sequence[Path], lost: list[int]) -> Iterator[str]:
    for text in Documents(paths).read():
        for line in [text.replace("\n", " ")] if way == WAYS[0] else text.split("\n"):
            size = len(line.encode())
            lost[0] += size
            lost[1] += size if size > LIMIT else 0
            yield line


def measure(way: str, paths: Sequence[Path], vocab_size: int) -> dict[str, float]:
    """Runs in a process of its own."""
    start, cpu = time.monotonic(), time.process_time()
    if way in WAYS[:2]:
        from sentencepiece import SentencePieceTrainer

        lost = [0, 0]
        # What is left of the text may not have so many pieces; that is found at the end, so the time is that of a training.
        with contextlib.suppress(RuntimeError):
            SentencePieceTrainer.train(
                sentence_iterator=_lines(way, paths, lost), model_writer=io.BytesIO(), model_type="bpe", vocab_size=vocab_size,
                byte_fallback=True, num_threads=2, minloglevel=2,
            )  # fmt: skip
        share = lost[1] / lost[0]
    else:
        from data_prep.tokenizers.files import start_without_torch
        from data_prep.train_tokenizer import train_tokenizers

        start_without_torch()
        sizes = [vocab_size] if way == WAYS[2] else [vocab_size * n // 6 for n in range(1, 7)]
        with tempfile.TemporaryDirectory() as directory:
            manifest = train_tokenizers(Documents(paths), Path(directory) / "out", kinds=["bpe"], vocab_sizes=sizes, workers=2)
        share = manifest.facts["lost_bytes"] / manifest.facts["text_bytes"]
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert peak is not None
    times = os.times()
    return {
        "wall": time.monotonic() - start,
        "cpu": time.process_time() - cpu + times.children_user + times.children_system,
        "mib": int(peak[1]) / 1024,
        "lost": share,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all ways and print the table."""
    parser = command.parser(
        __doc__,
        prog="benchmarks.tokenizer_training",
        example="python -m benchmarks.tokenizer_training --input sl/*.jsonl.gz --vocab-size 80000",
    )
    parser.add_argument("--input", type=Path, nargs="+", required=True)
    parser.add_argument("--vocab-size", type=int, default=80_000)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.way:
        print(json.dumps(measure(arguments.way, arguments.input, arguments.vocab_size)))
        return command.DONE
    rows = []
    for way in WAYS:
        words = [sys.executable, "-m", "benchmarks.tokenizer_training", "--way", way, "--vocab-size", str(arguments.vocab_size), "--input"]
        result = subprocess.run([*words, *map(str, arguments.input)], cwd=ROOT, capture_output=True, text=True, check=True)
        found = json.loads(result.stdout.splitlines()[-1])
        rows.append([way, f"{found['wall']:.1f}", f"{found['cpu']:.1f}", f"{found['mib']:,.0f}", f"{100 * found['lost']:.2f}"])
    print(markdown_table(["way", "seconds", "CPU seconds", "MiB", "% of bytes left out"], rows))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
