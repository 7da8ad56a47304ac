"""Tables of the report beside the scores: texts and tokenizers, English beside the target language, and how it was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eval.reporting.runs import Evaluated, Report
from eval.reporting.scores import LANGUAGES, Line, Test, difference_texts
from eval.reporting.suites import OTHERS, place
from eval.running.results import score_names
from eval.scoring.learned_scores import METRICS


def efficiency_rows(report: Report) -> tuple[list[str], list[list[str]]]:
    """Header and rows: every text and model with bits per byte, perplexity, fertility and speed."""
    header = ["text and model", "bits per byte", "perplexity per token", "tokens per word", "bytes per token", "bytes per second"]
    rows = []
    for text in report.texts:
        for model in report.models:
            figures = model.texts.get(text)
            if figures is None:
                continue
            tokens = max(figures["num_tokens"], 1)
            perplexity = figures["perplexity_per_token"]
            rows.append(
                [
                    f"{LANGUAGES.get(text, text)}, {model.name}",
                    "–" if (score := Line(text, "bits_per_byte", True, True).score(model)) is None else score.text(),
                    "–" if perplexity is None else f"{perplexity:,.0f}" if perplexity >= 1000 else f"{perplexity:.4g}",
                    f"{tokens / figures['num_words']:.2f}",
                    f"{figures['text_bytes'] / tokens:.2f}",
                    f"{figures['text_bytes'] / figures['seconds']:,.0f}",
                ]
            )
    return header, rows


def retention_rows(report: Report, tests: Sequence[Test]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: difference to the baseline in the target language and in English, where both were measured alike."""
    pairs = _language_pairs(report)
    if not pairs or not tests:
        return [], []
    by_line = {(test.line, test.model.path): test for test in tests}
    rows = []
    for target, english in pairs:
        for model in report.models[1:]:
            cells = [by_line.get((line, model.path)) for line in (target, english)]
            if all(cell is not None for cell in cells):
                known = [cell for cell in cells if cell is not None]
                rows.append([f"{known[0].label}: {model.name}", *map(_gain, known)])
    return ["score and model", "target language", "English"], rows


def _language_pairs(report: Report) -> list[tuple[Line, Line]]:
    pairs = []
    if "en" in report.texts:
        english = Line("en", "bits_per_byte", True, True)
        pairs += [(Line(text, "bits_per_byte", True, True), english) for text in report.texts if text != "en"]
    for task in report.tasks:
        stem, _, language = task.rpartition("_")
        twin = f"{stem}_en"
        if language in LANGUAGES and language != "en" and twin in report.tasks:
            metric = next(score_names(m.tasks[task]["metrics"])[0] for run in report.runs for m in run.checkpoints if task in m.tasks)
            pairs.append((Line(task, metric, False, True), Line(twin, metric, False, True)))
    return pairs


def _gain(test: Test) -> str:
    return f"{' '.join(difference_texts(test))}{' *' if test.sure else ''}"


def x_axes(report: Report, tokens_per_step: int | None) -> dict[str, Callable[[Evaluated], float]]:
    """Label of an axis -> where a checkpoint stands on it: steps, and where the tokens of a step are known tokens and bytes too.

    Bytes are tokens times the bytes per token of the first held-out text, under the model's own tokenizer.
    """

    def steps(model: Evaluated) -> float:
        return float(model.step or 0)

    axes: dict[str, Callable[[Evaluated], float]] = {"training step": steps}
    if tokens_per_step is None:
        return axes
    axes["tokens seen"] = lambda model: steps(model) * tokens_per_step
    if report.texts and all(report.texts[0] in model.texts for run in report.runs for model in run.checkpoints):
        text = report.texts[0]

        def num_bytes(model: Evaluated) -> float:
            figures = model.texts[text]
            return steps(model) * tokens_per_step * figures["text_bytes"] / max(figures["num_tokens"], 1)

        axes[f"bytes seen, as of {LANGUAGES.get(text, text)} text"] = num_bytes
    return axes


def notes(report: Report) -> list[str]:
    """How it was measured, in sentences."""
    models = [model for run in report.runs for model in run.checkpoints]
    first = models[0].content
    found = []
    if report.texts:
        figures = {text: next(model.texts[text] for model in models if text in model.texts) for text in report.texts}
        description = (f"{LANGUAGES.get(t, t)}: {f['num_documents']} documents, {f['text_bytes']:,} bytes" for t, f in figures.items())
        windows = sorted({int(model.content["settings"]["window_tokens"]) for model in models if model.texts})
        starts = sorted({str(m.content["settings"]["start_token_used"]["token"]) for m in models if m.texts})
        found.append(
            f"Held-out texts: {'; '.join(description)}. Every document is scored apart after one start token ({', '.join(starts)}), with up to"
            f" {' or '.join(f'{window:,}' for window in windows)} tokens at once; intervals over documents."
        )
    if report.pseudo_texts:
        found.append(
            f"Filled in by masked models: {', '.join(LANGUAGES.get(text, text) for text in report.pseudo_texts)}. Each token is hidden alone and"
            " found from all others (pseudo-log-likelihood); the figures compare masked models with each other, never with causal ones."
        )
    if report.tasks:
        found.append(_examples_note(report))
    for metric in METRICS:
        if scorer := next((m.tasks[t][metric.name] for m in models for t in m.tasks if m.tasks[t].get(metric.name)), None):
            named = f"{scorer['name']} ({scorer['digest']}) with {scorer['package']}"
            found.append(f"{metric.title}, times 100: {named}, on the first reference.")
    versions = ", ".join(f"{package} {version}" for package, version in first["versions"].items())
    found.append(
        "Intervals, 95 %: Wilson's for shares; else Student's t over items, groups of items being one (of F1, chrF and BLEU over the"
        " jackknife). Tests: McNemar's exact test for right and wrong answers to items that stand alone, else the exact test of signs over"
        " items or groups; p-values adjusted by Holm over all scores and models together. Fewer than six items or groups decide nothing."
    )
    found.append(f"Weights in {' or '.join(sorted({str(m.content['settings']['dtype']) for m in models}))}; {versions}.")
    return found


def _examples_note(report: Report) -> str:
    models = [model for run in report.runs for model in run.checkpoints]
    asked = {task: [model.tasks[task] for model in models if task in model.tasks] for task in report.tasks}
    shots = {task: summaries[0]["num_fewshot"] for task, summaries in asked.items() if summaries[0]["num_fewshot"]}
    if not shots:
        return "No examples before questions."
    description = ", ".join(f"{task}: {k}" for task, k in shots.items())
    of_papers = all(place(Line(task, "", False, True))[0] is not OTHERS for task in shots)
    drawn = " They are drawn for each item by its id, never from evaluated groups." if of_papers else ""
    were_cut = any(summary.get("prompt_cut") for summaries in asked.values() for summary in summaries)
    same = "Prompts are the same for every model" + (", but for what was cut of those that were too long" if were_cut else "")
    return f"Examples before each question: {description}.{drawn} {same}."
