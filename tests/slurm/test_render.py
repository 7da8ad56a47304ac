"""Job scripts: equal to the golden ones, sound for bash and shellcheck, and closed to whatever a name or a path holds."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from slurm.jobs.job import Job, parse_time_limit
from slurm.jobs.render import render_job
from slurm.jobs.watching import WatchPlan, watch_job
from slurm.sites.cluster import Cluster, Runtime, check_job, cluster_names, load_cluster
from tests.processes import ROOT

GOLDEN = Path(__file__).parent / "golden"
HOME = {"HOME": "/home/ana", "USER": "ana", "WORK": "/leonardo_work/EUHPC_X", "SCRATCH": "/e/scratch/b25"}
TRAIN = Job(
    name="sl",
    command=("python", "-m", "recipes.train", "--recipe", "gams/focus", "--output", "/scratch/runs/sl", "data.train=[/scratch/data/sl]"),
    time_limit_seconds=24 * 3600,
    log_dir=Path("/scratch/runs/sl/logs"),
    num_nodes=4,
    tasks_per_node=4,
    gpus_per_task=1,
    signal_seconds_before_end=600,
    work_dir=Path("/home/ana/scion"),
    paths=(Path("/scratch/runs/sl"), Path("/scratch/data/sl")),
)
COUNT = Job(
    name="data",
    command=("python", "-m", "data_prep.dedup", "--corpora", "corpora.yaml", "--output", "/scratch/text"),
    time_limit_seconds=3600,
    log_dir=Path("/scratch/logs"),
    kind="cpu",
    dependencies=("afterok:17:18",),
    exclude=("gn03",),
    array="0-11%4",
    requeue=True,
    environment={"TOPIC": "a b"},
    before=(("python", "-m", "slurm.jobs.provenance", "--output", "/scratch/text/run"),),
    after=(("touch", "/scratch/done"),),
    work_dir=Path("/home/ana/scion"),
    paths=(Path("/scratch"),),
)
WATCH = replace(
    watch_job(
        Path("/scratch/runs/sl"),
        Path("/scratch/runs/sl_evaluations"),
        ["--text", "sl=/scratch/held out.txt", "--tasks", "sl_generative", "--data", "/scratch/eval_data"],
        WatchPlan("gpu", workers=2, rounds=3, options=("--idle-minutes", "30")),
        time_limit_seconds=4 * 3600,
        paths=(Path("/scratch/held out.txt"), Path("/scratch/eval_data")),
    ),
    work_dir=Path("/home/ana/scion"),
)
NUM_DIRECTIVES = 13
RUNTIMES = {
    "apptainer": Runtime("apptainer", image="nemo.sif"),
    "singularity": Runtime("singularity", image="/images/nemo.sif", binds=("/data",), modules=("singularity",)),
    "pyxis": Runtime("pyxis", image="nvcr.io#nvidia/nemo:25.11"),
    "modules": Runtime("modules", modules=("python/3.11", "cuda/12.6"), venv="/scratch/venv"),
    "venv": Runtime("venv", venv=".venv"),
    "node-dir": Runtime("modules", modules=("python/3.11",), venv=".venv", node_dir="/tmp"),
}


def _cluster(name: str) -> Cluster:
    cluster = load_cluster(name, environment=HOME)
    return replace(cluster, account="b25") if cluster.account_required else cluster


def _within_limit(job: Job, cluster: Cluster) -> Job:
    return replace(job, time_limit_seconds=min(job.time_limit_seconds, parse_time_limit(cluster.gpu.time_limit)))


CASES = {
    **{f"{name}-train": (_within_limit(TRAIN, _cluster(name)), _cluster(name)) for name in cluster_names()},
    # On the other clusters, nothing that their trainings do not show but what CPU_PARTITIONS has.
    **{f"{name}-cpu": (COUNT, _cluster(name)) for name in ("local", "lumi", "vega")},
    "vega-watch": (WATCH, _cluster("vega")),
    "lumi-whole": (replace(TRAIN, tasks_per_node=8, command=("python", "pretrain_gpt.py")), _cluster("lumi")),
    **{f"runtime-{kind}": (TRAIN, replace(_cluster("vega"), runtime=runtime)) for kind, runtime in RUNTIMES.items()},
}
CPU_PARTITIONS = {  # and the CPUs of a job there
    "a100": ("gpu", 64),
    "jupiter": ("booster", 288),
    "juwels": ("booster", 96),
    "leonardo": ("dcgp_usr_prod", 112),
    "marenostrum5": ("gpp\n#SBATCH --qos=gp_ehpc", 112),
    "snellius": ("genoa", 192),
}


@pytest.mark.parametrize("case", CASES)
def test_scripts_are_the_golden_ones(case: str) -> None:
    """After a wanted change: SCION_WRITE_GOLDEN=1 python -m pytest tests/slurm/test_render.py, and read the difference."""
    path = GOLDEN / f"{case}.sh"
    script = render_job(*CASES[case])
    if os.environ.get("SCION_WRITE_GOLDEN"):
        path.write_text(script, encoding="utf-8")
    assert script == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CPU_PARTITIONS)
def test_cpu_jobs_go_to_their_partition(name: str) -> None:
    partition, cpus = CPU_PARTITIONS[name]
    script = render_job(COUNT, _cluster(name))
    assert f"#SBATCH --partition={partition}\n" in script and f"#SBATCH --cpus-per-task={cpus}\n" in script


def test_every_golden_script_is_rendered() -> None:
    assert {path.stem for path in GOLDEN.glob("*.sh")} == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_bash_accepts_the_scripts(case: str) -> None:
    subprocess.run(["bash", "-n"], input=render_job(*CASES[case]), text=True, check=True)


def test_shellcheck_accepts_all_scripts(tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed: apt-get install shellcheck")
    scripts = [ROOT / "slurm" / name for name in ("environment.sh", "node_copy.sh", "task.sh")]
    for case in CASES:
        scripts.append(tmp_path / f"{case}.sh")
        scripts[-1].write_text(render_job(*CASES[case]), encoding="utf-8")
    # SC1091: the checkout of the golden scripts is not here.
    done = subprocess.run(["shellcheck", "--exclude=SC1091", *map(str, scripts)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


NASTY = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    [
        "$(reboot)",
        "`id`",
        "a b",
        "a'b",
        'a"b',
        "a\nb",
        "\n#SBATCH --nodes=9\n",
        "--",
        "č ž",
        "*",
        "~",
        "\\",
        "$HOME",
        "|| exit 0",
        "a\tb",
        "",
        "%j",
        "#x",
    ]
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(NASTY, min_size=1, max_size=6), value=NASTY, before=st.lists(NASTY, max_size=3), folder=NASTY)
@example(words=["'\"'\"'\n"], value="\n", before=[], folder="a'b\nc")
def test_words_reach_the_command_as_they_are(words: list[str], value: str, before: list[str], folder: str, tmp_path: Path) -> None:
    """The script runs with srun, scontrol and task.sh as they are found on a node, but the command prints what it was given."""
    folder = "x" + folder.replace("/", "_").encode()[:100].decode(errors="ignore")
    work_dir = tmp_path / folder
    (work_dir / "slurm").mkdir(parents=True, exist_ok=True)
    for name in ("environment.sh", "task.sh"):
        shutil.copy(ROOT / "slurm" / name, work_dir / "slurm" / name)
    stand_ins = {"srun": 'while [[ "$1" != bash ]]; do shift; done\nexec "$@"', "scontrol": "echo gn01"}
    for name, body in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    show = "import json, os, sys; json.dump([sys.argv[1:], os.environ['VALUE'], os.getcwd()], open(os.environ['SHOW'], 'w'))"
    job = Job(
        name="x",
        command=("python", "-c", show, *words),
        time_limit_seconds=60,
        log_dir=Path("/logs"),
        environment={"VALUE": value},
        before=(("printf", "%s", *before),) if before else (),
        work_dir=work_dir,
    )
    cluster = replace(_cluster("local"), runtime=Runtime("venv", venv=sys.prefix))
    slurm = {
        "JOB_ID": "7",
        "JOB_NODELIST": "gn01",
        "CPUS_PER_TASK": "1",
        "PROCID": "0",
        "LOCALID": "0",
        "NTASKS": "1",
        "NNODES": "1",
        "NODEID": "0",
    }
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SHOW": str(tmp_path / "shown")}
    environment |= {f"SLURM_{name}": text for name, text in slurm.items()}
    (tmp_path / "shown").unlink(missing_ok=True)
    subprocess.run(["bash", "-s"], input=render_job(job, cluster), env=environment, cwd="/", text=True, check=True, capture_output=True)
    assert json.loads((tmp_path / "shown").read_text()) == [words, value, str(work_dir)]


@settings(max_examples=100, deadline=None)
@given(name=NASTY, folder=NASTY)
def test_directives_stay_one_line_each(name: str, folder: str) -> None:
    job = replace(TRAIN, name=name, log_dir=Path("/logs") / folder)
    try:
        check_job(job, _cluster("vega"))
    except ValueError as error:
        assert "which a #SBATCH line cannot hold" in str(error)
        return
    head = render_job(job, _cluster("vega")).split("\n\n")[0].split("\n")
    assert head[0] == "#!/bin/bash" and len(head) == NUM_DIRECTIVES + 1
    assert all(line.startswith("#SBATCH --") for line in head[1:])


def test_a_container_refuses_paths_that_it_cannot_bind() -> None:
    for path in ("/a,b", "/a:b", "/a\\b", "/a "):
        sentence = f"apptainer cannot bind {path!r}: commas, colons and backslashes are special in its binds"
        with pytest.raises(ValueError, match=re.escape(sentence)):
            render_job(replace(TRAIN, paths=(Path(path),)), _cluster("vega"))


def test_the_binding_of_a_site_is_for_whole_nodes() -> None:
    cluster = _cluster("lumi")
    masks = f"--cpu-bind={cluster.gpu.cpu_bind}"
    assert masks in render_job(replace(TRAIN, tasks_per_node=8), cluster)
    for job in (TRAIN, COUNT, replace(TRAIN, tasks_per_node=1, gpus_per_task=8), replace(TRAIN, tasks_per_node=8, cpus_per_task=3)):
        assert "--cpu-bind" not in render_job(job, cluster)


def test_the_cards_of_ranks_go_to_tasks_with_a_gpu_each() -> None:
    line = "export SCION_BY_RANK_UCX_NET_DEVICES='mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_3:1'"
    assert line in render_job(TRAIN, _cluster("juwels"))
    assert "SCION_BY_RANK" not in render_job(COUNT, _cluster("juwels"))


def test_a_part_of_a_node_takes_its_part_of_cpus_and_memory() -> None:
    script = render_job(replace(TRAIN, num_nodes=1, tasks_per_node=1), _cluster("vega"))
    assert "#SBATCH --cpus-per-task=64\n#SBATCH --mem=117G\n" in script
