"""Check a cluster before a long run: login node, driver, software, network, clocks, disks, all-reduce.

Without --submit, only the login node is checked and the job script is printed.  Each check prints ok, a problem with its remedy, or not
applicable; exit code 1 if there is a problem.  With --run, a rehearsed run is checked too.  With --train, one node trains a tiny
model for a few minutes instead of the other node checks.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from common import command
from common.options import add_option
from common.plain_files import read_json
from slurm.chains.submissions import run_tag
from slurm.checks.findings import GIB, MIN_SCRATCH_GIB, NOT_APPLICABLE, OK, PROBLEM, Finding, first_step_finding, judge
from slurm.checks.node_facts import REDUCE_NAME, TOKEN_NAME, NodeFacts
from slurm.checks.trial import RESULT_NAME
from slurm.checks.trial_findings import judge_trial
from slurm.jobs.arguments import add_cluster_arguments, add_time_argument, cluster_of, output_directory
from slurm.jobs.job import Job, parse_time_limit
from slurm.jobs.queue import Tag, cancel_jobs, queued_jobs, send_job
from slurm.jobs.render import render_job
from slurm.jobs.training import require_cuda, why_no_training
from slurm.sites.cluster import CONTAINERS, Cluster
from slurm.sites.site import NoAnswer, check_site, missing_runtime

_POLL_SECONDS = 1.0
_LOG_LINES = 20


def main(argv: Sequence[str] | None = None) -> int:
    """Check, print, and say by the exit code whether all is well."""
    parser = command.parser(__doc__, example="python -m slurm.doctor --cluster vega --account b25 --nodes 4 --output doctor --submit")
    add_cluster_arguments(parser)
    add_time_argument(parser)
    add_option(parser, "--nodes N", "number of nodes to check", 2)
    add_option(
        parser,
        "--output",
        "new directory for the nodes' reports, on a file system that all nodes share",
        required=True,
        type=output_directory,
    )
    add_option(parser, "--wait-seconds S", "seconds to wait for the job, including the queue", 3600)
    add_option(parser, "--run RUN", "directory of a run: also compare its first step with its rehearsal", type=Path)
    add_option(parser, "--train", "trial training on one node: losses, kill and resume, kernels, speeds, a hang", False)
    add_option(parser, "--submit", "submit the job and wait for it", False)
    arguments = parser.parse_args(argv)
    cluster, output = cluster_of(arguments), arguments.output
    if arguments.train:
        job = trial_job(cluster, output, time_limit_seconds=parse_time_limit(arguments.time or "00:20:00"))
    else:
        job = checkup_job(cluster, output, num_nodes=arguments.nodes, time_limit_seconds=parse_time_limit(arguments.time or "00:10:00"))
    script = render_job(job, cluster)
    findings = login_findings(cluster, job)
    if arguments.run is not None:
        findings.append(first_step_finding(arguments.run))
    print("\n".join(map(str, findings)))
    if not arguments.submit:
        print(f"\nThe job that checks {job.num_nodes} nodes:\n\n{script}\nNothing was submitted; add --submit to submit.")
    else:
        checked = check_nodes(job, script, cluster, output, wait_seconds=arguments.wait_seconds, tries_training=arguments.train)
        print("\n".join(map(str, checked)))
        findings += checked
    return command.WRONG if any(finding.state == PROBLEM for finding in findings) else command.DONE


def checkup_job(cluster: Cluster, output: Path, *, num_nodes: int, time_limit_seconds: int) -> Job:
    """The job whose tasks, one per GPU, run `slurm.checkup`."""
    scratch = ["--path", cluster.scratch] if cluster.scratch else []
    return Job(
        name="doctor",
        command=("python", "-m", "slurm.checkup", "--output", str(output), *scratch),
        time_limit_seconds=time_limit_seconds,
        log_dir=output,
        log_name="log",
        comment=run_tag(output, 0).comment,
        num_nodes=num_nodes,
        tasks_per_node=max(1, cluster.gpu.gpus_per_node if cluster.gpu.gpu else 1),
        gpus_per_task=1 if cluster.gpu.gpu else 0,
        paths=(output,),
    )


def trial_job(cluster: Cluster, output: Path, *, time_limit_seconds: int) -> Job:
    """The job of one node with all its GPUs whose one task runs `slurm.trial`, which starts the ranks itself."""
    require_cuda(cluster)
    return Job(
        name="doctor-train",
        command=("python", "-m", "slurm.trial", "--output", str(output)),
        time_limit_seconds=time_limit_seconds,
        log_dir=output,
        log_name="log",
        gpus_per_task=cluster.gpu.gpus_per_node if cluster.gpu.gpu else 0,
        paths=(output,),
    )


def login_findings(cluster: Cluster, job: Job) -> list[Finding]:
    """What can be said without a job."""
    why = why_no_training(cluster)
    training = [Finding("training", NOT_APPLICABLE, why)] if why else []
    return [_slurm(cluster, job), _runtime(cluster), _scratch(cluster), *training]


def _slurm(cluster: Cluster, job: Job) -> Finding:
    try:
        checked = check_site([job], cluster, must_answer=True)
    except NoAnswer as error:
        return Finding("slurm", PROBLEM, str(error), "run this on a login node of the cluster")
    except ValueError as error:
        return Finding("slurm", PROBLEM, str(error), "correct it with --account, --set or a cluster file of your own")
    return Finding("slurm", OK, f"it accepts such a job: {checked}")


def _runtime(cluster: Cluster) -> Finding:
    missing = missing_runtime(cluster)
    if missing is not None:
        return Finding("runtime", PROBLEM, *missing)
    return Finding(
        "runtime", OK, f"{cluster.runtime.kind}, {cluster.image_path if cluster.runtime.kind in CONTAINERS else cluster.runtime.venv}"
    )


def _scratch(cluster: Cluster) -> Finding:
    if cluster.scratch is None:
        return Finding("scratch", NOT_APPLICABLE, "the cluster file names no scratch directory")
    scratch = Path(cluster.scratch)
    if not scratch.is_dir() or not os.access(scratch, os.W_OK):
        return Finding(
            "scratch", PROBLEM, f"{scratch} is not a directory that you can write to", "create it, or use --set scratch=DIRECTORY"
        )
    free = shutil.disk_usage(scratch).free / GIB
    if free < MIN_SCRATCH_GIB:
        return Finding("scratch", PROBLEM, f"{scratch} has {free:.1f} GiB free, expected {MIN_SCRATCH_GIB}", "remove old checkpoints")
    return Finding("scratch", OK, f"{scratch}, {free:,.0f} GiB free")


def check_nodes(
    job: Job, script: str, cluster: Cluster, output: Path, *, wait_seconds: float, tries_training: bool = False
) -> list[Finding]:
    """Send the job, wait for it and judge what the nodes said, or how training went.

    Raises:
        ValueError: if the output directory is not new, Slurm refuses the job, or it does not end in time.
    """
    if output.exists() and any(output.iterdir()):
        raise ValueError(f"the output directory {output} exists and is not empty; remove it or choose another --output")
    output.mkdir(parents=True, exist_ok=True)
    (output / TOKEN_NAME).write_text("written on the login node\n", encoding="utf-8")
    (output / "job.sh").write_text(script, encoding="utf-8")
    tag = run_tag(output, 0)
    job_id = send_job(output / "job.sh", tag)
    print(f"job {job_id} checks {job.num_nodes} nodes; its log is {output / job.log_name}", file=sys.stderr, flush=True)
    _wait(job_id, tag, wait_seconds)
    if tries_training:
        result = output / RESULT_NAME
        findings = judge_trial(read_json(result) if result.exists() else {})
        if any(finding.state == PROBLEM for finding in findings):
            _print_log(output / job.log_name)
        return findings
    nodes = [_read_facts(path) for path in sorted(output.glob("node-*.json"))]
    reduce_path = output / REDUCE_NAME
    reduce = read_json(reduce_path) if reduce_path.exists() else None
    findings = judge(cluster, nodes, reduce, expected_nodes=job.num_nodes)
    if any(finding.state == PROBLEM for finding in findings):
        _print_log(output / job.log_name)
    return findings


def _wait(job_id: str, tag: Tag, seconds: float) -> None:
    end = time.monotonic() + seconds
    while jobs := queued_jobs([tag]):
        if time.monotonic() > end:
            cancel_jobs([job.job_id for job in jobs])
            raise ValueError(
                f"job {job_id} did not end within {seconds:.0f} s and was cancelled; try again later, or with a larger --wait-seconds"
            )
        time.sleep(_POLL_SECONDS)


def _read_facts(path: Path) -> NodeFacts:
    content = read_json(path)
    return NodeFacts(**{**content, "gpus": tuple(map(tuple, content["gpus"])), "interfaces": tuple(content["interfaces"])})


def _print_log(path: Path) -> None:
    if path.exists():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        print("\n".join([f"the end of {path}:", *(f"    {line}" for line in lines)]), file=sys.stderr)


if __name__ == "__main__":
    command.run(main)
