"""A model's folder of results: `result.json` and lines of samples, in strict JSON; and why a task failed, in one sentence."""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.plain_files import write_text

RESULT_NAME = "result.json"
RESULT_FORMAT = 3
PSEUDO_TEXTS = "pseudo_texts"  # of masked models: beside `texts`, never among them
PSEUDO = "pseudo-"  # how their files of documents begin
# Said beside the scores of a task, not scores of their own.
_SIDE_METRICS = ("invalid", "empty", "instruction_repeated", "copied")
SHARES = (
    "acc", "acc_valid", "acc_norm", "exact_match", "f1", "macro_f1", "macro_f1_valid", "f1_answers", "f1_items", "f1_entailment",
    "f1_neutral", "f1_contradiction", "exact_match_italian", "f1_italian", "invalid", "empty",
)  # fmt: skip
_OUT_OF_100 = ("sari", "chrf", "bleu", "rouge")  # how names of scores begin that are not shares


def highest_score(metric: str) -> float:
    """What an item can score at most, where the least is 0; inf where that is not known."""
    return 100.0 if metric.startswith(_OUT_OF_100) else 1.0 if metric in SHARES else math.inf


def score_names(metrics: Iterable[str]) -> list[str]:
    """Names of a task's scores, the headline first: without what only stands beside them (invalid answers, a copy's score, spread)."""
    return [name for name in metrics if name not in _SIDE_METRICS and not name.endswith(("_copy", "_empty", "_sd"))]


def headline_score(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """Value and interval of a task's headline."""
    entry: Mapping[str, Any] = task["metrics"][score_names(task["metrics"])[0]]
    return entry


def write_result(directory: Path, result: Mapping[str, Any]) -> None:
    """Write `result.json`, at once; figures that are not numbers become null."""
    write_text(directory / RESULT_NAME, strict_json(result, indent=2) + "\n")


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write strict JSON Lines, one row a line, into a folder that is made if need be."""
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", encoding="utf-8") as stream:
        stream.writelines(strict_json(row) + "\n" for row in rows)


def read_lines(path: Path) -> list[Any]:
    """Rows of a file of lines as written here.

    Raises:
        ValueError: if it is missing or damaged.
    """
    try:
        with open(path, encoding="utf-8", newline="\n") as lines:  # str.splitlines would also end a line at U+2028 inside an answer
            return [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is missing or damaged ({error}); evaluate the model again") from error


def strict_json(value: Any, *, indent: int | None = None) -> str:
    """JSON without NaN and Infinity, which no other reader accepts; they become null."""
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=indent, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def find_results(folders: Sequence[Path]) -> list[Path]:
    """Every `result.json` below some folders; folders with a dot are results that are still being written.

    Raises:
        ValueError: if a folder is missing, or there is none.
    """
    paths: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"the results folder {folder} does not exist")
        found = (p for p in folder.rglob(RESULT_NAME) if not any(part.startswith(".") for part in p.relative_to(folder).parts))
        paths += sorted(found)
    if not paths:
        raise ValueError(f"no {RESULT_NAME} below {' '.join(map(str, folders))}; make some with `python -m eval.harness`")
    return paths


def load_result(path: Path) -> dict[str, Any]:
    """A `result.json` as written here.

    Raises:
        ValueError: if it is not a result of this format.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        if result["format"] != RESULT_FORMAT:
            raise ValueError(f"format {result['format']}")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a result of eval.harness of format {RESULT_FORMAT} ({error}); evaluate the model again") from error
    return result


_ROOT = Path(__file__).resolve().parents[2]


class GoneError(ValueError):
    """A process that answered is no more."""


def failure_reason(error: Exception) -> str:
    """Why a task failed: our own sentence; for what other code raised, what it was and where its owner can look."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, GoneError) or (type(error) is ValueError and not _is_foreign(frames[-1].filename)):
        return str(error)
    own = [frame for frame in frames if "site-packages" not in frame.filename and _is_foreign(frame.filename)]
    frame = own[-1] if own else frames[-1]
    return f"{' '.join(f'{type(error).__name__}: {error}'.split())} (line {frame.lineno} of {frame.filename})"


def _is_foreign(file: str) -> bool:
    return "site-packages" in file or not Path(file).is_relative_to(_ROOT)
