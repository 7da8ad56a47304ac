"""A rehearsal in a process of its own: torch would otherwise have simulated GPUs for the rest of this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.command import python_path, suggested

_ROOT = Path(__file__).resolve().parents[2]
RANKS = "stages"


def rehearse_apart(recipe_argument: str, overrides: Sequence[str], *, gpu: str | None = None, ranks: str = RANKS) -> dict[str, Any]:
    """What `recipes.rehearse --json` says of a recipe; whether it fits is for the caller to judge.

    Args:
        recipe_argument: name of a bundled recipe, or a YAML file.
        gpu: in place of the recipe's.

    Raises:
        ValueError: if the rehearsal refuses the recipe, with its sentence, or fails, with the last line that it said.
    """
    # The plan has judged its own estimate before; here it must not keep the count from being taken.
    words = [
        "--recipe",
        recipe_argument,
        "--ranks",
        ranks,
        *overrides,
        *([f"parallel.gpu={gpu}"] if gpu else []),
        "parallel.check_memory=false",
    ]
    print(f"rehearsing {recipe_argument}, ranks {ranks} ...", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "recipes.rehearse", "--json", *words],
        env={**os.environ, "PYTHONPATH": python_path(_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        message = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1].removeprefix("error: ")
        if done.returncode == 2:
            raise ValueError(message) from None
        all_of_it = suggested("recipes.rehearse", *words)
        raise ValueError(f"the rehearsal of {recipe_argument} failed ({message}); `{all_of_it}` shows the whole output") from None
    return document
