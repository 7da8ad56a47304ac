"""How long evaluation takes beside the model itself: start-up, a whole suite, statistics, report, and vLLM beside transformers.

python -m benchmarks.eval --data eval_data/     (rows of docs/evaluation.md; rows of our own without)
python -m benchmarks.eval --model smollm2/ --data eval_data/ --metadata '{"shots": 1}' --limit 5     (a real model, beside bare passes)
With vLLM's environment (`make test-vllm`), --vllm compares its backend with transformers'.
"""

from __future__ import annotations

import json
import logging
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from common import command
from common.tables import markdown_table

SUITE = ("sl_generative", "sl_multiple_choice")
REAL_SUITE = ("completion_sl", "completion_en", "sl_copa_mc", "sl_copa_gen", "sl_rte_mc", "sl_rte_gen")
BUDGETS = {"start": 10.0, "statistics": 5.0, "report": 5.0, "suite": 1.1}


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


@dataclass(frozen=True)
class SuiteCost:
    """What a suite costs in one process, imports aside, by each way of asking it.

    Attributes:
        start: tasks read, model loaded.
        whole: everything answered, scored and written.
        inside: the model's own passes in it.
        bare: every request alone, without padding, by the model and nothing else; None where it was not measured.
        stock: the same requests by lm-eval's own backend, in batches of its own; None as above.
        difference: the largest relative one between its log-likelihoods and ours.
    """

    start: Cost
    whole: Cost
    inside: Cost
    bare: Cost | None
    stock: Cost | None
    difference: float
    num_items: int
    num_requests: int


class Stopwatch:
    """Seconds within a block, added up."""

    def __init__(self) -> None:
        self.clock = self.processor = 0.0

    def __enter__(self) -> None:
        self._start = time.monotonic(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.clock += time.monotonic() - self._start[0]
        self.processor += time.process_time() - self._start[1]

    @property
    def cost(self) -> Cost:
        return Cost(self.clock, self.processor)


def suite_cost(
    model: Path, scratch: Path, data: Path, metadata: dict[str, int], *, tasks: Sequence[str], limit: int | None, beside: bool
) -> SuiteCost:
    """What a suite costs with all it needs, and what the model's own passes in it do.

    Args:
        beside: measure the same requests alone and by lm-eval's own backend too.
    """
    from conversion.checkpoints.hf_model import be_quiet_and_offline, inspect_checkpoint, load_model
    from eval.running import evaluation
    from eval.running.backends import Machine, Settings
    from eval.running.hf_backend import LocalModel
    from eval.running.task_runs import find_tasks

    be_quiet_and_offline()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    start, inside, whole = Stopwatch(), Stopwatch(), Stopwatch()
    load = evaluation.load_model

    def loading(*arguments: Any, **named: Any) -> Any:
        with start:
            return load(*arguments, **named)

    evaluation.load_model = loading

    def timed(name: str) -> None:
        plain = getattr(LocalModel, name)

        def call(self: LocalModel, *arguments: object, **named: object) -> object:
            with inside:
                return plain(self, *arguments, **named)

        setattr(LocalModel, name, call)

    timed("_pass")
    timed("_model_generate")
    with start:
        found = find_tasks(tasks, metadata={"data": str(data), **metadata}, limit=limit)
        checkpoint = inspect_checkpoint(model, name="model")
    settings = Settings(cut_prompts=True)
    output = scratch / "suite"
    before = start.cost
    with whole:
        result = evaluation.evaluate_checkpoint(checkpoint, output, texts=[], tasks=found, settings=settings, machine=Machine())
    requests = [instance for task in found.values() for instance in task.task.instances]
    bare = stock = None
    difference = 0.0
    if beside:
        loaded = load_model(checkpoint, device="cpu", dtype="float32")
        bare = _bare_passes(loaded, checkpoint.tokenizer, requests)
        stock, answers = _stock_passes(loaded, checkpoint.tokenizer, requests)
        difference = _difference(output, found, answers)
    items = sum(task["num_items"] for task in result["tasks"].values())
    loaded_in = Cost(start.clock - before.clock, start.processor - before.processor)
    rest = Cost(whole.clock - loaded_in.clock, whole.processor - loaded_in.processor)
    return SuiteCost(start.cost, rest, inside.cost, bare, stock, difference, items, len(requests))


def _bare_passes(model: Any, tokenizer: Any, requests: Sequence[Any]) -> Cost:
    import torch

    from eval.running.encoding import Encoder

    encoder, watch = Encoder(tokenizer), Stopwatch()
    scored = [request for request in requests if request.request_type == "loglikelihood"]
    sequences = [[*context, *continuation][:-1] for context, continuation in encoder.pairs(scored)]
    prompts = [request for request in requests if request.request_type == "generate_until"]
    with torch.inference_mode(), watch:
        for ids in sequences:
            model(torch.tensor([ids]))
        for request in prompts:
            ids = torch.tensor([encoder.tok_encode(request.args[0])])
            ends = {"stop_strings": request.args[1]["until"], "tokenizer": tokenizer, "pad_token_id": tokenizer.eos_token_id}
            model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=request.args[1]["max_gen_toks"], **ends)
    return watch.cost


def _stock_passes(model: Any, tokenizer: Any, requests: Sequence[Any]) -> tuple[Cost, dict[str, list[Any]]]:
    from lm_eval.models.huggingface import HFLM

    watch = Stopwatch()
    backend = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=8)
    answers: dict[str, list[Any]] = {}
    with watch:
        for task in dict.fromkeys(request.task_name for request in requests):
            some = [request for request in requests if request.task_name == task]
            answers[task] = getattr(backend, some[0].request_type)(some, disable_tqdm=True)
    return watch.cost, answers


def _difference(output: Path, tasks: Mapping[str, Any], answers: Mapping[str, list[Any]]) -> float:
    """Largest relative one between log-likelihoods.

    Raises:
        ValueError: if a generated text or what is greedy differs.
    """
    largest = 0.0
    for name in tasks:
        lines = (output / "samples" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        ours = [answer for sample in map(json.loads, lines) for answers_of in sample["resps"] for answer in answers_of]
        for one, other in zip(ours, answers[name], strict=True):
            if isinstance(other, str) or bool(one[1]) != other[1]:
                if one != other:
                    raise ValueError(f"{name}: {one!r} here, {other!r} by lm-eval's own backend")
                continue
            largest = max(largest, abs(one[0] - other[0]) / abs(other[0]))
    return largest


def tokens_read(tasks: Mapping[str, Any], tokenizer: Any, *, batch_size: int = 8) -> tuple[int, int]:
    """Tokens of all requests' prompts and choices, each request alone; and those that are read of them here."""
    from eval.running.beginnings import most_together, stems_of
    from eval.running.encoding import Encoder

    encoder = Encoder(tokenizer)
    requests = [instance for task in tasks.values() for instance in task.task.instances]
    pairs = encoder.pairs([request for request in requests if request.request_type == "loglikelihood"])
    prompts = [tuple(encoder.tok_encode(request.args[0])) for request in requests if request.request_type == "generate_until"]
    sequences = [(*context, *continuation)[:-1] for context, continuation in pairs]
    contexts = {tuple(context) for context, _ in pairs}
    own = list(dict.fromkeys(sequences))
    read = sum(stem.num_tokens(own) for stem in stems_of(own, most=most_together(batch_size)))
    read += sum(1 if prompt in contexts else len(prompt) for prompt in prompts)
    return sum(map(len, sequences)) + sum(map(len, prompts)), read


def command_cost(models: Sequence[str], scratch: Path, words: Sequence[str]) -> Cost:
    """The command from its start to its end, with all processes that it starts."""
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    output = Path(tempfile.mkdtemp(dir=scratch))
    arguments = ["--model", *models, *words, "--device", "cpu", "--cut-prompts", "--output", str(output / "results")]
    subprocess.run([sys.executable, "-m", "eval.harness", *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(time.monotonic() - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def real_rows(model: Path, scratch: Path, data: Path, metadata: dict[str, int], limit: int | None) -> list[list[str]]:
    """A suite of small tasks by a real model: by its own passes, by bare ones, by lm-eval's loop; with workers, and of several checkpoints."""
    found = suite_cost(model, scratch, data, metadata, tasks=REAL_SUITE, limit=limit, beside=True)
    assert found.bare is not None and found.stock is not None
    print(found, file=sys.stderr, flush=True)
    words = ["--tasks", *REAL_SUITE, "--data", str(data), "--metadata", json.dumps(metadata)]
    words += ["--limit", str(limit)] if limit is not None else []
    one = command_cost([f"a={model}"], scratch, words)
    two = command_cost([f"a={model}"], scratch, [*words, "--workers", "2"])
    print(f"one process {one}, two workers {two}", file=sys.stderr, flush=True)
    # Copies: a folder may be given once.
    three = command_cost([f"{name}={shutil.copytree(model, scratch / name)}" for name in "abc"], scratch, words)
    told = f"{len(REAL_SUITE)} tasks, {found.num_requests} requests"
    return [
        ["start but for imports: tasks read, model loaded", *found.start.cells(), ""],
        [f"{told}: answered, scored, written", *found.whole.cells(), ""],
        ["the model's own passes in it", *found.inside.cells(), ""],
        ["all by its own passes", *_ratio(found.whole, found.inside), f"{BUDGETS['suite']:.1f} x"],
        ["bare passes: each request alone, no padding", *found.bare.cells(), ""],
        ["all by bare passes", *_ratio(found.whole, found.bare), f"{BUDGETS['suite']:.1f} x"],
        ["lm-eval's own backend, batches of 8", *found.stock.cells(), ""],
        ["all by lm-eval's own backend", *_ratio(found.whole, found.stock), ""],
        [f"largest difference to it: {found.difference:.1e}", "", "", ""],
        ["the command, one process", *one.cells(), ""],
        ["the command, --workers 2 (processor seconds of workers are not seen)", f"{two.clock:.1f}", "", ""],
        ["the command, three checkpoints", *three.cells(), ""],
        ["each checkpoint more", *Cost((three.clock - one.clock) / 2, (three.processor - one.processor) / 2).cells(), ""],
    ]


def _ratio(ours: Cost, theirs: Cost) -> list[str]:
    return [f"{ours.clock / theirs.clock:.2f} x", f"{ours.processor / theirs.processor:.2f} x"]


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
    parser.add_argument("--model", type=Path, help="only the small tasks by this real model, beside bare passes and lm-eval's own backend")
    parser.add_argument("--tokens", action="store_true", help="with --model: only count the tokens of requests, and those that are read")
    parser.add_argument("--limit", type=int, help="rows of each task")
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
        metadata = json.loads(arguments.metadata)
        if arguments.model is not None and arguments.tokens:
            from transformers import AutoTokenizer

            from eval.running.task_runs import find_tasks

            for suite in (SUITE, REAL_SUITE):
                found = find_tasks(suite, metadata={"data": str(data), **metadata}, limit=arguments.limit)
                alone, read = tokens_read(found, AutoTokenizer.from_pretrained(arguments.model))
                print(f"{', '.join(suite)}: {alone:,} tokens alone, {read:,} read, {read / alone:.2f}")
            return command.DONE
        if arguments.model is not None:
            print(
                markdown_table(
                    ["what", "seconds", "processor seconds", "budget"], real_rows(arguments.model, scratch, data, metadata, arguments.limit)
                )
            )
            return command.DONE
        rows = [
            ["start to first answers", *start_cost(model, scratch).cells(), f"{BUDGETS['start']:.0f} s"],
            ["statistics", *statistics_cost().cells(), f"{BUDGETS['statistics']:.0f} s"],
            ["report of 100 checkpoints", *report_cost(scratch).cells(), f"{BUDGETS['report']:.0f} s"],
        ]
        found = suite_cost(model, scratch, data, metadata, tasks=SUITE, limit=arguments.limit, beside=False)
        rows.append([f"Slovene suite, {found.num_items} items", *found.whole.cells(), ""])
        rows.append(["the model's own passes in it", *found.inside.cells(), ""])
        rows.append(["suite by the model's own passes", *_ratio(found.whole, found.inside), f"{BUDGETS['suite']:.1f} x"])
        print(markdown_table(["what", "seconds", "processor seconds", "budget"], rows))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
