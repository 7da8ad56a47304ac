"""The page of cleaned corpora, as HTML: tables with bars, and the texts that were taken, to be read."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.html_page import html_page, html_table
from data_prep.cleaning.corpus_figures import LENGTHS, QUALITY, CorpusFigures, reasons

STYLE = """td.bar { width: 14rem; padding-left: 1rem; }
td.bar div { background: var(--accent); height: .8rem; border-radius: 2px; }
tr.removed td.bar div { background: var(--warn); }
blockquote { margin: .5rem 0; padding: .4rem .8rem; border-left: 3px solid var(--rule); white-space: pre-wrap; overflow-wrap: anywhere; font-size: .9rem;
  max-height: 12rem; overflow-y: auto; }
details { margin: .2rem 0; }
details summary { margin-top: .5rem; font-weight: 400; }
"""
_MAX_SITES = 15


def page(
    corpora: Sequence[CorpusFigures],
    *,
    filters: str,
    duplicates: Sequence[tuple[str, str, str, int, int]] = (),
    others: Mapping[str, Mapping[str, Any]] | None = None,
    kept_by_one: Mapping[str, tuple[int, int, int]] | None = None,
    other_name: str = "",
) -> str:
    """The page.

    Args:
        filters: where their settings are, for people.
        duplicates: as `duplicates_between` gives them.
        others: counts of the corpora in another run, by name, with `kept_by_one` of both.
    """
    parts = [_overview(corpora), f'<p class="notes">Filters: {html.escape(filters)}</p>']
    if others is not None and kept_by_one is not None:
        parts.append(_comparison(corpora, others, kept_by_one, other_name))
    parts.append("<h2>Quality by source</h2>\n" + _quality(corpora))
    if duplicates:
        rows = [[name, source or "-", why, f"{paragraphs:,}", f"{tokens:,}"] for name, source, why, paragraphs, tokens in duplicates]
        parts.append("<h2>Duplicates between sources</h2>\n" + html_table(("from", "has it already", "why", "paragraphs", "tokens"), rows))
    parts += [_corpus(corpus) for corpus in corpora]
    return html_page("Cleaned corpora", "\n".join(parts), style=STYLE)


def _overview(corpora: Sequence[CorpusFigures]) -> str:
    rows = []
    for corpus in corpora:
        counts = corpus.counts
        share = 100 * counts["characters_kept"] / max(counts["characters_read"], 1)
        rows.append(
            [corpus.name, corpus.language or "-", f"{counts['num_read']:,}", f"{counts['num_kept']:,}", f"{counts['num_read'] - counts['num_kept']:,}",
             f"{counts['num_changed']:,}", f"{counts['characters_read']:,}", f"{share:.1f} %"]
        )  # fmt: skip
    header = ("corpus", "language", "texts", "kept", "removed", "of the kept changed", "characters", "kept")
    return f'<div class="scroll">{html_table(header, rows)}</div>'


def _comparison(
    corpora: Sequence[CorpusFigures], others: Mapping[str, Mapping[str, Any]], kept: Mapping[str, tuple[int, int, int]], other_name: str
) -> str:
    first = html_table(
        ("corpus", "both keep", "only this run", f"only {other_name}"),
        [[name, *(f"{number:,}" for number in row)] for name, row in kept.items()],
    )
    rows = []
    for corpus in corpora:
        here = reasons(corpus.counts)
        there = reasons(others[corpus.name]) if corpus.name in others else {}
        for what, why in dict.fromkeys([*here, *there]):
            mine, theirs = here.get((what, why), (0, 0))[0], there.get((what, why), (0, 0))[0]
            if mine != theirs:
                rows.append([f"{corpus.name}: {what}, {why}", f"{mine:,}", f"{theirs:,}", f"{mine - theirs:+,}"])
    second = html_table(("what differs, texts", "this run", other_name, "difference"), rows) if rows else "<p>Every count is the same.</p>"
    return f"<h2>Against {html.escape(other_name)}</h2>\n{first}\n<p></p>\n{second}"


def _quality(corpora: Sequence[CorpusFigures]) -> str:
    rows = [[label, *(_short(corpus.quality.get(name)) for corpus in corpora)] for name, label in QUALITY.items()]
    table = html_table(("median of the kept texts", *(corpus.name for corpus in corpora)), rows)
    return f'<div class="scroll">{table}</div>'


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 20 else f"{value:.3g}"


def _corpus(corpus: CorpusFigures) -> str:
    why = [(f"{what}: {reason}", documents, what) for (what, reason), (documents, _) in reasons(corpus.counts).items()]
    parts = [f"<h2>{html.escape(corpus.name)}</h2>", "<h3>What went and what was mended</h3>", bars(why, "texts")]
    labels = [f"up to {limit:,} words" for limit in LENGTHS] + [f"more than {LENGTHS[-1]:,}"]
    parts += [
        "<h3>Lengths of the kept texts</h3>",
        bars([(label, corpus.lengths[place], "") for place, label in enumerate(labels)], "texts"),
    ]
    if corpus.sites:
        parts += [
            f"<h3>Sites, {min(_MAX_SITES, len(corpus.sites))} of {len(corpus.sites):,}</h3>",
            bars([(site, number, "") for site, number in corpus.sites.most_common(_MAX_SITES)], "texts"),
        ]
    if corpus.other_languages:
        parts += [
            "<h3>Languages of removed texts</h3>",
            bars([(name, number, "removed") for name, number in corpus.other_languages.most_common()], "texts"),
        ]
    if corpus.samples:
        parts += ["<h3>Samples of what was taken</h3>", samples_html(corpus.samples)]
    return "\n".join(parts)


def bars(rows: Sequence[tuple[str, int, str]], unit: str) -> str:
    """A table of numbers with a bar each; the third of a row is its class."""
    if not rows:
        return "<p>Nothing.</p>"
    largest = max(max(number for _, number, _ in rows), 1)
    lines = [
        f'<tr class="{kind}"><th scope="row">{html.escape(label)}</th><td>{number:,}</td>'
        f'<td class="bar"><div style="width: {100 * number / largest:.1f}%"></div></td></tr>'
        for label, number, kind in rows
    ]
    return (
        f'<table>\n<thead><tr><th scope="col"></th><th scope="col">{unit}</th><th></th></tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + "\n</tbody></table>"
    )


def samples_html(samples: Iterable[Mapping[str, Any]]) -> str:
    """Texts to read, by their reason, folded."""
    by_reason: dict[str, list[Mapping[str, Any]]] = {}
    for sample in samples:
        by_reason.setdefault(sample["reason"], []).append(sample)
    parts = []
    for reason, found in by_reason.items():
        texts = "\n".join(
            f'<p class="notes">{html.escape(sample["key"])}{html.escape(": " + detail if (detail := sample.get("detail")) else "")}</p>'
            f"<blockquote>{html.escape(sample['text']) or '(empty)'}</blockquote>"
            for sample in found
        )
        parts.append(f"<details><summary>{html.escape(reason)} ({len(found)})</summary>\n{texts}\n</details>")
    return "\n".join(parts)


def settings_name(directory: Path) -> str:
    """Where the settings of an output of `clean` are."""
    return f"{directory.name}/filters.yaml"
