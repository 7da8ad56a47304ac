"""Deduplication and cleaning from files to files beside datatrove's filters and MinHash, in one run: MB of text per CPU second, start-up included.

Each measurement is a process of its own, with one worker; CPU seconds are of it and its children.  datatrove reads and writes the same files where the Python in SCION_PEER_PYTHON can import it,
on no more than --peer-mb of them, and so do ours once more for the comparison; `web` are the rules of Gopher, C4's and FineWeb's, with ours for mojibake, markup, lines and personal data besides.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.meter import ROOT, measure
from common import command
from common.tables import markdown_table
from data_prep.sharing.scanning import Reading
from data_prep.sharing.shards import JsonLinesWriter

OURS = {
    "dedup": ["dedup", "--passes", "1"],
    "dedup --similar-documents": ["dedup", "--passes", "1", "--similar-documents"],
    "clean --filters none": ["clean", "--filters", "none"],
    "clean --filters standard": ["clean", "--filters", "standard"],
    "clean --filters web": ["clean", "--filters", "web"],
}
DATATROVE = ROOT / "benchmarks" / "whole" / "contenders" / "datatrove_filters.py"


def measured(name: str, paths: Sequence[Path], language: str) -> float:
    """CPU seconds of one of OURS, or of datatrove."""
    with tempfile.TemporaryDirectory() as work:
        if name in OURS:
            program, *options = OURS[name]
            files = [f"c={paths[0]}", *map(str, paths[1:])]
            common = ["--workers", "1", "--skip-bad", "--output", f"{work}/output"]
            return measure([sys.executable, "-m", f"data_prep.{program}", "--input", *files, *options, *common]).cpu_seconds
        (path,) = paths
        return measure([os.environ["SCION_PEER_PYTHON"], DATATROVE, path, language, f"{work}/kept"]).cpu_seconds


def sampled(paths: Sequence[Path], megabytes: float, target: Path) -> float:
    """Write documents from all files in turn, up to so much text; MB of it."""
    size = 0.0
    with JsonLinesWriter(target) as file:
        for path in paths:
            here = 0.0
            for document in Reading().documents(path):
                file.write({"id": f"{path.name}:{document.line}", "text": document.text})
                here += len(document.text.encode()) / 1e6
                if here >= megabytes / len(paths):
                    break
            size += here
    return size


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = command.parser(__doc__, prog="benchmarks.files_to_files", example="python -m benchmarks.files_to_files --input sl/*.jsonl.zst")
    parser.add_argument("--input", type=Path, nargs="+", required=True, metavar="FILE", help="JSON Lines with documents, .jsonl.zst")
    parser.add_argument("--language", default="slv", help="of the text, as datatrove calls it (default: slv)")
    parser.add_argument("--peer-mb", type=float, default=4.0, metavar="MB", help="so much of the text for datatrove (default: 4)")
    arguments = parser.parse_args(argv)
    blocks = (block for path in arguments.input for block in Reading().blocks(path))
    whole = sum(len(block.text) for block in blocks) / 1e6
    rows = []
    with tempfile.TemporaryDirectory() as work:
        sample = Path(work) / "sample.jsonl.zst"
        part = sampled(arguments.input, arguments.peer_mb, sample)
        for name in OURS:
            on_part, on_whole = (measured(name, paths, arguments.language) for paths in ([sample], arguments.input))
            rows.append([name, f"{whole / on_whole:.1f}", f"{(whole - part) / max(on_whole - on_part, 1e-9):.1f}", f"{part / on_part:.1f}"])
        if os.environ.get("SCION_PEER_PYTHON"):
            rows.append(["datatrove, the rules of web", "-", "-", f"{part / measured('datatrove', [sample], arguments.language):.2f}"])
    print(markdown_table(("from .jsonl.zst to .jsonl.zst", f"{whole:.0f} MB", "without start-up", f"{part:.1f} MB"), rows))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
