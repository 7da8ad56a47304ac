"""Free memory is the least of what the machine, the groups of the job and the process itself leave."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from common.memory import free_memory
from tests.processes import ROOT

GIB = 1 << 30


def _machine(directory: Path, group: str, files: dict[str, str]) -> dict[str, Path]:
    (directory / "proc/self").mkdir(parents=True)
    (directory / "proc/meminfo").write_text(f"MemTotal: {64 << 20} kB\nMemAvailable: {48 << 20} kB\n")
    (directory / "proc/self/cgroup").write_text(group)
    for name, content in files.items():
        (directory / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / "groups" / name).write_text(content)
    return {"proc": directory / "proc", "cgroups": directory / "groups"}


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("", {}, 48),
        ("0::/job_7/step_0\n", {"job_7/memory.max": f"{16 * GIB}\n", "job_7/memory.current": f"{6 * GIB}\n", "job_7/step_0/memory.max": "max\n"}, 10),
        (
            "0::/job_7/step_0\n",
            {"job_7/step_0/memory.max": f"{16 * GIB}", "job_7/step_0/memory.current": f"{6 * GIB}", "job_7/step_0/memory.stat": f"anon 5\ninactive_file {4 * GIB}\n"},
            14,
        ),
        (
            "5:cpuset:/x\n3:memory,hugetlb:/slurm/job_7\n",
            {"memory/slurm/memory.limit_in_bytes": str(8 * GIB), "memory/slurm/memory.usage_in_bytes": str(1 * GIB)},
            7,
        ),
        ("0::/full\n", {"full/memory.max": str(GIB), "full/memory.current": str(2 * GIB)}, 0),
    ],
    ids=["the machine", "a group above", "pages of files", "version 1", "over its limit"],
)  # fmt: skip
def test_the_least_limit_counts(group: str, files: dict[str, str], expected: int, tmp_path: Path) -> None:
    assert free_memory(**_machine(tmp_path, group, files)) == expected * GIB


def test_a_limit_of_the_process_counts_and_a_silent_system_is_said(tmp_path: Path) -> None:
    code = "from common.memory import free_memory; print(free_memory())"
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (GIB // 2, GIB // 2)),
    )  # fmt: skip
    assert 0 < int(said.stdout) < GIB // 2
    with pytest.raises(ValueError, match="does not say how much memory is free; give --memory"):
        free_memory(proc=tmp_path, cgroups=tmp_path)
