"""Rehearse several recipes in one process, as importing NeMo takes longer than most of them: `python rehearsals.py CASES.json OUTPUT.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(cases_path: str, output_path: str) -> None:
    """Write the reports of all cases; each is a recipe, overrides and ranks."""
    from recipes.compose import compose_recipe
    from recipes.rehearse import rehearse

    reports = {
        title: list(rehearse(compose_recipe(name, overrides), ranks))
        for title, (name, ranks, overrides) in json.loads(Path(cases_path).read_text()).items()
    }
    Path(output_path).write_text(json.dumps(reports, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
