"""`scion NAME` is `python -m stage.name`."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from common import VERSION
from common.cli import STAGES, commands, completion, find, overview, typed_names
from tests.processes import ROOT

KNOWN = commands()


def scion(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "common.cli", *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=60
    )


def test_every_command_is_listed_under_its_stage_in_order() -> None:
    text = scion().stdout
    assert text == scion("--help").stdout == f"{overview(KNOWN)}\n"
    headings = [line.removesuffix(":") for line in text.splitlines() if line.removesuffix(":") in STAGES]
    assert headings == list(STAGES)
    for path in (path for stage in STAGES for path in (ROOT / stage).glob("*.py")):
        if "command.run(main)" in path.read_text(encoding="utf-8"):
            assert any(line.split()[:1] in ([path.stem], [f"{path.parent.name}.{path.stem}"]) for line in text.splitlines()), path


def test_a_reader_that_goes_away_is_no_error() -> None:
    pipe = f'for i in 1 2 3 4 5; do "{sys.executable}" -m common.cli | head -1; done'
    done = subprocess.run(["bash", "-c", pipe], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and done.stdout == "usage: scion COMMAND ...\n" * 5


def test_it_is_the_command_from_any_directory(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    plain = subprocess.run([sys.executable, "-m", "recipes.plan", "--list"], cwd=tmp_path, env=environment, capture_output=True, timeout=60)
    named = scion("recipes.plan", "--list", cwd=tmp_path)
    assert (named.returncode, named.stdout) == (plain.returncode, plain.stdout.decode())
    assert plain.returncode == 0 and "gams/focus" in named.stdout
    refused = scion("hf-to-nemo", "--input", "nowhere", "--output", "out", cwd=tmp_path)
    assert refused.returncode == 2 and "nowhere" in refused.stderr


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("inspect", "several stages have a command inspect: data_prep.inspect, conversion.inspect; name one of these"),
        ("transfr", "there is no command transfr; did you mean transfer? `scion --help` lists them"),
        ("xyzzy", "there is no command xyzzy; `scion --help` lists them"),
    ],
)
def test_what_is_not_clear_is_refused(word: str, sentence: str) -> None:
    refused = scion(word)
    assert refused.returncode == 2 and refused.stderr.startswith(f"error: {sentence}") and refused.stdout == ""


def test_a_shortest_word_names_each_command_again() -> None:
    assert {command: find(word, KNOWN) for command, word in typed_names(KNOWN).items()} == {command: command for command in KNOWN}


def test_bash_completes_commands_and_options() -> None:
    script = f'scion() {{ "{sys.executable}" -m common.cli "$@"; }}\n{completion("bash", KNOWN)}'
    ask = script + 'COMP_WORDS=($WORDS); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _scion; echo "${COMPREPLY[@]}"'

    def completed(words: str) -> list[str]:
        environment = {**os.environ, "WORDS": words}
        done = subprocess.run(["bash", "-c", ask], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.split()

    assert completed("scion transf") == ["transfer", "transfer_compare"]
    assert completed("scion hf_to_nemo --out") == ["--output"]
    assert scion("--version").stdout == f"scion {VERSION}\n"
    assert scion("--completion", "bash").stdout == completion("bash", KNOWN)
    assert "takes one of bash, fish, zsh, not tcsh" in scion("--completion", "tcsh").stderr


@pytest.mark.long
def test_an_editable_install_has_it(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True, system_site_packages=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
    tools = [path for path in sys.path if path.endswith("site-packages")]  # setuptools
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(tools)}
    subprocess.run(install, check=True, timeout=300, env=environment)
    done = subprocess.run([tmp_path / "venv" / "bin" / "scion"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{overview(KNOWN)}\n"
