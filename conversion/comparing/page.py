"""A comparison of transfers as table, chart, page and figures."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from common.figure_style import Palette, drawn
from common.pages import Drawing, rendered
from common.tables import markdown_table
from conversion.comparing.comparison import SOURCE, Measurement, TrainingOptions, difference_between, mean_bits_per_byte, standing_of
from conversion.comparing.decision import DecisionRule, Standing, figure_of
from conversion.embeddings import METHODS
from conversion.embeddings.options import MATERIAL
from conversion.measuring.intervals import FEW_UNITS
from conversion.measuring.significance import LEAST_UNITS
from data_prep.reading.named_texts import Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The method that the others are held against, the first of these that was measured.
_BASELINES = ("random", "random-all")
_LARGEST_SHOWN = 2.0  # times the median


@dataclass(frozen=True)
class Comparison:
    """All measurements of one comparison; the source's own comes first."""

    measurements: tuple[Measurement, ...]
    texts: tuple[Text, ...]
    training: TrainingOptions
    source: str
    tokenizer: str
    rule: DecisionRule = field(default_factory=DecisionRule)

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps at which the methods were measured."""
        return (0, self.training.num_steps) if self.training.num_steps else (0,)

    def of(self, method: str, step: int) -> list[Measurement]:
        """Measurements of a method at a step, one per seed."""
        return [m for m in self.measurements if m.method == method and m.step == step]

    @property
    def methods(self) -> list[str]:
        """Methods, the best at the last step on the first text first, then those that are least behind it."""
        standing = self.standing
        return [standing.best, *standing.behind]

    @cached_property
    def standing(self) -> Standing:
        """Where the methods stand at the last step on the first text."""
        text = self.texts[0]
        looks = len(self.rule.round_ends(len(text.documents)))
        return standing_of(self.measurements, text.name, self.steps[-1], looks=looks, tie=self.rule.tie)

    @property
    def recommendation(self) -> str:
        """What to take, and how sure that is."""
        needs = {
            method: [MATERIAL[name][0] for name in (*METHODS[method].needs, *(pair[0] for pair in METHODS[method].either))]
            for method in self.methods
        }
        sentence = self.standing.recommendation(self.texts[0].name, needs)
        before = (
            "" if self.training.num_steps else " This is before any training, after which the order may be another: --steps measures that."
        )
        return sentence + before

    @property
    def baseline(self) -> str:
        """The method that the others are held against."""
        return next((name for name in _BASELINES if name in self.methods), self.methods[-1])

    @property
    def num_seeds(self) -> int:
        """Seeds of each method."""
        return len({m.seed for m in self.measurements if m.method != SOURCE})

    def table(self, text: Text) -> tuple[list[str], list[list[str]]]:
        """Header and rows for one text: per method its bits per byte at each step, and how far it is from the baseline."""
        header = ["method"]
        for step in self.steps:
            header += [f"step {step}", f"against {self.baseline}"]
        rows = []
        for method in self.methods:
            cells = [cell for step in self.steps for cell in (self._cell(method, step, text), self._difference(method, step, text))]
            seconds = f"{sum(m.seconds for m in self.of(method, 0)) / self.num_seeds:.1f}"
            documents = len(self.of(method, self.steps[-1])[0].scores[text.name].documents)
            rows.append([method, *cells, self._behind(method, text), f"{documents:,}", seconds])
        source = figure_of(mean_bits_per_byte(self.of(SOURCE, 0), text.name))
        rows.append([f"{SOURCE}, own vocabulary", source, *[""] * (len(header) - 1), f"{len(text.documents):,}", ""])
        return [*header, f"against {self.methods[0]}", "documents", "seconds"], rows

    def tables(self) -> str:
        """The tables of all texts as Markdown."""
        return "\n\n".join(f"{text.name} (held out)\n\n{markdown_table(*self.table(text))}" for text in self.texts)

    def _cell(self, method: str, step: int, text: Text) -> str:
        values = [m.scores[text.name].bits_per_byte for m in self.of(method, step)]
        low, high = figure_of(min(values)), figure_of(max(values))
        return figure_of(sum(values) / len(values)) + (f" [{low}, {high}]" if low != high else "")

    def _behind(self, method: str, text: Text) -> str:
        return self._difference(method, self.steps[-1], text, against=self.methods[0])

    def _difference(self, method: str, step: int, text: Text, *, against: str | None = None) -> str:
        against = against or self.baseline
        if method == against:
            return "–"
        found = difference_between(self.of(method, step), self.of(against, step), text.name)
        value = figure_of(found.value, sign="+")
        if not found.can_decide:
            return f"{value}, too few to tell"
        if not math.isfinite(found.high - found.low):  # all documents differ alike, such as not at all
            return value
        return f"{value} [{figure_of(found.low, sign='+')}, {figure_of(found.high, sign='+')}]"

    def notes(self) -> list[str]:
        """How the figures came about."""
        texts = "; ".join(
            f"{t.name}: {len(t.documents):,} documents, {sum(len(d.encode()) for d in t.documents):,} bytes of {t.path.name}"
            for t in self.texts
        )
        notes = [
            f"Source {self.source}, target tokenizer {self.tokenizer}.",
            f"Held-out text: {texts}. Every document is scored separately, after one start token.",
            f"Differences to {self.baseline} with Student's interval of 95 % over documents; fewer than {LEAST_UNITS} documents are too few to decide,"
            f" and of fewer than {FEW_UNITS} the interval assumes that others would vary as these do."
            + (f" Mean of {self.num_seeds} seeds, in brackets the lowest and the highest." if self.num_seeds > 1 else ""),
            "Seconds: time to plan the rows; work that several methods share counts for the first of them.",
            f"p-values of the recommendation are those of the exact test of signs over documents of {self.texts[0].name}, by Holm for the"
            " methods and times the number of looks.",
        ]
        if not self.rule.every_document:
            notes.append(
                f"Documents were read in rounds: a method that is significantly worse than the best is dropped, and the comparison ends when"
                f" the remaining ones differ by less than {self.rule.tie:g} bits per byte. Differences are over the documents that both were scored on."
            )
        if screened := sorted({m.method for m in self.measurements if m.screened}):
            notes.append(
                f"Products in bfloat16, for methods that were already significantly worse: {', '.join(screened)}. All others in float32, on the same"
                " documents; where that changes a difference by more than a hundredth, all are measured again."
            )
        if self.training.num_steps:
            options = self.training
            notes.append(
                f"{options.num_steps} steps of {options.batch_size} x {options.sequence_length} tokens, AdamW at {options.learning_rate:g},"
                " the same batches for every method; enough to rank, not to train."
            )
        return notes

    def figures(self) -> dict[str, Any]:
        """All figures, for JSON."""
        return {
            "source": self.source,
            "tokenizer": self.tokenizer,
            "training": asdict(self.training),
            "baseline": self.baseline,
            "recommendation": self._recommended(),
            "texts": {t.name: {"file": t.path.name, "digest": t.digest, "num_documents": len(t.documents)} for t in self.texts},
            "measurements": [
                {
                    "method": m.method,
                    "seed": m.seed,
                    "step": m.step,
                    "screened": m.screened,
                    "seconds": round(m.seconds, 3),
                    "texts": {name: score.figures() for name, score in m.scores.items()},
                }
                for m in self.measurements
            ],
        }

    def _recommended(self) -> dict[str, Any]:
        standing = self.standing
        return {
            "sentence": self.recommendation,
            "method": standing.best,
            "surely_worse": standing.significantly_worse,
            "tied": standing.tied,
            "rule": asdict(self.rule),
            "behind": {
                name: {
                    **{key: value if math.isfinite(value) else None for key, value in asdict(found).items()},
                    "p_value": standing.p_values[name],
                }
                for name, found in standing.behind.items()
            },
        }


def write_comparison(comparison: Comparison, directory: Path) -> None:
    """Write comparison.json, .md, .svg, .png and .html."""
    light, dark = drawn(lambda palette: draw(comparison, palette), directory / "comparison.png")
    (directory / "comparison.svg").write_bytes(light)
    (directory / "comparison.json").write_text(json.dumps(comparison.figures(), indent=1) + "\n", encoding="utf-8")
    markdown = ["Bits per byte of held-out text, lower is better.", comparison.recommendation, comparison.tables(), *comparison.notes()]
    (directory / "comparison.md").write_text("\n\n".join(markdown) + "\n", encoding="utf-8")
    (directory / "comparison.html").write_text(page(comparison, light, dark), encoding="utf-8")


def page(comparison: Comparison, light: bytes, dark: bytes) -> str:
    """The page: drawing, table, and how it was measured."""
    names = " and ".join(text.name for text in comparison.texts)
    caption = "Each row is a method. Ring: before training." + (
        f" Dot: after {comparison.training.num_steps} steps." if comparison.training.num_steps else ""
    )
    drawing = Drawing(
        light,
        dark,
        alternative=f"Bits per byte of each method on {names}; the figures are in the table below.",
        caption=f"{caption} Dashed: the source model with its own vocabulary.",
    )
    return rendered("transfer_comparison.html", title="Which transfer method?", comparison=comparison, drawing=drawing)


def draw(comparison: Comparison, palette: Palette) -> Figure:
    """A panel per text, a row per method: a ring before training, a dot after it, small ticks for single seeds."""
    from matplotlib import pyplot as plt

    methods = comparison.methods[::-1]
    size = (1.6 + 4.2 * len(comparison.texts), 1.0 + 0.3 * len(methods))
    figure, axes = plt.subplots(1, len(comparison.texts), figsize=size, layout="constrained", sharey=True, squeeze=False)
    for text, panel in zip(comparison.texts, axes[0]):
        _draw_panel(panel, comparison, text, methods, palette)
    return figure


def _draw_panel(panel: Axes, comparison: Comparison, text: Text, methods: Sequence[str], palette: Palette) -> None:
    accent = palette.series[0]
    source = mean_bits_per_byte(comparison.of(SOURCE, 0), text.name)
    values = {
        (method, step): [m.scores[text.name].bits_per_byte for m in comparison.of(method, step)]
        for method in methods
        for step in comparison.steps
    }
    means = {key: fmean(found) for key, found in values.items()}
    # One method that explodes must not flatten the others: it is drawn at the edge, with its figure.
    shown = [value for value in (*means.values(), source) if value <= _LARGEST_SHOWN * median(means.values())]
    margin = 0.06 * (max(shown) - min(shown)) or 0.1
    edge = max(shown) + margin
    panel.set_xlim(min(shown) - margin, edge + margin)
    panel.axvline(source, color=palette.muted, linewidth=1.0, linestyle=(0, (5, 4)), zorder=1)
    for row, method in enumerate(methods):
        panel.plot([min(means[method, step], edge) for step in comparison.steps], [row] * len(comparison.steps), color=accent, alpha=0.5)
        for step in comparison.steps:
            mean = means[method, step]
            if mean > edge:
                panel.annotate(f"{figure_of(mean)} →", (edge, row), ha="right", va="bottom", color=palette.ink, fontsize=8)
                continue
            panel.plot(values[method, step], [row] * len(values[method, step]), "|", color=accent, markersize=9, alpha=0.6)
            panel.plot(mean, row, "o", color=accent, markerfacecolor=accent if step else palette.ground, markersize=6.5, zorder=3)
    panel.set_yticks(range(len(methods)), methods)
    panel.set_title(f"{text.name} (held out)")
    panel.set_xlabel("bits per byte (lower is better)")
    panel.grid(axis="both")
    panel.tick_params(length=0, axis="y")
