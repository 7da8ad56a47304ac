"""Tasks whose data sets lie on the hub, offline: they are read from a folder that was fetched, where the library would ask the hub."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval.tasks import TaskManager
from lm_eval.tasks._factory import TaskFactory

HUB_VARIABLE = "SCION_EVAL_HUB"
# What `datasets` calls readers of files, which are not names of the hub.
_READERS = ("json", "parquet", "csv", "text", "arrow")


class LocalTasks(TaskManager):
    """Tasks of some folders, and of lm-eval itself if wanted, whose data sets come from a folder.

    Args:
        bundled: also lm-eval's own, of which the index takes seconds.
        hub: the cache that `slurm.prefetch` fills, a cache of huggingface_hub, or a folder with OWNER/NAME below it; None for what the
            environment names.
    """

    def __init__(self, paths: Sequence[str | Path], *, metadata: Mapping[str, Any], hub: Path | None, bundled: bool) -> None:
        places = _places(hub)  # refused before the index
        super().__init__(include_path=list(paths), include_defaults=bundled, metadata=dict(metadata))
        self._factory = _LocalFactory(dict(metadata), places)


class _LocalFactory(TaskFactory):
    """Builds tasks as lm-eval, from local files."""

    def __init__(self, metadata: dict[str, Any], places: Sequence[Path]) -> None:
        super().__init__(meta=metadata)
        self._places = places

    def _build_task(self, entry: Any, overrides: dict[str, Any] | None) -> Any:
        config = self._load_full_config(entry, overrides)
        name = config.get("dataset_path")
        if not isinstance(name, str) or name in _READERS or "custom_dataset" in config or "class" in config or Path(name).is_dir():
            return super()._build_task(entry, overrides)
        folder = prefetched(name, self._places, task=str(config["task"]))
        task = super()._build_task(entry, {**(overrides or {}), "dataset_path": str(folder)})
        # Where the files lie is not a part of what a task is.
        task.set_config(key="dataset_path", value=name)
        return task


def _places(hub: Path | None) -> list[Path]:
    named = hub or (Path(value) if (value := os.environ.get(HUB_VARIABLE)) else None)
    if named is not None:
        if not named.is_dir():
            raise ValueError(f"the folder of data sets {named} does not exist; give the cache that slurm.prefetch fills as --hub")
        return [named, named / "huggingface" / "hub", named / "hub"]
    from huggingface_hub.constants import HF_HUB_CACHE

    return [Path(HF_HUB_CACHE)]


def prefetched(name: str, places: Sequence[Path], *, task: str) -> Path:
    """The folder of a data set of the hub.

    Raises:
        ValueError: naming the command that fetches it.
    """
    for place in places:
        if (place / name).is_dir():
            return place / name
        repository = place / f"datasets--{name.replace('/', '--')}"
        branch = repository / "refs" / "main"
        revisions = [branch.read_text(encoding="utf-8").strip()] if branch.is_file() else []
        revisions += sorted(path.name for path in (repository / "snapshots").glob("*"))
        for revision in revisions:
            if (repository / "snapshots" / revision).is_dir():
                return repository / "snapshots" / revision
    raise ValueError(
        f"the task {task} reads the data set {name}, which is not below {places[0]}; fetch it with"
        f" `python -m slurm.prefetch --cluster NAME --hub dataset:{name}` and give the cache as --hub"
    )
