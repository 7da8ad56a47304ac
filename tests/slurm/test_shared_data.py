"""Data commands shared by the nodes of a real Slurm: the bytes of one machine, also where a node is lost."""

from __future__ import annotations

import json
import random
import shlex
import sys
import time
from pathlib import Path

import pytest

from data_prep.artifacts import check_files, read_manifest
from data_prep.dedup import dedup
from data_prep.deduplication.decisions import DocumentMethods
from data_prep.reading.corpora import Corpus
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


def test_nodes_of_one_job_make_the_bytes_of_one_machine(slurm: RunningSlurm, tmp_path: Path) -> None:
    paths = _texts(tmp_path, files=6, documents=60)
    script = f"#!/bin/bash\ncd {ROOT}\nsrun --ntasks-per-node=1 {_command(paths, tmp_path / 'many')}\n"
    job = slurm.submit(script, "--nodes=3", "--ntasks-per-node=1", "--partition=cpu", f"--account={ACCOUNT}", f"--output={tmp_path}/log")
    state = slurm.wait(job, timeout_seconds=120)
    log = (tmp_path / "log").read_text()
    assert state == "COMPLETED" and "tasks were done by" in log, log
    assert _content(tmp_path / "many") == _expected(paths, tmp_path / "one")


@pytest.mark.slow
def test_a_node_that_is_lost_costs_its_part(tmp_path: Path) -> None:
    """Three jobs of an array, the node of the one that leads is switched off; the others wait for as long as a machine may be silent."""
    paths = _texts(tmp_path, files=24, documents=4000)
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
        while not (tmp_path / "many").exists():
            assert time.monotonic() < end + 300, [(tmp_path / f"log_{n}").read_text() for n in range(3)]
            time.sleep(0.2)
        slurm.run("scancel", str(job), check=False)
    logs = "".join((tmp_path / f"log_{n}").read_text() for n in range(3) if (tmp_path / f"log_{n}").exists())
    assert "tasks were done by" in logs, logs
    assert _content(tmp_path / "many") == _expected(paths, tmp_path / "one")
