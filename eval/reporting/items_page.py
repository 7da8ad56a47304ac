"""A page of single items: where a model wins against the baseline and where it loses, with question and both answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.pages import rendered
from eval.reporting.runs import Evaluated, Report
from eval.reporting.scores import Line

_PROMPT_END = 700  # characters of a prompt that are shown: the question, not all examples


def items_page(report: Report, all_lines: Sequence[Line], *, title: str, items: int) -> str | None:
    """The page, or None if there is no second model or no task that both answered.

    Args:
        items: most items of a kind that are shown of one task and model.
    """
    baseline, *others = report.models
    found = (
        _section(line, model, baseline, items)
        for line in all_lines
        if line.headline and not line.is_text and line.score(baseline) is not None
        for model in others
        if line.score(model) is not None
    )
    sections = [section for section in found if section is not None]
    if not sections:
        return None
    return rendered("items.html", title=f"{title}: wins and losses", baseline=baseline.name, sections=sections)


def _section(line: Line, model: Evaluated, baseline: Evaluated, items: int) -> dict[str, Any] | None:
    ours, theirs = (m.samples(line.source) for m in (model, baseline))
    metric = line.metric if isinstance(ours[0].get(line.metric), int | float) else "chrf_sentence"
    if not isinstance(ours[0].get(metric), int | float):
        return None
    score = line.score(model)
    sign = 1 if score is None or score.higher_is_better else -1
    gains = sorted((sign * ((one[metric] or 0) - (other[metric] or 0)), n) for n, (one, other) in enumerate(zip(ours, theirs)))
    wins, losses = [n for gain, n in reversed(gains) if gain > 0], [n for gain, n in gains if gain < 0]

    def shown(number: int) -> dict[str, Any]:
        one, other = ours[number], theirs[number]
        prompt = str(one["arguments"][0][0])
        return {
            "identity": str(one["doc"].get("id", one["doc_id"])),
            "prompt": prompt if len(prompt) <= _PROMPT_END else f"… {prompt[-_PROMPT_END:]}",
            "answers": [
                ("right answer", _right(one)),
                (model.name, f"{_answer(one)} ({one[metric]:.3g})"),
                (baseline.name, f"{_answer(other)} ({other[metric]:.3g})"),
            ],
        }

    return {
        "heading": f"{line.source}: {model.name}: wins {len(wins)}, losses {len(losses)}, of {len(ours)}",
        "kinds": [(kind, list(map(shown, chosen[:items])), len(chosen) - items) for kind, chosen in (("better", wins), ("worse", losses))],
    }


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
