"""Where a Python that we start looks for modules."""

from __future__ import annotations

import os
from pathlib import Path


def python_path(root: Path) -> str:
    """A value of PYTHONPATH: a folder, and behind it whatever this process was given, from which its libraries may come."""
    return os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
