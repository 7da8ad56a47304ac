"""Speed of generation as eval.generate measured it, beside accuracy and what the tokenizer costs.

Seconds compare only on one machine, from the same prompts, settings and programs, so that anything else is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.reporting.runs import Evaluated, Report
from eval.reporting.scores import LANGUAGES, Line
from eval.running.generation import EFFICIENCY_FORMAT, EFFICIENCY_NAME

RATES = ("tokens_per_second", "characters_per_second", "bytes_per_second", "speedup")
SHARES = ("prompt_tokens_per_item", "target_token_ratio")  # do not depend on time, and have no interval
SOURCE = "generation"  # beside tasks and texts, where scores are listed


def read_generation(folders: Sequence[Path], report: Report) -> dict[str, dict[str, Any]]:
    """Figures of the report's models, by digest of the model.

    Args:
        folders: outputs of eval.generate.

    Raises:
        ValueError: if a folder is none, two were not made alike (naming the first difference), a model was measured twice, or the
            report has none of the models.
    """
    contents = [(folder / EFFICIENCY_NAME, _read(folder / EFFICIENCY_NAME)) for folder in folders]
    for path, content in contents[1:]:
        if difference := _first_difference(contents[0][1]["conditions"], content["conditions"]):
            raise ValueError(
                f"{path} and {contents[0][0]} are not comparable: {difference}; generate with the same settings for all models, preferably in one command"
            )
    found: dict[str, dict[str, Any]] = {}
    for path, content in contents:
        for name, figures in content["models"].items():
            if figures["digest"] in found and figures["digest"] != content["conditions"]["source model"]:
                raise ValueError(f"{path} measures {name}, which another --efficiency folder measures too; leave one of them out")
            found.setdefault(figures["digest"], figures)
    expected = {_digest(model) for run in report.runs for model in run.checkpoints}
    if contents and not expected & found.keys():
        names = ", ".join(name for _, content in contents for name in content["models"])
        raise ValueError(f"{contents[0][0]} has none of the evaluated models (it has {names}); generate with the evaluated folders")
    return {digest: {**figures, "conditions": contents[0][1]["conditions"]} for digest, figures in found.items() if digest in expected}


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != EFFICIENCY_FORMAT:
            raise ValueError(f"format {content['format']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not an output of eval.generate of format {EFFICIENCY_FORMAT} ({error}); generate again") from error
    return content


def task_of(path: Path) -> str | None:
    """The task whose prompts an `efficiency.json` is of; None where they were a file.

    Raises:
        ValueError: if it is none.
    """
    task: str | None = _read(path)["conditions"].get("task")
    return task


def _first_difference(first: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    for name in dict.fromkeys((*first, *other)):
        ours, theirs = first.get(name), other.get(name)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            if inner := _first_difference(ours, theirs):
                return inner
        elif ours != theirs:
            return f"{name.replace('_', ' ')} {theirs} in the one and {ours} in the other"
    return None


def _digest(model: Evaluated) -> str:
    return str(model.content["model"]["digest"])


def generated_by(report: Report, model: Evaluated) -> Mapping[str, Any] | None:
    """The model's figures, None if it has none."""
    return report.generation.get(_digest(model))


def generation_rows(report: Report, all_lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: accuracy, fertility and speed of generation, models in columns; no rows where no speed was measured."""
    if not any(generated_by(report, model) for model in report.models):
        return [], []
    groups = _accuracies(report, all_lines)
    names = [f"accuracy, {name} ({len(found)} task{'s' if len(found) > 1 else ''})" for name, found in groups.items()]
    names += [f"tokens per word, {LANGUAGES.get(text, text)}" for text in report.texts]
    names += ["prompt tokens", "new tokens", "tokens/s", "characters/s", "bytes/s", "speedup"]
    columns = [_column(report, model, list(groups.values())) for model in report.models]
    return ["", *(model.name for model in report.models)], [[name, *cells] for name, *cells in zip(names, *columns, strict=True)]


def _accuracies(report: Report, all_lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Accuracies that all models have, by language: that of several tasks is their mean."""
    groups: dict[str, list[Line]] = {}
    for line in all_lines:
        if line.headline and line.metric in ("acc", "acc_norm") and all(line.score(model) is not None for model in report.models):
            first, *_, last = line.source.split("_")
            language = LANGUAGES.get(last) or LANGUAGES.get(first) or "other"
            groups.setdefault(language, []).append(line)
    return groups


def _column(report: Report, model: Evaluated, accuracies: Sequence[Sequence[Line]]) -> list[str]:
    cells = []
    for group in accuracies:
        scores = [score.value for line in group if (score := line.score(model)) is not None]
        cells.append(f"{sum(scores) / len(scores):.1f}")
    for text in report.texts:
        figures = model.texts.get(text)
        cells.append("–" if figures is None else f"{max(figures['num_tokens'], 1) / figures['num_words']:.2f}")
    made = generated_by(report, model)
    if made is None:
        return [*cells, *("–" for _ in (*SHARES, *RATES))]
    ratio = made["target_token_ratio"]
    cells += [f"{made['prompt_tokens_per_item']:.1f}", "–" if ratio is None else f"{100 * ratio:.1f} %"]
    return [*cells, *(_rate(made[name]) for name in RATES)]


def _rate(estimate: Mapping[str, float | None]) -> str:
    value, low, high = (estimate[name] for name in ("value", "low", "high"))
    if value is None:
        return "–"
    digits = 2 if value < 100 else 0
    # One repeat says nothing of others, and the source model's speedup is 1 by definition.
    interval = "" if low is None or high is None or low == high else f" [{low:,.{digits}f}, {high:,.{digits}f}]"
    return f"{value:,.{digits}f}{interval}"


def generation_records(report: Report, model: Evaluated) -> Iterator[tuple[str, float, float | None, float | None, int]]:
    """Metric, value, both ends of its interval and number of repeats, for other programs."""
    made = generated_by(report, model)
    if made is None:
        return
    repeats = len(made["repeats"])
    for name in RATES:
        yield name, made[name]["value"], made[name]["low"], made[name]["high"], repeats
    for name in SHARES:
        if made[name] is not None:
            yield name, made[name], None, None, repeats


def generation_note(report: Report) -> str:
    """On what, from what and how the texts were generated; empty where none were."""
    made = next((found for model in report.models if (found := generated_by(report, model))), None)
    if made is None:
        return ""
    recorded, settings = made["conditions"], made["conditions"]["settings"]
    drawn = "greedy" if settings["temperature"] == 0 else f"sampled at temperature {settings['temperature']:g}"
    length = f"{'exactly' if settings['fixed_length'] else 'up to'} {settings['max_new_tokens']} tokens"
    return (
        f"Texts: {recorded['prompts']} prompts, {drawn}, {length}, {len(made['repeats'])} repeats after a warm-up; {recorded['backend']} with"
        f" {recorded['dtype']} weights, {recorded['batch size']} at once, on {recorded['machine']['device']}. Speedup: bytes per second beside the"
        " source model. New tokens: the share that the source vocabulary has not. 95 % intervals over repeats."
    )
