"""Projects run whole on this machine: from text to the page, and what is held out stays out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_prep import train_tokenizer
from data_prep.reading.documents import read_documents
from recipes import run
from tests.processes import ROOT

PROJECTS = ROOT / "recipes" / "projects"
DEMO_TEXT = ROOT / "recipes" / "demo_text"


@pytest.mark.slow
def test_what_is_held_out_is_in_no_text_that_is_trained_on(tmp_path: Path) -> None:
    lines = (DEMO_TEXT / "sl.train.txt").read_text(encoding="utf-8").splitlines()[:200]
    # Half of what is held out stands a second time, with a beginning of its own, where training would find it.
    documents = [*lines, *(f"Ponovljeno besedilo: {line}" for line in lines)]
    (tmp_path / "sl.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in documents), encoding="utf-8")
    (tmp_path / "sl.txt").write_text("\n".join(documents), encoding="utf-8")
    train_tokenizer.main(["--input", str(tmp_path / "sl.txt"), "--vocab-size", "400", "--output", str(tmp_path / "model")])
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    project = tmp_path / "slovene.yaml"
    project.write_text("source: model\nlanguages: {sl: {texts: sl.jsonl, heldout_share: 0.1}}\ntext: {key: body}\n", encoding="utf-8")
    assert run.main([str(project), "--until", "text_sl"]) == 0

    def texts(folder: str) -> list[str]:
        files = (tmp_path / "slovene_output" / "text" / "sl" / folder).rglob("*.jsonl*")
        return [document.text for path in files for document in read_documents(path)]

    held_out, trained = texts("split/validation"), texts("unique/text")
    assert 10 < len(held_out) < 80 and len(trained) > 100
    spans = {" ".join(words[i : i + 13]) for text in held_out for words in [text.split()] for i in range(len(words) - 12)}
    assert spans and not any(span in " ".join(text.split()) for text in trained for span in spans)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("gams", marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.long) for name in ("low_resource", "ofa", "sava")),
    ],
)
def test_a_papers_run_is_reproduced_whole_with_a_tiny_model(name: str, tmp_path: Path) -> None:
    vectors = tmp_path / "words.vec"
    words = sorted({word for code in ("sl", "en") for word in (DEMO_TEXT / f"{code}.train.txt").read_text(encoding="utf-8").split()})[::10]
    rows = [f"{word} {' '.join(str((number * (place + 3)) % 7 - 3) for place in range(8))}" for number, word in enumerate(words)]
    vectors.write_text("\n".join([f"{len(words)} 8", *rows]) + "\n", encoding="utf-8")
    material = [f"transfer.options=--vectors {vectors}"] if name == "ofa" else []
    out = tmp_path / "out"
    assert run.main([str(PROJECTS / f"{name}.yaml"), "size=tiny", f"machine.work_dir={out}", *material]) == 0
    results = [json.loads(path.read_text(encoding="utf-8")) for path in out.glob("results/*/result.json")]
    assert {result["name"].rpartition("-")[2] for result in results} >= {"0"} and len(results) >= 3
    assert (out / "report" / "learning_curves.html").is_file() != (name == "ofa")
    assert (out / "intervals" / "report.html").is_file() and (out / "vocabularies" / "report.html").is_file()
    assert not list(out.glob("*/run/checkpoints/*"))  # nothing needs them any more
    assert run.main([str(PROJECTS / f"{name}.yaml"), "size=tiny", f"machine.work_dir={out}", *material]) == 0
