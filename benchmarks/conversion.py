"""Time and memory of converting a checkpoint both ways, against plain copying of the same bytes in the same run.

The checkpoint has the shape of OPT-1.3B (other sizes by flag) and random weights.  Every measured command is a process of its
own, started with its input in the page cache; its time includes starting Python, writing and flushing the output to disk;
its memory is the largest resident set, mapped file pages included.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from data_prep import command

ROOT = Path(__file__).resolve().parent.parent

# Zhang et al. 2022, table 1.
SHAPES = {
    "opt-125m": {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "ffn_dim": 3072},
    "opt-1.3b": {"num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 32, "ffn_dim": 8192},
    "opt-6.7b": {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "ffn_dim": 16384},
}

# A virtual machine hands freed memory back to its host within seconds, and writing to memory that it must ask for again takes
# several times as long.  All commands wait that long, or the one that starts fastest would be the only one to find it warm.
SETTLE_SECONDS = 8

# Copies every file of a folder and flushes it to disk, as the converters do with their output.
COPY = """
import os, shutil, sys
source, target = sys.argv[1:]
shutil.copytree(source, target)
for folder, _, names in os.walk(target):
    for name in names:
        descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
"""


@dataclass(frozen=True)
class Measurement:
    seconds: float
    cpu_seconds: float
    peak_bytes: int


def measure(arguments: Sequence[str]) -> Measurement:
    """Run Python with these arguments; its time from start to end and its largest resident set."""
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    if status:
        raise RuntimeError(f"{' '.join(arguments)} failed: {errors.decode(errors='replace')[-2000:]}")
    return Measurement(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def make_checkpoint(directory: Path, *, shape: str, dtype_name: str) -> int:
    """Write a random untied checkpoint, tensor by tensor; returns the bytes of its weights."""
    import torch

    from conversion.families.opt import OPT
    from conversion.hf_checkpoint import write_hf_checkpoint
    from conversion.lazy_tensor import LazyTensor
    from conversion.mapping import expand, sizes_of

    dtype = getattr(torch, dtype_name)
    config = {
        **SHAPES[shape],
        "model_type": "opt",
        "architectures": ["OPTForCausalLM"],
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "torch_dtype": dtype_name,
    }
    sizes = sizes_of(OPT.megatron_config(config, tied=False, source=shape))

    def random(tensor_shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(tensor_shape).normal_(std=0.02).to(dtype)

    tensors = []
    for rule in OPT.table:
        for layer in range(config["num_hidden_layers"]) if "*" in rule.hf else (None,):
            for name, tensor_shape in zip(expand(rule.hf, layer), rule.hf_shapes(sizes), strict=True):
                tensors.append(LazyTensor(name, tensor_shape, dtype, lambda s=tensor_shape: random(s)))
    directory.mkdir()
    write_hf_checkpoint(directory, config, tensors)
    return sum(tensor.nbytes for tensor in tensors)


def warm(directory: Path) -> None:
    """Bring all files of a folder into the page cache."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as stream:
                while stream.read(16 << 20):
                    pass


def run(work_dir: Path, *, shape: str, dtype_name: str, repetitions: int) -> str:
    """All measurements as a Markdown table."""
    # In a process of its own: Linux counts the largest resident set of a command from that of the process that starts it.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        nbytes = pool.submit(make_checkpoint, work_dir / "hf", shape=shape, dtype_name=dtype_name).result()
    rows: dict[str, list[Measurement]] = {"plain copy": [], "HF to NeMo": [], "NeMo to HF": []}
    for _ in range(repetitions):
        for name, source, target, arguments in (
            ("plain copy", "hf", "copy", ["-c", COPY]),
            ("HF to NeMo", "hf", "nemo", ["-m", "conversion.hf_to_nemo"]),
            ("NeMo to HF", "nemo", "back", ["-m", "conversion.nemo_to_hf"]),
        ):
            shutil.rmtree(work_dir / target, ignore_errors=True)
            os.sync()
            warm(work_dir / source)
            time.sleep(SETTLE_SECONDS)
            flags = ["--input", "--output"] if arguments[0] == "-m" else []
            paths = [str(work_dir / source), str(work_dir / target)]
            rows[name].append(
                measure([*arguments, *(item for pair in zip(flags, paths) for item in pair)] if flags else [*arguments, *paths])
            )
        assert (work_dir / "back" / "model.safetensors").stat().st_size == (work_dir / "hf" / "model.safetensors").stat().st_size
    copy_seconds = min(found.seconds for found in rows["plain copy"])
    lines = [
        f"{shape}, {dtype_name}, {nbytes / 1e9:.2f} GB; best of {repetitions}; {os.cpu_count()} cores, {platform.machine()}",
        "",
        "| | seconds (all runs) | times a plain copy | GB/s | CPU seconds | peak memory |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in rows.items():
        seconds = min(item.seconds for item in found)
        runs = ", ".join(f"{item.seconds:.1f}" for item in found)
        peak = max(item.peak_bytes for item in found) / 2**20
        cpu_seconds = min(item.cpu_seconds for item in found)
        lines.append(
            f"| {name} | {seconds:.2f} ({runs}) | {seconds / copy_seconds:.2f} | {nbytes / 1e9 / seconds:.2f} | {cpu_seconds:.1f} | {peak:.0f} MiB |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__, prog="benchmarks.conversion", example="python -m benchmarks.conversion --work-dir /scratch/bench")
    parser.add_argument("--work-dir", type=Path, help="where to write, on the disk to be measured (default: the temporary folder)")
    parser.add_argument("--shape", choices=SHAPES, default="opt-1.3b")
    parser.add_argument("--dtype", choices=("float16", "bfloat16", "float32"), default="float16")
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args(argv)
    if arguments.work_dir:
        arguments.work_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.work_dir) as directory:
        print(run(Path(directory), shape=arguments.shape, dtype_name=arguments.dtype, repetitions=arguments.repetitions))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
