"""Grafts merged at several weights, measured and shown: figures are those of the merges, and nothing is measured twice."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from conversion.merge import main as merge
from eval.harness import main as evaluate
from eval.skills import main
from tests.conversion.embedding_fixtures import demo_text
from tests.conversion.test_merge import make

CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}assistant:"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model, what was tuned from it, and a graft with another vocabulary; texts in two languages."""
    place = tmp_path_factory.mktemp("skills")
    make(place / "base", shift=0.0)
    make(place / "chat", shift=0.05)
    (place / "chat/chat_template.jinja").write_text(CHAT)
    make(place / "graft", shift=0.02, language="sl", num_tokens=340)
    for language in ("sl", "en"):
        (place / f"{language}.txt").write_text("\n".join(demo_text(language).splitlines()[-12:]), encoding="utf-8")
    return place


def words(place: Path, output: Path, *more: str | Path) -> list[str]:
    texts = [f"{language}={place / language}.txt" for language in ("sl", "en")]
    given = ["--instruct", place / "chat", "--graft", f"mine={place / 'graft'}", "--text", *texts, "--limit", "2", "--output", output]
    return [str(word) for word in (*given, *more)]


def rows(output: Path) -> dict[tuple[str, str], dict[str, str]]:
    with open(output / "report/skills.csv", encoding="utf-8") as stream:
        return {(row["model"], row["measure"]): row for row in csv.DictReader(stream)}


@pytest.mark.slow
def test_a_sweep_is_of_the_merges_and_goes_on(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat_vectors = ["--source", place / "base", "--weights", "0.5"]
    assert main(words(place, tmp_path / "out", *chat_vectors)) == 0
    assert not (tmp_path / "out/merged").exists()
    found = rows(tmp_path / "out")
    assert {model for model, _ in found} == {"source", "instruct", "mine", "mine-0.5"}
    measures = {"Slovene, bits per byte", "English, bits per byte", "instructions, sl", "instructions, en"}
    assert {measure for _, measure in found} == measures
    folder = tmp_path / "merged"
    assert (
        merge([str(w) for w in ("--base", place / "base", "--add", f"{place / 'chat'}:0.5", "--to", place / "graft", "--output", folder)])
        == 0
    )
    assert evaluate(["--model", str(folder), "--text", f"sl={place / 'sl.txt'}", "--output", str(tmp_path / "alone")]) == 0
    alone = json.loads((tmp_path / "alone/merged/result.json").read_text())["texts"]["sl"]["bits_per_byte"]
    assert float(found["mine-0.5", "Slovene, bits per byte"]["value"]) == pytest.approx(alone, abs=1e-9)
    page = (tmp_path / "out/report/skills.html").read_text()
    assert "graft against source" in page and "weight 0.5 against graft" in page
    capsys.readouterr()
    assert main(words(place, tmp_path / "out", *chat_vectors[:2], "--weights", "0.5", "1", "--keep")) == 0
    told = capsys.readouterr().err
    assert [f"{name}: measured before" in told for name in ("source", "instruct", "mine", "mine-0.5", "mine-1")] == [True] * 4 + [False]
    assert (tmp_path / "out/merged/mine-1/model.safetensors").is_file()
    assert rows(tmp_path / "out").items() >= found.items()


@pytest.mark.slow
def test_without_a_source_the_last_weight_is_the_instructed_model(place: Path, tmp_path: Path) -> None:
    """On one vocabulary: a mean with all of the weight on one model is that model."""
    given = [
        "--instruct",
        place / "chat",
        "--graft",
        f"mine={place / 'base'}",
        "--text",
        f"sl={place / 'sl.txt'}",
        "--weights",
        "1",
        "--prompts",
    ]
    assert main([str(word) for word in (*given, "--output", tmp_path / "out")]) == 0
    found = rows(tmp_path / "out")
    assert found["mine-1", "Slovene, bits per byte"]["value"] == found["instruct", "Slovene, bits per byte"]["value"]
    assert found["mine", "Slovene, bits per byte"]["value"] != found["instruct", "Slovene, bits per byte"]["value"]


def test_what_cannot_be_measured_is_refused_before_anything_is_written(place: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(place / "graft", other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "num_attention_heads": 2}))
    out = tmp_path / "out"
    for sentence, given in {
        "has num_attention_heads 4, but that of other 2": words(place, out, "--graft", str(other)),
        "--weights has nan": words(place, out, "--weights", "nan"),
        "like another model of the page": words(place, out, "--graft", f"instruct={place / 'graft'}"),
        "has no chat template": words(place, out, "--instruct", str(place / "base")),
        "unknown task nothing": words(place, out, "--tasks", "nothing"),
        "--limit is 0": words(place, out, "--limit", "0"),
        "does not exist": words(place, out, "--source", str(tmp_path / "none")),
    }.items():
        with pytest.raises(ValueError, match=sentence):
            main(given)
        assert not out.exists()
    lent = tmp_path / "lent"
    shutil.copytree(place / "chat", lent)
    tokenizer = json.loads((lent / "tokenizer.json").read_text().replace("</s>", "</t>"))
    (lent / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = (lent / "tokenizer_config.json").read_text().replace("</s>", "</t>")
    (lent / "tokenizer_config.json").write_text(config)
    (lent / "special_tokens_map.json").unlink(missing_ok=True)
    (lent / "chat_template.jinja").write_text(CHAT.replace("</s>", "</t>"))
    with pytest.raises(ValueError, match=r"spells </t>, which the tokenizer in .* does not have"):
        main(words(place, out, "--instruct", str(lent)))
