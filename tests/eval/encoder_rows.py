"""Rows for encoders as eval.prepare writes them, from real files or made here, and a tiny encoder."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conversion.embedding_fixtures import byte_level
from tests.processes import call_command

SPECIALS = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
Sentence = tuple[list[str], list[str]]


def tiny_encoder(folder: Path, text: str, *, model_type: str = "xlm-roberta", max_positions: int = 66) -> Path:
    """An encoder of two layers, around a tokenizer of 600 tokens that puts `<s>` and `</s>` around a text."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = byte_level(text, num_tokens=600, specials=SPECIALS)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in ("<s>", "</s>")}
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=list(ids.items()))
    tokenizer.save_pretrained(str(folder / "tokenizer"))
    shape = ("--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--ffn-size", 64, "--max-positions", max_positions)
    call_command("conversion.new_model", *shape, "--model-type", model_type, "--tokenizer", folder / "tokenizer", "--output", folder / "hf")
    return folder / "hf"


def word_sentences(path: Path, count: int | None = None) -> list[Sentence]:
    """Sentences of a file with a word, a tab and a label a line."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        blocks = [block for block in stream.read().split("\n\n") if block.strip()]
    lines = [[line.split("\t") for line in block.split("\n") if line] for block in blocks[:count]]
    return [([word for word, _ in sentence], [label for _, label in sentence]) for sentence in lines]


def write_words(data: Path, task: str, language: str, splits: Mapping[str, Sequence[Sentence]]) -> None:
    """Labelled sentences as evaluation data."""
    rows = [
        {"id": f"{language}:{split}:{number}", "split": split, "words": words, "labels": labels}
        for split, sentences in splits.items()
        for number, (words, labels) in enumerate(sentences)
    ]
    write_rows(data, task, language, rows)


def write_rows(data: Path, task: str, language: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Rows as evaluation data."""
    path = data / "encoders" / task / f"{language}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
