"""How long evaluation takes beside the model itself: start-up, a whole suite, statistics, report, and vLLM beside transformers.

python -m benchmarks.eval --data eval_data/     (rows of docs/evaluation.md; rows of our own without)
With vLLM's environment (`make test-vllm`), --vllm compares its backend with transformers'.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from data_prep import command
from data_prep.tables import markdown_table

SUITE = ("sl_generative", "sl_multiple_choice")
BUDGETS = {"start": 10.0, "statistics": 5.0, "report": 5.0, "suite": 2.0}


def tiny_model(folder: Path, *, hidden_size: int = 128) -> Path:
    """An OPT of two layers with random weights, 2,048 positions and a small tokenizer, saved."""
    from tests.eval.tiny_models import tiny_opt, tiny_tokenizer

    tiny_opt(num_positions=2048, hidden_size=hidden_size).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def start_seconds(model: Path, scratch: Path) -> float:
    """From starting the command to the first answers written."""
    output = scratch / "start"
    arguments = ["--model", str(model), "--tasks", "completion_sl", "--output", str(output)]
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "eval.harness", *arguments], stdout=subprocess.DEVNULL)
    try:
        while not any(path.stat().st_size for path in output.glob(".answers/*/*.jsonl")) and not (output / model.name).exists():
            if process.poll():
                raise RuntimeError("the harness failed")
            time.sleep(0.01)
        return time.monotonic() - start
    finally:
        process.wait()


def suite_seconds(model: Path, data: Path, metadata: dict[str, int]) -> tuple[float, float, int]:
    """Seconds of a suite with all it needs, seconds of the model's own passes in it, and items."""
    import torch

    from conversion.hf_model import be_quiet_and_offline, inspect_checkpoint
    from eval.evaluation import Machine, Settings, evaluate_checkpoint
    from eval.hf_backend import LocalModel
    from eval.task_runs import find_tasks

    be_quiet_and_offline()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    inside = [0.0]

    def timed(name: str) -> None:
        whole = getattr(LocalModel, name)

        def call(self: LocalModel, *arguments: object, **named: object) -> torch.Tensor:
            start = time.monotonic()
            try:
                return whole(self, *arguments, **named)
            finally:
                inside[0] += time.monotonic() - start

        setattr(LocalModel, name, call)

    timed("_model_call")
    timed("_model_generate")
    start = time.monotonic()
    tasks = find_tasks(SUITE, metadata={"data": str(data), **metadata})
    checkpoint = inspect_checkpoint(model, name="model")
    settings = Settings(cut_prompts=True)
    result = evaluate_checkpoint(checkpoint, model.parent / "suite", texts=[], tasks=tasks, settings=settings, machine=Machine())
    return time.monotonic() - start, inside[0], sum(task["num_items"] for task in result["tasks"].values())


def statistics_seconds() -> float:
    """10,000 resamples of 10 runs on 20 tasks of 500 items."""
    from eval.statistics import resampled_sums

    rng = np.random.default_rng(0)
    values = [rng.random((500, 10)) for _ in range(20)]
    start = time.monotonic()
    for seed, task in enumerate(values):
        resampled_sums(task, seed=seed)
    return time.monotonic() - start


def report_seconds(scratch: Path) -> float:
    """The command, from start to end, on 100 checkpoints of 4 runs with 20 tasks of 30 items each."""
    from tests.eval.made_results import make_results

    tasks = [f"sl_task{n}_gen" for n in range(20)]
    results = scratch / "made"
    make_results(results, steps=range(0, 2500, 100), methods=("focus", "mean", "random", "ofa"), tasks=tasks, items=30, source=False)
    start = time.monotonic()
    arguments = ["--results", str(results), "--output", str(scratch / "report"), "--tokens-per-step", "1000000"]
    subprocess.run([sys.executable, "-m", "eval.report", *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - start


def backend_seconds(model: Path, data: Path) -> dict[str, float]:
    """Seconds of the same generative task on both backends, engines already started."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
    from conversion.hf_model import inspect_checkpoint, load_model
    from eval.answers import Journal, RememberingModel
    from eval.hf_backend import LocalModel
    from eval.task_runs import find_tasks, run_task
    from eval.vllm_backend import VllmModel

    found = find_tasks(["sl_copa_gen"], metadata={"data": str(data), "shots": 1})["sl_copa_gen"]
    checkpoint = inspect_checkpoint(model, name="model")
    local = LocalModel(pretrained=load_model(checkpoint, device="cpu", dtype="float32"), tokenizer=checkpoint.tokenizer, batch_size=8)
    small = {"enforce_eager": True, "gpu_memory_utilization": 0.1, "max_num_seqs": 32}
    backends = {"hf": local, "vllm": VllmModel(pretrained=str(model), dtype="float32", max_model_len=1024, **small)}
    seconds = {}
    for name, backend in backends.items():
        run_task(RememberingModel(backend, Journal(None), requests_per_piece=256, cut_prompts=True), found)  # warm-up
        start = time.monotonic()
        run_task(RememberingModel(backend, Journal(None), requests_per_piece=256, cut_prompts=True), found)
        seconds[name] = time.monotonic() - start
    return seconds


def main(argv: list[str] | None = None) -> int:
    parser = command.parser(__doc__, prog="benchmarks.eval", example="python -m benchmarks.eval --data eval_data/")
    parser.add_argument("--data", type=Path, help="folder of evaluation data")
    parser.add_argument("--metadata", default="{}", help="for the suite's tasks, for example a smaller number of items")
    parser.add_argument("--vllm", action="store_true", help="only compare the backends; in vLLM's environment")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        model = tiny_model(scratch / "model")
        data = arguments.data
        if data is None:
            from tests.eval.paper_rows import write_rows

            data = write_rows(scratch / "rows")
        if arguments.vllm:
            print(json.dumps({backend: round(seconds, 2) for backend, seconds in backend_seconds(model, data).items()}))
            return command.DONE
        rows = [
            ["start to first answers", f"{start_seconds(model, scratch):.1f} s", f"{BUDGETS['start']:.0f} s"],
            ["statistics", f"{statistics_seconds():.2f} s", f"{BUDGETS['statistics']:.0f} s"],
            ["report of 100 checkpoints", f"{report_seconds(scratch):.1f} s", f"{BUDGETS['report']:.0f} s"],
        ]
        whole, inside, items = suite_seconds(model, data, json.loads(arguments.metadata))
        ratio = f"{whole:.1f} s for {items} items, {whole / inside:.2f} x the model's {inside:.1f} s"
        rows.append(["Slovene suite", ratio, f"{BUDGETS['suite']:.0f} x"])
        print(markdown_table(["what", "measured", "budget"], rows, text_columns=2))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
