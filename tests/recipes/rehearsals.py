"""Rehearse several recipes in one process, as importing NeMo takes longer than most of them: `python rehearsals.py CASES.json OUTPUT.json`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path


def main(cases_path: str, output_path: str) -> None:
    """Write the reports of all cases; each is a recipe, overrides and ranks."""
    from recipes.checks import check_run
    from recipes.compose import compose_recipe
    from recipes.planner.hardware import find_gpu
    from recipes.published import recipe_with_inputs
    from recipes.rehearsal.rank import rehearse_rank
    from recipes.rehearsal.report import rank_report
    from recipes.rehearse import wanted_ranks

    reports: dict[str, list[object]] = {}
    for title, (name, ranks, overrides) in json.loads(Path(cases_path).read_text()).items():
        recipe, inputs = recipe_with_inputs(compose_recipe(name, overrides))
        recipe = check_run(recipe, inputs)
        gpu = find_gpu(recipe.parallel.gpu or "a100-40gb")
        for rank in wanted_ranks(recipe, ranks):
            with tempfile.TemporaryDirectory() as directory:
                reports.setdefault(title, []).append(rank_report(recipe, inputs, rehearse_rank(recipe, inputs, rank, gpu, Path(directory))))
    Path(output_path).write_text(json.dumps(reports, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
