"""Near-duplicate documents found and wrongly taken, by kind of copy, on a labelled set beside datatrove, in one run from files to files.

The set has a line for each document with `kind` (`original`, `exact`, `edited` with `words_replaced`, `form`, `partial` with `share`, `short`,
`short_copy`) and `of`, the original.  A copy is an exact or edited one, another form, a part of more than half of its document, or a short text that
was there before.  It is found if it and its original are not both kept; a removal is right if another document of its family is kept.  datatrove runs where
the Python in SCION_PEER_PYTHON can import it.  --make writes such a set of other texts.  --choose compares n and similarities: chosen on one half of the originals with their copies,
measured on the other, and on text without labels by how much they would take.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import command
from common.tables import markdown_table
from data_prep.deduplication.similar_documents import SimilarSettings
from data_prep.reading.documents import Documents
from data_prep.sharing.scanning import Reading, similar_documents

ROOT = Path(__file__).resolve().parent.parent
_TIMEOUT_SECONDS = 1200

DATATROVE = """
import sys, resource, logging
from loguru import logger
logger.remove()
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
source, work, language, n, buckets, rows = sys.argv[1:]
config = MinhashConfig(n_grams=int(n), num_buckets=int(buckets), hashes_per_bucket=int(rows))
reader = JsonlReader(source, glob_pattern="*.jsonl.gz")
steps = [
    ([reader, MinhashDedupSignature(f"{work}/signatures", config=config, language=language)], 1),
    ([MinhashDedupBuckets(f"{work}/signatures", f"{work}/buckets", config=config)], int(buckets)),
    ([MinhashDedupCluster(f"{work}/buckets", f"{work}/remove", config=config)], 1),
    ([reader, MinhashDedupFilter(f"{work}/remove"), JsonlWriter(f"{work}/kept")], 1),
]
for number, (pipeline, tasks) in enumerate(steps):
    LocalPipelineExecutor(pipeline, tasks=tasks, workers=1, logging_dir=f"{work}/logs{number}").run()
"""

OURS: dict[str, list[str]] = {
    "dedup (lines, onion)": [],
    "dedup --similar-documents": ["--similar-documents"],
    "... 0.6 --similar-ngram 3": ["--similar-documents", "0.6", "--similar-ngram", "3"],
    "... 0.5 --similar-ngram 3": ["--similar-documents", "0.5", "--similar-ngram", "3"],
    "... 0.8": ["--similar-documents", "0.8"],
    "... 0.8 --similar-ngram 9": ["--similar-documents", "0.8", "--similar-ngram", "9"],
    "... --similar-unchecked": ["--similar-documents", "--similar-unchecked"],
    "... --similar-keep first": ["--similar-documents", "--similar-keep", "first"],
    "... --same-documents": ["--similar-documents", "--same-documents"],
}
PEERS = {"datatrove, n 5, 14 x 8 (its defaults)": (5, 14, 8), "datatrove, n 3, 14 x 8": (3, 14, 8), "datatrove, n 3, 51 x 5": (3, 51, 5)}


def made(paths: Sequence[Path], seed: int, number: int = 400) -> list[dict[str, Any]]:
    """So many passages of 120 to 500 words, drawn from texts, and copies of them: exact, edited, in another form, in part."""
    generator = random.Random(seed)
    passages = []
    for path in paths:
        for text in Documents([path], separator="line"):
            words, at = text.split(" "), 0
            while len(passage := words[at : at + generator.randrange(120, 500)]) >= 120:
                passages.append(passage)
                at += 4 * len(passage)
    passages, others = (drawn := generator.sample(passages, 2 * number))[:number], drawn[number:]
    rows: list[dict[str, Any]] = [{"kind": "original", "text": " ".join(words)} for words in passages]
    every_word = [word for words in others for word in words]
    copies: list[dict[str, Any]] = []
    for place in range(number):
        words, of = list(passages[place]), {"of": f"d{place}"}
        edits = (1, 2, 3, 5, 10, 20)[place % 6]
        for at in generator.sample(range(len(words)), edits):
            words[at] = generator.choice(every_word)
        copies.append({"kind": "edited", "words_replaced": edits, "text": " ".join(words), **of})
        share, other = (0.3, 0.5, 0.7, 0.85, 0.95)[place % 5], others[place]
        start = int(share * len(passages[place]))
        copies.append(
            {"kind": "partial", "share": share, "text": " ".join(passages[place][:start] + other[-(len(passages[place]) - start) :]), **of}
        )
        text = " ".join(passages[place])
        forms = (text.upper(), unicodedata.normalize("NFD", text), text.replace(" ", "  "), text.replace(",", "").replace(".", ""))
        copies.append({"kind": "form", "text": forms[place // 2 % 4], **of} if place % 2 else {"kind": "exact", "text": text, **of})
    generator.shuffle(copies)
    return [{"id": f"d{number}", **row} for number, row in enumerate([*rows, *copies])]


def families(documents: Sequence[Mapping[str, Any]]) -> list[int]:
    """For each document the number of the one that its family begins with."""
    by_id = {row["id"]: number for number, row in enumerate(documents)}
    first_short: dict[str, int] = {}
    found = []
    for number, row in enumerate(documents):
        if row["kind"] in ("exact", "edited", "form") or (row["kind"] == "partial" and row["share"] > 0.5):
            found.append(by_id[row["of"]])
        elif row["kind"] in ("short", "short_copy"):
            found.append(first_short.setdefault(row["text"], number))
        else:
            found.append(number)
    return found


def kind_of(row: Mapping[str, Any], copies: bool) -> str:
    """As the table has it."""
    kind = str(row["kind"])
    if kind == "edited":
        return f"edited, {row['words_replaced']} words"
    if kind == "partial":
        return f"part, {row['share']:.0%}"
    return ("short" if copies else "short, no copy") if kind in ("short", "short_copy") else kind


def judged(documents: Sequence[Mapping[str, Any]], kept: set[str], half: int | None = None) -> tuple[dict[str, tuple[int, int]], int, int]:
    """By kind of copy how many there are and how many were found; removals, and right ones.

    Args:
        half: 0 or 1 counts every other family alone.
    """
    begins = families(documents)
    stays = [row["id"] in kept for row in documents]
    staying = Counter(family for family, stay in zip(begins, stays) if stay)
    found: dict[str, list[int]] = {}
    removed = right = 0
    for number, (row, family) in enumerate(zip(documents, begins)):
        if half is not None and family % 2 != half:
            continue
        if not stays[number]:
            removed += 1
            right += staying[family] > 0
        if family != number:
            count = found.setdefault(kind_of(row, True), [0, 0])
            count[0] += 1
            count[1] += not (stays[number] and stays[family])
    return {kind: (all_, ours) for kind, (all_, ours) in found.items()}, removed, right


def rates(found: Mapping[str, tuple[int, int]], removed: int, right: int) -> tuple[float, float]:
    """Recall and precision."""
    return sum(ours for _, ours in found.values()) / max(1, sum(all_ for all_, _ in found.values())), right / max(1, removed)


def children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(arguments: Sequence[str]) -> float:
    """CPU seconds of a process."""
    before = children_seconds()
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
    if done.returncode:
        raise ValueError(f"{arguments[:4]} failed: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}")
    return children_seconds() - before


def kept_ids(directory: Path) -> set[str]:
    return {json.loads(line)["id"] for path in directory.rglob("*.jsonl.gz") for line in gzip.decompress(path.read_bytes()).splitlines()}


def ours(options: Sequence[str], source: Path, work: Path) -> tuple[set[str], float]:
    output = work / "output"
    seconds = run(
        [sys.executable, "-m", "data_prep.dedup", "--input", f"c={source}", "--workers", "1", *options, "--output", str(output)]
    )  # fmt: skip
    return kept_ids(output / "text"), seconds


def datatrove(config: tuple[int, int, int], source: Path, work: Path, language: str) -> tuple[set[str], float] | None:
    python = os.environ.get("SCION_PEER_PYTHON")
    if not python:
        return None
    (work / "in").mkdir()
    (work / "in" / "a.jsonl.gz").symlink_to(source.resolve())
    seconds = run([python, "-c", DATATROVE, f"{work}/in", str(work), language, *map(str, config)])
    return kept_ids(work / "kept"), seconds


def compare(source: Path, documents: Sequence[Mapping[str, Any]], language: str) -> None:
    """Print recall by kind, recall, precision and CPU seconds of each."""
    results: dict[str, tuple[set[str], float]] = {}
    for name in (*OURS, *PEERS):
        with tempfile.TemporaryDirectory() as work:
            result = (
                ours(OURS[name], source, Path(work)) if name in OURS else datatrove(PEERS[name], source, Path(work), language)
            )  # fmt: skip
        if result is not None:
            results[name] = result
    judgements = {name: judged(documents, kept) for name, (kept, _) in results.items()}
    kinds = sorted(
        next(iter(judgements.values()))[0],
        key=lambda kind: [int(part) if part.isdigit() else part for part in kind.replace("%", "").split()],
    )
    rows = []
    for name, (found, removed, right) in judgements.items():
        recall, precision = rates(found, removed, right)
        rows.append([name, *(str(found[kind][1]) for kind in kinds), f"{recall:.3f}", f"{precision:.3f}", f"{results[name][1]:.1f}"])
    sizes = next(iter(judgements.values()))[0]
    header = ("", *(f"{kind} ({sizes[kind][0]})" for kind in kinds), "recall", "precision", "CPU s")
    print(markdown_table(header, rows))


def choose(source: Path, documents: Sequence[Mapping[str, Any]], unlabelled: Sequence[Path]) -> None:
    """Print what n and similarity do on two halves of the set, and how much of other text they would take."""
    texts = {path: sum(1 for _ in Documents([path], separator="line")) for path in unlabelled}
    rows = []
    for n in (2, 3, 4, 5, 7, 9):
        for share in (0.4, 0.5, 0.6, 0.7, 0.8):
            rules = SimilarSettings(share, n, keep="first")
            gone = set(_removed([source], rules))
            kept = {row["id"] for number, row in enumerate(documents) if number not in gone}
            halves = [rates(*judged(documents, kept, half)) for half in (0, 1)]
            taken = sum(len(_removed([path], rules)) for path in unlabelled)
            f_scores = [2 * recall * precision / (recall + precision) for recall, precision in halves]
            rows.append(
                [
                    str(n),
                    f"{share}",
                    *(f"{rate:.3f}" for half in halves for rate in half),
                    *(f"{score:.3f}" for score in f_scores),
                    f"{taken:,}",
                ]
            )
    header = (
        "n",
        "similarity",
        "recall A",
        "precision A",
        "recall B",
        "precision B",
        "F A",
        "F B",
        f"taken of {sum(texts.values()):,} others",
    )
    print(markdown_table(header, rows))


def _removed(paths: Sequence[Path], rules: SimilarSettings) -> list[int]:
    with tempfile.TemporaryDirectory() as work:
        found: list[int] = similar_documents(Reading(separator="line"), rules, paths, Path(work), workers=1).documents.tolist()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = command.parser(
        __doc__, prog="benchmarks.near_duplicates", example="python -m benchmarks.near_duplicates --labelled near_dup_sl.jsonl.gz"
    )
    parser.add_argument("--labelled", type=Path, required=True, metavar="FILE", help="the labelled set, .jsonl.gz")
    parser.add_argument("--make", type=Path, nargs="+", metavar="FILE", help="write it first, of passages of these texts")
    parser.add_argument("--language", default="slv_Latn", help="of it, as datatrove calls it (default: slv_Latn)")
    parser.add_argument("--choose", type=Path, nargs="*", metavar="FILE", help="compare n and similarities; text without labels")
    arguments = parser.parse_args(argv)
    if arguments.make:
        rows = made(arguments.make, seed=0)
        arguments.labelled.write_bytes(gzip.compress("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(), mtime=0))
    documents = [json.loads(line) for line in gzip.decompress(arguments.labelled.read_bytes()).splitlines()]
    if arguments.choose is not None:
        choose(arguments.labelled, documents, arguments.choose)
    else:
        compare(arguments.labelled, documents, arguments.language)
    return command.DONE


if __name__ == "__main__":
    command.run(main)
