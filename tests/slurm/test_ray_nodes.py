"""A stage of a pipeline over two nodes of a real Slurm: what is killed costs its task, and the bytes are those of one machine."""

from __future__ import annotations

import os
import shlex
import signal
import time
from pathlib import Path

import psutil
import pytest

from recipes.pipelines.file import pipeline_from_mapping
from recipes.pipelines.work import find_work
from slurm.stages.pipeline_submission import submit_pipeline
from tests.data_prep.sharing import held_stage
from tests.slurm.running_slurm import running_slurm

CPU_NODES = ("cpu.name=cpu", "cpu.num_nodes=16", "cpu.cpus_per_node=32", "cpu.memory_gib=480", "cpu.time_limit=24:00:00")


def _kill_worker(node: str) -> None:
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] and process.info["cmdline"][0].startswith("ray::_do") and process.environ()["SLURMD_NODENAME"] == node:
            os.kill(process.pid, signal.SIGKILL)
            return
    raise AssertionError(f"{node} has no worker with a task")


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param("worker", marks=pytest.mark.slow),
        pytest.param("node", marks=pytest.mark.long),
        pytest.param("first node", marks=pytest.mark.long),
    ],
)
def test_what_is_lost_costs_its_task(victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diary, output = tmp_path / "diary", tmp_path / "work/held"
    (tmp_path / "one").mkdir()
    (tmp_path / "one/go").touch()
    assert held_stage.main([str(tmp_path / "one/diary"), "held", "--output", str(tmp_path / "one/out")]) == 0
    mapping = {
        "name": "shared",
        "work_dir": str(tmp_path / "work"),
        "resources": {"two": {"nodes": 2, "cpus": 1, "memory_gib": 4, "time_limit": "00:10:00"}},
        "stages": {
            "held": {
                "command": f"tests.data_prep.sharing.held_stage {shlex.quote(str(diary))} held --ray",
                "output": "held",
                "resources": "two",
            },
        },
    }
    with running_slurm(nodes=3) as slurm:
        slurm.use(monkeypatch)
        jobs = submit_pipeline(find_work(pipeline_from_mapping(mapping)), slurm.cluster(*CPU_NODES))
        job, log = int(jobs["held"][0]), tmp_path / f"work/logs/held-{jobs['held'][0]}.log"
        end = time.monotonic() + 240

        def hosts() -> set[str]:
            return {line.split()[3] for line in diary.read_text().splitlines()} if diary.exists() else set()

        while hosts() != {"gn01", "gn02"}:
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        if victim == "worker":
            _kill_worker("gn02")
        else:
            slurm.node("power-off", "gn02" if victim == "node" else "gn01")
        (tmp_path / "go").touch()
        while (state := slurm.wait(job)) == "NODE_FAIL":  # until it is queued again
            time.sleep(1)
        assert state == "COMPLETED", log.read_text()
    assert (output / "done").read_bytes() == (tmp_path / "one/out/done").read_bytes()
    assert len(diary.read_text().splitlines()) <= (24 if victim == "first node" else 14), "what was lost was done again, no more"
