"""One case of `tests.slurm.chaos`: a run on a real Slurm, what is done to it and asked of it, and what must hold in the end."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import random
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.artifacts import MANIFEST_NAME
from recipes.runs.run_state import last_records
from slurm.chains import causes as why
from slurm.chains.chain import ChainPlan, submit_chain
from slurm.chains.run_report import FINISHED, NOT_SUBMITTED, OUT_OF_LINKS, RUNNING, STOPPED, WAITING, RunReport, render_report, report_run
from slurm.chains.submissions import run_tag
from slurm.jobs.job import Job
from tests.slurm.chains import LightChain, light_job
from tests.slurm.chaos_rank import fault_path
from tests.slurm.light_training import expected_losses

STEPS, EVERY, SECONDS_PER_STEP, NODES = 60, 5, 0.1, 6
LATE_SECONDS, STUCK_SECONDS = 300.0, 20.0
PLAN = ChainPlan(links=3, signal_seconds=60, recording_seconds=3)
# Of the status, where the controller is away or a record is damaged.
MAY_REFUSE = r"gave no answer|refused: .*(contact|connect|timed out)|remove the directory|is not a recipe|not valid JSON|must be JSON"


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        causes: that attempts may end with for it.
        goes_on: without that anybody submits again; None: perhaps.
        early: done before the chain is sent.
        damages: checkpoints or records that were written.
        may_pass: an attempt may end as if nothing had been.
        seconds_per_step: of a run that must be longer.
        alone: what others cannot follow, or what touches the jobs of others.
    """

    name: str
    do: Callable[[Case], object]
    causes: tuple[str, ...] = ()
    goes_on: bool | None = True
    early: bool = False
    damages: bool = False
    may_pass: bool = False
    alone: bool = False
    seconds_per_step: float = SECONDS_PER_STEP


def the_job(run_dir: Path, *, seconds_per_step: float = SECONDS_PER_STEP) -> Job:
    light = light_job(run_dir, "--steps", STEPS, "--every", EVERY, "--seconds-per-step", seconds_per_step)
    command = ("python", "-m", "tests.slurm.chaos_rank", *light.command[3:])
    return Job(**{**vars(light), "command": command, "num_nodes": 2, "step_wait_seconds": 3})


@dataclass
class Case:
    """A run to which things happen.

    Attributes:
        undo: what repairs the site, done when the run cannot resume otherwise.
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
        slowest = max(fault.seconds_per_step for fault in self.faults)
        job = Job(**{**vars(the_job(self.run_dir, seconds_per_step=slowest)), **self.job_changes})
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
            if not re.search(MAY_REFUSE, str(error), re.I):
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
                self.again += 1
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
