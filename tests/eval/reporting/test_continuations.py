"""The texts of eval.generate on the page of learning curves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from common.pages import Drawing, rendered
from eval.reporting.continuations import read_continuations


def test_texts_stand_under_their_prompts_in_the_order_of_the_models(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "prompt": "Zjutraj <b>"}\n{"id": "b", "prompt": "In the"}\n', encoding="utf-8")
    (tmp_path / "efficiency.json").write_text(json.dumps({"models": {"source": {}, "after": {}}}), encoding="utf-8")
    rows = {"source": {"a": "x\u2028y\nz", "b": " "}, "after": {"a": "dež & sonce", "b": "morning"}}
    for model, texts in rows.items():
        lines = [
            json.dumps({"id": key, "repeat": repeat, "text": text}, ensure_ascii=False) for repeat in (1, 0) for key, text in texts.items()
        ]
        (tmp_path / "texts" / f"{model}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = read_continuations(tmp_path)
    assert {key: list(texts.items()) for key, texts in found.texts.items()} == {
        "a": [("source", "x\u2028y\nz"), ("after", "dež & sonce")],
        "b": [("source", " "), ("after", "morning")],
    }
    parts = {"drawing": Drawing(b"", b"", "", ""), "summary": ([], []), "steps": [], "notes": []}
    section = rendered("learning_curves.html", title="", continuations=found, **parts)
    assert "<h3>Zjutraj &lt;b&gt; …</h3>" in section and "dež &amp; sonce" in section and "y ⏎ z" in section and "<i>nothing</i>" in section


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no prompts\.jsonl with texts/; expected the output of eval\.generate"):
        read_continuations(tmp_path)
