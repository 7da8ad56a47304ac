"""Whether what a rehearsal has counted fits a GPU, and what to change where it does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from recipes.planner.hardware import Gpu
from recipes.planner.layout import layout_of
from recipes.planner.memory import RUNTIME_GIB, Fit, estimate_memory
from recipes.planner.ranking import ranked
from recipes.rules.checks import planned_model
from recipes.rules.inputs import RunInputs
from recipes.rules.schema import Recipe


def fit_of(recipe: Recipe, inputs: RunInputs, most_gib: float, gpu: Gpu) -> dict[str, Any]:
    """A rank's need beside the size of its GPU, as JSON has it, with advice where it is too much.

    Args:
        most_gib: of tensors, in any phase; the share of CUDA and NCCL is assumed, as the planner does.
    """
    fit = Fit(most_gib + RUNTIME_GIB, gpu.memory_gib)
    found: dict[str, Any] = {
        "gpu": gpu.name,
        "GiB": gpu.memory_gib,
        "needed": round(fit.needed_gib, 3),
        "fits": fit.fits,
        "in words": str(fit),
    }
    return found if fit.fits else found | {"advice": _advice(recipe, inputs, most_gib, gpu)}


def _advice(recipe: Recipe, inputs: RunInputs, most_gib: float, gpu: Gpu) -> str:
    """The fastest layout with room for what the plan did not see of this one."""
    model, layout = planned_model(recipe, inputs), layout_of(recipe)
    unseen = max(0.0, most_gib - estimate_memory(model, layout).needed_gib + RUNTIME_GIB)
    choices = ranked(model, replace(layout, devices_per_node=gpu.devices_per_node), gpu, num_devices=layout.num_devices)
    for choice in choices:
        if choice.fit.needed_gib + unseen <= gpu.memory_gib and str(choice.layout) != str(layout):
            return f"by the plan {choice.layout} would fit ({choice.fit.needed_gib:.1f} GiB)"
    return f"by the plan no layout on {layout.num_devices} of them fits"


def fit_problems(document: Mapping[str, Any]) -> list[str]:
    """A sentence for each rank of a rehearsal that does not fit, the one that needs the most first."""
    return [
        f"rank {report['rank']} needs {fit['in words']} ({fit['gpu']}), by its rehearsal: the peak is in {report['fullest of all']}; {fit['advice']}"
        for report in sorted(document["ranks"], key=lambda report: -report["most"])
        if (fit := report["fit"]) is not None and not fit["fits"]
    ]


def summary(report: Mapping[str, Any]) -> str:
    """A rank in a line: what was counted, beside the plan and the GPU."""
    planned = report["planned"]["total"]
    line = f"{report['peak']:.2f} GiB counted in {report['fullest phase']}, {planned:.2f} planned ({planned / report['peak'] - 1:+.1%})"
    if report["most"] > report["peak"]:
        line += f", {report['most']:.2f} in {report['fullest of all']}"
    fit = report["fit"]
    if fit is None:
        return f"{line}; no GPU is named to compare with"
    verdict = "fits" if fit["fits"] else f"does not fit; {fit['advice']}"
    return f"{line}; with CUDA and NCCL (assumed) {fit['in words']}: {verdict}"
