"""Bits per byte against training step, per method: table, plot and one static page from results of eval.harness.

One panel per held-out text, in the order of evaluation: put the target language first and English beside it, to see what a method
gains in one and costs in the other (figure 2 of the GaMS paper, in a unit that compares vocabularies).  Results without a method, such as
those of the source model, are drawn as horizontal lines.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from common import command
from common.artifacts import digest_file, staged_directory, write_manifest
from common.figure_style import drawn
from common.options import add_option
from common.pages import Drawing, rendered
from common.tables import markdown_table, write_csv
from eval.reporting.charts import Line, Panel, Point, draw
from eval.reporting.continuations import Continuations, read_continuations
from eval.reporting.runs import Evaluated, by_training, training_of
from eval.running.results import PSEUDO_TEXTS, find_results, load_result

LANGUAGES = {"sl": "Slovene", "en": "English", "it": "Italian", "hr": "Croatian", "sr": "Serbian", "de": "German", "fr": "French"}
# Settings that change the figure; two results that differ in one are not comparable.
_COMPARED_SETTINGS = ("start_token", "context_length", "dtype")
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
        curves.append(Curve(label, _num_seeds(several), values))
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


def panels(comparison: Comparison) -> tuple[Panel, ...]:
    """One panel per text: a line for each curve, with a band over its seeds, and a level for each model that was not adapted."""
    found = []
    for text in comparison.texts:
        lines: list[Line] = []
        for curve in comparison.curves:
            values = {step: curve.values[text][step] for step in curve.steps(text)}
            points = [Point(step, fmean(v), *((min(v), max(v)) if curve.num_seeds > 1 else ())) for step, v in values.items()]
            lines.append(Line(curve.label, len(lines), tuple(points)))
        for result in comparison.references:
            lines.append(Line(result.name, len(lines), (Point(0, result.bits_per_byte[text]),), is_level=True))
        found.append(Panel(f"{language(text)} (held out)", "training step", "bits per byte (lower is better)", tuple(lines)))
    return tuple(found)


def page(comparison: Comparison, *, title: str, light: bytes, dark: bytes, continuations: Continuations | None = None) -> str:
    """One HTML page that holds all it shows, for light and dark screens."""
    languages = " and ".join(map(language, comparison.texts))
    seeds = max(curve.num_seeds for curve in comparison.curves)
    seed_note = f"Mean of {seeds} seeds, shaded from the lowest to the highest." if seeds > 1 else "One seed per method."
    drawing = Drawing(
        light,
        dark,
        alternative=f"Bits per byte against training step, one panel each for {languages}; the figures are in the tables below.",
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
    columns = len(comparison.texts)
    light, dark = drawn(lambda palette: draw(panels(comparison), palette, columns=columns), directory / "learning_curves.png")
    (directory / "learning_curves.svg").write_bytes(light)
    (directory / "learning_curves.html").write_text(
        page(comparison, title=title, light=light, dark=dark, continuations=continuations), encoding="utf-8"
    )
    parts = [f"# {title}", "Bits per byte of held-out text, lower is better.", markdown_table(*start_and_end_table(comparison))]
    for text in comparison.texts:
        parts += [f"## {language(text)}", markdown_table(*step_table(comparison, text))]
    markdown = "\n\n".join([*parts, "## How it was measured", *comparison.notes])
    (directory / "learning_curves.md").write_text(markdown + "\n", encoding="utf-8")
    rows = (
        [r.name, r.method, r.head, r.seed, r.step, text, repr(value)] for r in comparison.results for text, value in r.bits_per_byte.items()
    )
    write_csv(directory / "learning_curves.csv", ["name", "method", "head", "seed", "step", "text", "bits_per_byte"], rows)


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(__doc__, example="python -m eval.learning_curves --results results/ --output learning_curves/")
    add_option(parser, "--results DIR", "folders with results of eval.harness", nargs="+", type=Path, required=True)
    add_option(parser, "--continuations DIR", "output of eval.generate whose texts to show on the page", type=Path)
    add_option(parser, "--output DIR", "folder to write: learning_curves.html, .png, .svg, .md and .csv", type=Path, required=True)
    add_option(parser, "--title", "heading of the page", "Learning curves by embedding initialisation")
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
