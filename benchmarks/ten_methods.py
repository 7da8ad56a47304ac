"""A whole comparison of ten transfer methods on a model of the shape of OPT-1.3B: how long it takes and how much memory.

    python -m benchmarks.ten_methods --data DATA --output FOLDER

DATA holds `text/{en,sl}/eltec_novels.jsonl.gz`, `dictionaries/` and `tokenizers/opt_gpt2_bpe`.  The model, a Slovene tokenizer of 80,000
tokens, a helper and an encoder are made first, with random weights, and used again when they exist; what is measured is one
`conversion.transfer_compare` from its start to its page: ten plans with fastText training of tokens and of words, making the rows, and scoring.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

METHODS = ("random-all", "mean", "merge", "align", "focus", "focus-cse", "wechsel", "wechsel-cse", "clp-plus", "sava")
OPT_1_3B = ("--num-layers", "24", "--hidden-size", "2048", "--num-attention-heads", "32", "--ffn-size", "8192", "--max-positions", "2048")
SMALL = ("--num-layers", "1", "--hidden-size", "768", "--num-attention-heads", "12", "--max-positions", "512")
TEXT_BYTES, HELDOUT_BYTES = 4_000_000, 4_000

ROOT = Path(__file__).resolve().parent.parent


def run(output: Path, module: str, *arguments: str | Path) -> Path:
    """One command, unless its output is there; gives the output."""
    if not output.exists():
        subprocess.run([sys.executable, "-m", module, *map(str, arguments), "--output", str(output)], cwd=ROOT, check=True)
    return output


def split(data: Path, output: Path, language: str) -> tuple[Path, Path]:
    """The first novels for the methods, the last ones held out."""
    learned, held = output / f"{language}.jsonl", output / f"{language}.heldout.jsonl"
    if not held.exists():
        with gzip.open(data / "text" / language / "eltec_novels.jsonl.gz", "rt", encoding="utf-8") as lines:
            chapters = [json.loads(line)["text"] for line in lines]
        size = 0
        with learned.open("w", encoding="utf-8") as stream:
            for chapter in chapters:
                if (size := size + len(chapter.encode())) > TEXT_BYTES:
                    break
                stream.write(json.dumps({"text": chapter}) + "\n")
        paragraphs = [paragraph for chapter in chapters[-20:] for paragraph in chapter.split("\n\n") if len(paragraph) > 200]
        held.write_text("".join(json.dumps({"text": paragraph}) + "\n" for paragraph in paragraphs), encoding="utf-8")
    return learned, held


def main() -> None:
    """Make the material, measure the comparison, and print time and memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of real text, dictionaries and tokenizers")
    parser.add_argument("--output", type=Path, required=True, help="everything is made here")
    arguments = parser.parse_args()
    data, output = arguments.data, arguments.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    learned, held = split(data, output, "sl")
    source_text, _ = split(data, output, "en")
    novels = data / "text" / "sl" / "eltec_novels.jsonl.gz"
    tokenizer = run(output / "tokenizer", "data_prep.train_tokenizer", "--input", novels, "--vocab-size", "80000")
    source = run(output / "source", "conversion.new_model", *OPT_1_3B, "--tokenizer", data / "tokenizers" / "opt_gpt2_bpe")
    helper = run(output / "helper", "conversion.new_model", *SMALL, "--tokenizer", tokenizer, "--seed", "1")
    encoder = run(output / "encoder", "conversion.new_model", *SMALL, "--tokenizer", data / "tokenizers" / "opt_gpt2_bpe", "--seed", "2")
    comparison = output / "comparison"
    shutil.rmtree(comparison, ignore_errors=True)
    words = ["--source", source, "--tokenizer", tokenizer, "--text", learned, "--source-text", source_text]
    words += ["--dictionary", data / "dictionaries" / "muse_nc.en-sl.txt.gz", "--helper", helper, "--encoder", encoder]
    words += ["--heldout", f"sl={held}", "--heldout-bytes", HELDOUT_BYTES, "--dtype", "bfloat16", "--methods", *METHODS]
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "conversion.transfer_compare", *map(str, words), "--output", str(comparison)], cwd=ROOT
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    print(
        f"{len(METHODS)} methods: {seconds:.0f} s, {usage.ru_utime + usage.ru_stime:.0f} CPU s, {usage.ru_maxrss / 2**20:.1f} GiB, {os.cpu_count()} cores"
    )
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
