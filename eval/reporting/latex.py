"""Tables in LaTeX, with the rules of booktabs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_TEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"}
_TEX |= {"^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}


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
