"""Speed of generation in the report, and what of it does not compare."""

import csv
import json
import re

import pytest

from eval.report import main
from tests.eval.made_results import make_efficiency, make_results


@pytest.fixture
def results(tmp_path):
    return make_results(tmp_path / "results", steps=(0, 100), items=20)


def test_speed_stands_beside_accuracy_and_fertility(results, tmp_path):
    folder = make_efficiency(tmp_path / "speed", {"source": 600.0, "focus-100": 1500.0, "not evaluated": 5.0})
    arguments = ["--results", str(results), "--efficiency", str(folder), "--output", str(tmp_path / "report")]
    assert main(arguments) == 0
    markdown = (tmp_path / "report/report.md").read_text()
    (table,) = (part for part in markdown.split("\n\n") if "| speedup " in part)
    header, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
    assert header == ["", "source", "focus-100", "mean-100"]
    names, *columns = (list(column) for column in zip(*rows, strict=True))
    assert names[:4] == [
        "accuracy, Slovene (3 tasks)",
        "accuracy, English (1 task)",
        "tokens per word, Slovene",
        "tokens per word, English",
    ]
    assert names[4:] == ["prompt tokens", "new tokens", "tokens/s", "characters/s", "bytes/s", "speedup"]
    source, focus, mean = (column[4:] for column in columns)
    assert source == ["40.0", "0.0 %", "200 [190, 210]", "540 [513, 567]", "600 [570, 630]", "1.00 [0.95, 1.05]"]
    assert focus[1] == "62.5 %" and focus[-1] == "2.50 [2.38, 2.62]"
    assert mean == [*"––––––"], "it was not measured"
    accuracy = [  # of the results themselves
        json.loads((results / "focus-100/result.json").read_text())["tasks"][task]["metrics"]["acc"]["value"]
        for task in ("sl_boolq_gen", "sl_rte_gen", "completion_sl", "completion_en")
    ]
    assert columns[1][:2] == [f"{100 * sum(accuracy[:3]) / 3:.1f}", f"{100 * accuracy[3]:.1f}"]
    page = (tmp_path / "report/report.html").read_text()
    assert "<h2>Speed of generation beside accuracy and tokenizer</h2>" in page
    assert "Texts: 100 prompts, greedy, exactly 128 tokens, 5 repeats after a warm-up; hf with float32 weights, 8 at once, on A100." in page
    with open(tmp_path / "report/scores.csv", encoding="utf-8") as stream:
        made = [row for row in csv.DictReader(stream) if row["source"] == "generation"]
    assert {row["checkpoint"] for row in made} == {"source", "focus-100"}
    (speedup,) = (row for row in made if row["metric"] == "speedup" and row["checkpoint"] == "focus-100")
    assert [float(speedup[key]) for key in ("value", "low", "high", "n")] == [2.5, 2.375, 2.625, 5]
    table = (tmp_path / "report/tables.tex").read_text()
    assert table.count(r"\begin{tabular}") == table.count(r"\end{tabular}") == 6, "texts, two tables of the GaMS paper, two suites and this"
    assert r"new tokens & 0.0 \% & 62.5 \% & -- \\" in table


def test_without_it_nothing_is_said(results, tmp_path):
    assert main(["--results", str(results), "--output", str(tmp_path / "report")]) == 0
    for path in (tmp_path / "report").iterdir():
        assert "speedup" not in path.read_text().lower() and "Speed of generation" not in path.read_text()


def test_what_does_not_compare_is_refused(results, tmp_path):
    first = make_efficiency(tmp_path / "first", {"source": 600.0, "focus-100": 1500.0})

    def fails(sentence, **changes):
        other = tmp_path / f"other {sentence}".replace("/", " ")[:60]
        make_efficiency(other, {"source": 610.0, "mean-100": 900.0}, **changes)
        told = f"{other}/efficiency.json and {first}/efficiency.json are not comparable: {sentence}; generate with the same settings for all models, preferably in one command"
        with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
            main(["--results", str(results), "--efficiency", str(first), str(other), "--output", str(tmp_path / "report")])

    settings = {"max_new_tokens": 128, "temperature": 0.8, "fixed_length": True}
    fails("backend vllm in the one and hf in the other", backend="vllm", settings=settings)
    fails("device H100 in the one and A100 in the other", machine={"device": "H100", "threads": None})
    fails("temperature 0.8 in the one and 0.0 in the other", settings=settings)
    fails("batch size 16 in the one and 8 in the other", **{"batch size": 16})
    fails("digest of prompts xxh3:q in the one and xxh3:p in the other", **{"digest of prompts": "xxh3:q"})
    fails("torch 2.12.0 in the one and 2.13.0 in the other", versions={"torch": "2.12.0"})

    def refused(sentence, folder):
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
            main(["--results", str(results), "--efficiency", str(first), str(folder), "--output", str(tmp_path / "report")])

    again = make_efficiency(tmp_path / "again", {"source": 600.0, "focus-100": 1490.0})
    refused(f"{again}/efficiency.json measures focus-100, which another --efficiency folder measures too; leave one of them out", again)
    refused(f"{results}/efficiency.json is not an output of eval.generate of format 3 (", results)
    first = make_efficiency(tmp_path / "others", {"a": 1.0, "b": 2.0})
    with pytest.raises(ValueError, match=r"others/efficiency.json has none of the evaluated models \(it has a, b\); generate with the"):
        main(["--results", str(results), "--efficiency", str(first), "--output", str(tmp_path / "report")])
    assert not (tmp_path / "report").exists()
    first = make_efficiency(tmp_path / "one", {"source": 600.0, "focus-100": 1500.0})
    second = make_efficiency(tmp_path / "two", {"source": 610.0, "mean-100": 900.0})
    assert main(["--results", str(results), "--efficiency", str(first), str(second), "--output", str(tmp_path / "report")]) == 0
