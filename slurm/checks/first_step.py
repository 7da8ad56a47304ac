"""The first step of a run beside its rehearsal, as a finding."""

from __future__ import annotations

from pathlib import Path

from recipes.rehearsal.prediction import read_first_steps, read_rehearsal, verdict
from slurm.checks.findings import NOT_APPLICABLE, OK, PROBLEM, Finding

_CHECK = "first step"


def first_step_finding(run_dir: Path) -> Finding:
    """Whether the GPUs needed what was counted without them.

    Raises:
        ValueError: if the directory is none.
    """
    if not run_dir.is_dir():
        raise ValueError(f"{run_dir} is no directory of a run; give that of `slurm.submit --output`")
    if steps := read_first_steps(run_dir):
        is_right, told, advice = verdict(steps)
        return Finding(_CHECK, OK if is_right else PROBLEM, told, advice)
    if read_rehearsal(run_dir) is None:
        return Finding(_CHECK, NOT_APPLICABLE, f"{run_dir} has no rehearsal to compare with; `slurm.submit --rehearse` leaves one")
    return Finding(
        _CHECK, NOT_APPLICABLE, f"{run_dir} has a rehearsal, but no first step on GPUs with the layout that was rehearsed has ended"
    )
