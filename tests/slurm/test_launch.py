"""Jobs on a real Slurm: every rank knows its place."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from slurm.fetching.environment import pack_environment
from slurm.jobs.job import Job
from slurm.jobs.render import render_job
from slurm.sites.cluster import Runtime
from slurm.sites.site import require_runtime
from tests.processes import ROOT
from tests.slurm.running_slurm import RunningSlurm, running_slurm

LIGHT_RANKS = Path(__file__).with_name("light_rank.py")


def _light_job(log_dir: Path, output: Path, *, num_nodes: int, tasks_per_node: int) -> Job:
    """A task per GPU that says where it is, and takes part in a sum over all."""
    return Job(
        name="places",
        command=("python", "-S", str(LIGHT_RANKS), str(output)),
        time_limit_seconds=120,
        log_dir=log_dir,
        log_name="log",
        num_nodes=num_nodes,
        tasks_per_node=tasks_per_node,
        gpus_per_task=1,
        paths=(output,),
    )


def _sums(output: Path) -> list[int]:
    return [json.loads(path.read_text())["sum"] for path in sorted(output.glob("rank_*.json"))]


def test_every_rank_of_16_nodes_knows_its_place_and_sums_over_all(slurm: RunningSlurm, tmp_path: Path) -> None:
    job = _light_job(tmp_path, tmp_path, num_nodes=16, tasks_per_node=4)
    job_id = slurm.submit(render_job(job, slurm.cluster()))
    assert slurm.wait(job_id) == "COMPLETED", (tmp_path / "log").read_text()
    places = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("rank_*.json"))]
    assert [place["rank"] for place in places] == list(range(64))
    for rank, place in enumerate(places):
        assert place == {
            "rank": rank,
            "local_rank": rank % 4,
            "world_size": 64,
            "node": f"gn{rank // 4 + 1:02d}",
            "host": f"gn{rank // 4 + 1:02d}",
            "gpus": "0,1,2,3",
            "master": "gn01",
            "port": str(20000 + job_id % 10000),
            "sum": 64 * 63 // 2,
        }


APPTAINER = """#!/bin/bash
# A stand-in: it checks what the real one would refuse, says what it was given, and runs the command on the node.
set -eu
[ "$1" = exec ] || exit 64
shift
while [ "$1" != "$IMAGE" ]; do
    case "$1" in
        --nv) shift ;;
        --bind) [ -e "$2" ] || { echo "no $2" >&2; exit 65; }; echo "$2" >>"$BINDS"; shift 2 ;;
        --pwd) cd -- "$2"; shift 2 ;;
        *) exit 66 ;;
    esac
done
[ -f "$IMAGE" ] || exit 67
shift
exec "$@"
"""


@pytest.mark.parametrize("kind", ["apptainer", "singularity"])
def test_a_container_sees_what_it_needs_and_the_ranks(kind: str, slurm: RunningSlurm, tmp_path: Path) -> None:
    """Paths with spaces, quotes and letters, also where the real program is not installed (`test_apptainer.py` is for where it is)."""
    home = tmp_path / "a 'b\" č$x"
    stand_in, image, data = home / "bin" / kind, home / "images" / "nemo.sif", home / "data"
    for directory in (stand_in.parent, image.parent, data):
        directory.mkdir(parents=True)
    stand_in.write_text(APPTAINER)
    stand_in.chmod(0o755)
    image.touch()
    job = replace(
        _light_job(home, data, num_nodes=2, tasks_per_node=2),
        environment={"IMAGE": str(image), "BINDS": str(tmp_path / "binds"), "PATH": f"{stand_in.parent}:{sys.prefix}/bin:/usr/bin:/bin"},
    )
    cluster = replace(slurm.cluster(), runtime=Runtime(kind, image=str(image)))
    job_id = slurm.submit(render_job(job, cluster))
    assert slurm.wait(job_id) == "COMPLETED", (home / "log").read_text()
    assert _sums(data) == [6] * 4
    assert set((tmp_path / "binds").read_text().splitlines()) == {str(ROOT), str(data)}


def test_pyxis_takes_the_options(tmp_path: Path) -> None:
    """A plugin that stands in for pyxis: srun takes the options, and the task, which runs on the host, sees them."""
    if not Path("/usr/include/slurm/spank.h").exists() or shutil.which("gcc") is None:
        pytest.skip("the plugin cannot be compiled: apt-get install gcc libc6-dev libslurm-dev")
    output = tmp_path / "a 'b\" č$x"
    output.mkdir()
    with running_slurm(nodes=2, options=["--pyxis-stub"], accounting=False) as slurm:
        job = _light_job(tmp_path, output, num_nodes=2, tasks_per_node=2)
        job = replace(job, environment={"PATH": f"{sys.prefix}/bin:/usr/bin:/bin"})
        cluster = replace(slurm.cluster(), runtime=Runtime("pyxis", image="nvcr.io#nvidia/nemo:25.11"))
        job_id = slurm.submit(render_job(job, cluster))
        assert slurm.wait(job_id) == "COMPLETED", (tmp_path / "log").read_text()
        assert _sums(output) == [6] * 4
        shown = replace(
            job, command=("python", "-c", "import os; print(os.environ['PYXIS_STUB_CONTAINER_MOUNTS'])"), num_nodes=1, log_name="shown"
        )
        assert slurm.wait(slurm.submit(render_job(replace(shown, tasks_per_node=1), cluster))) == "COMPLETED"
    assert (tmp_path / "shown").read_text() == f"{ROOT}:{ROOT},{output}:{output}\n"


def test_modules_are_loaded_and_nothing_can_be_downloaded(slurm: RunningSlurm, tmp_path: Path) -> None:
    show = "import json, os, sys; json.dump([sys.prefix, dict(os.environ)], open(sys.argv[1], 'w'))"
    job = Job(
        name="modules", command=("python", "-c", show, str(tmp_path / "shown")), time_limit_seconds=60, log_dir=tmp_path, log_name="log"
    )
    cluster = replace(
        slurm.cluster(),
        runtime=Runtime("modules", modules=("python/3.11", "cuda"), module_paths=("/site/modules",), venv=sys.prefix),
        scratch=str(tmp_path),
    )
    # As sites define it: a function, known to every shell, that reads variables that are not set.
    (tmp_path / "site.sh").write_text(f"module() {{ echo \"$* $UNSET\" >>'{tmp_path}/modules'; }}\n")
    loud = replace(slurm, environment={**slurm.environment, "BASH_ENV": str(tmp_path / "site.sh")})
    assert slurm.wait(loud.submit(render_job(job, cluster))) == "COMPLETED", (tmp_path / "log").read_text()
    assert (tmp_path / "modules").read_text().splitlines() == ["purge ", "use /site/modules ", "load python/3.11 cuda "]
    prefix, environment = json.loads((tmp_path / "shown").read_text())
    assert prefix == sys.prefix
    offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "PIP_NO_INDEX")
    assert [environment[name] for name in offline] == ["1"] * 4
    assert environment["HF_HOME"] == f"{tmp_path}/scion_cache/huggingface"
    assert environment["WANDB_MODE"] == "offline"


def test_ranks_get_their_own_cards_and_an_address_that_nodes_can_use(slurm: RunningSlurm, tmp_path: Path) -> None:
    show = 'echo "rank $RANK: $UCX_NET_DEVICES $MASTER_ADDR"'
    cards = tuple(f"mlx5_{number}:1" for number in range(4))
    cluster = replace(slurm.cluster(), rank_environment={"UCX_NET_DEVICES": cards}, step_options=("--mpi=none",), address_ipv4=True)
    job = replace(_light_job(tmp_path, tmp_path, num_nodes=2, tasks_per_node=4), command=("bash", "-c", show))
    assert slurm.wait(slurm.submit(render_job(job, cluster))) == "COMPLETED", (tmp_path / "log").read_text()
    lines = sorted((tmp_path / "log").read_text().splitlines())
    address = lines[0].split()[-1]
    assert re.fullmatch(r"\d+\.\d+\.\d+\.\d+", address)
    assert lines == [f"rank {rank}: {cards[rank % 4]} {address}" for rank in range(8)]
    elsewhere = replace(job, log_name="elsewhere", num_nodes=1)
    job_id = slurm.submit(render_job(elsewhere, replace(cluster, address_suffix="i")))
    assert slurm.wait(job_id) == "FAILED"
    assert (tmp_path / "elsewhere").read_text() == (
        "error: gn01i has no IPv4 address; see address_suffix and address_ipv4 in the cluster file\n"
    )


def test_every_node_unpacks_the_environment_once_and_removes_it(slurm: RunningSlurm, tmp_path: Path) -> None:
    """Nodes of these tests share a disk, so that what each has unpacked can be looked at."""
    venv, nodes = tmp_path / "venv", tmp_path / "a node's"
    nodes.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    [packages] = venv.glob("lib/python*/site-packages")
    (packages / "only_here.py").write_text("VALUE = 7\n")
    runtime = Runtime("venv", venv=str(venv), node_dir=str(nodes))
    cluster = replace(slurm.cluster(), runtime=runtime, scratch=str(tmp_path))
    with pytest.raises(ValueError, match=r"environment.tar does not exist, which runtime.node_dir needs; make it with .* --environment"):
        require_runtime(cluster)
    pack_environment(venv, cluster.packed_environment)
    require_runtime(cluster)
    for left in ("scion_environment.4000000.gn01", "scion_environment.4000001.gn02.partial"):  # of jobs that have ended
        (nodes / left).mkdir()
    show = (
        "import json, only_here, os, sys; json.dump([sys.prefix, only_here.__file__], open(f'{sys.argv[1]}/{os.environ[\"RANK\"]}', 'w'))"
    )
    job = replace(_light_job(tmp_path, tmp_path, num_nodes=2, tasks_per_node=2), command=("python", "-c", show, str(tmp_path)))
    job_id = slurm.submit(render_job(job, cluster))
    assert slurm.wait(job_id) == "COMPLETED", (tmp_path / "log").read_text()
    for rank in range(4):
        own = f"{nodes}/scion_environment.{job_id}.gn0{rank // 2 + 1}"
        assert json.loads((tmp_path / str(rank)).read_text()) == [own, f"{own}/{packages.relative_to(venv)}/only_here.py"]
    assert list(nodes.iterdir()) == []

    (packages / "new.py").touch()
    os.utime(packages, (time.time() + 5,) * 2)
    with pytest.raises(ValueError, match=f"environment.tar is older than the packages in {venv}; make it with"):
        require_runtime(cluster)
    cluster.packed_environment.write_bytes(b"no tar")
    job_id = slurm.submit(render_job(replace(job, log_name="damaged"), cluster))
    assert slurm.wait(job_id) == "FAILED"
    assert f"error: gn02 could not unpack {cluster.packed_environment} to {nodes}/scion_environment.{job_id}.gn02; make room there" in (
        (tmp_path / "damaged").read_text()
    )
    assert list(nodes.iterdir()) == []


@pytest.mark.parametrize("name", ["a 'b\" č$(id)`x` #y;|&", "100%j 漢字 *?~", "--nodes=9"])
def test_names_and_log_directories_reach_slurm_as_they_are(name: str, slurm: RunningSlurm, tmp_path: Path) -> None:
    log_dir = tmp_path / name
    log_dir.mkdir()
    show = ("python", "-S", "-c", "import os; print(os.environ['SLURM_JOB_NAME'], os.environ['SLURM_NNODES'])")
    job = Job(name=name, command=show, time_limit_seconds=60, log_dir=log_dir, log_name="%j.log")
    job_id = slurm.submit(render_job(job, slurm.cluster()))
    assert slurm.wait(job_id) == "COMPLETED"
    assert (log_dir / f"{job_id}.log").read_text() == f"{name} 1\n"
