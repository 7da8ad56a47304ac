"""Curves from results: grouping, figures, refusals, and a page that needs nothing else."""

import csv
import json
import re
from pathlib import Path

import pytest

from eval.learning_curves import main, panels, read_comparison, start_and_end_table, step_table
from eval.running.results import RESULT_FORMAT
from tests.pages import Page
from tests.refusals import refused

TEXT = {"num_documents": 2, "text_bytes": 100, "unknown_bytes": 0}


@pytest.fixture
def results(tmp_path) -> Path:
    return tmp_path / "results"


def put(root: Path, name: str, sl: float, en: float, *, stage: str | None = "conversion.nemo_to_hf", **facts) -> Path:
    """A result as eval.harness writes it, with the given bits per byte."""
    overrides, unknown_bytes = facts.pop("overrides", {}), facts.pop("unknown_bytes", 0)
    content = {
        "format": RESULT_FORMAT,
        "name": name,
        "facts": facts,
        "model": {"written_by": stage},
        "settings": {
            "start_token": "auto",
            "context_length": None,
            "dtype": "float32",
            "window_tokens": 64,
            "start_token_used": {"id": 1, "token": "</s>", "reason": ""},
            **overrides,
        },
        "texts": {
            "sl": {**TEXT, "bits_per_byte": sl, "digest": "xxh3:5", "unknown_bytes": unknown_bytes},
            "en": {**TEXT, "bits_per_byte": en, "digest": facts.get("digest_en", "xxh3:6")},
        },
        "tasks": {},
        "versions": {"torch": "2", "transformers": "4"},
        "seconds": 0.1,
    }
    path = root / name / "result.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def put_two_methods(root: Path) -> None:
    for method, start in (("random", 8.0), ("focus", 4.0)):
        for step in (0, 10, 100):  # as text, 100 sorts before 20
            put(root, f"{method}-{step}", start - step / 50, start - 1, method=method, step=step, seed=1)


def test_tables_show_start_and_end_with_the_best_end_first(results):
    put_two_methods(results)
    put(results, "source", 5.5, 2.5, stage=None)
    comparison = read_comparison([results])
    header, rows = start_and_end_table(comparison)
    assert header == ["method", "Slovene, step 0", "Slovene, step 100", "English, step 0", "English, step 100"]
    assert rows == [
        ["focus", "4.000", "2.000", "3.000", "3.000"],
        ["random", "8.000", "6.000", "7.000", "7.000"],
        ["source (not adapted)", "–", "5.500", "–", "2.500"],
    ]
    assert step_table(comparison, "sl") == (
        ["step", "focus", "random"],
        [["0", "4.000", "8.000"], ["10", "3.800", "7.800"], ["100", "2.000", "6.000"]],
    )


def test_seeds_are_averaged_and_heads_are_not(results):
    for seed, value in ((1, 3.0), (2, 5.0)):
        put(results, f"a{seed}", value, 1.0, method="mean", head="tied", seed=seed, step=0)
    comparison = read_comparison([results])
    assert step_table(comparison, "sl")[1] == [["0", "4.000 [3.000, 5.000]"]]
    put(results, "b", 7.0, 1.0, method="mean", head="copied", seed=1, step=0)
    assert [curve.label for curve in read_comparison([results]).curves] == ["mean, copied head", "mean, tied head"]


def test_a_fresh_transfer_is_step_zero(results):
    put(results, "fresh", 3.0, 1.0, method="mean", seed=1, stage="conversion.transfer")
    assert read_comparison([results]).curves[0].steps("sl") == [0]
    path = put(results, "unknown", 3.0, 1.0, method="mean", seed=2)
    sentence = (
        f"{path} has the method mean but no step in its facts; only outputs of conversion.transfer and"
        " checkpoints of recipes.train have one: evaluate those"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        read_comparison([results])


def test_unknown_characters_are_told(results):
    put_two_methods(results)
    assert len(read_comparison([results]).notes) == 2
    put(results, "source", 5.5, 2.5, stage=None, unknown_bytes=4)
    assert read_comparison([results]).notes[2] == "Characters unknown to a tokenizer count as 8 bits per byte: 4.0% of Slovene for source."


def test_half_written_results_are_left_out(results):
    put_two_methods(results)
    put(results, ".focus-200.partial-1", 1.0, 1.0, method="focus", step=200, seed=1)
    assert len(read_comparison([results]).results) == 6


def test_refusals(results, tmp_path):
    source = put(results, "source", 1.0, 1.0)
    with refused(f"none of the 1 results has a method or belongs to a training run, so there is no curve to draw; see `facts` in {source}"):
        read_comparison([results])
    first = put(results, "a", 1.0, 1.0, method="mean", seed=1, step=0)
    second = put(results, "b", 1.0, 1.0, method="mean", seed=1, step=0)
    with pytest.raises(ValueError, match=rf"^{first} and {second} are both step 0 of the same run; leave one of them out$"):
        read_comparison([results])
    other = tmp_path / "other"
    put(other, "a", 1.0, 1.0, method="mean", seed=1, step=0)
    path = put(other, "b", 1.0, 1.0, method="mean", seed=1, step=1, overrides={"dtype": "bfloat16"})
    with pytest.raises(ValueError, match=rf"^{path} was made with dtype bfloat16, but {other}/a/result.json with float32; evaluate all"):
        read_comparison([other])
    texts = tmp_path / "texts"
    put(texts, "a", 1.0, 1.0, method="mean", seed=1, step=0)
    path = put(texts, "b", 1.0, 1.0, method="mean", seed=1, step=1, digest_en="xxh3:7")
    with pytest.raises(
        ValueError,
        match=rf"^{path} and {texts}/a/result.json were made from different files for en; evaluate all models on the same texts$",
    ):
        read_comparison([texts])
    broken = tmp_path / "broken" / "x" / "result.json"
    broken.parent.mkdir(parents=True)
    broken.write_text('{"format": 9}')
    with pytest.raises(
        ValueError, match=rf"^{broken} is not a result of eval.harness of format {RESULT_FORMAT} \(format 9\); evaluate the model again$"
    ):
        read_comparison([tmp_path / "broken"])


def test_lines_are_drawn_through_the_values(results):
    put_two_methods(results)
    put(results, "source", 5.5, 2.5, stage=None)
    put(results, "mean-1", 3.0, 2.0, method="mean", step=0, seed=1)
    put(results, "mean-2", 5.0, 2.0, method="mean", step=0, seed=2)
    target, english = panels(read_comparison([results]))
    assert (target.title, english.title) == ("Slovene (held out)", "English (held out)")
    assert {line.name: (line.is_level, [(p.x, p.y, p.low, p.high) for p in line.points]) for line in target.lines} == {
        "focus": (False, [(0, 4.0, None, None), (10, 3.8, None, None), (100, 2.0, None, None)]),
        "mean": (False, [(0, 4.0, 3.0, 5.0)]),
        "random": (False, [(0, 8.0, None, None), (10, 7.8, None, None), (100, 6.0, None, None)]),
        "source": (True, [(0, 5.5, None, None)]),
    }


def test_the_page_is_whole_and_needs_no_network(results, tmp_path, capsys):
    put_two_methods(results)
    output = tmp_path / "curves"
    assert main(["--results", str(results), "--output", str(output), "--title", "A & <b>"]) == 0
    names = {path.name for path in output.iterdir()}
    assert names == {f"learning_curves.{kind}" for kind in ("html", "png", "svg", "md", "csv")} | {"scion.json"}
    text = (output / "learning_curves.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert "script" not in page.tags
    assert "A &amp; &lt;b&gt;" in text
    assert len(page.links) == 2
    assert all(link.startswith("data:image/svg+xml;base64,") for link in page.links)
    assert not re.search(r"https?://", re.sub(r"base64,[A-Za-z0-9+/=]+", "", text))
    assert (output / "learning_curves.png").read_bytes().startswith(b"\x89PNG")
    with open(output / "learning_curves.csv", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 12
    assert {(row["method"], row["step"], row["bits_per_byte"]) for row in rows if row["text"] == "sl" and row["step"] == "100"} == {
        ("focus", "100", "2.0"),
        ("random", "100", "6.0"),
    }
    assert "| focus  |           4.000 |             2.000 |" in capsys.readouterr().out
    again = tmp_path / "again"
    main(["--results", str(results), "--output", str(again), "--title", "A & <b>"])
    assert (again / "learning_curves.html").read_bytes() == (output / "learning_curves.html").read_bytes()


def test_a_method_with_two_vocabularies_is_two_curves(results):
    for strategy, start in (("replace", 4.0), ("expand", 3.0)):
        for step in (0, 10):
            put(results, f"{strategy}-{step}", start - step / 50, 1.5, method="mean", step=step, vocabulary={"strategy": strategy})
    assert [curve.label for curve in read_comparison([results]).curves] == ["mean (expanded)", "mean"]
    for step in (0, 50):
        put(results, f"source-{step}", 3.5 - step / 50, 1.5, method="copy", step=step, vocabulary={"strategy": "keep"})
    assert [curve.label for curve in read_comparison([results]).curves] == ["own vocabulary", "mean (expanded)", "mean"]


def test_a_curve_is_the_runs_of_a_recipe_and_a_transfer_begins_all_that_follow_it(results):
    """Two seeds of one recipe are one curve; adapters, another rate, and training without a transfer are curves of their own."""
    runs = {"full_1": ("full", 1), "full_2": ("full", 2), "lora": ("lora", 1), "lapt": ("lapt", 1)}
    put(results, "focus-0", 5.0, 3.0, method="focus", seed=1, stage="conversion.transfer")
    for number, (output, (recipe, seed)) in enumerate(runs.items()):
        run = {"id": output, "output": output, "name": "recipe", "recipe": recipe, "seed": seed}
        transfer = {} if recipe == "lapt" else {"method": "focus", "seed": 1}
        put(results / output, "step_10", 4.0 - number, 2.0, step=10, run=run, **transfer)
    curves = {curve.label: curve for curve in read_comparison([results]).curves}
    assert {label: (curve.num_seeds, curve.values["sl"]) for label, curve in curves.items()} == {
        "focus, full_1": (2, {0: [5.0, 5.0], 10: [4.0, 3.0]}),
        "focus, lora": (1, {0: [5.0], 10: [2.0]}),
        "recipe": (1, {10: [1.0]}),
    }


def test_two_transfers_each_begin_the_training_that_goes_on_from_them(results):
    for number, method in enumerate(("mean", "focus")):
        put(results, f"{method}-0", 5.0 + number, 3.0, method=method, stage="conversion.transfer")
        run = {"id": method, "output": method, "name": "recipe", "recipe": "full", "seed": 1}
        put(results, f"{method}-10", 4.0 + number, 2.0, method=method, step=10, run=run)
    assert {curve.label: curve.values["sl"] for curve in read_comparison([results]).curves} == {
        "mean": {0: [5.0], 10: [4.0]},
        "focus": {0: [6.0], 10: [5.0]},
    }
