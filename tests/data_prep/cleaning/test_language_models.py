"""Languages by fastText models: the reader gives what the original gives; codes, scripts, close languages and paragraphs by the labels of such a model."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.artifacts import read_manifest
from data_prep.clean import main
from data_prep.cleaning.fasttext_model import FastTextModel
from data_prep.cleaning.filter_settings import read_filters
from data_prep.cleaning.language_filter import LanguageFilter
from data_prep.reading.languages import CLOSE_GROUPS, LanguageCode, is_language, language_code, members, short_code

Write = Callable[[str, str | bytes], Path]
# Models of a few kB that `fasttext-wheel` 0.9.2 has trained on 18,000 paragraphs in the labels' languages, and what it says of some texts
# (k=-1, threshold=-1): softmax, hierarchical softmax, one-vs-all with pairs of words, negative sampling without parts of words, and quantized.
MODELS = Path(__file__).with_name("fasttext")
GLOTLID_LIKE = MODELS / "softmax.bin"
EXPECTED = json.loads((MODELS / "expected.json").read_text(encoding="utf-8"))
_, CYRILLIC, SLOVENE, CROATIAN, ITALIAN, ENGLISH = EXPECTED["texts"][:6]
SERBIAN = "Srbija i Kosovo nastavljaju dijalog u Briselu, a ministar spoljnih poslova kaže da su stavovi veoma udaljeni."


@pytest.mark.parametrize("name", EXPECTED["probabilities"])
def test_as_the_original_says(name: str) -> None:
    model = FastTextModel(MODELS / name)
    for text, expected in zip(EXPECTED["texts"], EXPECTED["probabilities"][name]):
        found = dict(zip(model.labels, model.probabilities(text)))
        assert set(found) == set(expected)
        assert max(abs(found[label] - expected[label]) for label in expected) < 1e-5, text
        assert max(found, key=lambda label: found[label]) == max(expected, key=lambda label: expected[label])


def test_what_was_remembered_of_words_changes_nothing() -> None:
    model, again = FastTextModel(GLOTLID_LIKE), FastTextModel(GLOTLID_LIKE)
    again._most_known = 3
    for text in EXPECTED["texts"] * 2:
        assert np.array_equal(model.probabilities(text), again.probabilities(text))
    assert len(again._known) <= 3


def _changed(path: Path, name: str, place: int, form: str, value: Any) -> Path:
    data = bytearray(GLOTLID_LIKE.read_bytes())
    struct.pack_into(form, data, place, value)
    (path / name).write_bytes(data)
    return path / name


def test_what_is_no_model_is_refused(tmp_path: Path, write: Write) -> None:
    whole = GLOTLID_LIKE.read_bytes()
    cases = {
        tmp_path / "none.bin": "does not exist; give a fastText model (.bin or .ftz), such as that of GlotLID",
        tmp_path: "is not a file; give a fastText model (.bin or .ftz), such as that of GlotLID",
        write("empty.bin", b""): "is empty; expected a fastText model (.bin or .ftz)",
        write(
            "text.bin", "no model at all"
        ): "is not a fastText model; expected a .bin or .ftz that fastText has written, such as that of GlotLID",
        write("short.bin", whole[:3]): "is not a fastText model",
        write("half.bin", whole[: len(whole) // 2]): "ends in the middle of a fastText model; copy it again",
        write("header.bin", whole[:30]): "ends in the middle of a fastText model; copy it again",
        write("entries.bin", whole[:120]): "ends in the middle of a fastText model; copy it again",
        _changed(
            tmp_path, "vectors.bin", 36, "<i", 2
        ): "holds word vectors of fastText, which cannot identify languages; expected a supervised model",
        _changed(tmp_path, "loss.bin", 32, "<i", 9): "was trained with the unknown loss 9; expected a model of fastText 0.9",
        _changed(tmp_path, "dimension.bin", 8, "<i", 7): "has matrices that do not fit its labels and dimension; copy it again",
        _changed(tmp_path, "parts.bin", 40, "<i", 1 << 20): "vectors, fewer than its words and their parts ask for; copy it again",
        _changed(tmp_path, "numbers.bin", len(whole) - 4, "<f", float("nan")): "has vectors of labels that are not numbers; copy it again",
        _changed(tmp_path, "labels.bin", 72, "<i", 5): "counts 120 words and 5 labels but holds others; copy it again",
    }
    for path, sentence in cases.items():
        with pytest.raises(ValueError) as error:
            FastTextModel(path)
        assert str(path) in str(error.value) and sentence in str(error.value)


def test_codes() -> None:
    assert language_code("sl") == language_code("slv") == LanguageCode("slv", "")
    assert language_code("sr-Latn") == language_code("srp_Latn") == LanguageCode("srp", "Latn")
    assert language_code("be-x-old") == LanguageCode("bel", "") and language_code("zh-Hant") == LanguageCode("zho", "Hant")
    assert [short_code(code) for code in ("slv_Latn", "sr-Cyrl", "cnr", "als")] == ["sl", "sr", "cnr", "als"]
    assert "als" in members("sq") and "als" in members("sqi_Latn") and not members("sl")
    assert is_language("slv_Latn") and is_language("sh") and not is_language("xx") and not is_language("Slovene")


@pytest.mark.parametrize(
    "language, close_languages, passes",  # Serbian in Latin and Cyrillic script, Slovene, Croatian
    [
        ("sr", "together", [True, True, False, True]),
        ("srp", "together", [True, True, False, True]),
        ("sr-Latn", "together", [True, False, False, True]),
        ("srp_Cyrl", "together", [False, True, False, False]),
        ("hr", "together", [True, False, False, True]),
        ("bs", "together", [True, True, False, True]),  # which the model has no label for
        ("hr", "apart", [False, False, False, True]),
        ("srp_Latn", "apart", [True, False, False, False]),
        ("srp_Cyrl", "apart", [False, True, False, False]),
        ("srp", "apart", [True, True, False, False]),
        ("slv_Latn", "together", [False, False, True, False]),
    ],
)
def test_languages_and_scripts_of_labels(language: str, close_languages: str, passes: list[bool]) -> None:
    asked = LanguageFilter([language], model=GLOTLID_LIKE, close_languages=close_languages)
    assert [asked.refuses(text) is None for text in (SERBIAN, CYRILLIC, SLOVENE, CROATIAN)] == passes


def test_serbo_croatian_is_one_of_its_group() -> None:
    """The label `sh`, which lid.176 has for much Croatian and Serbian."""

    class OneLabel:
        labels = ("sh", "sl", "en")

        def probabilities(self, text: str) -> np.ndarray:
            return np.array([0.45, 0.25, 0.3])

    for language, passes in (("hr", True), ("sr-Latn", True), ("sr-Cyrl", False), ("sl", True), ("en", True)):
        asked = LanguageFilter([language])
        asked._identifier, asked._labels, asked._min_score = OneLabel(), tuple(map(language_code, OneLabel.labels)), 0.2
        asked._requested = [asked._find(language, CLOSE_GROUPS)]
        assert (asked.refuses("Zagreb je glavni grad Hrvatske.") is None) == passes, language


def test_groups_are_settings(tmp_path: Path, write: Write) -> None:
    """Slovene and Italian as close as Croatian and Serbian: one stands for both, and Croatian for itself alone."""
    filters = write(
        "f.yaml", "base: none\nclose_languages:\n  Bosnian, Croatian, Montenegrin, Serbian: false\n  odd: {sl: [Latn], it: [Latn]}\n"
    )
    path = write(
        "a.jsonl",
        "".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in (("sr", SERBIAN), ("it", ITALIAN), ("hr", CROATIAN))),
    )
    common = ["--input", f"c={path}", "--language-model", str(GLOTLID_LIKE), "--filters", str(filters), "--workers", "1"]
    assert main([*common, "--language", "slv", "hr", "--output", str(tmp_path / "o")]) == 0
    assert [row["id"] for row in _rows(tmp_path / "o/text")] == ["it", "hr"]
    manifest = read_manifest(tmp_path / "o")
    assert manifest.facts["rules"]["language_model"] == str(GLOTLID_LIKE) and str(GLOTLID_LIKE) in manifest.inputs
    assert "odd" in manifest.facts["rules"]["filters"]["close_languages"]
    norwegian = write(
        "n.yaml", "base: web\nclose_languages:\n  Norwegian: {nb: [Latn], nn: [Latn], no: [Latn]}\n"
    )  # as the documentation has it
    assert main([*common[:2], "--language", "nb", "--filters", str(norwegian), "--workers", "1", "--output", str(tmp_path / "n")]) == 0
    with pytest.raises(ValueError, match="close_languages: odd has the unknown script Latin; the known ones are Arab, "):
        read_filters(str(write("s.yaml", "close_languages: {odd: {sl: [Latin], it: [Latn]}}")))
    with pytest.raises(ValueError, match="close_languages is 'sl'; expected names of groups, each with languages with their scripts"):
        read_filters(str(write("t.yaml", "close_languages: sl")))
    for wrong in ("close_languages: [sl, it]", "close_languages: {odd: [sl, it]}", "close_languages: {odd: {Slovene: [Latn]}}"):
        with pytest.raises(ValueError, match=r"languages with their scripts, such as \{nb: \[Latn\], nn: \[Latn\]\}"):
            main([*common[:4], "--filters", str(write("w.yaml", wrong)), "--language", "sl", "--output", str(tmp_path / "p")])


def _rows(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(directory.rglob("*.jsonl")) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("model", [None, GLOTLID_LIKE])
def test_paragraphs_in_other_languages_are_cut(model: Path | None, tmp_path: Path, write: Write) -> None:
    texts = {
        "mixed": f"Novice\n{SLOVENE}\nIn English\n{ENGLISH}\n{ITALIAN}\nBuongiorno!\n{ENGLISH}\n\n{SLOVENE}",
        "ends in English": f"{SLOVENE}\nHello\n{ENGLISH}\nBye bye",
        "Cyrillic": f"{CYRILLIC}\nДа",
        "whole": f"{SLOVENE}\nOk\n{SLOVENE}",
        "short": "Dober dan",
    }
    path = write("a.jsonl", "".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in texts.items()))
    output = tmp_path / "o"
    options = ["--language-model", str(model)] if model else []
    main(["--input", f"c={path}", "--filters", "none", "--language", "sl", "--language-unit", "paragraph", "--min-language-score", "0", *options,
          "--workers", "1", "--output", str(output)])  # fmt: skip
    kept = {row["id"]: row["text"] for row in _rows(output / "text")}
    # Between a paragraph that stays and one that goes a short line stays.
    assert kept["mixed"] == f"Novice\n{SLOVENE}\nIn English\n\n{SLOVENE}"
    assert kept["ends in English"] == f"{SLOVENE}\nHello" and kept["whole"] == texts["whole"]
    removed = {row["id"]: (row["reason"], row["detail"]) for row in _rows(output / "removed")}
    assert removed["Cyrillic"] == ("language", "no paragraph")
    counts = read_manifest(output).facts["counts"]["c"]["changed"]["paragraphs in other languages"]
    assert counts["documents"] == 3 and counts["characters"] == sum(map(len, texts.values())) - sum(
        len(kept.get(name, "" if name == "Cyrillic" else texts[name])) for name in texts
    )
    samples = [row for row in _rows(output / "samples") if row["reason"] == "paragraphs in other languages"]
    assert {row["text"] for row in samples} == {f"{ENGLISH}\n{ITALIAN}\nBuongiorno!\n{ENGLISH}", f"{ENGLISH}\nBye bye", texts["Cyrillic"]}


def test_options_without_a_language_are_refused(tmp_path: Path, write: Write) -> None:
    path = write("a.jsonl", json.dumps({"text": SLOVENE}) + "\n")
    for option in (
        ["--language-model", str(GLOTLID_LIKE)], ["--language-unit", "paragraph"], ["--close-languages", "apart"], ["--min-language-score", "0.9"]
    ):  # fmt: skip
        with pytest.raises(ValueError, match=rf"^{option[0]} needs --language; name the languages that may stay$"):
            main(["--input", f"c={path}", *option, "--output", str(tmp_path / "o")])
    with pytest.raises(ValueError, match=r"^--language de is unknown; the known ones are en, hr, it, sl, sr$"):
        main(["--input", f"c={path}", "--language", "de", "--language-model", str(GLOTLID_LIKE), "--output", str(tmp_path / "o")])
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
