"""A whole comparison of ten transfer methods on a model of the shape of OPT-1.3B, or on a real one: how long it takes and how much memory.

    python -m benchmarks.ten_methods --data DATA --output FOLDER [--source MODEL --vocab-size 32000]

DATA holds `text/{en,sl}/eltec_novels.jsonl.gz`, `dictionaries/` and `tokenizers/opt_gpt2_bpe`.  The model, a Slovene tokenizer of 80,000
tokens, a helper and an encoder are made first, with random weights, and used again when they exist; what is measured is one
`conversion.transfer_compare` from its start to its page: ten plans with fastText training of tokens and of words, making the rows, and scoring.
With `--source` a real model is compared, in float32 on as much text as the decision takes, by every method that needs no helper or encoder.
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

from benchmarks.commands import ROOT, made

METHODS = ("random-all", "mean", "merge", "align", "focus", "focus-cse", "wechsel", "wechsel-cse", "clp-plus", "sava")
OPT_1_3B = ("--num-layers", "24", "--hidden-size", "2048", "--num-attention-heads", "32", "--ffn-size", "8192", "--max-positions", "2048")
SMALL = ("--num-layers", "1", "--hidden-size", "768", "--num-attention-heads", "12", "--max-positions", "512")
TEXT_BYTES, HELDOUT_BYTES = 4_000_000, 4_000


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


def invented(data: Path, output: Path, tokenizer: Path) -> list[str | Path | int]:
    """The options of a comparison on models with random weights: what is scored says nothing, so little text will do."""
    source = made(output / "source", "conversion.new_model", *OPT_1_3B, "--tokenizer", data / "tokenizers" / "opt_gpt2_bpe")
    helper = made(output / "helper", "conversion.new_model", *SMALL, "--tokenizer", tokenizer, "--seed", "1")
    encoder = made(output / "encoder", "conversion.new_model", *SMALL, "--tokenizer", data / "tokenizers" / "opt_gpt2_bpe", "--seed", "2")
    models: list[str | Path | int] = ["--source", source, "--helper", helper, "--encoder", encoder]
    return [*models, "--heldout-bytes", HELDOUT_BYTES, "--every-document", "--dtype", "bfloat16", "--methods", *METHODS]


def main() -> None:
    """Make the material, measure the comparison, and print time and memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of real text, dictionaries and tokenizers")
    parser.add_argument("--output", type=Path, required=True, help="everything is made here")
    parser.add_argument("--source", type=Path, help="a real model's folder, in place of one with random weights")
    parser.add_argument("--vocab-size", type=int, default=80_000, help="of the Slovene tokenizer (default: 80000)")
    arguments = parser.parse_args()
    data, output = arguments.data, arguments.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    learned, held = split(data, output, "sl")
    source_text, _ = split(data, output, "en")
    novels = data / "text" / "sl" / "eltec_novels.jsonl.gz"
    tokenizer = made(output / "tokenizer", "data_prep.train_tokenizer", "--input", novels, "--vocab-size", str(arguments.vocab_size))
    words = ["--tokenizer", tokenizer, "--text", learned, "--source-text", source_text, "--heldout", f"sl={held}"]
    words += ["--dictionary", data / "dictionaries" / "muse_nc.en-sl.txt.gz"]
    words += ["--source", arguments.source] if arguments.source else invented(data, output, tokenizer)
    comparison = output / "comparison"
    shutil.rmtree(comparison, ignore_errors=True)
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "conversion.transfer_compare", *map(str, words), "--output", str(comparison)], cwd=ROOT
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    print(f"{seconds:.0f} s, {usage.ru_utime + usage.ru_stime:.0f} CPU s, {usage.ru_maxrss / 2**20:.1f} GiB, {os.cpu_count()} cores")
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
