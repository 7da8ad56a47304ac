"""Tasks that are not requests to lm-eval, in the folder of a model's results: what reports read is the same for all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.artifacts import combined_digest, digest_bytes
from conversion.checkpoints.hf_model import Checkpoint
from eval.running.backends import Settings
from eval.running.earlier import earlier_result, folder_in_use
from eval.running.evaluation import gather
from eval.running.results import write_lines
from eval.running.task_runs import item_scores

Sample = dict[str, Any]


@dataclass(frozen=True)
class Item:
    """One row of a task, and what a model makes of it.

    Attributes:
        scores: of the row alone, by metric.
    """

    identity: str
    asked: str
    wanted: str
    answer: str
    scores: Mapping[str, float]


@dataclass(frozen=True)
class AddedTask:
    """A task as `result.json` has it, and its rows.

    Attributes:
        metrics: with intervals, the headline first.
        protocol: all that decides the figures beside model and rows.
        facts: more to be told of it.
    """

    metrics: Mapping[str, Mapping[str, Any]]
    items: Sequence[Item]
    digest: str
    protocol: Mapping[str, Any]
    facts: Mapping[str, Any]


def task_digest(rows: str, protocol: Mapping[str, Any]) -> str:
    """Identity of a task: of its rows, and of how it is asked."""
    return combined_digest({"rows": rows, "protocol": json.dumps(protocol, sort_keys=True)})


def is_held(result: Mapping[str, Any] | None, name: str, digest: str) -> bool:
    """Whether a result holds a task already.

    Raises:
        ValueError: if it holds one of the same name that was asked otherwise.
    """
    held = (result or {}).get("tasks", {}).get(name)
    if held is None:
        return False
    if held["digest"] != digest:
        raise ValueError(f"the results of {(result or {})['name']} hold {name} of other rows or settings; choose another --output")
    return True


def add_tasks(checkpoint: Checkpoint, output_dir: Path, tasks: Mapping[str, AddedTask], *, dtype: str, device: str) -> dict[str, Any]:
    """Write tasks into a model's folder of results, beside what it holds; returns what `result.json` says."""

    def add(result: dict[str, Any], staging: Path) -> None:
        result["settings"].setdefault("device", device)
        for name, task in tasks.items():
            samples = [_sample(number, item) for number, item in enumerate(task.items)]
            write_lines(staging / "samples" / f"{name}.jsonl", samples)
            write_lines(staging / "items" / f"{name}.jsonl", [item_scores(samples)])
            result["tasks"][name] = _summary(task, samples)

    with folder_in_use(output_dir):
        return gather(checkpoint, output_dir, Settings(dtype=dtype), earlier=earlier_result(output_dir, checkpoint), add=add)


def _sample(number: int, item: Item) -> Sample:
    return {
        "doc_id": number,
        "doc": {"id": item.identity},
        "target": item.wanted,
        "arguments": [[item.asked]],
        "resps": [[item.answer]],
        "prompt_hash": digest_bytes(item.asked.encode()).removeprefix("xxh3:"),
        "metrics": list(item.scores),
        **item.scores,
    }


def _summary(task: AddedTask, samples: Sequence[Sample]) -> dict[str, Any]:
    return {
        "metrics": {name: dict(metric) for name, metric in task.metrics.items()},
        "num_items": len(samples),
        "num_groups": len(samples),
        "num_fewshot": 0,
        "version": 1,
        "task_hash": task.digest,
        "digest": task.digest,
        "prompts_digest": task.digest,
        "higher_is_better": dict.fromkeys(task.metrics, True),
        "majority": None,
        "prompt_cut": None,
        "answer_cut": None,
        "protocol": dict(task.protocol),
        **task.facts,
    }
