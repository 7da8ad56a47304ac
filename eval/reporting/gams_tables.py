"""The GaMS paper's Tables 4 to 7: accuracy, F1 and SARI with the paper's own intervals, the share of invalid answers, rows of others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.plain_files import read_yaml
from common.tables import tex, tex_row, tex_table
from conversion.measuring.intervals import Estimate, quantile_bootstrap, t_interval
from eval.protocols.scoring import OF_VALID, valid_answers
from eval.reporting.runs import Evaluated, Report
from eval.scoring.statistics import f1_bootstrap

COPIED_ROWS = Path(__file__).with_name("copied_rows.yaml")
SENTA_TABLE = "7"
_ACCURACY, _INVALID = ("acc_valid", "Acc."), ("invalid", "Inv. pred.")
_F1 = "F$_1$"
# Table of the paper -> its tasks: name, heading, and scores with their headings.
_TABLES = {
    "4": (
        ("sl_boolq_gen", "BoolQ", (_ACCURACY, _INVALID)),
        ("sl_cb_gen", "CB", (_ACCURACY, ("macro_f1_valid", _F1), _INVALID)),
        ("sl_copa_gen", "COPA", (_ACCURACY, _INVALID)),
    ),
    "5": (
        ("sl_multirc_gen", "MultiRC", (("acc_valid", "EM"), ("f1_items", _F1), _INVALID)),
        ("sl_rte_gen", "RTE", (_ACCURACY, _INVALID)),
        ("sl_wsc_gen", "WSC", (_ACCURACY, _INVALID)),
    ),
    "6": (
        (
            "sl_si_nli_gen",
            "SI-NLI",
            (
                ("acc_valid", "Accuracy"),
                ("f1_entailment", f"Entailment {_F1}"),
                ("f1_neutral", f"Neutral {_F1}"),
                ("f1_contradiction", f"Contradiction {_F1}"),
                _INVALID,
            ),
        ),
    ),
    SENTA_TABLE: tuple((f"sl_senta_{shots}shot", "", (("sari", f"$k = {shots}$"),)) for shots in (0, 3, 5, 10)),
}
# What the paper computes its intervals of by resampling, not by the standard error.
_CLASS_F1 = {aggregation.__name__: of_class for aggregation, of_class in OF_VALID.items()}
_RESAMPLED = {*_CLASS_F1, "f1_items", "sari"}


def gams_tables(report: Report, *, of_senta: bool, copied: bool = False) -> list[str]:
    """Those of Tables 4 to 6, or Table 7, of which a task was evaluated; needs booktabs.

    Args:
        of_senta: Table 7.
        copied: also the rows that the paper copies from others, which are of the test sets.
    """
    given = read_yaml(COPIED_ROWS) if copied else {}
    found = []
    for number, tasks in _TABLES.items():
        asked = [task for task in tasks if task[0] in report.tasks]
        if asked and (number == SENTA_TABLE) == of_senta:
            found.append(_table(report, number, asked, given.get(number)))
    return found


def _table(report: Report, number: str, asked: list[Any], given: Mapping[str, Any] | None) -> str:
    columns = [(name, score) for name, _, scores in asked for score, _ in scores]
    over = " & ".join(rf"\multicolumn{{{len(scores)}}}{{c}}{{{title}}}" for _, title, scores in asked)
    headings = " & ".join(heading for _, _, scores in asked for _, heading in scores)
    rows = [tex_row([tex(model.name), *(_cell(model, *column) for column in columns)]) for model in report.models]
    if given is not None:
        rows += [r"\midrule", *(_copied_row(name, scores, columns) for name, scores in given["rows"].items())]
    heads = [] if number == SENTA_TABLE else [rf" & {over} \\"]
    return tex_table(_caption(number, given), len(columns), [*heads, rf"Model & {headings} \\"], rows)


def _caption(number: str, given: Mapping[str, Any] | None) -> str:
    resampled = "quantiles of 1,000 resamples"
    if number == SENTA_TABLE:
        description = f"SARI by the number $k$ of examples with 95\\,\\% intervals ({resampled})."
    else:
        description = (
            "scores of valid answers with 95\\,\\% intervals (Student's t of accuracy and exact match,"
            f" {resampled} of F$_1$), and the share of invalid ones."
        )
    copied = "" if given is None else f" Below the second line: copied from {given['from']}, of the test set."
    return f"As Table {number} of the GaMS paper: {description}{copied}"


def _copied_row(name: str, scores: Mapping[str, Mapping[str, str]], columns: list[tuple[str, str]]) -> str:
    cells = []
    for task, metric in columns:
        missing = "/" if metric == "invalid" else ""
        cells.append(scores.get(task, {}).get(metric, missing))
    return tex_row([tex(name), *cells])


def _cell(model: Evaluated, task: str, metric: str) -> str:
    entry = model.tasks.get(task, {}).get("metrics", {}).get(metric)
    if entry is None or entry["value"] is None:
        return "--"
    if metric == "invalid":
        return rf"{100 * entry['value']:.2f}\,\%" if entry["value"] else r"0\,\%"
    estimate = _estimate(model, task, metric)
    if estimate is None:
        return f"{entry['value']:.2f}"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _estimate(model: Evaluated, task: str, metric: str) -> Estimate | None:
    """The score with the interval that the paper prints of it; None of fewer than two items."""
    if metric in _CLASS_F1:
        samples = model.samples(task)
        answers = valid_answers([sample[metric] for sample in samples])
        if len(answers) < 2:
            return None
        gold, predicted, sizes = zip(*answers)
        return f1_bootstrap(gold, predicted, num_classes=sizes[0], of_class=_CLASS_F1[metric])
    values = [value for value in model.items(task)["scores"].get(metric, []) if value is not None]
    if len(values) < 2:
        return None
    if metric in _RESAMPLED:
        return quantile_bootstrap([[value, 1.0] for value in values], lambda sums: sums[:, 0] / sums[:, 1])
    return t_interval(values)
