"""The doctor: every kind of trouble is found and named, on facts of nodes and on a real Slurm."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recipes.rehearsal.prediction import FirstStep, keep_rehearsal, record_first_step
from slurm.checks.findings import GIB, NOT_APPLICABLE, OK, PROBLEM, Finding, first_step_finding, judge
from slurm.checks.node_facts import NodeFacts, apex_kind, infiniband_ports, parse_rocm
from slurm.doctor import checkup_job, login_findings
from slurm.sites.cluster import load_cluster
from tests.processes import ROOT
from tests.slurm.running_slurm import ACCOUNT, RunningSlurm

VEGA = load_cluster("vega", ("account=b25",), environment={"HOME": "/home/ana"})
NODE = NodeFacts(
    node="gn01",
    python="3.11.9",
    executable="/usr/bin/python",
    packages={"torch": "2.9.0", "nemo-toolkit": "2.7.3", "megatron-core": "0.15.3"},
    apex="nvidia",
    torch_cuda="12.8",
    gpus=(("NVIDIA A100-SXM4-40GB", "535.183.01", 40960),) * 4,
    torch_gpus=4,
    infiniband={"mlx5_0/1": "4: ACTIVE", "mlx5_1/1": "4: ACTIVE"},
    interfaces=("eth0", "ib0", "lo"),
    free_bytes={"/home/ana/scratch": 500 * GIB, "/dev/shm": 200 * GIB},
    reads_token=True,
    clock=1000.0,
)
REDUCE = {"backend": "nccl", "mib": 512, "tasks": 8, "is_right": True, "bytes_per_second": 20e9}


def _judge(second: NodeFacts, reduce: dict[str, Any] | None = REDUCE) -> dict[str, Finding]:
    found = judge(VEGA, [NODE, replace(second, node="gn02")], reduce, expected_nodes=2)
    return {finding.check: finding for finding in found}


def test_sound_nodes_have_no_problem() -> None:
    assert {finding.state for finding in _judge(NODE).values()} == {OK}


@pytest.mark.parametrize(
    ("change", "check", "found"),
    [
        ({"python": "3.9.18"}, "python", "3.11.9 on gn01; 3.9.18 on gn02"),
        (
            {"packages": {"torch": "2.9.0"}},
            "packages",
            "torch 2.9.0, nemo-toolkit 2.7.3, megatron-core 0.15.3 on gn01; torch 2.9.0 on gn02",
        ),
        ({"apex": "foreign"}, "apex", "not NVIDIA's on gn02"),
        ({"gpus": NODE.gpus[:3]}, "gpus", "gn02 has 3; the cluster file says 4"),
        ({"torch_gpus": 0}, "gpus", "torch does not see all GPUs on gn02"),
        ({"gpus": (("A100", "470.82.01", 40960),) * 4}, "driver", "470.82.01 on gn02; the image's CUDA 12.8 needs 525.60.13"),
        ({"gpus": (("A100", "550.1", 40960),) * 4}, "driver", "535.183.01 on gn01; 550.1 on gn02"),
        ({"fabric": {"NCCL_IB_DISABLE": "1"}}, "fabric", "NCCL_IB_DISABLE=1 on gn02, which has InfiniBand"),
        (
            {"fabric": {"NCCL_NET": "IB"}, "infiniband": {"mlx5_0/1": "1: DOWN"}},
            "fabric",
            "NCCL_NET=IB, but gn02 has no active InfiniBand port",
        ),
        ({"fabric": {"NCCL_SOCKET_IFNAME": "hsn"}}, "fabric", "NCCL_SOCKET_IFNAME=hsn, but gn02 has eth0, ib0, lo"),
        ({"infiniband": {"mlx5_0/1": "4: ACTIVE"}}, "fabric", "2 active ports on gn01; 1 active ports on gn02"),
        ({"clock": 997.5}, "clock", "gn01 is +0.0 s off"),
        ({"free_bytes": {"/dev/shm": GIB // 16}}, "free space", "/dev/shm on gn02 has 0.1 GiB, expected 1"),
        ({"reads_token": False}, "shared directory", "gn02 cannot see a file written on the login node"),
    ],
)
def test_each_trouble_is_found(change: dict[str, Any], check: str, found: str) -> None:
    findings = _judge(replace(NODE, **change))
    problems = {finding.check for finding in findings.values() if finding.state == PROBLEM}
    assert problems == {check}
    assert findings[check].advice
    if check == "clock":  # of two clocks either may be wrong
        assert "-2.5 s off" in findings[check].found
    else:
        assert findings[check].found == found


@pytest.mark.parametrize(
    ("reduce", "found"),
    [
        (None, "did not finish"),
        ({**REDUCE, "is_right": False}, "gave a wrong sum; 20.00 GB/s over 8 tasks of 2 nodes (nccl, 512 MiB)"),
        ({**REDUCE, "bytes_per_second": 1.2e9}, "1.20 GB/s over 8 tasks of 2 nodes (nccl, 512 MiB); at least 12 is usual"),
    ],
)
def test_a_network_that_fails_or_is_slow_is_found(reduce: dict[str, Any] | None, found: str) -> None:
    finding = _judge(NODE, reduce)["all-reduce"]
    assert (finding.state, finding.found) == (PROBLEM, found)


@pytest.mark.parametrize(("torch", "state"), [("2.7.1", PROBLEM), ("2.8.0a0+5228986", OK), ("2.10.0a0+b4e4ee8", OK), ("2.14.0", PROBLEM)])
def test_the_versions_of_torch_that_were_tried_are_known(torch: str, state: str) -> None:
    node = replace(NODE, packages={**NODE.packages, "torch": torch})
    [found] = [finding for finding in judge(VEGA, [node], REDUCE, expected_nodes=1) if finding.check == "packages"]
    assert found.state == state


def test_a_node_that_did_not_answer_is_found() -> None:
    [answered, *_] = judge(VEGA, [NODE], REDUCE, expected_nodes=2)
    assert (answered.state, answered.found) == (PROBLEM, "1 of 2 answered: gn01")
    assert [finding.check for finding in judge(VEGA, [], None, expected_nodes=2)] == ["nodes"]


def test_without_gpus_their_checks_do_not_apply() -> None:
    cluster = load_cluster("local")
    found = judge(cluster, [replace(NODE, gpus=(), torch_gpus=0, torch_cuda=None, infiniband={})], None, expected_nodes=1)
    assert [finding.check for finding in found if finding.state == NOT_APPLICABLE] == ["gpus", "driver", "fabric", "clock"]


def test_nodes_of_amd_on_slingshot() -> None:
    """What rocm-smi says is read, NeMo's packages are not asked for, and the image's Python 3.12 is none to complain about."""
    card = {"Card Series": "AMD Instinct MI250X", "VRAM Total Memory (B)": str(64 * GIB)}
    said = parse_rocm(json.dumps({f"card{number}": card for number in range(8)} | {"system": {"Driver version": "6.3.6"}}))
    assert said == [("AMD Instinct MI250X", "6.3.6", 65536)] * 8
    assert parse_rocm("") == parse_rocm("ROCm is not here") == []
    lumi = load_cluster("lumi", ("account=b25",), environment={"HOME": "/home/ana"})
    hsn = tuple(f"hsn{number}" for number in range(4))
    node = replace(NODE, python="3.12.3", packages={"torch": "2.10.0"}, gpus=tuple(said), torch_gpus=8, torch_cuda=None, torch_rocm="7.0")
    node = replace(node, infiniband={}, interfaces=hsn, fabric={"NCCL_SOCKET_IFNAME": "hsn0,hsn1,hsn2,hsn3"})
    reduce = {**REDUCE, "tasks": 16, "bytes_per_second": 80e9}
    found = {finding.check: finding for finding in judge(lumi, [node, replace(node, node="gn02")], reduce, expected_nodes=2)}
    assert {finding.check for finding in found.values() if finding.state == PROBLEM} == set()
    assert found["gpus"].found == "8 x AMD Instinct MI250X on each node"
    assert found["driver"].found == "6.3.6 with ROCm 7.0"
    assert found["fabric"].found == "Slingshot, 4 cards on each node"
    assert found["packages"].state == NOT_APPLICABLE and "torch 2.10.0: lumi has AMD's MI250X-64GB" in found["packages"].found
    fewer = judge(lumi, [node, replace(node, node="gn02", interfaces=hsn[:3])], reduce, expected_nodes=2)
    [fabric] = [finding for finding in fewer if finding.check == "fabric"]
    assert (fabric.state, fabric.found) == (PROBLEM, "4 cards on gn01; 3 cards on gn02")
    assert [one.check for one in login_findings(lumi, checkup_job(lumi, Path("/o"), num_nodes=2, time_limit_seconds=600))][-1] == "training"


def test_the_other_apex_is_told_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert apex_kind() == "absent"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "apex" / "optimizers").mkdir(parents=True)
    (tmp_path / "apex" / "__init__.py").write_text("raise ImportError('looked at, not imported')")
    assert apex_kind() == "foreign"
    (tmp_path / "apex" / "optimizers" / "fused_adam.py").touch()
    assert apex_kind() == "nvidia"


def test_ports_of_infiniband_are_read(tmp_path: Path) -> None:
    state = tmp_path / "mlx5_0" / "ports" / "1" / "state"
    state.parent.mkdir(parents=True)
    state.write_text("4: ACTIVE\n")
    assert infiniband_ports(tmp_path) == {"mlx5_0/1": "4: ACTIVE"}


def test_the_first_step_of_a_run_is_compared_with_its_rehearsal(tmp_path: Path) -> None:
    assert first_step_finding(tmp_path).state == NOT_APPLICABLE
    assert "has no rehearsal" in first_step_finding(tmp_path).found
    keep_rehearsal(tmp_path, {"ranks": []})
    assert "has not finished a first step on GPUs" in first_step_finding(tmp_path).found
    record_first_step(tmp_path, FirstStep(0, 20.0, 20.5, 39.4, "without apex"))
    assert first_step_finding(tmp_path) == Finding(
        "first step", OK, "rank 0 has used 20.50 GiB in the first step; its rehearsal counted 20.00 (+2.5%)"
    )
    record_first_step(tmp_path, FirstStep(3, 20.0, 25.0, 39.4, "without apex"))
    finding = first_step_finding(tmp_path)
    assert (finding.state, finding.advice) == (PROBLEM, "more than 5% above; 11.9 of 39.4 GiB are left beside CUDA and NCCL")
    with pytest.raises(ValueError, match=r"is not a directory of a run; give that of `slurm.submit --output`"):
        first_step_finding(tmp_path / "nowhere")


def test_a_real_cluster_is_checked(slurm: RunningSlurm, tmp_path: Path) -> None:
    cluster = [
        "--cluster",
        "local",
        "--account",
        ACCOUNT,
        "--set",
        f"runtime.venv={sys.prefix}",
        "--set",
        "environment.NCCL_SOCKET_IFNAME=ib7",
    ]
    words = [sys.executable, "-m", "slurm.doctor", *cluster, "--nodes", "2", "--output", str(tmp_path / "doctor")]
    environment = {**slurm.environment, "PYTHONPATH": str(ROOT)}

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*words, *more], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)

    (tmp_path / "run").mkdir()
    record_first_step(tmp_path / "run", FirstStep(0, 20.0, 25.0, 39.4, "without apex"))
    compared = run("--run", str(tmp_path / "run"))
    assert compared.returncode == 1 and "problem        first step: rank 0 has used 25.00 GiB" in compared.stdout
    plan = run()
    assert plan.returncode == 0 and "#SBATCH --job-name=doctor" in plan.stdout and not (tmp_path / "doctor").exists()
    done = run("--submit")
    lines = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    states = {line[15:].partition(":")[0]: line[:15].strip() for line in lines}
    assert done.returncode == 1
    assert {check for check, state in states.items() if state == PROBLEM} == {"fabric"}, done.stdout + done.stderr
    assert {check for check, state in states.items() if state == NOT_APPLICABLE} == {"scratch", "gpus", "driver"}
    assert "NCCL_SOCKET_IFNAME=ib7, but gn01 has eth0" in done.stdout
    assert "over 2 tasks of 2 nodes (gloo, 16 MiB)" in done.stdout
