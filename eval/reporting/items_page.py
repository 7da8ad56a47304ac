"""A page of single items: where a model wins against the baseline and where it loses, with question and both answers."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from common.html_page import html_page
from eval.reporting.runs import Evaluated, Report
from eval.reporting.scores import Line

_STYLE = """
article { border-top: 1px solid var(--rule); padding: .7rem 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0; font: .85rem/1.45 ui-monospace, monospace; color: var(--muted); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: .3rem 0; font-size: .95rem; }
dt { color: var(--muted); } dd { margin: 0; overflow-wrap: anywhere; } .better { color: var(--accent); } .worse { color: var(--warn); }
"""
_PROMPT_END = 700  # characters of a prompt that are shown: the question, not all examples


def items_page(report: Report, all_lines: Sequence[Line], *, title: str, items: int) -> str | None:
    """The page, or None if there is no second model or no task that both answered.

    Args:
        items: most items of a kind that are shown of one task and model.
    """
    baseline, *others = report.models
    sections = []
    for line in (line for line in all_lines if line.headline and not line.is_text):
        for model in others:
            if line.score(model) is not None and line.score(baseline) is not None:
                sections += _section(line, model, baseline, items)
    if not sections:
        return None
    sections[0] = sections[0].replace("<details>", "<details open>")
    lead = f"<p>Items that one model answers better than {html.escape(baseline.name)}, and worse; the widest differences first.</p>"
    return html_page(f"{title}: wins and losses", "\n".join([lead, *sections]), style=_STYLE)


def _section(line: Line, model: Evaluated, baseline: Evaluated, items: int) -> list[str]:
    ours, theirs = (m.samples(line.source) for m in (model, baseline))
    metric = line.metric if isinstance(ours[0].get(line.metric), int | float) else "chrf_sentence"
    if not isinstance(ours[0].get(metric), int | float):
        return []
    score = line.score(model)
    sign = 1 if score is None or score.higher_is_better else -1
    gains = sorted((sign * ((one[metric] or 0) - (other[metric] or 0)), n) for n, (one, other) in enumerate(zip(ours, theirs)))
    wins, losses = [n for gain, n in reversed(gains) if gain > 0], [n for gain, n in gains if gain < 0]
    name = html.escape(f"{line.source}: {model.name}")
    parts = [f"<details><summary>{name}: wins {len(wins)}, losses {len(losses)}, of {len(ours)}</summary>"]
    for kind, chosen in (("better", wins), ("worse", losses)):
        for number in chosen[:items]:
            parts.append(_article(kind, ours[number], theirs[number], model.name, baseline.name, metric))
        if len(chosen) > items:
            parts.append(f'<p class="notes">{len(chosen) - items} more are {kind}.</p>')
    return [*parts, "</details>"]


def _article(kind: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], our_name: str, their_name: str, metric: str) -> str:
    document = ours["doc"]
    prompt = str(ours["arguments"][0][0])
    shown = prompt if len(prompt) <= _PROMPT_END else f"… {prompt[-_PROMPT_END:]}"
    rows = [
        ("right answer", _right(ours)),
        (our_name, f"{_answer(ours)} ({ours[metric]:.3g})"),
        (their_name, f"{_answer(theirs)} ({theirs[metric]:.3g})"),
    ]
    told = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in rows)
    identity = html.escape(str(document.get("id", ours["doc_id"])))
    return f'<article><h3><span class="{kind}">{kind}</span> {identity}</h3><pre>{html.escape(shown)}</pre><dl>{told}</dl></article>'


def _right(sample: Mapping[str, Any]) -> str:
    document, target = sample["doc"], sample["target"]
    if isinstance(target, int) and isinstance(document.get("choices"), list):
        return str(document["choices"][target])
    return str(target)


def _answer(sample: Mapping[str, Any]) -> str:
    first = sample["resps"][0][0]
    if isinstance(first, str):
        return first.strip() or "(nothing)"
    scores = [answers[0][0] for answers in sample["resps"]]
    return str(sample["arguments"][scores.index(max(scores))][1]).strip()
