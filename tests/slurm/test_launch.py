"""Jobs on a real Slurm: every rank knows its place."""

from __future__ import annotations

import json
from pathlib import Path

from slurm.job import Job
from slurm.render import render_job
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
