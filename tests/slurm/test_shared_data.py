"""Data commands shared by the nodes of a real Slurm: the bytes of one machine, also where a node is lost."""

from __future__ import annotations

import json
import random
import shlex
import sys
import time
from pathlib import Path

import pytest

from common.artifacts import check_files, read_manifest
from data_prep.dedup import dedup
from data_prep.deduplication.decisions import DocumentMethods
from data_prep.reading.corpora import Corpus
from slurm.stages.pipeline_file import pipeline_from_mapping
from slurm.stages.pipeline_submission import submit_pipeline
from tests.processes import ROOT
from tests.slurm.running_slurm import ACCOUNT, RunningSlurm, running_slurm


def _texts(directory: Path, *, files: int, documents: int) -> tuple[Path, ...]:
    """Files of documents that share lines."""
    generator = random.Random(0)
    stock = [" ".join(f"w{generator.randrange(5000)}" for _ in range(30)) for _ in range(files * documents)]
    paths = []
    for number in range(files):
        paths.append(directory / f"{number:02d}.jsonl")
        rows = [{"id": f"{number}-{i}", "text": "\n".join(generator.choices(stock, k=6))} for i in range(documents)]
        paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tuple(paths)


def _command(paths: tuple[Path, ...], output: Path) -> str:
    words = [sys.executable, "-m", "data_prep.dedup", "--input", *(f"c={path}" if path == paths[0] else path for path in paths)]
    return shlex.join(map(str, [*words, "--same-documents", "--shared", "--workers", 1, "--output", output]))


def _content(output: Path) -> dict[str, bytes]:
    manifest = read_manifest(output)
    assert manifest is not None
    check_files(output, manifest)
    return {name: (output / name).read_bytes() for name in manifest.files}


def _expected(paths: tuple[Path, ...], output: Path) -> dict[str, bytes]:
    dedup([Corpus("c", paths)], output, methods=DocumentMethods(same=True), passes=1)
    return _content(output)


def test_a_stage_on_three_nodes_makes_the_bytes_of_one_machine(
    slurm: RunningSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.use(monkeypatch)
    paths = _texts(tmp_path, files=6, documents=60)
    command = _command(paths, tmp_path).partition(" -m ")[2].rpartition(" --output")[0]
    mapping = {
        "name": "shared",
        "work_dir": str(tmp_path / "work"),
        "resources": {"many": {"nodes": 3, "cpus": 1, "memory_gib": 4, "time_limit": "00:10:00"}},
        "stages": {"unique": {"command": command, "output": "unique", "resources": "many"}},
    }
    with pytest.raises(ValueError, match="stage unique gets 3 nodes, each of which would do all of it; add --shared"):
        pipeline_from_mapping(mapping | {"stages": {"unique": {**mapping["stages"]["unique"], "command": command.replace("--shared", "")}}})  # type: ignore[index]
    cpu = ("cpu.name=cpu", "cpu.num_nodes=16", "cpu.cpus_per_node=32", "cpu.memory_gib=480", "cpu.time_limit=24:00:00")
    [[job]] = submit_pipeline(pipeline_from_mapping(mapping), slurm.cluster(*cpu)).values()
    state = slurm.wait(int(job), timeout_seconds=120)
    [log] = [path.read_text() for path in (tmp_path / "work/logs").glob("unique-*")]
    assert state == "COMPLETED" and "tasks were done by" in log, log
    assert slurm.job(int(job))["NumNodes"] == "3"
    assert _content(tmp_path / "work/unique") == _expected(paths, tmp_path / "one")


@pytest.mark.long
def test_a_node_that_is_lost_costs_its_part(tmp_path: Path) -> None:
    """Three jobs of an array, the node of the one that leads is switched off; the others wait for as long as a machine may be silent."""
    paths = _texts(tmp_path, files=16, documents=3000)
    script = f"#!/bin/bash\ncd {ROOT}\n{_command(paths, tmp_path / 'many')}\n"
    place = tmp_path / ".many.crew"
    with running_slurm(nodes=3) as slurm:
        options = ("--array=0-2", "--nodes=1", "--exclusive", "--partition=cpu", f"--account={ACCOUNT}", f"--output={tmp_path}/log_%a")
        job = slurm.submit(script, "--open-mode=append", "--requeue", *options)
        end = time.monotonic() + 120
        while not (boards := list(place.glob("board-*"))) or len(list((boards[0] / "members").iterdir())) < 3:
            assert time.monotonic() < end, "not all three came"
            time.sleep(0.05)
        [lease] = place.glob(".lease-*")
        leader = json.loads(lease.read_text())["host"]
        slurm.node("power-off", leader)
        assert not (tmp_path / "many").exists(), "too late to be a test"
        while place.exists() or not (tmp_path / "many").exists():
            assert time.monotonic() < end + 600, [(tmp_path / f"log_{n}").read_text() for n in range(3)]
            time.sleep(0.2)
        slurm.run("scancel", str(job), check=False)
    logs = "".join((tmp_path / f"log_{n}").read_text() for n in range(3) if (tmp_path / f"log_{n}").exists())
    assert "tasks were done by" in logs, logs
    assert _content(tmp_path / "many") == _expected(paths, tmp_path / "one")
