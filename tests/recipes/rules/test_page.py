"""The page of a recipe shows every key, where its value comes from and what it means."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from recipes.plan import main
from recipes.rules.compose import compose_recipe
from recipes.rules.page import recipe_page


def _rows(page: str) -> dict[str, list[str]]:
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', page)
    return {key: [html.unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", cells)] for key, cells in rows}


def test_every_key_has_value_source_and_explanation() -> None:
    overrides = ["schedule.warmup_steps=7", "procedure=lora", "lora.rank=4", "data.validation={sl: held_out}"]
    rows = _rows(recipe_page(compose_recipe("low_resource/llama2", overrides), chosen="low_resource/llama2", overrides=overrides))
    assert {key for key, (_, _, meaning) in rows.items() if not meaning} == set()
    assert rows["schedule.warmup_steps"][:2] == ["7", "command line"]
    assert rows["lora.rank"][:2] == ["4", "command line"]
    assert rows["data.validation"][:2] == ["sl: held_out", "command line"]
    assert rows["lora.dropout"][0] == "0.05" and rows["lora.dropout"][1].startswith("procedure/lora: Low-rank adapters")
    assert rows["parallel.check_memory"][:2] == ["True", "default"]
    assert rows["freeze[0].trained"][1].startswith("procedure/lora: ")
    assert {"seed", "model.base", "run.hang_factor", "data.sequence_length"} <= rows.keys()


def test_a_recipe_of_ones_own_has_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "# @package _global_\n# As the colleagues do.\ndefaults:\n  - /model: opt_1b\n  - /data: gams\n  - /schedule: gams\n  - /run: gams\n  - _self_\n"
        "seed: 7 # drawn from a hat\n"
    )
    page = tmp_path / "mine.html"
    assert main(["--recipe", str(mine), "--page", str(page), "parallel.gpu=a100-80gb", "parallel.devices_per_node=8"]) == 0
    rows = _rows(page.read_text(encoding="utf-8"))
    assert rows["seed"] == ["7", "mine.yaml: drawn from a hat", "seed of the data order, dropout and sampling"]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["mine.html", "mine.yaml"]


def test_the_page_draws_the_schedule(tmp_path: Path) -> None:
    page, overrides = tmp_path / "page.html", ["schedule.epochs=null", "schedule.max_steps=3000", "schedule.embedding_learning_rate=2e-3"]
    ramp = [
        f"+schedule.ramp_up.{key}={value}"
        for key, value in (("start_batch_size", 512), ("batch_size_increment", 256), ("samples", 500_000))
    ]
    assert main(["--recipe", "gams/focus", "--page", str(page), *overrides, *ramp, "schedule.published_steps=null"]) == 0
    text = html.unescape(page.read_text(encoding="utf-8"))
    assert "The learning rate: 0 -> 0.0002 (warmup, 2,000 steps) -> 2e-05 (cosine, 500 steps) -> 2e-05 (constant, 500 steps)." in text
    assert "Samples of a step: 512 for 489 steps, then 768 for 326 steps, then 1,024 for 2,185 steps." in text
    assert text.count("data:image/svg+xml;base64,") == 2, "for light and for dark ground"
