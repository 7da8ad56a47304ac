"""How far a run is when its submission, too, has a say in how long it is to be."""

from __future__ import annotations

from pathlib import Path

from recipes.runs.run_state import RunState, read_run_state
from slurm.chains.submissions import current_submission


def read_chain_state(run_dir: Path) -> RunState:
    """What the files of a run say, with at least as many steps as the newest submission asked for; never writes."""
    submission = current_submission(run_dir)
    return read_run_state(run_dir, at_least=(submission and submission.claim.total_steps) or 0)
