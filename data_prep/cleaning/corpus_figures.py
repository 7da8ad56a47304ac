"""Figures and page about cleaned corpora: lengths, sites, languages and quality of kept text, reasons of removal, and a second run to compare."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from common.artifacts import Manifest, read_manifest
from common.pages import rendered
from data_prep.cleaning.shard import NO_PARAGRAPH, WHAT_WAS_DONE
from data_prep.cleaning.text_measures import Measurer
from data_prep.reading.corpora import Corpus, corpora_from_table
from data_prep.reading.documents import read_documents

LENGTHS = (10, 30, 100, 300, 1000, 3000, 10_000)  # words; the last group has all that are longer
QUALITY = {
    "words": "words of a text",
    "mean_word_length": "characters of a word",
    "terminal_lines": "lines that end as sentences do",
    "letters": "letters among the characters",
    "upper_letters": "capitals among the letters",
    "duplicate_5_gram": "characters in repeated 5-grams",
    "link_characters": "characters in web addresses",
}  # medians of these are shown, by the names of `Measures`


@dataclass
class CorpusFigures:
    """Of one corpus.

    Attributes:
        counts: of the manifest of `clean`.
        lengths: kept texts by the group of `LENGTHS` that their words fall into.
        sites: kept texts by the site of their `url`.
        other_languages: removed texts by the language that they are in; those that lost all their paragraphs to other languages by themselves.
        quality: medians over the kept texts, by the names of `QUALITY`.
        samples: samples of removed text that `clean` kept.
    """

    name: str
    language: str
    counts: dict[str, Any]
    lengths: Counter[int] = field(default_factory=Counter)
    sites: Counter[str] = field(default_factory=Counter)
    other_languages: Counter[str] = field(default_factory=Counter)
    quality: dict[str, float] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)


def require_stage(directory: Path, stage: str) -> Manifest:
    """The manifest of an output of a stage.

    Raises:
        ValueError: if it is none.
    """
    manifest = read_manifest(directory) if directory.is_dir() else None
    if manifest is None or manifest.stage != stage:
        found = "no output of a command" if manifest is None else f"an output of {manifest.stage}"
        raise ValueError(f"{directory} is {found}; expected one of {stage}")
    return manifest


def figures_of(directory: Path, text_key: str = "text", url_key: str = "url") -> list[CorpusFigures]:
    """The figures of each corpus in an output of `clean`, whose texts are read once.

    Raises:
        ValueError: if it is no such output, or a file of it cannot be read.
    """
    try:
        return _figures_of(directory, text_key, url_key)
    except (FileNotFoundError, KeyError, json.JSONDecodeError) as error:
        what = f"{error.args[0]!r} is not among its corpora" if isinstance(error, KeyError) else error
        raise ValueError(
            f"{directory} was changed after data_prep.clean wrote it: {what}; undo the changes there, or run it again"
        ) from error


def _figures_of(directory: Path, text_key: str, url_key: str) -> list[CorpusFigures]:
    manifest = require_stage(directory, "data_prep.clean")
    measurer = Measurer()
    found = []
    for corpus in corpora_from_table(directory / "corpora.yaml"):
        figures = CorpusFigures(corpus.name, corpus.language, manifest.facts["counts"][corpus.name])
        values: dict[str, list[float]] = {name: [] for name in QUALITY}
        for text, fields in _documents(corpus, text_key):
            measures = measurer.measure(text.encode())
            figures.lengths[sum(measures.words > limit for limit in LENGTHS)] += 1
            for name, column in values.items():
                column.append(getattr(measures, name))
            if isinstance(url := fields.get(url_key), str) and (site := _site(url)):
                figures.sites[site] += 1
        figures.quality = {name: median(column) for name, column in values.items() if column}
        for path in sorted((directory / "removed" / corpus.name).iterdir()):
            for document in read_documents(path, text_key="reason"):
                if document.text == "language":
                    detail = str(document.fields.get("detail", ""))
                    figures.other_languages[detail if detail == NO_PARAGRAPH else detail.partition(" ")[0]] += 1
        samples = directory / "samples" / f"{corpus.name}.jsonl"
        figures.samples = [json.loads(line) for line in samples.read_bytes().splitlines()]
        found.append(figures)
    return found


def reasons(counts: Mapping[str, Any]) -> dict[tuple[str, str], tuple[int, int]]:
    """Documents and characters by what was done (removed, changed, skipped, not judged) and why, the most documents first."""
    rows = {
        (what, reason): (change["documents"], change["characters"])
        for key, what in WHAT_WAS_DONE.items()
        for reason, change in counts.get(key, {}).items()  # older outputs do not count what was not judged
    }
    order = ["removed", *(what for what in WHAT_WAS_DONE.values() if what != "removed")]
    return dict(sorted(rows.items(), key=lambda row: (order.index(row[0][0]), -row[1][0], row[0][1])))


def kept_by_one(first: Path, second: Path) -> dict[str, tuple[int, int, int]]:
    """For each corpus of two outputs of `clean`: how many ids both have kept, only the first, only the second."""
    ids = [_kept_ids(directory) for directory in (first, second)]
    return {
        name: (len(a & b), len(a - b), len(b - a))
        for name in dict.fromkeys([*ids[0], *ids[1]])
        for a, b in [(ids[0].get(name, frozenset()), ids[1].get(name, frozenset()))]
    }


def duplicates_between(directory: Path) -> list[tuple[str, str, str, int, int]]:
    """Of an output of `dedup`: corpus, the corpus that has it already, reason, paragraphs and tokens that went."""
    manifest = require_stage(directory, "data_prep.dedup")
    return [
        (name, row["repeats_corpus"] or "", row["reason"], row["paragraphs"], row["tokens"])
        for name, counts in manifest.facts["counts"].items()
        for row in counts["removed"]
    ]


def _kept_ids(directory: Path) -> dict[str, frozenset[str]]:
    require_stage(directory, "data_prep.clean")
    return {
        corpus.name: frozenset(json.dumps(fields.get("id")) for _, fields in _documents(corpus, None))
        for corpus in corpora_from_table(directory / "corpora.yaml")
    }


def _documents(corpus: Corpus, text_key: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in corpus.paths:
        for document in read_documents(path, text_key=text_key):
            yield document.text, document.fields


def _site(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").removeprefix("www.")
    except ValueError:
        return ""


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
    return ("corpus", "language", "texts", "kept", "removed", "of the kept texts, changed", "characters", "kept"), rows


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
        "Removed and changed texts": [(f"{what}: {why}", texts, what) for (what, why), (texts, _) in reasons(corpus.counts).items()],
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
