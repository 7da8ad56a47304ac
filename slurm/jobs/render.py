"""A job and a cluster as the text of a job script; pure, so that the same two always give the same script.

What comes from a user (names, paths, words of commands) is quoted for the place where it stands: bash's single quotes in commands, double
quotes in #SBATCH lines, which sbatch reads itself.  What the latter cannot carry is refused by `slurm.jobs.job.job_problems`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from slurm.jobs.job import Job, format_time_limit
from slurm.sites.cluster import CONTAINERS, Cluster, Partition, bound_paths, check_job

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,%@[]")
_CONTINUED = " \\\n    "
_ONCE_A_NODE = 'srun --ntasks-per-node=1 --ntasks="$SLURM_JOB_NUM_NODES" --cpus-per-task=1'


def render_job(job: Job, cluster: Cluster) -> str:
    """The job script, for `sbatch`.

    Raises:
        ValueError: listing all that the cluster cannot run.
    """
    check_job(job, cluster)
    sections = [
        "\n".join(["#!/bin/bash", *_directives(job, cluster)]),
        "set -euo pipefail",
        _place(job, cluster),
        _variables("The network and other settings of this cluster", cluster.environment | _rank_lists(job, cluster)),
        _variables("Settings of this job", job.environment),
        _software(job, cluster),
        _commands("Before the step, on the first node; a failure ends the job", job.before),
        _step(job, cluster),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _directives(job: Job, cluster: Cluster) -> list[str]:
    partition = cluster.partition_of(job.kind)
    exclusive = job.memory_gib is None and partition.exclusive
    gpu_option = f"{cluster.gpu_option}={'gpu:' if cluster.gpu_option == 'gres' else ''}{job.gpus_per_node}"
    options = [
        f"job-name={job.name}",
        f"comment={job.comment}" if job.comment else "",
        f"account={cluster.account}" if cluster.account else "",
        f"partition={partition.name}",
        f"qos={partition.qos}" if partition.qos else "",
        f"nodes={job.num_nodes}",
        f"ntasks-per-node={job.tasks_per_node}",
        gpu_option if job.gpus_per_node else "",
        f"cpus-per-task={cpus_per_task(job, cluster)}",
        _memory(job, cluster),
        "exclusive" if exclusive else "",
        f"time={format_time_limit(job.time_limit_seconds)}",
        f"signal=USR1@{job.signal_seconds_before_end}" if job.signal_seconds_before_end else "",
        f"array={job.array}" if job.array else "",
        f"dependency={','.join(job.dependencies)}" if job.dependencies else "",
        "kill-on-invalid-dep=yes" if job.dependencies else "",
        f"exclude={','.join(job.exclude)}" if job.exclude else "",
        "requeue" if job.requeue or job.outlives_nodes else "no-requeue",
        "no-kill" if job.outlives_nodes else "",
        "open-mode=append",
        f"output={log_pattern(job.log_dir)}/{job.log_name}",
    ]
    return [f"#SBATCH --{_quote_directive(option)}" for option in options if option]


def _memory(job: Job, cluster: Cluster) -> str:
    if not cluster.memory_option:
        return ""
    partition = cluster.partition_of(job.kind)
    if job.memory_gib is not None:
        return f"mem={job.memory_gib}G"
    if job.gpus_per_node:
        return _share(partition, job.gpus_per_node, partition.gpus_per_node)
    return _share(partition, job.tasks_per_node * cpus_per_task(job, cluster), partition.cpus_per_node)


def _share(partition: Partition, taken: int, available: int) -> str:
    return "mem=0" if taken >= available else f"mem={partition.memory_gib * taken // available}G"  # 0: all that the node has


def log_pattern(log_dir: Path) -> str:
    """A directory as Slurm takes it in --output, where % starts a replacement."""
    return str(log_dir).replace("%", "%%")


def cpus_per_task(job: Job, cluster: Cluster) -> int:
    """CPUs of a task: what the job says, else its share of a node.

    A job that takes fewer GPUs than the node has gets as large a part of its CPUs, so that others can use the rest.
    """
    if job.cpus_per_task is not None:
        return job.cpus_per_task
    partition = cluster.partition_of(job.kind)
    cpus = partition.cpus_per_node
    if job.gpus_per_node:
        cpus = cpus * job.gpus_per_node // partition.gpus_per_node
    return max(1, cpus // job.tasks_per_node)


def _quote_directive(option: str) -> str:
    """sbatch splits at spaces, ends at # and knows double quotes with backslashes; there is no other expansion."""
    name, equals, value = option.partition("=")
    if set(value) <= _PLAIN:
        return option
    escaped = value.replace('"', '\\"')
    return f'{name}{equals}"{escaped}"'


def _place(job: Job, cluster: Cluster) -> str:
    lines = [
        "# Everything runs from the checkout; environment.sh sets PYTHONPATH, offline switches and the address of the first node.",
        f"cd -- {shlex.quote(str(job.work_dir))}",
    ]
    if cluster.cache_dir is not None:
        lines.append(f"export SCION_CACHE_DIR={shlex.quote(cluster.cache_dir)}")
    if cluster.address_suffix:
        lines.append(f"export SCION_ADDRESS_SUFFIX={shlex.quote(cluster.address_suffix)}")
    if cluster.address_ipv4:
        lines.append("export SCION_ADDRESS_IPV4=1")
    return "\n".join([*lines, "source slurm/environment.sh"])


def _rank_lists(job: Job, cluster: Cluster) -> dict[str, str]:
    """Values by local rank, of which slurm/task.sh gives each task its own; only where a task has a GPU of its own."""
    return (
        {f"SCION_BY_RANK_{name}": " ".join(values) for name, values in cluster.rank_environment.items()} if job.gpus_per_task == 1 else {}
    )


def _variables(title: str, variables: Mapping[str, str]) -> str:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join([f"# {title}.", *lines]) if lines else ""


def _software(job: Job, cluster: Cluster) -> str:
    runtime = cluster.runtime
    lines = []
    if runtime.modules:
        places = [word for path in runtime.module_paths for word in ("--use", path)]
        lines.append(f"load_modules {shlex.join([*places, *runtime.modules])}")
    if runtime.kind not in CONTAINERS and runtime.venv is not None:
        lines.append(f'export PATH={shlex.quote(str(job.work_dir / runtime.venv / "bin"))}:"$PATH"')
    if runtime.node_dir is not None:
        lines += [
            f'export SCION_NODE_COPY={shlex.quote(runtime.node_dir.rstrip("/"))}/scion_environment."$SLURM_JOB_ID"',
            f"{_ONCE_A_NODE} bash slurm/node_copy.sh unpack {shlex.quote(str(cluster.packed_environment))}",
            f"trap '{_ONCE_A_NODE} bash slurm/node_copy.sh remove || true' EXIT",
        ]
    return "\n".join(["# Software.", *lines]) if lines else ""


def _commands(title: str, commands: Iterable[Sequence[str]]) -> str:
    lines = [_CONTINUED.join(_lines(command)) for command in commands]
    return "\n".join([f"# {title}.", *lines]) if lines else ""


def _step(job: Job, cluster: Cluster) -> str:
    on_loss = "--no-kill --kill-on-bad-exit=0" if job.outlives_nodes else "--kill-on-bad-exit=1"
    srun = [f'srun --export=ALL {on_loss} --cpus-per-task="$SLURM_CPUS_PER_TASK"']
    if job.num_tasks > 1:
        srun[0] += f" --wait={job.step_wait_seconds}"
    srun += [shlex.quote(option) for option in (*cluster.step_options, *_binding(job, cluster), *_pyxis_options(job, cluster))]
    lines = [*srun, "bash slurm/task.sh", *_lines(container_prefix(job, cluster)), *_lines(job.command)]
    step = _CONTINUED.join(lines)
    title = f"# The step: {job.num_nodes} x {job.tasks_per_node} tasks; slurm/task.sh gives each its rank and becomes the command."
    if not job.after:
        return f"{title}\n{step}"
    return "\n".join(
        [
            title,
            "# The time limit and scancel end this shell too, unless it waits for the step and does what follows.",
            "trap ':' TERM",
            "SCION_EXIT_CODE=0",
            f"{step} || SCION_EXIT_CODE=$?",
            "export SCION_EXIT_CODE",
            "",
            _commands("After the step", job.after),
            'exit "$SCION_EXIT_CODE"',
        ]
    )


def _binding(job: Job, cluster: Cluster) -> list[str]:
    """The site's binding, which is made for whole nodes with a task for each GPU."""
    partition = cluster.partition_of(job.kind)
    whole = job.gpus_per_task == 1 and job.gpus_per_node == partition.gpus_per_node and job.cpus_per_task is None
    return [f"--cpu-bind={partition.cpu_bind}"] if partition.cpu_bind and whole else []


def container_prefix(job: Job, cluster: Cluster) -> list[str]:
    """Words ahead of a command that has to run in the runtime; empty where the host's environment is the runtime."""
    runtime = cluster.runtime
    if runtime.kind not in ("apptainer", "singularity"):
        return []
    binds = [word for path in bound_paths(job, cluster) for word in ("--bind", path)]
    gpus = [runtime.gpu_flag] if job.gpus_per_node and runtime.gpu_flag else []
    return [runtime.kind, "exec", *gpus, *binds, "--pwd", str(job.work_dir), cluster.image_path]


def _pyxis_options(job: Job, cluster: Cluster) -> list[str]:
    runtime = cluster.runtime
    if runtime.kind != "pyxis":
        return []
    mounts = ",".join(f"{path}:{path}" for path in bound_paths(job, cluster))
    return [
        f"--container-image={cluster.image_path}",
        f"--container-mounts={mounts}",
        f"--container-workdir={job.work_dir}",
        "--no-container-mount-home",
    ]


def _lines(words: Sequence[str]) -> list[str]:
    """Words quoted for bash, an option with its values a line, so that a long command can be read."""
    lines: list[list[str]] = []
    for word in words:
        if not lines or word.startswith("--") or "=" in word.partition(" ")[0]:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return [" ".join(line) for line in lines]
