"""Folders of results as eval.harness writes them, made without any model: for the report, which reads nothing else."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.artifacts import digest_bytes
from conversion.measuring.intervals import ratio_interval, wilson_interval
from eval.protocols.scoring import yes_no
from eval.running.generation import EFFICIENCY_FORMAT, EFFICIENCY_NAME
from eval.running.results import RESULT_FORMAT, write_lines, write_result
from eval.running.task_runs import item_scores
from eval.scoring.statistics import f1_interval

TASKS = ("sl_boolq_gen", "sl_rte_gen", "completion_sl", "completion_en")
TEXTS = ("sl", "en")


def make_results(
    root: Path,
    *,
    steps: Sequence[int] = (0, 100, 200, 400, 800),
    methods: Sequence[str] = ("focus", "mean"),
    tasks: Sequence[str] = TASKS,
    items: int = 120,
    source: bool = True,
) -> Path:
    """A source model and the checkpoints of each method, which get better at Slovene and a little worse at English."""
    if source:
        make_result(root, "source", None, None, skill=0.15, tasks=tasks, items=items)
    for number, method in enumerate(methods):
        for position, step in enumerate(steps):
            skill = (position + 0.3 - 0.25 * number) / len(steps)
            make_result(root, f"{method}-{step}", method, step, skill=skill, tasks=tasks, items=items)
    return root


def make_result(
    root: Path,
    name: str,
    method: str | None,
    step: int | None,
    *,
    skill: float,
    tasks: Sequence[str] = TASKS,
    items: int = 120,
    **changes: Any,
) -> Path:
    """One model's folder; a higher skill answers more Slovene questions, and validly.

    Args:
        changes: `shots` of all tasks, `backend`, `prompt` (a word added to every prompt), `facts` of its folder in place of those of a method.
    """
    folder = root / name
    folder.mkdir(parents=True)
    shots, backend, prompt = changes.get("shots", 3), changes.get("backend", "hf"), changes.get("prompt", "")
    facts = changes.get("facts", {} if method is None else {"method": method, "head": "tied", "seed": 1, "step": step})
    result: dict[str, Any] = {
        "format": RESULT_FORMAT,
        "key": name,
        "name": name,
        "model": {"digest": digest_bytes(name.encode()), "written_by": "conversion.nemo_to_hf", "model_type": "opt"},
        "facts": facts,
        "settings": {
            "start_token": "auto", "context_length": None, "dtype": "float32", "window_tokens": 512, "task_positions": 512, "backend": backend,
            "start_token_used": {"id": 1, "token": "</s>", "reason": ""},
        },
        "versions": {"lm_eval": "0.4.13", "transformers": "4.57.6", "torch": "2.13.0"},
        "texts": {},
        "tasks": {},
    }  # fmt: skip
    for text in TEXTS:
        result["texts"][text] = _text(folder, text, (1.9 - skill) if text == "sl" else 0.95 + 0.1 * skill, name)
    for task in tasks:
        result["tasks"][task] = _task(folder, task, 0.3 if task.endswith("_en") else skill, name, items, shots, prompt)
    write_result(folder, result)
    return folder


def _text(folder: Path, text: str, bits_per_byte: float, name: str) -> dict[str, Any]:
    rng = random.Random(f"{name} {text}")
    sizes = [random.Random(f"{text} {n}").randint(200, 900) for n in range(40)]
    bits = [size * (bits_per_byte + rng.gauss(0, 0.03)) for size in sizes]
    documents = [{"nats": b * math.log(2), "num_tokens": size // 4, "text_bytes": size, "unknown_bytes": 0} for b, size in zip(bits, sizes)]
    write_lines(folder / "documents" / f"{text}.jsonl", documents)
    estimate = ratio_interval(bits, sizes)
    return {
        "bits_per_byte": estimate.value, "low": estimate.low, "high": estimate.high, "num_documents": 40, "text_bytes": sum(sizes),
        "num_tokens": sum(size // 4 for size in sizes), "num_words": sum(sizes) // 6, "unknown_bytes": 0, "seconds": 0.5,
        "perplexity_per_token": 2 ** (4 * estimate.value), "digest": f"xxh3:{text}",
    }  # fmt: skip


def _task(folder: Path, task: str, skill: float, name: str, items: int, shots: int, prompt: str) -> dict[str, Any]:
    rng = random.Random(f"{name} {task}")
    samples = [_sample(task, number, skill, rng, prompt) for number in range(items)]
    write_lines(folder / "samples" / f"{task}.jsonl", samples)
    write_lines(folder / "items" / f"{task}.jsonl", [item_scores(samples)])
    right, valid = [s["acc"] for s in samples], [1 - s["invalid"] for s in samples]
    strict, invalid = wilson_interval(int(sum(right)), items), wilson_interval(items - int(sum(valid)), items)
    valid_only = wilson_interval(int(sum(right)), int(sum(valid)))
    gold, predicted = [s["macro_f1"][0] for s in samples], [None if s["macro_f1"][1] < 0 else s["macro_f1"][1] for s in samples]
    macro = f1_interval(gold, predicted, num_classes=2)
    estimates = {"acc": strict, "acc_valid": valid_only, "invalid": invalid, "macro_f1": macro}
    return {
        "metrics": {key: {**e.figures(), "stderr": None} for key, e in estimates.items()},
        "num_items": items, "num_groups": items, "num_fewshot": shots, "higher_is_better": {"acc": True, "acc_valid": True, "macro_f1": True, "invalid": False},
        "prompts_digest": digest_bytes(f"{task} {items} {shots} {prompt}".encode()), "majority": {"answer": "Da.", "acc": 0.5},
        "prompt_cut": 0.0, "answer_cut": 0.1 * (1 - skill),
    }  # fmt: skip


def _sample(task: str, number: int, skill: float, rng: random.Random, prompt: str) -> dict[str, Any]:
    document = {"id": f"val:{number}", "group": f"val:{number}", "choices": ["Da.", "Ne."], "label": number % 2}
    wanted = document["choices"][number % 2] if rng.random() < 0.5 + skill / 2 else document["choices"][1 - number % 2]
    answer = wanted if rng.random() < 0.4 + skill else "Tega ne vem <b>zares</b>."
    asked = f"Vprašanje {prompt}{number}: Ali je to {task}?\nOdgovor:"
    scores = yes_no(document, [answer])
    return {
        "doc_id": number, "doc": document, "target": document["choices"][document["label"]], "arguments": [[asked, {"until": ["\n"]}]],
        "resps": [[answer]], "prompt_hash": digest_bytes(asked.encode()).removeprefix("xxh3:"), "metrics": list(scores), **scores,
    }  # fmt: skip


def make_efficiency(folder: Path, speeds: dict[str, float], **conditions: Any) -> Path:
    """`efficiency.json` of some of the models made here, the source model first, as eval.generate writes it.

    Args:
        speeds: name of a model -> bytes per second.
        conditions: other than usual.
    """
    source = next(iter(speeds))
    models = {}
    for name, speed in speeds.items():
        rates = {"tokens_per_second": speed / 3, "characters_per_second": 0.9 * speed, "bytes_per_second": speed}
        rates["speedup"] = speed / speeds[source]
        models[name] = {
            "digest": digest_bytes(name.encode()), "prompt_tokens_per_item": 40.0, "repeats": [{}] * 5,
            "target_token_ratio": 0.0 if name == source else 0.625,
            **{key: {"value": value, "low": 0.95 * value, "high": 1.05 * value, "n": 5} for key, value in rates.items()},
        }  # fmt: skip
    told = {
        "backend": "hf", "machine": {"device": "A100", "threads": None},
        "settings": {"max_new_tokens": 128, "temperature": 0.0, "fixed_length": True},
        "batch size": 8, "dtype": "float32", "prompts": 100, "digest of prompts": "xxh3:p",
        "source model": models[source]["digest"], "versions": {"torch": "2.13.0"},
    }  # fmt: skip
    folder.mkdir(parents=True)
    content = {"format": EFFICIENCY_FORMAT, "conditions": {**told, **conditions}, "models": models}
    (folder / EFFICIENCY_NAME).write_text(json.dumps(content))
    return folder
