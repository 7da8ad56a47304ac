"""The page of cleaned corpora: tables with bars, and the texts that were taken, to be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.pages import rendered
from data_prep.cleaning.corpus_figures import LENGTHS, QUALITY, CorpusFigures, reasons

_MAX_SITES = 15
Table = tuple[Sequence[str], Sequence[Sequence[str]]]


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
    against = None
    if others is not None and kept_by_one is not None:
        kept = [[name, *(f"{number:,}" for number in row)] for name, row in kept_by_one.items()]
        against = {
            "name": other_name,
            "kept": (("corpus", "both keep", "only this run", f"only {other_name}"), kept),
            "differing": (("what differs, texts", "this run", other_name, "difference"), _differing(corpora, others)),
        }
    repeats = [[name, source or "-", why, f"{paragraphs:,}", f"{tokens:,}"] for name, source, why, paragraphs, tokens in duplicates]
    return rendered(
        "corpora.html",
        title="Cleaned corpora",
        filters=filters,
        overview=_overview(corpora),
        against=against,
        quality=_quality(corpora),
        duplicates=(("from", "has it already", "why", "paragraphs", "tokens"), repeats),
        corpora=[{"name": corpus.name, "bars": _bars(corpus), "samples": _by_reason(corpus.samples)} for corpus in corpora],
    )


def _overview(corpora: Sequence[CorpusFigures]) -> Table:
    rows = []
    for corpus in corpora:
        counts = corpus.counts
        share = 100 * counts["characters_kept"] / max(counts["characters_read"], 1)
        rows.append(
            [corpus.name, corpus.language or "-", f"{counts['num_read']:,}", f"{counts['num_kept']:,}", f"{counts['num_read'] - counts['num_kept']:,}",
             f"{counts['num_changed']:,}", f"{counts['characters_read']:,}", f"{share:.1f} %"]
        )  # fmt: skip
    return ("corpus", "language", "texts", "kept", "removed", "of the kept changed", "characters", "kept"), rows


def _differing(corpora: Sequence[CorpusFigures], others: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    rows = []
    for corpus in corpora:
        here = reasons(corpus.counts)
        there = reasons(others[corpus.name]) if corpus.name in others else {}
        for what, why in dict.fromkeys([*here, *there]):
            mine, theirs = here.get((what, why), (0, 0))[0], there.get((what, why), (0, 0))[0]
            if mine != theirs:
                rows.append([f"{corpus.name}: {what}, {why}", f"{mine:,}", f"{theirs:,}", f"{mine - theirs:+,}"])
    return rows


def _quality(corpora: Sequence[CorpusFigures]) -> Table:
    rows = [[label, *(_short(corpus.quality.get(name)) for corpus in corpora)] for name, label in QUALITY.items()]
    return ("median of the kept texts", *(corpus.name for corpus in corpora)), rows


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 20 else f"{value:.3g}"


def _bars(corpus: CorpusFigures) -> dict[str, list[tuple[str, int, str]]]:
    """Headings, and rows below each: label, texts, class of the row."""
    labels = [f"up to {limit:,} words" for limit in LENGTHS] + [f"more than {LENGTHS[-1]:,}"]
    found = {
        "What went and what was mended": [(f"{what}: {why}", texts, what) for (what, why), (texts, _) in reasons(corpus.counts).items()],
        "Lengths of the kept texts": [(label, corpus.lengths[place], "") for place, label in enumerate(labels)],
    }
    if corpus.sites:
        heading = f"Sites, {min(_MAX_SITES, len(corpus.sites))} of {len(corpus.sites):,}"
        found[heading] = [(site, number, "") for site, number in corpus.sites.most_common(_MAX_SITES)]
    if corpus.other_languages:
        found["Languages of removed texts"] = [(name, number, "removed") for name, number in corpus.other_languages.most_common()]
    return found


def _by_reason(samples: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for sample in samples:
        found.setdefault(sample["reason"], []).append(sample)
    return found


def settings_name(directory: Path) -> str:
    """Where the settings of an output of `clean` are."""
    return f"{directory.name}/filters.yaml"
