"""Commands on a real Ray cluster, two machines of which are this one: the bytes of one machine, whichever worker or machine dies."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from common.artifacts import check_files, read_manifest
from tests.data_prep.shared_stages import STAGES, words_of, write_texts
from tests.processes import Finished, Group, run_command

_HELD_STAGE = "tests.data_prep.sharing.held_stage"
# The head listens before it has a machine, and Ray refuses who comes between; a slow one takes longer than Ray waits by itself.
_WAIT = """
import sys, time, ray
while True:
    try:
        ray.init(sys.argv[1], log_to_driver=False)
        break
    except ConnectionError:
        time.sleep(1)
while len([node for node in ray.nodes() if node["Alive"]]) < int(sys.argv[2]):
    time.sleep(0.1)
"""


class RayMachines:
    """A head and another machine, of one CPU each, on the loopback."""

    def __init__(self, place: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._place, self._started = place, 0
        self.head = self.start("--head", f"--port={self.address.rpartition(':')[2]}", "--include-dashboard=false", f"--temp-dir={place}")
        self._wait_for(1)
        self.start_other()

    def start_other(self) -> None:
        """The other machine, until the head knows it."""
        self.other = self.start(f"--address={self.address}")
        self._wait_for(2)

    def start(self, *words: str) -> Group:
        """One more machine."""
        self._started += 1
        options = ("--block", "--num-cpus=1", "--object-store-memory=100000000", "--disable-usage-stats", "--node-ip-address=127.0.0.1")
        return Group(["-m", "ray.scripts.scripts", "start", *words, *options], log_dir=self._place / f"log-{self._started}")

    def _wait_for(self, machines: int) -> None:
        self.head.wait_until(lambda: _listens(self.address), timeout_seconds=240)
        waits = Group(["-c", _WAIT, self.address, str(machines)], log_dir=self._place / "log-wait")
        assert waits.wait(timeout_seconds=240).code == 0, waits.stderr()

    def stop(self) -> None:
        """End all."""
        for machine in (self.other, self.head):
            machine.kill()


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False


@pytest.fixture(scope="module")
def machines() -> Iterator[RayMachines]:
    place = Path(tempfile.mkdtemp(prefix="ray-"))  # short: the paths of sockets are
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))  # or Ray leaves one in the home directory
        started = RayMachines(place)
        yield started
        started.stop()
    shutil.rmtree(place, ignore_errors=True)


def _content(output: Path) -> dict[str, bytes]:
    manifest = read_manifest(output)
    assert manifest is not None
    check_files(output, manifest)
    return {name: (output / name).read_bytes() for name in manifest.files}


@pytest.mark.some(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", STAGES)
def test_a_cluster_makes_the_bytes_of_one_machine(name: str, machines: RayMachines, tokenizer_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    words = [*words_of(name, write_texts(tmp_path / "texts"), tokenizer_dir), "--workers", "1"]
    one, many = tmp_path / "one", tmp_path / "many"
    for output, how in ((one, []), (many, ["--ray", machines.address])):
        ended = run_command(f"data_prep.{name}", *words, *how, "--output", output, log_dir=tmp_path / "log")
        assert ended.code == 0, ended.stderr
    assert "tasks were done by" in ended.stderr
    assert _content(one) == _content(many)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "many", "one", "texts"], "nothing else stays"


def _held_stage(machines: RayMachines, place: Path, what: str) -> Finished:
    return run_command(_HELD_STAGE, place / "diary", what, "--ray", machines.address, "--output", place / "out", log_dir=place / "log")


@pytest.mark.slow
def test_a_task_that_kills_is_named_and_errors_arrive(machines: RayMachines, tmp_path: Path) -> None:
    for what, sentence in (
        ("deadly", "3 worker processes died, killed or out of memory, over one task: task 3; run again with fewer"),
        ("wrong", "file 3, line 1: no JSON; give another"),
    ):
        (tmp_path / what).mkdir()
        ended = _held_stage(machines, tmp_path / what, what)
        assert (ended.code, ended.stderr) == (2, f"error: {sentence}" + (" --workers" if what == "deadly" else "") + "\n")
        assert sorted(path.name for path in (tmp_path / what).iterdir()) == ["diary", "log"]


@pytest.mark.long  # as tests/slurm/test_ray_nodes.py has it on Slurm
@pytest.mark.parametrize("victim", ["worker", "machine"])
def test_who_is_killed_costs_its_task_only(victim: str, machines: RayMachines, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    words = [str(diary), "held", "--ray", machines.address, "--output", str(tmp_path / "out")]
    group = Group(["-m", _HELD_STAGE, *words], log_dir=tmp_path / "log")
    raylets = {process.pid for process in machines.other.descendants()}

    def begun() -> list[list[int]]:
        return [[int(word) for word in line.split()[:3]] for line in diary.read_text().splitlines()] if diary.exists() else []

    group.wait_until(lambda: any(row[2] in raylets for row in begun()), timeout_seconds=240)
    if victim == "worker":
        os.kill([row[1] for row in begun() if row[2] in raylets][-1], signal.SIGKILL)
    else:
        machines.other.kill()
    (tmp_path / "go").touch()
    ended = group.wait(timeout_seconds=120)
    if victim == "machine":
        machines.start_other()
    assert ended.code == 0, ended.stderr
    assert json.loads((tmp_path / "out/done").read_text()) == [number * number for number in range(12)]
    assert len(begun()) <= 14, "what it had was done again, no more"


def _num_tasks(ended: Finished) -> int:
    return int(ended.stderr.partition(" tasks were done by")[0].split()[-1])


@pytest.mark.slow
def test_what_is_killed_with_its_leader_goes_on(machines: RayMachines, tokenizer_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    words = [*words_of("dedup", write_texts(tmp_path / "texts"), tokenizer_dir), "--workers", "1"]
    words += ["--ray", machines.address]
    whole = run_command("data_prep.dedup", *words, "--output", tmp_path / "one", log_dir=tmp_path / "log")
    assert whole.code == 0, whole.stderr
    shared = [*words, "--output", str(tmp_path / "many")]
    name = ".decided.json.partial"  # made halfway, of what the workers have found
    group = Group(["-m", "tests.held_command", name, "data_prep.dedup", *shared], log_dir=tmp_path / "log")
    group.wait_until(lambda: any((tmp_path / ".many.unfinished").rglob(name)), timeout_seconds=240)
    psutil.Process(group.process.pid).kill()
    group.process.wait()
    assert not (tmp_path / "many").exists()
    again = run_command("data_prep.dedup", *shared, log_dir=tmp_path / "log")
    assert again.code == 0, again.stderr
    assert _num_tasks(again) < _num_tasks(whole), "what was finished is not done again"
    assert _content(tmp_path / "one") == _content(tmp_path / "many")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "many", "one", "texts"], "nothing else stays"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--ray", "127.0.0.1:9"], 7, "error: --ray 127.0.0.1:9: no answer"),
        (
            ["--ray", "nowhere"],
            2,
            "error: --ray nowhere: there is no Ray cluster to work on: Invalid address format: nowhere; start one with",
        ),
    ],
)
def test_no_cluster_is_said_before_anything_is_written(words: list[str], code: int, sentence: str, tmp_path: Path) -> None:
    words = [*words, "--output", str(tmp_path / "out")]
    ended = run_command(_HELD_STAGE, tmp_path / "diary", "held", *words, log_dir=tmp_path / "log", timeout_seconds=240)
    assert ended.code == code and sentence in ended.stderr, ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
