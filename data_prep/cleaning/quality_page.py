"""What a model of good text would keep and remove: scores by source, and texts to read."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data_prep.cleaning.corpus_page import STYLE, bars, samples_html
from data_prep.cleaning.quality_fit import Fitted
from data_prep.cleaning.quality_models import CLASSIFIER
from data_prep.cleaning.samples import shown
from data_prep.html_page import html_page, html_table
from data_prep.tables import markdown_table

_THRESHOLDS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9)
_BINS = 10
_WORDS = {
    "auc": "a good text scores better than a web text",
    "brier": "Brier score (0 is perfect, 0.25 is no answer)",
    "calibration_error": "expected calibration error, ten bins",
    "right_at_half": "right at 0.5",
}


def report(fitted: Fitted) -> str:
    """The tables in Markdown."""
    measured = fitted.figures["measured"]
    text = f"# Quality: {fitted.kind}\n\n" + markdown_table(
        ("held-out texts", ""), [[_WORDS[name], f"{value:.4f}"] for name, value in measured.items()]
    )
    header, rows = kept_by_threshold(fitted)
    return f"{text}\n\n{markdown_table(header, rows)}\n"


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
