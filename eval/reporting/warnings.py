"""What a reader has to know before comparing: models evaluated unlike, tasks that failed, and scores of too few items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from conversion.measuring.intervals import FEW_UNITS, effective_units, ratio_goes_with_size
from conversion.measuring.significance import LEAST_UNITS
from eval.reporting.runs import Evaluated, Report

_NAMED = 6  # of a kind in one sentence
_FEW_ITEMS = 100
_OLD_VOCABULARY = {None, "copy"}  # method of a model whose rows are the source's


def warnings(report: Report) -> list[str]:
    """Differences that do not forbid a comparison but may explain one, and what few items cannot tell; a sentence each."""
    models = [model for run in report.runs for model in run.checkpoints]
    found = [*_unlike(models), *_cut_prompts(report, models)]
    failed = [f"{task} of {model.name} ({reason})" for model in models for task, reason in model.content.get("failures", {}).items()]
    if failed:
        found.append(f"Could not be evaluated: {_listed(failed, '; ')}.")
    return [*found, *_without_lapt(models), *_unlike_numbers(report, models), *_few(report, models)]


def _without_lapt(models: Sequence[Evaluated]) -> Iterable[str]:
    """Trained models with a new vocabulary, beside none with that of the source."""
    trained = {model.content["facts"].get("method") for model in models if model.step}
    if trained - _OLD_VOCABULARY and not trained & _OLD_VOCABULARY:
        yield (
            "No model here has the source's own vocabulary, trained alike (LAPT): gains over the source may come from training alone."
            " Make one with conversion.transfer --vocabulary keep and the same recipe."
        )


def _listed(names: Sequence[str], separator: str = ", ") -> str:
    more = f"{separator}and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return separator.join(names[:_NAMED]) + more


def _unlike(models: Sequence[Evaluated]) -> Iterable[str]:
    """Settings and versions in which models differ."""
    asked, read = [model for model in models if model.tasks], [model for model in models if model.texts]
    backends = _values(asked, "settings", "backend")
    if len(backends) > 1:
        yield f"Tasks were run with different backends ({' and '.join(backends)}), which may change the last digits."
    for group, name, what in (
        (models, "dtype", "Weights were {}"),
        (asked, "task_positions", "Tasks were run with a context of {} tokens"),
        (read, "window_tokens", "Held-out texts were scored with a context of {} tokens"),
    ):
        values = _values(group, "settings", name)
        if len(values) > 1:
            listed = " and ".join(f"{value} ({_listed(names)})" for value, names in values.items())
            yield f"{what.format(listed)}: differences may come from that alone."
    templates: dict[str, list[str]] = {}
    for model in asked:
        if (digest := model.content.get("chat", {}).get("template_digest")) is not None:
            templates.setdefault(digest, []).append(model.name)
    if len(templates) > 1:
        listed = " and ".join(_listed(names) for names in templates.values())
        yield f"Models were asked in different chat templates, each in its tokenizer's own ({listed})."
    for package in ("lm_eval", "transformers"):
        versions = _values(models, "versions", package)
        if len(versions) > 1:
            yield f"Models were evaluated with different versions of {package} ({', '.join(versions)})."


def _values(models: Sequence[Evaluated], part: str, name: str) -> dict[str, list[str]]:
    """Value of a setting or version -> names of the models that have it, by value."""
    found: dict[str, list[str]] = {}
    for model in models:
        if name in model.content[part]:  # fine-tuned tasks have no prompts, and so no positions for them
            found.setdefault(str(model.content[part][name]), []).append(model.name)
    return dict(sorted(found.items()))


def _cut_prompts(report: Report, models: Sequence[Evaluated]) -> list[str]:
    """Tasks some of whose prompts a model saw only in part."""
    cut = []
    for task in report.tasks:
        shares = {model.name: model.tasks[task].get("prompt_cut") or 0.0 for model in models if task in model.tasks}
        if any(shares.values()):
            cut.append(f"{task} ({_listed([f'{name}: {100 * share:.0f} %' for name, share in shares.items()])})")
    if not cut:
        return []
    return [f"Prompts exceeded the context and were shortened, so models may have had different prompts: {_listed(cut)}."]


def _uneven(report: Report, models: Sequence[Evaluated]) -> Iterable[str]:
    """Held-out texts of documents so unlike in length that few of them decide, or that intervals do not hold."""
    for text in report.texts:
        documents = next(model.documents(text) for model in models if text in model.texts)
        sizes, bits = [document["text_bytes"] for document in documents], [document["nats"] for document in documents]
        if len(sizes) >= FEW_UNITS and (effective := effective_units(sizes)) < FEW_UNITS:
            yield (
                f"The {len(sizes)} documents of {text} are so different in length that their effective number is {effective:.0f}: intervals"
                f" are wide, and assume that other documents vary as these do."
            )
        if ratio_goes_with_size(bits, sizes):
            yield (
                f"Bits per byte of {text} depend on document length, and a few long documents have most of the bytes: intervals and tests are"
                " too sure (in simulations up to 25 of 100 intervals missed); cut documents to a common length, or give many more."
            )


def _unlike_numbers(report: Report, models: Sequence[Evaluated]) -> Iterable[str]:
    """Tasks of which models answered other numbers of items."""
    for task in report.tasks:
        counts: dict[int, list[str]] = {}
        for model in models:
            if task in model.tasks:
                counts.setdefault(int(model.tasks[task]["num_items"]), []).append(model.name)
        if len(counts) > 1:
            listed = ", ".join(f"{count} ({_listed(names)})" for count, names in sorted(counts.items()))
            yield f"Models answered different numbers of items of {task}: {listed}; their scores are not comparable."


def _few(report: Report, models: Sequence[Evaluated]) -> list[str]:
    """Scores of few items, and of few independent ones."""
    found = []
    items = {task: max(model.tasks[task]["num_items"] for model in models if task in model.tasks) for task in report.tasks}
    if small := [task for task, count in items.items() if count < _FEW_ITEMS]:
        names = ", ".join(small[:_NAMED]) + (" and others" if len(small) > _NAMED else "")
        found.append(f"Fewer than {_FEW_ITEMS} items: {names}. With 30 items an accuracy is known to about 18 points either way.")
    found += _uneven(report, models)
    units = {text: next(model.texts[text]["num_documents"] for model in models if text in model.texts) for text in report.texts}
    units |= {task: next(model.tasks[task]["num_groups"] for model in models if task in model.tasks) for task in report.tasks}
    if scarce := [f"{name} ({count})" for name, count in units.items() if count < FEW_UNITS]:
        found.append(
            f"Fewer than {FEW_UNITS} independent units (documents, or items and groups of them): {_listed(scarce)}. Intervals are wide,"
            f" and assume that others would vary as these do; fewer than {LEAST_UNITS} decide nothing."
        )
    return found
