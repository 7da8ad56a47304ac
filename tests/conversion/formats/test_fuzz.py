"""Hostile folders made by the thousand: any part of a healthy one put into another state, by what the formats can say.

The slow tests take some of them, always the same.  `SCION_FUZZ_EXAMPLES=100000` takes so many of each kind, others in every run:
hours of them (`make fuzz`, which lifts the limit of a test's time by `--timeout 0`).  What is found is printed as the smallest case, to be put into `hostile_files` or a test of its own.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from common.artifacts import MANIFEST_NAME
from conversion import hf_to_nemo
from tests.conversion.conftest import tiny_opt
from tests.conversion.fuzzing import SECRET, findings, try_hf, try_nemo
from tests.conversion.hostile_files import CallsNumpy, LoadsBytes, RunsCode, edit_index, first_object, put_object, saved, two_pickles

pytestmark = pytest.mark.slow

EXAMPLES = os.environ.get("SCION_FUZZ_EXAMPLES")
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
Change = Callable[[Path, Path], None]  # a folder, and the file by which code shows that it ran

fuzzed = settings(
    max_examples=int(EXAMPLES or 20),
    derandomize=EXAMPLES is None,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Iterator[Path]:
    """A folder of each kind: `hf` with safetensors, `bin`, and `nemo`, without a manifest, which would find every change."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        base = Path(name)
        model = tiny_opt(num_hidden_layers=2)
        model.save_pretrained(base / "hf")
        shutil.copytree(tokenizer_dir, base / "hf", dirs_exist_ok=True)
        hf_to_nemo.convert(base / "hf", base / "nemo")
        (base / "nemo" / MANIFEST_NAME).unlink()
        (base / "secret").write_bytes(SECRET)
        yield base


# -- what can stand in a pickle ---------------------------------------------------------------------------------------------


def _shared(proof: Path) -> Any:
    value: Any = ()
    for _ in range(40):
        value = (value, value)
    return {"a": value}


def _wide(proof: Path) -> Any:
    return {"model.w": torch.zeros(1).expand(1 << 28, 4), "w": torch.zeros(2)}


PAYLOADS: dict[str, Callable[[Path], Any]] = {
    "a command": RunsCode,
    "numpy": CallsNumpy,
    "torch": LoadsBytes,
    "a list of a command": lambda proof: [1, {"a": (RunsCode(proof),)}],
    "a set": lambda proof: {1, 2},
    "a tree of shared pairs": _shared,
    "strides of nothing": _wide,
    "numbers": lambda proof: {"a": 2.0, "b": [1, None]},
}
payloads = st.sampled_from(sorted(PAYLOADS))


def _old_form(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


def _bytes_tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


FORMS: dict[str, Callable[[Any], bytes]] = {
    "an archive": saved,
    "the old form": _old_form,
    "a pickle": lambda value: pickle.dumps(value, 2),
    "a tensor of bytes": lambda value: saved(_bytes_tensor(pickle.dumps(value))),
    "a buffer": lambda value: saved(io.BytesIO(saved(value))),
    "a buffer of the old form": lambda value: saved(io.BytesIO(_old_form(value))),
    "before an archive": lambda value: _old_form(value) + saved(None),
    "behind an archive": lambda value: saved(None) + saved(value),
}
forms = st.sampled_from(sorted(FORMS))

# -- what can be done to a folder -------------------------------------------------------------------------------------------

numbers = st.sampled_from([0, 1, 2, 3, 7, 31, 32, 33, 48, 301, 10**6, 10**12, 2**63, -1, True, 1.0])
oddities = st.recursive(
    st.sampled_from([None, True, -1, 0, 1, 0.0, 1.5, 10**12, 10**30, float("nan"), float("inf"), "", "nan", "x\0y", "a" * 300, "../../x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "rank", "alpha", "", "0"]), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def changes_of_index(draw: st.DrawFn) -> Change:
    """A number of a chunk or a tensor, or a field, in the index."""
    kind = draw(st.sampled_from(["payload", "offsets", "sizes", "size", "move", "drop", "length", "offset"]))
    place, which, axis = draw(st.integers(0, 40)), draw(st.integers(0, 3)), draw(st.integers(0, 2))
    number, payload = draw(numbers), draw(payloads)
    field = draw(st.sampled_from(["planner_data", "storage_meta", "version", "mcore_data", "storage_data"]))

    def change(metadata: Any, proof: Path) -> None:
        tensors = [value for value in metadata.state_dict_metadata.values() if isinstance(value, TensorStorageMetadata)]
        entry = tensors[place % len(tensors)]
        chunk = entry.chunks[which % len(entry.chunks)]
        stored = list(metadata.storage_data.values())[place % len(metadata.storage_data)]
        if kind == "payload":
            setattr(metadata, field, PAYLOADS[payload](proof))
        elif kind == "move":
            key = next(key for key, value in metadata.state_dict_metadata.items() if value is entry)
            _move(metadata, key, chunk, entry.chunks[0])
        elif kind == "drop":
            entry.chunks.remove(chunk)
        elif kind in ("length", "offset"):
            setattr(stored, kind, number)
        else:
            owner = entry if kind == "size" else chunk
            values = list(getattr(owner, kind))
            if values:
                values[axis % len(values)] = number
            setattr(owner, kind, tuple(values))

    return lambda folder, proof: edit_index(folder, lambda metadata: change(metadata, proof))


def _move(metadata: Any, key: str, chunk: Any, other: Any) -> None:
    """Let a chunk lie where another one does, though it holds something else."""
    from torch.distributed.checkpoint.metadata import MetadataIndex

    metadata.storage_data[MetadataIndex(key, other.offsets)] = metadata.storage_data[MetadataIndex(key, chunk.offsets)]
    chunk.offsets = other.offsets


@st.composite
def tensors_in_two_chunks(draw: st.DrawFn) -> Change:
    """A tensor as two ranks would write it: each a half, which may lie where the other does."""
    which, places = draw(st.integers(0, 40)), draw(st.tuples(st.integers(0, 1), st.integers(0, 1)))

    def change(folder: Path, proof: Path) -> None:
        edit_index(folder, lambda metadata: _halve(metadata, folder / "weights/__7_0.distcp", which, places))

    return change


def _halve(metadata: Any, file: Path, which: int, places: tuple[int, int]) -> None:
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

    whole = {key: value for key, value in metadata.state_dict_metadata.items() if isinstance(value, TensorStorageMetadata)}
    even = [key for key, value in whole.items() if ".layers." not in key and value.size and value.size[0] % 2 == 0]
    key = even[which % len(even)]
    sizes = torch.Size((whole[key].size[0] // 2, *whole[key].size[1:]))
    metadata.storage_data = {index: place for index, place in metadata.storage_data.items() if index.fqn != key}
    whole[key].chunks.clear()
    for place in places:
        content, start = saved(torch.ones(sizes)), file.stat().st_size if file.exists() else 0
        with file.open("ab") as stream:
            stream.write(content)
        offsets = torch.Size((place * sizes[0], *(0 for _ in sizes[1:])))
        whole[key].chunks.append(ChunkStorageMetadata(offsets, sizes))
        metadata.storage_data[MetadataIndex(key, offsets)] = _StorageInfo(file.name, start, len(content))


@st.composite
def changes_of_objects(draw: st.DrawFn) -> Change:
    """Other content of an object, or an object that nobody knows."""
    form, payload, is_new, is_double = draw(forms), draw(payloads), draw(st.booleans()), draw(st.integers(0, 7)) == 0

    def change(folder: Path, proof: Path) -> None:
        content = two_pickles(proof) if is_double else FORMS[form](PAYLOADS[payload](proof))
        put_object(folder, "optimizer.state/shard_0_1" if is_new else first_object(folder), content)

    return change


@st.composite
def changes_of_files(draw: st.DrawFn, names: tuple[str, ...]) -> Change:
    """A file in another form of a pickle."""
    name, form, payload = draw(st.sampled_from(names)), draw(forms), draw(payloads)
    return lambda folder, proof: _write(folder / name, FORMS[form](PAYLOADS[payload](proof)))


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    if path.name == "pytorch_model.bin":
        (path.parent / "model.safetensors").unlink(missing_ok=True)


@st.composite
def changes_of_json(draw: st.DrawFn, names: tuple[str, ...]) -> Change:
    """Another value somewhere in a file of settings."""
    name, steps, value = draw(st.sampled_from(names)), draw(st.lists(st.integers(0, 60), min_size=1, max_size=4)), draw(oddities)

    def change(folder: Path, proof: Path) -> None:
        path = folder / name
        content = json.loads(path.read_text()) if path.is_file() else {"rank": 1, "alpha": 2}
        (folder / name).write_text(json.dumps(_replaced(content, steps, value)))

    return change


def _replaced(content: Any, steps: list[int], value: Any) -> Any:
    """A copy with the value at the end of a way of steps; a new key where the way leads to one."""
    if not steps or not isinstance(content, dict | list) or not content:
        return value
    if isinstance(content, list):
        place = steps[0] % len(content)
        return [_replaced(item, steps[1:], value) if number == place else item for number, item in enumerate(content)]
    keys = [*content, "quantization_config", "rope_parameters", "auto_map", "head_dim"]
    key = keys[steps[0] % len(keys)]
    return {**content, key: _replaced(content[key], steps[1:], value) if key in content else value}


@st.composite
def changes_of_header(draw: st.DrawFn) -> Change:
    """Another value in the header of a safetensors file."""
    steps, value = draw(st.lists(st.integers(0, 60), min_size=2, max_size=4)), draw(oddities)

    def change(folder: Path, proof: Path) -> None:
        path = folder / "model.safetensors"
        content = path.read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.dumps(_replaced(json.loads(content[8:end]), steps, value)).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + content[end:])

    return change


@st.composite
def programs_and_links(draw: st.DrawFn) -> Change:
    """A file that is a link to a secret, or a tokenizer that is a program."""
    name = draw(st.sampled_from(["chat_template.jinja", "generation_config.json", "tokenizer.json", "vocab.txt", "program"]))

    def change(folder: Path, proof: Path) -> None:
        if name != "program":
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(folder.parent / "secret")
            return
        (folder / "own.py").write_text(f"open({str(proof)!r}, 'w')\nclass Own: pass\n")
        settings_path = folder / "tokenizer_config.json"
        own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}
        settings_path.write_text(json.dumps({**json.loads(settings_path.read_text()), **own}))

    return change


NEMO_JSON = (
    "context/model.json",
    "context/hf/config.json",
    "context/lora.json",
    "weights/metadata.json",
    "context/hf/tokenizer_config.json",
)
HF_JSON = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")
nemo_changes = st.one_of(
    changes_of_index(), tensors_in_two_chunks(), changes_of_objects(), changes_of_files(("weights/common.pt",)), changes_of_json(NEMO_JSON)
)
hf_changes = st.one_of(changes_of_files(("pytorch_model.bin",)), changes_of_json(HF_JSON), changes_of_header(), programs_and_links())


@fuzzed
@given(change=st.one_of(changes_of_index(), tensors_in_two_chunks()))
def test_indices(healthy: Path, change: Change) -> None:
    _try(healthy, "nemo", [change], try_nemo)


@fuzzed
@given(change=st.one_of(changes_of_objects(), changes_of_files(("weights/common.pt",))))
def test_pickles(healthy: Path, change: Change) -> None:
    _try(healthy, "nemo", [change], try_nemo)


@fuzzed
@given(changes=st.lists(nemo_changes, min_size=1, max_size=3))
def test_nemo_folders(healthy: Path, changes: list[Change]) -> None:
    _try(healthy, "nemo", changes, try_nemo)


@fuzzed
@given(changes=st.lists(hf_changes, min_size=1, max_size=2))
def test_hugging_face_folders(healthy: Path, changes: list[Change]) -> None:
    _try(healthy, "hf", changes, try_hf)


def _try(healthy: Path, kind: str, changes: list[Change], trial: Callable[[Path, Path, Path], list[str]]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        work_dir = Path(name).resolve()
        folder, proof = work_dir / "folder", work_dir / "proof"
        shutil.copytree(healthy / kind, folder)
        (work_dir / "secret").write_bytes(SECRET)
        for change in changes:
            try:
                change(folder, proof)
            except Exception:  # the change before has left nothing that could be changed so
                break
        proof.unlink(missing_ok=True)  # by what a change itself loads
        assert findings(lambda: trial(folder, work_dir, proof)) == []
