"""eval.watch as a job array: what the command prints and refuses, and two workers on a real Slurm beside a run that goes on."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from common.artifacts import read_manifest, write_manifest
from recipes.rules.compose import compose_recipe
from recipes.runs.retention import read_holds
from slurm import watch
from slurm.jobs.queue import cancel_jobs
from slurm.jobs.watching import PATH_OPTIONS, with_absolute_paths
from tests.conftest import HELD_OUT, Inputs
from tests.processes import ROOT
from tests.slurm.chains import still_there
from tests.slurm.running_slurm import ACCOUNT, RunningSlurm


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    return tmp_path / "run"


def _words(run_dir: Path, *more: str) -> list[str]:
    where = ["--run", str(run_dir), "--output", str(run_dir.parent / "out")]
    return [*where, "--cluster", "local", "--set", f"runtime.venv={sys.prefix}", "--account", ACCOUNT, *more]


def test_files_of_the_harness_are_the_same_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from eval.harness import _parser

    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "a b.txt").touch()
    words, paths = with_absolute_paths(["--text", "sl=a b.txt", "en=a b.txt", "--tasks", "data", "--data=data", "--batch-size", "4"])
    text = f"{tmp_path}/a b.txt"
    assert words == ["--text", f"sl={text}", f"en={text}", "--tasks", "data", f"--data={tmp_path}/data", "--batch-size", "4"]
    assert [str(path) for path in paths] == [text, text, f"{tmp_path}/data"]
    files = {option for action in _parser()._actions for option in action.option_strings if action.metavar in ("DIR", "NAME=FILE")}
    assert files - {"--output"} == set(PATH_OPTIONS)


def test_plan_and_script_are_printed_and_nothing_is_written(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # a laptop: no Slurm
    assert watch.main(_words(run_dir, "--workers", "2", "--rounds", "3", "--once", "--", "--text", f"sl={HELD_OUT}")) == 0
    told = capsys.readouterr().out
    assert told.startswith("| checkpoint | state |")
    assert (
        "\nchecked: with the cluster file alone: there is no sinfo on this machine; run this where Slurm's commands are, on a login node\n"
        in told
    )
    assert "#SBATCH --array=0-5%2\n" in told and "#SBATCH --signal=USR1@120\n" in told
    assert "python -m eval.watch \\\n" in told and told.endswith("Nothing was submitted; add --submit to submit.\n")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_refusals(run_dir: Path, tmp_path: Path) -> None:
    def fails(sentence: str, *words: str) -> None:
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
            watch.main(_words(run_dir, *words))

    text = ["--", "--text", f"sl={HELD_OUT}"]
    fails("nothing to evaluate: give --text or --tasks after --, as for eval.harness")  # what eval.watch refuses is refused here too
    fails(
        f"--text sl={tmp_path}/no: {tmp_path}/no does not exist; give a path that the nodes of the cluster can read",
        "--",
        "--text",
        f"sl={tmp_path}/no",
    )
    fails("--workers is 0; expected at least 1", "--workers", "0", *text)
    fails("--rounds is 0; expected at least 1", "--rounds", "0", *text)
    assert not (tmp_path / "out").exists()


def _checkpoint(inputs: Inputs, run_dir: Path, step: int) -> None:
    """A checkpoint as training leaves it: whole, and renamed into place."""
    partial, final = (run_dir / "checkpoints" / name for name in (f".step_{step:07d}.partial", f"step_{step:07d}"))
    shutil.copytree(inputs.checkpoint, partial)
    made = read_manifest(partial)
    assert made is not None
    write_manifest(partial, stage="recipes.train", facts={**made.facts, "step": step}, hash_files=False)
    partial.rename(final)


def _start(slurm: RunningSlurm, run_dir: Path, *words: str) -> str:
    """Send the array as a user does; gives its id."""
    command = [sys.executable, "-m", "slurm.watch", *_words(run_dir, *words, "--submit", "--", "--text", f"sl={HELD_OUT}")]
    done = subprocess.run(command, cwd=ROOT, env=slurm.environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"^sent job (\d+); watch it with `python -m eval.watch ", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    return found[1]


def _log(out: Path, member: str) -> str:
    path = out / "slurm_logs" / f"{member}.log"
    return path.read_text(errors="replace") if path.exists() else ""


def _logs(out: Path) -> str:
    return "\n".join(f"== {path}\n{path.read_text(errors='replace')}" for path in sorted(out.glob("*logs/*.log")))


def _wait(condition: Callable[[], bool], out: Path, *, timeout_seconds: float = 240) -> None:
    end = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < end, f"late after {timeout_seconds} s\n{_logs(out)}"
        time.sleep(0.1)


@pytest.mark.long  # of each checkpoint two commands of the engine, one of them twice, and the harness
def test_two_workers_evaluate_a_run_that_goes_on_each_checkpoint_once(
    slurm: RunningSlurm, inputs: Inputs, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    out, (first, second) = run_dir.parent / "out", (f"step_{step:07d}" for step in (1, 2))
    recipe = compose_recipe("demo_adapt", ["model.checkpoint=m", "data.train=[d]", "schedule.max_steps=2"])
    (run_dir / "recipe.json").write_text(json.dumps(asdict(recipe)))
    _checkpoint(inputs, run_dir, 1)
    job = _start(slurm, run_dir, "--workers", "2", "--rounds", "2", "--every", "0.5")
    members = [f"{job}_{index}" for index in range(4)]
    try:
        _wait(lambda: any(f"{first}: started" in _log(out, member) for member in members), out)  # behind the file in the queue
        (worker,) = (member for member in members if f"{first}: started" in _log(out, member))
        # As Slurm tells it before the time limit: the worker leaves, and another takes its checkpoint over.
        slurm.run("scancel", "--signal=USR1", worker, check=False)  # 22.05 ends with 229 for a member of an array, having sent it
        _wait(lambda: f"{first}: given back\n" in _log(out, worker), out)
        _checkpoint(inputs, run_dir, 2)
        _wait(lambda: not still_there(members), out, timeout_seconds=480)
    finally:
        cancel_jobs([job])
    status = [sys.executable, "-m", "eval.watch", "--run", str(run_dir), "--output", str(out), "--status"]
    _, _, *rows = subprocess.run(status, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    assert [row[:2] for row in cells] == [[first, "done"], [second, "done"]], _logs(out)
    told = "".join(_log(out, member) for member in members)
    for step, (name, _, bits_per_byte) in enumerate(cells, start=1):
        result = json.loads((out / "results" / name / "result.json").read_text())
        assert result["facts"]["step"] == step and bits_per_byte == f"{result['texts']['sl']['bits_per_byte']:.4f}"
        assert told.count(f"{name}: done") == 1, "evaluated once"
    assert slurm.run("sacct", "-nPX", "-j", job, "-o", "state").stdout.split() == ["COMPLETED"] * 4, _logs(out)
    assert read_holds(run_dir) == [] and list((out / "exports").iterdir()) == []
