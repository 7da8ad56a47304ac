"""What was measured, one JSON file a commit, and how two commits compare."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from common.artifacts import project_commit

Role = Literal["ours", "peer", "limit"]
FORMAT = 2


@dataclass(frozen=True)
class Figure:
    """One contender of one case, over all rounds.

    Attributes:
        case: what is done.
        amount: how much of it, in `unit`.
        name: who does it.
        role: this project, somebody else's way of doing it, or what no way can do without.
        seconds: on the clock, of each round.
        cpu_seconds: of all processors, of each round; none where only a part of a process is what counts.
        peak_bytes: largest resident set of a process in any round.
        load: processes that wanted to run, the mean of the minute before each round: above the number of cores, clock times are of a busy machine.
        remark: what is not the same thing as in the others' work.
    """

    case: str
    amount: float
    unit: str
    name: str
    role: Role
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    peak_bytes: int
    load: tuple[float, ...] = ()
    remark: str = ""

    @property
    def costs(self) -> tuple[float, ...]:
        """What two commits are compared by: processor seconds, which other work on the machine moves least, or else those on the clock."""
        return self.cpu_seconds or self.seconds

    @property
    def median_cpu(self) -> float | None:
        """Processor seconds of the round in the middle."""
        return statistics.median(self.cpu_seconds) if self.cpu_seconds else None

    @property
    def median_seconds(self) -> float:
        """Seconds on the clock of the round in the middle."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Results:
    """Of one commit on one machine.

    Attributes:
        commit: of the project; None outside a checkout; ends in `-dirty` where files differ from it.
        missing: stages and contenders (`CASE, NAME`) that were not measured, and why.
    """

    commit: str | None
    machine: str
    cores: int
    figures: tuple[Figure, ...]
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def load(self) -> tuple[float, ...]:
        """Of all rounds."""
        return tuple(load for figure in self.figures for load in figure.load)

    def of_case(self, case: str) -> list[Figure]:
        """Figures of one case, ours first."""
        return [figure for figure in self.figures if figure.case == case]

    @property
    def cases(self) -> list[str]:
        """In the order in which they were measured."""
        return list(dict.fromkeys(figure.case for figure in self.figures))


def machine() -> str:
    """Processor and system in a line."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    processor = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{processor}, {platform.system()} {platform.release()}"


def results_of(figures: Sequence[Figure], missing: Mapping[str, str], *, stages: Sequence[str], earlier: Results | None = None) -> Results:
    """With the commit and the machine of this moment, and what an earlier call at the same commit measured of other cases.

    Args:
        stages: that this call was asked for.
    """
    if earlier:
        measured = {figure.case for figure in figures}
        kept = [figure for figure in earlier.figures if figure.case not in measured]
        still = {
            what: why
            for what, why in earlier.missing.items()
            if what not in stages and not any(what.startswith(f"{case}, ") for case in measured)
        }
        figures, missing = [*kept, *figures], {**still, **missing}
    return Results(project_commit(), machine(), len(os.sched_getaffinity(0)), tuple(figures), dict(missing))


def write_results(results: Results, path: Path) -> None:
    """Beside and renamed."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps({"format": FORMAT, **asdict(results)}, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


def read_results(path: Path) -> Results:
    """What `write_results` wrote.

    Raises:
        ValueError: if it did not.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found.pop("format") != FORMAT:
            raise KeyError("format")
        figures = tuple(_figure(figure) for figure in found.pop("figures"))
        return Results(**found, figures=figures)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no results of benchmarks.all ({error}); give a JSON file that it wrote") from None


def _figure(found: dict[str, Any]) -> Figure:
    return Figure(**{**found, **{name: tuple(found[name]) for name in ("seconds", "cpu_seconds", "load")}})


@dataclass(frozen=True)
class Change:
    """A case of ours at two commits."""

    case: str
    before: Figure
    after: Figure

    @property
    def ratio(self) -> float:
        """New cost by old, of the same amount of work."""
        return statistics.median(self.after.costs) / self.after.amount / (statistics.median(self.before.costs) / self.before.amount)

    @property
    def is_slower(self) -> bool:
        """Whether even the cheapest round cost more than all before, and the median a twentieth more."""
        return self.ratio > 1.05 and min(self.after.costs) / self.after.amount > max(self.before.costs) / self.before.amount


def changes(before: Results, after: Results) -> list[Change]:
    """Of the cases that both have."""
    ours = {(figure.case, figure.name): figure for figure in before.figures if figure.role == "ours"}
    return [
        Change(figure.case if figure.name == "Scion" else f"{figure.case}, {figure.name}", ours[figure.case, figure.name], figure)
        for figure in after.figures
        if figure.role == "ours" and (figure.case, figure.name) in ours
    ]
