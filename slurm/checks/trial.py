"""A trial of training on one node in a few minutes: what only the machine itself can show, on GPUs, or with gloo where there are none.

Each part is a function of a `Trial` that gives what it found; `slurm.trial` runs them and `slurm.checks.trial_findings` judges.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from common import command
from slurm.checks.node_facts import installed
from slurm.jobs.job import ROOT

RESULT_NAME = "trial.json"
STEPS, SAVED_EVERY = 12, 4
HANG_SECONDS = 20
_PATIENCE_SECONDS = 900  # for a part that gets nowhere; a node takes a minute or two for each
_TEXT = ROOT / "recipes" / "demo_text"
_PACKAGES = ("torch", "transformer-engine", "flash-attn", "apex", "nemo-toolkit", "megatron-core")
# Of the one task that runs the trial, which would be taken for the launcher of what it starts.
_OF_THE_TASK = ("SLURM_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_")
_NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "wekafs", "cifs")

# An image's TransformerEngine and apex compute on GPUs alone.
_WITHOUT_KERNELS = (
    "import sys; sys.modules.update(dict.fromkeys(('transformer_engine', 'apex', 'amp_C', 'flash_attn')));"
    " from common import command; from recipes.train import main; command.run(main)"
)


@dataclass(frozen=True)
class Trial:
    """Where a trial runs.

    Attributes:
        directory: for all that it writes.
        num_devices: GPUs of the node, or processes where it has none.
        has_gpus: else everything runs on the processor.
    """

    directory: Path
    num_devices: int
    has_gpus: bool

    def environment(self, *, on_cpu: bool = False, **more: str) -> dict[str, str]:
        """For a process that is nobody's rank."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_THE_TASK)}
        return {**kept, **({"CUDA_VISIBLE_DEVICES": ""} if on_cpu or not self.has_gpus else {}), **more}

    def run(self, *words: str, seconds: float = 900, on_cpu: bool = True, **environment: str) -> str:
        """What `python words` prints; its last lines are the error where it fails."""
        done = subprocess.run(
            [sys.executable, *words],
            env=self.environment(on_cpu=on_cpu, **environment),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{words[1]} ended with {done.returncode}: {_last_lines(done.stderr)}")
        return done.stdout


def engine(trial: Trial) -> dict[str, Any]:
    """Seconds in which the engine is imported, what it computes with, and what the site has set."""
    start = time.monotonic()
    trial.run("-c", "import recipes.training.engine", seconds=600, on_cpu=False)
    prefixes = ("NVTE_", "NCCL_", "TORCH_NCCL_", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    return {
        "seconds": round(time.monotonic() - start, 1),
        "packages": installed(_PACKAGES),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)},
    }


def inputs(trial: Trial) -> dict[str, Any]:
    """A tiny model with its tokenizer and data, made by the commands that users call."""
    place = trial.directory
    text = str(_TEXT / "sl.train.txt")
    trial.run("-m", "data_prep.train_tokenizer", "--input", text, "--vocab-size", "1501", "--output", str(place / "tokenizer"))
    trial.run("-m", "data_prep.to_megatron", "--input", text, "--tokenizer", str(place / "tokenizer"), "--output", str(place / "data"))
    sizes = {"num-layers": 4, "hidden-size": 256, "num-attention-heads": 4, "num-key-value-heads": 2, "ffn-size": 512, "max-positions": 128}
    words = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    made = ("--tokenizer", str(place / "tokenizer"), "--seed", "1", "--output", str(place / "hf"))
    trial.run("-m", "conversion.new_model", "--model-type", "llama", *words, *made)
    trial.run("-m", "conversion.hf_to_nemo", "--input", str(place / "hf"), "--output", str(place / "nemo"))
    return {}


def training(trial: Trial) -> dict[str, Any]:
    """Losses of a run that is killed and resumed, in bf16 on GPUs with tensor and data parallelism, beside those of one process."""
    run_dir = trial.directory / "run"
    process = _start(trial, run_dir, f"schedule.max_steps={STEPS}", f"run.checkpoint_every_steps={SAVED_EVERY}")
    _wait_for(
        process,
        lambda: len(_losses(run_dir)) > SAVED_EVERY and any(run_dir.glob("checkpoints/step_*/scion.json")),
        seconds=_PATIENCE_SECONDS,
    )
    was_killed = process.poll() is None
    process.kill()  # and the kernel its ranks with it
    process.wait()
    before = _losses(run_dir)
    # The second part with memory in segments that grow, as long trainings ask for it.
    resumed = _start(
        trial,
        run_dir,
        f"schedule.max_steps={STEPS}",
        f"run.checkpoint_every_steps={SAVED_EVERY}",
        environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if trial.has_gpus else {},
    )
    _wait_for(resumed, lambda: False, seconds=_PATIENCE_SECONDS)
    if resumed.returncode:
        raise RuntimeError(f"the resumed run ended with {resumed.returncode}: {_last_lines(_log(run_dir).read_text(errors='replace'))}")
    plain = trial.directory / "plain"
    alone = _start(trial, plain, f"schedule.max_steps={STEPS}", devices=1, on_cpu=True)
    _wait_for(alone, lambda: False, seconds=_PATIENCE_SECONDS)
    if alone.returncode:
        raise RuntimeError(f"the run on one process ended with {alone.returncode}: {_last_lines(_log(plain).read_text(errors='replace'))}")
    return {
        "was killed": was_killed,
        "losses before": before,
        "losses": _losses(run_dir),
        "losses of a processor": _losses(plain),
        "memory": [{key: record[key] for key in ("memory_gib", "reserved_gib") if key in record} for record in _records(run_dir)][-1:],
    }


def hang(trial: Trial) -> dict[str, Any]:
    """How a run ends of which one rank has stopped: by the watchdog, before NCCL or gloo find it out."""
    import psutil

    if trial.num_devices == 1:
        return {"absent": "a single rank, for which no other one waits"}
    run_dir = trial.directory / "hanging"
    patience = (f"run.hang_seconds={HANG_SECONDS}", "run.hang_other_seconds=240", "run.asynchronous_save=false")
    process = _start(trial, run_dir, "schedule.max_steps=1000000", "run.checkpoint_every_steps=1000000", *patience)
    _wait_for(process, lambda: len(_losses(run_dir)) > 2 * SAVED_EVERY, seconds=_PATIENCE_SECONDS)
    ranks = psutil.Process(process.pid).children() if process.poll() is None else []
    if not ranks:
        raise RuntimeError(f"the run ended before a rank could be stopped: {_last_lines(_log(run_dir).read_text(errors='replace'))}")
    start = time.monotonic()
    ranks[-1].send_signal(signal.SIGSTOP)
    _wait_for(process, lambda: False, seconds=12 * HANG_SECONDS)
    return {
        "seconds": round(time.monotonic() - start, 1),
        "exit code": process.returncode,
        "expected": command.HUNG,
        "says that it hangs": "hangs: step" in _log(run_dir).read_text(errors="replace"),
    }


def caches(trial: Trial) -> dict[str, Any]:
    """Where torch and triton keep what they compile, and on which kind of file system."""
    user = os.environ.get("USER") or str(os.getuid())
    places = {
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", f"{os.environ.get('TMPDIR', '/tmp')}/torchinductor_{user}"),
        "TRITON_CACHE_DIR": os.environ.get("TRITON_CACHE_DIR", str(Path(os.environ.get("TRITON_HOME", str(Path.home()))) / ".triton")),
    }
    return {
        name: {"path": path, "file system": file_system(Path(path)), "is shared": is_shared(Path(path))} for name, path in places.items()
    }


def speeds(trial: Trial) -> dict[str, Any]:
    """TFLOP/s of each device in large products, and GB/s from each GPU to each other."""
    import torch

    devices = [torch.device("cuda", number) for number in range(trial.num_devices)] if trial.has_gpus else [torch.device("cpu")]
    size, dtype = (8192, torch.bfloat16) if trial.has_gpus else (512, torch.float32)
    wait: Callable[[Any], Any] = torch.cuda.synchronize if trial.has_gpus else lambda device: None
    products = {}
    for device in devices:
        left = torch.randn(size, size, device=device, dtype=dtype)
        seconds = _best_seconds(partial(torch.matmul, left, left), wait, device)
        products[str(device)] = round(2 * size**3 / seconds / 1e12, 3)
    copies = {}
    for source in devices if trial.has_gpus else []:
        block = torch.empty(256 << 20, dtype=torch.uint8, device=source)
        for target in devices:
            if target != source:
                seconds = _best_seconds(partial(block.to, target), wait, target)
                copies[f"{source.index} to {target.index}"] = round(block.numel() / seconds / 1e9, 1)
    return {"TFLOP/s": products, "GB/s": copies}


def attention(trial: Trial) -> dict[str, Any]:
    """TransformerEngine's attention for documents, at wide heads and with a window, beside the formula: the largest difference of each case."""
    if not trial.has_gpus or "transformer-engine" not in installed(_PACKAGES):
        return {"absent": "no GPU" if not trial.has_gpus else "TransformerEngine is not installed"}
    import torch
    from transformer_engine.pytorch import DotProductAttention  # type: ignore[import-not-found]

    found: dict[str, Any] = {}
    bounds = torch.tensor([0, 300, 340, 1024], dtype=torch.int32, device="cuda")
    longest = int(bounds.diff().max())
    for head, window in ((128, None), (128, 64), (256, None), (256, 64)):
        query, key, value = (torch.randn(1024, heads, head, device="cuda", dtype=torch.bfloat16, requires_grad=True) for heads in (8, 4, 4))
        options = {} if window is None else {"window_size": (window - 1, 0)}
        try:
            layer = DotProductAttention(8, head, num_gqa_groups=4, qkv_format="thd", attn_mask_type="padding_causal", **options)
            arguments = {"cu_seqlens_q": bounds, "cu_seqlens_kv": bounds, "max_seqlen_q": longest, "max_seqlen_kv": longest}
            output = layer(query, key, value, **arguments)
            output.float().sum().backward()
            expected = formula(query, key, value, bounds.tolist(), window=window)
            found[case_name(head, window)] = round(float((output.float().view_as(expected) - expected).abs().max()), 5)
        except Exception as error:  # whatever a library says that has no kernel for a case
            found[case_name(head, window)] = str(error).strip().splitlines()[-1][:300] if str(error).strip() else type(error).__name__
    return found


def case_name(head: int, window: int | None) -> str:
    """Of a case of `attention`."""
    return f"heads of {head}" + ("" if window is None else f", window of {window}")


def formula(query: Any, key: Any, value: Any, bounds: Sequence[int], *, window: int | None) -> Any:
    """Causal attention with intra-document masking, in float32.

    Args:
        query: (tokens, heads, head_dim); key, value: (tokens, groups, head_dim)
        window: tokens that each sees, itself among them; all before it by default.

    Returns:
        (tokens, heads, head_dim)
    """
    import torch

    repeats = query.shape[1] // key.shape[1]
    q, k, v = query.float(), *(x.float().repeat_interleave(repeats, dim=1) for x in (key, value))
    parts = []
    for first, end in zip(bounds, bounds[1:]):
        scores = torch.einsum("qhd,khd->hqk", q[first:end], k[first:end]) / query.shape[-1] ** 0.5
        seen = torch.ones(end - first, end - first, dtype=torch.bool, device=scores.device).tril()
        if window is not None:
            seen = seen.triu(1 - window)
        parts.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v[first:end]))
    return torch.cat(parts)


PARTS: Mapping[str, Callable[[Trial], dict[str, Any]]] = {
    "engine": engine,
    "compile caches": caches,
    "products and copies": speeds,
    "attention of documents": attention,
    "inputs": inputs,
    "training": training,
    "a rank that hangs": hang,
}


def file_system(path: Path, *, mounts: Path = Path("/proc/mounts")) -> str:
    """Kind of the file system that a path is on, or would be."""
    path = path.absolute()
    kinds = dict(line.split()[1:3] for line in mounts.read_text(encoding="utf-8").splitlines() if len(line.split()) > 2)
    return next((kinds[str(place)] for place in (path, *path.parents) if str(place) in kinds), "unknown")


def is_shared(path: Path, *, mounts: Path = Path("/proc/mounts")) -> bool:
    """Whether a path is on a file system of the network."""
    return file_system(path, mounts=mounts) in _NETWORK_FILE_SYSTEMS


def _best_seconds(work: Callable[[], Any], wait: Callable[[Any], Any], device: Any) -> float:
    seconds = []
    for _ in range(4):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _start(
    trial: Trial,
    run_dir: Path,
    *overrides: str,
    devices: int | None = None,
    on_cpu: bool = False,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    devices = devices or trial.num_devices
    place = trial.directory
    words = [
        *("--recipe", "demo_adapt", "--output", str(run_dir)),
        *(f"model.checkpoint={place / 'nemo'}", f"data.train=[{place / 'data'}]", "data.document_mask=true"),
        *(f"parallel.devices_per_node={devices}", f"parallel.tensor_parallel_size={2 if devices % 2 == 0 else 1}"),
        *("schedule.global_batch_size=16", "schedule.micro_batch_size=2", "schedule.warmup_steps=2", "run.log_every_steps=1"),
        *(("precision=bf16",) if trial.has_gpus and not on_cpu else ()),
        *(() if any("asynchronous" in override for override in overrides) else ("run.asynchronous_save=true",)),
        *overrides,
    ]
    with _log(run_dir).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *(("-c", _WITHOUT_KERNELS) if on_cpu else ("-m", "recipes.train")), *words],
            env=trial.environment(on_cpu=on_cpu, **(environment or {})),
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _log(run_dir: Path) -> Path:
    return run_dir.with_suffix(".log")


def _wait_for(process: subprocess.Popen[bytes], is_so: Callable[[], bool], *, seconds: float) -> None:
    """Wait until something is so, or the process has ended; one that takes longer is killed, with its ranks."""
    end = time.monotonic() + seconds
    while process.poll() is None and not is_so():
        if time.monotonic() > end:
            process.kill()
            process.wait()
            return
        time.sleep(0.1)


def _records(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return []
    whole = path.read_text(encoding="utf-8").splitlines(keepends=True)
    records = [json.loads(line) for line in whole if line.endswith("\n")]
    return [record for record in records if "loss" in record]


def _losses(run_dir: Path) -> dict[str, float]:
    return {str(record["step"]): record["loss"] for record in _records(run_dir)}


def _last_lines(text: str) -> str:
    return " / ".join(text.strip().splitlines()[-3:])[-600:]
