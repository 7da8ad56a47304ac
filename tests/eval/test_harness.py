"""The command from folders to results, and its refusals."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from common.artifacts import read_manifest
from conversion.measuring.bits_per_byte import choose_start_token, score_documents
from eval.harness import main
from eval.running.model_names import named_checkpoints
from eval.running.task_runs import TASKS_DIR
from tests.eval.paper_rows import write_rows
from tests.eval.tiny_models import SENTENCES, tiny_llama, tiny_opt, tiny_tokenizer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def texts(tmp_path):
    sl, en = tmp_path / "sl.txt", tmp_path / "en.txt"
    sl.write_text(f"{SENTENCES[0]}\n{SENTENCES[1]}\n", encoding="utf-8")
    en.write_text(f"{SENTENCES[2]}\n{SENTENCES[3]}\n", encoding="utf-8")
    return ["--text", f"sl={sl}", f"en={en}"]


def strict(path: Path):
    def refuse(constant):
        raise AssertionError(f"{constant} in {path}")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def fails_with(sentence: str, arguments: list) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        main([str(argument) for argument in arguments])


def test_two_models_from_folders_to_results(save_checkpoint, texts, tmp_path, capsys):
    opt, llama, tokenizer = tiny_opt(), tiny_llama(), tiny_tokenizer(in_front="<s>")
    facts = {"method": "focus", "head": "tied", "seed": 3, "step": 20}
    models = [save_checkpoint("opt", opt, tiny_tokenizer(), **facts), save_checkpoint("llama", llama, tokenizer)]
    output = tmp_path / "results"
    arguments = ["--model", *map(str, models), *texts, "--tasks", "completion_sl", "completion_en", "--output", str(output)]
    capsys.readouterr()  # of the saving, for which transformers 5 has a bar of its own
    assert main(arguments) == 0
    printed = capsys.readouterr()
    result, other = strict(output / "opt" / "result.json"), strict(output / "llama" / "result.json")

    assert {key: result["facts"][key] for key in facts} == facts
    assert other["facts"] == {}
    assert result["model"]["digest"] != other["model"]["digest"]
    assert (result["model"]["vocab_size"], result["model"]["model_type"], result["model"]["written_by"]) == (
        320,
        "opt",
        "conversion.nemo_to_hf",
    )
    assert result["settings"]["start_token_used"]["token"] == "</s>"
    assert other["settings"]["start_token_used"]["token"] == "<s>"
    score = score_documents(llama, tokenizer, SENTENCES[:2], start_token=choose_start_token(tokenizer), window_tokens=64)
    assert other["texts"]["sl"]["bits_per_byte"] == pytest.approx(score.bits_per_byte, rel=1e-6)
    assert other["texts"]["sl"]["num_documents"] == 2
    assert list(result["texts"]) == ["sl", "en"]
    documents = [json.loads(line) for line in (output / "llama/documents/sl.jsonl").read_text().splitlines()]
    assert [d["nats"] for d in documents] == pytest.approx([d.nats for d in score.documents], rel=1e-6)

    task = result["tasks"]["completion_sl"]
    samples = [json.loads(line) for line in (output / "opt/samples/completion_sl.jsonl").read_text().splitlines()]
    assert len(samples) == task["num_items"] == 40
    assert task["metrics"]["acc"]["value"] == pytest.approx(sum(sample["acc"] for sample in samples) / 40)
    assert task["task_hash"] == other["tasks"]["completion_sl"]["task_hash"]
    assert task["task_hash"] != result["tasks"]["completion_en"]["task_hash"]
    assert [sample["resps"] for sample in samples] != [
        json.loads(line)["resps"] for line in (output / "llama/samples/completion_sl.jsonl").read_text().splitlines()
    ]

    manifest = read_manifest(output / "opt")
    assert manifest.stage == "eval.harness"
    assert manifest.inputs["model"] == result["model"]["digest"]
    assert manifest.facts["method"] == "focus"
    assert f"{result['texts']['sl']['bits_per_byte']:.4f}" in printed.out
    assert "it/s" not in printed.err, "lm-eval's progress bars"

    before = (output / "opt" / "result.json").stat().st_mtime_ns
    assert main(arguments) == 0
    assert "[1/2] opt: evaluated before" in capsys.readouterr().err
    assert (output / "opt" / "result.json").stat().st_mtime_ns == before
    fails_with(
        f"{output}/opt has the result of another model, text, task or setting;"
        " name the model with --model NAME=FOLDER, choose another --output, or remove it",
        [*arguments, "--start-token", "bos"],
    )


def test_tasks_score_as_with_the_stock_evaluator(save_checkpoint, tmp_path):
    """`lm_eval.simple_evaluate` with lm-eval's own backend, loading the folder itself; BOS before the prompt as the tokenizer has it."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    folder = save_checkpoint("llama", tiny_llama(), tiny_tokenizer(in_front="<s>"))
    manager = TaskManager(include_path=str(TASKS_DIR), include_defaults=False)
    stock = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(folder), "dtype": "float32"},
        device="cpu",
        tasks=["completion_sl"],
        task_manager=manager,
        bootstrap_iters=100,
    )
    assert main(["--model", str(folder), "--tasks", "completion_sl", "--output", str(tmp_path / "results")]) == 0
    metrics = strict(tmp_path / "results/llama/result.json")["tasks"]["completion_sl"]["metrics"]
    for metric in ("acc", "acc_norm"):
        assert metrics[metric]["value"] == stock["results"]["completion_sl"][f"{metric},none"]
        assert metrics[metric]["stderr"] == stock["results"]["completion_sl"][f"{metric}_stderr,none"]
        assert metrics[metric]["low"] < metrics[metric]["value"] < metrics[metric]["high"]
    lines = (tmp_path / "results/llama/samples/completion_sl.jsonl").read_text().splitlines()
    for sample, expected in zip(map(json.loads, lines), stock["samples"]["completion_sl"], strict=True):
        assert [answer[0][0] for answer in sample["resps"]] == pytest.approx([answer[0][0] for answer in expected["resps"]], rel=1e-5)


def test_a_broken_model_is_reported_and_the_others_are_evaluated(save_checkpoint, texts, tmp_path, capsys):
    broken = tiny_opt(seed=1)
    broken.model.decoder.layers[1].fc2.bias.data[3] = math.nan
    models = [save_checkpoint("broken", broken, tiny_tokenizer()), save_checkpoint("whole", tiny_opt(), tiny_tokenizer())]
    output = tmp_path / "results"
    fails_with(
        f"1 of 2 models could not be evaluated: broken: the log-likelihood of document 1 of {tmp_path}/sl.txt with model broken"
        " is not finite: the model's logits are broken; check the checkpoint with `python -m conversion.verify`",
        ["--model", *models, *texts, "--output", output],
    )
    assert [path.name for path in output.iterdir()] == ["whole"], "a failed model leaves something behind"
    assert "whole" in capsys.readouterr().out
    fails_with(
        "1 of 1 models could not be evaluated: broken: task completion_sl: the model's logits are not finite;"
        " check the checkpoint with `python -m conversion.verify`",
        ["--model", models[0], "--tasks", "completion_sl", "--output", output],
    )


def test_weights_that_lack_a_tensor(save_checkpoint, texts, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = save_checkpoint("opt", tiny_opt(), tiny_tokenizer())
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.decoder.layers.0.fc1.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    fails_with(
        f"1 of 1 models could not be evaluated: opt: the weights in {folder} lack 1 tensors of the model,"
        " first model.decoder.layers.0.fc1.weight; export it again",
        ["--model", folder, *texts, "--output", tmp_path / "results"],
    )


@pytest.mark.slow
def test_refusals_before_anything_is_written(save_checkpoint, texts, tmp_path):
    output = tmp_path / "results"
    folder = save_checkpoint("opt", tiny_opt(), tiny_tokenizer())
    end = ["--output", output]
    fails_with("nothing to evaluate: give --text, --tasks or both", ["--model", folder, *end])
    fails_with(f"the model folder {tmp_path}/none does not exist", ["--model", tmp_path / "none", *texts, *end])
    fails_with(f"the text file {tmp_path}/none.txt does not exist", ["--model", folder, "--text", f"sl={tmp_path}/none.txt", *end])
    fails_with("--text a.txt is not of the form NAME=FILE, for example sl=heldout.sl.txt", ["--model", folder, "--text", "a.txt", *end])
    fails_with("--text names sl twice; give each text its own name", ["--model", folder, *texts[:2], texts[1], *end])
    with pytest.raises(ValueError, match=r"^unknown task completion_de; known tasks are completion_en, completion_sl, flores_en_it, "):
        main(["--model", str(folder), "--tasks", "completion_de", "--output", str(output)])
    fails_with(
        f"the task folder {tmp_path}/tasks does not exist",
        ["--model", folder, "--tasks", "completion_sl", "--task-dir", tmp_path / "tasks", *end],
    )
    fails_with(
        "--context-length is 128, but the model has 64 positions; use 64 or less",
        ["--model", folder, *texts, "--context-length", "128", *end],
    )
    fails_with(f"--model gives {folder} more than once; give each folder once", ["--model", folder, f"x={folder}", *texts, *end])
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n\n")
    with pytest.raises(ValueError, match=rf"^there is no text in {re.escape(str(empty))}"):
        main(["--model", str(folder), "--text", f"sl={empty}", "--output", str(output)])
    large = save_checkpoint("large", tiny_opt(vocab_size=300), tiny_tokenizer(vocab_size=320))
    fails_with(
        f"the tokenizer in {large} has ids up to 319, but the embedding matrix has 300 rows:"
        " it is the tokenizer of another model; copy the right one there",
        ["--model", large, *texts, *end],
    )
    other = save_checkpoint("other", tiny_opt(), tiny_tokenizer(), tokenizer_digest="xxh3:0")
    with pytest.raises(
        ValueError, match=rf"^{re.escape(str(other))} uses tokenizer xxh3:\w+, but the manifest of .* uses tokenizer xxh3:0;"
    ):
        main(["--model", str(other), *texts, "--output", str(output)])
    edited = save_checkpoint("edited", tiny_opt(), tiny_tokenizer(), step=1)
    with open(edited / "model.safetensors", "r+b") as stream:
        stream.seek(-4, os.SEEK_END)
        stream.write(b"\0\0\0\0")
    fails_with(
        f"{edited}/model.safetensors was edited after conversion.nemo_to_hf wrote it: its digest is not that of its manifest;"
        f" make {edited} again",
        ["--model", edited, *texts, *end],
    )
    assert not output.exists()


def test_names_tell_folders_apart():
    assert list(named_checkpoints(["runs/focus/hf", "runs/mean/hf"])) == ["focus-hf", "mean-hf"]
    assert list(named_checkpoints(["runs/focus/hf"])) == ["hf"]
    assert list(named_checkpoints(["source=models/opt", "runs/mean/hf", "models/opt-125m"])) == ["source", "hf", "opt-125m"]
    with pytest.raises(ValueError, match=r"^two models are called hf; give one of them another name with --model NAME=FOLDER$"):
        named_checkpoints(["hf=models/opt", "runs/mean/hf"])


def test_help_and_tables_do_not_load_torch():
    code = (
        "import sys, eval.harness, eval.learning_curves;"
        "print({'torch', 'transformers', 'lm_eval', 'matplotlib', 'datasets'} & set(sys.modules) or 'light')"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "light"


@pytest.mark.long  # the stock command indexes 13,000 files first
def test_the_task_folder_works_with_the_stock_command(save_checkpoint, texts, tmp_path):
    folder = save_checkpoint("llama", tiny_llama(num_positions=512), tiny_tokenizer(in_front="<s>"))
    output, data = tmp_path / "results", write_rows(tmp_path / "data")
    tasks = ["completion_sl", "sl_copa_mc", "sl_copa_gen"]
    asked = ["--tasks", *tasks, "--data", str(data), "--metadata", '{"shots": 1}']
    assert main(["--model", str(folder), *texts, *asked, "--output", str(output)]) == 0
    ours = strict(output / "llama" / "result.json")
    start_id = ours["settings"]["start_token_used"]["id"]

    def stock(names: str, arguments: str, **metadata) -> dict:
        out = tmp_path / f"stock_{names}"
        command = [sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--model_args", f"pretrained={folder},dtype=float32{arguments}"]
        command += ["--device", "cpu", "--include_path", str(TASKS_DIR), "--tasks", names, "--output_path", str(out)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        # From the checkout, where the papers' tasks find their protocols.
        command += ["--metadata", json.dumps(metadata)]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=300, capture_output=True)
        return json.loads(next(out.rglob("results_*.json")).read_text())["results"]

    found = stock(",".join(tasks), "", data=str(data), shots=1)
    for task in tasks:
        assert found[task]["acc,none"] == pytest.approx(ours["tasks"][task]["metrics"]["acc"]["value"]), task
    assert found["sl_copa_gen"]["invalid,none"] == ours["tasks"]["sl_copa_gen"]["metrics"]["invalid"]["value"]
    found = stock("heldout_text", f",add_bos_token=False,prefix_token_id={start_id}", text=texts[1].removeprefix("sl="))
    assert found["heldout_text"]["bits_per_byte,none"] == pytest.approx(ours["texts"]["sl"]["bits_per_byte"], rel=1e-6)
