"""The real Apptainer on a real Slurm: ranks, odd paths, and the signal that a chain lives on; skipped where it is not installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slurm.chains import causes
from slurm.chains.chain import ChainPlan
from slurm.jobs.queue import signal_steps
from slurm.jobs.render import render_job
from slurm.sites.cluster import Cluster, Runtime
from tests.slurm.chains import light_chain, light_job
from tests.slurm.running_slurm import RunningSlurm
from tests.slurm.test_launch import LIGHT_RANKS

EMPTY = ("usr", "lib", "lib64", "bin", "etc", "proc", "sys", "dev", "tmp", "root", "home", "var/tmp")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image with nothing in it but places: the Python in it is that of the machine, bound by the site."""
    if shutil.which("apptainer") is None or shutil.which("mksquashfs") is None:
        pytest.skip("apptainer and mksquashfs are not installed")
    root = tmp_path_factory.mktemp("image") / "root"
    for name in (*EMPTY, *(str(Path(prefix)).lstrip("/") for prefix in (sys.prefix, sys.base_prefix))):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("passwd", "group", "hosts", "resolv.conf", "localtime"):
        (root / "etc" / name).touch()
    subprocess.run(["mksquashfs", root, root.with_name("image.sif"), "-quiet", "-no-progress"], check=True, capture_output=True)
    return root.with_name("image.sif")


@pytest.fixture
def containers(slurm: RunningSlurm, image: Path) -> Cluster:
    site = {
        "APPTAINER_BIND": ",".join(["/usr", "/lib", "/lib64", "/bin", sys.prefix, sys.base_prefix]),
        "APPTAINERENV_PREPEND_PATH": f"{sys.prefix}/bin",
        "APPTAINER_USERNS": "1",  # as everywhere where it is not installed with root's rights
    }
    return replace(slurm.cluster(), runtime=Runtime("apptainer", image=str(image)), environment=site)


def test_ranks_in_containers_write_to_odd_paths(slurm: RunningSlurm, containers: Cluster, tmp_path: Path) -> None:
    output = tmp_path / "a 'b\" č$x #%"
    output.mkdir()
    inside = "import os, runpy, sys; assert os.environ['APPTAINER_CONTAINER']; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])"
    job = replace(
        light_job(tmp_path / "run"), command=("python", "-S", "-c", inside, str(LIGHT_RANKS), str(output)), num_nodes=2, paths=(output,)
    )
    job_id = slurm.submit(render_job(replace(job, log_name="log"), containers))
    assert slurm.wait(job_id) == "COMPLETED", (tmp_path / "log").read_text()
    places = [json.loads(path.read_text()) for path in sorted(output.glob("rank_*.json"))]
    assert [(place["rank"], place["node"], place["sum"]) for place in places] == [
        (0, "gn01", 6),
        (1, "gn01", 6),
        (2, "gn02", 6),
        (3, "gn02", 6),
    ]


def test_the_signal_reaches_a_training_in_a_container(slurm: RunningSlurm, containers: Cluster, tmp_path: Path) -> None:
    with light_chain(slurm, tmp_path / "run") as chain:
        first, *_ = chain.submit("--steps", 60, "--every", 1000, plan=ChainPlan(links=2), cluster=containers)
        chain.wait_for_step(12)
        signal_steps(first, "USR1")
        chain.wait_for_end()
        assert chain.causes() == [causes.SIGNALLED, causes.FINISHED], chain.logs()
        assert chain.attempts()[1].start_step >= 12
        chain.check_losses(60)
