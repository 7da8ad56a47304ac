"""The queue that outlives its workers, and a run watched from checkpoint to report."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

import pytest

from common.artifacts import write_manifest
from eval.running.watched_run import WatchedRun
from eval.running.work_queue import STATES, WorkQueue
from eval.watch import _leave_in_time, main
from recipes.runs.retention import Retention, read_holds, remove_old_checkpoints
from tests.eval.made_results import make_result

ROOT = Path(__file__).resolve().parents[2]


def test_newest_first_then_those_that_were_missed(tmp_path):
    queue = WorkQueue(tmp_path)
    assert queue.add(["step_0000010", "step_0000030", "step_0000020"]) == ["step_0000010", "step_0000030", "step_0000020"]
    first = queue.claim()
    assert first is not None and first.name == "step_0000030"
    other = WorkQueue(tmp_path).claim()
    assert other is not None and other.name == "step_0000020", "a piece that is held is nobody else's"
    assert queue.names("running") == ["step_0000020", "step_0000030"]
    queue.finish(first, failed=False, record={"seconds": 1})
    queue.finish(other, failed=True, record={"failure": "no"})
    assert queue.add(["step_0000030", "step_0000020", "step_0000040"]) == ["step_0000040"]
    assert queue.record("failed", "step_0000020") == {"failure": "no"}
    assert queue.retry_failed() == ["step_0000020"]
    assert queue.names("pending") == ["step_0000010", "step_0000020", "step_0000040"]


def test_a_piece_that_another_takes_while_this_one_looks_is_worked_on_once(tmp_path):
    """Two workers that start at the same time: one has looked into all folders and puts in what it missed, the other has taken that already."""
    claims = []

    def put_in_and_take():
        other = WorkQueue(tmp_path)
        other.add(["a"])
        claims.append(other.claim())

    class Slow(WorkQueue):
        def names(self, state):
            found = super().names(state)
            if state == STATES[-1] and not thread.ident:
                thread.start()
                thread.join(1)  # in vain where it has to wait for this one
            return found

    thread = threading.Thread(target=put_in_and_take)
    queue = Slow(tmp_path)
    queue.add(["a"])
    claims.append(queue.claim())
    thread.join()
    assert [claim.name for claim in claims if claim is not None] == ["a"]
    assert (queue.names("pending"), queue.names("running")) == ([], ["a"])


def test_a_dead_workers_piece_goes_back(tmp_path):
    queue = WorkQueue(tmp_path)
    queue.add(["a"])
    code = (
        "import sys, time; from pathlib import Path; from eval.running.work_queue import WorkQueue;"
        "claim = WorkQueue(Path(sys.argv[1])).claim(); print(claim.name, flush=True); time.sleep(60)"
    )
    worker = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None and worker.stdout.readline() == "a\n"
        assert queue.claim() is None
        assert queue.take_back_abandoned() == []
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait(timeout=30)
    assert queue.take_back_abandoned() == ["a"]
    claim = queue.claim()
    assert claim is not None and claim.name == "a"


def test_many_workers_take_each_piece_once(tmp_path):
    names = [f"step_{n:07d}" for n in range(60)]
    WorkQueue(tmp_path).add(names)
    code = (
        "import sys; from pathlib import Path; from eval.running.work_queue import WorkQueue; queue = WorkQueue(Path(sys.argv[1]))\n"
        "while (claim := queue.claim()) is not None:\n"
        "    print(claim.name)\n"
        "    queue.finish(claim, failed=False, record={})\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    workers = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    taken = [name for worker in workers for name in worker.communicate(timeout=60)[0].split()]
    assert sorted(taken) == names


@pytest.fixture
def run_dir(tmp_path) -> Path:
    for step in (10, 20):
        folder = tmp_path / "run" / "checkpoints" / f"step_{step:07d}"
        folder.mkdir(parents=True)
        write_manifest(folder, stage="recipes.train", facts={"step": step})
    (tmp_path / "run/checkpoints/.step_0000030.partial-1").mkdir()
    (tmp_path / "run/checkpoints/step_0000040").mkdir()  # being copied by hand: no manifest yet
    return tmp_path / "run"


def write_recipe(run_dir: Path, *, steps: int) -> None:
    from recipes.rules.compose import compose_recipe

    overrides = ["model.checkpoint=m", "data.train=[d]", f"schedule.max_steps={steps}"]
    (run_dir / "recipe.json").write_text(json.dumps(asdict(compose_recipe("demo_adapt", overrides))))


def held(run_dir: Path) -> list[str]:
    return [hold.checkpoint for hold in read_holds(run_dir)]


def test_only_whole_checkpoints_are_seen(run_dir, tmp_path):
    watch = WatchedRun(run_dir, tmp_path / "out")
    make_result(tmp_path / "out/results", "step_0000010", "focus", 10, skill=0.5, items=20)
    watch.queue.add(["step_0000010"])
    claim = watch.queue.claim()
    assert claim is not None
    watch.queue.finish(claim, failed=False, record={})
    header, _, *rows = watch.status().splitlines()
    assert [cell.strip() for cell in header.split("|")[1:5]] == ["checkpoint", "state", "sl, bits per byte", "en, bits per byte"]
    assert "sl_boolq_gen" in header
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    assert cells[0][:2] == ["step_0000010", "done"]
    figures = json.loads((tmp_path / "out/results/step_0000010/result.json").read_text())
    assert cells[0][2] == f"{figures['texts']['sl']['bits_per_byte']:.4f}"
    assert cells[1] == ["step_0000020", "new", "–", "–", "–", "–", "–", "–"]


def test_the_run_is_over_when_its_last_step_was_evaluated(run_dir, tmp_path):
    watch = WatchedRun(run_dir, tmp_path / "out")
    assert not watch.is_over()
    write_recipe(run_dir, steps=20)
    watch.hold_and_queue()
    for name in ("step_0000020", "step_0000010"):
        assert not watch.is_over()
        claim = watch.queue.claim()
        assert claim is not None and claim.name == name
        watch.queue.finish(claim, failed=name.endswith("10"), record={})
    assert watch.is_over()


def test_what_waits_is_held_against_the_trainings_retention(run_dir, tmp_path, capsys):
    watch, other = WatchedRun(run_dir, tmp_path / "out"), WatchedRun(run_dir, tmp_path / "other")
    watch.hold_and_queue()
    assert held(run_dir) == ["step_0000010", "step_0000020"]
    for step in (50, 60):  # the training goes on, and keeps its newest two
        (run_dir / f"checkpoints/step_{step:07d}").mkdir()
        write_manifest(run_dir / f"checkpoints/step_{step:07d}", stage="recipes.train", facts={"step": step})
    assert remove_old_checkpoints(run_dir, Retention(2, 8)) == []
    assert (run_dir / "checkpoints/step_0000010").is_dir()
    for name in ("step_0000020", "step_0000010"):
        claim = watch.queue.claim()
        assert claim is not None and claim.name == name
        watch.queue.finish(claim, failed=False, record={})
    other.hold_and_queue()
    arguments = ["--run", str(run_dir), "--release", "--output"]
    assert main([*arguments, str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == "released step_0000010, step_0000020\n"
    assert main([*arguments, str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/out holds no checkpoint of {run_dir}\n"
    assert remove_old_checkpoints(run_dir, Retention(2, 8)) == [], "the other evaluation holds all that there is"
    assert len(other.release_all()) == 4
    assert remove_old_checkpoints(run_dir, Retention(2, 8)) == []
    assert sorted(path.name for path in (run_dir / "checkpoints").glob("step_*0")) == ["step_0000040", "step_0000050", "step_0000060"]


def test_a_run_that_cannot_be_written_to_is_evaluated_without_holds(run_dir, tmp_path, capsys):
    (run_dir / "holds").write_text("in the way")
    watch = WatchedRun(run_dir, tmp_path / "out")
    watch.hold_and_queue()
    assert watch.queue.names("pending") == ["step_0000010", "step_0000020"]
    assert "step_0000010 is not protected, so training may remove it: " in capsys.readouterr().err


def test_told_to_leave_while_it_says_something(monkeypatch, capfd):
    class Interrupted(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            _leave_in_time(signal.SIGUSR1, None)

    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(Interrupted())))
    with pytest.raises(SystemExit) as left:
        print("step_0000020: started", file=sys.stderr, flush=True)
    assert left.value.code == 0 and capfd.readouterr().err == "asked to exit before the time limit\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGUSR1, 0), (signal.SIGTERM, 143)])
def test_a_worker_that_is_told_to_leave_gives_its_checkpoint_back(run_dir, tmp_path, number, code):
    words = ["--run", str(run_dir), "--output", str(tmp_path / "out"), "--", "--text", "sl=none.txt"]
    worker = subprocess.Popen([sys.executable, "-m", "eval.watch", *words], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert worker.stderr is not None and worker.stderr.readline() == "step_0000020: started\n"
    worker.send_signal(number)
    _, told = worker.communicate(timeout=60)
    assert worker.returncode == code, told
    assert told.endswith("step_0000020: given back\n")
    queue = WorkQueue(tmp_path / "out/queue")
    assert (queue.names("pending"), queue.names("running"), queue.names("failed")) == (["step_0000010", "step_0000020"], [], [])
    assert held(run_dir) == ["step_0000010", "step_0000020"], "until another worker has evaluated them"


def test_a_worker_leaves_when_nothing_comes(run_dir, tmp_path, capsys):
    watch = WatchedRun(run_dir, tmp_path / "out")
    watch.hold_and_queue()
    while (claim := watch.queue.claim()) is not None:
        watch.queue.finish(claim, failed=False, record={})
    words = ["--run", str(run_dir), "--output", str(tmp_path / "out"), "--every", "0.1", "--idle-minutes", "0.002", "--", "--text", "sl=x"]
    assert main(words) == 0
    assert capsys.readouterr().err == "nothing to evaluate for 0.002 minutes; this worker exits\n"


def test_refusals_and_failures(run_dir, tmp_path, capsys):
    def fails(sentence, *arguments):
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
            main([*map(str, arguments)])

    out = tmp_path / "out"
    text = ["--", "--text", f"sl={tmp_path}/none.txt"]
    fails(f"{tmp_path}/no has no checkpoints; expected the output of `python -m recipes.train`", "--run", tmp_path / "no", "--output", out)
    fails("nothing to evaluate: give --text or --tasks after --, as for eval.harness", "--run", run_dir, "--output", out)
    for option in ("--every", "--idle-minutes", "--hold-hours"):
        fails(f"{option} is 0.0; it must be more than 0", "--run", run_dir, "--output", out, option, "0", *text)
    taken = "--model after --: the command sets them itself; leave them out"
    fails(taken, "--run", run_dir, "--output", out, *text, "--model", "x")
    with pytest.raises(SystemExit, match="2"):
        main(["--run", str(run_dir), "--output", str(out), *text, "--tsaks", "sl_copa_mc"])
    assert capsys.readouterr().err.splitlines()[-1].endswith("error: unrecognized arguments: --tsaks sl_copa_mc")
    assert not out.exists()
    (run_dir / "checkpoints/step_0000010/scion.json").unlink()
    assert main(["--run", str(run_dir), "--output", str(out), "--once", *text]) == 1
    failure = WorkQueue(out / "queue").record("failed", "step_0000020")["failure"]
    assert failure.startswith("export failed: ")
    assert failure.endswith(f"; see {out}/logs/step_0000020.log")
    assert "| step_0000020 | failed |" in capsys.readouterr().out
    assert not (out / "exports").exists() or not any((out / "exports").iterdir())
    assert held(run_dir) == ["step_0000020"], "it can be mended and tried again, until the hold ends"


@pytest.mark.long  # NeMo is started four times
def test_checkpoints_are_exported_compared_and_evaluated(tmp_path, capsys):
    from conversion import hf_to_nemo
    from tests.eval.tiny_models import SENTENCES, tiny_opt, tiny_tokenizer

    run = tmp_path / "run"
    for step in (10, 20):
        hf_dir, checkpoint = tmp_path / "hf" / str(step), run / "checkpoints" / f"step_{step:07d}"
        tiny_opt(seed=step).save_pretrained(hf_dir)
        tiny_tokenizer().save_pretrained(hf_dir)
        manifest = hf_to_nemo.convert(hf_dir, checkpoint)
        write_manifest(checkpoint, stage="recipes.train", facts={**manifest.facts, "step": step, "method": "focus"})
    (tmp_path / "sl.txt").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    harness = ["--", "--text", f"sl={tmp_path}/sl.txt", "--tasks", "completion_sl"]
    environment = dict(os.environ)
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        assert main(["--run", str(run), "--output", str(tmp_path / "out"), "--once", *harness]) == 0
    finally:
        os.environ.clear()
        os.environ.update(environment)
    printed = capsys.readouterr().out
    assert re.search(r"\| step_0000010 \| done +\| +\d\.\d{4} \|", printed)
    found = [json.loads((tmp_path / f"out/results/step_00000{step}/result.json").read_text()) for step in (10, 20)]
    assert [result["facts"]["step"] for result in found] == [10, 20]
    assert found[0]["texts"]["sl"]["bits_per_byte"] != found[1]["texts"]["sl"]["bits_per_byte"]
    assert list((tmp_path / "out/exports").iterdir()) == []
