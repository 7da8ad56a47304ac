"""Fault injection on a real Slurm: single and combined faults on chains of a small training run, and what is checked after each.

    SCION_SLURM_CLUSTER=slurm_cluster python -m tests.slurm.chaos --seed 1 --singles 60 --combined 30

Each case submits a chain, injects its faults at random steps, and meanwhile compares the output of `slurm.status` with Slurm's queue and with the
files.  In the end the run must have every step once, with the loss of an undisturbed run: by itself where the table says so, else after
the commands that the status suggests, once the fault's effect on the site is undone.  No attempt may start before the newest complete checkpoint, and
jobs of the same user with our names and nearly our comments must be unchanged.  The exit code is 1 if a case failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from common import command
from common.tables import markdown_table
from slurm.chains import chain as chain_module
from slurm.chains.chain import submit_chain
from slurm.chains.submissions import run_tag
from slurm.sites.cluster import load_cluster
from tests.slurm.chains import LightChain, light_chain
from tests.slurm.chaos_case import NODES, PLAN, STEPS, Case, Fault, the_job
from tests.slurm.chaos_faults import FAULTS
from tests.slurm.running_slurm import ACCOUNT, RunningSlurm, running_slurm

THEIR_NODE = f"gn{NODES:02d}"  # that jobs of others run on


def run_case(slurm: RunningSlurm, base: Path, faults: Sequence[Fault], seed: int) -> Case:
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
    parser.add_argument("--seed", type=int, default=1, help="seed of the faults and their steps (default: %(default)s)")
    parser.add_argument("--singles", type=int, default=60, help="number of cases with one fault (default: %(default)s)")
    parser.add_argument("--combined", type=int, default=30, help="number of cases with several faults (default: %(default)s)")
    parser.add_argument("--only", default="", help="run only cases with this text in the name of a fault")
    parser.add_argument("--first", type=int, default=1, help="number of the first case to run")
    parser.add_argument("--send", type=Path, help="only submit the chain of this run, and print its job ids")
    parser.add_argument("--die", action="store_true", help="with --send: exit before the id of the first job is recorded")
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
                case = run_case(slurm, base, faults, seed=1000 * arguments.seed + number)
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
