"""How a task's start and end are noted, and what is said when it fails, whoever runs it."""

from __future__ import annotations

from collections.abc import Iterable

from common import command
from recipes.pipelines.file import Pipeline, Task, command_of
from recipes.pipelines.state import Record, files_read, read_record, standing, write_record

LOGS_NAME = "logs"
ENDED_EARLY = "was ended before it could report an error"


def note_start(pipeline: Pipeline, task: Task, *, log: str) -> None:
    """Note that a task has begun, so that one that is killed has left a word."""
    write_record(pipeline, task, Record(tuple(command_of(pipeline, task)), False, ENDED_EARLY, log, files=files_read(pipeline, task)))


def note_end(pipeline: Pipeline, task: Task, code: int, error: str, *, log: str, seconds: float | None = None) -> str | None:
    """Note how a task ended; gives what went wrong, None where nothing did.

    Args:
        code: of its command's exit; below 0 the signal that killed it.
        error: the last error that it wrote.
    """
    words, begun = tuple(command_of(pipeline, task)), read_record(pipeline, task)
    files = begun.files if begun is not None else {}
    if code == command.DONE:
        write_record(pipeline, task, Record(words, True, "", log, seconds, files))
        if standing(pipeline, task).is_complete:
            return None
        what = "ended without an error but left no complete output"
    else:
        how = f"failed with exit code {code}" if code > 0 else f"was killed by signal {-code}"
        what = f"{how}: {error}" if error else how
    write_record(pipeline, task, Record(words, False, what, log, seconds, files))
    return what


def failure_sentence(task: Task, what: str, *, log: str) -> str:
    """What a user is told of a task that failed."""
    return f"stage {task.name} {what}; its output is in {log}; fix the cause and run the pipeline again: complete stages are skipped"


def last_error(lines: Iterable[str]) -> str:
    """The last line of an error among those that a command wrote, "" where there is none."""
    error = ""
    for line in lines:
        if line.startswith("error: ") or (line[:1].isalpha() and line.partition(":")[0].endswith(("Error", "Exception"))):
            error = line.strip().removeprefix("error: ")
    return error
