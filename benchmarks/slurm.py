"""What Slurm costs: seconds of a submission, and seconds from the start of a job to its first step, by cause.

    SCION_SLURM_CLUSTER=slurm_cluster python -m benchmarks.slurm [--nodes 2] [--repetitions 3]

SCION_SLURM_CLUSTER names a tool that starts a real Slurm of many nodes on one machine.  The recipe is the demo's with a model of two layers,
so that nearly all of the time is overhead; the nodes share this machine's cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from recipes.rules.compose import compose_recipe
from slurm.chains.chain import ChainPlan, link_job
from slurm.chains.submissions import run_tag
from slurm.jobs.render import render_job
from slurm.jobs.training import training_job
from tests.slurm.running_slurm import ACCOUNT, RunningSlurm, running_slurm

ROOT = Path(__file__).resolve().parent.parent
TEXT = "recipes/demo_text/sl.train.txt"
SHAPE = ("--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4", "--ffn-size", "64", "--max-positions", "64")
STAGES = ("srun, task.sh, interpreter", "checks", "imports", "process group", "model, optimizer, weights", "first step")


def make_inputs(base: Path) -> list[str]:
    """A tiny checkpoint and data set; gives the overrides of a recipe that names them."""
    for module, *arguments in (
        ("data_prep.train_tokenizer", "--input", TEXT, "--vocab-size", 600, "--output", base / "tokenizer"),
        ("data_prep.to_megatron", "--input", TEXT, "--tokenizer", base / "tokenizer", "--output", base / "data"),
        ("conversion.new_model", *SHAPE, "--tokenizer", base / "tokenizer", "--seed", 1, "--output", base / "hf"),
        ("conversion.hf_to_nemo", "--input", base / "hf", "--output", base / "nemo"),
    ):
        subprocess.run([sys.executable, "-m", module, *map(str, arguments)], cwd=ROOT, check=True, capture_output=True)
    return [
        f"model.checkpoint={base}/nemo",
        f"data.train=[{base}/data]",
        "data.sequence_length=48",
        "schedule.max_steps=2",
        "schedule.warmup_steps=1",
        "schedule.micro_batch_size=1",
        "run.log_every_steps=1",
        "parallel.devices_per_node=1",
    ]


def submission_seconds(slurm: RunningSlurm, overrides: list[str], run_dir: Path, *words: str) -> float:
    start = time.monotonic()
    cluster = ["--cluster", "local", "--set", f"runtime.venv={sys.prefix}", "--account", ACCOUNT, "--output", str(run_dir)]
    command = [sys.executable, "-m", "slurm.submit", "demo_adapt", *overrides, *cluster, *words]
    subprocess.run(command, cwd=ROOT, env=slurm.environment, check=True, capture_output=True)
    return time.monotonic() - start


def start_seconds(slurm: RunningSlurm, overrides: list[str], run_dir: Path) -> dict[str, tuple[float, float | None]]:
    """Seconds of each stage between submission and the end of the first step, and those of rank 0's cores where they are known."""
    cluster = slurm.cluster()
    recipe = compose_recipe("demo_adapt", overrides)
    job = training_job(recipe, recipe_argument="demo_adapt", overrides=overrides, run_dir=run_dir, cluster=cluster, time_limit_seconds=600)
    training = ("python", "-m", "benchmarks.slurm_rank", *job.command[3:])
    watch = "date +%s.%N >>"
    link = link_job(job, run_dir, ChainPlan(links=1, signal_seconds=60), submission=1, tag=run_tag(run_dir, 1))
    link = replace(
        job,
        command=training,
        log_dir=run_dir,
        environment={"MARKS": f"{run_dir}/marks.json"},
        # The same commands that a link of a chain runs, with the clock before and after.
        before=(
            ("bash", "-c", f"{watch} {run_dir}/clock"),
            (*link.before[0][:2], "slurm.link", "--help"),
            ("bash", "-c", f"{watch} {run_dir}/clock"),
        ),
    )
    run_dir.mkdir(parents=True)
    submitted = time.time()
    job_id = slurm.submit(render_job(link, cluster))
    assert slurm.wait(job_id, timeout_seconds=300) == "COMPLETED", (
        run_dir / link.log_name.replace("%x-%j", f"{job.name}-{job_id}")
    ).read_text()
    begin, end = map(float, (run_dir / "clock").read_text().split())
    marks = json.loads((run_dir / "marks.json").read_text())
    started = datetime.fromisoformat(slurm.job(job_id)["StartTime"]).timestamp()
    print(f"  (Slurm says that the job started {started - submitted:+.0f} s after its submission, in whole seconds)", file=sys.stderr)
    stages: dict[str, tuple[float, float | None]] = {
        "queue, node, script": (begin - submitted, None),
        "slurm.link, its imports": (end - begin, None),
    }
    before = (end, 0.0)
    for stage in STAGES:
        stages[stage] = (marks[stage][0] - before[0], marks[stage][1] - before[1])
        before = marks[stage]
    return stages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_slurm(nodes=arguments.nodes) as slurm:
        base = Path(folder)
        overrides = [*make_inputs(base), f"parallel.num_nodes={arguments.nodes}"]
        printed = [submission_seconds(slurm, overrides, base / "none") for _ in range(arguments.repetitions)]
        print(f"slurm.submit, plan and script: {statistics.median(printed):.2f} s")
        runs = [start_seconds(slurm, overrides, base / f"run_{i}") for i in range(arguments.repetitions)]
        sent = [submission_seconds(slurm, overrides, base / f"sent_{i}", "--submit") for i in range(arguments.repetitions)]
        slurm.run("scancel", f"--account={ACCOUNT}")
        print(f"slurm.submit --submit, a chain of {ChainPlan.links} jobs: {statistics.median(sent):.2f} s")
        print(f"from submission to the end of the first step, {arguments.nodes} nodes with a task each:")
        print(f"  {'':<28}{'clock':>9}{'rank 0':>9}")
        for stage in runs[0]:
            clock = statistics.median(run[stage][0] for run in runs)
            cores = [run[stage][1] for run in runs if run[stage][1] is not None]
            print(f"  {stage:<28}{clock:>7.2f} s" + (f"{statistics.median(cores):>7.2f} s" if cores else ""))
        print(f"  {'all':<28}{statistics.median(sum(clock for clock, _ in run.values()) for run in runs):>7.2f} s")


if __name__ == "__main__":
    main()
