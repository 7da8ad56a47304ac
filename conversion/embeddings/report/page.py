"""`transfer.html`: the report of a transfer as one page without scripts; samples and sums, not all tokens (these are in transfer.json)."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from common.html_page import html_page, html_table
from conversion.embeddings.report.figures import EXPLODING_FACTOR, NEAR_ZERO_SHARE, TEXT_BYTES

_STYLE = """
:root { --faint: #eef2f6; --second: #b35900; }
@media (prefers-color-scheme: dark) { :root { --faint: #1b222b; --second: #f0955a; } }
nav { margin: 1rem 0 1.4rem; font-size: .92rem; }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; }
a { color: var(--accent); }
a:focus-visible, summary:focus-visible, .scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 3px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .7rem; margin: 1.2rem 0; padding: 0; list-style: none; }
.tiles li { background: var(--faint); border-radius: .5rem; padding: .65rem .85rem; }
.tiles span { display: block; color: var(--muted); font-size: .82rem; }
.tiles strong { font-size: 1.12rem; font-weight: 600; overflow-wrap: anywhere; }
.warning { border-left: 4px solid var(--second); background: var(--faint); padding: .6rem 1rem; border-radius: .3rem; margin: 1rem 0; }
.fine { border-left-color: var(--accent); }
.bar { display: inline-block; height: .8rem; border-radius: .15rem; background: var(--accent); vertical-align: middle; min-width: 1px; }
td.bars { text-align: left; width: 18rem; min-width: 8rem; }
td.left, th.left { text-align: left; white-space: normal; }
.token { font-family: ui-monospace, "SF Mono", "DejaVu Sans Mono", Menlo, monospace; font-size: .88rem; background: var(--faint);
  border-radius: .25rem; padding: .08rem .32rem; white-space: pre; }
.weight { color: var(--muted); font-size: .82rem; margin-right: .7rem; }
.scroll { margin: .6rem 0; }
.scroll th, .scroll td { padding-left: 1.3rem; }
.scroll th:first-child { padding-left: 0; }
@media (max-width: 40rem) { .scroll th, .scroll td { padding-left: .8rem; } tbody th { white-space: normal; } }
svg { width: 100%; height: auto; display: block; margin-top: .5rem; }
svg text { fill: var(--muted); font: 12px system-ui, sans-serif; }
.source-area { fill: var(--second); fill-opacity: .3; stroke: var(--second); stroke-width: 1.5; }
.new-area { fill: var(--accent); fill-opacity: .35; stroke: var(--accent); stroke-width: 1.5; }
.key { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem; margin: 0 .3rem 0 .9rem; vertical-align: -.05rem; }
details summary { margin-top: .9rem; font-weight: 500; }
td, th { vertical-align: top; }
@media print { nav { display: none; } }
"""
_WIDTH, _HEIGHT, _BOTTOM = 720, 190, 24
_NAMES = {
    "copied": "copied: the source has the same token",
    "copied: case": "copied: the same but for capitals",
    "copied: space": "copied: the same but for the space before",
    "copied: both": "copied: the same but for capitals and space",
    "special": "special tokens from the source's",
    "combined": "combined by the method from source tokens",
    "mapped": "mapped by the method",
    "learned": "learned from the text",
    "random": "drawn by the method",
    "fallback: mean": "fallback: mean of the source's pieces",
    "fallback: random": "fallback: drawn",
}


def report_page(facts: Mapping[str, Any], samples: Mapping[str, Sequence[Mapping[str, Any]]], warnings: Sequence[str]) -> str:
    """The page.

    Args:
        facts: the head of transfer.json.
        samples: origin -> entries of single tokens.
        warnings: sentences about rows that need a look.
    """
    figures = facts["figures"]
    sections = [
        ("origins", "Where the rows come from", _origins(facts)),
        ("special", "Special tokens", _special(facts["special_tokens"])),
        ("scripts", "Overlap by script", _scripts(figures["scripts"])),
        ("texts", "Text before and after", _texts(figures["texts"])),
        ("norms", "Lengths of rows", _norms(figures["norms"])),
        ("duplicates", "Rows that are alike", _duplicates(figures["duplicates"])),
        ("neighbours", "Nearest source tokens", _neighbours(figures["neighbours"])),
        ("tokens", "Single tokens", _samples(samples)),
    ]
    shown = [section for section in sections if section[2]]
    navigation = "".join(f'<a href="#{name}">{title}</a>' for name, title, _ in shown)
    body = "\n".join(f'<section id="{name}" aria-label="{title}"><h2>{title}</h2>\n{content}</section>' for name, title, content in shown)
    title = f"Transfer by {facts['method']}: {facts['vocab_size']:,} tokens"
    return html_page(title, f"{_tiles(facts)}\n{_warnings(warnings)}\n<nav>{navigation}</nav>\n{body}", style=_STYLE)


def _tiles(facts: Mapping[str, Any]) -> str:
    counts = facts["num_rows_by_origin"]
    total = max(sum(counts.values()), 1)
    copied = sum(count for origin, count in counts.items() if origin.startswith("copied") or origin == "special")
    entries = {
        "method": facts["method"],
        "vocabulary": facts["vocabulary"]["strategy"],
        "tokens": f"{facts['vocab_size']:,}",
        "copied": f"{100 * copied / total:.1f} %",
        "output layer": facts["head"],
        "model": facts["model_type"],
        "seed": str(facts["seed"]),
        "matching": facts["matching"],
    }
    tiles = "".join(
        f"<li><span>{html.escape(name)}</span><strong>{html.escape(str(value))}</strong></li>" for name, value in entries.items()
    )
    return f'<ul class="tiles">{tiles}</ul>'


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return '<p class="warning fine">No new row is empty, far too long, no number, or the same as another.</p>'
    items = "".join(f"<p>{html.escape(warning[0].upper() + warning[1:])}.</p>" for warning in warnings)
    return f'<div class="warning" role="note"><strong>Look at these rows</strong>{items}</div>'


def _origins(facts: Mapping[str, Any]) -> str:
    from conversion.embeddings.vocabularies.strategies import describe

    counts = facts["num_rows_by_origin"]
    total = max(sum(counts.values()), 1)
    rows = "".join(
        f'<tr><th scope="row">{html.escape(_NAMES.get(origin, origin))}</th><td>{count:,}</td><td>{100 * count / total:.1f} %</td>'
        f'<td class="bars"><span class="bar" style="width:{max(100 * count / total, 0.3):.2f}%"></span></td></tr>'
        for origin, count in counts.items()
    )
    head = '<thead><tr><th scope="col">origin</th><th scope="col">rows</th><th scope="col">share</th><th></th></tr></thead>'
    told = describe(facts["vocabulary"])
    if facts.get("num_unreached_source_tokens"):
        told.append(f"{facts['num_unreached_source_tokens']:,} source tokens, whose rows are not used, are reached by no text")
    made = "".join(f"<p>{html.escape(line[0].upper() + line[1:])}.</p>" for line in told)
    return made + _scroll("rows by origin", f"<table>{head}<tbody>{rows}</tbody></table>")


def _special(table: Sequence[Sequence[str | None]]) -> str:
    if not table:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{_token(str(target))}</th><td class="left">{_token(source) if source is not None else "none"}</td>'
        f'<td class="left">{html.escape(str(reason))}</td></tr>'
        for target, source, reason in table
    )
    head = '<thead><tr><th scope="col">target</th><th scope="col" class="left">row from</th><th scope="col" class="left">because</th></tr></thead>'
    note = "<p class=notes>Another source is chosen with <code>--special-token TARGET=SOURCE</code>.</p>"
    return _scroll("special tokens", f"<table>{head}<tbody>{rows}</tbody></table>") + note


def _scripts(scripts: Sequence[Mapping[str, Any]]) -> str:
    header = ("script of the first letter", "tokens", "copied", "share", "nothing known")
    rows = [
        (row["script"], f"{row['tokens']:,}", f"{row['copied']:,}", _percent(row["copied"], row["tokens"]), f"{row['fallback']:,}")
        for row in scripts
    ]
    return _scroll("overlap by script", html_table(header, rows))


def _texts(texts: Mapping[str, Mapping[str, Any]]) -> str:
    if not texts:
        return "<p>No text was given: <code>--report-text NAME=FILE</code> shows how its tokens change and where their rows come from.</p>"
    header = (
        "text",
        "words",
        "tokens before",
        "after",
        "tokens per word",
        "tokens per byte",
        "distinct tokens",
        "of these copied",
        "occurrences copied",
    )
    rows = []
    for name, text in texts.items():
        by_origin = text["occurrences_by_origin"]
        copied = sum(count for origin, count in by_origin.items() if origin.startswith("copied") or origin == "special")
        rows.append(
            (
                name,
                f"{text['num_words']:,}",
                f"{text['num_tokens_before']:,}",
                f"{text['num_tokens_after']:,}",
                " → ".join(map(str, text["tokens_per_word"])),
                " → ".join(map(str, text["tokens_per_byte"])),
                f"{text['num_distinct']:,}",
                _percent(text["num_distinct_copied"], text["num_distinct"]),
                _percent(copied, text["num_tokens_after"]),
            )
        )
    note = f"<p class=notes>Of each text the first {TEXT_BYTES / 1e6:.0f} MB, in whole documents.  Before: the source's tokenizer; after: the new one.</p>"
    return _scroll("text before and after", html_table(header, rows)) + note


def _norms(norms: Mapping[str, Mapping[str, Any]]) -> str:
    parts = []
    for layer, figures in norms.items():
        if not figures["num_new"]:
            continue
        names = ("min", "1 %", "median", "99 %", "max")
        rows = [(which, *(str(figures[key].get(name, "")) for name in names)) for which, key in (("source", "source"), ("new rows", "new"))]
        parts.append(f"<h3>{html.escape(layer)}</h3>{_histogram(layer, figures)}{_scroll('lengths', html_table(('rows', *names), rows))}")
        for key, what in (("near_zero", "near zero"), ("exploding", "far too long"), ("not_finite", "not finite")):
            if figures[key]["count"]:
                tokens = " ".join(f'{_token(token)}<span class="weight">{norm}</span>' for _, token, norm in figures[key]["examples"])
                parts.append(f"<p>{figures[key]['count']:,} {what}: {tokens}</p>")
    if not parts:
        return ""
    rule = (
        f"Near zero is less than {NEAR_ZERO_SHARE:g} of the source's median length and less than its shortest row; far too long is more than"
        f" {EXPLODING_FACTOR:g} times the median and more than its longest."
    )
    return "".join(parts) + f"<p class=notes>{rule}</p>"


def _histogram(layer: str, figures: Mapping[str, Any]) -> str:
    """Shares of rows by length, the source's and the new ones over each other."""

    def area(counts: Sequence[int]) -> str:
        total = max(sum(counts), 1)
        steps = []
        for place, count in enumerate(counts):
            y = _HEIGHT - count / total / highest * (_HEIGHT - 8)
            steps += [f"{place * width:.1f},{y:.1f}", f"{(place + 1) * width:.1f},{y:.1f}"]
        return " ".join([f"0,{_HEIGHT}", *steps, f"{_WIDTH},{_HEIGHT}"])

    both = figures["source_counts"], figures["new_counts"]
    highest = max(max(counts) / max(sum(counts), 1) for counts in both) or 1
    width = _WIDTH / len(both[0])
    edges = figures["edges"]
    ticks = "".join(
        f'<text x="{place / 4 * _WIDTH:.0f}" y="{_HEIGHT + 17}" text-anchor="{anchor}">{edges[int(place / 4 * (len(edges) - 1))]:.3g}</text>'
        for place, anchor in enumerate(("start", "middle", "middle", "middle", "end"))
    )
    label = f"Lengths of rows of {layer}: source median {figures['source'].get('median')}, new median {figures['new'].get('median')}"
    key = (
        '<p class=notes><span class="key" style="background:var(--second);opacity:.6"></span>source'
        '<span class="key" style="background:var(--accent);opacity:.6"></span>new rows; the last bin holds all longer ones</p>'
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + _BOTTOM}" role="img" aria-label="{html.escape(label)}">'
        f'<polygon class="source-area" points="{area(both[0])}"/><polygon class="new-area" points="{area(both[1])}"/>'
        f'<line x1="0" y1="{_HEIGHT}" x2="{_WIDTH}" y2="{_HEIGHT}" stroke="var(--rule)"/>{ticks}</svg>{key}'
    )


def _duplicates(duplicates: Mapping[str, Mapping[str, Any]]) -> str:
    parts = []
    for layer, figures in duplicates.items():
        near = figures["near"]
        if not near["num_sampled"] and not figures["num_rows"]:
            continue
        parts.append(
            f"<p><strong>{html.escape(layer)}</strong>: {figures['num_rows']:,} new rows are the same bits as the row of another token;"
            f" of {near['num_sampled']:,} others looked at, {near['count']:,} have another row at a cosine of {near['cosine']} or more.</p>"
        )
        groups = "".join(f"<li>{' = '.join(_token(token) for _, token in group)}</li>" for group in figures["examples"])
        pairs = "".join(
            f'<li>{_token(one)} ≈ {_token(other)} <span class="weight">{cosine}</span></li>' for one, other, cosine in near["examples"]
        )
        if groups or pairs:
            parts.append(f"<details><summary>Examples</summary><ul>{groups}{pairs}</ul></details>")
    return "".join(parts)


def _neighbours(samples: Sequence[Mapping[str, Any]]) -> str:
    if not samples:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{_token(sample["token"])}</th><td class="left">'
        + "".join(f'{_token(token)}<span class="weight"> {cosine}</span>' for _, token, cosine in sample["neighbours"])
        + "</td></tr>"
        for sample in samples
    )
    note = "<p class=notes>New tokens and the source tokens whose rows in the input embeddings have the largest cosine.</p>"
    return note + _scroll("nearest source tokens", f"<table><tbody>{rows}</tbody></table>")


def _samples(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    parts = []
    for origin, entries in samples.items():
        rows = "".join(
            f'<tr><th scope="row">{_token(entry["shown"])}</th><td>{entry["id"]}</td><td class="left">{_sources(entry)}</td></tr>'
            for entry in entries
        )
        head = '<thead><tr><th scope="col">token</th><th scope="col">id</th><th scope="col" class="left">made from</th></tr></thead>'
        table = _scroll(f"tokens {origin}", f"<table>{head}<tbody>{rows}</tbody></table>")
        parts.append(f"<details><summary>{html.escape(_NAMES.get(origin, origin))}</summary>{table}</details>")
    return "<p class=notes>A sample of each kind; transfer.json has all.</p>" + "".join(parts)


def _sources(entry: Mapping[str, Any]) -> str:
    sources: Iterable[Sequence[Any]] = entry.get("sources", ())
    shown = "".join(f'{_token(token)}<span class="weight"> {weight:.3g}</span>' for _, token, weight in sources)
    more = entry.get("num_sources", 0) - len(entry.get("sources", ()))
    return shown + (f'<span class="weight">and {more} more</span>' if more > 0 else "")


def _token(token: str) -> str:
    return f'<span class="token">{html.escape(token)}</span>'


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.1f} %"


def _scroll(label: str, content: str) -> str:
    """A region that scrolls sideways, by keyboard too."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(label)}">{content}</div>'
