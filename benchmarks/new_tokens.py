"""The two ways in which `expand` learns tokens, on a real tokenizer: dead tokens, tokens per byte of held-out text, seconds.

    python -m benchmarks.new_tokens --source smollm2/ --text sl.jsonl.gz --source-text en.jsonl.gz --new-tokens 500 2000 8000

The held-out text is every twentieth sentence of --text, as `conversion.transfer` takes it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from conversion.embeddings.vocabularies.strategies import TOKENS_BY, VocabularyOptions, target_tokenizer
from data_prep.reading.documents import Documents
from data_prep.tokenizers.files import load_tokenizer


def main() -> None:
    """Extend the tokenizer each way and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="model folder with its tokenizer")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="text in the target language")
    parser.add_argument("--source-text", type=Path, nargs="+", help="text in the source language")
    parser.add_argument("--new-tokens", type=int, nargs="+", default=[2000])
    arguments = parser.parse_args()
    text, source_text = (Documents(paths, text_key="text") if paths else None for paths in (arguments.text, arguments.source_text))
    print("| new tokens | by | unreachable | not in the text learned from | not in held-out text | tokens per byte before | after |"
          " English lines changed | CPU seconds |\n|---:|---|---:|---:|---:|---:|---:|---:|---:|")  # fmt: skip
    for num_new in arguments.new_tokens:
        for way in TOKENS_BY:
            start = time.process_time()
            made = target_tokenizer(
                VocabularyOptions("expand", num_new, tokens_by=way),
                source=arguments.source,
                source_tokenizer=load_tokenizer(arguments.source),
                tokenizer=None,
                text=text,
                source_text=source_text,
            )
            seconds, facts = time.process_time() - start, made.facts
            held = facts["held_out_text"]
            before, after = (held[f"num_tokens_{when}"] / held["num_bytes"] for when in ("before", "after"))
            changed = f"{100 * facts['source_text']['share_of_lines_changed']:.2f} %" if "source_text" in facts else ""
            print(
                f"| {num_new:,} | {way} | {num_new - facts['num_reached']} | {facts['num_unused']} | {num_new - held['num_new_tokens_used']} |"
                f" {before:.4f} | {after:.4f} | {changed} | {seconds:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
