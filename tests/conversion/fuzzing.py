"""What a conversion does with a hostile folder, found out in a process that may hang, fill memory or die.

A trial does to a folder all that the commands of this project do, and then what only an engine does: it loads it as torch, Megatron and
TransformerEngine would, if `inspect` found no problem.  What must hold whatever the folder is:

* nothing in it runs, nobody is asked anything, and no file from outside of it gets into an output;
* a refusal is a ValueError of one sentence, and leaves no output;
* a small folder takes neither long nor much memory;
* a tensor that is given out is the one that stands in the file, every value of it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import resource
import select
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from conversion import hf_to_nemo, nemo_to_hf
from conversion.checkpoints.vocabulary_edit import untie
from conversion.edit_vocabulary import edit
from conversion.formats.dist_checkpoint import read_dist_checkpoint
from conversion.inspection import describe
from conversion.layouts.moving import change
from conversion.verify import Side

SECRET = b"a secret that belongs to nobody who reads checkpoints"
_SECONDS = 30
_MEGABYTES = 400

Trial = Callable[[], list[str]]


def findings(trial: Trial) -> list[str]:
    """What a trial in a process of its own found, its hanging, dying or eating of memory included."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _be_the_child(trial, writer)
    os.close(writer)
    said, end = b"", time.monotonic() + _SECONDS
    while select.select([reader], [], [], max(end - time.monotonic(), 0))[0] and (part := os.read(reader, 1 << 16)):
        said += part
    late = time.monotonic() > end
    if late:
        os.kill(child, signal.SIGKILL)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if late:
        return [f"it takes more than {_SECONDS} s"]
    if os.waitstatus_to_exitcode(status):
        return [f"it ends with {os.waitstatus_to_exitcode(status)}"]
    found: list[str] = json.loads(said)
    return found


def _be_the_child(trial: Trial, writer: int) -> None:
    code = 1
    with contextlib.suppress(BaseException):
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        torch.set_num_threads(1)
        before = _resident_megabytes()
        found = trial()
        if (grown := _resident_megabytes() - before) > _MEGABYTES:
            found.append(f"it takes {grown} MB")
        os.write(writer, json.dumps(found).encode())
        code = 0
    os._exit(code)


def _resident_megabytes() -> int:
    """The most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def try_nemo(folder: Path, work_dir: Path, proof: Path) -> list[str]:
    """All that is done with a NeMo folder."""
    out = work_dir / "out"
    calls: dict[str, Callable[[], object]] = {
        "verify": lambda: [tensor.read() for tensor in Side.open(folder).tensors.values()],
        "nemo_to_hf": lambda: nemo_to_hf.export(folder, out),
        "change_layout": lambda: change(folder, out, layout="megatron-lm"),
    }
    found = [problem for name, call in calls.items() for problem in _try(name, call, out)]
    problems: list[str] = []
    found += _try("inspect", lambda: problems.extend(describe(folder, deep=True).problems), out)
    if proof.exists():
        found.append("code of the folder ran in a command")
    elif not problems:
        with contextlib.suppress(Exception):
            _load_for_real(folder / "weights")
        if proof.exists():
            found.append("inspect finds nothing, and the engine would run code")
        else:
            found += _try("the reader", lambda: _compare_values(folder / "weights"), out)
    return found


def try_hf(folder: Path, work_dir: Path, proof: Path) -> list[str]:
    """All that is done with a Hugging Face folder."""
    out = work_dir / "out"
    calls: dict[str, Callable[[], object]] = {
        "hf_to_nemo": lambda: hf_to_nemo.convert(folder, out),
        "edit_vocabulary": lambda: edit(folder, out, untie, arguments={}),
        "inspect": lambda: describe(folder, deep=True),
    }
    found = [problem for name, call in calls.items() for problem in _try(name, call, out)]
    return [*found, "code of the folder ran in a command"] if proof.exists() else found


def _try(name: str, call: Callable[[], object], out: Path) -> list[str]:
    """What is wrong with how a call ends."""
    try:
        call()
    except ValueError as error:
        text = str(error)
        if type(error) is not ValueError or not 20 < len(text) < 3000 or "\n" in text:
            return [f"{name} refuses with {type(error).__name__}: {text[:300]!r}"]
        return [f"{name} refuses and leaves an output"] if out.exists() or list(out.parent.glob(".out*")) else []
    except OSError as error:  # one place turns these into a sentence, for every command
        return [] if error.filename else [f"{name}: {error!r}"]
    except Exception:
        return [f"{name}: {traceback.format_exc()[-900:]}"]
    leaked = [path.name for path in out.rglob("*") if path.is_file() and SECRET in path.read_bytes()] if out.exists() else []
    shutil.rmtree(out, ignore_errors=True)
    return [f"{name} copies a secret into {leaked}"] if leaked else []


def _compare_values(weights: Path) -> None:
    """Hold each tensor to what its chunks say when they are put together by torch, with a mark where there is none."""
    tensors = read_dist_checkpoint(weights, prefix="module.")
    metadata = pickle.loads((weights / ".metadata").read_bytes())
    for name, tensor in tensors.items():
        bits, layers = tensor.bits(), name.split(".")
        key = f"module.{name}" if f"module.{name}" in metadata.state_dict_metadata else None
        number = None
        if key is None:
            number = next(int(part) for part in layers if part.isdigit())
            key = "module." + ".".join(part for part in layers if not part.isdigit())
        covered = np.zeros(tuple(metadata.state_dict_metadata[key].size), dtype=np.int32)
        for chunk in metadata.state_dict_metadata[key].chunks:
            covered[tuple(slice(o, o + s) for o, s in zip(chunk.offsets, chunk.sizes, strict=True))] += 1
        assert (covered == 1).all(), f"{key} has values that no chunk, or more than one, holds: they are whatever memory held"
        assert bits.shape == (covered.shape if number is None else covered.shape[1:])


def _load_for_real(weights: Path) -> None:
    """Load all that an engine unpickles as it does, which runs what stands there."""
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    metadata = FileSystemReader(weights).read_metadata()
    for index, place in metadata.storage_data.items():
        if isinstance(metadata.state_dict_metadata.get(index.fqn), BytesStorageMetadata):
            with contextlib.suppress(Exception), (weights / place.relative_path).open("rb") as stream:
                stream.seek(place.offset)
                value = torch.load(io.BytesIO(stream.read(place.length)), weights_only=False)
                if "_extra_state" in index.fqn:
                    _load_extra_state(value)
    with contextlib.suppress(Exception):
        torch.load(weights / "common.pt", weights_only=False)


def _load_extra_state(value: Any) -> None:
    """What TransformerEngine does with its state, in both of its forms."""
    if isinstance(value, torch.Tensor) and value.numel():
        pickle.loads(value.numpy().tobytes())
    elif isinstance(value, io.BytesIO):
        value.seek(0)
        torch.load(value, weights_only=False)
