"""For how long a save stops a training, and how long its checkpoint takes to load: this project's, its asynchronous one, NeMo's own callback, and the same bytes.

An OPT of 42 million parameters (16 bytes each with Adam's state) is trained at tensor parallel 2 on two and on four processes, which save three
times before the end; one process, without it, leaves the other processors of a small machine to what is written beside its steps.  What counts is the time between steps from a save to the next one, less what as many steps have between them without a
save: also what ends a save that is written beside later steps.  How much longer these steps take themselves stands beside it.
A training that saves nothing is measured as if it did: what it shows is how far the times between steps are from one another.  The limit is
what as many processes take to write the files of the checkpoint, which they have in memory, and to sync them: through the page cache, and
directly.  All take turns over several rounds.

A load is what another training with as many processes takes from its begin until model and optimizer have what the second save wrote, of files that are in no
page cache.  The limit is reading them, by as many processes, through that cache and directly.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.commands import ROOT, opt_inputs
from benchmarks.saving_rank import CONTENDERS, EVERY
from common import command
from common.plain_files import read_json
from common.python_path import python_path
from common.tables import markdown_table
from recipes.runs.run_dir import checkpoint_name

SHAPE = ("--num-layers", 12, "--hidden-size", 512, "--num-attention-heads", 8, "--ffn-size", 2048, "--max-positions", 128)
NAMES = {
    "ours": "this project's",
    "beside": "this project's, `run.asynchronous_save`",
    "none": "no save at all",
    "nemo": "NeMo's `ModelCheckpoint`",
    "cached": "writing the same bytes, page cache",
    "direct": "writing the same bytes, directly",
}
_SECOND = {"ours": checkpoint_name(2 * EVERY), "nemo": f"step={2 * EVERY - 1}"}  # what the second save is called
_PIECE_BYTES = 8 << 20
_TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class Save:
    """Seconds of a save.

    Attributes:
        stopped: in which the training stood still for it, until the next one.
        slower: by which the steps until then took longer than those before the first save.
    """

    stopped: float
    slower: float


def saves_of(found: Mapping[str, Any]) -> list[Save]:
    """What each save but the last one cost, by the times of all steps."""
    begun, ended = found["begun"], found["ended"]
    gaps = [begin - end for begin, end in zip(begun[1:], ended, strict=False)]  # that behind each step but the last
    steps = [end - begin for begin, end in zip(begun, ended, strict=True)]
    # Before the first save; the first steps are no usual ones. Where ranks share a core some gaps are many times others, saves or not, so that
    # ten medians are less than ten gaps: the rest is no save's.
    usual_gap, usual_step = fmean(gaps[1 : EVERY - 1]), fmean(steps[2:EVERY])
    return [
        Save(
            stopped=sum(gaps[first - 1 : first + EVERY - 1]) - EVERY * usual_gap,
            slower=sum(steps[first : first + EVERY]) - EVERY * usual_step,
        )
        for first in range(EVERY, len(steps) - EVERY + 1, EVERY)
    ]


def trained(contender: str, base: Path, output: Path, ranks: int) -> tuple[list[Save], float]:
    """What each save of a training cost, and the most memory of a rank in GiB.

    Raises:
        ValueError: if the training fails, with its last words.
    """
    found = _ran(contender, base, output, ranks)
    return saves_of(found), found["peak_gib"]


def loading_seconds(contender: str, base: Path, output: Path, ranks: int, weights: Path) -> float:
    """Seconds in which a training has loaded what another one saved; errors as `trained`."""
    _forget(weights)
    begin, end = _ran(contender, base, output, ranks, weights)["loads"]
    return float(end - begin)


def _ran(contender: str, base: Path, output: Path, ranks: int, *more: Path) -> dict[str, Any]:
    arguments = ["-m", "benchmarks.saving_rank", contender, str(base), str(output), str(ranks), *map(str, more)]
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(ROOT)}
    output.mkdir()
    done = subprocess.run(words, cwd=output, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    if done.returncode:
        raise ValueError(f"the training with {contender} ended with exit code {done.returncode}: {done.stderr[-3000:]}")
    found: dict[str, Any] = read_json(output / "seconds.json")
    return found


def writing_seconds(weights: Path, target: Path, processes: int, *, direct: bool) -> tuple[float, int]:
    """Seconds in which the processes write files that they have in memory, a part each, and sync them; and the bytes of all."""
    contents = [_in_pages(path.read_bytes()) for path in _files(weights)]
    target.mkdir()
    seconds = _together(_write, [(contents[first::processes], target / str(first), direct) for first in range(processes)])
    return seconds, sum(size for _, size in contents)


def reading_seconds(weights: Path, processes: int, *, direct: bool) -> float:
    """Seconds in which the processes read files that are in no page cache, a part each, over and over into the same few MiB of memory."""
    _forget(weights)
    files = _files(weights)
    memory = mmap.mmap(-1, processes * _PIECE_BYTES)
    memory.write(bytes(len(memory)))
    return _together(_read, [(files[first::processes], memory, first * _PIECE_BYTES, direct) for first in range(processes)])


def _files(weights: Path) -> list[Path]:
    return sorted((path for path in weights.rglob("*") if path.is_file()), key=lambda path: -path.stat().st_size)


def _forget(weights: Path) -> None:
    """Have the page cache forget files."""
    for path in _files(weights):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _together(work: Callable[..., None], parts: Sequence[tuple[Any, ...]]) -> float:
    """Seconds from the begin of processes to the end of the last of them."""
    context = multiprocessing.get_context("fork")
    start = time.monotonic()
    processes = [context.Process(target=work, args=part) for part in parts]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise ValueError("a process that writes or reads the bytes has failed")
    return time.monotonic() - start


def _read(files: Sequence[Path], memory: mmap.mmap, at: int, direct: bool) -> None:
    piece = memoryview(memory)[at : at + _PIECE_BYTES]
    for path in files:
        file = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
        while os.readv(file, [piece]) == _PIECE_BYTES:
            pass
        os.close(file)


def _in_pages(content: bytes) -> tuple[mmap.mmap, int]:
    """The content at the beginning of a page and up to the end of one, as direct writes want it; and its size."""
    pages = mmap.mmap(-1, max(1, -(-len(content) // mmap.PAGESIZE)) * mmap.PAGESIZE)
    pages[: len(content)] = content
    return pages, len(content)


def _write(contents: Sequence[tuple[mmap.mmap, int]], prefix: Path, direct: bool) -> None:
    for number, (pages, size) in enumerate(contents):
        file = os.open(prefix.with_suffix(f".{number}"), os.O_WRONLY | os.O_CREAT | (os.O_DIRECT if direct else 0))
        for start in range(0, len(pages), _PIECE_BYTES):
            os.write(file, memoryview(pages)[start : start + _PIECE_BYTES])
        os.ftruncate(file, size)
        os.fsync(file)
        os.close(file)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__, prog="benchmarks.saving", example="python -m benchmarks.saving --ranks 2 4 --rounds 3")
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[2, 4], choices=[1, 2, 4, 8], help="processes of the training (default: 2 4)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each has its turn (default: 3)")
    parser.add_argument("--work", type=Path, help="where to write (default: the place of temporary files); say here which disk is asked")
    parser.add_argument("--inputs", type=Path, help="where the model and its data are kept from call to call (default: made anew)")
    arguments = parser.parse_args(argv)
    lines = []
    with tempfile.TemporaryDirectory(dir=arguments.work) as temporary:
        work = Path(temporary).absolute()
        inputs = (arguments.inputs or work).absolute()
        if not (inputs / "nemo").exists():
            inputs.mkdir(parents=True, exist_ok=True)
            opt_inputs(inputs, *SHAPE, vocab_size=8000)
        for ranks in arguments.ranks:
            lines += _rows(ranks, arguments.rounds, inputs, work)
    print(f"load of the machine at the end: {os.getloadavg()[0]:.1f} over a minute, {os.cpu_count()} cores", file=sys.stderr)
    header = [
        "ranks",
        "save",
        "s stopped, first",
        "later",
        "from, to",
        "of writing the bytes",
        "s slower steps",
        "s to load",
        "GiB a rank",
        "MiB",
    ]
    print(markdown_table(header, lines))
    return command.DONE


def _rows(ranks: int, rounds: int, inputs: Path, work: Path) -> list[list[str]]:
    first: dict[str, list[float]] = {name: [] for name in NAMES}
    later: dict[str, list[float]] = {name: [] for name in NAMES}
    slower: dict[str, list[float]] = {name: [] for name in NAMES}
    loads: dict[str, list[float]] = {name: [] for name in NAMES}
    peaks: dict[str, float] = {}
    size = 0
    for turn in range(rounds):
        for contender in CONTENDERS:
            output = work / f"{contender}_{ranks}_{turn}"
            saves, peaks[contender] = trained(contender, inputs, output, ranks)
            first[contender].append(saves[0].stopped)
            later[contender] += [save.stopped for save in saves[1:]]
            slower[contender] += [save.slower for save in saves]
            if contender in _SECOND:
                weights = output / "run" / "checkpoints" / _SECOND[contender] / "weights"
                loads[contender].append(loading_seconds(contender, inputs, work / f"load_{contender}_{ranks}_{turn}", ranks, weights))
            if contender == "ours":
                for name in ("cached", "direct"):
                    took, size = writing_seconds(weights, output / name, ranks, direct=name == "direct")
                    later[name].append(took)
                    loads[name].append(reading_seconds(weights, ranks, direct=name == "direct"))
            subprocess.run(["rm", "-rf", output], check=True)
            told = ", ".join(f"{save.stopped:.2f}" for save in saves) + (
                f"; to load {loads[contender][-1]:.2f}" if contender in _SECOND else ""
            )
            print(f"{ranks} ranks, round {turn + 1}, {NAMES[contender]}: {told} s", file=sys.stderr, flush=True)
    limit = min(median(later["cached"]), median(later["direct"]))
    return [
        [
            str(ranks),
            label,
            f"{median(first[name]):.2f}" if first[name] else "",
            f"{median(later[name]):.3f}",
            f"{min(later[name]):.3f} to {max(later[name]):.3f}",
            f"{median(later[name]) / limit:.2f}",
            f"{median(slower[name]):.2f}" if slower[name] else "",
            f"{median(loads[name]):.2f}" if loads[name] else "",
            f"{peaks[name]:.2f}" if name in peaks else "",
            f"{size / 2**20:.0f}",
        ]
        for name, label in NAMES.items()
    ]


if __name__ == "__main__":
    command.run(main)
