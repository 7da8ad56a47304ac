"""Hugging Face folders that are changed, and their way to NeMo and back."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from common.artifacts import Manifest, read_manifest
from conversion import hf_to_nemo, nemo_to_hf


@contextlib.contextmanager
def edited_tensors(directory: Path) -> Iterator[dict[str, Tensor]]:
    """The tensors of model.safetensors, written back at the end of the block."""
    state = load_file(directory / "model.safetensors")
    yield state
    state = {name: state[name].contiguous() for name in sorted(state)}
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})


def edit_json(path: Path, **changes: Any) -> dict[str, Any]:
    """Change keys of a file of settings; `...` takes a key out.  Gives the file as it was."""
    before: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({key: value for key, value in {**before, **changes}.items() if value is not ...}), encoding="utf-8")
    return before


def there_and_back(hf_dir: Path, work_dir: Path) -> Path:
    """Convert a folder to `nemo` and export that to `back`, which is given."""
    hf_to_nemo.convert(hf_dir, work_dir / "nemo")
    nemo_to_hf.export(work_dir / "nemo", work_dir / "back")
    return work_dir / "back"


def manifest_of(directory: Path) -> Manifest:
    """The manifest of a folder, which must have one."""
    manifest = read_manifest(directory)
    assert manifest is not None
    return manifest
