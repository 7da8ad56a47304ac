"""The style of charts, on light and dark backgrounds, and the files they are saved as."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "os^Dvp*"


@dataclass(frozen=True)
class Palette:
    """Colours of one ground; the series stay apart under the common kinds of colour blindness."""

    ink: str
    muted: str
    rule: str
    ground: str
    series: tuple[str, ...]

    def rc(self) -> dict[Any, Any]:
        """Settings of matplotlib."""
        return {
            "font.size": 10,
            "axes.edgecolor": self.muted,
            "axes.labelcolor": self.ink,
            "text.color": self.ink,
            "xtick.color": self.muted,
            "ytick.color": self.ink,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.linewidth": 0.8,
            "axes.titlelocation": "left",
            "axes.titleweight": "bold",
            "axes.titlesize": 11,
            "axes.axisbelow": True,
            "grid.color": self.rule,
            "grid.linewidth": 0.7,
            "legend.frameon": False,
            "figure.facecolor": self.ground,
            "axes.facecolor": self.ground,
            "svg.fonttype": "path",  # letters as outlines look the same without the font
            "svg.hashsalt": "scion",  # the same input gives the same file
        }


LIGHT = Palette("#1f2328", "#59636e", "#d0d7de", "#ffffff", ("#0067a5", "#bf4f00", "#00775a", "#9c3f83", "#7a6200", "#5a52c8", "#8c2f39"))
DARK = Palette("#e6edf3", "#9aa4af", "#3a424c", "#0d1117", ("#5cb8ee", "#f0955a", "#3ccfa0", "#e3a1cf", "#dcc04a", "#aaa4f5", "#f09aa3"))


def drawn(draw: Callable[[Palette], Figure], png_path: Path | None) -> tuple[bytes, bytes]:
    """Write a drawing as PNG, unless there is no place for one, and return it as SVG for light and for dark ground."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    svgs = []
    for palette in (LIGHT, DARK):
        with plt.rc_context(palette.rc()):
            figure = draw(palette)
            plt.close(figure)  # ours to keep; pyplot need not
            if palette is LIGHT and png_path is not None:
                figure.savefig(png_path, dpi=160, metadata={"Software": None})
            stream = io.BytesIO()
            figure.savefig(stream, format="svg", metadata={"Date": None})
            svgs.append(stream.getvalue())
    return svgs[0], svgs[1]
