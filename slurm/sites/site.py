"""Partitions, limits and accounts of the local Slurm, queried before a job is submitted, so that a refusal names what exists."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipes.rules.schema import raise_all
from slurm.fetching.environment import is_older
from slurm.jobs.job import ROOT, Job, format_time_limit
from slurm.jobs.queue import ask, gpu_count, matching_lines
from slurm.sites.cluster import CONTAINERS, Cluster, Partition

_LIMIT = re.compile(r"(?:(?P<days>\d+)-)?(?:(?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d+)")
_PARTITION_LINE = re.compile(
    r"([^|]+)" + r"\|([^|]+)" + 3 * r"\|(\d+(?:\.\d+)?[KMG]?\+?)" + r"\|([^|]*)"
)  # "+" where nodes of a group differ
_TRIPLE = re.compile(r"([^|]+)\|([^|]*)\|([^|]*)")
_ARRAY_SIZE = re.compile(r"MaxArraySize\s*=\s*(\d+)")


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a partition that are alike."""

    num_nodes: int
    cpus: int
    memory_mib: int
    gpus: int


@dataclass(frozen=True)
class SitePartition:
    """One partition as `sinfo` knows it."""

    groups: tuple[NodeGroup, ...]
    time_limit_seconds: int | None  # None: no limit

    def fitting(self, job: Job) -> int:
        """Nodes that have what a job asks of each."""
        cpus, memory_mib = (job.cpus_per_task or 0) * job.tasks_per_node, (job.memory_gib or 0) << 10
        return sum(
            one.num_nodes for one in self.groups if one.gpus >= job.gpus_per_node and one.cpus >= cpus and one.memory_mib >= memory_mib
        )

    @property
    def gpus_per_node(self) -> int:
        """The most that one of the nodes has."""
        return max((one.gpus for one in self.groups), default=0)

    @property
    def num_nodes(self) -> int:
        """All of them."""
        return sum(one.num_nodes for one in self.groups)


@dataclass(frozen=True)
class Association:
    """What a user may charge to."""

    account: str
    partition: str  # "" for all
    qos: tuple[str, ...]


class NoAnswer(ValueError):  # noqa: N818 it is a state of the site
    """There is no Slurm on this machine, or it does not answer."""


def site_partitions() -> dict[str, SitePartition]:
    """All partitions that this user sees.

    Raises:
        NoAnswer: if Slurm does not answer.
    """
    return parse_partitions(_ask("sinfo", "--noheader", "--noconvert", "--exact", "--format=%R|%l|%D|%c|%m|%G"))


def parse_partitions(text: str) -> dict[str, SitePartition]:
    """Partitions from lines of name|time limit|nodes|CPUs|MiB|generic resources.

    Raises:
        NoAnswer: if there is no such line.
    """
    found: dict[str, SitePartition] = {}
    for name, limit, *numbers, resources in matching_lines(_PARTITION_LINE, text):
        nodes, cpus, memory_mib = map(_number, numbers)
        before = found[name].groups if name in found else ()
        found[name] = SitePartition((*before, NodeGroup(nodes, cpus, memory_mib, gpu_count(resources))), _seconds(limit.strip()))
    if not found:
        raise NoAnswer(f"sinfo says {text.strip()[:200]!r}, expected lines of partition|limit|nodes|CPUs|MiB|resources")
    return found


def site_associations() -> list[Association]:
    """The accounts of this user; empty where Slurm keeps no accounts."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
        words = ("--noheader", "--parsable2", "show", "associations", f"user={user}", "format=account,partition,qos")
        rows = matching_lines(_TRIPLE, _ask("sacctmgr", *words))
    except (KeyError, NoAnswer):  # a user id without a name, as in containers; "accounting storage is disabled"
        return []
    return [Association(account, partition, tuple(filter(None, qos.split(",")))) for account, partition, qos in rows]


@dataclass(frozen=True)
class SiteQos:
    """Limit of a quality of service; some may go beyond that of the partition."""

    time_limit_seconds: int | None
    overrides_partition: bool


def site_qos() -> dict[str, SiteQos]:
    """All qualities of service; empty where Slurm keeps no accounts."""
    try:
        return parse_qos(_ask("sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=name,maxwall,flags"))
    except NoAnswer:
        return {}


def parse_qos(text: str) -> dict[str, SiteQos]:
    """Qualities of service from lines of name|time limit|flags."""
    rows = matching_lines(_TRIPLE, text)
    return {name: SiteQos(_seconds(limit), "PartitionTimeLimit" in flags.split(",")) for name, limit, flags in rows}


def array_problems(job: Job) -> list[str]:
    """That an array has larger indices than this Slurm takes."""
    if job.array is None:
        return []
    try:
        limit = next((int(found[0]) for found in matching_lines(_ARRAY_SIZE, _ask("scontrol", "show", "config"))), None)
    except NoAnswer:
        return []
    highest = max(int(index) for index in re.findall(r"\d+", job.array.partition("%")[0]))
    if limit is None or highest < limit:
        return []
    return [
        f"its array has the index {highest}; MaxArraySize of this Slurm is {limit}, so that indices end at {limit - 1}; use a smaller array"
    ]


def check_site(jobs: Sequence[Job], cluster: Cluster, *, must_answer: bool) -> str:
    """Refuse what the local Slurm would refuse or keep waiting forever.

    Args:
        must_answer: False to continue if no Slurm answers, as when planning on a laptop.

    Returns:
        What was checked, in words.

    Raises:
        ValueError: listing all problems of the first job that has any, each with the alternatives; or that no Slurm answers.
    """
    try:
        partitions, associations, qos = site_partitions(), site_associations(), site_qos()
    except NoAnswer as error:
        if must_answer:
            raise
        return f"with the cluster file alone: {error}"
    for job in jobs:
        raise_all(
            site_problems(job, cluster, partitions, associations, qos) + array_problems(job), subject=f"job {job.name!r} on this Slurm"
        )
    return checked(cluster, [cluster.partition_of(job.kind) for job in jobs], associations, qos)


def checked(cluster: Cluster, partitions: Sequence[Partition], associations: Sequence[Association], qos: Mapping[str, SiteQos]) -> str:
    """What was compared with what Slurm says, and what could not be."""
    asked = {"account": cluster.account is not None, "QOS": any(partition.qos for partition in partitions)}
    known = {"account": bool(associations), "QOS": bool(qos) or any(one.qos for one in associations)}
    names = [name for name in ("account", "partition", "QOS", "limits") if asked.get(name, True) and known.get(name, True)]
    text = f"{', '.join(names[:-1])} and {names[-1]}, with this Slurm"
    unknown = [name for name in asked if asked[name] and not known[name]]
    return f"{text}; not {' and '.join(unknown)}, which it does not report" if unknown else text


def missing_runtime(cluster: Cluster) -> tuple[str, str] | None:
    """What a job would start and is not here, and what to do; None where all is there, or in a registry."""
    runtime = cluster.runtime
    if runtime.kind in CONTAINERS:
        found, advice = Path(cluster.image_path), f"download it with `python -m slurm.prefetch --cluster {cluster.name} --image SOURCE`"
        if not found.is_absolute():
            return None
    else:
        found = ROOT / str(runtime.venv) / "bin" / "python"
        advice = "make it with `make setup`, or set runtime.venv to one on the shared file system"
    if not found.is_file():
        return f"{found} does not exist", advice
    return _missing_copy(cluster) if runtime.node_dir is not None else None


def _missing_copy(cluster: Cluster) -> tuple[str, str] | None:
    packed, venv = cluster.packed_environment, ROOT / str(cluster.runtime.venv)
    if not packed.is_file():
        problem = f"{packed} does not exist, which runtime.node_dir needs"
    elif is_older(packed, venv):
        problem = f"{packed} is older than the packages in {venv}"
    else:
        return None
    return problem, f"make it with `python -m slurm.prefetch --cluster {cluster.name} --environment`"


def require_runtime(cluster: Cluster) -> None:
    """Refuse to send a job that would wait in the queue to find that its image or environment is not there.

    Raises:
        ValueError: naming it, and what to do.
    """
    if missing := missing_runtime(cluster):
        raise ValueError("; ".join(missing))


def site_problems(
    job: Job,
    cluster: Cluster,
    partitions: Mapping[str, SitePartition],
    associations: Sequence[Association],
    qos: Mapping[str, SiteQos],
) -> list[str]:
    """What does not fit, a sentence each."""
    asked = cluster.partition_of(job.kind)
    problems = _account_problems(cluster.account, asked, associations)
    found = partitions.get(asked.name)
    if found is None:
        return [*problems, f"there is no partition {asked.name}; there are {', '.join(sorted(partitions))} (set {job.kind}.name=NAME)"]
    if not problems and asked.qos is not None and qos and asked.qos not in qos:
        problems.append(f"there is no QOS {asked.qos}; there are {', '.join(sorted(qos))} (set {job.kind}.qos=NAME)")
    problems += _time_problems(job, asked, partitions, qos.get(asked.qos or ""))
    fitting = found.fitting(job)
    if job.gpus_per_node > found.gpus_per_node:
        problems.append(
            f"it asks for {job.gpus_per_node} GPUs on a node; the nodes of partition {asked.name} have {found.gpus_per_node}"
            + _others(partitions, lambda one: one.gpus_per_node >= job.gpus_per_node)
        )
    elif job.num_nodes > found.num_nodes:
        problems.append(f"it asks for {job.num_nodes} nodes; partition {asked.name} has {found.num_nodes}")
    elif job.num_nodes > fitting:
        needs = [f"{job.gpus_per_node} GPUs"] if job.gpus_per_node else []
        needs += [f"{job.cpus_per_task * job.tasks_per_node} CPUs"] if job.cpus_per_task else []
        needs += [f"{job.memory_gib} GiB"] if job.memory_gib else []
        problems.append(
            f"it asks for {job.num_nodes} nodes with {' and '.join(needs)}; {fitting} of the {found.num_nodes} nodes of partition"
            f" {asked.name} have that" + _others(partitions, lambda one: one.fitting(job) >= job.num_nodes)
        )
    return problems


def _time_problems(job: Job, asked: Partition, partitions: Mapping[str, SitePartition], qos: SiteQos | None) -> list[str]:
    asks = f"it asks for {format_time_limit(job.time_limit_seconds)}"
    problems = []
    limit = partitions[asked.name].time_limit_seconds
    if limit is not None and job.time_limit_seconds > limit and not (qos and qos.overrides_partition):
        problems.append(
            f"{asks}; the time limit of partition {asked.name} is {format_time_limit(limit)}"
            + _others(partitions, lambda one: one.time_limit_seconds is None or one.time_limit_seconds >= job.time_limit_seconds)
        )
    if qos is not None and qos.time_limit_seconds is not None and job.time_limit_seconds > qos.time_limit_seconds:
        problems.append(f"{asks}; the time limit of QOS {asked.qos} is {format_time_limit(qos.time_limit_seconds)}")
    return problems


def _account_problems(account: str | None, partition: Partition, associations: Sequence[Association]) -> list[str]:
    if account is None or not associations:
        return []
    mine = [one for one in associations if one.account.lower() == account.lower()]  # Slurm keeps them in lower case
    if not mine:
        known = sorted({one.account for one in associations})
        return [f"you have no account {account}; yours are {', '.join(known)} (set account=NAME)"]
    there = [one for one in mine if one.partition in ("", partition.name)]
    if not there:
        places = sorted({one.partition for one in mine})
        return [f"account {account} may not use partition {partition.name}; it may use {', '.join(places)}"]
    allowed = sorted({qos for one in there for qos in one.qos})
    if partition.qos is not None and allowed and partition.qos not in allowed:
        return [f"account {account} may not use the QOS {partition.qos}; it may use {', '.join(allowed)}"]
    return []


def _others(partitions: Mapping[str, SitePartition], fits: Callable[[SitePartition], bool]) -> str:
    names = sorted(name for name, partition in partitions.items() if fits(partition))
    return f"; {', '.join(names)} would do" if names else ""


def _seconds(limit: str) -> int | None:
    """Seconds of a limit as sinfo writes it: 1-00:00:00, 24:00:00, 30:00, infinite."""
    found = _LIMIT.fullmatch(limit)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.group("days", "hours", "minutes", "seconds"))
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _number(text: str) -> int:
    return round(float(text.rstrip("KMG+")) * 1024 ** " KMG".index(text.rstrip("+")[-1] if text.rstrip("+")[-1] in "KMG" else " "))


def _ask(*words: str) -> str:
    try:
        return ask(*words)
    except ValueError as error:
        raise NoAnswer(str(error)) from None
