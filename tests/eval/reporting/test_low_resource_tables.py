"""The low-resource paper's Tables 4, 5 and 12 and Figures 2 to 4: from files as published to every cell and point, each counted again."""

from __future__ import annotations

import csv
import gzip
import json
import random
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
from sacrebleu import sentence_chrf

from common.artifacts import write_manifest
from eval.figures import main as figures
from eval.generate import main as generate
from eval.harness import main as evaluate
from eval.prepare import main as prepare
from eval.protocols.text_overlap import hugging_face_tokenizer
from eval.report import main as report
from eval.running.task_runs import find_tasks
from eval.scoring.learned_scores import BLEURT, Triple, score_folders
from tests.eval import published_forms as forms
from tests.eval.learned import ENGLISH, train, train_tokenizer
from tests.eval.tiny_models import tiny_llama, tiny_opt

NUM_ITEMS = 6
RUNS = 5  # "Mean performance [...] over five runs"
SIZES = (16, 48)
WAYS = ("lapt", *(f"align_{size}" for size in SIZES))
FLORES = {"eng_Latn": "en", "mya_Mymr": "my", "ell_Grek": "el"}
SYLLABLES = {"en": "ba de ri mo tu la", "my": "က ခါ ငို စေ တာ ပို မီ ယူ လေ သာ", "el": "κα λο μη νε πο ρι σα του φι χω"}
TASKS = {language: (f"mt_en_{language}", f"sum_{language}") for language in ("my", "el")}
ALL_TASKS = [task for tasks in TASKS.values() for task in tasks]
SOURCES = {"Llama": (tiny_llama, 420), "OPT": (tiny_opt, 360)}
HEADLINES = {"mt": "chrf_sentence", "sum": "rougeL"}
Scores = dict[tuple[str, str], list[float]]


def _sentence(language: str, split: str, number: int, num_words: int = 6) -> str:
    drawn, syllables = random.Random(f"{language} {split} {number}"), SYLLABLES.get(language, "na so ke").split()
    return " ".join("".join(drawn.choices(syllables[: 3 + number % 3], k=3)) for _ in range(num_words))


def _published(folder: Path) -> Path:
    """FLORES-200, XL-Sum and GreekSUM in their publishers' forms."""
    folder.mkdir()

    def article(language: str, number: int) -> tuple[str, str]:
        return _sentence(language, "text", number, 20), _sentence(language, "summary", number)

    forms.write_flores(folder, sentence=lambda language, split, n: _sentence(FLORES.get(language, language), split, n))
    forms.write_xlsum(folder, article=lambda language, n: article({"burmese": "my"}.get(language, language), n))
    forms.write_greeksum(folder, article=lambda n: article("el", n))
    return folder


def _solved(tasks: Sequence[str], data: Path) -> list[str]:
    """Prompts with the beginning of what is asked for."""
    found = find_tasks(list(tasks), metadata={"data": str(data)})
    instances = [instance for task in found.values() for instance in task.task.instances]
    return sorted({f"{i.args[0]} {' '.join(i.doc['references'][0].split()[:3])}\n" for i in instances})


def _write_models(folder: Path, name: str, data: Path) -> None:
    """A source; for each language one trained without new tokens and one for each number of them, initialised by conversion.transfer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from conversion.transfer import main as transfer

    def trained(model, tokenizer, texts: Sequence[str], num_steps: int, to: Path, **facts) -> None:
        def save() -> None:
            model.save_pretrained(to)
            tokenizer.save_pretrained(to)
            if facts:
                write_manifest(
                    to,
                    stage="conversion.nemo_to_hf",
                    facts={
                        **facts,
                        "run": {"id": to.name, "output": to.name, "name": to.name, "recipe": "", "seed": 1},
                        "seed": 1,
                        "step": num_steps,
                    },
                )

        train(model, tokenizer, list(texts), save_at={num_steps: save}, learning_rate=5e-3, batch_size=8)

    make, size = SOURCES[name]
    tokenizer = train_tokenizer([name, *ENGLISH], vocab_size=size)
    model = make(vocab_size=len(tokenizer), num_positions=2048, seed=len(name))
    trained(model, tokenizer, _solved(ALL_TASKS, data), 15, folder / "source")
    for language, tasks in TASKS.items():
        texts = _solved(tasks, data)
        text = folder / f"{language}.txt"
        text.write_text("".join(f"{_sentence(language, 'train', n)}\n" for n in range(200)) + "".join(texts), encoding="utf-8")
        for way in WAYS:
            start, facts = folder / "source", {"method": "none"}
            if added := int(way.partition("_")[2] or 0):
                start, facts = folder / "transferred" / f"{way}_{language}", {"method": "align"}
                words = ["--source", str(folder / "source"), "--vocabulary", "expand", "--new-tokens", str(added), "--text", str(text)]
                assert transfer([*words, "--method", "align", "--output", str(start)]) == 0
            model, tokenizer = AutoModelForCausalLM.from_pretrained(start), AutoTokenizer.from_pretrained(start)
            trained(model, tokenizer, texts, 30, folder / f"{way}_{language}", **facts)


def _evaluate(models: Path, data: Path, rouge: Path, output: Path) -> None:
    """Scores of all models, and texts for speed and shares: each of its own language's tasks."""
    asked = ["--data", str(data), "--batch-size", "40", "--context-length", "2048", "--rouge-tokenizer", str(rouge)]
    assert evaluate(["--model", str(models / "source"), "--tasks", *ALL_TASKS, *asked, "--output", str(output / "results")]) == 0
    for language, tasks in TASKS.items():
        folders = [str(models / f"{way}_{language}") for way in WAYS]
        assert evaluate(["--model", *folders, "--tasks", *tasks, *asked, "--output", str(output / "results")]) == 0
        for task in tasks:
            words = ["--model", str(models / "source"), *folders, "--task", task, "--data", str(data), "--settings", "lowres"]
            assert generate([*words, "--repeats", "2", "--max-new-tokens", "24", "--output", str(output / f"generated_{task}")]) == 0


def _prompts(data: Path) -> dict[str, list[str]]:
    found = find_tasks(ALL_TASKS, metadata={"data": str(data)})
    return {task: [i.args[0] for i in {i.doc_id: i for i in found[task].task.instances}.values()] for task in ALL_TASKS}


def _report_words(results: Path, output: Path) -> list[str]:
    rows = ["source=" + str(results / "source"), *(f"{way}={results / f'{way}_{language}'}" for way in WAYS for language in TASKS)]
    return ["--results", str(results), "--grid", *rows, "--items", "0", "--output", str(output)]


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _csv(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(second) + 1)
    for one in first:
        before = row
        row = [0]
        for place, other in enumerate(second):
            row.append(before[place] + 1 if one == other else max(before[place + 1], row[place]))
    return row[-1]


def _rouge(output: str, reference: str, tokenizer) -> float:
    ours, theirs = tokenizer.tokenize(output), tokenizer.tokenize(reference)
    return 200 * _common(ours, theirs) / (len(ours) + len(theirs))


def _alike(triples: Sequence[Triple]) -> list[float]:
    """In BLEURT's place, whose weights and environment are not here: letters in common."""
    return [len({*t.output} & {*t.reference}) / len({*t.output} | {*t.reference}) for t in triples]


def _counted_again(results: Path, tokenizer) -> dict[tuple[str, str, str], list[float]]:
    """(model, task, metric) -> the mean over items of each of the runs, from the answers and the published references."""
    found = {}
    for path in sorted(results.glob("*/samples/*.jsonl")):
        model, task = path.parts[-3], path.stem
        language, kind = task[-2:], task.partition("_")[0]
        split = "devtest" if kind == "mt" else "summary"
        references = {_sentence(language, split, n) for n in range(NUM_ITEMS)}
        samples = _lines(path)
        assert {sample["doc"]["references"][0] for sample in samples} == references and len(samples) == NUM_ITEMS
        answers = [(sample["doc"]["references"][0], [text.strip() for text in sample["resps"][0]]) for sample in samples]
        assert {len(texts) for _, texts in answers} == {RUNS}
        scored = {
            HEADLINES[kind]: lambda text, ref, kind=kind: (
                sentence_chrf(text, [ref]).score if kind == "mt" else _rouge(text, ref, tokenizer)
            ),
            "bleurt": lambda text, ref: 100 * _alike([Triple("", text, ref)])[0],
        }
        for metric, score in scored.items():
            runs = [statistics.fmean(score(texts[run], ref) for ref, texts in answers) for run in range(RUNS)]
            found[model, task, metric] = runs
    return found


def _check_grid(folder: Path, again: dict[tuple[str, str, str], list[float]], metrics: Sequence[str]) -> None:
    """Each cell: mean over the runs, its deviation between them, change over the source; printed with as many digits as the others."""
    rows = _csv(folder / "grid.csv")
    cells = {(row["row"], row["source"], row["metric"]): row for row in rows}
    named = [(task, metric) for task in ALL_TASKS for metric in metrics if metric in (HEADLINES[task.partition("_")[0]], "bleurt")]
    assert set(cells) == {(row, *name) for row in ("source", *WAYS) for name in named} and len(rows) == len(cells)
    table = (folder / "grid.tex").read_text(encoding="utf-8")
    printed = {
        row: re.findall(r"(\d+\.\d+)\}?\$_\{(\d+\.\d+)\}\$", line)
        for row in ("source", *WAYS)
        for line in table.splitlines()
        if line.startswith(f"{row} & ".replace("_", r"\_"))
    }
    assert list(printed) == ["source", *WAYS]
    for (row, task, metric), cell in cells.items():
        model = "source" if row == "source" else f"{row}_{task[-2:]}"
        runs, base = again[model, task, metric], statistics.fmean(again["source", task, metric])
        mean, deviation = statistics.fmean(runs), statistics.stdev(runs)
        assert (float(cell["mean"]), cell["runs"]) == (pytest.approx(mean), "1")
        assert float(cell["standard_deviation"]) == pytest.approx(deviation, abs=1e-9)
        assert float(cell["relative_gain"]) == pytest.approx(mean / base - 1, abs=1e-9)
    for row, shown in printed.items():
        told = [[float(cell[name]) for name in ("mean", "standard_deviation")] for key, cell in cells.items() if key[0] == row]
        assert [tuple(f"{value:.{3 if mean < 10 else 1}f}" for value in (mean, deviation)) for mean, deviation in told] == shown
    trained = [statistics.fmean(again[f"{way}_{task[-2:]}", task, HEADLINES["mt"]]) for way in WAYS for task in ALL_TASKS if task[0] == "m"]
    assert len({*trained}) == len(trained) and min(trained) > 0, "models that answer, each in its own way"


def _shares_and_speeds(generated: Path, models: Path, prompts: Sequence[str]) -> dict[str, tuple[float, float, float]]:
    """Model -> speedup in bytes a second, shares in % of new tokens in answers and in prompts; a new token's id is past the source's."""
    from transformers import AutoTokenizer

    told = json.loads((generated / "efficiency.json").read_text())["models"]
    base = len(AutoTokenizer.from_pretrained(models / "source"))
    found, source_rate = {}, 0.0
    for name, measured in told.items():
        lines = _lines(generated / f"texts/{name}.jsonl")
        assert len(lines) == 2 * NUM_ITEMS
        rate = sum(len(line["text"].encode()) for line in lines) / sum(repeat["seconds"] for repeat in measured["repeats"])
        source_rate = source_rate or rate
        tokenizer = AutoTokenizer.from_pretrained(models / name)
        answers = [index >= base for line in lines for index in line["token_ids"]]
        asked = [index >= base for prompt in prompts for index in tokenizer(prompt)["input_ids"]]
        found[name] = (rate / source_rate, 100 * statistics.fmean(answers), 100 * statistics.fmean(asked))
    return found


def _check_speed(folder: Path, speeds: dict[str, tuple[float, float, float]]) -> None:
    """Table 5's row of speedups, beside the models' names."""
    rows = [row for row in _csv(folder / "scores.csv") if row["source"] == "generation"]
    for metric, place, scale in (("speedup", 0, 1), ("target_token_ratio", 1, 100)):
        found = {row["checkpoint"]: scale * float(row["value"]) for row in rows if row["metric"] == metric}
        assert found == {name: pytest.approx(figures[place]) for name, figures in speeds.items()}
    (line,) = (line for line in (folder / "report.md").read_text(encoding="utf-8").splitlines() if line.startswith("| speedup "))
    shown = [float(cell.split()[0]) for cell in line.split("|")[2:-1] if cell.strip() != "–"]
    assert sorted(shown) == pytest.approx(sorted(figures[0] for figures in speeds.values()), abs=0.005)


def _check_figure(drawn: list[dict[str, str]], name: str, task: str, scores: dict, speeds: dict[str, tuple[float, float, float]]) -> None:
    """Figure 2: scores and speedup by the number of new tokens, with Source and LAPT level; Figure 4: shares in input and output."""
    language, metric = task[-2:], HEADLINES[task.partition("_")[0]]

    def points(kind: str) -> dict[tuple[str, float], float]:
        return {(row["line"], float(row["x"])): float(row["y"]) for row in drawn if row["panel"] == f"{name}, {task}{kind}"}

    def score(model: str):
        return pytest.approx(statistics.fmean(scores[model, task, metric]))

    sized = {size: f"align_{size}_{language}" for size in SIZES}
    level = {("source", 0.0): score("source"), (f"lapt_{language}", 0.0): score(f"lapt_{language}")}
    assert points("") == {("adapted", float(size)): score(model) for size, model in sized.items()} | level
    fast = {("adapted", float(size)): pytest.approx(speeds[model][0]) for size, model in sized.items()}
    assert points(": speed") == fast | {("source", 0.0): 1.0}
    shares = {
        (f"new tokens in {place}", float(size)): pytest.approx(speeds[model][number])
        for number, place in ((1, "answers"), (2, "prompts"))
        for size, model in sized.items()
    }
    assert points(": new tokens") == shares
    in_prompts = [speeds[model][2] for model in sized.values()]
    assert 0 < in_prompts[0] < in_prompts[1], "more new tokens make more of the prompts"


def _check_tokens(models: dict[str, Path], data: Path, output: Path) -> None:
    """Figure 3: "Average number of tokens on the FLORES-200 dev set across languages and models"."""
    from transformers import AutoTokenizer

    from data_prep.tokenizer_report import main as compare

    words = [
        "--tokenizer",
        *(f"{name}={folder / 'source'}" for name, folder in models.items()),
        "--input",
        f"my={models['Llama'] / 'my.txt'}",
    ]
    assert compare([*words, "--parallel", str(data / "mt/flores_dev.jsonl.gz"), "--output", str(output)]) == 0
    told = json.loads((output / "report.json").read_text(encoding="utf-8"))["tokenizers"]
    with gzip.open(data / "mt/flores_dev.jsonl.gz", "rt", encoding="utf-8") as stream:
        rows = [json.loads(line) for line in stream]
    assert len(rows) == NUM_ITEMS and rows[0]["my"] == _sentence("my", "dev", 0)
    for name, folder in models.items():
        tokenizer = AutoTokenizer.from_pretrained(folder / "source")
        languages = [key for key in rows[0] if key not in ("id", "group", "split")]
        assert len(languages) == len(forms.FLORES)
        means = {
            key: statistics.fmean(len(tokenizer(row[key], add_special_tokens=False)["input_ids"]) for row in rows) for key in languages
        }
        assert told[name]["tokens_per_parallel_sentence"] == pytest.approx(means) and means["my"] > 2 * means["en"]
    assert (output / "languages.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long  # minutes: two sources, each with six models of two languages
def test_published_files_become_the_low_resource_papers_tables_and_figures(tmp_path, monkeypatch):
    """Tables 4, 5 and 12 ("Mean performance [...] over five runs", "inference speedup", "ROUGE-L and BLEURT"), Figures 2, 3 and 4."""
    monkeypatch.setattr(forms, "NUM", NUM_ITEMS)
    published, data = _published(tmp_path / "published"), tmp_path / "eval_data"
    assert prepare(["flores", "xlsum", "greeksum", "--source", str(published), "--output", str(data), "--sample"]) == 0
    folders = {name: tmp_path / "models" / name for name in SOURCES}
    rouge = train_tokenizer([_sentence(language, "train", n) for language in TASKS for n in range(50)], vocab_size=400)
    rouge.save_pretrained(tmp_path / "rouge")
    monkeypatch.setenv("SCION_ROUGE_TOKENIZER", str(tmp_path / "rouge"))
    hugging_face_tokenizer.cache_clear()
    again, speeds = {}, {}
    for name, models in folders.items():
        _write_models(models, name, data)
        _evaluate(models, data, tmp_path / "rouge", tmp_path / name)
        again[name] = _counted_again(tmp_path / name / "results", rouge)
        for task, prompts in _prompts(data).items():
            speeds[name, task] = _shares_and_speeds(tmp_path / name / f"generated_{task}", models, prompts)
            words = _report_words(tmp_path / name / "results", tmp_path / f"report {name} {task}")
            assert report([*words, "--efficiency", str(tmp_path / name / f"generated_{task}")]) == 0
            _check_grid(tmp_path / f"report {name} {task}", again[name], [*HEADLINES.values()])
            _check_speed(tmp_path / f"report {name} {task}", speeds[name, task])
        told = {"name": "letters", "digest": "xxh3:1", "package": "none"}
        scored = tmp_path / f"scored {name}"
        score_folders([tmp_path / name / "results"], scored, BLEURT, tasks=(), find=lambda told=told: told, open_scorer=lambda: _alike)
        assert report(_report_words(scored, tmp_path / f"report {name}")) == 0
        _check_grid(tmp_path / f"report {name}", again[name], [*HEADLINES.values(), "bleurt"])
    words = ["new-tokens", "--grid", *(f"{name}={tmp_path / name}" for name in SOURCES), "--tasks", "mt_en_*", "sum_*"]
    assert figures([*words, "--output", str(tmp_path / "figure")]) == 0
    drawn = _csv(tmp_path / "figure/figure.csv")
    assert len({row["panel"] for row in drawn}) == len(SOURCES) * 3 * len(ALL_TASKS)
    for (name, task), measured in speeds.items():
        _check_figure(drawn, name, task, again[name], measured)
    _check_tokens(folders, data, tmp_path / "tokens")
