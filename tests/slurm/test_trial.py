"""The trial of training: judged from what it found, and run with gloo on this machine."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from common.command import HUNG
from slurm import trial
from slurm.checks.findings import NOT_APPLICABLE, OK, PROBLEM
from slurm.checks.trial import STEPS, Trial, file_system, formula, hang, is_shared
from slurm.checks.trial_findings import judge_trial

LOSSES = {str(step): 7.0 - step / 10 for step in range(1, STEPS + 1)}
SOUND: dict[str, Any] = {
    "engine": {"seconds": 9.0, "packages": {"torch": "2.9.0", "flash-attn": "2.7.4"}, "environment": {}},
    "compile caches": {"TRITON_CACHE_DIR": {"path": "/tmp/triton", "file system": "xfs", "is shared": False}},
    "products and copies": {"TFLOP/s": {"cuda:0": 250.0, "cuda:1": 251.0}, "GB/s": {"0 to 1": 80.0}},
    "attention of documents": {"heads of 256": 0.004},
    "inputs": {},
    "training": {
        "was killed": True,
        "losses before": {},
        "losses": LOSSES,
        "losses of a processor": LOSSES,
        "memory": [{"memory_gib": 1.0, "reserved_gib": 1.5}],
    },
    "a rank that hangs": {"seconds": 40.0, "exit code": HUNG, "expected": HUNG, "says that it hangs": True},
}


def test_a_sound_node_has_no_problem() -> None:
    assert {finding.state for finding in judge_trial(SOUND)} == {OK}


@pytest.mark.parametrize(
    ("part", "change", "check", "found"),
    [
        ("engine", {"error": "PatchError: no"}, "engine", "PatchError: no"),
        ("engine", {"packages": {"flash-attn": "2.8.3"}}, "flash-attention", "2.8.3; TransformerEngine takes 2.1.1 to 2.8.1"),
        ("compile caches", {"X": {"path": "/home/a", "file system": "nfs4", "is shared": True}}, "compile caches", "X is /home/a, on nfs4"),
        ("products and copies", {"TFLOP/s": {"cuda:0": 250.0, "cuda:1": 120.0}}, "TFLOP/s", "cuda:0 250, cuda:1 120"),
        ("attention of documents", {"heads of 256": "no backend"}, "attention of documents", "heads of 256: no backend"),
        ("attention of documents", {"heads of 256": 0.9}, "attention of documents", "heads of 256: 0.9 from the formula"),
        ("training", {"losses": {**LOSSES, "3": 9.0}}, "training", "losses differ by at most 2.3 from those of one process"),
        ("training", {"losses": {"1": 6.9}}, "training", "1 and 12 of 12 steps were taken"),
        ("training", {"was killed": False}, "training", "the run ended before it could be killed"),
        ("a rank that hangs", {"exit code": 1}, "a rank that hangs", "with exit code 1; expected 5"),
    ],
)
def test_each_trouble_is_found(part: str, change: dict[str, Any], check: str, found: str) -> None:
    result = deepcopy(SOUND)
    result[part] |= change
    [problem] = [finding for finding in judge_trial(result) if finding.state == PROBLEM]
    assert problem.check == check and found in problem.found and problem.advice


def test_a_job_that_ended_before_says_so() -> None:
    assert [finding.state for finding in judge_trial({"engine": SOUND["engine"]})] == [OK] + [PROBLEM] * 6


def test_one_rank_cannot_hang_on_another(tmp_path: Path) -> None:
    found = hang(Trial(tmp_path, 1, has_gpus=True))
    assert not list(tmp_path.iterdir()), "no run was started"
    states = {finding.check: finding.state for finding in judge_trial(SOUND | {"a rank that hangs": found})}
    assert states.pop("a rank that hangs") == NOT_APPLICABLE and set(states.values()) == {OK}


def test_the_formula_is_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(12, heads, 8, generator=generator) for heads in (4, 2, 2))
    found = formula(query, key, value, [0, 5, 12], window=3)
    for first, end in ((0, 5), (5, 12)):
        seen = torch.ones(end - first, end - first, dtype=torch.bool).tril().triu(-2)
        q, k, v = (x[first:end].transpose(0, 1) for x in (query, key, value))
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True).transpose(0, 1)
        assert torch.allclose(found[first:end], expected, atol=1e-6)


def test_file_systems_of_the_network_are_known(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("disk / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\n")
    assert (file_system(Path("/home/a/b"), mounts=mounts), is_shared(Path("/tmp/x"), mounts=mounts)) == ("nfs4", False)
    assert is_shared(Path("/home/a/b"), mounts=mounts)


@pytest.mark.long
def test_a_trial_runs_on_processors(tmp_path: Path) -> None:
    """Killed, resumed and compared, and a rank that hangs is found by the watchdog."""
    assert trial.main(["--output", str(tmp_path), "--devices", "4"]) == 0
    findings = judge_trial(json.loads((tmp_path / "trial.json").read_text()))
    states = {finding.check: finding.state for finding in findings}
    assert states.pop("attention of documents") == NOT_APPLICABLE
    assert set(states.values()) <= {OK}, "\n".join(map(str, findings))
    assert {"engine", "training", "a rank that hangs"} <= set(states)
