"""What the union of two vocabularies as large as OFA's costs: a source of 250,002 pieces as XLM-R's, another tokenizer's 250,000, 401,145 together.

    python -m benchmarks.union_vocabulary --output work/union

Pieces are random strings of letters with random scores (the published vocabularies are not at hand), in the form of SentencePiece Unigram models; the model is
an XLM-R of one layer.  Made and joined by the project's own commands; printed are processor seconds, the largest memory and the number of tokens.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import string
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPECIALS = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}


def main() -> None:
    """Make what is joined, join it, and print what that cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--source-size", type=int, default=250_002)
    parser.add_argument("--target-size", type=int, default=250_000)
    parser.add_argument("--union-size", type=int, default=401_145)
    parser.add_argument("--hidden-size", type=int, default=768)
    arguments = parser.parse_args()
    num_shared = arguments.source_size + arguments.target_size - arguments.union_size
    pieces = random_pieces(arguments.union_size)
    write_tokenizer(arguments.output / "source_tokenizer", pieces[: arguments.source_size - len(SPECIALS)])
    write_tokenizer(
        arguments.output / "target_tokenizer", pieces[arguments.source_size - num_shared : arguments.union_size - len(SPECIALS)]
    )
    shape = ("--num-layers", "1", "--hidden-size", str(arguments.hidden_size), "--num-attention-heads", str(arguments.hidden_size // 64))
    shape += ("--max-positions", "128", "--model-type", "xlm-roberta")
    run("conversion.new_model", *shape, "--tokenizer", arguments.output / "source_tokenizer", "--output", arguments.output / "source")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    options = (
        "--vocabulary",
        "union",
        "--tokenizer",
        arguments.output / "target_tokenizer",
        "--method",
        "random",
        "--output-layer",
        "tied",
    )
    run("conversion.transfer", "--source", arguments.output / "source", *options, "--output", arguments.output / "union")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    config = json.loads((arguments.output / "union/config.json").read_text(encoding="utf-8"))
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{config['vocab_size']:,} tokens in {seconds:.0f} processor seconds, at most {after.ru_maxrss / 2**20:.1f} GiB")


def run(module: str, *arguments: str | Path) -> None:
    """One command of the project."""
    subprocess.run([sys.executable, "-m", module, *map(str, arguments)], cwd=ROOT, check=True, timeout=3600)


def random_pieces(number: int) -> list[tuple[str, float]]:
    """Strings of one to eight letters, half of which begin a word, with scores that fall."""
    draw = random.Random(1)
    found = dict.fromkeys(string.ascii_lowercase)
    while len(found) < number:
        letters = "".join(draw.choices(string.ascii_lowercase, k=draw.randint(2, 8)))
        found[f"▁{letters}" if draw.random() < 0.5 else letters] = None
    return [(piece, -8.0 - place / number * 8) for place, piece in enumerate(found)]


def write_tokenizer(directory: Path, pieces: list[tuple[str, float]]) -> None:
    """A Unigram tokenizer with special tokens as XLM-R's: the first ids, and the mask last."""
    from data_prep.tokenizers.sentencepiece_to_hf import write_fast_tokenizer

    *first, mask = SPECIALS.values()
    vocabulary = [[token, 0.0] for token in first] + [list(piece) for piece in pieces] + [[mask, 0.0]]
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    added = [
        {"id": token_id, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for token_id, (token, _) in enumerate(vocabulary)
        if token in SPECIALS.values()
    ]
    model = {"type": "Unigram", "unk_id": first.index("<unk>"), "vocab": vocabulary, "byte_fallback": False}
    directory.mkdir(parents=True, exist_ok=True)
    backend = {"version": "1.0", "added_tokens": added, "pre_tokenizer": space, "decoder": space, "model": model}
    write_fast_tokenizer(json.dumps(backend), SPECIALS, directory)


if __name__ == "__main__":
    main()
