"""Data commands shared by the nodes of a real Slurm: the bytes of one machine, also where workers and nodes are lost."""

from __future__ import annotations

import json
import os
import random
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from common.artifacts import check_files, read_manifest
from data_prep.reading.documents import Documents
from data_prep.train_tokenizer import train_tokenizer
from slurm.stages.pipeline_file import pipeline_from_mapping
from slurm.stages.pipeline_submission import submit_pipeline
from tests.data_prep.shared_stages import STAGES, words_of, write_texts
from tests.processes import ROOT, run_command
from tests.slurm.running_slurm import ACCOUNT, RunningSlurm, running_slurm

TEXT = ROOT / "recipes/demo_text/sl.train.txt"
CPU_NODES = ("cpu.name=cpu", "cpu.num_nodes=16", "cpu.cpus_per_node=32", "cpu.memory_gib=480", "cpu.time_limit=24:00:00")
MANY, FEW = 400, 30  # documents of a file; few where each line is asked for its language


def _texts(documents: int) -> Callable[[int], list[str]]:
    """Documents that share lines of real text."""
    stock = [line for line in TEXT.read_text(encoding="utf-8").split("\n") if line]
    return lambda number: ["\n".join(random.Random(f"{number} {i}").choices(stock, k=6)) for i in range(documents)]


def _content(output: Path) -> dict[str, bytes]:
    manifest = read_manifest(output)
    assert manifest is not None
    check_files(output, manifest)
    return {name: (output / name).read_bytes() for name in manifest.files}


class Stages:
    """Each command with what it is given, and what it makes on one machine."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._texts = {}
        for documents in (MANY, FEW):
            (place / str(documents)).mkdir()
            self._texts[documents] = write_texts(place / str(documents), _texts(documents))

    @cached_property
    def _tokenizer(self) -> Path:
        train_tokenizer(Documents([TEXT]), self._place / "tokenizer", vocab_size=2000)
        return self._place / "tokenizer"

    def _words(self, stage: str) -> list[str]:
        tokenizer = self._tokenizer if stage in ("mixture", "to_megatron") else self._place
        words = words_of(stage, self._texts[FEW if stage == "clean" else MANY], tokenizer)
        return [*words, "--vocab-size", "400"] if stage == "train_tokenizer" else words

    def command(self, stage: str) -> str:
        """As a pipeline has it, without an output."""
        return shlex.join([f"data_prep.{stage}", *self._words(stage), "--shared", "--workers", "1"])

    def made_by_one(self, stage: str) -> dict[str, bytes]:
        """The files that one machine makes."""
        output = self._place / stage
        if not output.exists():
            words = [*self._words(stage), "--workers", "1", "--output", output]
            done = run_command(f"data_prep.{stage}", *words, log_dir=self._place / "logs" / stage)
            assert done.code == 0, done.stderr
        return _content(output)


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    return Stages(tmp_path_factory.mktemp("stages"))


class Stopped(NamedTuple):
    """A worker in its task."""

    process: int
    member: Path  # by which it is known to those who lead


class Crew:
    """A shared command while it runs on several nodes, whose workers are let run for a moment at a time, so that no task can pass unseen."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.place = output.parent / f".{output.name}.crew"
        self.processes: dict[str, int] = {}  # the command on each node, as this machine numbers them
        self.held: Stopped | None = None  # a worker of the node that leads, in its task
        self._killed: tuple[Path, float] | None = None  # one of another node, and until when that is to be known

    def leader(self) -> str | None:
        """The node whose process leads."""
        for lease in self.place.glob(".lease-*"):
            with suppress(OSError, ValueError):
                return str(json.loads(lease.read_text())["host"])
        return None

    def hosts(self) -> set[str]:
        """Nodes whose workers have come."""
        found = set()
        for path in self.place.glob("board-*/members/*"):
            with suppress(OSError, ValueError):
                found.add(json.loads(path.read_text())["host"])
        return found

    def hold(self) -> None:
        """Stop a worker of the node that leads in a task; until it has one the others get no further either."""
        if self.held is not None or (leader := self.leader()) is None:
            return
        workers = [(host, worker) for host, command in self.processes.items() for worker in _children(command)]
        for host, worker in workers:
            member = self._member_with_task(host, worker)
            if member is not None and host == leader and self.held is None:
                self.held = Stopped(worker, member)
        if self.held is not None:
            self._go_on([worker for _, worker in workers if worker != self.held.process])

    def kill_both(self) -> bool:
        """Kill a worker of another node, then of the one that leads, each in a task; whether that is done."""
        leader = self.leader()
        if self._killed is not None and self.held is not None:
            assert time.monotonic() < self._killed[1], (
                "its node does not say that a worker is gone; by its silence it would be known after 90 s"
            )
            if self._killed[0].exists():
                return False
            os.kill(self.held.process, signal.SIGKILL)
            return True
        self.hold()
        workers = [(host, worker) for host, command in self.processes.items() if host != leader for worker in _children(command)]
        for host, worker in workers:
            member = self._member_with_task(host, worker)
            if member is not None and self.held is not None and leader is not None:
                os.kill(worker, signal.SIGKILL)
                self._killed = member, time.monotonic() + 60
                break
        if self._killed is not None:
            self._go_on([worker for _, worker in workers])
        elif self.held is not None and not self._other_tasks():
            self._go_on([self.held.process])  # so that others get tasks again
            self.held = None
        return False

    def _member_with_task(self, host: str, worker: int) -> Path | None:
        """What a worker is known by if it has a task, in which it stays stopped."""
        with suppress(OSError):
            os.kill(worker, signal.SIGCONT)
            time.sleep(0.002)
            os.kill(worker, signal.SIGSTOP)
            number = next(line for line in Path(f"/proc/{worker}/status").read_text().splitlines() if line.startswith("NSpid")).split()[-1]
            for taken in self.place.glob(f"board-*/taken/*-{number}"):
                member = taken.parent.parent / "members" / taken.name.partition(".")[2]
                with suppress(OSError, ValueError):
                    if json.loads(member.read_text())["host"] == host:
                        return member
        return None

    def _other_tasks(self) -> bool:
        return any(self.place.glob("board-*/open/[0-9]*")) or len(list(self.place.glob("board-*/taken/*"))) > 1

    def _go_on(self, workers: list[int]) -> None:
        for worker in workers:
            with suppress(OSError):
                os.kill(worker, signal.SIGCONT)


def _children(process: int) -> list[int]:
    with suppress(OSError):
        return [int(number) for number in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return []


def _look_for_processes(crews: Sequence[Crew], *, then: signal.Signals | None = None) -> None:
    """Note where the commands run, until that is known of three nodes each.

    Args:
        then: is sent to each when it is first seen.
    """
    if all(len(crew.processes) == 3 for crew in crews):
        return
    of_output = {str(crew.output): crew for crew in crews}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if words[1:2] == ["-m"] and words[-1] in of_output and psutil.Process(process.ppid()).cmdline() != words:
                known, node = of_output[words[-1]].processes, process.environ()["SLURMD_NODENAME"]
                if then is not None and node not in known:
                    process.send_signal(then)
                known[node] = process.pid


def _pipeline(stages: Stages, names: tuple[str, ...], work_dir: Path) -> dict:
    """Stages that need nothing of each other, each on three nodes."""
    return {
        "name": "shared",
        "work_dir": str(work_dir),
        "resources": {"many": {"nodes": 3, "cpus": 1, "memory_gib": 4, "time_limit": "00:10:00"}},
        "stages": {name: {"command": stages.command(name), "output": name, "resources": "many"} for name in names},
    }


def _ended(slurm: RunningSlurm, jobs: dict[str, list[str]], work_dir: Path, stages: Stages) -> None:
    """Wait for the jobs of a pipeline and compare what they made."""
    for name, [job] in jobs.items():
        state = slurm.wait(int(job), timeout_seconds=240)
        [log] = [path.read_text() for path in (work_dir / "logs").glob(f"{name}-*")]
        assert state == "COMPLETED" and "tasks were done by" in log, log
        assert slurm.job(int(job))["NumNodes"] == "3"
        assert _content(work_dir / name) == stages.made_by_one(name), name


@pytest.mark.long
def test_a_stage_on_three_nodes_makes_the_bytes_of_one_machine(
    slurm: RunningSlurm, stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.use(monkeypatch)
    mapping = _pipeline(stages, ("dedup",), tmp_path / "work")
    alone = {**mapping["stages"]["dedup"], "command": mapping["stages"]["dedup"]["command"].replace("--shared", "")}
    with pytest.raises(ValueError, match="stage dedup gets 3 nodes, each of which would do all of it; add --shared"):
        pipeline_from_mapping(mapping | {"stages": {"dedup": alone}})
    _ended(slurm, submit_pipeline(pipeline_from_mapping(mapping), slurm.cluster(*CPU_NODES)), tmp_path / "work", stages)


@pytest.mark.long
def test_every_stage_loses_workers_of_both_kinds(
    slurm: RunningSlurm, stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On three nodes each; of the node that leads and of another one a worker is killed that has a task, which others do again."""
    slurm.use(monkeypatch)
    work_dir = tmp_path / "work"
    jobs = submit_pipeline(pipeline_from_mapping(_pipeline(stages, STAGES, work_dir)), slurm.cluster(*CPU_NODES))
    crews = [Crew(work_dir / name) for name in STAGES]
    left = list(crews)
    end, looked = time.monotonic() + 240, 0.0
    while left:
        assert time.monotonic() < end, f"not killed: {[crew.output.name for crew in left]}"
        if time.monotonic() > looked + 0.3:
            _look_for_processes(left)
            looked = time.monotonic()
        for crew in list(left):
            assert not crew.output.exists(), f"{crew.output.name}: too late to be a test"
            if crew.kill_both():
                left.remove(crew)
    _ended(slurm, jobs, work_dir, stages)


@pytest.mark.long
def test_every_stage_loses_the_node_that_leads(stages: Stages, tmp_path: Path) -> None:
    """Three jobs of an array for each; while a worker of it has a task, the node is switched off, and another one leads when it was silent for long."""
    with running_slurm(nodes=3 * len(STAGES)) as slurm:
        jobs = []
        commands = {name: stages.command(name) for name in STAGES}  # some train a tokenizer first
        for name, words in commands.items():
            command = f"{shlex.quote(sys.executable)} -m {words} --output {tmp_path / name}"
            options = ("--array=0-2", "--nodes=1", "--exclusive", "--partition=cpu", f"--account={ACCOUNT}")
            log = f"--output={tmp_path}/{name}_%a.log"
            jobs.append(slurm.submit(f"#!/bin/bash\ncd {ROOT}\n{command}\n", "--open-mode=append", "--requeue", *options, log))
        crews = {name: Crew(tmp_path / name) for name in STAGES}
        end = time.monotonic() + 300
        while not all(len(crew.processes) == 3 for crew in crews.values()):
            assert time.monotonic() < end, f"not started: {[name for name, crew in crews.items() if len(crew.processes) < 3]}"
            _look_for_processes(list(crews.values()), then=signal.SIGSTOP)
            time.sleep(0.1)
        for name, crew in crews.items():  # one after the other, or what is looked at last is done before it is
            for process in crew.processes.values():
                os.kill(process, signal.SIGCONT)
            while crew.held is None or len(crew.hosts()) < 3:
                assert time.monotonic() < end and not crew.output.exists(), f"{name}: not switched off"
                crew.hold()
            leader = crew.leader()
            assert leader is not None
            slurm.node("power-off", leader)
        for name, crew in crews.items():
            while crew.place.exists() or not crew.output.exists():
                assert time.monotonic() < end + 600, [path.read_text() for path in sorted(tmp_path.glob(f"{name}_*.log"))]
                time.sleep(0.2)
        for job in jobs:
            slurm.run("scancel", str(job), check=False)
    for name, crew in crews.items():
        logs = "".join(path.read_text() for path in tmp_path.glob(f"{name}_*.log"))
        assert "tasks were done by" in logs, logs
        assert _content(crew.output) == stages.made_by_one(name), name


@pytest.mark.long
def test_ray_on_three_nodes_loses_one_and_makes_the_bytes_of_one_machine(stages: Stages, tmp_path: Path) -> None:
    """As docs/data.md starts it; the node that is switched off is not the one that leads."""
    place = tempfile.mkdtemp(prefix="ray-")  # short: the paths of sockets are; each node mounts a disk of its own there
    words = [
        f"{shlex.quote(sys.executable)} -m {stages.command(stage).replace('--shared', '--ray')} --output {tmp_path / stage}"
        for stage in STAGES
    ]
    (tmp_path / "stages.sh").write_text("\n".join(["set -euo pipefail", *words]) + "\n")
    (tmp_path / "node.sh").write_text(
        f"""set -euo pipefail
ulimit -c 0
mount -t tmpfs ray {place}
exec ray symmetric-run --address "$1:6379" --min-nodes 3 --num-cpus 1 --disable-usage-stats --object-store-memory=100000000 \\
    -- bash {tmp_path}/stages.sh
"""
    )
    script = f"""#!/bin/bash
cd {ROOT}
export PATH={Path(sys.executable).parent}:"$PATH" RAY_TMPDIR={place} RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300 RAY_AUTH_MODE=token RAY_AUTH_TOKEN={secrets.token_hex(32)}
srun --no-kill --ntasks-per-node=1 unshare --mount bash {tmp_path}/node.sh "$(hostname)"
"""
    with running_slurm(nodes=3) as slurm:
        log = tmp_path / "log"
        job = slurm.submit(script, "--no-kill", "--nodes=3", "--exclusive", "--partition=cpu", f"--account={ACCOUNT}", f"--output={log}")
        end = time.monotonic() + 400
        later = tmp_path / f".{STAGES[2]}.unfinished"  # clean is done, and dedup is being worked on
        while not later.exists():
            assert time.monotonic() < end and slurm.job(job)["JobState"] in ("PENDING", "RUNNING"), log.read_text()
            time.sleep(0.05)
        assert slurm.job(job)["BatchHost"] == "gn01"
        slurm.node("power-off", "gn03")
        while not (tmp_path / STAGES[-1]).exists():
            assert time.monotonic() < end and slurm.job(job)["JobState"] == "RUNNING", log.read_text()
            time.sleep(0.2)
        slurm.run("scancel", str(job), check=False)
    shutil.rmtree(place, ignore_errors=True)
    for stage in STAGES:
        assert _content(tmp_path / stage) == stages.made_by_one(stage), stage
    assert log.read_text().count("tasks were done by") == len(STAGES), log.read_text()
