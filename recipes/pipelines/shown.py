"""A pipeline as text: each stage with what it needs, where it stands, and its commands as they would be typed."""

from __future__ import annotations

import shlex

from recipes.pipelines.file import command_of, dependencies_of, tasks_of
from recipes.pipelines.work import Work


def render_stages(work: Work) -> str:
    """Stage by stage, in the order of the file; commands that have to run have a `$` before them, others say why not."""
    pipeline, lines = work.pipeline, []
    for name in pipeline.stages:
        tasks = tasks_of(pipeline, name)
        dependencies = dict.fromkeys(need.stage for task in tasks for need in dependencies_of(pipeline, task))
        lines.append(f"{name}" + (f" <- {', '.join(dependencies)}" if dependencies else ""))
        for task in tasks:
            mark = "$" if task in work.tasks else "#"
            lines.append(f"  {mark} {shlex.join(command_of(pipeline, task))}")
    return "\n".join([*lines, "", "$ will run; # is complete, or not selected"])
