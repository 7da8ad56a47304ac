"""For how long a save stops a training: this project's, its asynchronous one, NeMo's own callback, and the writing of the same bytes.

An OPT of 42 million parameters (16 bytes each with Adam's state) is trained at tensor parallel 2 on two and on four processes, which save twice.
What counts is the time from the end of a step to the beginning of the next, less that between steps without a save.  The limit is what as many
processes take to write the files of the checkpoint, which they have in memory, and to sync them.  All take turns over several rounds.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import ROOT, opt_inputs
from benchmarks.saving_rank import CONTENDERS, EVERY
from common import command
from common.plain_files import read_json
from common.tables import markdown_table
from recipes.runs.run_dir import checkpoint_name

SHAPE = ("--num-layers", 12, "--hidden-size", 512, "--num-attention-heads", 8, "--ffn-size", 2048, "--max-positions", 128)
NAMES = {
    "ours": "this project's",
    "beside": "this project's, `run.asynchronous_save`",
    "nemo": "NeMo's `ModelCheckpoint`",
    "bytes": "writing the same bytes",
}
_TIMEOUT_SECONDS = 600


def stopped_seconds(contender: str, base: Path, output: Path, ranks: int) -> list[float]:
    """Seconds for which each save of a training has stopped it.

    Raises:
        ValueError: if the training fails, with its last words.
    """
    arguments = ["-m", "benchmarks.saving_rank", contender, str(base), str(output), str(ranks)]
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    output.mkdir()
    done = subprocess.run(words, cwd=output, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    if done.returncode:
        raise ValueError(f"the training with {contender} ended with exit code {done.returncode}: {done.stderr[-3000:]}")
    found: dict[str, Any] = read_json(output / "seconds.json")
    return [seconds - median(found["others"]) for seconds in found["saves"]]


def writing_seconds(weights: Path, target: Path, processes: int) -> tuple[float, int]:
    """Seconds in which the processes write files that they have in memory, a part each, and sync them; and the bytes of all."""
    files = sorted((path for path in weights.rglob("*") if path.is_file()), key=lambda path: -path.stat().st_size)
    contents = [path.read_bytes() for path in files]
    target.mkdir()
    context = multiprocessing.get_context("fork")
    start = time.monotonic()
    writers = [context.Process(target=_write, args=(contents[first::processes], target / str(first))) for first in range(processes)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    return time.monotonic() - start, sum(map(len, contents))


def _write(contents: Sequence[bytes], prefix: Path) -> None:
    for number, content in enumerate(contents):
        with prefix.with_suffix(f".{number}").open("wb") as stream:
            stream.write(content)
            os.fsync(stream.fileno())


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__, prog="benchmarks.saving", example="python -m benchmarks.saving --ranks 2 4 --rounds 3")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], choices=[2, 4, 8], help="processes of the training (default: 2 4)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each has its turn (default: 3)")
    parser.add_argument("--work", type=Path, help="where to write (default: the place of temporary files); say here which disk is asked")
    arguments = parser.parse_args(argv)
    lines = []
    with tempfile.TemporaryDirectory(dir=arguments.work) as temporary:
        base = Path(temporary).absolute()
        opt_inputs(base, *SHAPE, vocab_size=8000)
        for ranks in arguments.ranks:
            seconds: dict[str, list[float]] = {name: [] for name in NAMES}
            size = 0
            for turn in range(arguments.rounds):
                for contender in CONTENDERS:
                    output = base / f"{contender}_{ranks}_{turn}"
                    found = stopped_seconds(contender, base, output, ranks)
                    seconds[contender] += found
                    if contender == "ours":
                        weights = output / "run" / "checkpoints" / checkpoint_name(EVERY) / "weights"
                        for copy in range(2):
                            took, size = writing_seconds(weights, output / f"bytes_{copy}", ranks)
                            seconds["bytes"].append(took)
                    subprocess.run(["rm", "-rf", output], check=True)
                    told = ", ".join(f"{value:.2f}" for value in found)
                    print(f"{ranks} ranks, round {turn + 1}, {NAMES[contender]}: {told} s", file=sys.stderr, flush=True)
            limit = median(seconds["bytes"])
            for name, values in seconds.items():
                row = [
                    ranks,
                    NAMES[name],
                    f"{median(values):.2f}",
                    f"{min(values):.2f} to {max(values):.2f}",
                    f"{median(values) / limit:.2f}",
                ]
                lines.append([*row, f"{size / 2**20:.0f}"])
    print(markdown_table(["ranks", "save", "s stopped", "from, to", "of writing the bytes", "MiB"], lines))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
