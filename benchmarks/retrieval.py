"""What sentence retrieval costs: 1,000 sentences in 300 languages with the vectors of a base-sized encoder, in processor seconds.

    python -m benchmarks.retrieval --lines sl.txt --languages 300

The places are found in drawn vectors, as all of them cost the same.  The encoder is an XLM-R of 12 layers of 768 with random weights and a small
vocabulary, which costs what the real one does; it reads `--sentences` of the lines in float32 and in bfloat16, and the rest is that pace.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from common.tables import markdown_table
from conversion.checkpoints.hf_model import be_quiet_and_offline, inspect_checkpoint
from eval.protocols.sentence_retrieval import LAYER, ranks

OF_A_LANGUAGE = 1000
SHAPE = ("--num-layers", "12", "--hidden-size", "768", "--num-attention-heads", "12", "--ffn-size", "3072", "--max-positions", "512")


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=Path, required=True, help="text with a sentence a line")
    parser.add_argument("--languages", type=int, default=300)
    parser.add_argument("--sentences", type=int, default=200, help="read by the encoder")
    arguments = parser.parse_args()
    be_quiet_and_offline()
    lines = [line for line in arguments.lines.read_text(encoding="utf-8").splitlines() if line.strip()][: arguments.sentences]
    rows = [["places, float64", f"{places_seconds(arguments.languages):.0f}"]]
    with tempfile.TemporaryDirectory() as folder:
        model, num_tokens = encoder(Path(folder), arguments.lines, lines)
        for dtype in ("float32", "bfloat16"):
            seconds = vector_seconds(model, lines, dtype) / len(lines) * OF_A_LANGUAGE * arguments.languages
            rows.append([f"vectors of layer {LAYER}, {dtype}", f"{seconds:,.0f}"])
    print(f"{OF_A_LANGUAGE} sentences in {arguments.languages} languages, {num_tokens / len(lines):.1f} tokens a sentence\n")
    print(markdown_table(["", "processor seconds"], rows))


def places_seconds(languages: int) -> float:
    """Of all languages."""
    draw = np.random.default_rng(1)
    english, total = draw.standard_normal((OF_A_LANGUAGE, 768), dtype=np.float32), 0.0
    for _ in range(languages):
        other = english + draw.standard_normal((OF_A_LANGUAGE, 768), dtype=np.float32)
        start = time.process_time()
        ranks(english, other)
        total += time.process_time() - start
    return total


def encoder(folder: Path, text: Path, lines: list[str]) -> tuple[Path, int]:
    """A model folder, and the tokens that the lines have in it."""
    from conversion import new_model
    from data_prep import train_tokenizer

    options = ["--vocab-size", "4000", "--model", "byte-level", "--mask-token"]
    train_tokenizer.main(["--input", str(text), *options, "--output", str(folder / "tokenizer")])
    roles = ["--model-type", "roberta", "--tokenizer", str(folder / "tokenizer")]
    new_model.main([*SHAPE, *roles, "--output", str(folder / "model")])
    return folder / "model", sum(map(len, inspect_checkpoint(folder / "model", name="base").tokenizer(lines)["input_ids"]))


def vector_seconds(model: Path, lines: list[str], dtype: str) -> float:
    """Of all lines, behind a few that warm it up."""
    from eval.scoring.sentence_vectors import SentenceEncoder

    found = SentenceEncoder(inspect_checkpoint(model, name="base"), layer=LAYER, device="cpu", dtype=dtype)
    found.vectors(lines[:8], batch_size=8)
    start = time.process_time()
    found.vectors(lines, batch_size=32)
    return time.process_time() - start


if __name__ == "__main__":
    main()
