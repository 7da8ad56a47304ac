"""Pages escape what they are given, name what is missing, and their templates are installed with the modules."""

from __future__ import annotations

import tomllib

import jinja2
import pytest
from setuptools import find_namespace_packages

from common.pages import Drawing, rendered
from tests.processes import ROOT

HOSTILE = """</title></style><script>alert(1)</script>"' onload='x"""


def test_whatever_a_file_holds_is_text() -> None:
    drawing = Drawing(b"<svg/>", b"<svg/>", HOSTILE, HOSTILE)
    table = ([HOSTILE, HOSTILE], [[HOSTILE, HOSTILE]])
    page = rendered("figures.html", title=HOSTILE, about=[HOSTILE], drawing=drawing, heading=HOSTILE, tables=[table])
    assert page.count("&lt;script&gt;alert(1)") == 10 and "<script" not in page and "' onload" not in page


def test_a_value_that_nobody_gave_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError, match="'drawing' is undefined"):
        rendered("figures.html", title="", about=[], heading="", tables=[])


def test_all_files_beside_the_modules_are_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    packages = find_namespace_packages(str(ROOT), **settings["packages"]["find"])
    assert {"common.templates", "recipes.conf.recipe.gams", "slurm.clusters", "conversion.families"} <= set(packages)
    assert settings["package-data"] == {"*": ["*"]} and not [name for name in packages if "tests" in name or "__pycache__" in name]
