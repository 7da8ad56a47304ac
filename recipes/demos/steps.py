"""A demo's steps: the commands of the README, printed as they would be typed, each in a process of its own, with the seconds it took."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = Path("recipes/demo_text")


@dataclass
class Steps:
    """Runs the commands of a demo and keeps the time.

    Attributes:
        output: the folder for everything that the demo makes.
        seed: of transfer and data order, and of weights where they are new.
    """

    output: Path
    seed: int
    seconds: list[tuple[str, float]] = field(default_factory=list)
    start: float = field(default_factory=time.monotonic)

    def run(self, title: str, module: str, *arguments: str | Path) -> None:
        """One command, in a process of its own.

        Raises:
            ValueError: if it fails; its own message is above.
        """
        words = ["python", "-m", module, *map(str, arguments)]
        print(f"\n== {title}\n   {shlex.join(words)}", flush=True)
        start = time.monotonic()
        code = subprocess.run([sys.executable, *words[1:]], cwd=ROOT, check=False).returncode
        self.seconds.append((title, time.monotonic() - start))
        if code:
            raise ValueError(f"`{shlex.join(words)}` ended with exit code {code}; its message is above")
        print(f"   ({self.seconds[-1][1]:.1f} s)", flush=True)

    def train(self, title: str, recipe: str, checkpoint: Path, data: Path, output: Path, *overrides: str) -> None:
        """Train a recipe on one data set."""
        inputs = (f"model.checkpoint={checkpoint}", f"data.train=[{data}]", f"seed={self.seed}")
        self.run(title, "recipes.train", "--recipe", recipe, "--output", output, *inputs, *overrides)

    def remove(self, folder: Path) -> None:
        """A folder that later steps do not need, for the space."""
        print(f"\n   {shlex.join(['rm', '-r', str(folder)])}", flush=True)
        shutil.rmtree(folder)

    def print_seconds(self, *, page: Path) -> None:
        """The table of seconds and the page to open: how a demo ends."""
        print("\n== seconds by stage")
        for title, seconds in self.seconds:
            print(f"{seconds:8.1f}  {title}")
        print(f"{time.monotonic() - self.start:8.1f}  in all")
        print(f"\nThe page to open: {page}")


def require_new(output: Path) -> Path:
    """The folder as an absolute path.

    Raises:
        ValueError: if there is something in it already.
    """
    output = output.resolve()
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"the output directory {output} exists and is not empty; remove it (`make clean`) or choose another --output")
    return output
