"""OFA's tables of encoders across languages: head, tail and all, by family and script, languages that gain, before and after, over training."""

from __future__ import annotations

import csv
import json
import math
import random
import re
from pathlib import Path
from statistics import fmean, stdev

import pytest

from eval import figures, report
from eval.published.by_language import canonical, language
from eval.reporting.across_languages import (
    LEAST_LANGUAGES,
    Mean,
    before_and_after_rows,
    best_checkpoint_rows,
    gains,
    group_rows,
    mean_over,
    summary_rows,
)
from eval.reporting.across_languages import family as family_of
from eval.reporting.runs import read_report
from eval.running.results import RESULT_FORMAT, write_lines, write_result
from recipes.runs.run_dir import METRICS_NAME

HEAD = ("slv_Latn", "deu_Latn", "rus_Cyrl", "hin_Deva", "zho_Hani", "ind_Latn", "swe_Latn")
TAIL = ("ceb_Latn", "hat_Latn", "sna_Latn", "tpi_Latn", "bak_Cyrl", "quc_Latn")
SEEDS = (1, 2, 3)


def values(name: str, task: str, code: str, skill: float) -> list[float]:
    draw = random.Random(f"{task} {code}")
    base = draw.uniform(0.1, 0.3)
    seeds = SEEDS if task in ("ner", "pos", "taxi1500") else (1,)
    return [base + skill + random.Random(f"{name} {task} {code} {seed}").uniform(0, 0.02) for seed in seeds]


def make(root: Path, name: str, skill: float, *, method: str | None = None, step: int | None = None, drop: str = "") -> Path:
    """Results of one model on the five tasks, as eval.retrieval and eval.finetune write them."""
    folder, headlines = root / name, {"bible": "acc", "tatoeba": "acc", "taxi1500": "macro_f1", "ner": "f1", "pos": "f1"}
    tasks = {}
    for task, metric in headlines.items():
        for code in (*HEAD, *TAIL):
            if code == drop:
                continue
            found = values(name, task, code, skill)
            entry = {"value": fmean(found), "low": fmean(found) - 0.05, "high": fmean(found) + 0.05, "n": 40, "units": 40, "stderr": None}
            tasks[f"{task}_{code}"] = {
                "metrics": {metric: entry if len(found) == 1 else {**entry, "by_seed": found}},
                "num_items": 40, "num_groups": 40, "num_fewshot": 0, "higher_is_better": {metric: True}, "digest": f"{task} {code}",
                "prompts_digest": f"{task} {code}", "majority": None, "prompt_cut": None, "answer_cut": None, "protocol": {"layer": 8},
            }  # fmt: skip
            items = {"ids": [*range(40)], "groups": [], "prompts": [], "scores": {}}
            for kind, lines in (("items", [items]), ("samples", [{"doc_id": number} for number in items["ids"]])):
                (folder / kind).mkdir(parents=True, exist_ok=True)
                write_lines(folder / kind / f"{task}_{code}.jsonl", lines)
    settings = {"start_token": "auto", "context_length": None, "dtype": "float32", "backend": "hf"}
    result = {
        "format": RESULT_FORMAT, "key": name, "name": name, "facts": {} if method is None else {"method": method, "seed": 1, "step": step},
        "model": {"digest": name, "written_by": "conversion.nemo_to_hf", "model_type": "xlm-roberta", "vocab_size": 100},
        "settings": settings, "versions": {"lm_eval": "0.4.13", "transformers": "4.57.6", "torch": "2.13.0", "tokenizers": "0.22"}, "texts": {}, "tasks": tasks,
    }  # fmt: skip
    write_result(folder, result)
    return folder


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results")
    make(root, "random", 0.0)
    for step, skill in ((0, 0.05), (10_000, 0.15), (20_000, 0.3)):
        make(root, f"ofa-{step}", skill, method="ofa", step=step)
    return root


def percent(name: str, task: str, codes: tuple[str, ...], skill: float) -> float:
    return 100 * fmean(fmean(values(name, task, code, skill)) for code in codes)


def test_languages_of_the_table() -> None:
    assert (language("slv").family, language("sl_Latn").code, language("slv").is_head) == ("Indo-European", "slv", True)
    assert (language("uzb").script, language("uzb").is_head, language("uzb_Cyrl").is_head) == ("Latn", True, False)
    assert language("eus").family == "Basque" and language("zho_Hani").family == "Sino-Tibetan" and language("quc").family == "Mayan"
    unknown = language("xqx")
    assert (unknown.family, unknown.script, unknown.is_head) == ("unknown", "unknown", False) and language("zh-min-nan").family == "unknown"
    assert [canonical(code) for code in ("sl", "slv", "sr-Latn", "zh-min-nan", "xqx")] == ["slv", "slv", "srp_Latn", "zh-min-nan", "xqx"]


def test_head_tail_and_all(results: Path) -> None:
    """Table 2, by plain means."""
    header, rows = summary_rows(read_report([results]))
    assert header[1:4] == ["SR-B, tail (6)", "SR-B, head (7)", "SR-B, all (13)"] and header[-1] == "POS, all (13)"
    cells = {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}
    assert list(cells) == ["random", "ofa-20000"], "the last checkpoint of each run"
    for name, skill in (("random", 0.0), ("ofa-20000", 0.3)):
        for title, task in (("SR-B", "bible"), ("Taxi1500", "taxi1500"), ("POS", "pos")):
            for group, codes in (("tail (6)", TAIL), ("head (7)", HEAD), ("all (13)", (*HEAD, *TAIL))):
                assert cells[name][f"{title}, {group}"].startswith(f"{percent(name, task, codes, skill):.1f}")
    assert "±" in cells["random"]["NER, all (13)"] and "±" not in cells["random"]["SR-B, all (13)"]


def test_a_mean_has_both_doubts() -> None:
    """Student's t over languages, and the standard deviation of the seeds' means."""
    scores = {language("slv"): [10.0, 14.0], language("deu"): [20.0, 22.0], language("rus"): [33.0, 33.0]}
    mean = mean_over(scores)
    means = [12.0, 21.0, 33.0]
    half = 4.302652729911275 * stdev(means) / math.sqrt(3)  # t of 2 degrees of freedom
    assert mean.estimate.value == pytest.approx(22) and mean.estimate.high == pytest.approx(22 + half)
    assert mean.deviation == pytest.approx(stdev([21.0, 23.0])) and mean.estimate.low == pytest.approx(max(0.0, 22 - half))
    assert isinstance(mean, Mean) and mean.text().startswith("22.0 ± 1.4 [")


def test_languages_that_gain(results: Path, tmp_path: Path) -> None:
    """Table 3: counted on the languages that both have, tested over them."""
    found = {gain.task: gain for gain in gains(read_report([results]))}
    assert list(found) == ["bible", "tatoeba", "taxi1500", "ner", "pos"]
    assert found["ner"].difference.wins == 13 and found["ner"].text() == f"13/13 ({found['ner'].difference.value:+.1f} ▲)"
    assert found["ner"].difference.value == pytest.approx(
        percent("ofa-20000", "ner", (*HEAD, *TAIL), 0.3) - percent("random", "ner", (*HEAD, *TAIL), 0)
    )
    make(tmp_path, "random", 0.0)
    make(tmp_path, "same", 0.001, drop="ceb_Latn")
    found = {gain.task: gain for gain in gains(read_report([tmp_path], baseline="random"))}
    assert found["bible"].difference.n == 12 and 0 < found["bible"].difference.wins < 12 and "▲" not in found["bible"].text()


def test_families_and_before_and_after(results: Path) -> None:
    """Tables 6 and 5."""
    read = read_report([results])
    header, rows = group_rows(read, "bible", family_of)
    indo_european = tuple(code for code in (*HEAD, *TAIL) if language(code).family == "Indo-European")
    assert len(indo_european) >= LEAST_LANGUAGES and header == [
        "model",
        f"Indo-European ({len(indo_european)})",
        f"others ({13 - len(indo_european)})",
        "all (13)",
    ]
    assert rows[0][1].startswith(f"{percent('random', 'bible', indo_european, 0):.1f}")
    header, rows = before_and_after_rows(read)
    before, after = (percent(f"ofa-{step}", "ner", (*HEAD, *TAIL), skill) for step, skill in ((0, 0.05), (20_000, 0.3)))
    assert len(rows) == 1 and rows[0][:2] == ["ofa, seed 1", "20,000"]
    assert rows[0][header.index("NER")] == f"{before:.1f} → {after:.1f} ({after - before:+.1f})"


def test_the_best_checkpoint(results: Path) -> None:
    """Table 4 counts the hours to the checkpoint whose mean over the tasks is highest."""
    header, rows = best_checkpoint_rows(read_report([results]))
    mean = fmean(percent("ofa-20000", task, (*HEAD, *TAIL), 0.3) for task in ("bible", "tatoeba", "taxi1500", "ner", "pos"))
    assert header[:4] == ["run", "best step", "of checkpoints", "mean of tasks"]
    assert [row[:4] for row in rows] == [["ofa, seed 1", "20,000", "2", f"{mean:.1f}"]]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--run", "full=RUN"], "there are no results of a run called full; there are random; ofa, seed 1"),
        (["--run", "random=RUN"],
         "the results of random have no trained checkpoint with all tasks (bible, tatoeba, taxi1500, ner, pos), so none is the best; evaluate"
         " one, or leave out its --run"),
        (["--run", "ofa, seed 1=RUN"], "RUN/metrics.jsonl ends at step 2,000, before step 20,000; give the folder of the run that the checkpoint belongs to"),
        (["--run", "ofa, seed 1=RUN", "ofa, seed 1=OTHER"],
         "two folders are called ofa, seed 1; give one of them another name with --run NAME=FOLDER"),
        (["--gpu", "abacus"], "there is no GPU abacus; did you mean "),
        (["--kg-co2-per-kwh", "0"], "--kg-co2-per-kwh is 0; expected a number above 0"),
    ],
)  # fmt: skip
def test_runs_that_do_not_fit_the_results(results: Path, tmp_path: Path, words: list[str], sentence: str) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / METRICS_NAME).write_text(json.dumps({"step": 2000, "loss": 5.0, "seconds_per_step": 1.0}) + "\n")
    words = [word.replace("RUN", str(run)).replace("OTHER", str(tmp_path)) for word in words]
    with pytest.raises(ValueError, match=f"^{re.escape(sentence.replace('RUN', str(run)))}"):
        report.main(["--results", str(results), *words, "--output", str(tmp_path / "report")])
    assert not (tmp_path / "report").exists()


def test_the_baseline_is_named_where_none_is_plain(tmp_path: Path) -> None:
    """Table 3 counts languages that gain over random rows, which stand behind OFA's by name; both were trained."""
    for name in ("ofa", "random"):
        make(tmp_path / "results", name, 0.3 * (name == "ofa"), method=name, step=10_000)
    words = ["--results", str(tmp_path / "results"), "--items", "0", "--output", str(tmp_path / "report")]
    sentence = "the default baseline is the one model that was not trained here, but there are 0; name it by --baseline: ofa; random"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        report.main(words)
    assert not (tmp_path / "report").exists() and report.main([*words, "--baseline", "random"]) == 0
    told = (tmp_path / "report" / "across_languages.md").read_text().partition("than with random")[2].partition("##")[0]
    assert "| ofa " in told and "13/13 (+30." in told


def test_the_report_has_the_tables(results: Path, tmp_path: Path) -> None:
    assert report.main(["--results", str(results), "--output", str(tmp_path / "report")]) == 0
    told = (tmp_path / "report" / "across_languages.md").read_text()
    assert [line for line in told.splitlines() if line.startswith("## ")][:4] == [
        "## Tail, head and all languages",
        "## Languages that score higher than with random (mean difference; ▲▼ sure over languages and seeds, over this table)",
        "## Before and after continued pretraining, all languages",
        "## The best checkpoint by the mean of the tasks",
    ]
    assert "## Across languages" in (tmp_path / "report" / "report.md").read_text()
    assert "<h2>Across languages</h2>" in (tmp_path / "report" / "report.html").read_text()
    latex = (tmp_path / "report" / "across_languages.tex").read_text()
    assert latex.count(r"\begin{table}") == latex.count(r"\end{table}") == told.count("## ") and "±" not in latex and "→" not in latex
    assert "slv" not in (tmp_path / "report" / "tables.tex").read_text(), "no table with a column for each language"
    with open(tmp_path / "report" / "across_languages.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 4 * 13 * (2 * 1 + 3 * 3)
    one = next(row for row in rows if (row["task"], row["model"], row["language"]) == ("ner", "ofa-0", "quc"))
    assert (one["name"], one["family"], one["script"], one["group"], one["step"]) == ("K'iche'", "Mayan", "Latn", "tail", "0")


def test_unlike_protocols_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make(tmp_path, name, 0.1)
    path = tmp_path / "two" / "result.json"
    result = json.loads(path.read_text())
    result["tasks"]["bible_slv_Latn"] |= {"protocol": {"layer": 7}, "prompts_digest": "other"}
    path.write_text(json.dumps(result))
    with pytest.raises(
        ValueError, match=re.escape("asked bible_slv_Latn differently: with layer 7 and 8; evaluate all models with the same settings")
    ):
        read_report([tmp_path])


def test_loss_and_tasks_over_training(results: Path, tmp_path: Path) -> None:
    """Figure 3: the losses of runs, then the mean of each task over their checkpoints."""
    run = tmp_path / "ofa"
    run.mkdir()
    lines = [{"step": step, "tokens": 10 * step, "loss": 5 - step / 10_000} for step in (1, 10_000, 20_000)]
    (run / METRICS_NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["suite", "--run", f"ofa={run}", "--results", str(results), "--tasks", "bible_*", "tatoeba_*", "taxi1500_*", "ner_*", "pos_*"]
    assert figures.main([*words, "--output", str(tmp_path / "figure")]) == 0
    with open(tmp_path / "figure" / "figure.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(dict.fromkeys(row["panel"] for row in rows)) == [
        "Training loss", *(f"{task}_* (13 tasks)" for task in ("bible", "tatoeba", "taxi1500", "ner", "pos"))
    ]  # fmt: skip
    points = [float(row["y"]) for row in rows if row["panel"].startswith("ner") and row["line"].startswith("ofa")]
    assert points == pytest.approx(
        [percent(f"ofa-{step}", "ner", (*HEAD, *TAIL), skill) for step, skill in ((0, 0.05), (10_000, 0.15), (20_000, 0.3))]
    )


def test_five_tasks_side_by_side(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figure 1: of each model the mean of each task over all languages."""
    tasks = ("bible", "tatoeba", "taxi1500", "ner", "pos")
    words = ["profile", "--results", str(results), "--tasks", *(f"{task}_*" for task in tasks)]
    assert figures.main([*words, "--output", str(tmp_path / "figure")]) == 0
    with open(tmp_path / "figure" / "figure.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["line"], float(row["x"])) for row in rows] == [(name, x) for name in ("random", "ofa, seed 1") for x in range(5)]
    expected = [percent(name, task, (*HEAD, *TAIL), skill) for name, skill in (("random", 0.0), ("ofa-20000", 0.3)) for task in tasks]
    assert [float(row["y"]) for row in rows] == pytest.approx(expected)
    told = capsys.readouterr().out.splitlines()
    assert [cell.strip() for cell in told[0].strip("|").split("|")] == [
        "Means over the tasks of each suite",
        *(f"{task}_* (13)" for task in tasks),
    ]
    assert [cell.strip() for cell in told[3].strip("|").split("|")][1] == f"{expected[5]:.3f}"
    with pytest.raises(ValueError, match=r"^no task matches flores_\*; the results have "):
        figures.main([*words, "flores_*", "--output", str(tmp_path / "other")])
