"""Commands shared by machines: processes that are given the same words make one output, the bytes of one machine, whoever of them dies."""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from common.artifacts import check_files, read_manifest
from data_prep.tokenizers.files import start_without_torch
from tests.data_prep.shared_stages import STAGES, words_of, write_texts
from tests.data_prep.sharing import held_stage

# Machines are forked from a process of their own: threads of the tokenizer library that earlier tests have used here do not survive a fork.
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.data_prep.crew_server", __name__])
_LIMIT_SECONDS = 300.0


class Machine:
    """A process that stands for a machine: a command of it, and how that ended."""

    def __init__(self, main: Callable[[Sequence[str]], int], words: Sequence[str]) -> None:
        self._errors, writing = _SERVER.Pipe(duplex=False)
        self.process = _SERVER.Process(target=self._run, args=(main, words, writing))
        self.process.start()
        writing.close()

    @staticmethod
    def _run(main: Callable[[Sequence[str]], int], words: Sequence[str], errors: Any) -> None:
        os.setpgid(0, 0)
        start_without_torch()  # as the commands do
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 until the process ends
        try:
            main(words)
            errors.send("")
        except BaseException as error:
            errors.send(str(error))

    def error(self) -> str | None:
        """ "" after success, None if it was killed."""
        self.process.join(_LIMIT_SECONDS)
        assert self.process.exitcode is not None, "does not end"
        with contextlib.suppress(EOFError):
            return str(self._errors.recv()) if self._errors.poll() else None
        return None

    def kill(self) -> None:
        """As a power failure: all of its processes, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join(_LIMIT_SECONDS)


@pytest.fixture
def machines() -> Iterator[Callable[..., Machine]]:
    """Starts machines; none of them outlives the test."""
    started: list[Machine] = []

    def start(main: Callable[[Sequence[str]], int], words: Sequence[str]) -> Machine:
        started.append(Machine(main, words))
        return started[-1]

    yield start
    for machine in started:
        machine.kill()


def _content(output: Path) -> dict[str, bytes]:
    manifest = read_manifest(output)
    assert manifest is not None
    check_files(output, manifest)
    return {name: (output / name).read_bytes() for name in manifest.files}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_texts(tmp_path_factory.mktemp("texts"))


def _stage(name: str, texts: list[str], tokenizer: Path) -> tuple[Callable[[Sequence[str]], int], list[str]]:
    """The command of a stage, without its output."""
    return importlib.import_module(f"data_prep.{name}").main, words_of(name, texts, tokenizer)


@pytest.mark.some(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", STAGES)
def test_two_machines_make_the_bytes_of_one(
    name: str, texts: list[str], tokenizer_dir: Path, tmp_path: Path, machines: Callable[..., Machine]
) -> None:
    main, words = _stage(name, texts, tokenizer_dir)
    one, two = tmp_path / "one", tmp_path / "two"
    alone = machines(main, [*words, "--workers", "1", "--output", str(one)])
    assert alone.error() == ""
    both = [machines(main, [*words, "--workers", "1", "--shared", "--output", str(two)]) for _ in range(2)]
    assert [machine.error() for machine in both] == ["", ""]
    assert _content(one) == _content(two)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"], "nothing else stays"
    again = machines(main, [*words, "--workers", "1", "--shared", "--output", str(two)])
    assert again.error() == "", "what is complete is not done again"
    other = machines(main, [*words, "--workers", "1", "--shared", "--max-document-mib", "7", "--output", str(two)])
    assert "exists and is not empty" in str(other.error())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"], "nor behind a refusal"


@pytest.mark.long
@pytest.mark.parametrize("name", STAGES)
def test_killed_at_any_time(name: str, texts: list[str], tokenizer_dir: Path, tmp_path: Path, machines: Callable[..., Machine]) -> None:
    """Two machines, of which one is killed and replaced again and again, the one that leads or the other; then both are left alone."""
    main, words = _stage(name, texts, tokenizer_dir)
    one, many = tmp_path / "one", tmp_path / "many"
    start = time.monotonic()
    assert machines(main, [*words, "--workers", "1", "--output", str(one)]).error() == ""
    longest = min(0.6, (time.monotonic() - start) / 2)
    generator, num_killed = random.Random(name), 0
    shared = [*words, "--workers", "1", "--shared", "--output", str(many)]
    pair = [machines(main, shared) for _ in range(2)]
    while num_killed < 12 and not many.exists():
        time.sleep(generator.uniform(0, longest) if num_killed else 0)  # some stages are done at once
        victim = generator.randrange(2)
        if pair[victim].process.is_alive():
            pair[victim].kill()
            num_killed += 1
            assert not many.exists() or _content(many) == _content(one), "what has its name is whole"
        pair[victim] = machines(main, shared)
    assert [machine.error() for machine in pair] == ["", ""]
    assert num_killed and _content(one) == _content(many)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many", "one"], "nothing else stays"


# -- a stage whose tasks are held, to be killed --------------------------------------------------------------------------


def _diary(path: Path, num_tasks: int) -> list[list[int]]:
    """Number, process and its parent for each task that was begun, once there are so many."""
    end = time.monotonic() + _LIMIT_SECONDS
    while not path.exists() or len(path.read_text().splitlines()) < num_tasks:
        assert time.monotonic() < end, "nobody works"
        time.sleep(0.02)
    return [[int(number) for number in line.split()] for line in path.read_text().splitlines()]


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("victim", ["leader", "helper", "worker"])
def test_who_is_killed_costs_its_part_only(victim: str, tmp_path: Path, machines: Callable[..., Machine]) -> None:
    words = [str(tmp_path / "out"), str(tmp_path / "diary"), "held"]
    leader = machines(held_stage.main, [*words, "--shared"])
    _diary(tmp_path / "diary", 1)
    helper = machines(held_stage.main, [*words, "--shared"])
    worker_of = {row[2]: row[1] for row in _diary(tmp_path / "diary", 2)}
    assert worker_of.keys() == {leader.process.pid, helper.process.pid}, "each has one task"
    if victim == "worker":
        os.kill(worker_of[helper.process.pid], signal.SIGKILL)
    else:
        {"leader": leader, "helper": helper}[victim].kill()
    (tmp_path / "go").touch()
    ended = [machine.error() for machine in (leader, helper)]
    assert ended == {"leader": [None, ""], "helper": ["", None], "worker": ["", ""]}[victim]
    assert json.loads((tmp_path / "out/done").read_text()) == [number * number for number in range(12)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["diary", "go", "out"]
    if victim != "leader":
        assert len(_diary(tmp_path / "diary", 12)) <= 13, "one task was done again, no more"


@pytest.mark.slow
def test_a_task_that_kills_is_named_and_errors_go_to_all(tmp_path: Path, machines: Callable[..., Machine]) -> None:
    deadly = machines(held_stage.main, [str(tmp_path / "deadly"), str(tmp_path / "diary"), "deadly", "--shared"])
    assert "3 worker processes died, killed or out of memory, over one task: task 3; run again with fewer" in str(deadly.error())
    wrong = [machines(held_stage.main, [str(tmp_path / "wrong"), str(tmp_path / f"diary_{n}"), "wrong", "--shared"]) for n in range(2)]
    assert all("file 3, line 1: no JSON; give another" in str(machine.error()) for machine in wrong)
    assert not (tmp_path / "wrong").exists()
