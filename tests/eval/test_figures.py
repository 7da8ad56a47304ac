"""The papers' figures from folders of results: every number drawn is the one that was measured, and what does not compare is refused."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from common.artifacts import read_manifest
from eval.figures import main
from eval.running.results import load_result, write_result
from tests.eval.made_results import make_efficiency, make_result, make_results

OUTPUTS = {"figure.html", "figure.png", "figure.svg", "figure.md", "figure.csv", "scion.json"}


def _rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "figure.csv", encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _write_run(folder: Path, start: float) -> Path:
    """A run's `metrics.jsonl` in the form that training writes: validations are records of their own."""
    folder.mkdir(parents=True)
    lines = []
    for step in range(1, 9):
        lines.append({"step": step, "loss": start - 0.25 * step, "learning_rate": 1e-4, "tokens": 512 * step, "bytes": 1900 * step})
        if step % 4 == 0:
            lines.append(
                {"step": step, "validation_loss": start - 0.2 * step, "validation_loss_en": start, "validation_bits_per_byte": 1.0}
            )
    lines.append({"step": 8, "validation_loss": None})
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def test_losses_of_runs(tmp_path: Path) -> None:
    """GaMS, Figure 2: "The training (top) and validation (bottom) cross-entropy losses"."""
    focus, plain = _write_run(tmp_path / "focus", 6.0), _write_run(tmp_path / "random", 8.0)
    words = ["loss", "--run", f"FOCUS={focus}", f"random={plain}", "--against"]
    assert main([*words, "tokens", "--output", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == OUTPUTS
    rows = _rows(tmp_path / "out")
    trained = [(float(row["x"]), float(row["y"])) for row in rows if (row["panel"], row["line"]) == ("Training loss", "FOCUS")]
    assert trained == [(512.0 * step, 6.0 - 0.25 * step) for step in range(1, 9)]
    measured = {(row["line"], float(row["x"])): float(row["y"]) for row in rows if row["panel"] == "Validation loss"}
    assert measured[("random", 2048.0)] == pytest.approx(7.2) and measured[("FOCUS, en", 4096.0)] == 6.0
    assert len(measured) == 8  # a validation that gave no number is not a point
    with (focus / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 9, "lo')  # the run is writing it
    assert main([*words, "steps", "--smooth", "2", "--output", str(tmp_path / "smooth")]) == 0
    assert float(_rows(tmp_path / "smooth")[1]["y"]) == pytest.approx(6.0 - 0.25 * 1.5)
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None and len(manifest.inputs) == 2


def test_a_suite_over_checkpoints(tmp_path: Path) -> None:
    """SAVA, Figure 2: "The average was calculated over six datasets"."""
    make_results(tmp_path / "results", steps=(0, 100, 200))
    words = ["suite", "--results", str(tmp_path / "results"), "--tasks", "sl_*_gen", "completion_??", "--tokens-per-step", "1000"]
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    rows = [row for row in _rows(tmp_path / "out") if row["panel"] == "sl_*_gen (2 tasks)"]
    line = next(row["line"] for row in rows if row["line"].startswith("focus"))
    points = {float(row["x"]): row for row in rows if row["line"] == line}
    assert list(points) == [0.0, 100_000.0, 200_000.0]
    tasks = load_result(tmp_path / "results" / "focus-200" / "result.json")["tasks"]
    scores = [tasks[name]["metrics"]["acc"] for name in ("sl_boolq_gen", "sl_rte_gen")]
    assert float(points[200_000.0]["y"]) == pytest.approx(100 * sum(score["value"] for score in scores) / 2)
    below = math.hypot(*(100 * (score["value"] - score["low"]) for score in scores)) / 2
    assert float(points[200_000.0]["low"]) == pytest.approx(float(points[200_000.0]["y"]) - below)
    assert [row["x"] for row in rows if row["line"] == "source"] == ["0"]


def _with_vocabulary(folder: Path, size: int) -> None:
    result = load_result(folder / "result.json")
    result["model"]["vocab_size"] = size
    write_result(folder, result)


def _sizes(tmp_path: Path) -> Path:
    root = tmp_path / "results"
    _with_vocabulary(make_result(root, "source", None, None, skill=0.2), 32_000)
    for number, added in enumerate((50, 500, 5000)):
        _with_vocabulary(make_result(root, f"plus_{added}", f"align_{added}", 30, skill=0.6 - 0.1 * number), 32_000 + added)
    return root


def test_scores_and_speed_over_new_tokens(tmp_path: Path) -> None:
    """Low-resource paper, Figures 2 and 4: performance, speedup and the ratio of target tokens by the size of the new vocabulary."""
    root = _sizes(tmp_path)
    speeds = {"source": 100.0, "plus_50": 120.0, "plus_500": 200.0, "plus_5000": 210.0}
    efficiency = make_efficiency(tmp_path / "generated", speeds)
    told = json.loads((efficiency / "efficiency.json").read_text())
    for name, figures in told["models"].items():
        figures["prompt_target_token_ratio"] = 0.0 if name == "source" else 0.4
    (efficiency / "efficiency.json").write_text(json.dumps(told))
    words = ["new-tokens", "--results", str(root), "--tasks", "completion_sl", "--efficiency", str(efficiency)]
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    rows = _rows(tmp_path / "out")
    speed = {float(row["x"]): float(row["y"]) for row in rows if (row["panel"], row["line"]) == ("Speed of generation", "adapted")}
    assert speed == {50.0: 1.2, 500.0: 2.0, 5000.0: 2.1}
    shares = {row["line"]: float(row["y"]) for row in rows if row["panel"] == "Share of new tokens"}
    assert shares == {"new tokens in answers": 62.5, "new tokens in prompts": 40.0}
    scores = [float(row["y"]) for row in rows if (row["panel"], row["line"]) == ("completion_sl", "adapted")]
    tasks = [load_result(root / f"plus_{added}" / "result.json")["tasks"]["completion_sl"] for added in (50, 500, 5000)]
    assert scores == pytest.approx([100 * task["metrics"]["acc"]["value"] for task in tasks])


@pytest.mark.long
def test_a_grid_of_sources_and_languages(tmp_path: Path) -> None:
    """Low-resource paper, Figure 4: "across models, languages, and tasks"; Figure 2: "dotted lines denote Source and LAPT"."""
    tasks = ["mt_en_my", "sum_my"]
    for base, name in ((32_000, "llama2"), (128_256, "llama3")):
        root = tmp_path / name
        _with_vocabulary(make_result(root / "results", "source", None, None, skill=0.2, tasks=tasks), base)
        _with_vocabulary(make_result(root / "results", "lapt", "none", 40, skill=0.4, tasks=tasks), base)
        for method in ("align", "mean"):
            for number, added in enumerate((50, 500)):
                folder = make_result(root / "results", f"{method}_{added}", method, added, skill=0.6 - 0.1 * number, tasks=tasks)
                _with_vocabulary(folder, base + added)
                result = load_result(folder / "result.json")  # of a run of its own, as sizes of one method are
                result["facts"]["run"] = {"id": f"{method} {added}"}
                write_result(folder, result)
        for factor, task in enumerate(tasks, start=1):
            speeds = {"source": 100.0, "align_50": 100.0 + 10 * factor, "align_500": 200.0, "mean_50": 120.0, "mean_500": 190.0}
            folder = make_efficiency(root / f"generated_{task}", speeds, task=task)
            told = json.loads((folder / "efficiency.json").read_text())
            for model, figures in told["models"].items():
                figures["prompt_target_token_ratio"] = 0.0 if model == "source" else 0.1 * factor
            (folder / "efficiency.json").write_text(json.dumps(told))
    words = ["new-tokens", "--grid", f"Llama2={tmp_path / 'llama2'}", f"Llama3={tmp_path / 'llama3'}", "--tasks", "mt_en_*", "sum_*"]
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    rows = _rows(tmp_path / "out")
    kinds = ("", ": speed", ": new tokens")
    titles = [f"{source}, {task}{kind}" for source in ("Llama2", "Llama3") for kind in kinds for task in tasks]
    assert list(dict.fromkeys(row["panel"] for row in rows)) == titles, "a row for each source and quantity, a column for each task"

    def drawn(panel: str, line: str) -> dict[float, float]:
        return {float(row["x"]): float(row["y"]) for row in rows if (row["panel"], row["line"]) == (panel, line)}

    assert drawn("Llama3, mt_en_my: speed", "align") == {50.0: 1.1, 500.0: 2.0}
    assert drawn("Llama3, sum_my: speed", "align") == {50.0: 1.2, 500.0: 2.0} and drawn("Llama2, sum_my: speed", "source") == {0.0: 1.0}
    assert drawn("Llama2, sum_my: new tokens", "new tokens in prompts, mean") == {50.0: 20.0, 500.0: 20.0}
    assert drawn("Llama2, mt_en_my: new tokens", "new tokens in answers, align") == {50.0: 62.5, 500.0: 62.5}
    scores = load_result(tmp_path / "llama2/results/lapt/result.json")["tasks"]["sum_my"]["metrics"]
    assert list(drawn("Llama2, sum_my", "lapt").values()) == pytest.approx([100 * scores["acc"]["value"]]), "trained without new tokens"
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None and len(manifest.inputs) == 2 * (6 + 2)

    def refused(*more: str) -> str:
        with pytest.raises(ValueError) as error:
            main([*words, *more, "--output", str(tmp_path / "none")])
        assert not (tmp_path / "none").exists()
        return str(error.value)

    assert refused("--results", str(tmp_path)).startswith("--grid is only for new-tokens, and its folders hold results")
    (tmp_path / "llama3/generated_sum_my/efficiency.json").unlink()
    assert (
        refused() == f"{tmp_path / 'llama3'} has no output of eval.generate --task sum_my; generate with the source and every model of it"
    )


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    make_results(tmp_path / "results", steps=(100,))

    def refused(*words: str) -> str:
        with pytest.raises(ValueError) as error:
            main([*words, "--output", str(tmp_path / "out")])
        assert not (tmp_path / "out").exists()
        return str(error.value)

    assert refused("loss") == "the loss figure needs --run; give folders of recipes.train"
    assert "has no metrics.jsonl; give folders that recipes.train wrote" in refused("loss", "--run", str(tmp_path))
    results = ["--results", str(tmp_path / "results"), "--tasks"]
    assert refused("suite", *results, "arc_*").startswith("no task matches arc_*; the results have completion_en, ")
    assert refused("suite", *results, "sl_*").startswith("no run has two checkpoints with all 2 tasks of sl_*; evaluate more")
    _with_vocabulary(tmp_path / "results" / "source", 100)
    for name in ("focus-100", "mean-100"):
        _with_vocabulary(tmp_path / "results" / name, 100)
    assert refused("new-tokens", *results, "sl_*").startswith("0 of the models have more tokens than source (100); evaluate at least two")
