"""The output of each layer for the same token ids: by transformers for a Hugging Face folder, by the engine for the others.

Everything is float32 on the CPU; how far that is from the truth is measured beside it, in float64 and by another attention.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.command import python_path
from common.quiet_library import quiet_transformers

if TYPE_CHECKING:
    from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent.parent
BATCH_SIZE = 2

Seen = dict[str, "Tensor"]  # `embedding`, `layer 0` ... `logits` -> (BATCH_SIZE, length, features)


@dataclass(frozen=True)
class Batch:
    """Token ids to compare models on, (BATCH_SIZE, length), and which of them are padding in a second pass.

    Attributes:
        real: (BATCH_SIZE, length) bool, False at the beginning of the first sequence and at the end of the second.
    """

    ids: Tensor
    real: Tensor


@dataclass(frozen=True)
class Distance:
    """How far two tensors are apart: the largest difference of two values, and the root of the mean of the squared differences."""

    largest: float
    root_mean_square: float

    @classmethod
    def between(cls, a: Tensor, b: Tensor) -> Distance:
        """Of two tensors of any shape, both of the same; NaN where one of them has it."""
        difference = a.double() - b.double()
        return cls(difference.abs().max().item(), difference.square().mean().sqrt().item())


@dataclass(frozen=True)
class Observation:
    """What the layers gave for a batch without padding, and for the same ids with some of them as padding (zeros there).

    Attributes:
        rounding: name -> how far it moved when the batch without padding was computed in float64, or by another attention;
            the larger of the two.  Empty where it was not measured.
    """

    whole: Seen
    padded: Seen
    rounding: Mapping[str, Distance] = field(default_factory=dict)


def rounding_of(whole: Seen, others: Iterable[Seen]) -> dict[str, Distance]:
    """How far each output of a run, name -> (batch, length, features), is at most from those of the same run with other roundings."""
    found = [{name: Distance.between(tensor, other[name]) for name, tensor in whole.items()} for other in others]
    return {
        name: Distance(max(other[name].largest for other in found), max(other[name].root_mean_square for other in found)) for name in whole
    }


def token_batch(lines: Sequence[Sequence[int]], *, vocab_size: int, length: int) -> Batch:
    """A batch of the lines one after another, then random ids over the whole vocabulary; a quarter of each sequence can be padding."""
    import torch

    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocab_size, (BATCH_SIZE * length,), generator=generator)
    text = [token for line in lines for token in line if token < vocab_size][: length * (BATCH_SIZE - 1)]
    ids[: len(text)] = torch.tensor(text, dtype=ids.dtype)
    real = torch.ones(BATCH_SIZE, length, dtype=torch.bool)
    real[0, : length // 4] = False
    real[1, length - length // 4 :] = False
    return Batch(ids.view(BATCH_SIZE, length), real)


def observe_hf(directory: Path, batch: Batch) -> Observation:
    """Run a Hugging Face checkpoint."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    from conversion.checkpoints.hf_files import load_config
    from conversion.checkpoints.token_names import POSITIONS_FROM_PAD
    from conversion.families import FAMILIES

    quiet_transformers()
    config = load_config(directory)
    model_type = config.model_type
    masked = model_type in FAMILIES and FAMILIES[model_type].masked
    # Its other attentions leave out what they have no kernel for, such as Gemma 2's capped scores.
    loading: dict[str, Any] = {"config": config, "dtype": torch.float32, "local_files_only": True, "trust_remote_code": False}
    library: Any = AutoModelForMaskedLM if masked else AutoModelForCausalLM
    model = library.from_pretrained(str(directory), attn_implementation="eager", **loading).eval()
    model.float()  # the slopes of Apertus's activation, which transformers leaves in bfloat16 whatever it is asked for
    stacks = (module for name, module in model.named_modules() if name.endswith((".layers", ".encoder.layer")) and "vision" not in name)
    layers = next(stacks)
    seen: Seen = {}
    first_position = model.config.pad_token_id + 1 if model_type in POSITIONS_FROM_PAD else 0

    def keep(name: str, hidden: Any) -> None:
        seen[name] = hidden[0] if isinstance(hidden, tuple) else hidden

    layers[0].register_forward_pre_hook(
        lambda module, args, kwargs: keep("embedding", args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )
    for number, layer in enumerate(layers):
        layer.register_forward_hook(lambda module, args, output, name=f"layer {number}": keep(name, output))

    def run(mask: Tensor | None) -> Seen:
        # Such a model takes padding from the ids themselves, which are random here, or none; the engine begins behind it.
        positions = {"position_ids": positions_behind_padding(mask, like=batch.ids, first=first_position)} if masked else {}
        seen["logits"] = model(batch.ids, attention_mask=mask, **positions).logits
        return dict(seen)

    with torch.inference_mode():
        whole, padded = run(None), without_padding(run(batch.real.long()), batch.real)
        with in_float64(model):
            others = [run(None)]
        if model._supports_sdpa and getattr(model.config, "attn_logit_softcapping", None) is None:
            model.set_attn_implementation("sdpa")
            others.append(run(None))
        return Observation(whole, padded, rounding_of(whole, others))


def positions_behind_padding(mask: Tensor | None, *, like: Tensor, first: int) -> Tensor:
    """(batch, length) positions of the real tokens, counted without the padding.

    Args:
        mask: (batch, length), 0 at padding; None where there is none.
        like: (batch, length)
        first: that of the first real token; RoBERTa's is behind the id of the padding token.
    """
    import torch

    real = torch.ones_like(like) if mask is None else mask
    return (real.cumsum(1) - 1).clamp(min=0) + first


def without_padding(seen: Seen, real: Tensor) -> Seen:
    """Zeros in place of what padding gave, which depends on the library and has no effect.

    Args:
        seen: name -> (batch, length, features); so is the result.
        real: (batch, length) bool, False at padding.
    """
    return {name: hidden.masked_fill(~real[..., None], 0.0) for name, hidden in seen.items()}


def observe_engine(
    directories: Sequence[Path], batch: Batch, *, tensor_parallel_sizes: Sequence[int], timeout_seconds: float, rounding: bool = False
) -> list[dict[int, Observation]]:
    """Run checkpoints in one start of the engine: for each of them, tensor parallel size -> observation.

    Args:
        rounding: measure how far the first checkpoint is from float64, at the first size.

    Raises:
        ValueError: if the time is over.
        RuntimeError: with the end of its output, if the engine failed.
    """
    from safetensors.torch import load_file, save_file

    with tempfile.TemporaryDirectory() as temporary:
        work_dir = Path(temporary)
        save_file({"ids": batch.ids, "real": batch.real}, work_dir / "batch.safetensors")
        task = {
            "directories": [str(directory.resolve()) for directory in directories],
            "tensor_parallel_sizes": list(tensor_parallel_sizes),
            "rounding": rounding,
        }
        (work_dir / "task.json").write_text(json.dumps(task), encoding="utf-8")
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={math.lcm(*tensor_parallel_sizes)}", "--module"]
        run_group([*launcher, "conversion.measuring.engine_forward", temporary], timeout_seconds=timeout_seconds)

        def load(number: int, size: int) -> Observation:
            whole, padded = (load_file(work_dir / f"{kind}_{number}_{size}.safetensors") for kind in ("whole", "padded"))
            in_double = work_dir / f"float64_{number}_{size}.safetensors"
            moved = rounding_of(whole, [load_file(in_double)]) if in_double.is_file() else {}
            return Observation(whole, without_padding(padded, batch.real), moved)

        return [{size: load(number, size) for size in tensor_parallel_sizes} for number in range(len(directories))]


def run_group(arguments: Sequence[str], *, timeout_seconds: float) -> None:
    """Run Python in a process group of its own, which is killed whole when it is late or this process is interrupted.

    Ranks that wait for each other ignore SIGTERM.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    environment = {**os.environ, "PYTHONPATH": python_path(ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
        try:
            code = process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise ValueError(f"the engine gave no logits within {timeout_seconds:.0f} s; raise --timeout-seconds") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code:
            errors.seek(0)
            raise RuntimeError(f"the engine failed:\n{errors.read().decode(errors='replace')[-4000:]}")


@contextlib.contextmanager
def in_float64(model: nn.Module) -> Iterator[None]:
    """Each innermost module, and each with parameters of its own, is widened before it runs and narrowed after, which loses no bit.

    What a library computes in float32 whatever its input is (norms, rotations, softmax of Hugging Face) it still does.
    """
    import torch

    def widen(module: nn.Module, args: Any, kwargs: Any) -> Any:
        module.double()
        # Megatron hands a tied output layer its matrix as an argument.
        return tuple(map(widened, args)), {name: widened(value) for name, value in kwargs.items()}

    def narrow(module: nn.Module, args: Any, output: Any) -> None:
        module.float()

    def widened(value: Any) -> Any:
        return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    hooks = []
    for module in model.modules():
        if next(module.children(), None) is None or next(module.parameters(recurse=False), None) is not None:
            hooks.append(module.register_forward_pre_hook(widen, with_kwargs=True))
            hooks.append(module.register_forward_hook(narrow))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
