"""Reports as HTML pages from the templates beside this module: each holds all it shows, for light and dark screens and for paper; no network, no scripts.

A report is a template that extends `base.html` and is fed with plain data: whatever it prints is escaped there, since names and texts come from files.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.figure_style import DARK, LIGHT

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True)
class Drawing:
    """A drawing as SVG in two versions, one for each kind of screen.

    Attributes:
        alternative: what it shows, for those who cannot see it.
    """

    light: bytes
    dark: bytes
    alternative: str
    caption: str

    @property
    def uris(self) -> tuple[str, str]:
        """For light and for dark screens, as addresses that hold them."""
        light, dark = (f"data:image/svg+xml;base64,{b64encode(svg).decode()}" for svg in (self.light, self.dark))
        return light, dark


def rendered(template: str, **values: Any) -> str:
    """A page; every value is escaped, and a value that the template names but is not given is an error."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(light=LIGHT, dark=DARK)
    made.filters["number"] = "{:,}".format
    return made
