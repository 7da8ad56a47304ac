"""A tiny model that really learns, from training to report: invalid answers become few, bits per byte fall, the page says so."""

import json

import pytest

from eval.harness import main as evaluate
from eval.report import main as report
from tests.eval.learned import ENGLISH, solved_texts, train, train_tokenizer, write_questions
from tests.eval.tiny_models import tiny_llama


@pytest.mark.long
def test_three_checkpoints_from_training_to_report(tmp_path):
    from common.artifacts import write_manifest

    data = write_questions(tmp_path / "data")
    texts = solved_texts(data, "train")
    tokenizer = train_tokenizer(texts)
    model = tiny_llama(vocab_size=500, num_positions=256, hidden_size=64, seed=1)

    def save(step):
        folder = tmp_path / "models" / f"focus-{step}"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        facts = {"method": "focus", "head": "tied", "seed": 1, "step": step}
        write_manifest(folder, stage="conversion.nemo_to_hf", facts=facts)

    steps = (0, 25, 60)
    train(model, tokenizer, texts, save_at={step: lambda step=step: save(step) for step in steps}, learning_rate=3e-3)

    heldout = {"sl": solved_texts(data, "val"), "en": ENGLISH}
    for name, documents in heldout.items():
        lines = "".join(json.dumps({"text": document}) + "\n" for document in documents)
        (tmp_path / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    models = [str(tmp_path / "models" / f"focus-{step}") for step in steps]
    arguments = ["--text", *(f"{name}={tmp_path / name}.jsonl" for name in heldout), "--data", str(data), "--metadata", '{"shots": 0}']
    arguments += ["--tasks", "sl_boolq_gen", "sl_boolq_mc", "--output", str(tmp_path / "results")]
    assert evaluate(["--model", *models, *arguments]) == 0

    found = [json.loads((tmp_path / f"results/focus-{step}/result.json").read_text()) for step in steps]
    invalid = [result["tasks"]["sl_boolq_gen"]["metrics"]["invalid"]["value"] for result in found]
    bits = [result["texts"]["sl"]["bits_per_byte"] for result in found]
    assert invalid[0] == 1.0, "random weights do not answer da or ne"
    assert invalid[2] < 0.2
    assert bits[0] > bits[1] > bits[2]
    assert found[2]["tasks"]["sl_boolq_gen"]["metrics"]["acc"]["value"] > 0.4

    assert report(["--results", str(tmp_path / "results"), "--output", str(tmp_path / "report")]) == 0
    page = (tmp_path / "report/report.html").read_text(encoding="utf-8")
    assert page.count("<figure>") == 5, "two texts, two tasks and the invalid answers of one along training"
    assert f"{bits[2]:.3f}" in page
