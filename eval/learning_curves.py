"""Bits per byte against training step, per method: table, plot and one static page from results of eval.harness.

One panel per held-out text, in the order of evaluation: put the target language first and English beside it, to see what a method
gains in one and costs in the other (figure 2 of the GaMS paper, in a unit that compares vocabularies).  Results without a method, such as
those of the source model, are drawn as horizontal lines.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from common import command
from common.artifacts import digest_file, staged_directory, write_manifest
from common.figure_style import MARKERS, Palette, drawn
from common.pages import Drawing, rendered
from common.tables import markdown_table
from eval.reporting.continuations import Continuations, read_continuations
from eval.reporting.runs import Evaluated, by_training, training_of
from eval.running.results import PSEUDO_TEXTS, find_results, load_result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LANGUAGES = {"sl": "Slovene", "en": "English", "it": "Italian", "hr": "Croatian", "sr": "Serbian", "de": "German", "fr": "French"}
# Settings that change the figure; two results that differ in one are not comparable.
_COMPARED_SETTINGS = ("start_token", "context_length", "dtype")
_METHOD_SERIES = {"focus": 0, "mean": 1, "random": 2, "random-all": 2}  # of the palette's; the others follow
# What is said of a vocabulary that was not simply replaced.
_STRATEGIES = {"expand": "expanded", "union": "union", "prune": "pruned"}


@dataclass(frozen=True)
class Result:
    """One evaluated checkpoint: what made it, and its bits per byte on each text; `vocabulary` is how the transfer changed it."""

    name: str
    method: str | None
    vocabulary: str | None
    head: str | None
    seed: int | None
    step: int | None
    bits_per_byte: dict[str, float]
    evaluated: Evaluated

    @property
    def path(self) -> Path:
        """Of its result.json."""
        return self.evaluated.path

    @property
    def has_curve(self) -> bool:
        """Whether it is of a transfer or of a training, not a model that was there before."""
        return self.method is not None or training_of(self.evaluated) is not None


@dataclass(frozen=True)
class Curve:
    """One method over training.

    Attributes:
        values: text -> step -> bits per byte of each seed.
    """

    label: str
    method: str
    num_seeds: int
    values: dict[str, dict[int, list[float]]]

    def steps(self, text: str) -> list[int]:
        """Evaluated steps, ascending."""
        return sorted(self.values[text])


@dataclass(frozen=True)
class Comparison:
    """All that a table or plot needs: texts in order, curves, and results that have no method."""

    texts: tuple[str, ...]
    curves: tuple[Curve, ...]
    references: tuple[Result, ...]
    results: tuple[Result, ...]
    notes: tuple[str, ...]


def read_comparison(results_dirs: Sequence[Path]) -> Comparison:
    """Results below the given folders, checked to be comparable and ordered into curves.

    Raises:
        ValueError: if there is nothing to draw, a step is missing or comes twice, or two results were made from different texts or
            with different settings; the first difference is named.
    """
    paths = find_results(results_dirs)
    contents = [load_result(path) for path in paths]
    texts = _common_texts(contents, paths)
    results = [_read_result(content, path) for content, path in zip(contents, paths)]
    curves = _curves([result for result in results if result.has_curve], texts)
    if not curves:
        raise ValueError(
            f"none of the {len(results)} results has a method or belongs to a training run, so there is no curve to draw; see `facts` in {paths[0]}"
        )
    references = sorted((result for result in results if not result.has_curve), key=lambda result: result.name)
    return Comparison(texts, curves, tuple(references), tuple(results), _notes(contents))


def _common_texts(contents: Sequence[dict[str, Any]], paths: Sequence[Path]) -> tuple[str, ...]:
    first = contents[0]
    if not first["texts"] and first.get(PSEUDO_TEXTS):
        raise ValueError(f"{paths[0]} is of a masked language model, which has only pseudo bits per byte; use eval.report for them")
    if not first["texts"]:
        raise ValueError(f"{paths[0]} has no bits per byte; evaluate with --text")
    for content, path in zip(contents, paths):
        if set(content["texts"]) != set(first["texts"]):
            raise ValueError(
                f"{path} has the texts {', '.join(sorted(content['texts'])) or 'none'}, but {paths[0]} has"
                f" {', '.join(sorted(first['texts']))}; evaluate all models on the same texts"
            )
        for text in first["texts"]:
            if content["texts"][text]["digest"] != first["texts"][text]["digest"]:
                raise ValueError(f"{path} and {paths[0]} were made from different files for {text}; evaluate all models on the same texts")
        for setting in _COMPARED_SETTINGS:
            found, expected = content["settings"][setting], first["settings"][setting]
            if found != expected:
                raise ValueError(
                    f"{path} was made with {setting} {found}, but {paths[0]} with {expected}; evaluate all models with the same settings"
                )
    return tuple(first["texts"])


def _read_result(content: dict[str, Any], path: Path) -> Result:
    facts = content["facts"]
    method, step = facts.get("method"), facts.get("step")
    if method is not None and step is None:
        if content["model"]["written_by"] != "conversion.transfer":
            raise ValueError(
                f"{path} has the method {method} but no step in its facts; only outputs of conversion.transfer and"
                " checkpoints of recipes.train have one: evaluate those"
            )
        step = 0  # fresh from the transfer, not trained yet
    bits_per_byte = {text: figures["bits_per_byte"] for text, figures in content["texts"].items()}
    vocabulary = (facts.get("vocabulary") or {}).get("strategy")
    return Result(content["name"], method, vocabulary, facts.get("head"), facts.get("seed"), step, bits_per_byte, Evaluated(content, path))


def _curves(results: Sequence[Result], texts: Sequence[str]) -> tuple[Curve, ...]:
    """A curve for each recipe of each kind of transfer, over the runs that differ in their seeds; what a transfer made begins all that follow it."""
    several_heads = len({result.head for result in results}) > 1
    several_vocabularies = len({result.vocabulary for result in results}) > 1
    runs = by_training([result.evaluated for result in results])
    of_path = {result.path: result for result in results}
    groups: dict[tuple[str, str, str, str], list[list[Result]]] = {}
    for run in runs:
        members = [of_path[model.path] for model in run]
        last, recorded = members[-1], training_of(run[-1]) or {}
        kind = tuple(map(str, (last.method, last.vocabulary, last.head, recorded.get("recipe"))))
        groups.setdefault(kind, []).append(members)  # type: ignore[arg-type]
    curves = []
    labels = []
    for _, several in sorted(groups.items(), key=lambda item: (*item[0][:3], str(item[1][0][-1].path))):
        values: dict[str, dict[int, list[float]]] = {text: {} for text in texts}
        for result in (result for run in several for result in run):
            assert result.step is not None
            for text in texts:
                values[text].setdefault(result.step, []).append(result.bits_per_byte[text])
        last = several[0][-1]
        recorded = training_of(last.evaluated) or {}
        name = last.method or str(recorded["name"])
        label = "own vocabulary" if last.vocabulary == "keep" else name
        label += f", {last.head} head" if several_heads and last.head is not None else ""
        label += f" ({_STRATEGIES[last.vocabulary]})" if several_vocabularies and last.vocabulary in _STRATEGIES else ""
        labels.append((label, f"{label}, {recorded.get('name')}", f"{label}, {recorded.get('output')}"))
        curves.append(Curve(label, name, _num_seeds(several), values))
    return tuple(replace(curve, label=_label(number, labels)) for number, curve in enumerate(curves))


def _num_seeds(runs: Sequence[Sequence[Result]]) -> int:
    """Of runs of one kind; those without a recorded training run are distinguished by the seed of their transfer."""
    return len({(training_of(run[-1].evaluated) or {}).get("id", run[-1].seed) for run in runs})


def _label(number: int, labels: Sequence[tuple[str, str, str]]) -> str:
    """The shortest name that no other curve has: that of its transfer, with its recipe, with its output."""
    for kind in range(2):
        if [label[kind] for label in labels].count(labels[number][kind]) == 1:
            return labels[number][kind]
    return labels[number][2]


def _notes(contents: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    first = contents[0]
    texts = "; ".join(
        f"{language(name)}: {figures['num_documents']} documents, {figures['text_bytes']} bytes" for name, figures in first["texts"].items()
    )
    starts = sorted({content["settings"]["start_token_used"]["token"] for content in contents})
    windows = sorted({content["settings"]["window_tokens"] for content in contents})
    versions = ", ".join(f"{package} {version}" for package, version in first["versions"].items() if package in ("torch", "transformers"))
    notes = [
        f"Held-out texts: {texts}.",
        f"Every document is scored separately, after one start token ({', '.join(starts)}), with up to {' or '.join(map(str, windows))} tokens"
        f" at once; weights in {first['settings']['dtype']}; {versions}.",
    ]
    if unknown := _unknown_shares(contents):
        notes.append(f"Characters unknown to a tokenizer count as 8 bits per byte: {unknown}.")
    return tuple(notes)


def _unknown_shares(contents: Sequence[dict[str, Any]]) -> str:
    """Shares of unknown bytes per text, and which models have them; models of one tokenizer have the same."""
    shares: dict[tuple[str, float], list[str]] = {}
    for content in contents:
        for text, figures in content["texts"].items():
            if figures["unknown_bytes"]:
                share = figures["unknown_bytes"] / figures["text_bytes"]
                shares.setdefault((text, share), []).append(content["facts"].get("method") or content["name"])
    return "; ".join(
        f"{share:.1%} of {language(text)} for {', '.join(sorted(set(names)))}" for (text, share), names in sorted(shares.items())
    )


def language(text: str) -> str:
    """Name of a text's language where the text is called by a known code, else the text's own name."""
    return LANGUAGES.get(text, text)


def start_and_end_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Header and rows: per curve its first and last evaluated step on every text, lowest end on the first text first."""
    starts = {curve.steps(comparison.texts[0])[0] for curve in comparison.curves}
    ends = {curve.steps(comparison.texts[0])[-1] for curve in comparison.curves}
    header = ["method"]
    for text in comparison.texts:
        header += [f"{language(text)}, {_step_name(starts, 'first')}", f"{language(text)}, {_step_name(ends, 'last')}"]
    ordered = sorted(comparison.curves, key=lambda curve: fmean(curve.values[comparison.texts[0]][curve.steps(comparison.texts[0])[-1]]))
    rows = []
    for curve in ordered:
        row = [curve.label]
        for text in comparison.texts:
            steps = curve.steps(text)
            row += [_cell(curve.values[text][steps[0]]), _cell(curve.values[text][steps[-1]])]
        rows.append(row)
    for result in comparison.references:
        cells = [cell for text in comparison.texts for cell in ("–", f"{result.bits_per_byte[text]:.3f}")]
        rows.append([f"{result.name} (not adapted)", *cells])
    return header, rows


def _step_name(steps: set[int], otherwise: str) -> str:
    return f"step {next(iter(steps))}" if len(steps) == 1 else f"{otherwise} step"


def _cell(values: Sequence[float]) -> str:
    """The mean, with lowest and highest of several seeds."""
    return f"{fmean(values):.3f}" + (f" [{min(values):.3f}, {max(values):.3f}]" if len(values) > 1 else "")


def step_table(comparison: Comparison, text: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows: evaluated steps in rows, methods in columns, for one text."""
    steps = sorted({step for curve in comparison.curves for step in curve.values[text]})
    rows = [
        [str(step), *(_cell(curve.values[text][step]) if step in curve.values[text] else "–" for curve in comparison.curves)]
        for step in steps
    ]
    return ["step", *(curve.label for curve in comparison.curves)], rows


def draw(comparison: Comparison, palette: Palette) -> Figure:
    """One panel per text; lines are named where they end, the range over seeds is shaded."""
    from matplotlib import pyplot as plt
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(wspace=0.06, w_pad=0.08, h_pad=0.08)
    size = (5.0 * len(comparison.texts), 3.9)
    figure, axes = plt.subplots(1, len(comparison.texts), figsize=size, layout=layout, squeeze=False)
    for text, panel in zip(comparison.texts, axes[0]):
        _draw_panel(panel, comparison, text, palette)
    axes[0][0].set_ylabel("bits per byte (lower is better)")
    # Room between labels is known only after the layout; naming lines changes the layout, so twice.
    ends = [_line_ends(comparison, text, palette) for text in comparison.texts]
    for _ in range(2):
        for panel in axes[0]:
            for label in list(panel.texts):
                label.remove()
        figure.draw_without_rendering()
        for panel, line_ends in zip(axes[0], ends):
            _name_lines(panel, line_ends)
    return figure


def _colours(comparison: Comparison, palette: Palette) -> list[str]:
    more = cycle(palette.series[1 + max(_METHOD_SERIES.values()) :])
    used: set[str] = set()
    result = []
    for curve in comparison.curves:
        # A second head of a method gets a colour of its own.
        known = curve.method in _METHOD_SERIES and curve.method not in used
        used.add(curve.method)
        result.append(palette.series[_METHOD_SERIES[curve.method]] if known else next(more))
    return result


def _draw_panel(panel: Axes, comparison: Comparison, text: str, palette: Palette) -> None:
    from matplotlib.ticker import MaxNLocator

    for result in comparison.references:
        panel.axhline(result.bits_per_byte[text], color=palette.muted, linewidth=1.0, linestyle=(0, (5, 4)), zorder=1)
    for number, (curve, colour) in enumerate(zip(comparison.curves, _colours(comparison, palette))):
        steps = curve.steps(text)
        values = [curve.values[text][step] for step in steps]
        if curve.num_seeds > 1:
            panel.fill_between(steps, [min(v) for v in values], [max(v) for v in values], color=colour, alpha=0.18, linewidth=0, zorder=2)
        panel.plot(
            steps,
            [fmean(v) for v in values],
            color=colour,
            linewidth=1.9,
            marker=MARKERS[number % len(MARKERS)],
            markersize=5.5,
            markeredgecolor=palette.ground,
            markeredgewidth=0.8,
            clip_on=False,
            zorder=3,
        )
    panel.set_title(f"{language(text)} (held out)")
    panel.set_xlabel("training step")
    panel.set_xlim(0, 1.02 * max(curve.steps(text)[-1] for curve in comparison.curves) or 1)
    panel.margins(y=0.08)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    panel.grid(axis="y")
    panel.tick_params(length=3)


def _line_ends(comparison: Comparison, text: str, palette: Palette) -> list[tuple[str, float, str]]:
    """Name, height and colour of every line at the right edge."""
    ends = [
        (curve.label, fmean(curve.values[text][curve.steps(text)[-1]]), colour)
        for curve, colour in zip(comparison.curves, _colours(comparison, palette))
    ]
    return ends + [(result.name, result.bits_per_byte[text], palette.muted) for result in comparison.references]


def _name_lines(panel: Axes, ends: Sequence[tuple[str, float, str]]) -> None:
    """Write names right of the panel at the height of their lines, apart from each other."""
    points_per_pixel = 72 / panel.figure.dpi
    height = panel.bbox.height * points_per_pixel
    low, high = panel.get_ylim()
    expected = [(value - low) / (high - low) * height for _, value, _ in ends]
    placed = spread_out(expected, gap=13.0, low=0.0, high=height)
    for (label, value, colour), y, wish in zip(ends, placed, expected):
        panel.annotate(
            label,
            xy=(1.0, value),
            xycoords=("axes fraction", "data"),
            xytext=(14, y - wish),
            textcoords="offset points",
            va="center",
            color=colour,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 5, "relpos": (0, 0.5)},
        )


def spread_out(expected: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Positions in the order of the wanted ones, at least `gap` apart and as near to the wishes as that allows.

    Between `low` and `high` where there is room for all.
    """
    order = sorted(range(len(expected)), key=lambda index: expected[index])
    # Neighbours that would overlap form a block around the mean of their wishes; blocks that then touch are joined.
    blocks: list[list[float]] = []

    def first(block: list[float]) -> float:
        length = gap * (len(block) - 1)
        return max(low, min(fmean(block) - length / 2, high - length))

    for index in order:
        block = [expected[index]]
        while blocks and first(blocks[-1]) + gap * len(blocks[-1]) > first(block):
            block = blocks.pop() + block
        blocks.append(block)
    placed = [first(block) + gap * number for block in blocks for number in range(len(block))]
    result = [0.0] * len(expected)
    for index, position in zip(order, placed):
        result[index] = position
    return result


def page(comparison: Comparison, *, title: str, light: bytes, dark: bytes, continuations: Continuations | None = None) -> str:
    """One HTML page that holds all it shows, for light and dark screens."""
    panels = " and ".join(map(language, comparison.texts))
    seeds = max(curve.num_seeds for curve in comparison.curves)
    seed_note = f"Mean of {seeds} seeds, shaded from the lowest to the highest." if seeds > 1 else "One seed per method."
    drawing = Drawing(
        light,
        dark,
        alternative=f"Bits per byte against training step, one panel each for {panels}; the figures are in the tables below.",
        caption=f"Each line is a method of initialising the new embeddings. {seed_note}"
        + (" Dashed: models that were not adapted." if comparison.references else ""),
    )
    return rendered(
        "learning_curves.html",
        title=title,
        drawing=drawing,
        summary=start_and_end_table(comparison),
        steps=[(language(text), step_table(comparison, text)) for text in comparison.texts],
        continuations=continuations,
        notes=comparison.notes,
    )


def write_outputs(comparison: Comparison, directory: Path, *, title: str, continuations: Continuations | None = None) -> None:
    """Write page, figure (PNG, SVG), tables (Markdown) and all values (CSV)."""
    light, dark = drawn(lambda palette: draw(comparison, palette), directory / "learning_curves.png")
    (directory / "learning_curves.svg").write_bytes(light)
    (directory / "learning_curves.html").write_text(
        page(comparison, title=title, light=light, dark=dark, continuations=continuations), encoding="utf-8"
    )
    parts = [f"# {title}", "Bits per byte of held-out text, lower is better.", markdown_table(*start_and_end_table(comparison))]
    for text in comparison.texts:
        parts += [f"## {language(text)}", markdown_table(*step_table(comparison, text))]
    markdown = "\n\n".join([*parts, "## How it was measured", *comparison.notes])
    (directory / "learning_curves.md").write_text(markdown + "\n", encoding="utf-8")
    with open(directory / "learning_curves.csv", "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["name", "method", "head", "seed", "step", "text", "bits_per_byte"])
        for result in comparison.results:
            for text, value in result.bits_per_byte.items():
                writer.writerow([result.name, result.method, result.head, result.seed, result.step, text, repr(value)])


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__, prog="eval.learning_curves", example="python -m eval.learning_curves --results results/ --output learning_curves/"
    )
    parser.add_argument("--results", nargs="+", type=Path, required=True, metavar="DIR", help="folders with results of eval.harness")
    parser.add_argument("--continuations", type=Path, metavar="DIR", help="output of eval.generate whose texts to show on the page")
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="folder to write: learning_curves.html, .png, .svg, .md and .csv"
    )
    parser.add_argument("--title", default="Learning curves by embedding initialisation", help="heading of the page (default: %(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the curves and print the table of start and end."""
    arguments = _parser().parse_args(argv)
    comparison = read_comparison(arguments.results)
    continuations = read_continuations(arguments.continuations) if arguments.continuations else None
    with staged_directory(arguments.output) as staging:
        write_outputs(comparison, staging, title=arguments.title, continuations=continuations)
        write_manifest(
            staging,
            stage="eval.learning_curves",
            facts={},
            arguments={"results": [str(path) for path in arguments.results], "title": arguments.title},
            inputs={str(result.path): digest_file(result.path) for result in comparison.results},
        )
    print("Bits per byte of held-out text (lower is better)")
    print(markdown_table(*start_and_end_table(comparison)))
    print(f"\nplot and page: {arguments.output / 'learning_curves.html'}")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
