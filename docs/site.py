"""What mkdocs adds to the pages: the reference, from the commands' own --help and the recipe schema, and links between pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.cli import STAGES, Command, commands  # noqa: E402 (the checkout first)
from common.command import python_path  # noqa: E402

_PAGE = re.compile(r"`docs/([\w/-]+\.md)`")
_FILES_OF_THE_CHECKOUT = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
_HEADING = re.compile(r"^# (.+)$", re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made of the code."""
    from mkdocs.structure.files import File

    known = commands()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        helps = dict(zip(known, pool.map(help_of, known), strict=True))
    pages = {f"reference/{stage}.md": stage_page(stage, {c: text for c, text in helps.items() if c.stage == stage}) for stage in STAGES}
    pages["reference/recipe_keys.md"] = recipe_keys_page()
    pages["reference/project_keys.md"] = project_keys_page()
    pages["reference/recipe_sources.md"] = recipe_sources_page()
    pages |= {page: (ROOT / file).read_text(encoding="utf-8") for page, file in _FILES_OF_THE_CHECKOUT.items()}
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """`docs/x.md`, as pages name each other for those who read them in an editor, is a link here."""
    up = "../" * page.file.src_uri.count("/")

    def link(match: re.Match[str]) -> str:
        if files.get_file_from_path(match[1]) is None:
            return match[0]
        return f"[{title_of(match[1])}]({up}{match[1]})"

    return _PAGE.sub(link, markdown)


def title_of(page: str) -> str:
    """First heading of a page."""
    found = _HEADING.search((ROOT / "docs" / page).read_text(encoding="utf-8"))
    return found[1].replace("`", "") if found else page


def help_of(command: Command) -> str:
    """What the command says of itself."""
    environment = {**os.environ, "COLUMNS": "110", "PYTHONPATH": python_path(ROOT)}
    call = [sys.executable, "-m", command.module, "--help"]
    return subprocess.run(call, env=environment, capture_output=True, text=True, timeout=120, check=True).stdout


def stage_page(stage: str, helps: dict[Command, str]) -> str:
    """All commands of a stage."""
    parts = [f"# Commands of {stage}", f"As `python -m {stage}.NAME --help` and `scion NAME --help` print it."]
    for command, text in helps.items():
        parts.append(f"## {command.name}\n\n{command.summary}\n\n" + "".join(f"    {line}\n" for line in text.splitlines()))
    return "\n\n".join(parts)


def project_keys_page() -> str:
    """Every key of a project file with default and meaning."""
    from recipes.projects.explained import keys

    rows = "\n".join(f"| `{name}` | {key.default or ''} | {key.meaning.replace('|', '&#124;')} |" for name, key in keys().items())
    return f"# Keys of a project\n\nAs `scion explain` prints them.\n\n| key | default | what it is |\n|---|---|---|\n{rows}\n"


def recipe_sources_page() -> str:
    """Every setting of the published runs with its source, from the comments of their YAML files."""
    from recipes.sources import tables

    return f'# Sources of every setting\n\n"Our choice" marks what a paper leaves open.\n\n{tables()}\n'


def recipe_keys_page() -> str:
    """Every key of a recipe with its meaning, from the schema."""
    from recipes.rules.page import explanations

    rows = "\n".join(f"| `{key}` | {meaning.replace('|', '&#124;')} |" for key, meaning in explanations().items())
    return (
        f"# Keys of a recipe\n\nFrom `recipes/rules/schema.py`, where types and defaults are.\n\n| key | what it is |\n|---|---|\n{rows}\n"
    )
