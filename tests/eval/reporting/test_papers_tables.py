"""The GaMS and SAVA papers' tables from folders of results: their columns and rows, their own intervals, the rows that they copy."""

import csv
import json
import random
import re

import pytest

from conversion.measuring.intervals import t_interval
from eval.protocols import scoring
from eval.report import main
from eval.reporting.exports import latex
from eval.reporting.runs import read_report
from eval.reporting.sava_tables import benchmark_table
from eval.reporting.scores import lines
from eval.running.results import write_lines
from eval.running.task_runs import item_scores
from eval.scoring.statistics import f1_bootstrap
from tests.eval.made_results import make_result, make_results


def _answered(root, task, answers, scorer, choices):
    """A model's folder with these answers to a task: (gold, predicted or None) of each item."""
    folder = make_result(root, "GaMS", None, None, skill=0.5, items=len(answers), tasks=[task])
    path = folder / f"samples/{task}.jsonl"
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    for sample, (gold, predicted) in zip(samples, answers):
        document = {**sample["doc"], "choices": choices, "label": gold}
        scores = scorer(document, ["?" if predicted is None else choices[predicted]])
        sample |= {"doc": document, "metrics": list(scores), **scores}
    write_lines(path, samples)
    write_lines(folder / f"items/{task}.jsonl", [item_scores(samples)])
    result = json.loads((folder / "result.json").read_text())
    valid = [sample["acc_valid"] for sample in samples if sample["acc_valid"] == sample["acc_valid"]]
    metrics = {"acc": sum(sample["acc"] for sample in samples) / len(samples), "acc_valid": sum(valid) / len(valid)}
    metrics |= {
        "invalid": 1 - len(valid) / len(samples),
        **{name: 0.5 for name in samples[0]["metrics"] if name.startswith(("f1_", "macro"))},
    }
    told = {"low": 0.3, "high": 0.5, "n": len(valid), "units": len(valid), "stderr": None}
    result["tasks"][task]["metrics"] = {name: {"value": value, **told} for name, value in metrics.items()}
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def test_the_gams_papers_tables(tmp_path):
    """Rows that the paper prints: RTE of GaMS with 12 right of 28 valid and 29 asked, BoolQ of FOCUS with 20 right of 30."""

    def written(folder, **more):
        return latex(report := read_report([folder]), lines(report), **more)

    rte = _answered(tmp_path / "rte", "sl_rte_gen", [(0, 0)] * 12 + [(0, 1)] * 16 + [(1, None)], scoring.holds, ["Drži.", "Ne drži."])
    assert "GaMS & 0.43 [0.23, 0.62] & 3.45\\,\\% \\\\\n" in written(rte)
    boolq = _answered(tmp_path / "boolq", "sl_boolq_gen", [(0, 0)] * 20 + [(1, 0)] * 10, scoring.yes_no, ["Da.", "Ne."])
    assert "GaMS & 0.67 [0.49, 0.85] & 0\\,\\% \\\\\n" in written(boolq)
    # The paper's Table 6 has 998 pairs, of which half are valid; F1 of classes has the quantiles of resamples.
    labels = ["Sosledje.", "Nevtralnost.", "Nasprotovanje."]
    rng = random.Random(1)
    answers = [(rng.randrange(3), rng.choice([None, None, None, 0, 1, 2])) for _ in range(998)]
    table = written(_answered(tmp_path / "nli", "sl_si_nli_gen", answers, scoring.inference, labels))
    valid = [answer for answer in answers if answer[1] is not None]
    cells = []
    for number in range(3):
        found = f1_bootstrap(*zip(*valid), num_classes=3, of_class=number)
        cells.append(f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]")
    accuracy = t_interval([float(gold == said) for gold, said in valid])
    invalid = f"{100 * (1 - len(valid) / 998):.2f}\\,\\%"
    row = [f"{accuracy.value:.2f} [{accuracy.low:.2f}, {accuracy.high:.2f}]", *cells, invalid]
    assert f"GaMS & {' & '.join(row)} \\\\\n" in table
    assert "Model & Accuracy & Entailment F$_1$ & Neutral F$_1$ & Contradiction F$_1$ & Inv. pred. \\\\\n" in table
    assert "Student's t of accuracy and exact match, quantiles of 1,000 resamples of F$_1$" in table


def test_rows_that_the_gams_paper_copies(tmp_path):
    """GaMS, Tables 4 to 7: "The results for CroSloEngual BERT are copied from SloBench", "for GPT and T5 models [...] from Žagar et al."."""
    tasks = ["sl_boolq_gen", "sl_cb_gen", "sl_copa_gen", "sl_multirc_gen", "sl_rte_gen", "sl_wsc_gen", "sl_si_nli_gen", "sl_senta_0shot"]
    make_results(tmp_path / "results", steps=(0,), methods=("focus",), tasks=[*tasks, "sl_senta_3shot"], items=20)
    words = ["--results", str(tmp_path / "results"), "--copied-rows", "--items", "0"]
    assert main([*words, "--output", str(tmp_path / "report")]) == 0
    _, four, five, six, seven, *_ = (tmp_path / "report/tables.tex").read_text(encoding="utf-8").split(r"\begin{table}")[1:]
    assert r"CroSloEngual BERT & 0.73 & / & 0.79 & 0.74 & / & 0.57 & / \\" in four and "copied from SloBench, of the test set" in four
    assert r"CroSloEngual BERT & 0.09 & 0.52 & / & 0.66 & / & 0.61 & / \\" in five
    rows = [line.partition(" & ")[0] for line in six.split(r"\midrule")[2].strip().splitlines()][:3]
    assert rows == ["GPT-3.5-Turbo", "SloBERTa", "CroSloEngual BERT"]
    assert r"GPT-3.5-Turbo & 0.86 & 0.85 & 0.82 & 0.90 & / \\" in six
    assert r"SloT5-large & 41.01 &  \\" in seven and r"Model & $k = 0$ & $k = 3$ \\" in seven
    for table in (four, five, six, seven):
        body = table[table.index(r"\midrule") : table.index(r"\bottomrule")]
        assert len({line.count("&") for line in body.splitlines() if "&" in line}) == 1
    assert main([*words[:2], "--items", "0", "--output", str(tmp_path / "plain")]) == 0
    assert "CroSloEngual" not in (tmp_path / "plain/tables.tex").read_text(encoding="utf-8")


def test_savas_tables_have_a_block_for_each_step(tmp_path):
    """SAVA, Tables 3 to 6: "200 Training Steps", "2000 Training Steps"; accuracies with standard errors, COMET beside ROUGE-L."""
    tasks = [f"itabench_{name}_it" for name in ("boolq", "hellaswag", "piqa")]
    make_results(
        tmp_path / "results", steps=(200, 1000, 2000), methods=("sava", "fvt"), tasks=[*tasks, "flores_en_it", "flores_it_en", "squad_it"]
    )
    for path in (tmp_path / "results").glob("*/result.json"):
        result = json.loads(path.read_text())
        for task, summary in result["tasks"].items():
            value = summary["metrics"]["acc"]["value"]
            entry = {"value": 100 * value, "low": 0.0, "high": 100.0, "n": 120, "units": 120, "stderr": None}
            if task.startswith("flores"):
                summary["metrics"] = {"chrf_sentence": entry, "comet": {**entry, "value": 80 + 10 * value}}
            elif task == "squad_it":
                summary["metrics"] = {"rougeL_first": entry}
            else:
                summary["metrics"]["acc"]["stderr"] = 0.0049
        path.write_text(json.dumps(result))
    words = ["--results", str(tmp_path / "results"), "--items", "0", "--steps", "200", "2000"]
    assert main([*words, "--output", str(tmp_path / "report")]) == 0
    tables = (tmp_path / "report/tables.tex").read_text(encoding="utf-8").split(r"\begin{table}")[1:]
    (benchmarks,) = (table for table in tables if "Italian translated benchmarks" in table)
    (generated,) = (table for table in tables if "by COMET" in table)
    found = json.loads((tmp_path / "results/fvt-200/result.json").read_text())["tasks"]
    scores = [100 * found[task]["metrics"]["acc"]["value"] for task in (tasks[1], tasks[2], tasks[0])]
    assert r"Model & Hellaswag & PIQA & BOOLQ & AVG \\" in benchmarks
    early = benchmarks.split("Training Steps")[1]
    (row,) = (line for line in early.splitlines() if line.startswith("fvt"))
    numbers = [float(number) for number in re.findall(r"(\d+\.\d\d)\}?_\{\\pm 0\.49\}", row)]
    assert numbers == pytest.approx(scores, abs=0.005) and f"{sum(scores) / 3:.2f}" in row
    assert [line for line in benchmarks.splitlines() if "multicolumn" in line] == [
        r"\multicolumn{5}{c}{200 Training Steps} \\",
        r"\multicolumn{5}{c}{2000 Training Steps} \\",
    ]
    assert benchmarks.index("source & ") < benchmarks.index("200 Training Steps"), "the source model stands first"
    assert r"Model & EN-IT & IT-EN & RL \\" in generated and generated.count("Training Steps") == 2
    last = json.loads((tmp_path / "results/sava-2000/result.json").read_text())["tasks"]
    cells = [
        last[task]["metrics"][name]["value"]
        for task, name in (("flores_en_it", "comet"), ("flores_it_en", "comet"), ("squad_it", "rougeL_first"))
    ]
    (row,) = (line for line in generated.split("2000 Training Steps")[1].splitlines() if line.startswith("sava"))
    assert [float(number) for number in re.findall(r"\d+\.\d\d", row)] == pytest.approx(cells, abs=0.005)
    with pytest.raises(ValueError, match=r"^no run was evaluated at step 300; the results have 200, 1000, 2000$"):
        main([*words[:4], "--steps", "200", "300", "--output", str(tmp_path / "none")])
    assert not (tmp_path / "none").exists()


def test_savas_best_and_second_are_of_adapted_models(tmp_path):
    """SAVA, Tables 3 to 6: bold is the best of a block and underlined the second, LAPT and the base model left out."""
    for method, value in {None: 0.9, "sava": 0.7, "mean": 0.6, "random": 0.5, "lapt": 0.8}.items():
        facts = {"method": None if method == "lapt" else method, "step": None if method is None else 300}
        folder = make_result(
            tmp_path / "results", method or "source", method, 300, skill=0.5, tasks=["itabench_piqa_it"], items=20, facts=facts
        )
        result = json.loads((folder / "result.json").read_text())
        result["tasks"]["itabench_piqa_it"]["metrics"]["acc"] = {
            "value": value,
            "low": 0.1,
            "high": 0.9,
            "n": 20,
            "units": 20,
            "stderr": 0.01,
        }
        (folder / "result.json").write_text(json.dumps(result))
    table = benchmark_table(read_report([tmp_path / "results"], baseline="source"), "it", steps=[300])
    assert [line for line in table.splitlines() if "pm" in line] == [
        r"source & $90.00_{\pm 1.00}$ \\", r"lapt & $80.00_{\pm 1.00}$ \\", r"mean & $\underline{60.00}_{\pm 1.00}$ \\",
        r"random & $50.00_{\pm 1.00}$ \\", r"sava & $\mathbf{70.00}_{\pm 1.00}$ \\",
    ]  # fmt: skip


def test_rouge_and_bleurt_of_each_language_by_way_to_adapt(tmp_path):
    """Low-resource paper, Table 12: "Mean sum performance in ROUGE-L and BLEURT over five runs", a column of each for every language."""
    values = {"source": (24.0, 3.0), "lapt": (24.5, 4.0), "align": (26.0, 8.0)}
    for way, scores in values.items():
        for language in ("my", "si"):
            folder = make_result(tmp_path / "scored" / way, f"{way}_{language}", None, None, skill=0.5, tasks=[f"sum_{language}"], items=20)
            result = json.loads((folder / "result.json").read_text()) | {"texts": {}}
            told = {"low": 0.0, "high": 100.0, "n": 20, "units": 20, "stderr": None}
            summary = result["tasks"][f"sum_{language}"]
            summary["metrics"] = {name: {"value": value, **told} for name, value in zip(("rougeL", "bleurt"), scores)}
            summary["metrics"]["rougeL_sd"] = {"value": 0.31, **told}  # between the five runs
            summary |= {"higher_is_better": {"rougeL": True, "bleurt": True}, "bleurt": {"name": "b", "digest": "xxh3:1", "package": "p"}}
            (folder / "result.json").write_text(json.dumps(result))
    grid = [f"{way}={tmp_path / 'scored' / way}" for way in values]
    assert main(["--results", str(tmp_path / "scored"), "--grid", *grid, "--items", "0", "--output", str(tmp_path / "report")]) == 0
    with open(tmp_path / "report/grid.csv", encoding="utf-8", newline="") as stream:
        found = {(row["row"], row["source"], row["metric"]): float(row["mean"]) for row in csv.DictReader(stream)}
    assert found == {
        (way, f"sum_{language}", metric): value
        for way, scores in values.items()
        for language in ("my", "si")
        for metric, value in zip(("rougeL", "bleurt"), scores)
    }
    table = (tmp_path / "report/grid.tex").read_text(encoding="utf-8")
    assert r"align & \cellcolor{blue!8}\textbf{26.0}$_{0.3}$ & \cellcolor{blue!50}\textbf{8.000}" in table and "over source" in table
    assert "1 for each figure. Of one run: over its sampled answers." in table, "the paper has the deviation small beside the mean"
