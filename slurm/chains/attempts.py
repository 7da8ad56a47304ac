"""The attempts of a run: a directory each with log, provenance and cause of its end, and `latest`, a link to the newest.

A link of a chain makes one attempt each time it starts; a job that Slurm puts back into the queue makes several.

    RUN/attempts/001/attempt.json     when, where and from which step
    RUN/attempts/001/provenance.json  what ran (`slurm.jobs.provenance`)
    RUN/attempts/001/recipe.json      copy of the run's, made at the end
    RUN/attempts/001/log.txt          everything that the job and its tasks wrote
    RUN/attempts/001/end.json         cause and step of the end; absent while it runs, and if it died without a record
    RUN/attempts/latest               -> 001
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.plain_files import write_json

ATTEMPTS_NAME = "attempts"
LOG_NAME = "log.txt"
LATEST_NAME = "latest"
_RECORD, _END = "attempt.json", "end.json"


@dataclass(frozen=True)
class End:
    """How an attempt ended.

    Attributes:
        cause: one of `slurm.chains.causes`.
        detail: the line of the log that says more, or "".
        step: of the newest complete checkpoint at the end.
        ended_at: seconds since 1970, or None where nobody was there to look at the clock.
        bad_nodes: nodes that failed.
    """

    cause: str
    detail: str
    step: int
    ended_at: float | None
    bad_nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """One start of the training.

    Attributes:
        restart: how often Slurm had put the job back into the queue.
        submission: number of the submission that it belongs to (`slurm.chains.submissions`).
        start_step: step of the checkpoint that it went on from, 0 for the beginning.
        started_at: seconds since 1970.
        daemon_starts: of its nodes, as Slurm wrote them then; a node with another time now was started anew.
        end: None while it runs, and where it was killed before it could say why.
    """

    number: int
    job_id: str
    restart: int
    submission: int
    nodes: tuple[str, ...]
    start_step: int
    started_at: float
    daemon_starts: Mapping[str, str] = field(default_factory=dict)
    end: End | None = None


def attempt_dir(run_dir: Path, number: int) -> Path:
    """Directory of an attempt."""
    return run_dir / ATTEMPTS_NAME / f"{number:03d}"


def read_attempts(run_dir: Path) -> list[Attempt]:
    """All attempts in their order."""
    attempts = []
    for path in sorted((run_dir / ATTEMPTS_NAME).glob("[0-9]*"), key=lambda path: int(path.name)):
        record = _read(path / _RECORD)
        if record is None:
            continue  # died between its directory and its record, before anything started
        record["nodes"] = tuple(record["nodes"])
        end = _read(path / _END)
        attempts.append(Attempt(**record, end=End(**{**end, "bad_nodes": tuple(end["bad_nodes"])}) if end else None))
    return attempts


def begin_attempt(
    run_dir: Path,
    *,
    job_id: str,
    restart: int,
    submission: int,
    nodes: tuple[str, ...],
    start_step: int,
    started_at: float,
    daemon_starts: Mapping[str, str],
    job_log: Path | None = None,
) -> Attempt:
    """Record a new attempt, take over the log that Slurm opened for the job, and point `latest` at it."""
    number = _claim_number(run_dir)
    attempt = Attempt(number, job_id, restart, submission, nodes, start_step, started_at, daemon_starts)
    directory = attempt_dir(run_dir, number)
    record = asdict(attempt)
    del record["end"]
    write_json(directory / _RECORD, record)
    # A renamed file stays open: what the job writes from now on follows, and Slurm opens a new one when it starts the job again.
    if job_log is not None and job_log.exists():
        job_log.replace(directory / LOG_NAME)
    temporary = run_dir / ATTEMPTS_NAME / f".{LATEST_NAME}.{number}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(directory.name)
    temporary.replace(run_dir / ATTEMPTS_NAME / LATEST_NAME)
    return attempt


def end_attempt(run_dir: Path, attempt: Attempt, end: End) -> None:
    """Record how an attempt ended."""
    write_json(attempt_dir(run_dir, attempt.number) / _END, asdict(end))


def read_log(run_dir: Path, number: int, *, last_bytes: int = 1 << 18) -> str:
    """The end of an attempt's log, "" where there is none."""
    path = attempt_dir(run_dir, number) / LOG_NAME
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - last_bytes))
            return stream.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def _claim_number(run_dir: Path) -> int:
    directory = run_dir / ATTEMPTS_NAME
    directory.mkdir(parents=True, exist_ok=True)
    number = max((int(path.name) for path in directory.glob("[0-9]*")), default=0) + 1
    while True:
        try:
            attempt_dir(run_dir, number).mkdir()
            return number
        except FileExistsError:
            number += 1


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); remove the directory {path.parent} to forget this attempt") from error
    return content
