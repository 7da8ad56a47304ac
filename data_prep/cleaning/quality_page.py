"""What a model of good text would keep and remove: scores by source, and texts to read."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from common.html_page import html_page, html_table
from common.tables import markdown_table
from data_prep.cleaning.calibration import AUTO, ISOTONIC_LEAST
from data_prep.cleaning.corpus_page import STYLE, bars, samples_html
from data_prep.cleaning.quality_fit import Fitted
from data_prep.cleaning.quality_models import CLASSIFIER
from data_prep.cleaning.samples import shown

_THRESHOLDS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9)
_BINS = 10
_RELIABILITY = ("score", "texts", "says", "good", "before: texts", "says", "good")
_CALIBRATIONS = ("calibration", "expected calibration error", "Brier score", "AUC")
_SIDE, _MARGIN = 340, 34  # of the drawing
_WORDS = {
    "auc": "a good text scores better than a web text",
    "brier": "Brier score (0 is perfect, 0.25 is no answer)",
    "calibration_error": "expected calibration error, ten bins",
    "right_at_half": "right at 0.5",
    "error_before_calibration": "expected calibration error before calibration",
}


def report(fitted: Fitted) -> str:
    """The tables in Markdown."""
    measured = fitted.figures["measured"]
    text = f"# Quality: {fitted.kind}\n\n" + markdown_table(
        ("held-out texts", ""), [[_WORDS[name], f"{value:.4f}"] for name, value in measured.items()]
    )
    header, rows = kept_by_threshold(fitted)
    text += f"\n\n{markdown_table(header, rows)}\n"
    if fitted.kind != CLASSIFIER:
        return text
    text += f"\n{calibration_sentence(fitted)}\n\n{markdown_table(_CALIBRATIONS, calibration_rows(fitted))}\n"
    return f"{text}\n{markdown_table(_RELIABILITY, reliability_rows(fitted))}\n"


def calibration_rows(fitted: Fitted) -> list[list[str]]:
    """What each calibration is worth on held-out texts, the chosen one marked."""
    chosen = fitted.figures["calibration"]["method"]
    return [
        [f"{name}, chosen" if name == chosen else name, *(f"{found[what]:.4f}" for what in ("calibration_error", "brier", "auc"))]
        for name, found in fitted.figures["calibrations"].items()
    ]


def calibration_sentence(fitted: Fitted) -> str:
    """Why it was chosen."""
    facts = fitted.figures["calibration"]
    if facts["asked"] != AUTO:
        return f"Calibration: {facts['method']}, as asked, of {facts['texts']:,} texts."
    if "brier_on_fifths" not in facts:
        return f"Calibration: {facts['method']}, as isotonic regression wants {ISOTONIC_LEAST:,} texts and there are {facts['texts']:,}."
    scores = ", ".join(f"{name} {value:.4f}" for name, value in facts["brier_on_fifths"].items())
    return f"Calibration: {facts['method']}, by its Brier score on fifths of the {facts['texts']:,} texts to calibrate with ({scores})."


def reliability_rows(fitted: Fitted) -> list[list[str]]:
    """For each tenth of the scores: texts, the probability that they say on average and the share that is good, the same before calibration."""
    both = [{row["from"]: row for row in fitted.figures["reliability"][name]} for name in ("calibrated", "before")]
    rows = []
    for number in range(_BINS):
        cells = [f"{number / _BINS:.1f} to {(number + 1) / _BINS:.1f}"]
        for found in (bins.get(number / _BINS) for bins in both):
            cells += [f"{found['texts']:,}", f"{found['said']:.3f}", f"{found['true']:.3f}"] if found else ["0", "-", "-"]
        rows.append(cells)
    return rows


def _reliability_html(fitted: Fitted) -> str:
    """A drawing of said against true, and the table below it."""
    dots = []
    most = max(row["texts"] for rows in fitted.figures["reliability"].values() for row in rows)
    for name, style in (("before", "fill: none; stroke: var(--warn)"), ("calibrated", "fill: var(--accent); fill-opacity: .6")):
        for row in fitted.figures["reliability"][name]:
            radius = 3 + 9 * (row["texts"] / most) ** 0.5
            dots.append(f'<circle cx="{_place(row["said"]):.1f}" cy="{_SIDE - _place(row["true"]):.1f}" r="{radius:.1f}" style="{style}"/>')
    marks = "".join(
        f'<text x="{_place(share):.0f}" y="{_SIDE - 8}" text-anchor="middle">{share:g}</text>'
        f'<text x="{_MARGIN - 8}" y="{_SIDE - _place(share) + 4:.0f}" text-anchor="end">{share:g}</text>'
        for share in (0, 0.5, 1)
    )
    low, high = _place(0), _place(1)
    frame = f'<rect x="{low}" y="{_SIDE - high}" width="{high - low}" height="{high - low}" style="fill: none; stroke: var(--rule)"/>'
    diagonal = f'<line x1="{low}" y1="{_SIDE - low}" x2="{high}" y2="{_SIDE - high}" style="stroke: var(--muted); stroke-dasharray: 4"/>'
    return (
        "<h2>Is a score the probability that it says</h2>\n<figure>\n"
        f'<svg viewBox="0 0 {_SIDE} {_SIDE}" width="{_SIDE}" role="img" aria-label="Share of good texts against the score" '
        f'style="fill: var(--muted); font-size: 12px">{frame}{diagonal}{marks}{"".join(dots)}</svg>\n'
        "<figcaption>Each tenth of the scores: across what they say on average, up the share of good texts among them, both sets of the same weight; the larger, the more"
        " texts. Filled: calibrated, on other texts than these. Rings: before. On the line a score is a probability.</figcaption>\n</figure>\n"
        + html_table(_RELIABILITY, reliability_rows(fitted))
        + f"<p>{calibration_sentence(fitted)}</p>\n"
        + html_table(_CALIBRATIONS, calibration_rows(fitted))
    )


def _place(share: float) -> float:
    return _MARGIN + share * (_SIDE - 2 * _MARGIN)


def kept_by_threshold(fitted: Fitted) -> tuple[tuple[str, ...], list[list[str]]]:
    """What share of each source's held-out texts some thresholds keep."""
    names = list(dict.fromkeys(fitted.sources))
    source = np.array(fitted.sources)
    if fitted.kind == CLASSIFIER:
        kept = {f"min: {limit:g}": fitted.scores >= limit for limit in _THRESHOLDS}
    else:
        kept = {f"max: {name} ({limit:.4g})": fitted.scores <= limit for name, limit in fitted.model.parts.items()}
    rows = [[label, *(f"{100 * stays[source == name].mean():.1f} %" for name in names)] for label, stays in kept.items()]
    return ("share that stays", *names), rows


def page(fitted: Fitted, num_samples: int) -> str:
    """The page."""
    measured = [[_WORDS[name], f"{value:.4f}"] for name, value in fitted.figures["measured"].items()]
    counts = ", ".join(f"{name} {number:,}" for name, number in fitted.figures["texts"].items())
    parts = [
        f'<p class="notes">Texts: {html.escape(counts)}. All below is of a tenth of them that the model has not seen.</p>',
        html_table(("held-out texts", ""), measured),
        "<h2>What thresholds keep</h2>",
        html_table(*kept_by_threshold(fitted)),
        *([_reliability_html(fitted)] if fitted.kind == CLASSIFIER else []),
        "<h2>Scores by source</h2>",
    ]
    edges, labels = _bins(fitted)
    source = np.array(fitted.sources)
    for name in dict.fromkeys(fitted.sources):
        inside = np.clip(np.searchsorted(edges, fitted.scores[source == name], side="right") - 1, 0, _BINS - 1)
        counted = np.bincount(inside, minlength=_BINS).tolist()
        kind = "" if fitted.is_good[source == name].all() else "removed"
        parts += [f"<h3>{html.escape(name)}</h3>", bars([(label, number, kind) for label, number in zip(labels, counted)], "texts")]
    parts += ["<h2>Texts to read</h2>", samples_html(_samples(fitted, num_samples))]
    return html_page(f"Quality: {fitted.kind}", "\n".join(parts), style=STYLE)


def _bins(fitted: Fitted) -> tuple[NDArray[np.float64], list[str]]:
    """Edges and names of ten bins: of a probability alike, of perplexities by the tenths of all."""
    if fitted.kind == CLASSIFIER:
        edges = np.linspace(0, 1, _BINS + 1)
    else:
        finite = fitted.scores[np.isfinite(fitted.scores)]
        edges = np.quantile(finite, np.linspace(0, 1, _BINS + 1))
    return edges, [f"{low:.3g} to {high:.3g}" for low, high in zip(edges, edges[1:])]


def _samples(fitted: Fitted, number: int) -> list[dict[str, str]]:
    """The best and worst texts of both sets, and those of the web in the middle."""
    best_first = np.argsort(-fitted.scores if fitted.kind == CLASSIFIER else fitted.scores, kind="stable")
    good, web = (best_first[fitted.is_good[best_first] == side] for side in (True, False))
    middle = max(len(web) // 2 - number // 2, 0)
    chosen: Sequence[tuple[str, NDArray[np.int64]]] = (
        ("web, the best", web[:number]),
        ("web, in the middle", web[middle : middle + number]),
        ("web, the worst", web[::-1][:number]),
        ("good, the worst", good[::-1][:number]),
    )
    return [
        {"reason": label, "key": fitted.sources[place], "detail": f"{fitted.scores[place]:.4g}", "text": shown(fitted.texts[place])}
        for label, places in chosen
        for place in places.tolist()
    ]
