"""The rehearsal that goes before a submission."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recipes.planner.hardware import GPUS
from recipes.rehearsal.apart import rehearse_apart
from recipes.rehearsal.fit import fit_problems, summary
from recipes.rules.schema import raise_all
from slurm.sites.cluster import Cluster


def rehearsed(recipe_argument: str, overrides: Sequence[str], cluster: Cluster) -> dict[str, Any]:
    """Play ranks of a run on GPUs such as the cluster has.

    Raises:
        ValueError: if the cluster has no GPUs, or the rehearsal fails.
    """
    if not cluster.gpu.gpus_per_node:
        raise ValueError(f"{cluster.name} has no GPUs, so there is nothing to rehearse; leave --rehearse out")
    name = (cluster.gpu.gpu or "").lower()
    return rehearse_apart(recipe_argument, overrides, gpu=name if name in GPUS else None)


def require_fit(rehearsal: dict[str, Any], *, subject: str) -> None:
    """Refuse what needs more memory than a GPU has.

    Raises:
        ValueError: with the rank that needs the most, what it needs, and which layout would fit.
    """
    raise_all(fit_problems(rehearsal)[:1], subject=subject)


def rehearsal_lines(rehearsal: dict[str, Any]) -> list[str]:
    """A line for each rank, aligned as those of a plan."""
    return [
        f"{'rehearsed' if number == 0 else '':<12}rank {report['rank']}: {summary(report)}"
        for number, report in enumerate(rehearsal["ranks"])
    ]
