"""A run that has a rehearsal, played on the same fake GPU that was rehearsed: `python first_step_rank.py DIRECTORY`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

RECIPE, OVERRIDES = (
    "gams/focus_tied",
    ("parallel=a100_40gb_16x4_tp1", "parallel.num_nodes=1", "parallel.devices_per_node=2", "schedule.global_batch_size=16"),
)


def main(directory: Path) -> None:
    """Rehearse a rank, and again in a directory that has what came of it; the second's callback says on stderr what it has found."""
    from recipes.planner.hardware import find_gpu
    from recipes.rehearsal import prediction
    from recipes.rehearsal.inputs import complete_recipe
    from recipes.rules.checks import check_run
    from recipes.rules.compose import compose_recipe

    def no_settings(recipe: Any) -> dict[str, Any]:
        return {}

    prediction.settings_of = no_settings  # what is rehearsed is a shorter run, from stand-ins
    recipe, inputs = complete_recipe(compose_recipe(RECIPE, list(OVERRIDES)), directory)
    recipe, gpu = check_run(recipe, inputs), find_gpu("a100-40gb")

    from recipes.rehearsal.rank import rehearse_rank
    from recipes.rehearsal.report import rank_report

    report = rank_report(recipe, inputs, rehearse_rank(recipe, inputs, 0, gpu, directory / "rehearsal"), gpu)
    (directory / "real" / "run").mkdir(parents=True)
    prediction.keep_rehearsal(directory / "real" / "run", {"settings": {}, "ranks": [report]})
    print("the real run", file=sys.stderr)
    rehearse_rank(recipe, inputs, 0, gpu, directory / "real")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
