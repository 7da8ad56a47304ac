"""Compare the planner's throughput with published A100 numbers, row by row, and fit its three calibrated shares.

`--fit` refits the shares by least squares over the rows marked with *, and predicts each row from a fit without it
(leave one out).  Rows without * are not used in any fit.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from common import command
from common.plain_files import read_yaml
from common.tables import markdown_table
from recipes.planner.hardware import GPUS, Gpu
from recipes.planner.layout import Layout
from recipes.planner.parameters import PlannedModel
from recipes.planner.throughput import CALIBRATED, Efficiency, step_time
from recipes.rules.schema import RecomputationRecipe

BOUND = 0.15  # what the model claims of the rows that it covers
_ONE_GPU = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "devices_per_node": 8}


@dataclass(frozen=True)
class Row:
    """One published number.

    Attributes:
        tokens_per_second: per GPU, as published.
        uncovered: why the model does not claim to predict it; None where it does.
        calibrates: whether the shares of `Efficiency` are fitted on it.
    """

    name: str
    source: str
    model: PlannedModel
    gpu: Gpu
    layout: Layout
    tokens_per_second: float
    uncovered: str | None = None
    calibrates: bool = False


def rows() -> list[Row]:
    """All published numbers, those of calibration first."""
    found = read_yaml(Path(__file__).with_name("published_rates.yaml"))
    gpus = {name: replace(GPUS[gpu.pop("like")], **gpu) for name, gpu in found["gpus"].items()}
    every = [
        _row({"source": group["source"], **group["shared"], **dict(zip(group["columns"], cells))}, found["models"], gpus)
        for group in found["groups"]
        for cells in group["rows"]
    ]
    return sorted(every, key=lambda row: not row.calibrates)


def _row(cells: Mapping[str, Any], models: Mapping[str, Any], gpus: Mapping[str, Gpu]) -> Row:
    sizes = {field.name: cells[field.name] for field in fields(Layout) if field.name in cells}
    if sizes.get("recomputation") is not None:
        sizes["recomputation"] = RecomputationRecipe(**sizes["recomputation"])
    layout = Layout(**{**_ONE_GPU, **sizes})
    config = {**models[cells["model"]], "max_position_embeddings": layout.sequence_length}
    model = PlannedModel(config, vocab_rows=config["vocab_size"])
    if "step_seconds" in cells:
        rate = layout.step_tokens / layout.num_devices / cells["step_seconds"]
    elif "teraflops" in cells:
        rate = cells["teraflops"] * 1e12 / model.flops_per_token(layout.sequence_length)
    else:
        rate = cells["tokens_per_second"]
    gpu = gpus[cells["gpu"]]
    return Row(cells["name"], cells["source"], model, gpu, layout, rate, cells.get("uncovered"), cells.get("calibrates", False))


def predicted(row: Row, efficiency: Efficiency = CALIBRATED) -> float:
    """Tokens per second and GPU; the published runs had fused layers."""
    time = step_time(row.model, row.layout, row.gpu, efficiency=efficiency, kernels="te")
    return row.layout.step_tokens / row.layout.num_devices / time.total


def fit(calibrating: Sequence[Row]) -> Efficiency:
    """The shares with the least squared logarithms of predicted over published."""
    from scipy.optimize import least_squares

    def errors(shares: Sequence[float]) -> list[float]:
        return [math.log(predicted(row, Efficiency(*shares)) / row.tokens_per_second) for row in calibrating]

    start = (CALIBRATED.products, CALIBRATED.attention, CALIBRATED.recomputation)
    return Efficiency(*least_squares(errors, start, bounds=((0.3, 0.1, 0.0), (1.0, 1.0, 1.0))).x)


def error(row: Row, efficiency: Efficiency = CALIBRATED) -> float:
    """Predicted over published, less one."""
    return predicted(row, efficiency) / row.tokens_per_second - 1


def table(every: Sequence[Row], left_out: dict[str, float]) -> str:
    """A markdown table."""
    lines = [
        [
            row.name + (" *" if row.calibrates else ""),
            row.source,
            f"{row.tokens_per_second:,.0f}",
            f"{predicted(row):,.0f}",
            f"{error(row):+.1%}",
            f"{left_out[row.name]:+.1%}" if row.name in left_out else "",
        ]
        for row in every
    ]
    return markdown_table(["run", "source", "published", "predicted", "error", "left out"], lines, text_columns=2)


def summary(name: str, errors: Sequence[float]) -> str:
    """Mean and largest size of some errors."""
    sizes = [abs(value) for value in errors]
    return f"{name}: {len(sizes)} rows, mean error {sum(sizes) / len(sizes):.1%}, largest {max(sizes):.1%}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__, example="python -m benchmarks.planner --fit")
    parser.add_argument("--fit", action="store_true", help="fit the shares, also leaving out each row in turn (10 seconds)")
    arguments: argparse.Namespace = parser.parse_args(argv)
    every = rows()
    calibrating = [row for row in every if row.calibrates]
    left_out: dict[str, float] = {}
    if arguments.fit:
        found = fit(calibrating)
        print(f"fitted: products {found.products:.3f}, attention {found.attention:.3f}, recomputation {found.recomputation:.3f}\n")
        left_out = {row.name: error(row, fit([other for other in calibrating if other is not row])) for row in calibrating}
    print(table(every, left_out) + "\n")
    covered = [row for row in every if row.uncovered is None]
    print(summary("calibrated on (*)", [error(row) for row in calibrating]))
    if left_out:
        print(summary("each predicted from the others (left out)", list(left_out.values())))
    print(summary("in no fit, covered", [error(row) for row in covered if not row.calibrates]))
    for row in every:
        if row.uncovered:
            print(f"not covered: {row.name}: {row.uncovered}")
    print("not covered: oellm-autoexp, 9B, 1024 x 64 GB, TP 4: a planning value of 2,800 tokens/s for an unpublished shape")
    outside = [row.name for row in covered if abs(error(row)) > BOUND]
    if outside:
        print(f"outside {BOUND:.0%}: {', '.join(outside)}")
    return command.WRONG if outside else command.DONE


if __name__ == "__main__":
    command.run(main)
