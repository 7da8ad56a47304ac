"""The page of a pipeline, kept up to date by whoever runs its tasks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

from recipes.pipelines.file import Pipeline, Task

PAGE_NAME = "index.html"


def write_live_page(pipeline: Pipeline, states: Mapping[Task, str] = {}) -> Path | None:
    """Write `index.html`; a page that cannot be made ends nothing, but says why.

    Args:
        states: of tasks, where more is known than what is on disk.
    """
    # Evaluation comes after this stage, and is looked up by name as the commands of all stages are.
    page = importlib.import_module("eval.reporting.project_page")
    try:
        return Path(page.write_project_page(pipeline, states))
    except (ValueError, OSError) as error:
        print(f"warning: the page of {pipeline.root} could not be made: {error}", file=sys.stderr)
        return None
