"""Encoders across languages, as OFA's tables have it: means over head and tail, by family and script, languages that gain, before and after.

Every language counts alike.  A figure has two kinds of doubt: of the seeds that models were fine-tuned with (its standard deviation over
their means), and of the languages that were chosen (Student's t over them).  Two models are compared on the same languages.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from common.tables import markdown_table, tex, tex_row, tex_table, write_csv
from conversion.measuring.intervals import Estimate, ratio_interval
from conversion.measuring.significance import Difference, holm, paired_difference, with_seeds
from eval.published.by_language import UNKNOWN, Language, language
from eval.reporting.runs import Evaluated, Report, Run
from eval.reporting.scores import LEVEL
from eval.running.results import headline_score
from recipes.planner.costs import KG_PER_KWH
from recipes.planner.hardware import Gpu
from recipes.runs.run_metrics import RunCost, cost_until

# In the order of the paper's columns; how each names it.
TITLES = {
    "bible": "SR-B", "tatoeba": "SR-T", "retrieval": "retrieval", "taxi1500": "Taxi1500", "ner": "NER", "pos": "POS",
}  # fmt: skip
_TASK = re.compile(rf"({'|'.join(TITLES)})_(\w+)")
LEAST_LANGUAGES = 5  # of a family or script that has a line of its own
OTHERS = "others"
Scores = dict[Language, list[float]]  # of each seed, in percent
Group = Callable[[Language], str]
NOTE = (
    "Means over languages, percent, each language alike; in brackets the 95 % interval over languages, behind ± the standard deviation over the"
    " seeds of fine-tuning. Head: the languages that XLM-R was pretrained on; tail: the others."
)


@dataclass(frozen=True)
class Mean:
    """A mean over languages.

    Attributes:
        estimate: with its interval over languages.
        deviation: standard deviation of the means of the seeds; None of one.
    """

    estimate: Estimate
    deviation: float | None

    def text(self) -> str:
        """For a cell."""
        spread = "" if self.deviation is None else f" ± {self.deviation:.1f}"
        interval = f" [{self.estimate.low:.1f}, {self.estimate.high:.1f}]" if self.estimate.units > 1 else ""
        return f"{self.estimate.value:.1f}{spread}{interval}"


@dataclass(frozen=True)
class Gain:
    """A model against the baseline on the languages of a task.

    Attributes:
        adjusted_p_value: of no difference over languages, by Holm over all comparisons of the table.
    """

    task: str
    model: Evaluated
    difference: Difference
    adjusted_p_value: float

    def text(self) -> str:
        """Languages that gain, of how many, with a mark where the mean difference is sure."""
        d = self.difference
        mark = "" if not (d.can_decide and self.adjusted_p_value < LEVEL) else " ▲" if d.value > 0 else " ▼"
        return f"{d.wins}/{d.n} ({d.value:+.1f}{mark})"


def tasks_of(report: Report) -> list[str]:
    """Tasks across languages that some model has, in the paper's order."""
    there = {match[1] for name in report.tasks if (match := _TASK.fullmatch(name))}
    return [task for task in TITLES if task in there]


def scores_of(model: Evaluated, task: str) -> Scores:
    """The headline of a task in each language, of each seed."""
    found: Scores = {}
    for name, summary in model.tasks.items():
        match = _TASK.fullmatch(name)
        if match is None or match[1] != task:
            continue
        headline = headline_score(summary)
        found[language(match[2])] = [100 * value for value in headline.get("by_seed", [headline["value"]])]
    return found


def common_scores(models: Sequence[Evaluated], task: str) -> dict[str, Scores]:
    """Of the models that have a task, by name, on the languages that all of them have."""
    every = {model.name: scores for model in models if (scores := scores_of(model, task))}
    shared = [one for one in next(iter(every.values()), {}) if all(one in scores for scores in every.values())]
    return {name: {one: scores[one] for one in shared} for name, scores in every.items()}


def mean_over(scores: Mapping[Language, Sequence[float]]) -> Mean:
    """Mean over languages.

    Raises:
        ValueError: if there is none.
    """
    estimate = ratio_interval([fmean(values) for values in scores.values()], bounds=(0, 100))
    seeds = {len(values) for values in scores.values()}
    by_seed = [fmean(column) for column in zip(*scores.values(), strict=True)] if len(seeds) == 1 else []
    return Mean(estimate, stdev(by_seed) if len(by_seed) > 1 else None)


def head_or_tail(one: Language) -> str:
    """The paper's two groups."""
    return "head" if one.is_head else "tail"


def family(one: Language) -> str:
    """Of Glottolog."""
    return one.family


def script(one: Language) -> str:
    """ISO 15924."""
    return one.script


def groups_of(languages: Sequence[Language], group: Group) -> dict[str, list[Language]]:
    """Groups by size, the largest first; small ones, and languages of which nothing is known, together at the end."""
    counts = Counter(group(one) for one in languages)
    large = [name for name, count in counts.most_common() if count >= LEAST_LANGUAGES and name != UNKNOWN]
    found = {name: [one for one in languages if group(one) == name] for name in large}
    rest = [one for one in languages if group(one) not in large]
    return {**found, OTHERS: rest} if rest else found


def summary_rows(report: Report) -> tuple[list[str], list[list[str]]]:
    """Table 2: models in rows; tail, head and all languages of each task in columns."""
    header, columns = ["model"], []
    for task in tasks_of(report):
        scores = common_scores(report.models, task)
        languages = list(next(iter(scores.values()), {}))
        parts = {name: [one for one in languages if head_or_tail(one) == name] for name in ("tail", "head")}
        for name, members in {**parts, "all": languages}.items():
            if members:
                header.append(f"{TITLES[task]}, {name} ({len(members)})")
                columns.append({model: mean_over({one: of[one] for one in members}).text() for model, of in scores.items()})
    return header, [[model.name, *(column.get(model.name, "–") for column in columns)] for model in report.models]


def gains(report: Report) -> list[Gain]:
    """Table 3: every model against the baseline on the languages that all have; languages are the units of the test, and seeds where there are."""
    compared = []
    for task in tasks_of(report):
        scores = common_scores(report.models, task)
        baseline, *others = report.models
        for model in others:
            if baseline.name in scores and model.name in scores and scores[model.name]:
                ours, theirs = ([fmean(values) for values in scores[name].values()] for name in (model.name, baseline.name))
                difference = paired_difference(ours, theirs, most=100)
                if all(has_seeds(one, task) for one in (model, baseline)):
                    difference = with_seeds(difference, _by_seed(scores[model.name], scores[baseline.name]))
                compared.append((task, model, difference))
    adjusted = holm([difference.p_value for *_, difference in compared])
    return [Gain(task, model, difference, p) for (task, model, difference), p in zip(compared, adjusted, strict=True)]


def has_seeds(model: Evaluated, task: str) -> bool:
    """Whether a model was fine-tuned for a task, with as many seeds as its scores have."""
    names = (name for name in model.tasks if (match := _TASK.fullmatch(name)) and match[1] == task)
    return any("by_seed" in headline_score(model.tasks[name]) for name in names)


def _by_seed(ours: Scores, theirs: Scores) -> list[float]:
    """The difference of the means over the languages with each seed; of as many as both have in all of them."""
    seeds = min(len(values) for scores in (ours, theirs) for values in scores.values())
    return [fmean(ours[one][seed] - theirs[one][seed] for one in ours) for seed in range(seeds)]


def gain_rows(report: Report) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the languages that gain."""
    found = {(gain.model.name, gain.task): gain.text() for gain in gains(report)}
    tasks = [task for task in tasks_of(report) if any(key[1] == task for key in found)]
    rows = [[model.name, *(found.get((model.name, task), "–") for task in tasks)] for model in report.models[1:]]
    return ["model", *(TITLES[task] for task in tasks)], rows if found else []


def before_and_after_rows(report: Report) -> tuple[list[str], list[list[str]]]:
    """Table 5: of each run with results from before its first step, the means over all languages then, at its end, and what that changes."""
    tasks = tasks_of(report)
    rows = []
    for run in report.runs:
        first, last = run.checkpoints[0], run.last
        if len(run.checkpoints) < 2 or first.step != 0:
            continue
        cells = []
        for task in tasks:
            scores = {model.step: scores_of(model, task) for model in (first, last)}
            shared = [one for one in scores[0] if one in scores[last.step]]
            if not shared:
                cells.append("–")
                continue
            before, after = (fmean(fmean(of[one]) for one in shared) for of in (scores[0], scores[last.step]))
            cells.append(f"{before:.1f} → {after:.1f} ({after - before:+.1f})")
        rows.append([run.name, f"{last.step:,}", *cells])
    return ["run", "steps", *(TITLES[task] for task in tasks)], rows


def means_by_step(run: Run, tasks: Sequence[str]) -> dict[int, list[float]]:
    """Means over all languages of each task, of the checkpoints that have all tasks.

    A step before the first (the transfer itself) is none that training has reached.
    """
    trained = {model.step: [scores_of(model, task) for task in tasks] for model in run.checkpoints if model.step}
    return {step: [fmean(fmean(values) for values in scores.values()) for scores in found] for step, found in trained.items() if all(found)}


def best_step(means: Mapping[int, Sequence[float]]) -> int:
    """The checkpoint that the paper would keep: whose mean over the tasks is highest, the earlier of equals."""
    return max(means, key=lambda step: (fmean(means[step]), -step))


def best_checkpoint_rows(report: Report) -> tuple[list[str], list[list[str]]]:
    """Of each run with several checkpoints the best one."""
    tasks = tasks_of(report)
    rows = []
    for run in report.runs:
        means = means_by_step(run, tasks)
        if len(means) > 1:
            best = best_step(means)
            rows.append([run.name, f"{best:,}", f"{len(means)}", f"{fmean(means[best]):.1f}", *(f"{value:.1f}" for value in means[best])])
    return ["run", "best step", "of checkpoints", "mean of tasks", *(TITLES[task] for task in tasks)], rows


def training_costs(
    report: Report, run_dirs: Mapping[str, Path], *, gpu: Gpu | None = None, kg_per_kwh: float = KG_PER_KWH
) -> dict[str, RunCost]:
    """What runs took to their best checkpoints, by their own files.

    Args:
        run_dirs: name of a run, or of its last checkpoint -> its folder.

    Raises:
        ValueError: if there is no such run, none of its checkpoints has all tasks, or the folder is that of another.
    """
    tasks, found = tasks_of(report), {}
    for name, folder in run_dirs.items():
        run = next((run for run in report.runs if name in (run.name, run.last.name)), None)
        if run is None:
            raise ValueError(f"there are no results of a run called {name}; there are {'; '.join(run.name for run in report.runs)}")
        means = means_by_step(run, tasks) if tasks else {}
        if not means:
            raise ValueError(
                f"the results of {run.name} have no trained checkpoint with all tasks ({', '.join(tasks) or 'none is across languages'}), so"
                " none is the best; evaluate one, or leave out its --run"
            )
        found[run.name] = cost_until(folder, best_step(means), gpu=gpu, kg_per_kwh=kg_per_kwh)
    return found


def cost_rows(report: Report) -> tuple[list[str], list[list[str]]]:
    """Table 4: what each run took to its best checkpoint."""
    rows = []
    for name, cost in report.costs.items():
        carbon = "–" if cost.carbon_kg is None else f"{cost.carbon_kg:.3g}"
        rows.append(
            [name, f"{cost.step:,}", *(f"{hours:.3g}" for hours in (cost.hours, 1e4 * cost.hours / cost.step, cost.device_hours)), carbon]
        )
    return ["run", "best step", "hours", "hours for 10,000 steps", "device hours", "CO2 (kg)"], rows


def _short(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= 1000 else f"{amount:.3g}"


def group_rows(report: Report, task: str, group: Group) -> tuple[list[str], list[list[str]]]:
    """Table 6: models in rows, families or scripts of one task in columns."""
    scores = common_scores(report.models, task)
    languages = list(next(iter(scores.values()), {}))
    parts = {**groups_of(languages, group), "all": languages} if languages else {}
    header = ["model", *(f"{name} ({len(members)})" for name, members in parts.items())]
    rows = [
        [name, *(mean_over({one: of[one] for one in members}).text() for members in parts.values())] for name, of in scores.items() if parts
    ]
    return header, rows


def tables(report: Report) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, header and rows of all tables that have rows; none where no model was asked such tasks."""
    if not tasks_of(report):
        return []
    baseline = report.models[0].name
    found = [
        ("Tail, head and all languages", *summary_rows(report)),
        (
            f"Languages that score higher than with {baseline} (mean difference; ▲▼ sure over languages and seeds, over this table)",
            *gain_rows(report),
        ),
        ("Before and after continued pretraining, all languages", *before_and_after_rows(report)),
        ("The best checkpoint by the mean of the tasks", *best_checkpoint_rows(report)),
        ("Training to the best checkpoint", *cost_rows(report)),
    ]
    for task in tasks_of(report):
        found += [
            (f"{TITLES[task]} by {name}", *group_rows(report, task, group)) for name, group in (("family", family), ("script", script))
        ]
    return [(title, header, rows) for title, header, rows in found if rows]


def write_across_languages(directory: Path, report: Report) -> None:
    """Write across_languages.md, .csv (every language, model and seed) and .tex, if there are such tasks."""
    found = tables(report)
    if not found:
        return
    parts = [f"## {title}\n\n{markdown_table(header, rows)}" for title, header, rows in found]
    (directory / "across_languages.md").write_text("\n\n".join(["# Across languages", *parts, NOTE]) + "\n", encoding="utf-8")
    latex = "\n".join(_latex(title, header, rows) for title, header, rows in found)
    (directory / "across_languages.tex").write_text(f"% Needs \\usepackage{{booktabs,amssymb}}.\n\n{latex}", encoding="utf-8")
    header = ["task", "model", "step", "language", "name", "script", "family", "group", "seed_number", "value"]
    write_csv(directory / "across_languages.csv", header, _records(report))


def _records(report: Report) -> Iterator[list[str]]:
    for task in tasks_of(report):
        for run in report.runs:
            for model in run.checkpoints:
                for one, values in scores_of(model, task).items():
                    for number, value in enumerate(values, start=1):
                        step = "" if model.step is None else str(model.step)
                        about = [one.code, one.name, one.script, one.family, head_or_tail(one)]
                        yield [task, model.name, step, *about, str(number), repr(value)]


def _latex(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """One table; intervals go to a line below their means."""
    lines = []
    for row in rows:
        split = [re.fullmatch(r"(.*?)( \[.*\])?", cell) for cell in row]
        cells = [(match[1], (match[2] or "").strip()) if match else (cell, "") for match, cell in zip(split, row, strict=True)]
        lines.append(tex_row(_tex_cell(value) for value, _ in cells))
        if any(interval for _, interval in cells):
            lines.append(tex_row(rf"{{\scriptsize {interval}}}" if interval else "" for _, interval in cells))
    return tex_table(f"{_tex_cell(title)}.", len(header) - 1, [tex_row(map(tex, header))], lines)


def _tex_cell(cell: str) -> str:
    escaped = "--" if cell == "–" else tex(cell)
    for sign, command in (("±", r"$\pm$"), ("→", r"$\rightarrow$"), ("▲", r"$\blacktriangle$"), ("▼", r"$\blacktriangledown$")):
        escaped = escaped.replace(sign, command)
    return escaped
