"""Cluster files are checked when they are read, and jobs against them before anything is submitted."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest

from recipes.planner.hardware import find_gpu
from slurm.jobs.job import Job, format_time_limit, parse_time_limit
from slurm.jobs.training import require_cuda
from slurm.sites.cluster import CLUSTERS_DIR, check_job, cluster_names, load_cluster
from tests.refusals import refused

JOB = Job(name="job", command=("true",), time_limit_seconds=3600, log_dir=Path("/logs"))


def test_unknown_cluster_names_the_known() -> None:
    with refused(
        f"there is no cluster lokal; did you mean local? The bundled clusters are {', '.join(cluster_names())}; a file of your own ends in .yaml"
    ):
        load_cluster("lokal")


def test_a_file_extends_a_bundled_cluster(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: local\nname: mine\naccount: b25\ngpu: {qos: long}\nscratch: $SPACE/me\n")
    cluster = load_cluster(str(mine), ("gpu.time_limit=48:00:00",), environment={"SPACE": "/large"})
    assert (cluster.name, cluster.account, cluster.gpu.qos, cluster.gpu.time_limit) == ("mine", "b25", "long", "48:00:00")
    assert (cluster.scratch, cluster.gpu.gpus_per_node) == ("/large/me", 4)


def test_all_problems_of_a_file_are_listed(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text('extends: local\naccount: "a b"\ngpu: {time_limit: 24h}\nruntime: {kind: pyxis, binds: [data]}\n')
    with refused(
        f"the cluster {mine} cannot run, 4 problems:\n"
        "  - gpu.time_limit: the time limit '24h' is not of the form hours:minutes:seconds or days-hours:minutes:seconds\n"
        "  - account is 'a b'; expected letters, digits and _ . : @ + -\n"
        "  - runtime.image is missing; pyxis needs one (set it with runtime.image=PATH; slurm.prefetch can download it)\n"
        "  - runtime.binds holds 'data'; expected an absolute path"
    ):
        load_cluster(str(mine))


def test_an_undefined_variable_and_an_unknown_key_are_named() -> None:
    with pytest.raises(ValueError, match=r"scratch names the variable \$WORK, which is not set here"):
        load_cluster("local", ("scratch=$WORK/x",), environment={})
    with pytest.raises(ValueError, match="unknown key acount; the nearest known key is account"):
        load_cluster("local", ("acount=x",))


def test_a_job_that_does_not_fit_lists_what_there_is() -> None:
    cluster = replace(load_cluster("local"), account_required=True)
    with refused(
        "job 'job' on local cannot run, 5 problems:\n"
        "  - no Slurm account to charge is given; set it with account=NAME (`sacctmgr show assoc user=$USER` lists yours)\n"
        "  - it asks for 65 nodes; a job of partition gpu can have 64\n"
        "  - it asks for 8 GPUs on a node; the nodes of partition gpu have 4\n"
        "  - it asks for 8 tasks x 8 CPUs = 64 CPUs on a node; the nodes of partition gpu have 32\n"
        "  - it asks for 25:00:00; the time limit of partition gpu is 24:00:00"
    ):
        check_job(replace(JOB, num_nodes=65, tasks_per_node=8, gpus_per_task=1, cpus_per_task=8, time_limit_seconds=25 * 3600), cluster)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "a\nb"}, r"name is 'a\\nb', which a #SBATCH line cannot hold"),
        ({"name": "interactive"}, "name is 'interactive', by which Lightning recognises interactive sessions"),
        ({"log_dir": Path("/a\\b")}, "log_dir is .* which a #SBATCH line cannot hold"),
        ({"log_dir": Path("logs")}, "log_dir is 'logs'; expected an absolute path"),
        ({"paths": (Path("data"),)}, "'data' in paths is not an absolute path"),
        ({"log_name": "a/b"}, "log_name is 'a/b'; expected a file name"),
        ({"array": "0-3;reboot"}, "array is '0-3;reboot'; expected indices"),
        ({"dependencies": ("afterok:x",)}, "the dependency 'afterok:x' is not valid in Slurm"),
        ({"exclude": ("gn01 --x",)}, "'gn01 --x' in exclude is not a name of a node"),
        ({"environment": {"A=B": ""}}, "'A=B' is not a name of an environment variable"),
        ({"command": ("a\0b",)}, "contains a NUL"),
        ({"command": ()}, "command is empty"),
        ({"num_nodes": 0}, "num_nodes is 0; expected at least 1"),
        ({"kind": "cpu", "gpus_per_task": 1}, "a job of the CPU partition asks for 1 GPUs per task"),
        ({"signal_seconds_before_end": 3600}, "the signal 3600 s before the end comes before the start of a job of 3600 s"),
    ],
)
def test_what_no_cluster_could_run(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_job(replace(JOB, **change), load_cluster("local"))  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "seconds"), [("00:01:00", 60), ("24:00:00", 86400), ("4-00:00:00", 345600)])
def test_time_limits(text: str, seconds: int) -> None:
    assert parse_time_limit(text) == seconds
    assert parse_time_limit(format_time_limit(seconds)) == seconds
    assert format_time_limit(61) == "00:02:00"


def test_texts_stay_what_was_written(tmp_path: Path) -> None:
    """YAML 1.1 takes yes for true, 007 for 7 and 24:00:00 for 86400."""
    given = (
        "account=007",
        "environment.A=yes",
        "environment.B=true",
        "environment.C=0x1F",
        "gpu.time_limit=12:00:00",
        "runtime.modules=[gcc/12]",
    )
    cluster = load_cluster("local", given)
    assert cluster.account == "007" and cluster.environment == {"A": "yes", "B": "true", "C": "0x1F"}
    assert cluster.gpu.time_limit == "12:00:00" and load_cluster("local", ("account=7", "account=null")).account is None
    file = tmp_path / "mine.yaml"
    file.write_text("extends: local\naccount: 007\nenvironment: {A: yes, N: 8}\ngpu: {time_limit: 12:00:00}\n")
    cluster = load_cluster(str(file))
    assert (cluster.account, cluster.environment, cluster.gpu.time_limit) == ("007", {"A": "yes", "N": "8"}, "12:00:00")
    file.write_text("extends: local\nenvironment: {A: true}\n")
    with pytest.raises(ValueError, match=r"environment.A is True; expected str"):
        load_cluster(str(file))


@pytest.mark.parametrize("hours", ["0", "-5", ".inf"])
def test_an_allocation_of_nothing_is_refused(hours: str) -> None:
    with pytest.raises(ValueError, match=r"allocation_gpu_hours is .*expected (more than 0|float)"):
        load_cluster("local", (f"allocation_gpu_hours={hours}",))


ENVIRONMENT = {"HOME": "/home/ana", "USER": "ana", "WORK": "/work/b25", "SCRATCH": "/scratch/b25"}


@pytest.mark.parametrize("name", cluster_names())
def test_the_planner_knows_the_gpu_of_every_bundled_cluster(name: str) -> None:
    """So that memory is checked there; `local` has none."""
    gpu = load_cluster(name, environment=ENVIRONMENT).gpu
    if name == "local":
        assert gpu.gpu is None
    else:
        assert gpu.gpus_per_node and find_gpu(str(gpu.gpu)).source


@pytest.mark.parametrize("name", [name for name in cluster_names() if name not in ("local", "a100")])
def test_every_value_of_a_site_has_its_source_beside_it(name: str) -> None:
    """Every line with a value has a comment, or stands below one that speaks for it."""
    lines = (CLUSTERS_DIR / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    values = [(before, line) for before, line in itertools.pairwise(lines) if re.match(r" *\w+: \S", line.partition(" #")[0])]
    named = re.compile(r"name: |account_required|environment: |^  (NCCL|GLOO|CXI|FI|MIOPEN)_|exclusive")
    assert [line for before, line in values if " # " not in line and " # " not in f" {before.lstrip()}" and not named.search(line)] == []


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rank_environment.UCX_NET_DEVICES=[a, b]", r"rank_environment.UCX_NET_DEVICES has 2 values; the nodes have 4 GPUs"),
        ("rank_environment.UCX_NET_DEVICES=[a, b, c, 'd e']", r"rank_environment.UCX_NET_DEVICES holds 'd e'; expected no spaces"),
        ("rank_environment.A-B=[a, b, c, d]", r"'A-B' in rank_environment is not a name of a variable"),
        ("step_options=[mpi=none]", r"step_options holds 'mpi=none'; expected an option such as --mpi=none"),
        ("address_suffix=; reboot", r"address_suffix is '; reboot'; expected letters, digits, . and -"),
        ("runtime.node_dir=tmp", r"runtime.node_dir is 'tmp'; expected an absolute path on each node, such as /tmp or /dev/shm"),
        ("runtime.node_dir=/tmp", r"runtime.node_dir needs a place for the packed environment; set scratch=DIRECTORY"),
        (
            "runtime={kind: pyxis, image: a.sqsh, node_dir: /tmp}",
            r"runtime.node_dir is for modules and venv; pyxis's image is one file already",
        ),
        ("runtime.module_paths=[modules]", r"runtime.module_paths holds 'modules'; expected an absolute path"),
    ],
)
def test_values_of_the_fabric_are_checked(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_cluster("local", (setting,))


def test_nemo_is_not_sent_to_gpus_of_amd() -> None:
    """One sentence, with the way that there is; a name that the planner does not know is left alone."""
    lumi = load_cluster("lumi", environment=ENVIRONMENT)
    with pytest.raises(
        ValueError, match=r"^lumi has AMD's MI250X-64GB, and NeMo is made for NVIDIA's CUDA alone: convert, transfer and evaluate"
    ):
        require_cuda(lumi)
    for name in (None, "GTX-9", "gh200-96gb"):
        require_cuda(replace(lumi, gpu=replace(lumi.gpu, gpu=name)))


def test_a_cluster_that_contains_itself_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("extends: local\nenvironment: &a {A: *a}\n")
    with pytest.raises(ValueError, match=r"mine.yaml"):
        load_cluster(str(file))


def test_more_nodes_of_leonardo_need_both_settings() -> None:
    job = replace(JOB, num_nodes=80)
    settings = ("account=x", "scratch=/scratch")
    with pytest.raises(ValueError, match=r"can have 64; for 65 to 256 nodes --set gpu.qos=boost_qos_bprod --set gpu.num_nodes=256, both"):
        check_job(job, load_cluster("leonardo", settings))
    check_job(job, load_cluster("leonardo", (*settings, "gpu.qos=boost_qos_bprod", "gpu.num_nodes=256")))
