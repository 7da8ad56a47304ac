"""The report: what it compares, what it refuses, and pages that need nothing else."""

import csv
import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from conversion.measuring.significance import holm, mcnemar_p_value
from eval.report import main
from eval.reporting.charts import padded, tick_label, ticks
from eval.reporting.exports import latex, scores_rows
from eval.reporting.items_page import items_page
from eval.reporting.page import report_page
from eval.reporting.runs import read_report
from eval.reporting.scores import Line, lines, marked, paired_tests
from eval.reporting.sections import notes
from eval.reporting.suites import OTHERS, TEXTS, glance_rows, place
from eval.reporting.warnings import warnings
from eval.running.task_runs import TASKS_DIR
from tests.eval.made_results import TASKS, make_result, make_results
from tests.pages import Page
from tests.refusals import refused


def link_leads_somewhere(link: str, page: Page, folder: Path) -> bool:
    """To a file beside the page, to a place inside either, or to data that the link itself holds."""
    path, _, place = link.partition("#")
    if link.startswith("data:"):
        return True
    if path and not (folder / path).is_file():
        return False
    ids = Page((folder / path).read_text(encoding="utf-8")).ids if path else page.ids
    return not place or ids.count(place) == 1


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    return make_results(tmp_path_factory.mktemp("results"), steps=(0, 100, 200), items=60)


@pytest.fixture(scope="module")
def written(results, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("report") / "out"
    assert main(["--results", str(results), "--output", str(output), "--title", "A & <b>", "--tokens-per-step", "1000"]) == 0
    return output


def test_runs_are_ordered_and_the_source_model_is_the_baseline(results):
    report = read_report([results])
    assert [run.name for run in report.runs] == ["source", "focus, tied, seed 1", "mean, tied, seed 1"]
    assert [[model.step for model in run.checkpoints] for run in report.runs] == [[None], [0, 100, 200], [0, 100, 200]]
    assert [model.name for model in report.models] == ["source", "focus-200", "mean-200"]
    assert read_report([results], baseline="mean-200").models[0].name == "mean-200"
    assert read_report([results], baseline="focus, tied, seed 1").models[0].name == "focus-200"
    with pytest.raises(ValueError, match=r"^there is no run called ofa; there are focus, tied, seed 1; mean, tied, seed 1; source$"):
        read_report([results], baseline="ofa")


def test_scores_are_those_of_the_results(results):
    report = read_report([results])
    found = lines(report)
    assert [line.source for line in found if line.headline] == ["sl", "en", *TASKS]
    strict, valid = (next(line for line in found if (line.source, line.metric) == ("sl_rte_gen", name)) for name in ("acc", "acc_valid"))
    task = json.loads((results / "focus-200/result.json").read_text())["tasks"]["sl_rte_gen"]["metrics"]
    score = strict.score(report.models[1])
    assert score is not None
    assert (score.value, score.low, score.high, score.n) == (
        100 * task["acc"]["value"],
        100 * task["acc"]["low"],
        100 * task["acc"]["high"],
        60,
    )
    assert re.fullmatch(r"\d\d\.\d \[\d\d\.\d, \d\d\.\d\]", score.text())
    assert strict.no_skill(report.models[0]) == ("always Da.", 50.0)
    assert valid.score(report.models[1]).value >= score.value
    assert Line("sl", "bits_per_byte", True, True).score(report.models[0]).text().count(".") == 3


def test_paired_tests_are_computed_from_items(results):
    report = read_report([results])
    tests = paired_tests(report, lines(report))
    assert len(tests) == 2 * 6, "two models, six headline scores"
    found = next(test for test in tests if (test.line.source, test.model.name) == ("sl_boolq_gen", "focus-200"))
    ours, theirs = (
        json.loads((results / name / "items/sl_boolq_gen.jsonl").read_text())["scores"]["acc"] for name in ("focus-200", "source")
    )
    wins = sum(a > b for a, b in zip(ours, theirs))
    losses = sum(a < b for a, b in zip(ours, theirs))
    assert (found.difference.wins, found.difference.losses) == (wins, losses)
    assert found.difference.p_value == pytest.approx(mcnemar_p_value(wins, losses))
    assert found.difference.value == pytest.approx(100 * (wins - losses) / 60)
    assert found.adjusted_p_value >= found.difference.p_value
    assert found.better and found.sure
    bits = next(test for test in tests if (test.line.source, test.model.name) == ("sl", "focus-200"))
    assert bits.difference.value < 0 and bits.better, "fewer bits are better"
    english = next(test for test in tests if (test.line.source, test.model.name) == ("en", "focus-200"))
    assert english.difference.value > 0 and not english.better


def test_the_pages_hold_all_they_show(written):
    assert {path.name for path in written.iterdir()} == {"report.html", "items.html", "report.md", "scores.csv", "tables.tex", "scion.json"}
    for name in ("report.html", "items.html"):
        text = (written / name).read_text(encoding="utf-8")
        page = Page(text)
        assert page.open == []
        assert not {"script", "iframe", "link"} & page.tags
        assert not re.search(r"https?://|url\(", text)
        assert all(link_leads_somewhere(link, page, written) for link in page.links), page.links
        assert "A &amp; &lt;b&gt;" in text
        assert "<b>" not in text, "an answer's own markup"
    report = (written / "report.html").read_text(encoding="utf-8")
    for heading in (
        "Scores", "Against the baseline, item by item", "Validity of the answers", "Text: bits per byte, and what the tokenizer costs",
        "English beside the target language", "Along training", "How it was measured",
    ):  # fmt: skip
        assert f"<h2>{heading}</h2>" in report
    assert report.count("<figure>") == 3 * 10, "six curves and four of invalid answers against steps, tokens and bytes"
    assert "Fewer than 100 items: sl_boolq_gen, sl_rte_gen" in report


def test_the_report_is_the_same_each_time(results, written, tmp_path):
    arguments = ["--results", str(results), "--output", str(tmp_path / "again"), "--title", "A & <b>", "--tokens-per-step", "1000"]
    assert main(arguments) == 0
    for name in ("report.html", "items.html", "report.md", "scores.csv", "tables.tex"):
        assert (tmp_path / "again" / name).read_bytes() == (written / name).read_bytes()


def test_csv_markdown_and_latex(results, written, tmp_path):
    with open(written / "scores.csv", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 7 * (2 + 4 * 3)
    (row,) = (r for r in rows if (r["checkpoint"], r["source"], r["metric"]) == ("mean-100", "sl", "bits_per_byte"))
    figures = json.loads((results / "mean-100/result.json").read_text())["texts"]["sl"]
    assert float(row["value"]) == figures["bits_per_byte"]
    assert (row["step"], row["n"], row["run"], row["backend"]) == ("100", "40", "mean, tied, seed 1", "hf")
    markdown = (written / "report.md").read_text(encoding="utf-8")
    assert "## Against source, item by item" in markdown
    tables = [block for block in markdown.split("\n\n") if block.startswith("|")]
    assert len(tables) == 6
    assert all(len({line.count(" | ") for line in table.splitlines()}) == 1 for table in tables)
    table = (written / "tables.tex").read_text(encoding="utf-8")
    texts, boolq, rte, *completions = table.split(r"\begin{table}")[1:]
    for part, columns in ((texts, 2), *((part, 1) for part in completions)):
        body = part[part.index(r"\midrule") : part.index(r"\bottomrule")]
        assert part.count(rf"\begin{{tabular}}{{l{'r' * columns}}}") == 1
        assert {line.count("&") for line in body.splitlines() if "&" in line} == {columns}
        assert body.count(r"\textbf{") >= columns
    assert r"\multicolumn{2}{c}{BoolQ} \\" in boolq and r"Model & Acc. & Inv. pred. \\" in boolq and "Table 4 of the GaMS paper" in boolq
    assert r"\multicolumn{2}{c}{RTE} \\" in rte and "Table 5 of the GaMS paper" in rte
    invalid = json.loads((results / "focus-200/result.json").read_text())["tasks"]["sl_rte_gen"]["metrics"]["invalid"]["value"]
    assert invalid == 0 and r"& 0\,\% \\" in rte
    one = make_result(tmp_path / "one", "50%_{x}", None, None, skill=0.5, items=20)
    alone = read_report([one.parent])
    assert r"50\%\_\{x\} & " in latex(alone, lines(alone))
    assert r"\textbf" not in latex(alone, lines(alone)), "of one model none is best"


def test_other_prompts_are_refused_and_the_first_difference_is_named(tmp_path):
    make_result(tmp_path, "a", None, None, skill=0.5, items=20)
    paths = f"{tmp_path}/b/result.json and {tmp_path}/a/result.json"

    def refused(sentence, **changes):
        folder = make_result(tmp_path, "b", None, None, **{"skill": 0.5, "items": 20, **changes})
        with pytest.raises(
            ValueError,
            match=f"^{re.escape(f'{paths} asked sl_boolq_gen differently: {sentence}; evaluate all models with the same settings')}$",
        ):
            main(["--results", str(tmp_path), "--output", str(tmp_path / "report")])
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()
        assert not (tmp_path / "report").exists()

    refused("with 5 and 3 examples", shots=5)
    refused("19 and 20 items", items=19)
    refused("the prompts differ, first at item val:0", prompt="prosim ")


def test_other_refusals(tmp_path):
    def fails(sentence, *more):
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
            main(["--results", str(tmp_path / "results"), "--output", str(tmp_path / "report"), *more])

    fails(f"the results folder {tmp_path}/results does not exist")
    (tmp_path / "results").mkdir()
    fails(f"no result.json below {tmp_path}/results; make some with `python -m eval.harness`")
    make_result(tmp_path / "results", "a", "focus", 10, skill=0.5, items=20)
    fails("--tokens-per-step is 0; expected at least 1", "--tokens-per-step", "0")
    fails("--items is -1; it must be 0 or more", "--items", "-1")
    make_result(tmp_path / "results", "b", "focus", 10, skill=0.5, items=20)
    twice = f"{tmp_path}/results/a/result.json and {tmp_path}/results/b/result.json are both step 10 of the same run; leave one of them out"
    fails(twice)


def test_backends_and_versions_are_told(tmp_path):
    make_result(tmp_path, "a", None, None, skill=0.5, items=20)
    make_result(tmp_path, "b", None, None, skill=0.6, items=20, backend="vllm")
    assert main(["--results", str(tmp_path), "--baseline", "a", "--output", str(tmp_path / "report"), "--items", "0"]) == 0
    text = (tmp_path / "report/report.html").read_text(encoding="utf-8")
    assert "Tasks were run with different backends (hf and vllm), which may change the last digits." in text
    assert not (tmp_path / "report/items.html").exists()
    assert "items.html" not in text


@pytest.mark.parametrize("methods", [("focus",), ("focus", "copy")])
def test_a_new_vocabulary_is_held_to_training_without_one(methods, tmp_path):
    results = make_results(tmp_path, steps=(0, 100), methods=methods, tasks=("sl_rte_gen",), items=30)
    told = [sentence for sentence in warnings(read_report([results])) if "(LAPT)" in sentence]
    assert len(told) == (methods == ("focus",))


def test_a_row_for_all_languages_and_seeds_of_a_way_to_adapt(tmp_path):
    """As the low-resource paper's Table 4: source, and two ways with two seeds of a language each."""
    make_result(tmp_path / "source", "source", None, None, skill=0.2, items=100, tasks=["sl_boolq_gen"])
    for way, shift in (("lora", 0.1), ("2x2", 0.5)):
        for seed in (1, 2):
            make_result(tmp_path / way, f"sl-{way}-{seed}", None, None, skill=shift + 0.1 * seed, items=100, tasks=["sl_boolq_gen"])
    rows = [f"Source={tmp_path}/source", f"LoRA={tmp_path}/lora", f"2x2 LS={tmp_path}/2x2"]
    assert main(["--results", str(tmp_path), "--output", str(tmp_path / "out"), "--grid", *rows]) == 0
    with open(tmp_path / "out/grid.csv", encoding="utf-8") as stream:
        found = {(row["row"], row["source"]): row for row in csv.DictReader(stream)}
    report = read_report([tmp_path])
    (line,) = (line for line in lines(report) if line.headline and line.source == "sl_boolq_gen")
    by_name = {model.name: line.score(model).value for model in report.models}
    for name, way in (("LoRA", "lora"), ("2x2 LS", "2x2")):
        values = [by_name[f"sl-{way}-{seed}"] for seed in (1, 2)]
        row = found[name, "sl_boolq_gen"]
        assert (float(row["mean"]), row["runs"]) == (pytest.approx(sum(values) / 2), "2")
        assert float(row["standard_deviation"]) == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
        assert float(row["relative_gain"]) == pytest.approx(sum(values) / 2 / by_name["source"] - 1)
    assert float(found["2x2 LS", "sl"]["relative_gain"]) > 0  # fewer bits per byte
    text = (tmp_path / "out/grid.tex").read_text()
    assert "Source & " in text and "blue!" in text and "over Source." in text
    assert "Means and standard deviations over the runs of a row: 1 or 2 for each figure.\n" in (tmp_path / "out/grid.md").read_text()
    for words, sentence in (
        (["lora"], "--grid lora has not the form NAME=DIR; give the row's name and the folder of its models' results"),
        ([f"a={tmp_path}/none"], f"--grid a: there is no result of --results below {tmp_path}/none; name folders of results"),
        (
            [f"a={tmp_path}/source", f"b={tmp_path}/source"],
            f"--grid: {tmp_path}/source/source belongs to a and to b; give each row folders of its own",
        ),
    ):
        with refused(sentence):
            main(["--results", str(tmp_path), "--output", str(tmp_path / "other"), "--grid", *words])
    assert not (tmp_path / "other").exists()


def test_columns_stand_in_the_order_of_k_with_whole_headings(tmp_path):
    make_results(tmp_path, steps=(0,), methods=("focus",), tasks=[f"sl_senta_{k}shot" for k in (0, 10, 3, 5)], items=20)
    table = latex(report := read_report([tmp_path]), lines(report))
    assert "Model & $k = 0$ & $k = 3$ & $k = 5$ & $k = 10$ \\\\\n" in table
    assert place(Line("squad_it", "rougeL_first", False, True))[1] == "SQuAD-it"


def test_where_less_is_better_less_is_called_better(tmp_path):
    """A task of one's own whose headline is an error: of 40 items the model errs on 10, the baseline on 30."""
    for name, errors in (("a", 30), ("b", 10)):
        folder = make_result(tmp_path, name, None, None, skill=0.5, items=40, tasks=["my_task"])
        path = folder / "items/my_task.jsonl"
        items = json.loads(path.read_text())
        items["scores"] = {"error": [float(number < errors) for number in range(40)]}
        path.write_text(json.dumps(items) + "\n")
        path = folder / "samples/my_task.jsonl"
        samples = [{**json.loads(line), "error": float(n < errors)} for n, line in enumerate(path.read_text().splitlines())]
        path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
        result = json.loads((folder / "result.json").read_text())
        entry = {"value": errors / 40, "low": 0.0, "high": 1.0, "n": 40, "units": 40, "stderr": None}
        result["tasks"]["my_task"] |= {"metrics": {"error": entry}, "higher_is_better": {"error": False}}
        (folder / "result.json").write_text(json.dumps(result))
    report = read_report([tmp_path], baseline="a")
    (test,) = (test for test in paired_tests(report, lines(report)) if test.line.source == "my_task")
    assert (test.better, test.verdict, test.better_on, test.worse_on) == (True, "better", 20, 0)
    assert test.difference.value == -0.5
    page = items_page(report, lines(report), title="", items=1)
    assert page is not None and "my_task: b: wins 20, losses 0, of 40" in page


def test_few_items_are_told_and_decide_nothing(tmp_path):
    make_result(tmp_path, "a", None, None, skill=0.1, items=5)
    make_result(tmp_path, "b", None, None, skill=0.9, items=5)
    for folder in (tmp_path / "a", tmp_path / "b"):  # one document
        path = folder / "documents/sl.jsonl"
        path.write_text(path.read_text().splitlines()[0] + "\n")
        result = json.loads((folder / "result.json").read_text())
        num_bytes = json.loads(path.read_text())["text_bytes"]
        result["texts"]["sl"] |= {"num_documents": 1, "text_bytes": num_bytes, "low": 0.0, "high": None}
        (folder / "result.json").write_text(json.dumps(result))
    assert main(["--results", str(tmp_path), "--baseline", "a", "--output", str(tmp_path / "report")]) == 0
    text = (tmp_path / "report/report.html").read_text(encoding="utf-8")
    assert (
        "Fewer than 30 independent units (documents, or items and groups of them): sl (1), sl_boolq_gen (5), sl_rte_gen (5),"
        " completion_sl (5), completion_en (5). Intervals are wide, and assume that others would vary as these do; fewer than 6 decide"
        " nothing." in text
    )
    report = read_report([tmp_path])
    verdicts = {test.line.source: test.verdict for test in paired_tests(report, lines(report))}
    assert {name for name, verdict in verdicts.items() if verdict == "too few to tell"} == {"sl", *TASKS}
    assert text.count("too few to tell") == 5
    assert "inf" not in re.sub(r"[a-z]inf|inf[a-z]", "", text)


def test_questions_of_a_few_passages_are_told(tmp_path):
    """33 questions on 3 passages, as MultiRC of the papers: all right for one model and all wrong for the other decides nothing."""
    for name, right in (("a", 0.0), ("b", 1.0)):
        folder = make_result(tmp_path, name, None, None, skill=0.5, items=33, tasks=["sl_multirc_gen"])
        path = folder / "items/sl_multirc_gen.jsonl"
        items = json.loads(path.read_text())
        items["groups"] = [f"passage {number // 11}" for number in range(33)]
        items["scores"]["acc"] = [right] * 33
        path.write_text(json.dumps(items) + "\n")
        result = json.loads((folder / "result.json").read_text())
        result["tasks"]["sl_multirc_gen"]["num_groups"] = 3
        result["tasks"]["sl_multirc_gen"]["metrics"]["acc"] |= {"value": right, "n": 33, "units": 3}
        (folder / "result.json").write_text(json.dumps(result))
    report = read_report([tmp_path], baseline="a")
    (test,) = (test for test in paired_tests(report, lines(report)) if test.line.source == "sl_multirc_gen")
    assert (test.difference.p_value, test.verdict, test.difference.units) == (0.25, "too few to tell", 3)
    page = report_page(report, lines(report), [test], title="", tokens_per_step=None, items_link=False)
    assert "n = 33 in 3 groups" in page and "sl_multirc_gen (3)" in page and "<td>33 in 3</td>" in page


def test_what_was_asked_unlike_is_told(tmp_path):
    def settings(folder, **changes):
        path = folder / "result.json"
        result = json.loads(path.read_text())
        result["settings"] |= changes
        result["tasks"]["sl_boolq_gen"]["prompt_cut"] = 0.5 if changes["task_positions"] == 512 else 0.0
        path.write_text(json.dumps(result))

    settings(make_result(tmp_path, "a", None, None, skill=0.5), task_positions=8192)
    settings(make_result(tmp_path, "b", None, None, skill=0.5), task_positions=512)
    told = "\n".join(warnings(read_report([tmp_path])))
    assert "Tasks were run with a context of 512 (b) and 8192 (a) tokens: differences may come from that alone." in told
    cut = "Prompts exceeded the context and were shortened, so models may have had different prompts: sl_boolq_gen (a: 0 %, b: 50 %)."
    assert cut in told
    notes_told = "\n".join(notes(read_report([tmp_path])))
    assert "Prompts are the same for every model, but for what was cut of those that were too long." in notes_told
    for folder, dtype in ((tmp_path / "a", "float32"), (tmp_path / "b", "bfloat16")):
        path = folder / "result.json"
        result = json.loads(path.read_text())
        result["texts"] = {}
        result["settings"]["dtype"] = dtype
        path.write_text(json.dumps(result))
    told = "\n".join(warnings(read_report([tmp_path])))
    assert "Weights were bfloat16 (b) and float32 (a): differences may come from that alone." in told
    assert "Weights in bfloat16 or float32;" in "\n".join(notes(read_report([tmp_path])))


def test_every_task_has_its_place_in_a_suite():
    names = sorted({path.stem for path in TASKS_DIR.rglob("*.yaml")} - {"heldout_text"})
    places = [place(Line(name, "acc", False, True)) for name in names]
    assert OTHERS not in {suite for suite, _ in places}
    assert len(set(places)) == len(names) == 64 + 15 + 9 + 3, "those of the papers, SIB-200, Slovenian-LLM-Eval, instructions"
    assert place(Line("sl_senta_10shot", "sari", False, True))[1] == "10 examples"
    assert place(Line("flores_en_sl", "chrf", False, True))[1] == "English to Slovene"
    assert place(Line("mt_my_en", "chrf", False, True))[0].title == "Translation into English, sampled"
    assert place(Line("sl", "bits_per_byte", True, True)) == (TEXTS, "Slovene")
    assert place(Line("my_task", "acc", False, True)) == (OTHERS, "my_task")


def test_suites_at_a_glance_and_the_papers_average(tmp_path):
    tasks = ["itabench_piqa_it", "itabench_sciq_it", "itabench_mmlu_it", "my_task"]
    make_results(tmp_path, steps=(0, 100), methods=("focus",), tasks=tasks)
    report = read_report([tmp_path])
    all_lines = lines(report)
    _, ((suite, metric, count, source, focus),) = glance_rows(report, all_lines, paired_tests(report, all_lines))

    def mean(name):
        found = json.loads((tmp_path / name / "result.json").read_text())["tasks"]
        return sum(100 * found[task]["metrics"]["acc"]["value"] for task in tasks[:3]) / 3

    assert (suite, metric, count) == ("ITA-Bench, Italian", "accuracy", "3")
    assert source == f"{mean('source'):.1f}"
    assert focus == f"{mean('focus-100'):.1f} ▲3", "sure on all three"
    table = latex(report, all_lines)
    assert "Model & MMLU & PIQA & SCIQ & AVG \\\\\n" in table, "in the paper's order"
    assert f" & $\\mathbf{{{mean('focus-100'):.2f}}}$ \\\\" in table


def test_many_tasks_are_folded_away_below_their_suites(tmp_path):
    tasks = [f"mt_en_{language}" for language in ("ar", "de", "el", "hi", "ja", "my", "si", "sw", "te", "th")]
    tasks += [f"sum_{language}" for language in ("ar", "de", "el", "hi", "ja", "my", "si")]
    make_results(tmp_path, steps=(0, 100), methods=("focus",), tasks=tasks, items=20)
    assert main(["--results", str(tmp_path), "--output", str(tmp_path / "report")]) == 0
    text = (tmp_path / "report/report.html").read_text(encoding="utf-8")
    assert Page(text).open == []
    assert text.count("<details open><summary>Held-out text</summary>") == 2, "scores and curves"
    assert text.count("<details><summary>Summaries, sampled</summary>") == 2
    assert "<h2>At a glance</h2>" in text
    assert "@media print { details::details-content { content-visibility: visible;" in text, "on paper nothing is folded away"


CHECKER = """
import html5lib, pathlib, sys
for name in ("report.html", "items.html"):
    html5lib.HTMLParser(strict=True).parse(pathlib.Path(sys.argv[1], name).read_text(encoding="utf-8"))
"""


@pytest.mark.peer
def test_the_pages_are_html_to_the_letter(written):
    """html5lib's strict parser ends at the first thing that the standard calls a parse error."""
    python = os.environ.get("SCION_PEER_PYTHON")
    if not python or subprocess.run([python, "-c", "import html5lib"], capture_output=True, check=False).returncode:
        pytest.skip("SCION_PEER_PYTHON does not name a Python that has html5lib")
    checked = subprocess.run([python, "-c", CHECKER, str(written)], capture_output=True, text=True, check=False, timeout=60)
    assert checked.returncode == 0, checked.stderr
    broken = written.parent / "broken"
    broken.mkdir()
    for name in ("report.html", "items.html"):
        page = (written / name).read_text(encoding="utf-8")
        (broken / name).write_text(page.replace("</table>", "</tabel>", 1), encoding="utf-8")
    checked = subprocess.run([python, "-c", CHECKER, str(broken)], capture_output=True, text=True, check=False, timeout=60)
    assert "ParseError" in checked.stderr, "the check can fail"


def test_ticks():
    assert ticks(0, 100, 4) == [0, 25, 50, 75, 100]
    assert ticks(0.93, 1.06, 4) == [0.95, 1.0, 1.05]
    assert padded(2, 2) == (1.9, 2.1)
    assert padded(0, 0) == (-1, 1)
    assert [tick_label(v) for v in (0, 0.25, 800, 13400, 2e6, 1.5e9)] == ["0", "0.25", "800", "13.4k", "2M", "1.5G"]


def test_all_pairs_are_tested_and_adjusted_together(tmp_path):
    """Three models of one skill and one far better: six pairs of every score, the sure ones those of the better model."""
    for name, skill in (("source", 0.1), ("a", 0.1), ("b", 0.1), ("better", 0.9)):
        make_result(tmp_path / "results", name, None, None, skill=skill, tasks=("sl_boolq_gen",))
    words = ["--results", str(tmp_path / "results"), "--baseline", "source", "--pairs", "--items", "0"]
    assert main([*words, "--output", str(tmp_path / "report")]) == 0
    with open(tmp_path / "report" / "pairs.csv", encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["score"].startswith("sl_boolq_gen, accuracy")]
    assert len({(row["model"], row["against"]) for row in rows}) == 6
    sure = {frozenset((row["model"], row["against"])) for row in rows if row["verdict"] in ("better", "worse")}
    assert sure == {frozenset(("better", other)) for other in ("source", "a", "b")}
    with open(tmp_path / "report" / "pairs.csv", encoding="utf-8", newline="") as stream:
        every = list(csv.DictReader(stream))
    raw, adjusted = ([float(row[key]) for row in every] for key in ("p_value", "p_adjusted"))
    assert min(adjusted) == pytest.approx(min(1.0, len(every) * min(raw)))
    assert f"Adjusted by Holm over all {len(every)} tests together." in (tmp_path / "report" / "pairs.md").read_text()


def test_trainings_of_one_transfer_are_told_apart(tmp_path):
    """Their checkpoints have the same names, as eval.watch gives them, and the same transfer, whose model begins both."""
    transfer = {"method": "focus", "head": "tied", "seed": 1}
    make_result(tmp_path, "source", None, None, skill=0.1, items=20)
    make_result(tmp_path, "focus-0", "focus", 0, skill=0.2, items=20)
    for number, output in enumerate(("lora", "full")):
        run = {"id": f"{number}", "output": output, "name": output, "recipe": f"xxh3:{number}", "seed": 42}
        for step in (100, 200):
            facts = {**transfer, "step": step, "run": run}
            make_result(tmp_path / output, f"step_{step}", "focus", step, skill=0.3 + number / 3, items=20, facts=facts)
    report = read_report([tmp_path])
    assert {run.name: [model.step for model in run.checkpoints] for run in report.runs} == {
        "source": [None],
        "focus, tied, seed 1, lora": [0, 100, 200],
        "focus, tied, seed 1, full": [0, 100, 200],
    }
    assert [model.name for model in report.models] == ["source", "full/step_200", "lora/step_200"]
    accuracies = {test.model.name for test in paired_tests(report, lines(report))}
    assert accuracies == {"full/step_200", "lora/step_200"}


def test_a_mark_stands_beside_the_score_that_was_tested_and_nowhere_else(results):
    """chrF of a corpus is tested by chrF of sentences; p-values are adjusted over the whole page."""
    report = read_report([results])
    tests = paired_tests(report, lines(report))
    assert [test.adjusted_p_value for test in tests] == pytest.approx(holm([test.difference.p_value for test in tests]))
    test = next(test for test in tests if test.sure)
    assert list(marked([test])) == [(test.line.source, test.line.metric, test.model.path)]
    corpus = replace(test, line=replace(test.line, metric="chrf"), metric="chrf_sentence")
    assert list(marked([corpus])) == [(test.line.source, "chrf_sentence", test.model.path)]


def _drop_last_line(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def _answer_one_more(path: Path) -> None:
    items = json.loads(path.read_text())
    items["scores"]["acc"][items["scores"]["acc"].index(0)] = 1
    path.write_text(json.dumps(items) + "\n")


@pytest.mark.parametrize(
    "name, change, sentence",
    [
        ("samples/sl_rte_gen.jsonl", _drop_last_line, "has 29 items, but .* records 30: it was truncated; evaluate the model again"),
        ("documents/sl.jsonl", _drop_last_line, r"has 39 documents of \d+ bytes, but .* records 40 of \d+: it was truncated or changed"),
        ("items/sl_rte_gen.jsonl", _answer_one_more, "an accuracy of 0.* records 0.*: one of them was changed"),
    ],
)
def test_results_that_contradict_themselves_are_refused(name, change, sentence, tmp_path):
    results = make_results(tmp_path / "results", steps=(0, 100), methods=("focus",), tasks=("sl_rte_gen",), items=30)
    change(results / "focus-100" / name)
    with pytest.raises(ValueError, match=sentence):
        main(["--results", str(results), "--output", str(tmp_path / "report")])


def test_other_numbers_of_items_are_named_with_their_models(tmp_path):
    """As of a run that was asked fewer; of valid answers too, of which each model has its own number."""
    report = read_report([make_results(tmp_path, steps=(0, 100), methods=("focus",), tasks=("sl_rte_gen",), items=30)])
    answered = report.models[1].content["tasks"]["sl_rte_gen"]
    answered["num_items"] = 20
    assert any("sl_rte_gen: 20 (focus-100), 30 (source, focus-0)" in sentence for sentence in warnings(report))
    _, rows = scores_rows(report, lines(report))
    counts = {row[0]: row[1] for row in rows}
    assert re.fullmatch(r"\d+ \(source\), \d+ \(focus-100\)", counts["sl_rte_gen, accuracy, valid only"])
    assert "Slovene, bits per byte ↓" in counts and counts["sl_rte_gen, accuracy"] == "30"
