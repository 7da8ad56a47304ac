"""Masked models in the harness and the report: a figure of their own, beside causal ones and never compared with them."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from conversion.measuring import pseudo_likelihood
from eval import harness, learning_curves, report
from tests.conversion.embedding_fixtures import demo_text
from tests.eval.encoder_rows import tiny_encoder
from tests.eval.tiny_models import tiny_opt, tiny_tokenizer


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.mktemp("encoder"), demo_text("sl"), max_positions=34)


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("opt")
    tiny_opt().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "sl.txt"
    path.write_text("\n".join(demo_text("sl").splitlines()[:7]) + "\n", encoding="utf-8")
    return path


def test_masked_and_causal_models_stand_apart(
    encoder: Path, causal: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each in its own line; no test and no table puts one against the other, but two masked models are tested on the same documents."""
    other = shutil.copytree(encoder, tmp_path / "other", ignore=shutil.ignore_patterns("scion.json"))
    from transformers import AutoModelForMaskedLM

    model = AutoModelForMaskedLM.from_pretrained(encoder)
    model.lm_head.bias.data += 0.5 * (model.lm_head.bias.new_tensor(range(len(model.lm_head.bias))) % 3)
    model.save_pretrained(other)
    models = (f"causal={causal}", f"masked={encoder}", f"other={other}")
    assert harness.main(["--model", *models, "--text", f"sl={text}", "--output", str(tmp_path / "results"), "--device", "cpu"]) == 0
    table = capsys.readouterr().out
    assert re.search(r"\| sl +\| bits per byte +\| +\d\S+ \| +– \| +– \|", table), table
    assert re.search(r"\| sl +\| pseudo bits per byte +\| +– \| +\d\S+ \| +\d\S+ \|", table), table
    results = {name: json.loads((tmp_path / "results" / name / "result.json").read_text()) for name in ("causal", "masked", "other")}
    assert results["masked"]["texts"] == {} and "pseudo_texts" not in results["causal"]
    figures = results["masked"]["pseudo_texts"]["sl"]
    assert figures["low"] < figures["pseudo_bits_per_byte"] < figures["high"] and figures["window_tokens"] == 34
    assert report.main(["--results", str(tmp_path / "results"), "--baseline", "causal", "--output", str(tmp_path / "report")]) == 0
    with open(tmp_path / "report" / "scores.csv", newline="") as stream:
        rows = [(row["checkpoint"], row["metric"]) for row in csv.DictReader(stream)]
    assert sorted(rows) == [("causal", "bits_per_byte"), ("masked", "pseudo_bits_per_byte"), ("other", "pseudo_bits_per_byte")]
    told = (tmp_path / "report" / "report.md").read_text()
    assert "item by item" not in told and "never with causal ones" in told
    with pytest.raises(ValueError, match=r"is of a masked language model, which has only pseudo bits per byte; use eval.report for them$"):
        learning_curves.main(["--results", str(tmp_path / "results" / "masked"), "--output", str(tmp_path / "curves")])
    assert report.main(["--results", str(tmp_path / "results"), "--baseline", "masked", "--output", str(tmp_path / "two")]) == 0
    tests = (tmp_path / "two" / "report.md").read_text().partition("## Against masked, item by item")[2].partition("##")[0]
    assert "pseudo bits per byte: other" in tests and "causal" not in tests


def test_killed_and_gone_on(encoder: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--model", f"masked={encoder}", "--text", f"sl={text}", "--device", "cpu", "--output"]
    assert harness.main([*words, str(tmp_path / "whole")]) == 0
    nats, calls = pseudo_likelihood.pseudo_nats, 0

    def killed(*arguments: Any, **options: Any) -> float:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return nats(*arguments, **options)

    monkeypatch.setattr(pseudo_likelihood, "pseudo_nats", killed)
    with pytest.raises(KeyboardInterrupt):
        harness.main([*words, str(tmp_path / "again")])
    calls = 100
    assert harness.main([*words, str(tmp_path / "again")]) == 0
    whole, again = (
        json.loads((tmp_path / name / "masked" / "result.json").read_text())["pseudo_texts"]["sl"] for name in ("whole", "again")
    )
    windows = sum(1 for _ in (tmp_path / "again" / "masked" / "documents" / "pseudo-sl.jsonl").open())
    assert windows == 7 and calls > 100 and again["pseudo_nats"] == whole["pseudo_nats"]
    before = calls
    assert harness.main([*words, str(tmp_path / "again")]) == 0 and calls == before, "what a folder holds is not computed again"


def test_what_a_masked_model_cannot_be_asked(encoder: Path, text: Path, tmp_path: Path) -> None:
    words = ["--model", str(encoder), "--output", str(tmp_path / "results")]
    for more, sentence in (
        (
            ["--tasks", "completion_sl"],
            f"the model in {encoder} (xlm-roberta) is a masked language model, which lm-eval's tasks cannot score; give it --text alone (pseudo bits"
            " per byte), or eval.finetune and eval.retrieval",
        ),
        (
            ["--text", f"sl={text}", "--workers", "2"],
            f"--workers is 2, but pseudo bits per byte are computed by one process; leave it out for {encoder}",
        ),
        (["--text", f"sl={text}", "--context-length", "35"], "--context-length is 35, but the model has 34 positions; use 34 or less"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
            harness.main([*words, *more])
    without = shutil.copytree(encoder, tmp_path / "without", ignore=shutil.ignore_patterns("scion.json"))
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = without / name
        if path.is_file():
            path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "mask_token"}))
    sentence = f"the tokenizer of {without} has no mask token, behind which each token is hidden; set its mask_token (<mask>)"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        harness.main(["--model", str(without), "--text", f"sl={text}", "--output", str(tmp_path / "results")])
    assert not (tmp_path / "results").exists()
