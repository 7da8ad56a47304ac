"""Which tasks there are by name, without loading lm-eval, whose index of its own takes longer than evaluating a small model."""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

# What a task's YAML calls itself, its group or its tags, on that line or as items below it; items of other lists do no harm.
_NAMING = re.compile(r"""^(?:["']?(?:task|group|tag)["']?\s*:|\s*-\s)(.*)$""", re.MULTILINE)
_SUFFIXES = (".yaml", "")  # without one: what other files include
_NAME = re.compile(r"""[^\s,\[\]"']+""")


def names_in(folders: Iterable[Path]) -> set[str]:
    """Names of tasks, groups and tags in the YAML files of some folders, and a few words that are none."""
    files = (file for folder in folders for file in folder.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
    lines = (line for file in files for line in _NAMING.findall(file.read_text(encoding="utf-8", errors="replace")))
    return {name for line in lines for name in _NAME.findall(line)}


def unknown_task_problems(names: Sequence[str], task_dirs: Sequence[Path]) -> list[str]:
    """A sentence for each name that neither the folders nor lm-eval have, with the nearest that they have."""
    own = names_in(task_dirs)
    if not (others := [name for name in names if name not in own]):
        return []
    known = own | names_in(bundled_folders())
    nearest = {name: difflib.get_close_matches(name, known, n=1) for name in others if name not in known}
    return [
        f"there is no task {name}; {f'did you mean {near[0]}? ' if near else ''}the tasks are those of eval/tasks and of lm-eval"
        for name, near in nearest.items()
    ]


def bundled_folders() -> list[Path]:
    """Where lm-eval has its tasks."""
    spec = importlib.util.find_spec("lm_eval")
    return [Path(spec.origin).parent / "tasks"] if spec is not None and spec.origin else []
