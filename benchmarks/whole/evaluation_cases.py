"""Stages of evaluation: bits per byte and tasks of a real model."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.meter import ROOT
from benchmarks.whole.case import Case, Contender, ours, passes
from benchmarks.whole.material import Material

TASK = "completion_sl"


def harness_cases(material: Material, peers: str) -> list[Case]:
    """Each beside lm-eval's own command on the same task, and the bits beside the model's passes."""
    model = material.real_model
    bits = ours("eval.harness", "--model", f"model={model}", "--text", f"text={material.held_out}", "--device", "cpu")
    tasks = ours("eval.harness", "--model", f"model={model}", "--tasks", TASK, "--device", "cpu")
    metadata = f'{{"text": "{material.held_out_lines}"}}'
    their_bits = _lm_eval(material, "heldout_text", "--metadata", metadata)
    limit = passes("the model's own passes", model, material.held_out)
    return [
        Case("harness --text", material.held_out_kilobytes, "kB of text", (bits, their_bits, limit)),
        Case(f"harness --tasks {TASK}", 40, "items", (tasks, _lm_eval(material, TASK))),
    ]


def _lm_eval(material: Material, task: str, *more: str) -> Contender:
    return Contender("lm-eval's own command", "peer", lambda output: lm_eval(material.real_model, output, task, *more))


def lm_eval(model: Path, output: Path, task: str, *more: str, device: str = "cpu", dtype: str = "float32") -> list[str | Path]:
    """Words of lm-eval's own command."""
    words = (
        "--model",
        "hf",
        "--model_args",
        f"pretrained={model},dtype={dtype}",
        "--include_path",
        ROOT / "eval" / "tasks",
        "--tasks",
        task,
    )
    return [sys.executable, "-m", "lm_eval", *words, "--device", device, *more, "--batch_size", "8", "--output_path", output]
