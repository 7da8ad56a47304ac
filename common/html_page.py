"""Pages that are put together as strings."""

from __future__ import annotations

from collections.abc import Sequence

from common.pages import Drawing, part, rendered


def html_page(title: str, body: str, *, style: str = "") -> str:
    """The page.

    Args:
        title: plain text.
        body: HTML below the heading.
        style: further CSS, which may use the colours of the page.
    """
    from markupsafe import Markup

    return rendered("base.html", title=title, body=Markup(body), style=Markup(style))


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of plain text whose first column names the rows."""
    return part("table", (header, rows))


def html_figure(light_svg: bytes, dark_svg: bytes, *, alternative: str, caption: str) -> str:
    """A drawing in two versions, one for each kind of screen."""
    return part("figure", Drawing(light_svg, dark_svg, alternative, caption))
