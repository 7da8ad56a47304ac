"""Rows of the completion tasks, found beside this file wherever lm-eval is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict


def load(*, language: str, **metadata: Any) -> DatasetDict:
    """One split, `test`, with id, context, choices and label (the index of the right choice).

    Args:
        metadata: what lm-eval adds: the task's metadata and the model's arguments; not used.
    """
    with open(Path(__file__).with_name(f"completion_{language}.jsonl"), encoding="utf-8") as lines:
        return DatasetDict(test=Dataset.from_list([json.loads(line) for line in lines]))
