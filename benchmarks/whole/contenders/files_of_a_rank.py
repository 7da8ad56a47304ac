"""How many files the imports of a training open, and how many bytes of Python and of libraries that is, as JSON in the last line."""

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))
opened: list[str] = []
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)

import recipes.train  # noqa: E402
import recipes.training.engine  # noqa: E402, F401

maps = Path("/proc/self/maps").read_text().splitlines()
libraries = {line.split(maxsplit=5)[5] for line in maps if line.count("/") and ".so" in line}
files = {
    name for name in opened if name.startswith("/") and not name.startswith(("/proc", "/sys", "/dev")) and os.path.isfile(name)
} | libraries
told = {
    "modules": len(sys.modules),
    "libraries": len(libraries),
    "opened": len(files),
    "bytes": sum(os.path.getsize(name) for name in files),
}
print(json.dumps(told))
