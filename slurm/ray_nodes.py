"""Run a data command with `--ray` on the nodes of a Slurm step: each task starts Ray on its node, the first also the command.

With `--no-kill` for job and step, the work of a lost node is repeated on others.  Losing the first node ends the job: the other
nodes requeue it, and the same command resumes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from common import command
from common.process_identity import end_with_parent

_START_SECONDS = 300.0  # for the first node's Ray to answer
_SILENT_SECONDS = 20.0  # after which it counts as gone
_STORE_BYTES = 500_000_000  # of shared memory a node: tasks and results are file names, most of them
_NEEDED = ("MASTER_ADDR", "MASTER_PORT", "RAY_AUTH_TOKEN", "SLURM_PROCID")


def main(argv: Sequence[str] | None = None) -> int:
    """Start Ray on this node; on the first one run the command, elsewhere serve until that has ended."""
    parser = command.parser(__doc__, example="python -m slurm.ray_nodes data_prep.dedup --corpora c.yaml --ray --output unique/")
    parser.add_argument("module", help="module of the command, as after `python -m`")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the command, including --ray")
    arguments = parser.parse_args(argv)
    if missing := [name for name in _NEEDED if not os.environ.get(name)]:
        raise ValueError(f"{', '.join(missing)} not set; start this command with srun in a job script that sources slurm/environment.sh")
    if "--ray" not in arguments.arguments:
        raise ValueError(f"{arguments.module} has no --ray among its arguments, and would use only the first node; add it")
    os.environ["RAY_AUTH_MODE"] = "token"
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as place:  # short: it holds sockets; ours alone
        if int(os.environ["SLURM_PROCID"]):
            return _serve(Path(place))
        return _lead(Path(place), [arguments.module, *arguments.arguments])


def _lead(place: Path, words: Sequence[str]) -> int:
    host, port = _head()
    options = ["--head", f"--port={port}", "--include-dashboard=false"]
    if not host.startswith("127."):  # as /etc/hosts may have the node's own name: then Ray looks for itself
        options.append(f"--node-ip-address={host}")
    with _ray(place, options) as (ray, log):
        end = time.monotonic() + _START_SECONDS
        while not _answers(host, port):
            if ray.poll() is not None or time.monotonic() > end:
                raise ValueError(f"Ray did not start on {socket.gethostname()}: {log.read_text(errors='replace').strip()[-2000:]}")
            time.sleep(0.2)
        return subprocess.call([sys.executable, "-m", *words], env={**os.environ, "RAY_ADDRESS": f"{host}:{port}"})


def _serve(place: Path) -> int:
    """Have Ray on this node as long as the first node's answers; where it ends before, it is started again."""
    host, port = _head()
    last, patience = time.monotonic(), _START_SECONDS
    while time.monotonic() - last < patience:
        if not _answers(host, port):
            time.sleep(1)
            continue
        last, patience = time.monotonic(), _SILENT_SECONDS
        with _ray(place, [f"--address={host}:{port}"]) as (ray, _):
            while ray.poll() is None and time.monotonic() - last < patience:
                time.sleep(1)
                if _answers(host, port):
                    last = time.monotonic()
    if patience == _SILENT_SECONDS and not _is_refused(host, port):
        _start_again(host)
    return command.DONE


def _start_again(host: str) -> None:
    """Queue a job again whose first node is lost: with `--no-kill` Slurm lets it run on without its script until the time limit."""
    print(f"error: the first node ({host}) no longer answers; the job is requeued and will resume", file=sys.stderr)
    if shutil.which("scontrol") is None:  # in a container
        print(f"error: scontrol was not found; requeue the job with `scontrol requeue {os.environ['SLURM_JOB_ID']}`", file=sys.stderr)
    else:
        subprocess.call(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]])  # another node may have been faster


def _head() -> tuple[str, int]:
    """Address of the first node, as a number: nodes may know its name by several."""
    return socket.gethostbyname(os.environ["MASTER_ADDR"]), int(os.environ["MASTER_PORT"])


@contextmanager
def _ray(place: Path, options: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Ray on this node, on the processors that we have, until the block ends."""
    log = place / "log"
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *options, f"--temp-dir={place}/ray", "--disable-usage-stats"]
    # Ports that nobody else has, since jobs may share a node.
    words += [
        f"--num-cpus={len(os.sched_getaffinity(0))}",
        f"--object-store-memory={_STORE_BYTES}",
        "--min-worker-port=0",
        "--max-worker-port=0",
    ]
    with log.open("wb") as stream:
        ray = subprocess.Popen(words, stdout=stream, stderr=subprocess.STDOUT, preexec_fn=end_with_parent)
    try:
        yield ray, log
    finally:
        ray.terminate()
        with suppress(subprocess.TimeoutExpired):
            ray.wait(20)
        ray.kill()


def _answers(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=5):
        return True
    return False


def _is_refused(host: str, port: int) -> bool:
    """Whether the machine is there and has ended its Ray."""
    try:
        socket.create_connection((host, port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    return False


if __name__ == "__main__":
    command.run(main)
