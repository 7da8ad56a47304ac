"""Speed and memory of deduplication and cleaning, beside the usual ways of doing it, in one run on your text.

Every measurement is a process of its own and gives MB of UTF-8 per CPU second (of it and its children) and the growth of its resident
memory; in memory the fastest of --repeat runs.  Tokenization is measured by benchmarks.tokenization.  The first table starts from documents in memory, the second from files to files.  A package is measured where the
Python in SCION_PEER_PYTHON can import it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common import command
from common.tables import markdown_table
from data_prep.clean import clean
from data_prep.cleaning.problem_runs import ProblemRuns
from data_prep.cleaning.shard import CleanRules
from data_prep.dedup import dedup
from data_prep.deduplication.onion import PlainEngine, engine
from data_prep.deduplication.onion_types import Decisions, OnionSettings
from data_prep.reading.corpora import Corpus
from data_prep.reading.documents import Documents

ROOT = Path(__file__).resolve().parent.parent
_GROUP_BYTES = 1 << 20  # as the command

DATATROVE = """
import sys, json, time, logging
logging.disable(logging.CRITICAL)
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
from datatrove.data import Document
texts = json.load(open(sys.argv[1]))
config = MinhashConfig(n_grams=9)
step = MinhashDedupSignature(output_folder=sys.argv[2], config=config, language=sys.argv[3])
start = time.process_time()
step.run((Document(text=text, id=str(i)) for i, text in enumerate(texts)), 0, 1)
print(json.dumps({"seconds": time.process_time() - start}))
"""


def memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds() -> float:
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def python_set(texts: list[bytes]) -> dict[str, Any]:
    """The plain way: a set of hashed 9-tuples, documents of 0.9 seen ones go."""
    seen: set[int] = set()
    num_ngrams = removed = 0
    for text in texts:
        words = text.decode().split()
        ngrams = [hash(tuple(words[i : i + 9])) for i in range(len(words) - 8)]
        num_ngrams += len(ngrams)
        if ngrams and sum(ngram in seen for ngram in ngrams) / len(ngrams) >= 0.9:
            removed += 1
        else:
            seen.update(ngrams)
    return {"ngrams": num_ngrams, "removed": removed, "held": len(seen)}


def by_engine(make: Callable[[], Any], rules: OnionSettings) -> Callable[[list[bytes]], dict[str, Any]]:
    def measure(texts: list[bytes]) -> dict[str, Any]:
        loops = make()
        table = loops.table()
        total, ordinal, removed, tokens = sum(map(len, texts)), 0, 0, 0
        start = 0
        while start < len(texts):
            end, size = start, 0
            while end < len(texts) and size < _GROUP_BYTES:
                size += len(texts[end])
                end += 1
            scan = loops.scan(texts[start:end], rules)
            decisions = Decisions.empty(scan.num_paragraphs)
            table.decide(scan, rules, ordinal, decisions)
            tokens += len(scan.hashes)
            if start == 0:  # as the command does after its first MB
                table.reserve(int(tokens / size * total))
            start = end
            ordinal += scan.num_paragraphs
            removed += int((decisions.verdict > 0).sum())
        return {"ngrams": tokens, "removed": removed, "held": len(table)}

    return measure


AS_THE_SET = OnionSettings(paragraphs="document", score="ngrams", boundary="reaches", within_document=False)
IN_MEMORY: dict[str, Callable[[list[bytes]], dict[str, Any]]] = {
    "Python set of hashed 9-tuples": python_set,
    "the same decisions, native": by_engine(engine, AS_THE_SET),
    "onion by paragraph, native": by_engine(engine, OnionSettings()),
    "onion by paragraph, no compiler": by_engine(PlainEngine, OnionSettings()),
}


def dedup_files(**options: Any) -> Callable[[list[Path], Path], None]:
    return lambda paths, output: dedup([Corpus("c", tuple(paths))], output, **options) and None


def clean_files(workers: int) -> Callable[[list[Path], Path], None]:
    rules = CleanRules(problem_runs=ProblemRuns("sl"))
    return lambda paths, output: clean([Corpus("c", tuple(paths))], output, rules=rules, workers=workers) and None


FILES: dict[str, Callable[[list[Path], Path], None]] = {
    "dedup, 1 pass, 1 process": dedup_files(workers=1, passes=1),
    "dedup, 2 passes, 1 process": dedup_files(workers=1, passes=2),
    "dedup, 2 passes, 2 processes": dedup_files(workers=2, passes=2),
    "clean --problem-runs sl, 1 process": clean_files(1),
    "clean --problem-runs sl, 2 processes": clean_files(2),
}


def measure(name: str, paths: list[Path], work: Path) -> dict[str, Any]:
    """Runs in a process of its own."""
    if name in IN_MEMORY:
        texts = [text.encode() for text in Documents(paths, separator="line")]
        before, start = memory(), time.process_time()
        found = IN_MEMORY[name](texts)
        seconds = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {**found, "seconds": seconds, "memory": peak - before}
    before, start, wall = memory(), cpu_seconds(), time.monotonic()
    FILES[name](paths, work / "output")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": cpu_seconds() - start, "wall": time.monotonic() - wall, "memory": peak - before}


def in_process(name: str, paths: Sequence[Path]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as work:
        arguments = [sys.executable, "-m", "benchmarks.data_prep", "--only", name, "--work", work, "--input", *map(str, paths)]
        done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def datatrove(texts: list[str], language: str) -> float | None:
    """CPU seconds of datatrove's first MinHash stage (by far the longest), None where it cannot be had."""
    python = os.environ.get("SCION_PEER_PYTHON")
    if not python or subprocess.run([python, "-c", "import datatrove"], capture_output=True).returncode:
        return None
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "texts.json").write_text(json.dumps(texts))
        done = subprocess.run(
            [python, "-c", DATATROVE, f"{work}/texts.json", f"{work}/out", language], capture_output=True, text=True, timeout=1800
        )
    if done.returncode:
        print(f"datatrove failed: {done.stderr.splitlines()[-1]}", file=sys.stderr)
        return None
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print two tables."""
    parser = command.parser(
        __doc__, prog="benchmarks.data_prep", example="python -m benchmarks.data_prep --input novels.jsonl.gz laws.jsonl.gz"
    )
    parser.add_argument("--input", type=Path, nargs="+", required=True, metavar="FILE", help="JSON Lines with documents")
    parser.add_argument("--language", default="slv_Latn", help="of the text, as datatrove calls it (default: slv_Latn)")
    parser.add_argument("--peer-mb", type=float, default=2.0, help="so much of the text for datatrove (default: 2)")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs in memory (default: 3)")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.only:
        print(json.dumps(measure(arguments.only, arguments.input, arguments.work)))
        return command.DONE
    documents = Documents(arguments.input)
    peer, size = [], 0
    for text in documents:  # not held: a process that is started counts its parent's memory as its own peak
        if size < arguments.peer_mb * 1e6:
            peer.append(text)
            size += len(text.encode())
    megabytes = documents.text_bytes / 1e6
    print(f"{documents.num_documents:,} documents, {megabytes:.1f} MB of text\n")
    rows, base = [], 0.0
    for name in IN_MEMORY:
        runs = [in_process(name, arguments.input) for _ in range(arguments.repeat if "no compiler" not in name else 1)]
        found = min(runs, key=lambda run: float(run["seconds"]))
        speed = megabytes / found["seconds"]
        base = base or speed
        rows.append(
            [
                name,
                f"{speed:.1f}",
                f"{speed / base:.1f}",
                f"{found['memory'] / 2**20:.0f}",
                f"{found['memory'] / found['ngrams']:.1f}",
                f"{found['removed']:,}",
            ]
        )
    if (seconds := datatrove(peer, arguments.language)) is not None:
        rows.append(["datatrove MinHash, stage 1", f"{size / 1e6 / seconds:.2f}", f"{size / 1e6 / seconds / base:.2f}", "-", "-", "-"])
    print(markdown_table(("documents in memory", "MB/CPU s", "ratio", "MiB", "bytes/n-gram", "removed"), rows), "\n")
    rows = []
    for name in FILES:
        found = in_process(name, arguments.input)
        rows.append([name, f"{megabytes / found['seconds']:.1f}", f"{megabytes / found['wall']:.1f}", f"{found['memory'] / 2**20:.0f}"])
    print(markdown_table(("files to files", "MB/CPU s", "MB/s wall", "MiB, main process"), rows))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
