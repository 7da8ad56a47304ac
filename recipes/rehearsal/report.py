"""What a rehearsal says of a rank: plain values by section, and the same as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from nemo_patches.stand_ins import installed, stands_in
from recipes.planner.hardware import Gpu
from recipes.planner.layout import layout_of
from recipes.planner.memory import GIB, estimate_host, stage_memory
from recipes.rehearsal.account import Account, Peak, total_traffic
from recipes.rehearsal.fit import fit_of, summary
from recipes.rehearsal.rank import STEPS, RehearsedRank
from recipes.rules.checks import planned_model
from recipes.rules.inputs import RunInputs
from recipes.rules.schema import Recipe

STEP_PHASES = ("forward", "backward", "optimizer")
_EVERY_MICRO_BATCH = ("TP", "PP", "CP")  # groups whose traffic grows with the micro batches of a step
_LARGEST = 12


def rank_report(recipe: Recipe, inputs: RunInputs, found: RehearsedRank, gpu: Gpu | None = None) -> dict[str, Any]:
    """All of a rank, as JSON has it; sizes in GiB.

    Args:
        gpu: that the rank has to fit; None where the recipe names none.
    """
    account, resumed = found.account, found.resumed
    phases = {**account.peaks, **{f"{phase}, resumed": peak for phase, peak in resumed.peaks.items() if phase in ("load", "save")}}
    phases.pop("end", None)  # Lightning's clearing up
    fullest_of_all = max(phases, key=lambda phase: phases[phase].num_bytes)
    most = gib(phases[fullest_of_all].num_bytes)
    fullest = max((phase for phase in account.peaks if phase in STEP_PHASES), key=lambda phase: account.peaks[phase].num_bytes)
    peak = account.peaks[fullest]
    return {
        "rank": found.rank,
        "stage": found.stage,
        "stand-ins": list(installed()),
        "micro batches": {"rehearsed": found.micro_batches, "of the run": found.all_micro_batches},
        "peak": gib(peak.num_bytes),
        "fullest phase": fullest,
        "fullest of all": fullest_of_all,
        "most": most,
        "after the first step": gib(account.after_first_step),
        "fit": None if gpu is None else fit_of(recipe, inputs, most, gpu),
        "phases": {phase: gib(peak.num_bytes) for phase, peak in phases.items()},
        "phases consist of": {phase: _parts(peak) for phase, peak in phases.items()},
        "consists of": _parts(peak),
        "largest": _largest(peak),
        "planned": _planned(recipe, inputs, found.stage),
        "traffic of a step": _traffic(found),
        "host": {
            "save": gib(account.host_peaks.get("save", 0)),
            "asynchronous save": gib(resumed.host_peaks.get("save", 0)),
            "load": gib(account.host_peaks.get("load", 0)),
            "resume": gib(resumed.host_peaks.get("load", 0)),
        },
        "waits of a step": _waits(account),
        "waits of logging": dict(account.waits.get("log", Counter()).most_common()),
        "waits of a save": dict(account.waits.get("save", Counter()).most_common(_LARGEST)),
        "waits of an asynchronous save": dict(resumed.waits.get("save", Counter()).most_common(_LARGEST)),
        "attention kernels": dict(account.kernels.get("forward", Counter())),
        "rehearsal": {
            "seconds": round(found.seconds, 1),
            "processor seconds": round(found.processor_seconds, 1),
            "memory (GiB)": round(found.host_gib, 2),
        },
    }


def gib(size: float) -> float:
    """Bytes in GiB, to the MiB."""
    return round(size / GIB, 3)


def _parts(peak: Peak) -> dict[str, float]:
    return {kind: gib(size) for kind, size in peak.by_kind().items()}


def _largest(peak: Peak) -> list[dict[str, Any]]:
    return [
        {"GiB": gib(size), "tensors": count, "kind": block.kind, "place": block.place, "shape": list(block.shape), "dtype": block.dtype}
        for size, count, block in peak.largest(_LARGEST)
    ]


def _planned(recipe: Recipe, inputs: RunInputs, stage: int) -> dict[str, float]:
    model, layout = planned_model(recipe, inputs), layout_of(recipe)
    # Adapters are on Megatron's own layers, whatever is installed.
    kernels = "te" if stands_in() and recipe.lora is None else "gpu"
    memory, host = stage_memory(model, layout, stage, kernels=kernels), estimate_host(model, layout)
    parts = ("parameters", "gradients", "optimizer", "activations", "logits", "head", "temporary", "gathered", "total")
    loading = {"load, resumed": gib(memory.state + memory.loading)}
    on_host = {"host, save": gib(host.save / host.processes), "host, load": gib(host.load / host.processes)}
    return {part: gib(getattr(memory, part)) for part in parts} | loading | on_host


def _traffic(found: RehearsedRank) -> list[dict[str, Any]]:
    """Bytes of the collectives of a step with all its micro batches; steps are counted together and divided."""
    rows = []
    for (group, kind, is_asynchronous), traffic in sorted(total_traffic(found.account, STEP_PHASES).items()):
        factor = found.all_micro_batches / found.micro_batches if group in _EVERY_MICRO_BATCH else 1.0
        rows.append(
            {
                "group": group,
                "kind": kind,
                "GB": round(traffic.num_bytes * factor / STEPS) / 1e9,
                "calls": round(traffic.calls * factor / STEPS),
                "asynchronous": is_asynchronous,
                "overlapped": round(traffic.beside / traffic.num_bytes, 3),
                "TFLOP beside": round(traffic.operations * factor / STEPS / 1e12, 3),
            }
        )
    return rows


def _how(row: Mapping[str, Any]) -> str:
    """What is computed while a collective is under way."""
    if row["overlapped"]:
        return f"{row['overlapped']:.0%} beside {row['TFLOP beside']:.1f} TFLOP"
    return "asynchronous, but nothing is multiplied meanwhile" if row["asynchronous"] else "waited for"


def _waits(account: Account) -> dict[str, float]:
    waits: Counter[str] = Counter()
    for phase in STEP_PHASES:
        waits.update(account.waits.get(phase, Counter()))
    return {place: count / STEPS for place, count in waits.most_common()}


def text_of(report: Mapping[str, Any]) -> str:
    """A rank's report as aligned text."""
    lines = [f"rank {report['rank']} (stage {report['stage']}): {summary(report)}"]
    for title in ("phases", "consists of", "planned", "host"):
        lines.append(f"  {title} (GiB)")
        lines += [f"    {name:<44}{size:>9.3f}" for name, size in report[title].items()]
    lines.append("  largest (GiB)")
    lines += [
        f"    {row['GiB']:>9.3f}  {row['tensors']} x {row['dtype']} {tuple(row['shape'])}, {row['kind']}: {row['place']}"
        for row in report["largest"]
    ]
    lines.append("  sent in a step (GB)")
    lines += [
        f"    {row['GB']:>9.3f}  {row['group']} {row['kind']}, {row['calls']} calls, {_how(row)}" for row in report["traffic of a step"]
    ]
    for title in ("waits of a step", "waits of logging", "waits of a save", "waits of an asynchronous save", "attention kernels"):
        lines.append(f"  {title}")
        lines += [f"    {count:>9g}  {name}" for name, count in report[title].items()]
    took = report["rehearsal"]
    batches = report["micro batches"]
    lines.append(
        f"  rehearsed with {batches['rehearsed']} of {batches['of the run']} micro batches in {took['processor seconds']} processor seconds"
        f" and {took['memory (GiB)']} GiB"
    )
    return "\n".join(lines)
