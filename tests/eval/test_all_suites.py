"""All suites, end to end, on a tiny model that was trained for seconds and real rows: from folders of models to the papers' tables."""

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from eval.harness import main as evaluate
from eval.protocols.text_overlap import hugging_face_tokenizer
from eval.report import main as report
from eval.running.task_runs import TASKS_DIR
from tests.eval.real_rows import write_real_rows
from tests.eval.suite_rows import FROM_THE_HUB
from tests.eval.tiny_models import tiny_llama, tiny_tokenizer

TASKS = sorted({path.stem for path in TASKS_DIR.rglob("*.yaml") if path.parent.name not in FROM_THE_HUB} - {"heldout_text"})
NUM_ITEMS = 5


def train(model, tokenizer, texts: list[str], *, save_at: dict[int, Callable[[], None]], learning_rate: float, batch_size: int = 8) -> None:
    """Language modelling on whole texts, calling what is to happen at a step."""
    import torch

    generator = torch.Generator().manual_seed(0)
    ids = [[1, *tokenizer(text)["input_ids"]] for text in texts]
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    model.train()
    for step in range(max(save_at) + 1):
        if step in save_at:
            model.eval()
            save_at[step]()
            model.train()
        batch = [ids[int(i)] for i in torch.randint(len(ids), (batch_size,), generator=generator)]
        longest = max(map(len, batch))
        labels = torch.tensor([row + [-100] * (longest - len(row)) for row in batch])
        loss = model(input_ids=labels.clamp(min=0), attention_mask=(labels >= 0).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def short_answers(data: Path) -> list[str]:
    """What the tasks ask, each with an answer of a word or two: a model that has learned them ends its lines soon."""
    lines = (data / "mt/flores_dev.jsonl").read_text(encoding="utf-8").splitlines()
    texts = []
    for row in map(json.loads, lines):
        words = {language: " ".join(row[language].split()[:2]) for language in ("en", "sl", "it", "ar", "ja")}
        texts += [
            f"Text: {words['en']}\nTranslation: {words['sl']}\n\n",
            f"Risposta: {words['it']}\n\n",
            "Odgovor: Da.\n",
            "Odgovor: Ne.\n",
        ]
        texts += [f"{words[language]} = {words['sl']}\n" for language in ("en", "ar", "ja")] + [f"{words['ar']}: {words['ar']}\n"]
    return texts


def save(model, tokenizer, folder: Path, **facts) -> None:
    from common.artifacts import write_manifest

    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_manifest(folder, stage="conversion.nemo_to_hf" if facts else "conversion.new_model", facts=facts)


LIKELIHOODS = ("sl_multiple_choice", "itabench_it", "itabench_en")


@pytest.mark.long  # 64 tasks, 27 of them sampled five times
def test_all_suites_from_real_rows_to_the_report(shared_data, tmp_path, monkeypatch):
    data = write_real_rows(shared_data, tmp_path / "data")
    texts = short_answers(data)
    tokenizer = tiny_tokenizer(vocab_size=3000, texts=texts)
    model = tiny_llama(vocab_size=3000, num_positions=8192, hidden_size=32, seed=1)
    source, trained = tmp_path / "models/source", tmp_path / "models/focus-150"
    save(model, tokenizer, source)
    last = {150: lambda: save(model, tokenizer, trained, method="focus", head="tied", seed=1, step=150)}
    train(model, tokenizer, texts, save_at=last, learning_rate=5e-3, batch_size=16)

    heldout = tmp_path / "sl.txt"
    heldout.write_text("".join(f"{' '.join(text.split())}\n" for text in texts[:200]), encoding="utf-8")
    monkeypatch.setenv("SCION_ROUGE_TOKENIZER", str(source))
    hugging_face_tokenizer.cache_clear()

    def run(model: Path, tasks: Sequence[str]) -> dict:
        metadata = json.dumps({"items": NUM_ITEMS})
        wanted = ["--model", str(model), "--tasks", *tasks, "--data", str(data), "--metadata", metadata, "--text", f"sl={heldout}"]
        more = ["--rouge-tokenizer", str(source), "--output", str(tmp_path / "results"), "--batch-size", "16", "--context-length", "8192"]
        assert evaluate([*wanted, *more]) == 0
        return json.loads((tmp_path / "results" / model.name / "result.json").read_text())

    result = run(trained, TASKS)
    assert sorted(result["tasks"]) == TASKS
    assert result["failures"] == {}
    for task, summary in result["tasks"].items():
        assert summary["num_items"] == (40 if task.startswith("completion") else NUM_ITEMS), task
        assert summary["prompt_cut"] == 0.0, task
        headline = next(iter(summary["metrics"].values()))
        assert math.isfinite(headline["value"]) and headline["low"] <= headline["value"] <= headline["high"], task
    samples = (tmp_path / "results/focus-150/samples/mt_en_hi.jsonl").read_text(encoding="utf-8")
    assert len(re.findall("[А-Яа-я]", samples)) > 100, "real text in another script"
    untrained = run(source, LIKELIHOODS)
    assert untrained["texts"]["sl"]["bits_per_byte"] > result["texts"]["sl"]["bits_per_byte"] + 1

    assert report(["--results", str(tmp_path / "results"), "--output", str(tmp_path / "report")]) == 0
    page = (tmp_path / "report/report.html").read_text(encoding="utf-8")
    assert not [task for task in TASKS if task not in page]
    tables = (tmp_path / "report/tables.tex").read_text(encoding="utf-8")
    columns = [len(spec) for spec in re.findall(r"begin{tabular}{l(r+)}", tables)]
    # Texts; GaMS's Tables 4 to 6 and its tasks by likelihood; SENTA by examples; SAVA's two with averages, questions and FLORES; translations
    # both ways and summaries with averages; completions in two languages; instructions in three.
    assert columns == [1, *(7, 7, 5, 7), 4, *(7, 7, 1, 4), *(11, 8, 11), *(1, 1), 3]
