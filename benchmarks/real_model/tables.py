"""The study's tables: bits per byte by method before training, by method and way after it, and the speed of generation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from benchmarks.real_model.cells import LAPT, Cell, Figures, equal_bytes, figures_of
from benchmarks.real_model.material import ENGLISH, NOVELS, Study
from common.plain_files import read_json
from common.tables import markdown_table
from conversion.comparing.decision import figure_of
from conversion.measuring.significance import Difference, paired_difference

Group = list[Figures]  # the seeds of one method and way


def all_tables(study: Study, of_step: int) -> str:
    """Of everything that is measured."""
    cells = [(Cell.of(path), figures_of(path)) for path in sorted((study.output / "cells").glob("*.json"))]
    parts = [f"Before training, news in the target language by language and vocabulary\n\n{across_table(study.output)}"]
    for language in sorted({cell.language for cell, _ in cells}):
        for vocabulary in sorted({cell.vocabulary for cell, _ in cells if cell.language == language and cell.vocabulary}):
            parts.append(
                f"{language}, {vocabulary}: bits per byte before training\n\n{zero_shot_table(study.output, language, vocabulary)}"
            )
            mine = [figures for cell, figures in cells if (cell.language, cell.vocabulary) == (language, vocabulary)]
            for tokens in sorted({int(budget) for figures in mine for budget in figures} - {0}):
                told = trained_table(study, language, vocabulary, tokens, of_step)
                parts.append(f"{language}, {vocabulary}: bits per byte after {tokens:,} tokens\n\n{told}")
        if (study.output / "speed" / f"{language}.json").exists():
            parts.append(f"{language}: generation\n\n{speed_table(study.output, language)}")
    return "\n\n".join(parts) + "\n"


def zero_shot_table(output: Path, language: str, vocabulary: str) -> str:
    """Methods before any training, beside the source with its own vocabulary."""
    by_method = _before(output, language, vocabulary)
    rows = []
    for method, cells in sorted(by_method.items(), key=lambda item: _mean(item[1], 0, language)):
        against = _against(cells, 0, by_method["mean"], 0, language) if method not in ("mean", LAPT) and "mean" in by_method else ""
        name = "source, own vocabulary" if method == LAPT else f"`{method}`"
        seconds = "" if method == LAPT else f"{mean(cell['0']['seconds'] for cell in cells):.0f}"
        seeds = f"{name}, {len(cells)} seeds" if len(cells) > 1 else name
        rows.append([seeds, _told(cells, 0, language), against, _told(cells, 0, NOVELS), _told(cells, 0, ENGLISH), seconds])
    return markdown_table(["method", f"{language} news", "against `mean`", f"{language} novels", "English news", "seconds"], rows)


def across_table(output: Path) -> str:
    """Every method before training in every language and vocabulary: bits per byte of news, and in how many of them it is below or above `mean`.

    Below and above: the 95 % interval of the paired difference over documents is on that side of zero.
    """
    pairs = sorted({(cell.vocabulary or "", cell.language) for cell in map(Cell.of, (output / "cells").glob("*.json")) if cell.vocabulary})
    begun = {pair: _before(output, *reversed(pair)) for pair in pairs}
    methods = {method for found in begun.values() for method in found} - {LAPT}

    def row(method: str) -> list[str]:
        told = [figure_of(_mean(found[method], 0, language)) if method in found else "" for (_, language), found in begun.items()]
        sides = [
            _side(found[method], found["mean"], language) for (_, language), found in begun.items() if {method, "mean"} <= found.keys()
        ]
        beside = "" if method == "mean" else f"{sides.count(-1)} / {sides.count(0)} / {sides.count(1)}"
        return ["source, own vocabulary" if method == LAPT else f"`{method}`", *told, "" if method == LAPT else beside]

    def order(method: str) -> float:
        return mean(_mean(found[method], 0, language) for (_, language), found in begun.items() if method in found)

    header = ["method", *(f"{language}, {vocabulary}" for vocabulary, language in pairs), "below / tied with / above `mean`"]
    names = [LAPT, *sorted(methods, key=order)] if any(LAPT in found for found in begun.values()) else sorted(methods, key=order)
    return markdown_table(header, list(map(row, names)))


def _before(output: Path, language: str, vocabulary: str) -> dict[str, Group]:
    """The seeds of each method, measured before training."""
    groups = _groups(output, language, vocabulary)
    return {method: [cell for cell in cells if "0" in cell] for (method, way), cells in groups.items() if way == "plain"}


def _side(ours: Sequence[Figures], theirs: Sequence[Figures], text: str) -> int:
    """-1 where the interval of the difference is below zero, 1 above, else 0."""
    found = _difference(ours, 0, theirs, 0, text)
    return -1 if found.high < 0 else 1 if found.low > 0 else 0


def trained_table(study: Study, language: str, vocabulary: str, tokens: int, of_step: int) -> str:
    """Methods and ways after so many tokens, beside the source's vocabulary trained on as many tokens and on as many bytes."""
    groups = {key: [cell for cell in cells if str(tokens) in cell] for key, cells in _groups(study.output, language, vocabulary).items()}
    as_many_bytes = equal_bytes(study, language, vocabulary, tokens, of_step)
    lapt = groups.get((LAPT, "plain"), [])
    rows = []
    for (method, way), cells in sorted((item for item in groups.items() if item[1]), key=lambda item: _mean(item[1], tokens, language)):
        figures = [_told(cells, budget, name) for name in (language, NOVELS, ENGLISH) for budget in (0, tokens)]
        beside = [
            _against(cells, tokens, lapt, other, language) if method != LAPT and lapt and str(other) in lapt[0] else ""
            for other in (tokens, as_many_bytes)
        ]
        seconds = mean(cell[str(tokens)]["seconds"] for cell in cells)
        rows.append([f"`{method}`", way, *figures, *beside, f"{seconds:.0f}"])
    before_and_after = [f"{name}, {when}" for name in (f"{language} news", "novels", "English") for when in ("before", "after")]
    header = ["method", "trained", *before_and_after, "against lapt, as many tokens", "as many bytes", "seconds"]
    return markdown_table(header, rows, text_columns=2)


def speed_table(output: Path, language: str) -> str:
    """How fast a model of each vocabulary writes."""
    found = read_json(output / "speed" / f"{language}.json")
    rows = [
        [
            name,
            f"{one['tokens_per_second']:.1f}",
            f"{one['characters_per_token']:.2f}",
            f"{one['tokens_per_second'] * one['characters_per_token']:.0f}",
        ]
        for name, one in found.items()
    ]
    return markdown_table(["vocabulary", "tokens per CPU s", "characters per token of news", "characters per CPU s"], rows)


def _groups(output: Path, language: str, vocabulary: str) -> dict[tuple[str, str], Group]:
    groups: dict[tuple[str, str], Group] = {}
    for path in sorted((output / "cells").glob(f"{language}.*.json")):
        cell = Cell.of(path)
        if cell.vocabulary in (vocabulary, None):
            groups.setdefault((cell.made_by, cell.way), []).append(figures_of(path))
    return groups


def _mean(cells: Sequence[Figures], tokens: int, text: str) -> float:
    return mean(cell[str(tokens)]["bits_per_byte"][text] for cell in cells)


def _told(cells: Sequence[Figures], tokens: int, text: str) -> str:
    return figure_of(_mean(cells, tokens, text)) if text in cells[0][str(tokens)]["bits_per_byte"] else ""


def _against(ours: Sequence[Figures], tokens: int, theirs: Sequence[Figures], their_tokens: int, text: str) -> str:
    """Difference in bits per byte with its 95 % interval over documents."""
    found = _difference(ours, tokens, theirs, their_tokens, text)
    return f"{figure_of(found.value, sign='+')} [{figure_of(found.low, sign='+')}, {figure_of(found.high, sign='+')}]"


def _difference(ours: Sequence[Figures], tokens: int, theirs: Sequence[Figures], their_tokens: int, text: str) -> Difference:
    """Of the documents; the mean over seeds is taken by document first."""
    bits = [
        [mean(bits for bits, _ in document) for document in zip(*(cell[str(budget)]["documents"][text] for cell in cells))]
        for cells, budget in ((ours, tokens), (theirs, their_tokens))
    ]
    return paired_difference(*bits, [size for _, size in ours[0][str(tokens)]["documents"][text]])
