"""Real text in the shape of every evaluation set, so that each suite runs on real rows where its own set may not be passed on.

Slovene SuperGLUE, SI-NLI and SQuAD-it are themselves.  FLORES is news translated sentence by sentence (NTREX-128); ITA-Bench is the
causes and effects that COPA and XCOPA ask in English and Italian; SENTA and the summaries are sentences and articles with their own
beginnings.  Where there is no text in a language of a task, one in another language and script stands in its field: lengths, letters and
dirt are real, scores mean nothing.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
_ITA_BENCH = ("arc_easy", "boolq", "hellaswag", "mmlu", "piqa", "sciq")
# Language of a task -> column of the parallel news that stands for it.
_STAND_INS = {
    "ar": "sr_Cyrl", "de": "hr", "el": "sr_Cyrl", "hi": "sr_Cyrl", "ja": "sr_Latn",
    "my": "sr_Cyrl", "si": "hr", "sw": "it", "te": "sr_Cyrl", "th": "sr_Latn",
}  # fmt: skip
# Language of a task -> articles that stand for its own.
_ARTICLES = {
    "ar": "sr/gnome_help", "de": "hr/gnome_help", "el": "sr/eltec_novels_cyrl", "hi": "sr/gnome_help", "ja": "sr/ud_set",
    "my": "sr/eltec_novels_cyrl", "si": "hr/ud_set", "sw": "it/kind_wikinews", "te": "sr/eltec_novels_cyrl", "th": "sl/ud_ssj",
}  # fmt: skip


def write_real_rows(shared: Path, folder: Path) -> Path:
    """The folder of evaluation data for all tasks.

    Args:
        shared: text/, parallel/ and eval/, as SCION_SHARED_DATA names them.
    """
    slovene = folder / "sl"
    slovene.mkdir(parents=True)
    for path in (shared / "eval" / "sl").iterdir():
        (slovene / path.name).symlink_to(path)
    sentences = _news(shared)
    stories = list(dict.fromkeys(row["group"] for row in sentences))
    first = set(stories[:20])
    files = {
        "mt/flores_dev": (row for row in sentences if row["group"] in first),
        "mt/flores_devtest": (row for row in sentences if row["group"] not in first),
        "sl/senta_train": (_simplified(row) for row in sentences if row["group"] in first),
        "sl/senta_test": (_simplified(row) for row in sentences if row["group"] not in first and "," in row["sl"]),
        **_squad(shared),
        **{f"it/itabench/{name}": _causes(shared, name) for name in _ITA_BENCH},
        **{f"summarisation/{language}": _articles(shared, file) for language, file in _ARTICLES.items()},
    }
    for name, rows in files.items():
        path = folder / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return folder


def read(path: Path) -> list[Row]:
    """Rows of a compressed file of lines."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _news(shared: Path) -> list[Row]:
    with gzip.open(shared / "parallel" / "ntrex128.tsv.gz", "rt", encoding="utf-8") as lines:
        header, *rows = (line.rstrip("\n").split("\t") for line in lines)
    found = []
    for values in rows:
        row = dict(zip(header, values, strict=True))
        standing_in = {language: row[column] for language, column in _STAND_INS.items()}
        own = {language: row[language] for language in ("en", "sl", "it")}
        found.append({"id": f"{row['doc']}:{row['line']}", "group": row["doc"], **own, **standing_in})
    return found


def _simplified(row: Row) -> Row:
    return {"id": row["id"], "group": row["group"], "source": row["sl"], "references": [f"{row['sl'].split(',')[0].rstrip('.')}."]}


def _squad(shared: Path) -> dict[str, list[Row]]:
    rows = read(shared / "eval" / "it" / "squad_it_test.jsonl.gz")
    groups = sorted({row["group"] for row in rows})
    train = set(groups[: len(groups) // 2])
    return {
        "it/squad_it_train": [row for row in rows if row["group"] in train],
        "it/squad_it_test": [row for row in rows if row["group"] not in train],
    }


def _causes(shared: Path, name: str) -> Iterable[Row]:
    italian = {row["id"]: row for row in read(shared / "eval" / "it" / "xcopa.jsonl.gz")}
    for english in read(shared / "eval" / "en" / "copa_en.jsonl.gz"):
        if english["id"] in italian:
            sides = {"it": italian[english["id"]], "en": english}
            parts = {language: _asked(row, name) for language, row in sides.items()}
            yield {"id": english["id"], "group": english["group"], "label": english["label"], **parts}


def _asked(row: Row, name: str) -> Row:
    choices = [row["choice1"], row["choice2"]]
    if name == "hellaswag":
        return {"activity_label": "Dan", "context": row["premise"], "choices": choices}
    if name == "boolq":  # yes: the first choice is the right one
        return {"passage": row["premise"], "question": row["choice1"]}
    return {"passage": row["premise"], "question": row["premise"], "choices": choices}


def _articles(shared: Path, file: str) -> Iterable[Row]:
    for row in read(shared / "text" / f"{file}.jsonl.gz")[:60]:
        text = " ".join(row["text"].split())[:1500]
        yield {"id": row["id"], "group": row["group"], "text": text, "summary": row.get("title") or text[:120]}
