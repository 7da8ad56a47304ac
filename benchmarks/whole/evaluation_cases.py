"""Stages of evaluation: bits per byte and tasks of a real model."""

from __future__ import annotations

import sys

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
    model = f"pretrained={material.real_model},dtype=float32"
    words = ("--model", "hf", "--model_args", model, "--include_path", ROOT / "eval" / "tasks", "--tasks", task, "--device", "cpu", *more)
    return Contender(
        "lm-eval's own command",
        "peer",
        lambda output: [sys.executable, "-m", "lm_eval", *words, "--batch_size", "8", "--output_path", output],
    )
