"""The facts of a cluster: partitions, runtime, network; read from one YAML file per site and checked."""

from __future__ import annotations

import difflib
import math
import os
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from common.plain_files import literal_loader, parse_yaml, read_text
from recipes.rules.schema import build_from_mapping, raise_all
from slurm.jobs.job import CPU, GPU, Job, format_time_limit, job_problems, parse_time_limit

CLUSTERS_DIR = Path(__file__).resolve().parents[1] / "clusters"
RUNTIMES = ("apptainer", "singularity", "pyxis", "modules", "venv")
CONTAINERS = ("apptainer", "singularity", "pyxis")
GPU_OPTIONS = ("gpus-per-node", "gres")

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@+-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Partition:
    """One partition and its nodes."""

    name: str
    num_nodes: int  # of the partition, or the most that one job may have
    cpus_per_node: int  # as Slurm counts them, hardware threads where it counts those
    memory_gib: int  # of a node, what a job may ask for
    time_limit: str  # hours:minutes:seconds, with days- in front where there are any
    gpus_per_node: int = 0
    gpu: str | None = None  # a name that the planner knows, for example A100-40GB
    qos: str | None = None
    more_nodes: str | None = None  # what to set for a job of more nodes, for the message of its refusal
    exclusive: bool = False  # whole nodes, also where the site shares them
    cpu_bind: str | None = None  # srun's --cpu-bind for a job with a task for each GPU of a node, as the site binds them


@dataclass(frozen=True)
class Runtime:
    """How `python` and its packages come to a compute node."""

    kind: str = "venv"  # apptainer, singularity, pyxis, modules (with a virtual environment), venv
    image: str | None = None  # of a container; a relative path starts at the scratch directory's cache, which slurm.prefetch fills
    binds: tuple[str, ...] = ()  # host paths that the container sees too, besides the checkout and the directories of the run
    modules: tuple[str, ...] = ()  # loaded before anything runs, for containers too (a site's apptainer may be a module)
    module_paths: tuple[str, ...] = ()  # where some of them are, beside what `module` searches by itself
    gpu_flag: str | None = "--nv"  # of apptainer and singularity, by which a container sees the GPUs; null where the image has all it needs
    venv: str | None = None  # virtual environment of modules and venv, made on the login node; a relative path starts at the checkout
    node_dir: str | None = None  # a node's own disk or memory, where a job unpacks that environment, so that its ranks read no shared files


@dataclass(frozen=True)
class Cluster:
    """A site, and how this project runs there."""

    name: str
    gpu: Partition
    cpu: Partition | None = None  # for stages without a GPU; they run in the GPU partition where there is none
    account: str | None = None  # Slurm account to charge; needed if account_required
    account_required: bool = True
    allocation_gpu_hours: float | None = None  # what the account may use, for the plan
    gpu_option: str = "gpus-per-node"  # how a job asks for GPUs: that or gres
    memory_option: bool = True  # whether a job may ask for memory; at some sites it follows from the cores
    runtime: Runtime = field(default_factory=Runtime)
    environment: dict[str, str] = field(default_factory=dict)  # network variables and such, the same on every node
    rank_environment: dict[str, tuple[str, ...]] = field(default_factory=dict)  # those that differ by GPU of a node: its network card
    step_options: tuple[str, ...] = ()  # of srun, beyond those that every cluster gets
    address_suffix: str = ""  # what a node's name ends with on the fast network, where the first node is looked for
    address_ipv4: bool = False  # give the first node's address as a number, where names stand for IPv6 that nodes cannot use
    scratch: str | None = None  # a large shared file system; $VARIABLES of the login shell are replaced

    @property
    def cache_dir(self) -> str | None:
        """Where slurm.prefetch leaves what jobs read."""
        return f"{self.scratch.rstrip('/')}/scion_cache" if self.scratch else None

    @property
    def packed_environment(self) -> Path:
        """The virtual environment as one file, which `slurm.prefetch --environment` makes for `runtime.node_dir`."""
        assert self.cache_dir is not None  # checked when the cluster was read
        return Path(self.cache_dir) / "environment.tar"

    @property
    def image_path(self) -> str:
        """The container's image: a file, or the address of a registry for pyxis."""
        assert self.runtime.image is not None  # checked when the cluster was read
        if self.cache_dir is None or "#" in self.runtime.image or "://" in self.runtime.image:
            return self.runtime.image
        return str(Path(self.cache_dir) / self.runtime.image)

    def partition_of(self, kind: str) -> Partition:
        """The partition for GPU or CPU jobs."""
        return self.cpu if kind == CPU and self.cpu is not None else self.gpu


def cluster_names() -> list[str]:
    """All bundled clusters."""
    return sorted(path.stem for path in CLUSTERS_DIR.glob("*.yaml"))


def load_cluster(cluster: str, overrides: tuple[str, ...] = (), *, environment: Mapping[str, str] = os.environ) -> Cluster:
    """The cluster of a bundled name or a YAML file.

    A file may hold `extends: vega` and only what differs from that cluster (an account, an image).

    Args:
        overrides: `key=value` with a dotted key and a YAML value, for example `runtime.image=/scratch/nemo.sif`.
        environment: where the variables of paths are looked up.

    Raises:
        ValueError: for an unknown name, and listing all unknown keys, wrong types, contradictions and undefined variables.
    """
    content = _read(cluster)
    for override in overrides:
        _set(content, override)
    problems: list[str] = []
    content = _expand(content, environment, problems)
    raise_all(problems, subject=f"the cluster {cluster}")
    built = build_from_mapping(Cluster, content, subject=f"the cluster {cluster}")
    raise_all(_cluster_problems(built), subject=f"the cluster {cluster}")
    return built


def _read(cluster: str) -> dict[str, Any]:
    if cluster.endswith((".yaml", ".yml")):
        path = Path(cluster)
        if not path.is_file():
            raise ValueError(f"the cluster file {cluster} does not exist; the bundled clusters are {', '.join(cluster_names())}")
    elif cluster in cluster_names():
        path = CLUSTERS_DIR / f"{cluster}.yaml"
    else:
        nearest = difflib.get_close_matches(cluster, cluster_names(), n=1, cutoff=0.0)[0]
        raise ValueError(
            f"there is no cluster {cluster}; did you mean {nearest}? The bundled clusters are {', '.join(cluster_names())};"
            " a file of your own ends in .yaml"
        )
    content = parse_yaml(read_text(path), subject=f"the cluster file {path}", loader=literal_loader())
    if not isinstance(content, dict):
        raise ValueError(f"the cluster file {path} holds no keys")
    base = content.pop("extends", None)
    if base is None:
        return content
    if base not in cluster_names():
        raise ValueError(f"{path} extends {base!r}; the bundled clusters are {', '.join(cluster_names())}")
    return _merge(_read(base), content)


def _merge(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        merged[key] = _merge(merged[key], value) if isinstance(value, Mapping) and isinstance(merged.get(key), dict) else value
    return merged


def _set(content: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ValueError(f"{override!r} is not of the form key=value, for example account=b25 or runtime.image=/scratch/nemo.sif")
    if _is_text(key) and text not in ("null", "~"):
        value = text  # as it stands: an account may be 007, a variable true
    else:
        value = parse_yaml(text, subject=f"the value of {override!r}", loader=literal_loader())
    *sections, name = key.split(".")
    for section in sections:
        inner = content.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ValueError(f"{override!r} cannot be set: {section} is not a section")
        content = inner
    content[name] = value


def _is_text(key: str) -> bool:
    """Whether a dotted key of a cluster has a text for its value."""
    kind: Any = Cluster
    for part in key.split("."):
        kind = (
            typing.get_args(kind)[1]
            if typing.get_origin(kind) is dict
            else typing.get_type_hints(kind).get(part)
            if is_dataclass(kind)
            else None
        )
        if isinstance(kind, types.UnionType):
            kind = next(option for option in typing.get_args(kind) if option is not types.NoneType)
    return kind is str


def _expand(value: Any, environment: Mapping[str, str], problems: list[str], path: str = "") -> Any:
    """Replace $NAME and ${NAME} in all texts."""
    if isinstance(value, dict):
        return {key: _expand(inner, environment, problems, f"{path}{key}.") for key, inner in value.items()}
    if isinstance(value, list):
        return [_expand(inner, environment, problems, path) for inner in value]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        name = match["braced"] or match["plain"]
        if name not in environment:
            problems.append(f"{path.rstrip('.')} names the variable ${name}, which is not set here; set it or write the path out")
            return ""
        return environment[name]

    return re.sub(r"\$(?:\{(?P<braced>\w+)\}|(?P<plain>\w+))", replace, value)


def _cluster_problems(cluster: Cluster) -> list[str]:
    problems = []
    for label, partition in ((GPU, cluster.gpu), (CPU, cluster.cpu)):
        if partition is not None:
            problems += [f"{label}.{problem}" for problem in _partition_problems(partition)]
    if cluster.account is not None and not _WORD.fullmatch(cluster.account):
        problems.append(f"account is {cluster.account!r}; expected letters, digits and _ . : @ + -")
    if cluster.allocation_gpu_hours is not None and not 0 < cluster.allocation_gpu_hours < math.inf:
        problems.append(f"allocation_gpu_hours is {cluster.allocation_gpu_hours:g}; expected more than 0, or null where it is not known")
    if cluster.scratch is not None and not cluster.scratch.startswith("/"):
        problems.append(f"scratch is {cluster.scratch!r}; expected an absolute path")
    if cluster.gpu_option not in GPU_OPTIONS:
        problems.append(f"gpu_option is {cluster.gpu_option!r}; expected one of {', '.join(GPU_OPTIONS)}")
    problems += [f"{name!r} in environment is not a name of a variable" for name in cluster.environment if not _VARIABLE.fullmatch(name)]
    runtime = cluster.runtime
    if runtime.kind not in RUNTIMES:
        problems.append(f"runtime.kind is {runtime.kind!r}; expected one of {', '.join(RUNTIMES)}")
    elif runtime.kind in CONTAINERS and runtime.image is None:
        problems.append(
            f"runtime.image is missing; {runtime.kind} needs one (set it with runtime.image=PATH; slurm.prefetch can download it)"
        )
    elif runtime.kind not in CONTAINERS and runtime.venv is None:
        problems.append(f"runtime.venv is missing; {runtime.kind} needs a virtual environment (set it with runtime.venv=PATH)")
    if runtime.node_dir is not None:
        problems += _node_dir_problems(runtime.node_dir, cluster)
    for name in ("binds", "module_paths"):
        problems += [
            f"runtime.{name} holds {path!r}; expected an absolute path" for path in getattr(runtime, name) if not path.startswith("/")
        ]
    return problems + _rank_problems(cluster)


def _node_dir_problems(node_dir: str, cluster: Cluster) -> list[str]:
    problems = []
    if cluster.runtime.kind in CONTAINERS:
        problems.append(f"runtime.node_dir is for modules and venv; {cluster.runtime.kind}'s image is one file already")
    if not node_dir.startswith("/"):
        problems.append(f"runtime.node_dir is {node_dir!r}; expected an absolute path on each node, such as /tmp or /dev/shm")
    if cluster.scratch is None:
        problems.append("runtime.node_dir needs a place for the packed environment; set scratch=DIRECTORY")
    return problems


def _rank_problems(cluster: Cluster) -> list[str]:
    problems = [
        f"step_options holds {option!r}; expected an option such as --mpi=none" for option in cluster.step_options if option[:2] != "--"
    ]
    if not re.fullmatch(r"[A-Za-z0-9.-]*", cluster.address_suffix):
        problems.append(f"address_suffix is {cluster.address_suffix!r}; expected letters, digits, . and -")
    for name, values in cluster.rank_environment.items():
        if not _VARIABLE.fullmatch(name):
            problems.append(f"{name!r} in rank_environment is not a name of a variable")
        if len(values) != cluster.gpu.gpus_per_node:
            problems.append(f"rank_environment.{name} has {len(values)} values; the nodes have {cluster.gpu.gpus_per_node} GPUs")
        problems += [
            f"rank_environment.{name} holds {value!r}; expected no spaces" for value in values if not value or len(value.split()) != 1
        ]
    return problems


def _partition_problems(partition: Partition) -> list[str]:
    problems = []
    for name in ("num_nodes", "cpus_per_node", "memory_gib"):
        if getattr(partition, name) < 1:
            problems.append(f"{name} is {getattr(partition, name)}; expected at least 1")
    for name in ("name", "qos"):
        value = getattr(partition, name)
        if value is not None and not _WORD.fullmatch(value):
            problems.append(f"{name} is {value!r}; expected letters, digits and _ . : @ + -")
    try:
        parse_time_limit(partition.time_limit)
    except ValueError as error:
        problems.append(f"time_limit: {error}")
    return problems


def check_job(job: Job, cluster: Cluster) -> None:
    """Refuse what the cluster cannot run, before anything is submitted.

    Raises:
        ValueError: listing all problems, each with what was asked for and what there is.
    """
    raise_all(job_problems(job) or _fit_problems(job, cluster), subject=f"job {job.name!r} on {cluster.name}")


def _fit_problems(job: Job, cluster: Cluster) -> list[str]:
    partition = cluster.partition_of(job.kind)
    place = f"of partition {partition.name}"
    limit = parse_time_limit(partition.time_limit)
    problems = []
    if cluster.account_required and cluster.account is None:
        problems.append("no Slurm account to charge is given; set it with account=NAME (`sacctmgr show assoc user=$USER` lists yours)")
    if job.num_nodes > partition.num_nodes:
        more = f"; {partition.more_nodes}" if partition.more_nodes else ""
        problems.append(f"it asks for {job.num_nodes} nodes; a job {place} can have {partition.num_nodes}{more}")
    if job.gpus_per_node > partition.gpus_per_node:
        problems.append(f"it asks for {job.gpus_per_node} GPUs on a node; the nodes {place} have {partition.gpus_per_node}")
    cpus = job.tasks_per_node * (job.cpus_per_task or 1)
    if cpus > partition.cpus_per_node:
        problems.append(
            f"it asks for {job.tasks_per_node} tasks x {job.cpus_per_task or 1} CPUs = {cpus} CPUs on a node;"
            f" the nodes {place} have {partition.cpus_per_node}"
        )
    if job.memory_gib is not None and job.memory_gib > partition.memory_gib:
        problems.append(f"it asks for {job.memory_gib} GiB on a node; the nodes {place} have {partition.memory_gib} GiB")
    if cluster.runtime.kind in CONTAINERS:
        problems += [
            f"{cluster.runtime.kind} cannot bind {path!r}: commas, colons and backslashes are special in its binds, and trailing spaces are lost; use another path"
            for path in bound_paths(job, cluster)
            if set(path) & set(",:\\") or path != path.strip()
        ]
    if job.time_limit_seconds > limit:
        problems.append(f"it asks for {format_time_limit(job.time_limit_seconds)}; the time limit {place} is {partition.time_limit}")
    return problems


def bound_paths(job: Job, cluster: Cluster) -> list[str]:
    """Host paths that a container must see."""
    paths = [str(job.work_dir), *cluster.runtime.binds, *([cluster.scratch] if cluster.scratch else []), *map(str, job.paths)]
    return list(dict.fromkeys(paths))
