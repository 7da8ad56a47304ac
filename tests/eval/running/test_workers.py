"""Several processes for one model: the answers of one, and a killed one is named and costs nothing that was answered."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch

from eval.harness import main
from eval.running.workers import devices_of_workers
from tests.eval.paper_rows import write_rows
from tests.eval.tiny_models import SENTENCES, tiny_llama, tiny_tokenizer

TASKS = ["completion_sl", "mt_en_sw"]  # the second is sampled, and takes long enough to be interrupted


def scores(results: Path) -> tuple[dict, dict]:
    result = json.loads((results / "llama/result.json").read_text())
    files = {
        path.name: path.read_bytes() for folder in ("samples", "items", "documents") for path in (results / "llama" / folder).iterdir()
    }
    for text in result["texts"].values():
        text.pop("seconds")
    return {name: result[name] for name in ("model", "texts", "tasks", "key")}, files


def kill_one_that_works_on(task: str, results: Path, killed: list[int]) -> None:
    """Kill the second worker once the first answers to a task are on disk."""
    end = time.monotonic() + 300
    while time.monotonic() < end and not list(results.glob(f".answers/*/{task}.*.jsonl")):
        time.sleep(0.002)
    (worker,) = (child for child in active_children() if child.name == "eval-worker-2")
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    killed.append(worker.pid)


@pytest.fixture
def one_thread():
    """The number of threads may move last digits, and workers share those that there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_workers_answer_as_one_process_and_a_killed_one_is_named(save_checkpoint, tmp_path, one_thread, capsys) -> None:
    folder = save_checkpoint("llama", tiny_llama(num_positions=512), tiny_tokenizer(in_front="<s>"))
    (tmp_path / "sl.txt").write_text("\n".join(SENTENCES * 6))
    words = ["--model", str(folder), "--text", f"sl={tmp_path}/sl.txt", "--tasks", *TASKS, "--data", str(write_rows(tmp_path / "data"))]
    words += ["--batch-size", "2", "--device", "cpu", "--metadata", '{"items": 3}']
    assert main([*words, "--output", str(tmp_path / "one")]) == 0
    one = scores(tmp_path / "one")
    capsys.readouterr()

    killed: list[int] = []
    thread = threading.Thread(target=kill_one_that_works_on, args=("mt_en_sw", tmp_path / "two", killed))
    thread.start()
    with pytest.raises(ValueError) as error:
        main([*words, "--output", str(tmp_path / "two"), "--workers", "2"])
    thread.join()
    assert str(error.value) == (
        f"1 task could not be evaluated: llama, task mt_en_sw: worker 2 of 2 on cpu (process {killed[0]}) was killed by SIGKILL"
        " (probably out of memory: give fewer --workers or a smaller --batch-size); finished answers are kept, and the same"
        " command does the rest; finished results are kept, and the same command does the rest"
    )
    assert not active_children()
    assert re.search(r"^llama: 2 workers on cpu \(process \d+\), cpu \(process \d+\)$", capsys.readouterr().err, re.MULTILINE)
    two = scores(tmp_path / "two")
    assert two[0]["texts"] == one[0]["texts"] and two[0]["model"] == one[0]["model"]
    assert two[0]["tasks"] == {"completion_sl": one[0]["tasks"]["completion_sl"]}
    assert two[1] == {name: content for name, content in one[1].items() if not name.startswith("mt_en_sw")}
    (journal,) = (tmp_path / "two/.answers").rglob("mt_en_sw.*.jsonl")
    assert journal.read_text().count("\n") > 0, "what was answered before"
    assert main([*words, "--output", str(tmp_path / "two")]) == 0
    assert scores(tmp_path / "two") == one


def test_refusals(save_checkpoint, tmp_path) -> None:
    folder = save_checkpoint("llama", tiny_llama(), tiny_tokenizer())
    words = ["--model", str(folder), "--tasks", "completion_sl", "--output", str(tmp_path / "results")]
    with pytest.raises(ValueError, match=r"^--workers is 0; expected at least 1$"):
        main([*words, "--workers", "0"])
    sentence = "--workers 2, but --device cuda:1 is one GPU; give --device cuda, so that each worker uses one"
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        main([*words, "--workers", "2", "--device", "cuda:1"])
    with pytest.raises(ValueError, match=r"^--workers 99, but torch sees \d+ GPUs? here; give one worker for each$"):
        main([*words, "--workers", "99", "--device", "cuda"])
    with pytest.raises(ValueError, match=r"^--vllm-arguments is only for vLLM, but --backend is hf; give --backend vllm, or leave it out$"):
        main([*words, "--vllm-arguments", '{"enforce_eager": true}'])
    for given, sentence in {
        '{"dtype": "float16", "seed": 1}': "--vllm-arguments repeats other options: dtype by --dtype, seed by the seeds",
        "[1]": '--vllm-arguments [1] is not a JSON object; expected one such as {"gpu_memory_utilization": 0.6}',
        "{": "--vllm-arguments { is not valid JSON: ",
    }.items():
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
            main([*words, "--backend", "vllm", "--vllm-arguments", given])
    assert devices_of_workers("cpu", 3) == ["cpu", "cpu", "cpu"]
    assert not (tmp_path / "results").exists()
