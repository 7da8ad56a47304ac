"""Jobs on a real Slurm: every rank knows its place."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slurm.cluster import Runtime
from slurm.job import Job
from slurm.render import render_job
from tests.processes import ROOT
from tests.slurm.running_slurm import RunningSlurm

LIGHT_RANKS = Path(__file__).with_name("light_rank.py")


def test_every_rank_of_16_nodes_knows_its_place_and_sums_over_all(slurm: RunningSlurm, tmp_path: Path) -> None:
    job = Job(
        name="places",
        command=("python", "-S", str(LIGHT_RANKS), str(tmp_path)),
        time_limit_seconds=120,
        log_dir=tmp_path,
        log_name="log",
        num_nodes=16,
        tasks_per_node=4,
        gpus_per_task=1,
    )
    job_id = slurm.submit(render_job(job, slurm.cluster()))
    assert slurm.wait(job_id, timeout_seconds=90) == "COMPLETED", (tmp_path / "log").read_text()
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
    """Paths with spaces, quotes and letters; the real program is at no hand here."""
    home = tmp_path / "a 'b\" č$x"
    stand_in, image, data = home / "bin" / kind, home / "images" / "nemo.sif", home / "data"
    for directory in (stand_in.parent, image.parent, data):
        directory.mkdir(parents=True)
    stand_in.write_text(APPTAINER)
    stand_in.chmod(0o755)
    image.touch()
    job = Job(
        name="container",
        command=("python", "-S", str(LIGHT_RANKS), str(data)),
        time_limit_seconds=120,
        log_dir=home,
        log_name="log",
        num_nodes=2,
        tasks_per_node=2,
        gpus_per_task=1,
        environment={"IMAGE": str(image), "BINDS": str(tmp_path / "binds"), "PATH": f"{stand_in.parent}:{sys.prefix}/bin:/usr/bin:/bin"},
        paths=(data,),
    )
    cluster = replace(slurm.cluster(), runtime=Runtime(kind, image=str(image)))
    job_id = slurm.submit(render_job(job, cluster))
    assert slurm.wait(job_id, timeout_seconds=60) == "COMPLETED", (home / "log").read_text()
    assert [json.loads(path.read_text())["sum"] for path in sorted(data.glob("rank_*.json"))] == [6] * 4
    assert set((tmp_path / "binds").read_text().splitlines()) == {str(ROOT), str(data)}


def test_modules_are_loaded_and_nothing_can_be_downloaded(slurm: RunningSlurm, tmp_path: Path) -> None:
    show = "import json, os, sys; json.dump([sys.prefix, dict(os.environ)], open(sys.argv[1], 'w'))"
    job = Job(
        name="modules", command=("python", "-c", show, str(tmp_path / "shown")), time_limit_seconds=60, log_dir=tmp_path, log_name="log"
    )
    cluster = replace(slurm.cluster(), runtime=Runtime("modules", modules=("python/3.11", "cuda"), venv=sys.prefix), scratch=str(tmp_path))
    # As sites define it: a function, known to every shell, that reads variables that are not set.
    (tmp_path / "site.sh").write_text(f"module() {{ echo \"$* $UNSET\" >>'{tmp_path}/modules'; }}\n")
    loud = replace(slurm, environment={**slurm.environment, "BASH_ENV": str(tmp_path / "site.sh")})
    assert slurm.wait(loud.submit(render_job(job, cluster)), timeout_seconds=60) == "COMPLETED", (tmp_path / "log").read_text()
    assert (tmp_path / "modules").read_text().splitlines() == ["purge ", "load python/3.11 cuda "]
    prefix, environment = json.loads((tmp_path / "shown").read_text())
    assert prefix == sys.prefix
    offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "PIP_NO_INDEX")
    assert [environment[name] for name in offline] == ["1"] * 4
    assert environment["HF_HOME"] == f"{tmp_path}/scion_cache/huggingface"
    assert environment["WANDB_MODE"] == "offline"
