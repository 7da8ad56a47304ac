"""Documents of a local text file for the held-out text task.

The stock command need not find this project's packages, so nothing of them is imported.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict


def load(*, text: str = "", **metadata: Any) -> DatasetDict:
    """One split, `test`, with one text per line of a text file, or per row of a JSONL file.

    Args:
        text: the file, from `--metadata '{"text": ...}'`.
        metadata: what else lm-eval hands over; not used.

    Raises:
        ValueError: if no file was named.
    """
    if not text:
        raise ValueError(
            """the task heldout_text needs a file: --metadata '{"text": "heldout.sl.txt"}' for lm-eval; eval.harness takes it as --text"""
        )
    with open(text, encoding="utf-8") as stream:
        lines = [line.rstrip("\n") for line in stream if line.strip()]
    texts = [json.loads(line)["text"] for line in lines] if Path(text).suffix in (".jsonl", ".json") else lines
    return DatasetDict(test=Dataset.from_list([{"text": text} for text in texts if text.strip()]))
