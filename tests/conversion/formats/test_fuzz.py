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
import socket
import tempfile
from argparse import Namespace
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from common.artifacts import MANIFEST_NAME
from conversion import hf_to_nemo
from data_prep.tokenizers.files import TOKENIZER_FILES
from tests.conversion.conftest import tiny_opt
from tests.conversion.fuzzing import SECRET, findings, try_hf, try_nemo, try_tokenizer, try_trainer_checkpoint
from tests.conversion.hostile_files import (
    CallsNumpy,
    LoadsBytes,
    RunsCode,
    edit_index,
    first_object,
    put_object,
    saved,
    saved_in_old_form,
    two_pickles,
)

pytestmark = pytest.mark.slow

EXAMPLES = os.environ.get("SCION_FUZZ_EXAMPLES")
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
Payload = Callable[[Path], Any]
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


PAYLOADS: dict[str, Payload] = {
    "a command": RunsCode,
    "numpy": CallsNumpy,
    "torch": LoadsBytes,
    "a list of a command": lambda proof: [1, {"a": (RunsCode(proof),)}],
    "a set": lambda proof: {1, 2},
    "a tree of shared pairs": _shared,
    "strides of nothing": _wide,
    "numbers": lambda proof: {"a": 2.0, "b": [1, None]},
}


class Calls:
    """What unpickling calls a function with; arguments may be such things again."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.function, self.arguments


CALLER = torch._tensor._rebuild_from_type_v2  # calls what it is given, by a name that tensors need
AROUND: tuple[Callable[[Calls], Any], ...] = (
    lambda inner: Calls(CALLER, inner.function, torch.Tensor, inner.arguments, None),
    lambda inner: Calls(CALLER, CALLER, torch.Tensor, (inner.function, torch.Tensor, inner.arguments, {"a": 1}), None),
    lambda inner: Calls(torch.storage._load_from_bytes, saved(inner)),
    lambda inner: Calls(OrderedDict, [("a", inner)]),
    lambda inner: Calls(defaultdict, inner.function, {"a": inner}),
    lambda inner: Calls(torch._utils._rebuild_parameter_with_state, inner, False, OrderedDict(), {"a": inner}),
    lambda inner: Calls(Namespace, inner),
    lambda inner: Calls(io.BytesIO, saved({"a": inner})),
)


@st.composite
def nested_names(draw: st.DrawFn) -> Payload:
    """Functions that state may name, one in another, of which the innermost loads a command."""
    around, held = draw(st.lists(st.sampled_from(AROUND), max_size=4)), draw(st.booleans())

    def build(proof: Path) -> Any:
        value = Calls(torch.storage._load_from_bytes, saved(RunsCode(proof)))
        for wrap in around:
            value = wrap(value)
        return {"args": Namespace(a=[value])} if held else value

    return build


payloads = st.one_of(st.sampled_from(sorted(PAYLOADS)).map(PAYLOADS.__getitem__), nested_names())


def _bytes_tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


FORMS: dict[str, Callable[[Any], bytes]] = {
    "an archive": saved,
    "the old form": saved_in_old_form,
    "a pickle": lambda value: pickle.dumps(value, 2),
    "a tensor of bytes": lambda value: saved(_bytes_tensor(pickle.dumps(value))),
    "a buffer": lambda value: saved(io.BytesIO(saved(value))),
    "a buffer of the old form": lambda value: saved(io.BytesIO(saved_in_old_form(value))),
    "before an archive": lambda value: saved_in_old_form(value) + saved(None),
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
            setattr(metadata, field, payload(proof))
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
        content = two_pickles(proof) if is_double else FORMS[form](payload(proof))
        put_object(folder, "optimizer.state/shard_0_1" if is_new else first_object(folder), content)

    return change


@st.composite
def changes_of_files(draw: st.DrawFn, names: tuple[str, ...]) -> Change:
    """A file in another form of a pickle."""
    name, form, payload = draw(st.sampled_from(names)), draw(forms), draw(payloads)
    return lambda folder, proof: _write(folder / name, FORMS[form](payload(proof)))


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


def _program(folder: Path, proof: Path) -> None:
    """A tokenizer that is a program."""
    (folder / "own.py").write_text(f"open({str(proof)!r}, 'w')\nclass Own: pass\n")
    settings_path = folder / "tokenizer_config.json"
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}
    settings_path.write_text(json.dumps({**json.loads(settings_path.read_text()), **own}))


def _socket(path: Path) -> None:
    place = os.getcwd()
    os.chdir(path.parent)  # its address may not be long
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(place)


def _loop(path: Path) -> None:
    path.symlink_to(f"{path.name}.other")
    path.with_name(f"{path.name}.other").symlink_to(path.name)


# What may stand under a name; the secret lies beside the folder.
ODD_FILES: dict[str, Callable[[Path, Path], object]] = {
    "a link to a secret": lambda path, folder: path.symlink_to(folder.parent / "secret"),
    "a link to a folder with a secret": lambda path, folder: path.symlink_to(folder.parent),
    "a link to nothing": lambda path, folder: path.symlink_to("nothing"),
    "a link to a device that never ends": lambda path, folder: path.symlink_to("/dev/zero"),
    "a link to a device that is empty": lambda path, folder: path.symlink_to("/dev/null"),
    "a link to itself": lambda path, folder: path.symlink_to(path.name),
    "a link to a link to itself": lambda path, folder: _loop(path),
    "a link to its own folder": lambda path, folder: path.symlink_to(folder),
    "a pipe": lambda path, folder: os.mkfifo(path),
    "a socket": lambda path, folder: _socket(path),
    "a folder": lambda path, folder: path.mkdir(),
}
COMPANIONS = (
    *TOKENIZER_FILES,
    "generation_config.json",
    "preprocessor_config.json",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "tekken.json",
    "README.md",
    "chat_template.json",
    "additional_chat_templates",
    MANIFEST_NAME,
)


@st.composite
def odd_files(draw: st.DrawFn, *, below: tuple[str, ...]) -> Change:
    """A link, pipe, socket or folder under a name that is there or may be.

    Args:
        below: where else such names are looked for.
    """
    kind, place = draw(st.sampled_from(sorted(ODD_FILES))), draw(st.integers(0, 200))

    def change(folder: Path, proof: Path) -> None:
        there = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
        names = sorted({*there, *(f"{inner}{name}" for inner in below for name in COMPANIONS)})
        path = folder / names[place % len(names)]
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        ODD_FILES[kind](path, folder)

    return change


# -- what a tokenizer may be ------------------------------------------------------------------------------------------------


def _ordinary(content: Any, place: int) -> str:
    """A token that no other is merged of and no role has."""
    halves = {half for merge in content["model"]["merges"] for half in (merge.split(" ") if isinstance(merge, str) else merge)}
    added = {token["content"] for token in content["added_tokens"]}
    return [token for token in content["model"]["vocab"] if token not in halves | added][place]


def _without(content: Any, token: str) -> int:
    """The id that a token had, which is out of the vocabulary now."""
    merges = content["model"]["merges"]
    content["model"]["merges"] = [merge for merge in merges if "".join(merge.split(" ") if isinstance(merge, str) else merge) != token]
    return int(content["model"]["vocab"].pop(token))


def _added(token_id: int, text: str, **flags: bool) -> dict[str, Any]:
    return {"id": token_id, "content": text, **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False), **flags}


def _template(front: list[str], back: list[str], ids: dict[str, list[int]]) -> dict[str, Any]:
    around = [[{"SpecialToken": {"id": token, "type_id": 0}} for token in side] for side in (front, back)]
    single, second = ([*around[0], {"Sequence": {"id": part, "type_id": 0}}, *around[1]] for part in "AB")
    named = {token: {"id": token, "ids": found, "tokens": [token] * len(found)} for token, found in ids.items()}
    return {"type": "TemplateProcessing", "single": single, "pair": [*single, *second], "special_tokens": named}


@st.composite
def changes_of_tokenizer(draw: st.DrawFn) -> Change:
    """Holes in the ids, added tokens anywhere, frames, and what a caller has left in the file."""
    kind = draw(st.sampled_from(["hole", "hole", "added", "added", "moved", "twice", "frame", "frame", "callers", "roles"]))
    places, far = (
        draw(st.lists(st.integers(0, 15), min_size=1, max_size=3, unique=True)),
        draw(st.sampled_from([280, 281, 290, 300, 301, 70_003, 2**31])),
    )
    flags = draw(st.fixed_dictionaries({name: st.booleans() for name in ("special", "normalized", "lstrip", "rstrip", "single_word")}))
    named, sides = draw(st.booleans()), draw(st.tuples(*[st.lists(st.sampled_from(["</s>", "<pad>", "a", "<|x|>"]), max_size=2)] * 2))
    token_id, in_sequence = draw(st.sampled_from([None, 0, 5, 299, 5000])), draw(st.booleans())
    roles = draw(
        st.dictionaries(
            st.sampled_from(["bos_token", "eos_token", "pad_token", "unk_token"]),
            st.sampled_from(["</s>", "<pad>", "a", "<|x|>", "<new>"]),
            max_size=3,
        )
    )

    def change(folder: Path, proof: Path) -> None:
        path = folder / "tokenizer.json"
        content = json.loads(path.read_text())
        vocab = content["model"]["vocab"]
        if kind == "hole":
            for token in [_ordinary(content, place) for place in places]:
                _without(content, token)
        elif kind == "added":
            token_id_ = far + places[0] if named else _without(content, _ordinary(content, places[0]))
            content["added_tokens"].append(_added(token_id_, "<|x|>", **flags))
            if in_sequence:
                vocab["<|x|>"] = token_id_
        elif kind == "moved":
            token = _ordinary(content, places[0])
            vocab[token] = far
        elif kind == "twice":
            vocab[_ordinary(content, places[0])] = vocab[_ordinary(content, (places[0] + 1) % 16)]
        elif kind == "frame":
            ids = {token: [vocab.get(token, 280) if token_id is None else token_id] * (1 + named) for token in {*sides[0], *sides[1]}}
            template = _template(*sides, ids)
            before = content["post_processor"]
            content["post_processor"] = {"type": "Sequence", "processors": [before, template]} if in_sequence and before else template
        elif kind == "callers":
            content["truncation"] = {"direction": "Left", "max_length": places[0] + 1, "strategy": "LongestFirst", "stride": 0}
            content["padding"] = {
                "strategy": {"Fixed": 24} if named else "BatchLongest",
                "direction": "Left",
                "pad_to_multiple_of": 8,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "</s>",
            }
        else:
            config_path = folder / "tokenizer_config.json"
            config_path.write_text(json.dumps({**json.loads(config_path.read_text()), **roles}))
        path.write_text(json.dumps(content, ensure_ascii=False))

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
    changes_of_index(),
    tensors_in_two_chunks(),
    changes_of_objects(),
    changes_of_files(("weights/common.pt",)),
    changes_of_json(NEMO_JSON),
    odd_files(below=("context/hf/", "context/")),
)
hf_changes = st.one_of(
    changes_of_files(("pytorch_model.bin",)), changes_of_json(HF_JSON), changes_of_header(), st.just(_program), odd_files(below=("",))
)


@st.composite
def checkpoints_of_a_trainer(draw: st.DrawFn) -> Change:
    payload, form = draw(payloads), draw(forms)

    def change(folder: Path, proof: Path) -> None:
        value = {"state_dict": {"a": torch.ones(1)}, "hyper_parameters": payload(proof)}
        (folder / "model.ckpt").write_bytes(FORMS[form](value))

    return change


# The folder that is changed, the changes, how many at once, and what is tried with the result.
TRIALS: dict[str, tuple[str, st.SearchStrategy[Change], int, Callable[..., list[str]]]] = {
    "indices": ("nemo", st.one_of(changes_of_index(), tensors_in_two_chunks()), 1, try_nemo),
    "pickles": ("nemo", st.one_of(changes_of_objects(), changes_of_files(("weights/common.pt",))), 1, try_nemo),
    "NeMo folders": ("nemo", nemo_changes, 3, try_nemo),
    "Hugging Face folders": ("hf", hf_changes, 2, try_hf),
    "links and pipes in NeMo folders": ("nemo", odd_files(below=("context/hf/", "context/", "")), 1, try_nemo),
    "links and pipes in Hugging Face folders": ("hf", odd_files(below=("",)), 1, try_hf),
    "tokenizers": ("hf", changes_of_tokenizer(), 3, try_tokenizer),
    "checkpoints of a trainer": ("hf", checkpoints_of_a_trainer(), 1, try_trainer_checkpoint),
}


@pytest.mark.parametrize("name", TRIALS)
@fuzzed
@given(data=st.data())
def test_no_folder_does_harm(healthy: Path, name: str, data: st.DataObject) -> None:
    kind, changes, most, trial = TRIALS[name]
    if trial is try_tokenizer:
        trial = partial(try_tokenizer, source=healthy / "hf")
    _try(healthy, kind, data.draw(st.lists(changes, min_size=1, max_size=most)), trial)


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
