"""Time and memory of converting checkpoints both ways, against plain copying of the same bytes and the published converters.

The checkpoints have the shapes of real models and random weights.  Every measured command is a process of its own, started with its
input in the page cache; its time includes starting Python, writing, and flushing the output to disk; its memory is the largest
resident set, mapped file pages included.  All take turns, so that what else the machine does meets each of them.  Published converters run only where `--nemo-python` or `--bridge-python` names an
interpreter that has them (`benchmarks/conversion_peers.py`).
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.meter import ROOT, Measured, measure
from common import command
from common.tables import markdown_table

Result = TypeVar("Result")

# What the published config.json files say of shapes: Zhang et al. 2022, table 1; the model cards of Llama 3.
OPT = {
    "model_type": "opt",
    "architectures": ["OPTForCausalLM"],
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192
    },
    "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "opt-125m": {**OPT, "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "ffn_dim": 3072},
    "opt-1.3b": {**OPT, "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 32, "ffn_dim": 8192},
    "smollm2-135m": {
        **LLAMA, "num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536,
        "vocab_size": 49152, "max_position_embeddings": 8192, "rope_theta": 100000.0, "rope_scaling": None, "tie_word_embeddings": True,
    },
    "llama-3.2-1b": {
        **LLAMA, "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32, "head_dim": 64, "intermediate_size": 8192,
        "tie_word_embeddings": True,
    },
    "llama-3.1-8b": {
        **LLAMA, "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "head_dim": 128, "intermediate_size": 14336,
        "tie_word_embeddings": False,
    },
}  # fmt: skip

# A virtual machine hands freed memory back to its host within seconds, and writing to memory that it must ask for again takes
# several times as long.  All commands wait that long, or the one that starts fastest would be the only one to find it warm.
SETTLE_SECONDS = 8

COPIES = ("plain copy", "copy by direct writes")
# Both copies end with the flush to disk that the converters do too.
COPY = ROOT / "benchmarks" / "whole" / "contenders" / "copy_folder.py"
# The least that is possible here: the same bytes by direct writes, which need no page of memory per page of the file.
DIRECT_COPY = """
import os, subprocess, sys
source, target = sys.argv[1:]
os.mkdir(target)
for entry in os.scandir(source):
    subprocess.run(["dd", f"if={entry.path}", f"of={target}/{entry.name}", "bs=8M", "oflag=direct", "conv=fsync", "status=none"], check=True)
"""


@dataclass(frozen=True)
class Run:
    """A command to be measured: its name in the table, what it reads and writes in the work folder, and the command line."""

    name: str
    source: str
    target: str
    command: Sequence[str]


def make_checkpoint(directory: Path, config: Mapping[str, Any], *, dtype: str, tokenizer_dir: Path | None) -> int:
    """Write a checkpoint of random weights, tensor by tensor; returns the bytes of its weights."""
    import torch

    from conversion.checkpoints.hf_checkpoint import copy_companions, write_hf_checkpoint
    from conversion.families import FAMILIES
    from conversion.families.mapping import Drop, expand, sizes_of
    from conversion.formats.lazy_tensor import LazyTensor, bits_of

    family = FAMILIES[config["model_type"]]
    tied = config["tie_word_embeddings"]
    sizes = sizes_of(family.megatron_config(config, tied=tied, source="the shape"))
    # Drawing billions of numbers would take longer than all that is measured, and no command looks at them.
    block = bits_of(torch.empty(1 << 22).normal_(std=0.02).to(getattr(torch, dtype)))

    def tiled(shape: tuple[int, ...]) -> Any:
        import numpy as np

        return np.resize(block, shape)

    tensors = []
    for rule in family.table:
        if isinstance(rule, Drop) or (rule.when and tied):
            continue
        for layer in range(config["num_hidden_layers"]) if "*" in rule.hf else (None,):
            for name, shape in zip(expand(rule.hf, layer), rule.hf_shapes(sizes), strict=True):
                tensors.append(LazyTensor(name, shape, dtype, partial(tiled, shape)))
    directory.mkdir()
    write_hf_checkpoint(directory, {**config, "torch_dtype": dtype}, tensors)
    if tokenizer_dir is not None:
        copy_companions(tokenizer_dir, directory)
    return sum(tensor.nbytes for tensor in tensors)


def warm(directory: Path) -> None:
    """Bring all files of a folder into the page cache."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as stream:
                while stream.read(16 << 20):
                    pass


def ours(work_dir: Path) -> list[Run]:
    """The two copies and the two directions."""

    def copy(name: str, script: Sequence[str], target: str) -> Run:
        return Run(name, "hf", target, [sys.executable, *script, str(work_dir / "hf"), str(work_dir / target)])

    def convert(name: str, module: str, source: str, target: str) -> Run:
        flags = ["--input", str(work_dir / source), "--output", str(work_dir / target)]
        return Run(name, source, target, [sys.executable, "-m", module, *flags])

    return [
        copy(COPIES[0], [str(COPY)], "copy"),
        copy(COPIES[1], ["-c", DIRECT_COPY], "direct_copy"),
        convert("HF to NeMo", "conversion.hf_to_nemo", "hf", "nemo"),
        convert("NeMo to HF", "conversion.nemo_to_hf", "nemo", "back"),
    ]


def peers(work_dir: Path, *, nemo_python: str | None, bridge_python: str | None) -> list[Run]:
    """The published converters, both ways; each reads what it wrote itself."""
    runs = []
    for label, python in (("NeMo", nemo_python), ("Megatron-Bridge", bridge_python)):
        if python is None:
            continue
        folder = f"by_{label.lower()}"
        for direction, source, target in (("import", "hf", folder), ("export", folder, f"{folder}_back")):
            script = [python, str(ROOT / "benchmarks/conversion_peers.py"), label, direction]
            runs.append(Run(f"{label}'s {direction}er", source, target, [*script, str(work_dir / source), str(work_dir / target)]))
    return runs


def run_shape(
    work_dir: Path,
    *,
    shape: str,
    dtype: str,
    repetitions: int,
    tokenizer_dir: Path | None,
    nemo_python: str | None,
    bridge_python: str | None,
) -> list[tuple[str, ...]]:
    """All measurements of one checkpoint, as rows of the table."""
    make = partial(make_checkpoint, work_dir / "hf", SHAPES[shape], dtype=dtype, tokenizer_dir=tokenizer_dir)
    nbytes = in_a_process_of_its_own(make)
    digest = in_a_process_of_its_own(partial(weights_digest, work_dir / "hf"))
    runs = [*ours(work_dir), *peers(work_dir, nemo_python=nemo_python, bridge_python=bridge_python)]
    measured: dict[str, list[Measured]] = {}
    for repetition in range(repetitions):
        if repetition == 1:  # the published converters run once: they are slow enough
            runs = ours(work_dir)
        for run in runs:
            shutil.rmtree(work_dir / run.target, ignore_errors=True)
            if run.target == "back" and repetitions == 1 and not (nemo_python or bridge_python):
                shutil.rmtree(work_dir / "hf")  # two copies of a large model are enough
            os.sync()
            warm(work_dir / run.source)
            time.sleep(SETTLE_SECONDS)
            measured.setdefault(run.name, []).append(measure(run.command))
            if run.target == "back" and in_a_process_of_its_own(partial(weights_digest, work_dir / "back")) != digest:
                raise RuntimeError("the weights did not come back")
            if run.target not in {other.source for other in runs}:
                shutil.rmtree(work_dir / run.target)
    return list(_rows(f"{shape} {dtype}, {nbytes / 1e9:.2f} GB", measured, nbytes))


def weights_digest(directory: Path) -> str:
    """Identity of the tensors of a folder by name, whichever shards they are in."""
    import xxhash

    from common.artifacts import combined_digest
    from conversion.checkpoints.hf_checkpoint import HFCheckpoint

    digests = {}
    for name, tensor in HFCheckpoint.open(directory).tensors.items():
        state = xxhash.xxh3_128()
        for block in tensor.checked_blocks():
            state.update(block.reshape(-1).data)
        digests[name] = state.hexdigest()
    return combined_digest(digests)


def in_a_process_of_its_own(function: Callable[[], Result]) -> Result:
    """Linux counts the largest resident set of a command from that of the process that starts it, so this one stays small."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function).result()


def _rows(label: str, measured: Mapping[str, Sequence[Measured]], nbytes: int) -> list[tuple[str, ...]]:
    seconds = {name: statistics.median(item.seconds for item in found) for name, found in measured.items()}
    faster_copy = min(seconds[name] for name in COPIES)
    rows: list[tuple[str, ...]] = []
    for name, found in measured.items():
        cpu_seconds = statistics.median(item.cpu_seconds for item in found)
        rows.append(
            (
                label,
                name,
                f"{seconds[name]:.2f} ({', '.join(f'{item.seconds:.2f}' for item in found)})",
                f"{seconds[name] / faster_copy:.2f}",
                f"{nbytes / 1e9 / seconds[name]:.2f}",
                f"{cpu_seconds:.2f}",
                f"{cpu_seconds / (nbytes / 1e9):.2f}",
                f"{max(item.peak_bytes for item in found) / 2**20:,.0f}",
            )
        )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__, prog="benchmarks.conversion", example="python -m benchmarks.conversion --work-dir /scratch/bench")
    parser.add_argument("--work-dir", type=Path, help="where to write, on the disk to be measured (default: the temporary folder)")
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=["opt-1.3b", "llama-3.2-1b"])
    parser.add_argument("--dtype", choices=("float16", "bfloat16", "float32"), nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--tokenizer", type=Path, help="folder whose tokenizer files the checkpoint gets (default: none)")
    parser.add_argument(
        "--nemo-python", help="interpreter with NeMo 2.7.3, whose importer and exporter are then measured once per Llama shape"
    )
    parser.add_argument("--bridge-python", help="interpreter with Megatron-Bridge 0.3.1, likewise")
    arguments = parser.parse_args(argv)
    if arguments.work_dir:
        arguments.work_dir.mkdir(parents=True, exist_ok=True)
    load_before = os.getloadavg()[0]
    rows = []
    for shape in arguments.shape:
        is_llama = SHAPES[shape]["model_type"] == "llama"  # the family that all three know
        for dtype in arguments.dtype:
            with tempfile.TemporaryDirectory(dir=arguments.work_dir) as directory:
                rows += run_shape(
                    Path(directory),
                    shape=shape,
                    dtype=dtype,
                    repetitions=arguments.repetitions,
                    tokenizer_dir=arguments.tokenizer,
                    nemo_python=arguments.nemo_python if is_llama else None,
                    bridge_python=arguments.bridge_python if is_llama else None,
                )
    columns = ("seconds (all runs)", "times the faster copy", "GB/s", "CPU seconds", "CPU seconds per GB", "peak MiB")
    header = ("checkpoint", "", *columns)
    loads = f"load {load_before:.1f} before, {os.getloadavg()[0]:.1f} behind"
    print(f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()} {platform.release()}, {loads}; medians\n")
    print(markdown_table(header, rows, text_columns=2))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
