"""Scores: columns of a corpus and models of good text as thresholds of `clean`."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.artifacts import read_manifest
from data_prep import clean, fit_quality
from data_prep.cleaning import quality_fit, quality_models
from data_prep.cleaning.quality_fit import auc, calibration
from data_prep.cleaning.quality_models import NgramModel, load_model
from data_prep.cleaning.scores import value_at
from tests.data_prep.conftest import SLOVENE_TEXT

Write = Callable[[str, str | bytes], Path]
GOOD = [line for line in SLOVENE_TEXT.read_text(encoding="utf-8").splitlines() if len(line) > 60][:300]
# The same words without their order, between what a shop's page has.
SHOP = "Dodaj v košarico 19,99 € | Na zalogi | Preberi več »"
WEB = [f"{SHOP} {' '.join(sorted(line.split()))} {SHOP if number % 2 else ''}" for number, line in enumerate(GOOD)]


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
        ("{s: 3}", "scores: s is 3; expected {key: KEY or model: DIR, min: NUMBER, max: NUMBER}, or false"),
        ("{s: {min: 3}}", "expected {key: KEY or model: DIR, min: NUMBER, max: NUMBER}, or false"),
        ("{s: {key: a, model: b, min: 3}}", "expected {key: KEY or model: DIR, min: NUMBER, max: NUMBER}, or false"),
        ("{s: {key: a}}", "scores: s has neither min nor max; expected one of them"),
        ("{s: {key: a, min: high}}", "scores: s: min is 'high'; expected a number"),
        ("{s: {key: a, max: head}}", "scores: s: max is 'head'; expected a number"),
        ("{s: {key: a, min: 1, missing: maybe}}", "expected missing: keep or drop (with a key), as: NAME (with a model)"),
        ("{s: {key: a, min: 1, as: b}}", "expected missing: keep or drop (with a key), as: NAME (with a model)"),
        ("{s: {model: a, min: 1, as: id}}", "scores: s: as is 'id', by which documents are known; choose another name"),
        ("{s: {model: nowhere, min: 1}}", "nowhere holds no model.npz; expected an output of data_prep.fit_quality"),
        ("{s: {key: a, min: 1.0e999}}", "scores: s: min is inf; expected a number"),
        ("{s: {key: a, min: 3, max: 1}}", "scores: s has min 3 above max 1, so no text would pass; change one of them"),
        ("{s: {key: null, min: 1}}", "scores: s: key is None; expected text"),
        ("{s: {model: null, min: 1}}", "scores: s: model is None; expected text"),
        ("[3]", "scores is [3]; expected a mapping, as the built-in settings have it"),
    ],
)
def test_scores_that_mean_nothing_are_refused(settings: str, sentence: str, tmp_path: Path, write: Write) -> None:
    path, filters = write("a.jsonl", jsonl(["ena"])), write("f.yaml", f"scores: {settings}")
    with pytest.raises(ValueError) as error:
        clean.main(["--input", f"c={path}", "--filters", str(filters), "--output", str(tmp_path / "o")])
    assert sentence in str(error.value) and not (tmp_path / "o").exists()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both kinds of model, of 300 paragraphs and as many pages of a shop."""
    folder = tmp_path_factory.mktemp("quality")
    for name, texts in (("good", GOOD), ("web", WEB)):
        (folder / f"{name}.jsonl").write_text(jsonl(texts), encoding="utf-8")
    for kind in ("classifier", "perplexity"):
        _fit(folder, folder / kind, "--kind", kind)
    return folder


def _fit(folder: Path, output: Path, *options: str) -> None:
    assert (
        fit_quality.main(
            ["--good", f"books={folder / 'good.jsonl'}", "--web", f"shop={folder / 'web.jsonl'}", *options, "--output", str(output)]
        )
        == 0
    )


def test_the_models_tell_good_from_web(models: Path, tmp_path: Path) -> None:
    classifier, perplexity = (read_manifest(models / kind).facts for kind in ("classifier", "perplexity"))
    assert (
        classifier["measured"]["auc"] > 0.99
        and classifier["measured"]["brier"] < 0.05
        and classifier["measured"]["calibration_error"] < 0.15
    )
    assert perplexity["measured"]["auc"] > 0.9 and 1 < perplexity["parts"]["head"] < perplexity["parts"]["middle"]
    page = (models / "classifier/report.html").read_text(encoding="utf-8")
    assert (
        all(f"<h3>{name}</h3>" in page for name in ("books", "shop"))
        and "Preberi več" in page
        and "http" not in page.replace("http-equiv", "")
    )
    assert "Is a score the probability" in page and page.count("<circle") == sum(map(len, classifier["reliability"].values()))
    for kind in ("classifier", "perplexity"):
        _fit(models, tmp_path / kind, "--kind", kind)
        for name in ("model.npz", "report.html", "report.json"):
            assert (tmp_path / kind / name).read_bytes() == (models / kind / name).read_bytes()


def test_models_as_filters(models: Path, tmp_path: Path, write: Write) -> None:
    path = write("mixed.jsonl", jsonl([text for pair in zip(GOOD[:40], WEB[:40]) for text in pair]))
    output = cleaned(tmp_path, path, f"{{good text: {{model: {models / 'classifier'}, min: 0.5, as: quality}}}}")
    kept = rows(output / "text")
    assert {int(row["id"][1:]) % 2 for row in kept} == {0} and len(kept) > 36 and all(0.5 <= row["quality"] <= 1 for row in kept)
    assert {row["reason"] for row in rows(output / "removed")} == {"score: good text"}
    assert str(models / "classifier/model.npz") in read_manifest(output).inputs
    by_part = {
        part: len(rows(cleaned(tmp_path, path, f"{{p: {{model: {models / 'perplexity'}, max: {part}}}}}") / "text"))
        for part in ("head", "middle")
    }
    assert 40 < by_part["head"] < by_part["middle"] < 80
    with pytest.raises(ValueError, match=r"max is 'tail', which .* has no part of; it has head, middle$"):
        cleaned(tmp_path, path, f"{{p: {{model: {models / 'perplexity'}, max: tail}}}}")
    written = rows(cleaned(tmp_path, path, f"{{q: {{model: {models / 'classifier'}, as: quality}}}}") / "text")
    assert len(written) == 80 and all(0 <= row["quality"] <= 1 for row in written)


def test_a_score_does_not_stand_for_the_text_or_another_score(models: Path, tmp_path: Path, write: Write) -> None:
    path = write("a.jsonl", jsonl(["ena"]))
    row = f"{{model: {models / 'classifier'}, as: text}}"
    for scores, sentence in (
        (f"{{s: {row}}}", "scores: s: as is 'text', the key of the text; choose another name"),
        (f"{{s: {row}, t: {row}}}", "scores: s and t are both written as 'text'; give each its own name"),
    ):
        with pytest.raises(ValueError) as error:
            clean.main(["--input", f"c={path}", "--filters", str(write("f.yaml", f"scores: {scores}")), "--output", str(tmp_path / "o")])
        assert str(error.value).endswith(sentence) and not (tmp_path / "o").exists()


def test_a_model_of_another_language_is_refused(models: Path, tmp_path: Path, write: Write) -> None:
    path, filters = write("a.jsonl", jsonl(GOOD[:3])), tmp_path / "filters.yaml"
    filters.write_text(f"base: none\nscores: {{q: {{model: {models / 'classifier'}, min: 0.5}}}}\n", encoding="utf-8")
    manifest = read_manifest(models / "classifier")
    assert manifest is not None and manifest.facts["languages"] == ["sl"]
    table = tmp_path / "corpora.yaml"
    for language, corpora in (("it", ["--input", f"c={path}", "--language", "it"]), ("ita_Latn", ["--corpora", str(table)])):
        table.write_text(f"- {{name: c, files: [a.jsonl], language: {language}}}\n")
        with pytest.raises(ValueError) as error:
            clean.main([*corpora, "--filters", str(filters), "--workers", "1", "--output", str(tmp_path / "o")])
        where = "--language" if "--language" in corpora else "corpus c"
        assert str(error.value) == (
            f"scores: q: the good texts of {models / 'classifier'} are in sl, but {where} says {language}; fit a model on texts in that language"
        )
    assert not list(tmp_path.glob("*o*unfinished")) and not (tmp_path / "o").exists()
    table.write_text("- {name: c, files: [a.jsonl], language: slv}\n")
    assert clean.main(["--corpora", str(table), "--filters", str(filters), "--workers", "1", "--output", str(tmp_path / "o")]) == 0


def test_a_broken_model_and_too_little_text_are_refused(models: Path, tmp_path: Path, write: Write) -> None:
    (tmp_path / "model.npz").write_bytes((models / "classifier/model.npz").read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"model\.npz is no whole model of data_prep\.fit_quality; make it again$"):
        load_model(tmp_path)
    for kind, name, wrong in (
        ("classifier", "weights", np.zeros(3, np.float32)),
        ("classifier", "numbers", np.array([np.nan, 1, 0])),
        ("classifier", "knots", np.zeros(3)),
        ("perplexity", "counts_0", np.zeros(1, np.float32)),
        ("perplexity", "totals", np.array([np.inf, 1])),
    ):
        load_model.cache_clear()
        with np.load(models / kind / "model.npz") as saved:
            np.savez(tmp_path / "model.npz", **{**saved, name: wrong})
        with pytest.raises(ValueError, match=r"model\.npz is no whole model of data_prep\.fit_quality; make it again$"):
            load_model(tmp_path)
    damaged = bytearray((models / "classifier/model.npz").read_bytes())
    damaged[damaged.index(b"PK\x01\x02") + 6] = 127  # a version of ZIP that zipfile does not know, and says so by NotImplementedError
    (tmp_path / "model.npz").write_bytes(damaged)
    with pytest.raises(ValueError, match=r"model\.npz is no whole model of data_prep\.fit_quality; make it again$"):
        load_model(tmp_path)
    few = write("few.jsonl", jsonl(GOOD[:15]))
    for good, web, option in ((few, models / "web.jsonl", "good"), (models / "good.jsonl", few, "web")):
        with pytest.raises(ValueError, match=f"^--{option} has 15 texts, too few to fit and measure on; give at least 200"):
            fit_quality.main(["--good", f"a={good}", "--web", f"b={web}", "--output", str(tmp_path / "o")])
    with pytest.raises(ValueError, match=r"^--good and --web both name a; give each source its own name$"):
        fit_quality.main(["--good", f"a={few}", "--web", f"a={models / 'web.jsonl'}", "--output", str(tmp_path / "o")])
    copy = write("copy.jsonl", (models / "web.jsonl").read_bytes())
    with pytest.raises(
        ValueError, match=r"^--good has .*copy\.jsonl and --web .*web\.jsonl, which is the same text; give texts that are good on"
    ):
        fit_quality.main(["--good", f"a={few}", f"b={copy}", "--web", f"c={models / 'web.jsonl'}", "--output", str(tmp_path / "o")])
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--order", "3"], "--order is of --kind perplexity and means nothing to a classifier; leave it out, or name that kind"),
        (["--kind", "perplexity", "--order", "500"], "--order is 500; expected at most 20, as each takes as much memory as the text"),
        (["--kind", "perplexity", "--calibration", "platt"], "--calibration is of --kind classifier and means nothing to perplexity;"),
    ],
)
def test_options_of_the_other_model_are_refused(options: list[str], sentence: str, models: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as error:
        _fit(models, tmp_path / "o", *options)
    assert str(error.value).startswith(sentence) and not (tmp_path / "o").exists()


def _plain_perplexity(reference: list[str], text: str, order: int) -> float:
    """Witten and Bell by the book, with dictionaries."""
    counts: Counter[str] = Counter()
    behind: dict[str, Counter[str]] = {}
    for one in reference:
        for n in range(1, order + 1):
            for start in range(len(one) - n + 1):
                counts[one[start : start + n]] += 1
                behind.setdefault(one[start : start + n - 1], Counter())[one[start + n - 1]] += 1

    def probability(context: str, letter: str) -> float:
        lower = probability(context[1:], letter) if context else 1 / 0x110000
        seen = behind.get(context, Counter())
        return (seen[letter] + len(seen) * lower) / (seen.total() + len(seen)) if seen else lower

    logs = [math.log(probability(text[max(0, place - order + 1) : place], letter)) for place, letter in enumerate(text)]
    return math.exp(-sum(logs) / len(logs))


def test_perplexity_is_that_of_the_book(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = ["abrakadabra, ščuka!", "ab ab abba", "a", "bra bra 00"]
    texts = ["abra", "dab ščuk", "zzz", "a", "bra 00 Ω"]
    for chunk in (1, 1 << 22):  # each text by itself, all at once
        monkeypatch.setattr(quality_models, "_CHUNK", chunk)
        for order in (1, 2, 4):
            model = NgramModel.fit(reference, order)
            assert [model.score(text) for text in texts] == pytest.approx(
                [_plain_perplexity(reference, text, order) for text in texts], rel=1e-6
            )
    assert model.score("ABRA  \n 17") == model.score("abra 00") and model.score(" ") == math.inf


def test_probabilities_are_true_of_texts_that_are_hard_to_tell() -> None:
    """Words that both sets have, one more often: of texts that the classifier gives 0.7 some seven of ten are good, before calibration they are not."""
    random = np.random.default_rng(1)

    def texts(blue: float) -> list[str]:
        """Of 2,000 rare words too, which a regression learns by heart."""
        common = lambda: random.choice(["blue", "red", "green"], 8, p=[blue, 0.8 - blue, 0.2])  # noqa: E731
        return [" ".join([*common(), *(f"w{number}" for number in random.integers(0, 2000, 40))]) for _ in range(2000)]

    good, web = texts(0.5), texts(0.35)
    fitted = quality_fit.fit([quality_fit.Source("g", True, good), quality_fit.Source("w", False, web)], "classifier")
    measured = fitted.figures["measured"]
    assert 0.6 < measured["auc"] < 0.85 and measured["calibration_error"] < 0.06
    assert measured["error_before_calibration"] > 0.08
    rows = fitted.figures["reliability"]["calibrated"]
    assert sum(row["texts"] for row in rows) == len(fitted.texts) == sum(fitted.figures["held_out"].values())
    for row in rows:
        deviation = (row["said"] * (1 - row["said"]) / row["texts"]) ** 0.5
        assert abs(row["said"] - row["true"]) < 4 * deviation + 0.03, row
    assert [row["said"] for row in rows] == sorted(row["said"] for row in rows)


def test_figures_by_hand() -> None:
    scores, is_good = np.array([0.9, 0.4, 0.4, 0.1]), np.array([True, True, False, False])
    assert auc(scores, is_good) == 0.875
    assert quality_fit.reliability(scores, is_good) == [
        {"from": 0.1, "said": 0.1, "true": 0.0, "texts": 1},
        {"from": 0.4, "said": 0.4, "true": 0.5, "texts": 2},
        {"from": 0.9, "said": 0.9, "true": 1.0, "texts": 1},
    ]
    found = calibration(scores, is_good)
    assert found["brier"] == pytest.approx((0.01 + 0.36 + 0.16 + 0.01) / 4) and found["right_at_half"] == 0.75
    assert found["calibration_error"] == pytest.approx((0.1 + abs(-0.6 + 0.4) + 0.1) / 4)
