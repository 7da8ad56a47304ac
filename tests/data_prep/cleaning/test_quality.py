"""Scores: columns of a corpus and labels of fastText models as thresholds of `clean`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.artifacts import read_manifest
from data_prep import clean
from data_prep.cleaning.scores import value_at

Write = Callable[[str, str | bytes], Path]
# Of 32 kB, with the labels slv_Latn, hrv_Latn, ita_Latn ... (tests/data_prep/cleaning/test_language_models.py).
MODEL = Path(__file__).with_name("fasttext") / "softmax.bin"


def jsonl(texts: list[str], **fields: list[Any]) -> str:
    rows = [{"id": f"d{i}", "text": text, **{key: values[i] for key, values in fields.items()}} for i, text in enumerate(texts)]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def rows(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(directory.rglob("*.jsonl")) for line in path.read_text(encoding="utf-8").splitlines()]


def cleaned(tmp_path: Path, path: Path, settings: str) -> Path:
    filters = tmp_path / "filters.yaml"
    filters.write_text(f"base: none\nscores: {settings}\n", encoding="utf-8")
    output = tmp_path / f"cleaned{len(list(tmp_path.iterdir()))}"
    assert clean.main(["--input", f"c={path}", "--filters", str(filters), "--workers", "1", "--output", str(output)]) == 0
    return output


def test_columns_as_thresholds(tmp_path: Path, write: Write) -> None:
    """FineWeb-Edu's int_score, HPLT's list doc_scores, a number in an object and in a text, and what has none."""
    fields = {
        "int_score": [3, 2, 5, None, True],
        "doc_scores": [[8.5, 1], [9.0, 2], [4.0, 0], [], [9, 9]],
        "metadata": [{"p": "0.9"}, {"p": "0.9"}, {"p": "0.9"}, {"p": "no number"}, {}],
    }
    path = write("a.jsonl", jsonl(["ena", "dve", "tri", "štiri", "pet"], **fields))
    output = cleaned(
        tmp_path, path, "{education: {key: int_score, min: 3}, hplt: {key: doc_scores.0, min: 5, max: 9}, p: {key: metadata.p, min: 0.5}}"
    )
    assert [row["id"] for row in rows(output / "text")] == ["d0", "d3", "d4"]
    assert {row["id"]: (row["reason"], row["detail"]) for row in rows(output / "removed")} == {
        "d1": ("score: education", "int_score 2"),
        "d2": ("score: hplt", "doc_scores.0 4"),
    }
    manifest = read_manifest(output)
    assert manifest is not None
    not_judged = manifest.facts["counts"]["c"]["not_judged"]
    assert {reason: (change["documents"], change["samples"][0]["detail"]) for reason, change in not_judged.items()} == {
        "score: education": (2, "no int_score"),
        "score: hplt": (1, "no doc_scores.0"),
        "score: p": (2, "no metadata.p"),
    }
    assert "| c | not judged | score: education | 2 | 0 |" in " ".join((output / "report.md").read_text().split())
    output = cleaned(tmp_path, path, "{education: {key: int_score, min: 3, missing: drop}}")
    assert {row["id"]: row["detail"] for row in rows(output / "removed")} == {
        "d1": "int_score 2",
        "d3": "no int_score",
        "d4": "no int_score",
    }
    assert {row["key"]: row["text"] for row in rows(output / "samples")} == {"a.jsonl:2": "dve", "a.jsonl:4": "štiri", "a.jsonl:5": "pet"}
    assert value_at({"a.b": 1, "a": {"b": 2}}, "a.b") == 1 and value_at({"a": float("inf")}, "a") is None


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ("{s: 3}", "scores: s is 3; expected {key: KEY, or model: FILE and label: NAME, min: NUMBER, max: NUMBER}, or false"),
        ("{s: {min: 3}}", "expected {key: KEY, or model: FILE and label: NAME, min: NUMBER, max: NUMBER}, or false"),
        ("{s: {key: a, model: b, min: 3}}", "expected {key: KEY, or model: FILE and label: NAME, min: NUMBER, max: NUMBER}, or false"),
        ("{s: {key: a}}", "scores: s has neither min nor max; expected one of them"),
        ("{s: {key: a, min: high}}", "scores: s: min is 'high'; expected a number"),
        ("{s: {key: a, max: head}}", "scores: s: max is 'head'; expected a number"),
        ("{s: {key: a, min: 1, missing: maybe}}", "expected missing: keep or drop (with a key), as: NAME (with a model)"),
        ("{s: {key: a, min: 1, as: b}}", "expected missing: keep or drop (with a key), as: NAME (with a model)"),
        ("{s: {model: a, label: b, min: 1, as: id}}", "scores: s: as is 'id', by which documents are known; choose another name"),
        ("{s: {model: nowhere, label: a, min: 1}}", "the language model nowhere does not exist; give a fastText model"),
        (f"{{s: {{model: {MODEL}, label: good, min: 1}}}}", "has no label 'good'; it has "),
        ("{s: {model: a, min: 1}}", "expected {key: KEY, or model: FILE and label: NAME"),
        ("{s: {key: a, min: 1.0e999}}", "scores: s: min is inf; expected a number"),
        ("{s: {key: a, min: 3, max: 1}}", "scores: s has min 3 above max 1, so no text would pass; change one of them"),
        ("{s: {key: null, min: 1}}", "scores: s: key is None; expected text"),
        ("{s: {model: null, label: a, min: 1}}", "scores: s: model is None; expected text"),
        ("[3]", "scores is [3]; expected a mapping, as the built-in settings have it"),
    ],
)
def test_scores_that_mean_nothing_are_refused(settings: str, sentence: str, tmp_path: Path, write: Write) -> None:
    path, filters = write("a.jsonl", jsonl(["ena"])), write("f.yaml", f"scores: {settings}")
    with pytest.raises(ValueError) as error:
        clean.main(["--input", f"c={path}", "--filters", str(filters), "--output", str(tmp_path / "o")])
    assert sentence in str(error.value) and not (tmp_path / "o").exists()


def test_a_fasttext_model_as_filter(tmp_path: Path, write: Write) -> None:
    texts = [
        "Vlada je včeraj sprejela predlog zakona o varstvu potrošnikov.",
        "Il governo ha approvato ieri il disegno di legge sui consumatori.",
    ]
    output = cleaned(tmp_path, write("a.jsonl", jsonl(texts)), f"{{q: {{model: {MODEL}, label: slv_Latn, min: 0.5, as: quality}}}}")
    (kept,) = rows(output / "text")
    assert kept["id"] == "d0" and 0.5 <= kept["quality"] <= 1
    assert [row["reason"] for row in rows(output / "removed")] == ["score: q"]
    manifest = read_manifest(output)
    assert manifest is not None and str(MODEL) in manifest.inputs


def test_a_score_does_not_stand_for_the_text_or_another_score(tmp_path: Path, write: Write) -> None:
    path = write("a.jsonl", jsonl(["ena"]))
    row = f"{{model: {MODEL}, label: slv_Latn, as: text}}"
    for scores, sentence in (
        (f"{{s: {row}}}", "scores: s: as is 'text', the key of the text; choose another name"),
        (f"{{s: {row}, t: {row}}}", "scores: s and t are both written as 'text'; give each its own name"),
    ):
        with pytest.raises(ValueError) as error:
            clean.main(["--input", f"c={path}", "--filters", str(write("f.yaml", f"scores: {scores}")), "--output", str(tmp_path / "o")])
        assert str(error.value).endswith(sentence) and not (tmp_path / "o").exists()
