"""The faults of `tests.slurm.chaos`: a table of names, what is done, and what may come of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from common.artifacts import MANIFEST_NAME
from slurm import stop
from slurm.chains import causes as why
from slurm.chains.run_report import NOT_SUBMITTED, report_run
from slurm.jobs.job import ROOT
from tests.slurm.chaos_case import Case, Fault
from tests.slurm.running_slurm import ACCOUNT, OTHER_ACCOUNT

PROGRAMS = ("sbatch", "squeue", "scontrol", "sinfo", "scancel", "sacct")
CLOCK = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t c, struct timespec *t) {
    int code = ((int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime"))(c, t);
    if (c == CLOCK_REALTIME) t->tv_sec -= 7200;
    return code;
}
"""


def power(case: Case, action: str, *nodes: str) -> None:
    for node in nodes:
        case.sh(case.chain.slurm.tool, "--state", case.chain.slurm.state, "node", action, node)


def node_off(case: Case, *, first: bool | None = None, both: bool = False, back: bool = False) -> None:
    nodes = case.chain.attempts()[-1].nodes if both else (case.node(first=first),)
    power(case, "power-off", *nodes)
    if back:
        power(case, "power-on", *nodes)


def no_daemon(case: Case, *, back: bool) -> None:
    node = case.node()
    power(case, "kill-slurmd", node)
    if back:
        time.sleep(2)
        power(case, "start-slurmd", node)


def unplugged(case: Case, seconds: float) -> None:
    node = case.node()
    power(case, "unplug", node)
    time.sleep(seconds)
    power(case, "plug", node)


def set_node(case: Case, state: str) -> None:
    case.sh("scontrol", "update", f"NodeName={case.node()}", f"State={state}", "Reason=chaos")


def preempt(case: Case) -> None:
    nodes = ",".join(case.chain.attempts()[-1].nodes)
    words = (f"--account={ACCOUNT}", "--partition=urgent", f"--nodelist={nodes}", "--exclusive", "--time=5", "--output=/dev/null")
    case.chain.slurm.submit("#!/bin/bash\nsleep 3\n", *words)
    time.sleep(2)


def lost_state(case: Case) -> None:
    """The controller forgets all jobs and gives their numbers out again, to jobs of others."""
    first, conf = int(case.chain.job_ids[0]), case.chain.slurm.state / "etc" / "slurm.conf"
    lines = [f"FirstJobId={first}" if line.startswith("FirstJobId=") else line for line in conf.read_text().splitlines()]
    conf.write_text("\n".join([*lines, ""]))
    case.stop_daemon("slurmctld", 0.5, forgets=True)
    ids = [case.chain.slurm.submit("#!/bin/bash\nsleep 600\n", f"--account={ACCOUNT}", "--hold", "--time=10") for _ in range(3)]
    if str(first) not in map(str, ids):
        case.lies.append(f"the numbers {first} were not given out again: {ids}")
    report = report_run(case.run_dir)
    if report.running_job or report.waiting_jobs or stop.main([str(case.run_dir), "--timeout", "5"]) != 1:
        case.lies.append("jobs of others with our numbers are taken for ours")
    if any(case.chain.slurm.job(job_id)["JobState"] != "PENDING" for job_id in ids):
        case.lies.append("jobs of others with our numbers were cancelled")
    case.chain.job_ids.clear()
    case.sh("scancel", *map(str, ids))
    case.until(lambda: not case.on(case.node(), "pgrep", "-f", "chaos_rank").split(), seconds=60)


def kill_script(case: Case) -> None:
    case.kill_like(f"^/bin/bash .*job{case.running() or 0}/slurm_script")


def ruin(case: Case, name: str) -> None:
    """Cut a record; the status must name what to remove."""
    path = case.run_dir / name
    case.kill()
    path.write_text('{"num')
    case.undo.append(lambda: shutil.rmtree(path.parent) if path.parent != case.run_dir else path.unlink())


def spoil(case: Case, how: Callable[[Path], object]) -> None:
    """Damage the newest checkpoint and end the attempt before there is a newer one."""
    newest = case.newest()
    case.kill(0)
    time.sleep(0.1)
    how(case.newest() if case.newest() != newest else newest)


def flip(path: Path) -> None:
    state = path / "weights" / "state"
    text = state.read_text()
    state.write_text(("0" if text[0] != "0" else "1") + text[1:])


def file_instead(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("x")


def full_disk(case: Case) -> None:
    filler = case.base / "filler"
    subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=64k"], check=False, capture_output=True)
    time.sleep(2)
    case.kill()

    def free() -> None:
        if "disk" not in (reason := report_run(case.run_dir).reason):
            case.lies.append(f"status does not say that the disk is full: {reason}")
        filler.unlink()

    case.undo.append(free)


def read_only(case: Case) -> None:
    """The disk is so when a link begins, whose log cannot be opened."""
    hold(case)
    case.until(lambda: case.running() is None)
    subprocess.run(["mount", "-o", "remount,ro", str(case.base.parent)], check=True)
    case.undo.append(lambda: subprocess.run(["mount", "-o", "remount,rw", str(case.base.parent)], check=True))
    for job_id in case.queue() or {}:
        case.sh("scontrol", "release", job_id)


def wrapped(case: Case, script: str, *programs: str) -> None:
    """Site scripts around Slurm's programs, in the shell of the user and in the job."""
    folder = case.base / f"bin{len(list(case.base.glob('bin*')))}"
    folder.mkdir()
    for program in programs:
        (folder / program).write_text(f"#!/bin/bash\n{script.format(real=shutil.which(program), folder=folder)}\n")
        (folder / program).chmod(0o755)
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"


def in_environment(case: Case, **variables: str) -> None:
    os.environ.update(variables)

    def check() -> None:
        job = case.chain.slurm.job(int(case.chain.job_ids[0]))
        if (job["Account"], job["Partition"], job["TimeLimit"], job["Requeue"]) != (ACCOUNT, "gpu", "00:20:00", "1"):
            case.lies.append(f"the caller's variables reached the job: {job}")

    case.undo.append(check)


def other_clock(case: Case) -> None:
    library = case.base / "clock.so"
    compiler = ["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-o", str(library), "-", "-ldl"]
    subprocess.run(compiler, input=CLOCK, text=True, check=True)
    case.job_changes["environment"] = {"LD_PRELOAD": str(library), "TZ": "Pacific/Kiritimati"}


def files_of_tomorrow(case: Case) -> None:
    for path in case.run_dir.rglob("*"):
        with_time = time.time() + 86400
        if path.exists() and not path.name.startswith("."):
            os.utime(path, (with_time, with_time))


def copy_and_stop(case: Case) -> None:
    copy = case.base / "copy"
    shutil.copytree(case.run_dir, copy, symlinks=True, ignore_dangling_symlinks=True, dirs_exist_ok=True)
    if stop.main([str(copy), "--timeout", "5"]) != 1 or report_run(copy).state != NOT_SUBMITTED:
        case.lies.append("a copy of the run is taken for the run")


def stop_run(case: Case) -> None:
    if stop.main([str(case.run_dir), "--timeout", "90"]) not in (0, 1):
        case.lies.append("slurm.stop failed")


def move(case: Case) -> None:
    stop_run(case)
    moved = case.run_dir.with_name("moved")
    case.run_dir.rename(moved)
    case.chain.run_dir = moved


def move_while_it_runs(case: Case) -> None:
    moved = case.run_dir.with_name("moved")
    case.run_dir.rename(moved)
    case.chain.run_dir = moved
    stop_run(case)


def from_a_job(case: Case) -> None:
    """As an array's member with memory by CPU submits the chain from its step."""
    sender = [sys.executable, "-m", "tests.slurm.chaos", "--send", str(case.run_dir)]
    script = f"#!/bin/bash\ncd {ROOT}\nsrun --ntasks=1 {' '.join(sender)}\n"
    words = (f"--account={ACCOUNT}", "--array=3", "--mem-per-cpu=1000", "--cpus-per-task=3", "--time=5", f"--output={case.base}/sender.log")
    job_id = case.chain.slurm.submit(script, *words)
    case.until(lambda: "COMPLETED" in case.sh("scontrol", "show", "job", str(job_id)), seconds=60)
    case.chain.job_ids += (case.base / "sender.log").read_text().splitlines()[-1].split()
    case.sent = True


def second_submission(case: Case) -> None:
    jobs = case.queue()
    try:
        case.send()
    except ValueError as error:
        if "is already submitted" not in str(error):
            case.lies.append(f"a second submission is refused so: {error}")
    else:
        if jobs:
            case.lies.append("a second submission beside a chain was not refused")


def submission_dies(case: Case) -> None:
    """Behind Slurm's answer, before the number of the first job is written down."""
    sender = [sys.executable, "-m", "tests.slurm.chaos", "--send", str(case.run_dir), "--die"]
    subprocess.run(sender, cwd=ROOT, check=False, timeout=60)
    jobs = [line.split("|") for line in case.sh("squeue", "--noheader", "--format=%i|%j|%k").splitlines()]
    case.chain.job_ids += [job[0] for job in jobs if job[1] == "light" and job[2] == case.tag]
    case.until(lambda: not case.queue(), seconds=60)


def change(case: Case, what: str, back: str) -> None:
    case.sh("scontrol", "update", *what.split())
    case.undo.append(lambda: case.sh("scontrol", "update", *back.split()))


def hold(case: Case) -> None:
    """The links that wait are held, then the one that runs is killed."""
    for job_id, (state, _) in (case.queue() or {}).items():
        if state == "PENDING":
            case.sh("scontrol", "hold", job_id)
    case.kill()


def suspend(case: Case, seconds: float) -> None:
    job_id = case.running()
    case.sh("scontrol", "suspend", job_id or "0")
    time.sleep(0.5)
    case.look()
    time.sleep(seconds)
    case.sh("scontrol", "resume", job_id or "0")


def on_running(*words: str) -> Callable[[Case], object]:
    return lambda case: case.sh(*words, case.running() or "0")


def time_limit(case: Case, minutes: int) -> None:
    case.sh("scontrol", "update", f"JobId={case.running() or 0}", f"TimeLimit={minutes}")


def free_dependencies(case: Case) -> None:
    """So that links run beside each other."""
    for job_id, (state, _) in (case.queue() or {}).items():
        if state == "PENDING":
            case.sh("scontrol", "update", f"JobId={job_id}", "Dependency=")
    time.sleep(4)


DOWN = (why.NODE_FAILURE, why.REQUEUED, why.FAILED, why.VANISHED, why.TAKEN_OVER, why.HUNG)
KILLED = (why.FAILED,)
BANNER = (
    'echo "--> Site: maintenance on 12 May"; echo "Welcome | 7 | to GALILEO" >&2; {real} "$@"; code=$?; echo "<-- Site: bye"; exit $code'
)
NO_ANSWER = """if [ -n "${{SLURM_JOB_ID:-}}" ] && [ "$(ls {folder}/asked.* 2>/dev/null | wc -l)" -lt 6 ]; then
    touch {folder}/asked.$$; echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1
fi; exec {real} "$@\""""
ECHOES = "slurmstepd-gn99: error: *** JOB 99 ON gn99 CANCELLED AT 2020-01-01T00:00:00 DUE TO TIME LIMIT ***"

# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault("nothing", lambda case: None),
    Fault("a rank killed", lambda case: case.kill(), KILLED),
    Fault("rank 0 killed", lambda case: case.kill(0), KILLED),
    Fault("a rank stands still", lambda case: case.kill(case.chance.randint(1, 3), "STOP"), (why.FAILED, why.HUNG), may_pass=True),
    Fault("rank 0 stands still", lambda case: case.kill(0, "STOP"), (why.HUNG, why.FAILED)),
    Fault("a rank leaves with 1", lambda case: case.ask_rank("exit", 1), KILLED),
    Fault("a rank leaves with 0", lambda case: case.ask_rank("exit", 0), (why.FAILED, why.HUNG)),
    Fault("a rank leaves with 2", lambda case: case.ask_rank("exit", 2), KILLED),
    *(Fault(f"{name} in a save", lambda case, name=name: case.ask_rank("save", name, 0), KILLED) for name in ("ESTALE", "EIO", "ETIMEDOUT", "ECONNRESET")),
    Fault("ENOSPC in a save, disk with room", lambda case: case.ask_rank("save", "ENOSPC", 0), KILLED),
    Fault("ENOSPC in the log, then killed", lambda case: case.ask_rank("say", "error: could not write the compile cache: No space left on device"), KILLED),
    Fault("a log of another job, then killed", lambda case: case.ask_rank("say", ECHOES), KILLED),
    Fault("a cancelled job in the log, then killed", lambda case: case.ask_rank("say", ECHOES.replace(" DUE TO TIME LIMIT", "")), KILLED),
    Fault("a node failure in the log, then killed", lambda case: case.ask_rank("say", "read: Node failure on gn03 last week"), KILLED),
    Fault("out of memory in the log, then killed", lambda case: case.ask_rank("say", "srun is never Out Of Memory\ntorch.OutOfMemoryError: x\nretried"), KILLED),
    Fault("checkpoint cut", lambda case: spoil(case, lambda path: (path / "weights" / "state").write_text("cu")), KILLED, damages=True),
    Fault("a byte of a checkpoint flipped", lambda case: spoil(case, flip), (*KILLED, why.DAMAGED), damages=True),
    Fault("checkpoint without manifest", lambda case: spoil(case, lambda path: (path / MANIFEST_NAME).unlink()), KILLED, damages=True),
    Fault("a file for a checkpoint", lambda case: spoil(case, file_instead), KILLED, damages=True),
    Fault("half a checkpoint left", lambda case: spoil(case, lambda path: (path.parent / ".step_0000999.partial" / "weights").mkdir(parents=True)), KILLED),
    Fault("a line of the metrics cut", lambda case: (case.kill(0), (case.run_dir / "metrics.jsonl").open("a").write('{"step": 1')), KILLED),
    Fault("record of the attempt cut", lambda case: ruin(case, "attempts/001/attempt.json"), goes_on=False, damages=True, alone=True),
    Fault("recipe emptied", lambda case: ruin(case, "recipe.json"), KILLED, goes_on=False, damages=True, alone=True),
    Fault("log of the attempt gone", lambda case: ((case.run_dir / "attempts/latest/log.txt").unlink(missing_ok=True), case.kill()), DOWN),
    Fault("disk full", full_disk, (*KILLED, why.DISK_FULL), goes_on=False, alone=True),
    Fault("disk read-only", read_only, (*KILLED, why.REFUSED, why.VANISHED), goes_on=False, alone=True),
    Fault("EROFS in a save", lambda case: case.ask_rank("save", "EROFS", 0), (why.REFUSED,), goes_on=False),
    Fault("node off", node_off, DOWN),
    Fault("first node off", lambda case: node_off(case, first=True), DOWN),
    Fault("both nodes off", lambda case: node_off(case, both=True), DOWN),
    Fault("node off and on", lambda case: node_off(case, back=True), DOWN),
    Fault("slurmd killed", lambda case: no_daemon(case, back=False), (*DOWN, why.IN_USE), may_pass=True, seconds_per_step=0.8),
    Fault("slurmd started anew", lambda case: no_daemon(case, back=True), DOWN, may_pass=True),
    Fault("node unplugged for 3 s", lambda case: unplugged(case, 3), DOWN, may_pass=True),
    Fault("node unplugged for 15 s", lambda case: unplugged(case, 15), (*DOWN, why.IN_USE), may_pass=True, seconds_per_step=0.8),
    Fault("node drained, a rank killed", lambda case: (set_node(case, "DRAIN"), case.kill()), (*KILLED, why.NODE_FAILURE)),
    Fault("node set down", lambda case: set_node(case, "DOWN"), DOWN),
    Fault("controller killed, 1 s", lambda case: case.stop_daemon("slurmctld", 1)),
    Fault("controller killed, 8 s, a rank killed", lambda case: (case.kill(), case.stop_daemon("slurmctld", 8)), (*KILLED, why.HUNG)),
    Fault("controller hangs for 12 s", lambda case: case.stop_daemon("slurmctld", 12, number=signal.SIGSTOP)),
    Fault("controller hangs, a rank killed", lambda case: (case.kill(), case.stop_daemon("slurmctld", 12, number=signal.SIGSTOP)), (*KILLED, why.HUNG)),
    Fault("accounting killed", lambda case: case.stop_daemon("slurmdbd", 4)),
    Fault("accounting hangs, script killed", lambda case: (kill_script(case), case.stop_daemon("slurmdbd", 8, number=signal.SIGSTOP)), DOWN),
    Fault("controller forgets, numbers again", lost_state, (*DOWN, why.CANCELLED), goes_on=None, may_pass=True, alone=True),
    Fault("preempted", preempt, (why.PREEMPTED, why.REQUEUED)),
    Fault("requeued", on_running("scontrol", "requeue"), (why.REQUEUED,)),
    Fault("requeued and held", on_running("scontrol", "requeuehold"), (why.REQUEUED,)),
    Fault("waiting links held, a rank killed", hold, KILLED),
    Fault("suspended for 2 s", lambda case: suspend(case, 2), (why.HUNG,), may_pass=True),
    Fault("running link cancelled", on_running("scancel"), (why.CANCELLED,), goes_on=False),
    Fault("waiting link cancelled", lambda case: case.sh("scancel", case.waiting() or "0")),
    Fault("all links cancelled", lambda case: case.sh("scancel", *case.chain.job_ids), (why.CANCELLED,), goes_on=False),
    Fault("steps signalled USR1", on_running("scancel", "--signal=USR1"), (why.SIGNALLED,)),
    Fault("steps signalled KILL", on_running("scancel", "--signal=KILL"), (why.CANCELLED,), goes_on=False),
    Fault("script signalled TERM", on_running("scancel", "--batch", "--signal=TERM"), may_pass=True),
    Fault("script killed", lambda case: kill_script(case), DOWN),
    Fault("srun killed", lambda case: case.kill_like("^srun .*chaos_rank"), DOWN),
    Fault("daemon of a step killed", lambda case: case.kill_like(r"slurmstepd: \[[0-9]+\.0\]", node=case.node()), DOWN, may_pass=True),
    Fault("time limit, with notice", lambda case: time_limit(case, 1), (why.TIME_LIMIT, why.TIMED_OUT), seconds_per_step=0.8),
    Fault("slurm.stop", stop_run, (why.STOPPED,), goes_on=False),
    Fault("links run beside each other", free_dependencies, may_pass=True),
    Fault("partition down, a rank killed", lambda case: (change(case, "PartitionName=gpu State=DOWN", "PartitionName=gpu State=UP"), case.kill()), KILLED),
    Fault("a second submission", second_submission),
    Fault("submission dies", submission_dies, early=True),
    Fault("SBATCH_* of the caller", lambda case: in_environment(case, SBATCH_ACCOUNT=OTHER_ACCOUNT, SBATCH_PARTITION="cpu", SBATCH_TIMELIMIT="1",
                                                               SBATCH_NO_REQUEUE="1", SLURM_MEM_PER_CPU="9", SBATCH_EXCLUSIVE="1"), early=True),
    Fault("submitted from a job", from_a_job, early=True, alone=True),
    Fault("programs that print banners", lambda case: wrapped(case, BANNER, *PROGRAMS), early=True),
    Fault("six questions without an answer", lambda case: wrapped(case, NO_ANSWER, "squeue"), early=True),
    Fault("clocks two hours apart", other_clock, early=True),
    Fault("files of tomorrow, a rank killed", lambda case: (files_of_tomorrow(case), case.kill()), KILLED),
    Fault("a copy is stopped", copy_and_stop),
    Fault("moved between submissions", move, (why.STOPPED,), goes_on=False, alone=True),
    Fault("moved while it runs", move_while_it_runs, (why.STOPPED, *DOWN), goes_on=False, alone=True),
)
# fmt: on
