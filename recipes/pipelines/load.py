"""The pipeline of a YAML file, which is a pipeline as it stands or a project that expands to one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common.plain_files import literal_loader, parse_yaml, read_text
from recipes.pipelines.file import Pipeline, pipeline_from_mapping

_PROJECT_KEYS = ("languages", "source")  # of which a pipeline has none


def load_pipeline(path: Path, overrides: Sequence[str] = ()) -> Pipeline:
    """The pipeline of a pipeline's or a project's file.

    Args:
        overrides: `key=value` in place of what a project says.

    Raises:
        ValueError: listing all that is wrong with it.
    """
    if not path.is_file():
        raise ValueError(f"the file {path} does not exist; give the YAML file of a project or a pipeline")
    content = parse_yaml(read_text(path), subject=str(path), loader=literal_loader())
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no keys; expected those of a project (source, languages: `scion init` writes one) or of a pipeline")
    if any(key in content for key in _PROJECT_KEYS):
        from recipes.projects.expand import expand_project

        content = expand_project(path, overrides=overrides)
    elif overrides:
        raise ValueError(f"{overrides[0]} is for a project, and {path} is a pipeline; change it in the file")
    return pipeline_from_mapping(content, subject=f"the pipeline {path}")
