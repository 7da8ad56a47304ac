"""Compare the embeddings of models by relative representations: before and after training, with a helper model, with each other.

Similarity 1 is the same geometry up to rotation and scale; unrelated random embeddings are near 0.  Models of different vocabularies are
compared on the tokens that all of them have.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common import command
from common.artifacts import staged_directory, write_manifest
from common.figure_style import Palette, drawn
from common.options import add_option
from common.pages import Drawing, rendered
from common.progress import show
from common.tables import markdown_table, write_csv
from eval.running.model_names import named_checkpoints
from eval.scoring.relative_embeddings import ANCHORS_OF_A_KIND, NORMS, Similarities, compare, read_matrices

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(similarities: Similarities, palette: Palette) -> Figure:
    """Heat maps of input and output embeddings side by side, every cell with its figure."""
    from matplotlib import pyplot as plt
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("likeness", [palette.ground, palette.series[0]])
    size = 1.6 + 0.75 * len(similarities.names)
    figure, axes = plt.subplots(1, 2, figsize=(2 * size + 0.6, size), layout="constrained")
    for axis, title, matrix in zip(axes, ("Input embeddings", "Output layer"), (similarities.input, similarities.output)):
        axis.imshow(matrix, cmap=colours, vmin=0, vmax=1)
        axis.set_title(title)
        axis.set_xticks(range(len(similarities.names)), similarities.names, rotation=35, ha="right")
        axis.set_yticks(range(len(similarities.names)), similarities.names)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        for row, values in enumerate(matrix):
            for column, value in enumerate(values):
                colour = palette.ground if value > 0.55 else palette.ink
                axis.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=9)
    return figure


def rows_of(similarities: Similarities, kind: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of one heat map."""
    matrix = getattr(similarities, kind)
    header = [f"{kind} embeddings" if kind == "input" else "output layer", *similarities.names]
    return header, [[name, *(f"{value:.4f}" for value in values)] for name, values in zip(similarities.names, matrix)]


def write_outputs(similarities: Similarities, directory: Path, *, norm: str, seed: int) -> None:
    """Write page, drawing, all values as CSV, and the anchors."""
    light, dark = drawn(lambda palette: draw(similarities, palette), directory / "similarity.png")
    note = (
        f"Mean cosine of relative representations over {similarities.num_tokens:,} shared tokens; anchors: {ANCHORS_OF_A_KIND} tokens that"
        f" begin a word and {ANCHORS_OF_A_KIND} that do not, drawn with seed {seed}; similarity to an anchor by {norm}."
    )
    drawing = Drawing(light, dark, "Similarity of each pair of models; the figures are below.", note)
    tables = [rows_of(similarities, kind) for kind in ("input", "output")]
    page = rendered("figures.html", title="Similarity of the embeddings", about=[], drawing=drawing, heading="Figures", tables=tables)
    (directory / "similarity.html").write_text(page, encoding="utf-8")
    rows = (
        [kind, name, other, repr(float(value))]
        for kind in ("input", "output")
        for name, values in zip(similarities.names, getattr(similarities, kind))
        for other, value in zip(similarities.names, values)
    )
    write_csv(directory / "similarity.csv", ["matrix", "model", "other", "similarity"], rows)
    (directory / "anchors.json").write_text(json.dumps(similarities.anchors, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(__doc__, example="python -m eval.embeddings --model helper=helper/ before=hf_0/ after=hf/ --output likeness/")
    add_option(parser, "--model [NAME=]FOLDER", "two or more Hugging Face folders", nargs="+", required=True)
    add_option(parser, "--output DIR", "folder to write: similarity.html, .png, .csv and anchors.json", type=Path, required=True)
    add_option(parser, "--norm", "similarity to an anchor: dot product or cosine (default: %(default)s, as SAVA)", "dot", choices=NORMS)
    add_option(parser, "--seed", "seed of the anchors", 42)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Compare and print both tables."""
    arguments = _parser().parse_args(argv)
    folders = named_checkpoints(arguments.model)
    if len(folders) < 2:
        raise ValueError("--model names one model; give two or more to compare")
    show(f"comparing {', '.join(folders)}: reading")
    models = [read_matrices(folder, name=name) for name, folder in folders.items()]
    similarities = compare(models, norm=arguments.norm, seed=arguments.seed)
    with staged_directory(arguments.output) as staging:
        write_outputs(similarities, staging, norm=arguments.norm, seed=arguments.seed)
        write_manifest(
            staging,
            stage="eval.embeddings",
            facts={"num_tokens": similarities.num_tokens, "norm": arguments.norm, "seed": arguments.seed},
            arguments={"model": arguments.model},
        )
    for kind in ("input", "output"):
        print(markdown_table(*rows_of(similarities, kind)), end="\n\n")
    print(f"heat map: {arguments.output / 'similarity.html'}")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
