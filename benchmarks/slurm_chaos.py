"""The chaos of Slurm: single and combined faults on chains of a light training, on a real Slurm, and what held after each.

    SCION_SLURM_CLUSTER=slurm_cluster python -m benchmarks.slurm_chaos --seed 1 --singles 60 --combined 30

Each case sends a chain, does its faults at random steps, and while it lasts compares what `slurm.status` says with Slurm's own queue and with the
files.  In the end the run must have every step once with the loss of a run that nothing happened to: by itself where the table says so, else after
the commands that the status names, when what the fault did to the site is undone.  No attempt may start before the newest whole checkpoint, and
jobs of the same user with our names and nearly our comments must be as they were.  The exit code is 1 where a case did not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.machinery
import importlib.util
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.slurm_chaos_faults import FAULTS, Fault
from benchmarks.slurm_chaos_rank import fault_path
from common import command
from common.artifacts import MANIFEST_NAME
from common.tables import markdown_table
from slurm.chains import causes as why
from slurm.chains import chain as chain_module
from slurm.chains.chain import ChainPlan, submit_chain
from slurm.chains.run_report import FINISHED, NOT_SUBMITTED, OUT_OF_LINKS, RUNNING, STOPPED, WAITING, RunReport, render_report, report_run
from slurm.chains.run_state import last_records
from slurm.chains.submissions import run_tag
from slurm.jobs.job import Job
from slurm.sites.cluster import load_cluster
from tests.slurm.chains import LightChain, light_chain, light_job
from tests.slurm.light_training import expected_losses
from tests.slurm.running_slurm import ACCOUNT, RunningSlurm, running_slurm

STEPS, EVERY, SECONDS_PER_STEP, NODES = 60, 5, 0.1, 6
LATE_SECONDS, STUCK_SECONDS = 300.0, 20.0
THEIR_NODE = f"gn{NODES:02d}"  # that jobs of others run on
PLAN = ChainPlan(links=3, signal_seconds=60, recording_seconds=3)


def the_job(run_dir: Path, *options: str | float) -> Job:
    light = light_job(run_dir, "--steps", STEPS, "--every", EVERY, "--seconds-per-step", SECONDS_PER_STEP, *options)
    command = ("python", "-m", "benchmarks.slurm_chaos_rank", *light.command[3:])
    return Job(**{**vars(light), "command": command, "num_nodes": 2, "step_wait_seconds": 3})


@dataclass
class Case:
    """A run to which things happen.

    Attributes:
        undo: what puts the site right again, done when the run cannot go on without.
        lies: what did not hold.
    """

    chain: LightChain
    chance: random.Random
    base: Path
    faults: Sequence[Fault]
    undo: list[Callable[[], object]] = field(default_factory=list)
    lies: list[str] = field(default_factory=list)
    again: int = 0
    looks: int = 0
    job_changes: dict[str, Any] = field(default_factory=dict)
    options: tuple[str | float, ...] = ()
    sent: bool = False
    released: bool = False

    @property
    def tag(self) -> str:
        return run_tag(self.run_dir, 1).comment

    @property
    def run_dir(self) -> Path:
        return self.chain.run_dir

    def sh(self, *words: str | Path, **more: Any) -> str:
        return self.chain.slurm.run(*words, **{"check": False, **more}).stdout

    def send(self) -> None:
        cluster = self.chain.slurm.cluster()
        job = Job(**{**vars(the_job(self.run_dir, *self.options)), **self.job_changes})
        self.chain.job_ids += submit_chain(job, cluster, self.run_dir, PLAN, total_steps=STEPS)

    def step(self) -> int:
        records = last_records(self.run_dir / "metrics.jsonl", 1) if self.run_dir.is_dir() else []
        return int(records[-1]["step"]) if records else 0

    def saved(self) -> int:
        return max((int(path.parent.name[5:]) for path in (self.run_dir / "checkpoints").glob(f"step_*/{MANIFEST_NAME}")), default=0)

    def newest(self) -> Path:
        """The newest checkpoint, for which the first is waited."""
        self.until(lambda: self.saved() > 0)
        return self.run_dir / "checkpoints" / f"step_{self.saved():07d}"

    def queue(self) -> dict[str, tuple[str, str]] | None:
        """State and reason of the chain's jobs, by Slurm; None where it does not answer."""
        done = self.chain.slurm.run("squeue", "--noheader", "--format=%i|%T|%r|%k", check=False)
        found = [line.split("|", 3) for line in done.stdout.splitlines() if line.count("|") >= 3]
        ours = {line[0]: (line[1], line[2]) for line in found if line[0] in self.chain.job_ids and line[3].startswith("scion-")}
        return ours if done.returncode == 0 else None

    def until(self, condition: Callable[[], bool], *, seconds: float = 45) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.05)
        return False

    def until_step(self, more: int) -> None:
        """Until the training is some steps further, or nothing of it is in the queue."""
        start, look_at = self.step(), time.monotonic() + 2
        end = time.monotonic() + 60
        while self.step() < min(start + more, STEPS - 10) and time.monotonic() < end:
            time.sleep(0.03)
            if time.monotonic() > look_at:
                look_at = time.monotonic() + 2
                if not any(state == "RUNNING" for state, _ in (self.queue() or {}).values()):
                    return

    def running(self) -> str | None:
        return next((job_id for job_id, (state, _) in (self.queue() or {}).items() if state == "RUNNING"), None)

    def waiting(self) -> str | None:
        return next((job_id for job_id, (state, _) in (self.queue() or {}).items() if state == "PENDING"), None)

    def node(self, *, first: bool | None = None) -> str:
        nodes = self.chain.attempts()[-1].nodes
        return nodes[0] if first else nodes[-1] if first is False else self.chance.choice(nodes)

    def kill(self, rank: int | None = None, name: str = "KILL") -> None:
        with contextlib.suppress(ValueError, FileNotFoundError):  # a node that is off
            node, process_id = self.chain.rank(self.chance.randrange(4) if rank is None else rank)
            self.on(node, "kill", f"-{name}", process_id)

    def on(self, node: str, *words: str) -> str:
        return self.sh(self.chain.slurm.tool, "--state", self.chain.slurm.state, "exec", "--node", node, "--", *words)

    def kill_like(self, pattern: str, *, node: str | None = None, name: str = "KILL") -> None:
        node = node or self.node(first=True)
        for process_id in self.on(node, "pgrep", "-f", pattern).split():
            self.on(node, "kill", f"-{name}", process_id)

    def ask_rank(self, do: str, value: object, rank: int | None = None) -> None:
        content = {"rank": self.chance.randrange(4) if rank is None else rank, "do": do, "value": value}
        aside = fault_path(self.run_dir).with_suffix(".aside")
        aside.write_text(json.dumps(content))
        aside.replace(fault_path(self.run_dir))
        self.until(lambda: not fault_path(self.run_dir).exists(), seconds=15)
        fault_path(self.run_dir).unlink(missing_ok=True)

    def daemons(self) -> Any:
        """The tool of the cluster, for what its commands do not do to daemons."""
        loader = importlib.machinery.SourceFileLoader("slurm_cluster_tool", str(self.chain.slurm.tool))
        spec = importlib.util.spec_from_loader(loader.name, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        return module.Cluster(self.chain.slurm.state)

    def stop_daemon(self, role: str, seconds: float, *, number: int = signal.SIGKILL, forgets: bool = False) -> None:
        cluster = self.daemons()
        daemon = cluster.proc(role)
        daemon.kill(number)
        time.sleep(seconds)
        if number == signal.SIGSTOP:
            daemon.kill(signal.SIGCONT)
            return
        daemon.gone(10)
        if forgets:
            shutil.rmtree(cluster.dir / "state")
            (cluster.dir / "state").mkdir()
        words = {"slurmctld": ["slurmctld", "-D", "-f", cluster.dir / "etc/slurm.conf"], "slurmdbd": ["slurmdbd", "-D"]}
        with cluster.lock():
            cluster.spawn(role, "login", words[role])
        self.until(lambda: self.queue() is not None)

    def look(self) -> RunReport | None:
        """What the status says; what of it is not so is a lie, unless it changed meanwhile."""
        before = (self.queue(), self.saved(), self.step())
        try:
            report = report_run(self.run_dir)
        except ValueError as error:
            if not re.search(
                r"gave no answer|refused: .*(contact|connect|timed out)|remove the directory|is no recipe|no JSON|must be JSON",
                str(error),
                re.I,
            ):
                self.lies.append(f"status refuses: {error}")
            return None
        if (self.queue(), self.saved()) != before[:2] or before[0] is None:
            return report
        self.looks += 1
        states = {state for state, _ in before[0].values()}
        runs = bool(states - {"PENDING"})
        right = {RUNNING: runs and report.running_job in before[0], WAITING: not runs and bool(states), FINISHED: before[1] >= STEPS}
        right |= {STOPPED: not runs, OUT_OF_LINKS: not states, NOT_SUBMITTED: not states}
        if not right[report.state] or (runs and report.state not in (RUNNING, FINISHED)):
            self.lies.append(f"status says {report.state} ({report.running_job}) where the queue has {before[0]}")
        if states == {"SUSPENDED"} and "suspend" not in render_report(report).lower():
            self.lies.append("status does not say that the job is suspended")
        if report.saved_step > before[1] or not report.saved_step <= report.step <= max(before[2], self.step(), report.saved_step):
            self.lies.append(f"status says step {report.step}, {report.saved_step} saved; the files {self.step()}, {before[1]}")
        if report.state == WAITING and not any(reason in report.waits_because for _, reason in before[0].values()):
            self.lies.append(f"status waits because {report.waits_because!r}, Slurm {before[0]}")
        return report

    def put_right(self) -> None:
        while self.undo:
            self.undo.pop()()
        nodes = [f"gn{number:02d}" for number in range(1, NODES + 1)]
        for node in nodes:
            if self.sh("sinfo", "--noheader", f"--nodes={node}", "--format=%T").split()[:1] not in (["idle"], ["mixed"], ["allocated"]):
                for action in ("power-on", "start-slurmd"):  # which do nothing where there is nothing to do
                    self.sh(self.chain.slurm.tool, "--state", self.chain.slurm.state, "node", action, node)
                self.sh("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def settle(self) -> None:
        """Wait for the end; where the run stops or is stuck, do what the status says."""
        end, seen, changed_at = time.monotonic() + LATE_SECONDS, None, time.monotonic()
        while time.monotonic() < end:
            report, queue = self.look(), self.queue()
            if queue is None:
                continue
            if (now := (queue, self.step())) != seen:
                seen, changed_at = now, time.monotonic()
            if not queue and report is not None and report.state == FINISHED:
                return
            if not queue and report is not None and report.state not in (RUNNING, WAITING):
                self.put_right()
                if self.again == 4:
                    self.lies.append(f"not finished after 4 submissions: {render_report(report)}")
                    return
                if report.state != NOT_SUBMITTED and "submit" not in f"{report.reason} {report.state}" and report.state != OUT_OF_LINKS:
                    self.lies.append(f"the status does not say what to do: {report.reason}")
                self.again, self.options = self.again + 1, ()
                self.send()
            elif report is None and not queue:
                self.put_right()
            elif time.monotonic() - changed_at > STUCK_SECONDS:
                advice = re.search(r"`(scontrol [^`]+)`", report.waits_because if report else "")
                if advice and not self.released:
                    self.released = True
                    self.sh(*shlex.split(advice[1]))
                else:
                    self.put_right()
                changed_at = time.monotonic()
            time.sleep(0.3)
        self.lies.append(f"late: {render_report(report) if report else 'no status'}\n{self.chain.logs()[-3000:]}")

    def judge(self) -> None:
        lines = [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]
        if [line["step"] for line in lines] != list(range(1, STEPS + 1)) or [line["loss"] for line in lines] != expected_losses(STEPS):
            self.lies.append("the losses are not those of an undisturbed run")
        allowed = {cause for fault in self.faults for cause in fault.causes} | {why.FINISHED}
        attempts = report_run(self.run_dir).attempts
        found = {attempt.end.cause for attempt in attempts if attempt.end}
        if wrong := found - allowed:
            self.lies.append(f"causes {', '.join(sorted(wrong))}; expected {', '.join(sorted(allowed))}")
        if len(self.faults) == 1 and self.faults[0].causes and found == {why.FINISHED} and not self.faults[0].may_pass:
            self.lies.append("the fault left no trace")
        if len(self.faults) == 1 and self.faults[0].goes_on not in (None, not self.again):
            self.lies.append(f"submitted again {self.again} times")
        if not any(fault.damages for fault in self.faults):
            for before, after in zip(attempts, attempts[1:]):
                if before.end is None or after.start_step < before.end.step:
                    self.lies.append(f"attempt {after.number} starts from {after.start_step}, behind {before.end}")


def play(slurm: RunningSlurm, base: Path, faults: Sequence[Fault], seed: int) -> Case:
    """One case; whatever it did is undone."""
    with light_chain(slurm, base / "run") as chain:
        case = Case(chain, random.Random(seed), base, faults)
        ours = others(chain)
        try:
            for fault in faults:
                if fault.early:
                    fault.do(case)
            if not case.sent:
                case.send()
            for fault in faults:
                if not fault.early:
                    case.until_step(case.chance.randint(2, 14))
                    fault.do(case)
            case.settle()
            if not case.lies:
                case.judge()
            if (now := others(chain, make=False)) != ours and not any(fault.alone for fault in faults):
                case.lies.append(f"jobs of others were {ours} and are {now}")
        except Exception as error:
            case.lies.append(f"{type(error).__name__}: {error}\n{''.join(traceback.format_tb(error.__traceback__)[-2:])}")
        finally:
            case.put_right()
            if case.lies:
                print(chain.logs()[-6000:], file=sys.stderr)
    return case


def others(chain: LightChain, *, make: bool = True) -> dict[str, str]:
    """Jobs of the same user, with our name and nearly our comment, and since when each runs."""
    words = ["squeue", "--noheader", f"--nodelist={THEIR_NODE}", "--states=RUNNING", "--format=%i|%S|%k"]
    lines = [line.split("|") for line in chain.slurm.run(*words).stdout.splitlines() if line.count("|") == 2]
    found = {job_id: start for job_id, start, comment in lines if comment.startswith(("scion-", "theirs"))}
    end = time.monotonic() + 40
    comment = run_tag(chain.run_dir, 1).comment
    while make and len(found) < 3 and time.monotonic() < end:
        node = ("ReservationName=theirs", f"Nodes={THEIR_NODE}", "Users=root", "StartTime=now", "Duration=UNLIMITED")
        chain.slurm.run("scontrol", "create", "reservation", *node, check=False)  # refused where it is there
        theirs = (f"{comment}0", comment[:-1], "theirs")[len(found)]
        words = ["--reservation=theirs", "--job-name=light", f"--comment={theirs}", f"--account={ACCOUNT}", "--mem=1G", "--ntasks=1"]
        with contextlib.suppress(subprocess.CalledProcessError):
            chain.slurm.submit("#!/bin/bash\nsleep 86400\n", *words, "--time=23:00:00", "--output=/dev/null")
        time.sleep(2)
        found = others(chain, make=False)
    return found


def chosen(seed: int, singles: int, combined: int) -> list[tuple[Fault, ...]]:
    """Every fault once, then again at other steps; then pairs and triples of those that others may follow."""
    chance = random.Random(seed)
    rounds = [FAULTS[number % len(FAULTS)] for number in range(singles)]
    together = [fault for fault in FAULTS if not fault.alone]
    return [(fault,) for fault in rounds] + [tuple(chance.sample(together, 2 + number % 2)) for number in range(combined)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--singles", type=int, default=60)
    parser.add_argument("--combined", type=int, default=30)
    parser.add_argument("--only", default="", help="cases whose faults' names have this in them")
    parser.add_argument("--first", type=int, default=1, help="number of the case to begin with")
    parser.add_argument("--send", type=Path, help="only send the chain of this run, and print the numbers of its jobs")
    parser.add_argument("--die", action="store_true", help="with --send: before the number of the first is written down")
    arguments = parser.parse_args()
    if arguments.send:
        if arguments.die:
            chain_module.record_jobs = lambda *anything: os._exit(9)
        cluster = load_cluster("local", (f"account={ACCOUNT}", f"runtime.venv={sys.prefix}"))
        print(*submit_chain(the_job(arguments.send), cluster, arguments.send, PLAN, total_steps=STEPS))
        return 0
    cases = [
        (number, faults)
        for number, faults in enumerate(chosen(arguments.seed, arguments.singles, arguments.combined), 1)
        if number >= arguments.first and re.search(arguments.only, " + ".join(fault.name for fault in faults))
    ]
    rows, wrong, looks = [], 0, 0
    with tempfile.TemporaryDirectory(prefix="chaos.") as folder, own_disk(Path(folder) / "disk"):
        urgent = Path(folder) / "urgent.conf"
        urgent.write_text("PartitionName=urgent Nodes=ALL PriorityTier=9 MaxTime=1:00:00 State=UP\n")
        preempts = ["--set", "PreemptType=preempt/partition_prio", "--set", "PreemptMode=REQUEUE", "--extra-conf", str(urgent)]
        with running_slurm(nodes=NODES, options=preempts) as slurm:
            for number, faults in cases:
                base, begun = Path(folder) / "disk" / f"{number:03d}", time.monotonic()
                base.mkdir()
                case = play(slurm, base, faults, seed=1000 * arguments.seed + number)
                wrong, looks = wrong + bool(case.lies), looks + case.looks
                ends = ", ".join(cause or "-" for cause in case.chain.causes()) if case.run_dir.is_dir() else "-"
                row = [str(number), " + ".join(fault.name for fault in faults), ends, str(case.again), f"{time.monotonic() - begun:.0f}"]
                rows.append([*row, "; ".join(case.lies)[:300].replace("\n", " ") or "held"])
                print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
                shutil.rmtree(base, ignore_errors=True)
    print(markdown_table(["", "faults", "ends of the attempts", "sent again", "s", "what held"], rows, text_columns=3))
    print(f"\n{len(rows)} cases, {wrong} did not hold; {looks} looks at the status")
    return 1 if wrong else 0


@contextlib.contextmanager
def own_disk(place: Path) -> Iterator[None]:
    """A small disk, which can be filled and made read-only; where that takes rights that are lacking, a folder."""
    place.mkdir()
    is_disk = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "chaos", str(place)], check=False).returncode == 0
    try:
        yield
    finally:
        if is_disk:
            subprocess.run(["umount", "--lazy", str(place)], check=True)


if __name__ == "__main__":
    command.run(lambda argv: main())
