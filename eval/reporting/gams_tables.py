"""The GaMS paper's Tables 4, 5 and 6: accuracy and F1 of valid answers with the paper's intervals, and the share of invalid answers."""

from __future__ import annotations

from conversion.intervals import t_interval
from eval.reporting.runs import Evaluated, Report

_TEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"}
_TEX |= {"^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
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
}


def gams_tables(report: Report) -> list[str]:
    """Those of the three tables of which a task was evaluated; needs booktabs."""
    found = []
    for number, tasks in _TABLES.items():
        asked = [task for task in tasks if task[0] in report.tasks]
        if not asked:
            continue
        columns = [(name, score) for name, _, scores in asked for score, _ in scores]
        over = " & ".join(rf"\multicolumn{{{len(scores)}}}{{c}}{{{title}}}" for _, title, scores in asked)
        headings = " & ".join(heading for _, _, scores in asked for _, heading in scores)
        rows = [f"{tex(model.name)} & {' & '.join(_cell(model, *column) for column in columns)} " + r"\\" for model in report.models]
        caption = (
            f"As Table {number} of the GaMS paper: scores of valid answers with 95\\,\\% intervals (Student's t of accuracy, exact match and"
            " MultiRC's F$_1$; of other F$_1$ over the jackknife), and the share of invalid ones."
        )
        found.append(
            "\n".join(
                [
                    r"\begin{table}",
                    r"\centering",
                    rf"\caption{{{caption}}}",
                    rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
                    r"\toprule",
                    rf" & {over} \\",
                    rf"Model & {headings} \\",
                    r"\midrule",
                    *rows,
                    r"\bottomrule",
                    r"\end{tabular}",
                    r"\end{table}",
                    "",
                ]
            )
        )
    return found


def _cell(model: Evaluated, task: str, metric: str) -> str:
    entry = model.tasks.get(task, {}).get("metrics", {}).get(metric)
    if entry is None or entry["value"] is None:
        return "--"
    if metric == "invalid":
        return rf"{100 * entry['value']:.2f}\,\%" if entry["value"] else r"0\,\%"
    low, high = entry["low"], entry["high"]
    if values := [value for value in model.items(task)["scores"].get(metric, []) if value is not None]:  # of items: the paper's t interval
        estimate = t_interval(values) if len(values) > 1 else None
        low, high = (None, None) if estimate is None else (estimate.low, estimate.high)
    interval = "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"
    return f"{entry['value']:.2f}{interval}"


def tex(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(_TEX.get(letter, letter) for letter in text)
