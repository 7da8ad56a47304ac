"""The commands that machines may share, and small texts that give each of their steps something to do."""

from __future__ import annotations

import json
from pathlib import Path

STAGES = ("collect", "clean", "dedup", "mixture", "to_megatron", "train_tokenizer")
_BY_PARAGRAPH = ["--language", "sl", "--language-unit", "paragraph", "--min-words", "20"]
_ALL_METHODS = ["--same-documents", "--similar-documents", "0.7", "--substrings", "8", "--min-kept-tokens", "3"]
_SHARES = ["--budget", "corpus:a=60%", "corpus:b=40%", "--tokens", "2000"]


def _few(number: int) -> list[str]:
    lines = [f"vrstica {i % 7} v datoteki {number % 4} ima deset besed in konec tukaj zdaj {i % 3}" for i in range(40)]
    return ["\n".join([*lines[i : i + 5], "Uradni list"]) for i in range(0, 40, 5)]


def write_texts(directory: Path) -> list[str]:
    """Six files in two corpora, as `--input` takes them, and beside them what clean and dedup are given: small ones with words that repeat."""
    for number in range(6):
        rows = [{"id": f"{number}-{i}", "text": text, "score": 1 + i % 4} for i, text in enumerate(_few(number))]
        (directory / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    protected = "vrstica 3 v datoteki 2 ima deset besed in konec tukaj zdaj 0 vrstica"
    (directory / "protected.jsonl").write_text(json.dumps({"question": protected}) + "\n")
    model = Path(__file__).parent / "cleaning/fasttext/softmax.bin"
    scores = f"scores: {{s: {{key: score, min: 2}}, m: {{model: {model}, label: slv_Latn, min: 0.001, as: quality}}}}"
    (directory / "filters.yaml").write_text(f"base: none\nrepeated_lines: {{max_words: 5, min_documents: 4, min_share: 0}}\n{scores}\n")
    return [
        f"a={directory}/0.jsonl",
        f"{directory}/1.jsonl",
        f"{directory}/2.jsonl",
        f"b={directory}/3.jsonl",
        f"{directory}/4.jsonl",
        f"{directory}/5.jsonl",
    ]


def words_of(stage: str, texts: list[str], tokenizer: Path) -> list[str]:
    """The arguments of a stage, without its output."""
    files = [text.rpartition("=")[2] for text in texts]
    folder = Path(files[0]).parent
    return {
        "collect": ["--input", *texts],
        "clean": ["--input", *texts, "--filters", str(folder / "filters.yaml"), *_BY_PARAGRAPH],
        "dedup": ["--input", *texts, *_ALL_METHODS, "--against", str(folder / "protected.jsonl")],
        "mixture": ["--input", *texts, "--tokenizer", f"t={tokenizer}", "--validation-share", "0.1", *_SHARES, "--weight-key", "score"],
        "to_megatron": ["--input", *files, "--tokenizer", str(tokenizer)],
        "train_tokenizer": ["--input", *files, "--vocab-size", "300"],
    }[stage]
