"""Tables: as Markdown that is also aligned on a terminal, as CSV, and in LaTeX with the rules of booktabs."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

_TEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"}
_TEX |= {"^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> str:
    """A pipe table; the first `text_columns` columns stand left, the numbers after them right.

    Bars in cells are escaped.
    """
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if column < text_columns else cell.rjust(width) for column, (cell, width) in enumerate(zip(row, widths))
        )
        return f"| {' | '.join(padded)} |"

    rule = ("-" * width if column < text_columns else "-" * (width - 1) + ":" for column, width in enumerate(widths))
    return "\n".join([line(cells[0]), f"| {' | '.join(rule)} |", *map(line, cells[1:])])


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table as CSV."""
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(rows)


def tex(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(_TEX.get(letter, letter) for letter in text)


def tex_row(cells: Iterable[str]) -> str:
    """A row of a table, whose cells are LaTeX already."""
    return rf"{' & '.join(cells)} \\"


def tex_table(caption: str, num_columns: int, heads: Sequence[str], rows: Sequence[str]) -> str:
    """A table of whole lines above and below the rule in the middle.

    Args:
        num_columns: behind the first, which is text.
    """
    body = "\n".join([*heads, r"\midrule", *rows])
    return (
        f"\\begin{{table}}\n\\centering\n\\caption{{{caption}}}\n\\begin{{tabular}}{{l{'r' * num_columns}}}\n\\toprule\n"
        f"{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
    )
