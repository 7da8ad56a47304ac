"""The judgement of `slurm.doctor`: from what nodes say of themselves to findings, each ok, a problem with what to do, or not applicable; and of a first step beside its rehearsal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.planner.hardware import GPUS
from recipes.rehearsal.prediction import read_first_steps, read_rehearsal, verdict
from slurm.checks.node_facts import NodeFacts
from slurm.jobs.training import why_no_training
from slurm.sites.cluster import Cluster

OK, PROBLEM, NOT_APPLICABLE = "ok", "problem", "not applicable"
GIB = 2**30
MAX_CLOCK_SECONDS = 1.0  # make, caches and checkpoint times begin to lie beyond
MIN_FREE_GIB = {"/dev/shm": 1, "/tmp": 1}  # NCCL's shared memory; temporary files
MIN_SCRATCH_GIB = 100  # a few checkpoints of a 1 B model with optimizer state
# The oldest driver for each CUDA, with minor-version compatibility: NVIDIA, "CUDA Compatibility", table 1.
MIN_DRIVER = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
TORCH = ((2, 8), (2, 13))  # the oldest of the images in docs/slurm.md, and the one of requirements.txt
PINNED = {"nemo-toolkit": "2.7.3", "megatron-core": "0.15.3"}  # what nemo_patches know


@dataclass(frozen=True)
class Finding:
    """One check: its name, its state, what was found, and for a problem what to do."""

    check: str
    state: str
    found: str
    advice: str = ""

    def __str__(self) -> str:
        line = f"{self.state:<15}{self.check}: {self.found}"
        return f"{line}\n{'':<15}-> {self.advice}" if self.advice else line


_Verdict = tuple[str, str] | tuple[str, str, str]
"""State, what was found, and for a problem what to do."""


def judge(cluster: Cluster, nodes: Sequence[NodeFacts], reduce: Mapping[str, Any] | None, *, expected_nodes: int) -> list[Finding]:
    """All findings about the nodes of a job.

    Args:
        reduce: what rank 0 measured, None where it did not get there.
    """
    answered = Finding("nodes", *_answered(nodes, expected_nodes))
    if not nodes:
        return [answered]
    checked = [Finding(name, *check(cluster, nodes)) for name, check in _CHECKS.items()]
    return [answered, *checked, Finding("all-reduce", *_all_reduce(cluster, nodes, reduce))]


def _answered(nodes: Sequence[NodeFacts], expected: int) -> _Verdict:
    if len(nodes) == expected:
        return OK, f"{expected} of {expected} answered"
    return (
        PROBLEM,
        f"{len(nodes)} of {expected} answered{': ' + ', '.join(node.node for node in nodes) if nodes else ''}",
        "the output directory is not on a file system that all nodes share, or a node failed: see the log; exclude a bad node",
    )


def _shared_directory(cluster: Cluster, nodes: Sequence[NodeFacts]) -> _Verdict:
    blind = [node.node for node in nodes if not node.reads_token]
    if blind:
        return PROBLEM, f"{', '.join(blind)} cannot see a file written on the login node", "use a directory under scratch"
    return OK, "every node reads files written on the login node"


def _python(cluster: Cluster, nodes: Sequence[NodeFacts]) -> _Verdict:
    versions = _by_value({node.node: node.python for node in nodes})
    if len(versions) > 1:
        return PROBLEM, _describe(versions), "use the same image or virtual environment on all nodes, on the shared file system"
    [version] = versions
    if not version.startswith(("3.11.", "3.12.")):
        return PROBLEM, f"{version} on all nodes", "3.11 is tested, and 3.12 in images; use another image or recreate .venv"
    return OK, f"{version} on all nodes"


def _packages(cluster: Cluster, nodes: Sequence[NodeFacts]) -> _Verdict:
    versions = _by_value({node.node: ", ".join(f"{name} {version}" for name, version in node.packages.items()) for node in nodes})
    if len(versions) > 1:
        return PROBLEM, _describe(versions), "use the same image or virtual environment on all nodes"
    packages = nodes[0].packages
    if why := why_no_training(cluster):
        return NOT_APPLICABLE, f"{next(iter(versions)) or 'none of NeMo'}: {why}"
    if wrong := [f"{name} {packages.get(name, 'is missing')}" for name, version in PINNED.items() if packages.get(name) != version]:
        expected = ", ".join(f"{name} {version}" for name, version in PINNED.items())
        return PROBLEM, ", ".join(wrong), f"patches and recipes need {expected}; install requirements.txt"
    found = tuple(int("".join(filter(str.isdigit, part)) or 0) for part in packages.get("torch", "0.0").split(".")[:2])
    if not TORCH[0] <= found <= TORCH[1]:
        oldest, newest = (".".join(map(str, bound)) for bound in TORCH)
        advice = f"{oldest} to {newest} were tested; use an image of docs/slurm.md"
        return PROBLEM, f"torch {packages.get('torch', 'is missing')}", advice
    return OK, next(iter(versions))


def _apex(cluster: Cluster, nodes: Sequence[NodeFacts]) -> _Verdict:
    foreign = [node.node for node in nodes if node.apex == "foreign"]
    if foreign:
        return PROBLEM, f"not NVIDIA's on {', '.join(foreign)}", "this is another project with the same name: pip uninstall apex"
    return OK, "NVIDIA's" if nodes[0].apex == "nvidia" else "not installed, and not needed"


def _num_gpus(cluster: Cluster, nodes: Sequence[NodeFacts]) -> _Verdict:
    if not any(node.gpus for node in nodes):
        if cluster.gpu.gpu is None:
            return NOT_APPLICABLE, "the cluster file names no GPU, and no node has a driver of NVIDIA or AMD"
        return (
            PROBLEM,
            "neither nvidia-smi nor rocm-smi finds a GPU on any node",
            "check the partition, and that the container sees the GPUs (runtime.gpu_flag)",
        )
    wrong = [f"{node.node} has {len(node.gpus)}" for node in nodes if len(node.gpus) != cluster.gpu.gpus_per_node]
    if wrong:
        return (
            PROBLEM,
            f"{', '.join(wrong)}; the cluster file says {cluster.gpu.gpus_per_node}",
            "exclude the node or correct the cluster file",
        )
    unseen = [node.node for node in nodes if node.torch_gpus != len(node.gpus)]
    if unseen:
        return PROBLEM, f"torch does not see all GPUs on {', '.join(unseen)}", "a CPU build of torch, or a driver that is too old"
    return OK, f"{cluster.gpu.gpus_per_node} x {nodes[0].gpus[0][0]} on each node"


def _driver(cluster: Cluster, nodes: Sequence[NodeFacts]) -> _Verdict:
    drivers = _by_value({node.node: node.gpus[0][1] for node in nodes if node.gpus})
    cuda, rocm = nodes[0].torch_cuda, nodes[0].torch_rocm
    if drivers and rocm is not None and len(drivers) == 1:
        return OK, f"{next(iter(drivers))} with ROCm {rocm}"
    if not drivers or cuda is None:
        return (
            NOT_APPLICABLE,
            f"torch is built for {f'CUDA {cuda}' if cuda else 'CPUs'}, and the driver is {_describe(drivers) or 'absent'}",
        )
    needed = MIN_DRIVER.get(int(cuda.split(".")[0]))
    old = [driver for driver in drivers if needed is not None and tuple(map(int, driver.split("."))) < needed]
    if needed is not None and old:
        return (
            PROBLEM,
            f"{_describe({driver: drivers[driver] for driver in old})}; the image's CUDA {cuda} needs {'.'.join(map(str, needed))}",
            "use an image with an older CUDA, or ask the computing centre for a newer driver",
        )
    if len(drivers) > 1:
        return PROBLEM, _describe(drivers), "nodes differ: one may be being updated; exclude it"
    return OK, f"{next(iter(drivers))} with CUDA {cuda}"


def _fabric(cluster: Cluster, nodes: Sequence[NodeFacts]) -> _Verdict:
    """Whether NCCL will find the fast network."""
    for node in nodes:
        active = [port for port, state in node.infiniband.items() if "ACTIVE" in state]
        expected = node.fabric.get("NCCL_SOCKET_IFNAME", "")
        if node.fabric.get("NCCL_IB_DISABLE") == "1" and active:
            return PROBLEM, f"NCCL_IB_DISABLE=1 on {node.node}, which has InfiniBand", "unset it: otherwise NCCL uses TCP"
        if node.fabric.get("NCCL_NET") == "IB" and not active:
            return (
                PROBLEM,
                f"NCCL_NET=IB, but {node.node} has no active InfiniBand port",
                "remove it from the cluster file, or exclude the node",
            )
        if expected and not expected.startswith("^") and not _names_interface(expected, node.interfaces):
            return (
                PROBLEM,
                f"NCCL_SOCKET_IFNAME={expected}, but {node.node} has {', '.join(node.interfaces)}",
                "name one of these, or unset it",
            )
    ports = _by_value({node.node: f"{sum('ACTIVE' in state for state in node.infiniband.values())} active ports" for node in nodes})
    if len(ports) > 1:
        return PROBLEM, _describe(ports), "exclude the node with fewer ports, and report it to the computing centre"
    if not nodes[0].infiniband:
        return _slingshot(nodes)
    return OK, f"InfiniBand, {next(iter(ports))} on each node"


def _slingshot(nodes: Sequence[NodeFacts]) -> _Verdict:
    """HPE's network, whose cards are interfaces hsn0, hsn1 and so on."""
    cards = _by_value({node.node: f"{sum(name.startswith('hsn') for name in node.interfaces)} cards" for node in nodes})
    if len(cards) > 1:
        return PROBLEM, _describe(cards), "exclude the node with fewer cards, and report it to the computing centre"
    if "0 cards" in cards:
        return NOT_APPLICABLE, "no InfiniBand and no Slingshot on any node"
    return OK, f"Slingshot, {next(iter(cards))} on each node"


def _names_interface(expected: str, interfaces: Sequence[str]) -> bool:
    """NCCL takes prefixes, and after = whole names; several with commas."""
    names = expected.removeprefix("=").split(",")
    if expected.startswith("="):
        return any(name in interfaces for name in names)
    return any(interface.startswith(name) for name in names for interface in interfaces)


def _clock(cluster: Cluster, nodes: Sequence[NodeFacts]) -> _Verdict:
    clocks = {node.node: node.clock for node in nodes if node.clock is not None}
    if len(clocks) < 2:
        return NOT_APPLICABLE, "needs two nodes that reached their first barrier"
    middle = sorted(clocks.values())[len(clocks) // 2]
    wrong = {name: clock - middle for name, clock in clocks.items() if abs(clock - middle) > MAX_CLOCK_SECONDS}
    if wrong:
        description = ", ".join(f"{name} is {offset:+.1f} s off" for name, offset in wrong.items())
        return PROBLEM, description, "exclude the node and report it to the computing centre: its time service is not running"
    return OK, f"within {max(clocks.values()) - min(clocks.values()):.3f} s of each other, the barrier included"


def _free_space(cluster: Cluster, nodes: Sequence[NodeFacts]) -> _Verdict:
    short = []
    for node in nodes:
        for path, free in node.free_bytes.items():
            needed = MIN_FREE_GIB.get(path, MIN_SCRATCH_GIB)
            if free < needed * GIB:
                short.append(f"{path} on {node.node} has {free / GIB:.1f} GiB, expected {needed}")
    if short:
        return PROBLEM, "; ".join(short), "remove old checkpoints or use another --set scratch=DIRECTORY"
    least = {path: min(node.free_bytes.get(path, 0) for node in nodes) for path in nodes[0].free_bytes}
    return OK, ", ".join(f"{path} {free / GIB:,.0f} GiB" for path, free in least.items())


def _all_reduce(cluster: Cluster, nodes: Sequence[NodeFacts], reduce: Mapping[str, Any] | None) -> _Verdict:
    if reduce is None:
        return PROBLEM, "did not finish", "see the log; NCCL_DEBUG=INFO in the cluster's environment gives details"
    rate = reduce["bytes_per_second"]
    description = f"{rate / 1e9:.2f} GB/s over {reduce['tasks']} tasks of {len(nodes)} nodes ({reduce['backend']}, {reduce['mib']} MiB)"
    if not reduce["is_right"]:
        return PROBLEM, f"gave a wrong sum; {description}", "do not train on these nodes; report them to the computing centre"
    gpu = GPUS.get((cluster.gpu.gpu or "").lower())
    if reduce["backend"] != "nccl" or gpu is None:
        return OK, f"{description}; no usual value is known for this network"
    expected = (gpu.network_rate if len(nodes) > 1 else gpu.nvlink_rate) / 2
    if rate < expected:
        return (
            PROBLEM,
            f"{description}; at least {expected / 1e9:.0f} is usual",
            "NCCL_DEBUG=INFO shows which network is used; check binds and fabric",
        )
    return OK, description


_CHECKS: Mapping[str, Callable[[Cluster, Sequence[NodeFacts]], _Verdict]] = {
    "shared directory": _shared_directory,
    "python": _python,
    "packages": _packages,
    "apex": _apex,
    "gpus": _num_gpus,
    "driver": _driver,
    "fabric": _fabric,
    "clock": _clock,
    "free space": _free_space,
}


def _by_value(values: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node, value in values.items():
        found.setdefault(value, []).append(node)
    return found


def _describe(values: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{value} on {', '.join(nodes)}" for value, nodes in values.items())


_CHECK = "first step"


def first_step_finding(run_dir: Path) -> Finding:
    """Whether the GPUs needed what was counted without them.

    Raises:
        ValueError: if the directory is none.
    """
    if not run_dir.is_dir():
        raise ValueError(f"{run_dir} is not a directory of a run; give that of `slurm.submit --output`")
    if steps := read_first_steps(run_dir):
        is_right, description, advice = verdict(steps)
        return Finding(_CHECK, OK if is_right else PROBLEM, description, advice)
    if read_rehearsal(run_dir) is None:
        return Finding(_CHECK, NOT_APPLICABLE, f"{run_dir} has no rehearsal to compare with; `slurm.submit --rehearse` makes one")
    return Finding(
        _CHECK, NOT_APPLICABLE, f"{run_dir} has a rehearsal, but has not finished a first step on GPUs with the rehearsed layout"
    )
