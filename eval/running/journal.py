"""Answers that outlive the process: a killed command resumes after the last one written."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Answer = dict[str, Any]


class Journal:
    """Answers by request, appended to a file as they come; a line cut off by a kill is dropped."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._answers: dict[str, Answer] = {}
        if path is None:
            return
        if path.is_file():
            data = path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            for line in whole.splitlines():
                answer = json.loads(line)
                self._answers[answer["key"]] = answer
            if len(whole) < len(data):
                os.truncate(path, len(whole))

    def __contains__(self, key: str) -> bool:
        return key in self._answers

    def __getitem__(self, key: str) -> Answer:
        return self._answers[key]

    def get(self, key: str) -> Answer | None:
        """The answer to a request; None if there is none yet."""
        return self._answers.get(key)

    def __len__(self) -> int:
        return len(self._answers)

    def add(self, answers: Sequence[Answer]) -> None:
        """Keep answers, on disk too before this returns.

        Raises:
            ValueError: if one is a number that is none, and then keeps none of them.
        """
        lines = [json.dumps(answer, ensure_ascii=False, allow_nan=False) + "\n" for answer in answers]
        self._answers.update((answer["key"], answer) for answer in answers)
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)  # only now: what failed before its first answer leaves nothing
        with open(self._path, "a", encoding="utf-8") as stream:
            stream.writelines(lines)
            stream.flush()
            os.fsync(stream.fileno())
