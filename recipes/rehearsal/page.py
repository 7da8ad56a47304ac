"""A rehearsal as a page: memory over the phases of a run, by what it consists of, beside the plan and the GPU; then all else, rank by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from common.figure_style import Palette, drawn
from common.pages import Drawing, rendered
from recipes.planner.memory import RUNTIME_GIB
from recipes.rehearsal.fit import summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What is drawn, from the ground up: name, colour of the palette, strength; one colour for what belongs together.
_PARTS = (
    ("parameters", 0, 1.0),
    ("gradients", 0, 0.6),
    ("optimizer", 0, 0.3),
    ("attention", 2, 1.0),
    ("feed-forward", 2, 0.7),
    ("norms", 2, 0.45),
    ("dropout, residual, embedding", 2, 0.25),
    ("gradients of activations", 5, 0.7),
    ("logits", 1, 0.9),
    ("buffers of collectives", 3, 0.8),
    ("other", None, 0.6),
)
_JOINED = {"dropout and residual": "dropout, residual, embedding", "embedding": "dropout, residual, embedding", "small tensors": "other"}
_PLANNED = {
    "activations": ("activations", 2, 0.55),
    "head": ("norms", 2, 0.45),
    "temporary": ("gradients of activations", 5, 0.7),
    "gathered": ("buffers of collectives", 3, 0.8),
    "logits": ("logits", 1, 0.9),
}
_PHASES = (
    ("build", "build"),
    ("load", "load"),
    ("forward", "forward"),
    ("backward", "backward"),
    ("optimizer", "optimizer"),
    ("validation", "validation"),
    ("save", "save"),
    ("load, resumed", "resume"),
    ("save, resumed", "save beside\nthe training"),
)
Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def rehearsal_page(document: Mapping[str, Any]) -> str:
    """The page of all rehearsed ranks.

    Args:
        document: as `recipes.rehearsal.run.document_of`.
    """
    return rendered("rehearsal.html", title=f"Rehearsal of {document['recipe']}", rehearsal=shown_rehearsal(document))


def shown_rehearsal(document: Mapping[str, Any]) -> dict[str, Any]:
    """What `rehearsal_parts.html` shows of it."""
    reports = document["ranks"]
    light, dark = drawn(lambda palette: draw(reports, palette), None)
    drawing = Drawing(
        light,
        dark,
        alternative="Peak memory of every rehearsed rank in each phase, stacked by kind; the figures are in the tables below.",
        caption=(
            "Peak memory of each phase, counted tensor by tensor, by kind. On the right the planner's estimate for the"
            f" same rank, with {RUNTIME_GIB} GiB assumed for CUDA, NCCL and allocator fragmentation; the dashed line is the GPU's memory."
        ),
    )
    stand_ins = ", ".join(reports[0].get("stand-ins", ()))
    intro = (
        f"{document['layout']}, {document['processes']:,} processes. Executed on simulated GPUs, with tensors that have sizes and no values:"
        " losses and speed are not measured." + (f" With simulated packages: {stand_ins}." if stand_ins else "")
    )
    return {"intro": intro, "drawing": drawing, "ranks": [_shown_rank(report) for report in reports]}


# -- the figure -----------------------------------------------------------------------------------------------------------


def draw(reports: Sequence[Mapping[str, Any]], palette: Palette) -> Figure:
    """A panel for each rank: bars of its phases, the plan's bar, the GPU's size."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(reports), 1, figsize=(9.6, 0.7 + 3.1 * len(reports)), layout="constrained", squeeze=False, sharey=True)
    shown: dict[str, Any] = {}
    for axis, report in zip(axes[:, 0], reports, strict=True):
        shown |= _draw_rank(axis, report, palette)
    order = [name for name, _, _ in _PARTS] + ["activations", "CUDA and NCCL (assumed)"]
    names = [name for name in order if name in shown]
    figure.legend([shown[name] for name in names], names, loc="outside upper center", ncols=5, fontsize=9)
    return figure


def _draw_rank(axis: Axes, report: Mapping[str, Any], palette: Palette) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    phases = [(name, label) for name, label in _PHASES if name in report["phases"]]
    for place, (phase, _) in enumerate(phases):
        _stack(axis, place, _drawn_parts(report["phases consist of"][phase]), palette, shown)
        _write_on_top(axis, place, report["phases"][phase], palette, is_most=phase == report["fullest of all"])
    right = len(phases) + 0.5
    planned = [(name, colour, strength, report["planned"][name]) for name, colour, strength in _PARTS[:3]]
    planned += [(*_PLANNED[part], report["planned"].get(part, 0.0)) for part in ("activations", "head", "temporary", "gathered", "logits")]
    _stack(axis, right, planned, palette, shown)
    total = report["planned"]["total"]
    if report["fit"] is not None:
        shown["CUDA and NCCL (assumed)"] = axis.bar(
            right, RUNTIME_GIB, bottom=total, width=0.72, facecolor="none", edgecolor=palette.muted, hatch="////", linewidth=0.6
        )
        size = report["fit"]["GiB"]
        axis.axhline(size, color=palette.series[1], linewidth=1.2, linestyle=(0, (5, 4)))
        axis.annotate(
            f"{report['fit']['gpu']}: {size:g} GiB", (0, size), xycoords=("axes fraction", "data"), xytext=(4, 4), textcoords="offset points",
            color=palette.series[1], fontsize=9,
        )  # fmt: skip
        axis.set_ylim(0, 1.14 * max(size, report["fit"]["needed"], total + RUNTIME_GIB))
        total += RUNTIME_GIB
    else:
        axis.set_ylim(0, 1.18 * max(total, report["most"]))
    _write_on_top(axis, right, total, palette, is_most=False)
    axis.axvline(right - 0.75, color=palette.rule, linewidth=0.8)
    axis.set_xticks([*range(len(phases)), right], [*(label for _, label in phases), "planned"])
    axis.tick_params(axis="x", length=0)
    axis.grid(axis="y")
    axis.set_ylabel("GiB")
    axis.set_title(f"Rank {report['rank']}, stage {report['stage']}")
    return shown


def _drawn_parts(kinds: Mapping[str, float]) -> list[tuple[str, int | None, float, float]]:
    """Every part with its colour and GiB, from the ground up."""
    sums: dict[str, float] = {}
    for kind, size in kinds.items():
        name = "gradients of activations" if kind.startswith("gradients of activations") else _JOINED.get(kind, kind)
        known = any(name == part for part, _, _ in _PARTS)
        sums[name if known else "other"] = sums.get(name if known else "other", 0.0) + size
    return [(name, colour, strength, sums.get(name, 0.0)) for name, colour, strength in _PARTS]


def _stack(
    axis: Axes, place: float, parts: Sequence[tuple[str, int | None, float, float]], palette: Palette, shown: dict[str, Any]
) -> None:
    bottom = 0.0
    for name, colour, strength, size in parts:
        if size:
            fill = palette.muted if colour is None else palette.series[colour]
            # Mixed with the ground: a colour that is let through would show the grid.
            bar = axis.bar(place, size, bottom=bottom, width=0.72, color=_mixed(fill, palette.ground, strength), linewidth=0)
            shown.setdefault(name, bar)
            bottom += size


def _mixed(colour: str, ground: str, strength: float) -> str:
    pairs = ((int(colour[at : at + 2], 16), int(ground[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(strength * full + (1 - strength) * under):02x}" for full, under in pairs)


def _write_on_top(axis: Axes, place: float, height: float, palette: Palette, *, is_most: bool) -> None:
    axis.annotate(
        f"{height:.1f}", (place, height), xytext=(0, 3), textcoords="offset points", ha="center",
        color=palette.ink if is_most else palette.muted, fontweight="bold" if is_most else "normal", fontsize=9,
    )  # fmt: skip


# -- the tables -----------------------------------------------------------------------------------------------------------


def _shown_rank(report: Mapping[str, Any]) -> dict[str, Any]:
    phases = [(name, label.replace("\n", " ")) for name, label in _PHASES if name in report["phases"]]
    kinds = sorted({kind for parts in report["phases consist of"].values() for kind in parts}, key=lambda kind: -_most_of(report, kind))
    rows = [["all", *(f"{report['phases'][phase]:.2f}" for phase, _ in phases)]]
    rows += [[kind, *(_figure(report["phases consist of"][phase].get(kind, 0.0)) for phase, _ in phases)] for kind in kinds]
    took, batches = report["rehearsal"], report["micro batches"]
    return {
        "number": report["rank"],
        "stage": report["stage"],
        "fits": report["fit"] is None or report["fit"]["fits"],
        "verdict": summary(report),
        "note": (
            f"Rehearsed with {batches['rehearsed']} of {batches['of the run']} micro batches of a step in {took['processor seconds']:.0f} processor"
            f" seconds and {took['memory (GiB)']:.1f} GiB. Kinds of tensors below 1 MiB are not looked up."
        ),
        "fullest": report["fullest phase"],
        "largest": (("GiB", "tensors", "what", "kind", "allocated by"), [_largest(row) for row in report["largest"]]),
        "sent": (("collective", "GB", "calls", "beside the computation"), [_sent(row) for row in report["traffic of a step"]]),
        "host": (("while", "this rank", "planned, mean of a node"), _host(report)),
        "attention": (("kernel", "calls"), [[name, f"{n:g}"] for name, n in report["attention kernels"].items()]),
        "waits": _waits(report),
        "kinds": (("kind", *(label for _, label in phases)), rows),
    }


def _most_of(report: Mapping[str, Any], kind: str) -> float:
    return max(parts.get(kind, 0.0) for parts in report["phases consist of"].values())


def _figure(size: float) -> str:
    return f"{size:.3f}" if size else ""


def _largest(row: Mapping[str, Any]) -> list[str]:
    what = f"{row['dtype']} {' x '.join(f'{size:,}' for size in row['shape'])}"
    return [f"{row['GiB']:.3f}", f"{row['tensors']}", what, row["kind"], row["place"]]


def _host(report: Mapping[str, Any]) -> list[list[str]]:
    planned = {"save": "host, save", "asynchronous save": "host, save", "load": "host, load", "resume": "host, load"}
    return [[name, f"{size:.3f}", _figure(report["planned"].get(planned[name], 0.0))] for name, size in report["host"].items()]


def _sent(row: Mapping[str, Any]) -> list[str]:
    share = row.get("overlapped")
    beside = (f"{share:.0%}" if share else "no") if share is not None else ("yes" if row["asynchronous"] else "no")
    return [
        f"{row['group']} {row['kind']}",
        f"{row['GB']:.3f}" if row["GB"] >= 0.0005 else "< 0.001",
        f"{row['calls']:,}" if row["calls"] else "< 1",
        beside,
    ]


def _waits(report: Mapping[str, Any]) -> Table:
    rows = [
        [when, f"{count:g}", place]
        for when, title in (
            ("a step", "waits of a step"),
            ("a step that is logged", "waits of logging"),
            ("a save", "waits of a save"),
            ("a save beside the training", "waits of an asynchronous save"),
        )
        for place, count in report[title].items()
    ]
    return ("in", "times", "line"), rows
