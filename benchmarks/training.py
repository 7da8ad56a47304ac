"""Measure training throughput (tokens per second): this project's loop against a bare Megatron-core loop and Hugging Face's Trainer.

All three train the same OPT with batches of the same shape, each in its own processes, alternating over several rounds.
With a GPU the model is OPT-1.3B with 80,000 tokens (bfloat16, sequences of 2,048, torch's attention), and the targets are at most 3 % over
the bare loop, 1.5 times the Trainer and, on an H100, 45 % of its peak.  Without one a small model in float32 shows what the loop adds.
Medians over all steps; on a shared machine, CPU times are more reliable than wall-clock times.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import ROOT, opt_inputs
from benchmarks.training_loops import LOOPS, Size, as_arguments
from common import command
from common.tables import markdown_table
from recipes.numbers.arithmetic import flops_per_token
from recipes.planner.layout import Layout
from recipes.planner.memory import GIB, estimate_memory
from recipes.planner.parameters import PlannedModel

SIZES = {
    "cpu": Size(6, 256, 4, 4096, 256, 2, 4, "32", 10),
    "gpu": Size(24, 2048, 32, 80_000, 2048, 4, 4, "bf16", 24),
}
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # dense bfloat16 operations per second
_LOOP_TIMEOUT_SECONDS = 400


def prepare(size: Size, base: Path) -> None:
    """Tokenizer, data and checkpoint for the project's loop, by its own commands."""
    shape = [
        *("--num-layers", size.num_layers, "--hidden-size", size.hidden_size, "--num-attention-heads", size.num_heads),
        *("--ffn-size", 4 * size.hidden_size, "--max-positions", size.sequence_length, "--untied"),
    ]
    opt_inputs(base, *shape, vocab_size=1500)


def measure(loop: str, size: Size, inputs: Path, output: Path) -> dict[str, Any]:
    """Seconds of each step of one loop, by the clock ("wall") and by the processor, `peak_bytes` of the GPU and the `device`.

    Raises:
        ValueError: if the loop fails, with its last words.
    """
    words = [sys.executable, *as_arguments(loop, inputs, output, size)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=_LOOP_TIMEOUT_SECONDS, check=False)
    if done.returncode:
        raise ValueError(f"the loop {loop} ended with exit code {done.returncode}: {done.stderr[-1500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def model_of(size: Size) -> PlannedModel:
    """The model as the planner sees it."""
    config = {
        "num_layers": size.num_layers,
        "hidden_size": size.hidden_size,
        "ffn_hidden_size": 4 * size.hidden_size,
        "num_attention_heads": size.num_heads,
        "max_position_embeddings": size.sequence_length,
        "share_embeddings_and_output_weights": False,
    }
    return PlannedModel(config, vocab_rows=size.vocab_rows)


def memory_line(size: Size, peak_bytes: float) -> str:
    """The largest allocation of the project's loop beside the planner's estimate of all tensors."""
    layout = Layout(
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        data_parallel_size=1,
        micro_batch_size=size.micro_batch_size,
        accumulation_steps=size.accumulation_steps,
        sequence_length=size.sequence_length,
        devices_per_node=1,
        is_half=size.precision == "bf16",
    )
    estimate = estimate_memory(model_of(size), layout).total
    return f"peak memory of ours: {peak_bytes / GIB:.2f} GiB allocated, {estimate / GIB:.2f} GiB by the planner"


def rate_table(size: Size, steps: dict[str, dict[str, list[float]]], device: str) -> str:
    """Seconds and tokens per second of each loop, and its time over the bare loop's."""
    flops = flops_per_token(model_of(size).config, vocab_size=size.vocab_rows, sequence_length=size.sequence_length)
    peak = next((rate for name, rate in PEAKS.items() if name in device), None)
    lines = []
    for loop, seconds in steps.items():
        wall = median(seconds["wall"])
        rate = size.step_tokens / wall
        over = [median(seconds[kind]) / median(steps["bare"][kind]) - 1 for kind in ("wall", "processor")]
        mfu = f"{rate * flops / peak:.1%}" if peak else ""
        lines.append(
            [loop, f"{wall:.3f}", f"{median(seconds['processor']):.3f}", f"{rate:,.0f}", mfu, *(f"{share:+.1%}" for share in over)]
        )
    return markdown_table(["loop", "s per step", "processor", "tokens/s", "MFU", "over bare", "processor over bare"], lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__, prog="benchmarks.training", example="python -m benchmarks.training --rounds 3")
    parser.add_argument("--size", choices=sorted(SIZES), help="size of the model (default: gpu where there is one)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="number of rounds (default: 3)")
    parser.add_argument(
        "--loops",
        nargs="+",
        choices=sorted(LOOPS),
        default=sorted(LOOPS),
        help="training loops to measure; bare always runs (default: all)",
    )
    arguments = parser.parse_args(argv)
    size = SIZES[arguments.size or _size_here()]
    loops = list(dict.fromkeys(["bare", *arguments.loops]))
    steps: dict[str, dict[str, list[float]]] = {loop: {"wall": [], "processor": []} for loop in loops}
    device, peak = "cpu", 0.0
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        prepare(size, base)
        for turn in range(arguments.rounds):
            for loop in loops:
                found = measure(loop, size, base, base / f"{loop}_{turn}")
                device = str(found["device"])
                peak = max(peak, float(found["peak_bytes"])) if loop == "ours" else peak
                for kind in ("wall", "processor"):
                    steps[loop][kind] += found[kind]
                clock, processor = median(found["wall"]), median(found["processor"])
                print(f"round {turn + 1}, {loop}: {clock:.3f} s per step, {processor:.3f} of the processor", file=sys.stderr, flush=True)
    print(f"{device}; {size}\n")
    print(rate_table(size, steps, device))
    if peak:
        print(f"\n{memory_line(size, peak)}")
    return command.DONE


def _size_here() -> str:
    import torch

    return "gpu" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    command.run(main)
