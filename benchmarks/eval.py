"""How long evaluation takes beside the model itself: start-up, a whole suite, statistics, report, and vLLM beside transformers.

python -m benchmarks.eval --data eval_data/     (rows of docs/evaluation.md; rows of our own without)
With vLLM's environment (`make test-vllm`), --vllm compares its backend with transformers'.
"""

from __future__ import annotations

import json
import logging
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from common import command
from common.tables import markdown_table

SUITE = ("sl_generative", "sl_multiple_choice")
BUDGETS = {"start": 10.0, "statistics": 5.0, "report": 5.0, "suite": 2.0}


def tiny_model(folder: Path, *, hidden_size: int = 128) -> Path:
    """An OPT of two layers with random weights, 2,048 positions and a small tokenizer, saved."""
    from tests.eval.tiny_models import tiny_opt, tiny_tokenizer

    tiny_opt(num_positions=2048, hidden_size=hidden_size).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Cost:
    """Seconds on the clock, and of processors: others may be working."""

    clock: float
    processor: float

    def cells(self) -> list[str]:
        return [f"{self.clock:.1f}", f"{self.processor:.1f}"]


def start_cost(model: Path, scratch: Path) -> Cost:
    """From starting the command to the first answers written."""
    output = scratch / "start"
    arguments = ["--model", str(model), "--tasks", "completion_sl", "--output", str(output)]
    start = time.monotonic()
    process = psutil.Popen([sys.executable, "-m", "eval.harness", *arguments], stdout=subprocess.DEVNULL)
    try:
        while not any(path.stat().st_size for path in output.glob(".answers/*/*.jsonl")) and not (output / model.name).exists():
            if process.poll():
                raise RuntimeError("the harness failed")
            time.sleep(0.01)
        times = process.cpu_times()
        return Cost(time.monotonic() - start, times.user + times.system)
    finally:
        process.wait()


def suite_cost(model: Path, data: Path, metadata: dict[str, int]) -> tuple[Cost, Cost, int]:
    """What a suite costs with all it needs, what the model's own passes in it do, and its items."""
    import torch

    from conversion.checkpoints.hf_model import be_quiet_and_offline, inspect_checkpoint
    from eval.running.backends import Machine, Settings
    from eval.running.evaluation import evaluate_checkpoint
    from eval.running.hf_backend import LocalModel
    from eval.running.task_runs import find_tasks

    be_quiet_and_offline()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    inside = [0.0, 0.0]

    def timed(name: str) -> None:
        whole = getattr(LocalModel, name)

        def call(self: LocalModel, *arguments: object, **named: object) -> torch.Tensor:
            start, busy = time.monotonic(), time.process_time()
            try:
                return whole(self, *arguments, **named)
            finally:
                inside[0] += time.monotonic() - start
                inside[1] += time.process_time() - busy

        setattr(LocalModel, name, call)

    timed("_model_call")
    timed("_model_generate")
    start, busy = time.monotonic(), time.process_time()
    tasks = find_tasks(SUITE, metadata={"data": str(data), **metadata})
    checkpoint = inspect_checkpoint(model, name="model")
    settings = Settings(cut_prompts=True)
    result = evaluate_checkpoint(checkpoint, model.parent / "suite", texts=[], tasks=tasks, settings=settings, machine=Machine())
    whole = Cost(time.monotonic() - start, time.process_time() - busy)
    return whole, Cost(*inside), sum(task["num_items"] for task in result["tasks"].values())


def statistics_cost() -> Cost:
    """9 runs against a tenth on 20 tasks of 500 items."""
    from conversion.measuring.significance import paired_difference

    rng = np.random.default_rng(0)
    values = [rng.random((10, 500)) for _ in range(20)]
    start, busy = time.monotonic(), time.process_time()
    for baseline, *runs in values:
        for run in runs:
            paired_difference(run, baseline)
    return Cost(time.monotonic() - start, time.process_time() - busy)


def report_cost(scratch: Path) -> Cost:
    """The command, from start to end, on 100 checkpoints of 4 runs with 20 tasks of 30 items each."""
    from tests.eval.made_results import make_results

    tasks = [f"sl_task{n}_gen" for n in range(20)]
    results = scratch / "made"
    make_results(results, steps=range(0, 2500, 100), methods=("focus", "mean", "random", "ofa"), tasks=tasks, items=30, source=False)
    arguments = ["--results", str(results), "--output", str(scratch / "report"), "--tokens-per-step", "1000000"]
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "eval.report", *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(time.monotonic() - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def backend_rows(model: Path, data: Path) -> list[list[str]]:
    """Seconds of the same tasks on both backends in one process, engines already started: once over each task beforehand."""
    from tests.eval.vllm_on_cpu import prepare

    prepare()
    from conversion.checkpoints.hf_model import inspect_checkpoint, load_model
    from eval.running.answers import RememberingModel
    from eval.running.hf_backend import LocalModel
    from eval.running.journal import Journal
    from eval.running.task_runs import find_tasks, run_task
    from eval.running.vllm_backend import VllmModel

    checkpoint = inspect_checkpoint(model, name="model")
    local = LocalModel(pretrained=load_model(checkpoint, device="cpu", dtype="float32"), tokenizer=checkpoint.tokenizer, batch_size=8)
    # Without the cache of prefixes, as the warm-up asks the same.
    small = {"enforce_eager": True, "gpu_memory_utilization": 0.1, "max_num_seqs": 32, "enable_prefix_caching": False}
    backends = {"hf": local, "vllm": VllmModel(pretrained=str(model), dtype="float32", max_model_len=1024, **small)}
    rows = []
    for task in ("sl_copa_gen", "sl_copa_mc"):
        found = find_tasks([task], metadata={"data": str(data), "shots": 1})[task]
        for name, backend in backends.items():
            for is_counted in (False, True):
                start, busy = time.monotonic(), time.process_time()
                summary, _ = run_task(RememberingModel(backend, Journal(None), requests_per_piece=256, cut_prompts=True), found)
                if is_counted:
                    score = next(iter(summary["metrics"].values()))["value"]
                    seconds = f"{time.monotonic() - start:.1f}", f"{time.process_time() - busy:.1f}"
                    rows.append([task, name, str(summary["num_items"]), *seconds, f"{score:.3f}"])
    return rows


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
            header = ["task", "backend", "items", "seconds", "processor seconds", "first score"]
            print(markdown_table(header, backend_rows(model, data), text_columns=2))
            return command.DONE
        rows = [
            ["start to first answers", *start_cost(model, scratch).cells(), f"{BUDGETS['start']:.0f} s"],
            ["statistics", *statistics_cost().cells(), f"{BUDGETS['statistics']:.0f} s"],
            ["report of 100 checkpoints", *report_cost(scratch).cells(), f"{BUDGETS['report']:.0f} s"],
        ]
        whole, inside, items = suite_cost(model, data, json.loads(arguments.metadata))
        rows.append([f"Slovene suite, {items} items", *whole.cells(), ""])
        rows.append(["the model's own passes in it", *inside.cells(), ""])
        ratios = [f"{whole.clock / inside.clock:.2f} x", f"{whole.processor / inside.processor:.2f} x"]
        rows.append(["suite by the model's own passes", *ratios, f"{BUDGETS['suite']:.0f} x"])
        print(markdown_table(["what", "seconds", "processor seconds", "budget"], rows))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
