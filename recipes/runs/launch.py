"""Starting the processes of a run on one machine, and making sure that none outlives the run; and what the machine must leave them."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from common import command
from common.lease import PATIENCE_SECONDS, Fence, take_lease, this_process, wait_for_lease
from recipes.rules.schema import Recipe

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_TORCHRUN = "the launcher that set RANK and WORLD_SIZE"
_LAUNCHED = "SCION_LAUNCHED"
_LEASE = "SCION_LEASE"  # file and token of the launcher's, for its ranks
_ENDED_JOBS = "SCION_ENDED_JOBS"  # of Slurm, which whoever starts the training knows to have ended
_FIRST_RANK_SECONDS = 600.0  # in which nodes of one job start, and rank 0 gets the lease


def must_launch(recipe: Recipe) -> bool:
    """Whether this process has to start the others: one node, several devices, and no launcher did.

    Raises:
        ValueError: if the recipe needs several nodes and nothing started its processes, or a launcher started another number of them.
    """
    expected, launcher = recipe.parallel.world_size, _launcher()
    if launcher is not None and launcher[1] != expected and (launcher[0] == _TORCHRUN or launcher[1] > 1):
        nodes, devices = recipe.parallel.num_nodes, recipe.parallel.devices_per_node
        raise ValueError(
            f"{launcher[0]} started {launcher[1]} processes and the recipe needs {expected}, {devices} on each of {nodes} nodes; start one process"
            " per device, or set parallel.num_nodes and parallel.devices_per_node"
        )
    if (launcher is not None and launcher[1] == expected) or expected == 1:
        return False
    if recipe.parallel.num_nodes > 1:
        raise ValueError(
            f"the recipe asks for {recipe.parallel.num_nodes} nodes; start it with srun, one task per device, or set parallel.num_nodes=1"
        )
    return True


def _launcher() -> tuple[str, int] | None:
    """Who started this process, and how many of its kind; None for a shell, also one that Slurm opened as a batch script."""
    if "RANK" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ:
        return _TORCHRUN, int(os.environ.get("WORLD_SIZE", "1"))
    if "SLURM_PROCID" in os.environ and "SLURM_STEP_ID" in os.environ:
        return "srun", int(os.environ.get("SLURM_STEP_NUM_TASKS", os.environ.get("SLURM_NTASKS", "1")))
    return None


def launch(module: str, processes: int, arguments: Sequence[str], *, forward: Sequence[str] = ()) -> int:
    """Run `python -m module arguments` once per device with torchrun's agent, which ends all when one dies.

    Args:
        forward: signals that are the ranks' to handle; the agent's own answer to SIGTERM would kill them after half a minute.

    Returns:
        0, or after naming the rank that failed first its exit code, if that has a meaning of its own, else 1.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // processes)))
    os.environ[_LAUNCHED] = "1"
    agents_own = ",".join(name for name in ("SIGINT", "SIGHUP", "SIGQUIT", "SIGTERM") if name not in forward)
    for name in forward:
        signal.signal(signal.Signals[name], _forward)
    try:
        torchrun(["--standalone", f"--nproc-per-node={processes}", f"--signals-to-handle={agents_own}", "--module", module, *arguments])
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        killed = ", killed, probably by the out-of-memory killer" if failure.exitcode == -signal.SIGKILL else ""
        print(f"error: rank {rank} ended with exit code {failure.exitcode}{killed}; its messages are above", file=sys.stderr)
        own = (command.IN_USE, command.LOST, command.HUNG, command.DAMAGED, command.TRY_AGAIN)
        return failure.exitcode if failure.exitcode in own else command.WRONG
    return command.DONE


def _forward(number: int, frame: object) -> None:
    import psutil

    for rank in psutil.Process().children():
        rank.send_signal(number)


def process_rank() -> int:
    """Rank of this process, as the launcher says."""
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))


def is_first_process() -> bool:
    """Whether this process is the first of the run: the launcher, or rank 0 where another launcher is at work."""
    return process_rank() == 0 and _LAUNCHED not in os.environ


def is_launched() -> bool:
    """Whether `launch` started this process."""
    return _LAUNCHED in os.environ


def share_of_inputs(recipe: Recipe) -> tuple[int, int] | None:
    """Number of this process and of all that look at the inputs of a run together; None for one that `launch` started, which has looked.

    Where another launcher is at work, the ranks read a part each: they then meet at about the same time, and none waits for another
    that reads everything for longer than a process group's timeout.
    """
    if _LAUNCHED in os.environ:
        return None
    return (0, 1) if must_launch(recipe) else (process_rank(), recipe.parallel.world_size)


def order_kernels() -> None:
    """Have GPUs start kernels in the order in which they are given: Megatron overlaps communication by it; before CUDA is initialised."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")


@contextmanager
def leased(run_dir: Path) -> Iterator[Fence]:
    """Have the directory of a run for all processes of this launch; its first process takes the lease, and the others go by it.

    Raises:
        InUseError: if somebody else alive works there.
    """
    if _LAUNCHED in os.environ:
        path, _, token = os.environ[_LEASE].rpartition(" ")
        yield Fence(Path(path), token)
    elif not is_first_process():
        yield wait_for_lease(run_dir, _launch_name(), timeout_seconds=PATIENCE_SECONDS + _FIRST_RANK_SECONDS)
    else:
        holder = this_process("recipes.train", launch=_launch_name())
        with take_lease(run_dir, holder, ended_jobs=os.environ.get(_ENDED_JOBS, "").split()) as lease:
            os.environ[_LEASE] = f"{lease.path.absolute()} {lease.token}"
            yield Fence(lease.path, lease.token)  # which NeMo may copy; a thread cannot be


def _launch_name() -> str:
    """What the processes of one launch by srun or torchrun have in common; "" where there is no launcher."""
    names = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID") if "SLURM_PROCID" in os.environ else ("MASTER_ADDR", "MASTER_PORT")
    return " ".join(os.environ.get(name, "") for name in names).strip()


def die_with_launcher() -> None:
    """In a process that `launch` started: have the kernel kill it when the launcher ends, whatever killed that (Linux; elsewhere nothing).

    torchrun puts each rank into a session of its own, so that killing the command's process group would leave them running.
    """
    if _LAUNCHED not in os.environ or not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent == 1 or os.getppid() != parent:  # it was gone before the request
        os.kill(os.getpid(), signal.SIGKILL)


# The module that only the real package has: the package called apex on the public index is a web toolkit.
_MODULES = {"TransformerEngine": "transformer_engine", "apex": "amp_C", "flash-attention": "flash_attn"}


def installed_kernels() -> str:
    """One line that says which there are."""
    found = {name: importlib.util.find_spec(module) is not None for name, module in _MODULES.items()}
    there = [name for name, is_there in found.items() if is_there]
    absent = [name for name, is_there in found.items() if not is_there]
    return "; ".join(part for part in (f"uses {', '.join(there)}" * bool(there), f"without {', '.join(absent)}" * bool(absent)) if part)


_OPEN_FILES = 256  # least with which a run of one rank starts, imports included
_ENOUGH_FILES = 4096
_SHARED_MEMORY = Path("/dev/shm")
_BYTES_OF_A_TOKEN = 4 * 8  # token, label, position and whether it counts, as a loader's process sends them
_BATCHES_AHEAD = 3  # of each loader process: two that wait, and one that is used
_ATTENTION_KERNELS = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")


def require_limits(recipe: Recipe, *, shared_memory: Path = _SHARED_MEMORY) -> None:
    """Raise this process's limit of open files as far as it may, and refuse to start where the run could not work.

    Raises:
        ValueError: naming the limit, what is needed and how to get it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < _ENOUGH_FILES:
        soft = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(_ENOUGH_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if 0 <= soft < _OPEN_FILES:
        raise ValueError(
            f"this process may open {soft} files; expected at least {_OPEN_FILES}: raise the limit, `ulimit -n {_ENOUGH_FILES}`"
        )
    _require_shared_memory(recipe, shared_memory)
    _require_kernel()


def _require_shared_memory(recipe: Recipe, directory: Path) -> None:
    if not recipe.data.num_workers:
        return
    advice = "set data.num_workers=0, or give the container more (--shm-size, --ipc=host)"
    if not directory.is_dir() or not os.access(directory, os.W_OK):
        raise ValueError(f"{directory}, the shared memory of the data loader processes, is not writable; {advice}")
    batches = _BATCHES_AHEAD * recipe.data.num_workers * recipe.parallel.devices_per_node
    needed = batches * recipe.schedule.micro_batch_size * recipe.data.sequence_length * _BYTES_OF_A_TOKEN
    status = os.statvfs(directory)
    free = status.f_bavail * status.f_frsize
    if free < needed:
        raise ValueError(
            f"{directory} has {free / 2**20:.1f} MiB free; expected {needed / 2**20:.1f}, for {recipe.data.num_workers} loader processes of each"
            f" of {recipe.parallel.devices_per_node} ranks; {advice}"
        )


def _require_kernel() -> None:
    said = {name: os.environ[name] for name in _ATTENTION_KERNELS if name in os.environ}
    if wrong := [f"{name}={value}" for name, value in said.items() if value not in ("0", "1")]:
        raise ValueError(f"the environment has {', '.join(wrong)}; expected 0 or 1, or unset it")
    if list(said.values()) == ["0"] * len(_ATTENTION_KERNELS) and importlib.util.find_spec("transformer_engine") is not None:
        raise ValueError(
            f"the environment has {', '.join(said)} all 0, which disables every attention kernel of TransformerEngine; unset one"
        )
