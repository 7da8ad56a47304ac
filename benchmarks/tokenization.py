"""Speed and memory of tokenization beside the usual ways of doing it, in one run on your text, with the same ids.

Every measurement is a process of its own.  The first table starts from documents in memory and gives MB of UTF-8 per CPU second; `again` is a second pass
with the words known.  The second goes from files to .bin and .idx, for one and two processes, by the clock: Megatron's shape is a pool that is
given JSON lines 32 at a time and gives back lists of ids, which the parent adds to an IndexedDatasetBuilder.  Loading a tokenizer and importing libraries
count for nobody.  tiktoken, for the ids of a byte-level tokenizer, is measured where the Python in SCION_PEER_PYTHON can import it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common import command
from common.artifacts import digest_bytes, digest_file
from common.tables import markdown_table
from data_prep.megatron.shard import Part, join
from data_prep.megatron.word_encoder import LibraryEncoder, WordEncoder, word_encoder
from data_prep.reading.documents import Documents, batches
from data_prep.to_megatron import to_megatron
from data_prep.tokenizers.files import load_tokenizer

ROOT = Path(__file__).resolve().parent.parent
NUM_FILES = 8
END = 2
IN_MEMORY = ("SentencePiece", "tokenizers", "Scion", "Scion, again")
# tiktoken joins by the rank of what is joined; ranks become the tokenizer's ids afterwards.
_TIKTOKEN = r"""
import json, sys, time
import numpy as np, tiktoken
description, texts, ids_path = json.load(open(sys.argv[1]))["model"], json.load(open(sys.argv[2])), sys.argv[3]
plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
letters = {chr(byte): byte for byte in plain}
letters |= {chr(256 + n): byte for n, byte in enumerate(b for b in range(256) if b not in plain)}
joined = ["".join(m if isinstance(m, list) else m.split(" ")) for m in description["merges"]]
names = [*letters, *joined]
ranks = {bytes(letters[c] for c in name): rank for rank, name in enumerate(names)}
pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
encoding = tiktoken.Encoding("byte-level", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
encoding.encode_ordinary("warm")
start = time.process_time()
rows = [np.array(encoding.encode_ordinary(text), dtype=np.int32) for text in texts]
seconds = time.process_time() - start
ids = np.array([description["vocab"].get(name, -1) for name in names], dtype=np.int32)
np.save(ids_path, np.concatenate([np.append(ids[row], END) for row in rows]).astype(np.int32))
print(seconds)
"""
PIPELINES = (("Megatron's shape", 1), ("Scion", 1), ("Scion", 4))  # and how often the text


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def encoded(name: str, texts: list[str], tokenizer_dir: Path) -> tuple[float, str]:
    """CPU seconds and a digest of the ids."""
    tokenizer = load_tokenizer(tokenizer_dir)
    rows: list[np.ndarray] = []
    if name == "tiktoken":
        return _by_tiktoken(texts, tokenizer.backend_tokenizer.to_str())
    if name == "SentencePiece":
        from sentencepiece import SentencePieceProcessor

        model = SentencePieceProcessor(model_file=str(tokenizer_dir / "tokenizer.model"))
        start = time.process_time()
        for text in texts:
            rows.append(np.array(model.encode(text), dtype=np.int32))
        seconds = time.process_time() - start
        rows = [np.append(row, END) for row in rows]
    else:
        backend = tokenizer.backend_tokenizer
        encoder: LibraryEncoder | WordEncoder = LibraryEncoder(backend) if name == "tokenizers" else word_encoder(backend)
        assert name == "tokenizers" or isinstance(encoder, WordEncoder)
        for _ in range(2 if name.endswith("again") else 1):
            start = time.process_time()
            rows = [encoder.encode(batch, END)[0] for batch in batches(texts, 1 << 20)]
            seconds = time.process_time() - start
    return seconds, digest_bytes(np.concatenate(rows).astype(np.int32).tobytes())


def _by_tiktoken(texts: list[str], description: str) -> tuple[float, str]:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("tokenizer.json", "texts.json", "ids.npy")]
        paths[0].write_text(description, encoding="utf-8")
        paths[1].write_text(json.dumps(texts), encoding="utf-8")
        code = _TIKTOKEN.replace("END", str(END))
        done = subprocess.run([os.environ["SCION_PEER_PYTHON"], "-c", code, *paths], stdout=subprocess.PIPE, text=True, check=True)
        return float(done.stdout), digest_bytes(np.load(paths[2]).tobytes())


_MODEL: list[Any] = []


def _megatron_worker(line: str) -> tuple[list[int], int]:
    ids = _MODEL[0].encode(json.loads(line)["text"])
    return [*ids, END], len(line)


def megatron_shape(paths: list[Path], output: Path, tokenizer_dir: Path, workers: int) -> None:
    import torch
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
    from sentencepiece import SentencePieceProcessor

    _MODEL[:] = [SentencePieceProcessor(model_file=str(tokenizer_dir / "tokenizer.model"))]
    output.mkdir()
    builder = IndexedDatasetBuilder(str(output / "text.bin"), dtype=DType.optimal_dtype(_MODEL[0].get_piece_size()))

    def lines() -> Iterator[str]:
        for path in paths:
            with open(path, encoding="utf-8") as file:
                yield from file

    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for ids, _ in pool.imap(_megatron_worker, lines(), 32):
            builder.add_item(torch.IntTensor(ids))
            builder.end_document()
    builder.finalize(str(output / "text.idx"))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs in a process of its own."""
    kind, name, workers = arguments.only
    if kind == "memory":
        texts = list(Documents(arguments.input))
        seconds, digest = encoded(name, texts, arguments.tokenizer)
        return {"seconds": seconds, "digest": digest}
    output = arguments.work / "out"
    if kind == "finalize":
        tokens = arguments.work / "tokens.bin"
        count = int(workers)
        np.zeros(count, dtype=np.uint16).tofile(tokens)
        part = Part(tokens, digest_file(tokens), np.ones(count, np.int32), np.arange(count))
        start = time.monotonic()
        join([part], arguments.work, np.dtype(np.uint16))
        return {"wall": time.monotonic() - start}
    tokenizer = load_tokenizer(arguments.tokenizer)
    if name != "Scion":
        import megatron.core.datasets.indexed_dataset  # noqa: F401 not counted
    start = time.monotonic()
    if name == "Scion":
        to_megatron(arguments.input, tokenizer, output, workers=int(workers))
    else:
        megatron_shape(arguments.input, output, arguments.tokenizer, int(workers))
    return {
        "wall": time.monotonic() - start,
        "digest": digest_file(output / "text.bin"),
        "memory": peak() if int(workers) == 1 else max(peak(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024),
    }


def in_process(only: tuple[str, str, int], paths: Sequence[Path], tokenizer_dir: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as work:
        arguments = ["--only", *map(str, only), "--work", work, "--input", *map(str, paths), "--tokenizer", str(tokenizer_dir)]
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "USE_TORCH": "1" if only[1] != "Scion" else "0"}
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.tokenization", *arguments], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True,
            timeout=1800, check=True,
        )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _in_memory(arguments: argparse.Namespace) -> str:
    documents = Documents(arguments.input)
    for _ in documents:
        pass
    megabytes = documents.text_bytes / 1e6
    rows = []
    for tokenizer in filter(None, (arguments.tokenizer, arguments.byte_level)):
        base: dict[str, Any] = {}
        names = IN_MEMORY if tokenizer == arguments.tokenizer else IN_MEMORY[1:]
        if tokenizer == arguments.byte_level and os.environ.get("SCION_PEER_PYTHON"):
            names = (*names, "tiktoken")
        for name in names:
            runs = [in_process(("memory", name, 1), arguments.input, tokenizer) for _ in range(arguments.repeat)]
            found = min(runs, key=lambda run: float(run["seconds"]))
            base = base or found
            same = "the same" if found["digest"] == base["digest"] else "OTHER"
            rows.append([tokenizer.name, name, f"{megabytes / found['seconds']:.1f}", f"{base['seconds'] / found['seconds']:.1f}", same])
    table = markdown_table(("tokenizer", "documents in memory", "MB/CPU s", "ratio", "ids"), rows, text_columns=2)
    return f"{documents.num_documents:,} documents, {megabytes:.1f} MB of text\n\n{table}\n"


def _from_files(arguments: argparse.Namespace) -> str:
    documents = Documents(arguments.files or arguments.input)
    with tempfile.TemporaryDirectory() as scratch:
        files = [Path(scratch) / f"{number}.jsonl" for number in range(NUM_FILES)]
        streams = [path.open("w", encoding="utf-8") for path in files]
        for number, text in enumerate(documents):  # not held: a process that is started counts its parent's memory as its own peak
            streams[number % NUM_FILES].write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        for stream in streams:
            stream.close()
        megabytes = documents.text_bytes / 1e6
        rows = []
        base: dict[str, Any] = {}
        for name, times in PIPELINES:
            inputs = files if times == 1 else [*files, *_copies(files, times - 1)]
            one: dict[str, Any] = {}
            for workers in (1, 2):
                runs = [in_process(("files", name, workers), inputs, arguments.tokenizer) for _ in range(arguments.repeat)]
                found = min(runs, key=lambda run: float(run["wall"]))
                base, one = base or found, one or found
                rows.append(
                    [name if times == 1 else f"{name}, {times} times the text", str(workers), f"{times * megabytes / found['wall']:.1f}",
                     f"{times * base['wall'] / found['wall']:.1f}", f"{one['wall'] / found['wall']:.2f}", f"{found['memory'] / 2**20:.0f}",
                     "-" if times > 1 else "the same" if found["digest"] == base["digest"] else "OTHER"]
                )  # fmt: skip
        finalized = in_process(("finalize", "Scion", 5_000_000), files, arguments.tokenizer)
    table = markdown_table(("files to .bin and .idx", "processes", "MB/s", "ratio", "to one", "MiB", "bytes"), rows)
    return (
        f"{documents.num_documents:,} documents, {megabytes:.1f} MB of text in {NUM_FILES} files\n\n{table}\n\n"
        f"5,000,000 documents finalized in {finalized['wall']:.2f} s"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = command.parser(
        __doc__, prog="benchmarks.tokenization", example="python -m benchmarks.tokenization --input novels.jsonl.gz --tokenizer tokenizer/"
    )
    parser.add_argument("--input", type=Path, nargs="+", required=True, metavar="FILE", help="JSON Lines with documents")
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="DIR", help="output of data_prep.train_tokenizer")
    parser.add_argument("--byte-level", type=Path, metavar="DIR", help="a byte-level tokenizer too, for the first table")
    parser.add_argument("--files", type=Path, nargs="+", metavar="FILE", help="for the second table (default: --input)")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs, of which the fastest counts (default: 3)")
    parser.add_argument("--only", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.only:
        print(json.dumps(measure(arguments)))
        return command.DONE
    print(_in_memory(arguments), flush=True)
    print(_from_files(arguments), flush=True)
    return command.DONE


def _copies(files: Sequence[Path], number: int) -> list[Path]:
    copies = [path.with_name(f"{copy}_{path.name}") for copy in range(number) for path in files]
    for copy in copies:
        os.link(copy.with_name(copy.name.partition("_")[2]), copy)
    return copies


if __name__ == "__main__":
    command.run(main)
