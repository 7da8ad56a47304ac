"""One HTML page that holds all it shows, for light and dark screens and for paper; no network, no scripts of its own."""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Sequence

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ --ink: #1f2328; --muted: #59636e; --rule: #d0d7de; --ground: #ffffff; --accent: #0067a5; --warn: #bf4f00; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6edf3; --muted: #9aa4af; --rule: #3a424c; --ground: #0d1117; --accent: #5cb8ee; --warn: #f0955a; }} }}
body {{ margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem 3rem; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }}
h1 {{ font-size: 1.6rem; line-height: 1.25; margin: 0 0 .4rem; }}
h2 {{ font-size: 1.15rem; margin: 2.2rem 0 .6rem; }}
p {{ margin: .4rem 0; max-width: 46rem; }}
figure {{ margin: 1.4rem 0 0; }}
img {{ width: 100%; height: auto; display: block; }}
figcaption, .notes {{ color: var(--muted); font-size: .9rem; margin-top: .5rem; }}
.scroll {{ overflow-x: auto; }}
.scroll th:first-child:not([colspan]) {{ position: sticky; left: 0; background: var(--ground); }}
@page {{ size: A4 landscape; margin: 1cm; }}
@media print {{ body {{ max-width: none; }} .scroll {{ overflow: visible; }}
  .scroll table {{ width: 100%; font-size: .6rem; }} .scroll th, .scroll td {{ padding-left: .3rem !important; white-space: normal; overflow-wrap: anywhere; }} }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .95rem; }}
th, td {{ padding: .35rem 0 .35rem 2rem; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap; }}
thead th {{ font-weight: 600; }}
tbody th {{ font-weight: 400; }}
th:first-child {{ padding-left: 0; text-align: left; }}
.beside {{ display: flex; flex-wrap: wrap; gap: 0 4rem; }}
h3 {{ font-size: 1rem; margin: .9rem 0 .3rem; }}
summary {{ cursor: pointer; font-weight: 600; margin-top: 2rem; }}
{style}</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def html_page(title: str, body: str, *, style: str = "") -> str:
    """The page.

    Args:
        title: plain text.
        body: HTML below the heading.
        style: further CSS, which may use the colours of the page.
    """
    return _PAGE.format(title=html.escape(title), body=body, style=style)


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of plain text whose first column names the rows."""

    def cells(row: Sequence[str], tag: str) -> str:
        first, *others = map(html.escape, row)
        scope, opened = ("col", '<th scope="col">') if tag == "th" else ("row", "<td>")
        return f'<th scope="{scope}">{first}</th>' + "".join(f"{opened}{cell}</{tag}>" for cell in others)

    body = "\n".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table>\n<thead><tr>{cells(header, 'th')}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def html_figure(light_svg: bytes, dark_svg: bytes, *, alternative: str, caption: str) -> str:
    """A drawing in two versions, one for each kind of screen.

    Args:
        alternative: what the drawing shows, for those who cannot see it.
    """
    return (
        "<figure>\n<picture>\n"
        f'<source media="(prefers-color-scheme: dark)" srcset="{_data_uri(dark_svg)}">\n'
        f'<img src="{_data_uri(light_svg)}" alt="{html.escape(alternative)}">\n'
        f"</picture>\n<figcaption>{html.escape(caption)}</figcaption>\n</figure>"
    )


def _data_uri(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{b64encode(svg).decode()}"
