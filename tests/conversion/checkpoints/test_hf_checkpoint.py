from __future__ import annotations

import json
import pickle
import re
import shutil
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import OPTForCausalLM

from common.artifacts import digest_file, write_manifest
from conversion.checkpoints import hf_checkpoint, token_names
from conversion.checkpoints.hf_checkpoint import HFCheckpoint, copy_companions, write_hf_checkpoint
from conversion.formats.lazy_tensor import LazyTensor
from conversion.formats.safetensors_file import read_safetensors, write_safetensors
from conversion.formats.safetensors_header import DTYPES
from conversion.inspection import describe
from data_prep.tokenizers.files import read_tokenizer_files
from tests.conversion.conftest import OPTMaker, tiny_opt
from tests.conversion.folders import edit_json
from tests.conversion.hostile_files import RunsCode
from tests.refusals import refused


def assert_same_tensors(checkpoint: HFCheckpoint, expected: dict[str, Tensor]) -> None:
    assert set(checkpoint.names()) == set(expected)
    for name in checkpoint.names():
        assert checkpoint.shape(name) == tuple(expected[name].shape)
        assert checkpoint.dtype(name) == expected[name].dtype
        assert torch.equal(checkpoint.tensor(name), expected[name]), name


@pytest.mark.parametrize(
    ("saving", "first_file"),
    [
        ({}, "model.safetensors"),
        ({"max_shard_size": "20KB"}, "model.safetensors.index.json"),
        ({"safe_serialization": False}, "pytorch_model.bin"),
        ({"safe_serialization": False, "max_shard_size": "20KB"}, "pytorch_model.bin.index.json"),
    ],
)
def test_reads_every_form_that_transformers_writes(make_opt: OPTMaker, saving: dict[str, object], first_file: str) -> None:
    directory = make_opt(saving=saving, dtype=torch.bfloat16, tie_word_embeddings=False)
    checkpoint = HFCheckpoint.open(directory)
    assert checkpoint.weight_files[0] == first_file
    assert_same_tensors(checkpoint, dict(tiny_opt(tie_word_embeddings=False).to(torch.bfloat16).state_dict()))
    assert not checkpoint.tie_word_embeddings


def test_first_opt_files_without_model_prefix(make_opt: OPTMaker) -> None:
    directory = make_opt()
    state = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    torch.save({name.removeprefix("model."): tensor for name, tensor in state.items()}, directory / "pytorch_model.bin")
    assert_same_tensors(HFCheckpoint.open(directory), state)


def test_legacy_pickle_and_strided_views(make_opt: OPTMaker) -> None:
    directory = make_opt(tokenizer=None)
    state = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    name = "model.decoder.layers.0.fc1.weight"
    transposed = {**state, name: state[name].t().contiguous().t()}
    for legacy in (False, True):
        torch.save(transposed, directory / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
        assert_same_tensors(HFCheckpoint.open(directory), state)


def test_writes_the_bytes_of_the_library(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"{dtype_name}.{size}": torch.rand(size, 3, generator=generator).to(getattr(torch, dtype))
        for dtype_name, dtype in DTYPES.items()
        for size in (0, 1, 7)
    }
    tensors["unicode.ž"] = torch.tensor(1.5)
    save_file(tensors, tmp_path / "library", metadata={"format": "pt"})
    digest = write_safetensors(tmp_path / "ours", [LazyTensor.of(name, tensor) for name, tensor in reversed(tensors.items())])
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "library").read_bytes()
    assert digest == digest_file(tmp_path / "ours")
    for tensor in read_safetensors(tmp_path / "ours"):
        values, expected = tensor.read(), tensors[tensor.name]
        assert torch.equal(values.view(-1).view(torch.uint8), expected.contiguous().view(-1).view(torch.uint8))


def test_tensors_that_come_in_blocks_are_written_as_whole_ones(tmp_path: Path) -> None:
    matrix = torch.rand(11, 3, generator=torch.Generator().manual_seed(0))
    in_blocks = LazyTensor.of_blocks("matrix", (11, 3), matrix.dtype, lambda: iter(matrix.split(4)))
    digests = [
        write_safetensors(tmp_path / "whole", [LazyTensor.of("matrix", matrix)]),
        write_safetensors(tmp_path / "blocks", [in_blocks]),
    ]
    assert digests[0] == digests[1]
    assert torch.equal(in_blocks.read(), matrix)


def test_unaligned_header_is_read(tmp_path: Path) -> None:
    """Early versions of the library did not pad the header."""
    header = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    header += b" " * (1 - len(header) % 2)
    (tmp_path / "odd").write_bytes(len(header).to_bytes(8, "little") + header + torch.tensor([1.0, 2.0]).numpy().tobytes())
    assert read_safetensors(tmp_path / "odd")[0].read().tolist() == [1.0, 2.0]


def test_shards_are_read_by_transformers(tmp_path: Path) -> None:
    model = tiny_opt()
    tensors = [LazyTensor.of(name, tensor) for name, tensor in model.state_dict().items() if name != "lm_head.weight"]
    digests = write_hf_checkpoint(tmp_path, model.config.to_dict(), tensors, max_shard_bytes=30_000)
    assert len(digests) > 2
    assert all((tmp_path / name).stat().st_size < 33_000 for name in digests if name != "model-00001-of-00005.safetensors")
    assert all(digest == digest_file(tmp_path / name) for name, digest in digests.items())
    loaded, notes = OPTForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not notes["missing_keys"] and not notes["unexpected_keys"]
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])


def test_writer_holds_one_tensor_at_a_time(tmp_path: Path) -> None:
    alive: set[int] = set()
    most = 0

    def read(number: int) -> Tensor:
        nonlocal most
        tensor = torch.full((100,), float(number))
        alive.add(number)
        weakref.finalize(tensor, alive.discard, number)
        most = max(most, len(alive))
        return tensor

    tensors = [LazyTensor.computed(f"t{number}", (100,), torch.float32, lambda number=number: read(number)) for number in range(20)]
    write_hf_checkpoint(tmp_path, {}, tensors, max_shard_bytes=1000)
    assert most <= 2  # the one being made while the last name still holds its predecessor


def test_companions_are_copied_byte_for_byte(make_opt: OPTMaker, tmp_path: Path) -> None:
    source, target = make_opt(), tmp_path / "target"
    target.mkdir()
    copy_companions(source, target)
    companions = {path.name for path in source.iterdir()} - {"config.json", "model.safetensors"}
    assert {path.name for path in target.iterdir()} == companions >= {"generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    expected = {name: (source / name).read_bytes() for name in companions} | read_tokenizer_files(source)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == expected


# -- tie state ------------------------------------------------------------------------------------------------------------


def test_tied_when_config_is_silent_and_there_is_no_head(make_opt: OPTMaker) -> None:
    assert HFCheckpoint.open(make_opt()).tie_word_embeddings


def test_tied_with_the_matrix_stored_twice(make_opt: OPTMaker) -> None:
    checkpoint = HFCheckpoint.open(make_opt(saving={"safe_serialization": False}))
    assert "lm_head.weight" in checkpoint.tensors
    assert checkpoint.tie_word_embeddings
    assert "lm_head.weight" not in checkpoint.untied_tensors()


def test_names_are_gone_over_once_and_not_for_every_tensor(make_opt: OPTMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mixture of experts has 19,000 tensors: their square takes minutes."""
    asked: list[int] = []

    def possible_names(shapes: Mapping[str, tuple[int, ...]], num_rows: object) -> list[token_names.TokenNames]:
        asked.append(len(shapes))
        return token_names.possible_names(shapes, num_rows)

    monkeypatch.setattr(hf_checkpoint, "possible_names", possible_names)
    checkpoint = HFCheckpoint.open(make_opt())
    assert list(checkpoint.untied_tensors()) == list(checkpoint.tensors)
    assert len(checkpoint.token_matrices()) == 1
    assert asked == [len(checkpoint.tensors)]


def test_equal_matrices_stay_two_where_config_says_so(make_opt: OPTMaker) -> None:
    """A head that starts as a copy of the embedding is trained apart."""
    directory = make_opt(saving={"safe_serialization": False})
    edit_json(directory / "config.json", tie_word_embeddings=False)
    assert not HFCheckpoint.open(directory).tie_word_embeddings


# -- identity -------------------------------------------------------------------------------------------------------------


def test_digest_is_that_of_the_content(make_opt: OPTMaker) -> None:
    a, b, c = make_opt("a"), make_opt("b"), make_opt("c", seed=1)
    assert HFCheckpoint.open(a).digest() == HFCheckpoint.open(b).digest() != HFCheckpoint.open(c).digest()
    assert HFCheckpoint.open(a).digest() != write_manifest(a, stage="conversion.transfer", facts={}).digest == HFCheckpoint.open(a).digest()


# -- what is not there or broken ------------------------------------------------------------------------------------------


def test_missing_folder(tmp_path: Path) -> None:
    with refused(f"the checkpoint folder {tmp_path / 'none'} does not exist"):
        HFCheckpoint.open(tmp_path / "none")


INDEX = "model.safetensors.index.json"
PICKLED: dict[str, Any] = {"saving": {"safe_serialization": False}}
SHARDED: dict[str, Any] = {"saving": {"max_shard_size": "30KB"}}
UNLISTED = "model.decoder.layers.0.fc1.bias"


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def put_nested_pickle(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    torch.save({"state_dict": {"a": torch.ones(1)}}, directory / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("saved", "spoil", "sentence"),
    [
        ({}, lambda d: (d / "config.json").unlink(), "{d} has no config.json; expected a Hugging Face checkpoint folder"),
        ({}, lambda d: (d / "config.json").write_text("[1, 2]"), "{d}/config.json holds a list; expected a JSON object"),
        ({}, lambda d: (d / "config.json").write_text("{"), "{d}/config.json is not valid JSON ("),
        (
            {},
            lambda d: (d / "model.safetensors").unlink(),
            "{d} holds no weights; expected model.safetensors or pytorch_model.bin, or an index",
        ),
        ({}, put_nested_pickle, "{d}/pytorch_model.bin is not a dictionary of tensors; expected a model's state dict"),
        (PICKLED, lambda d: cut_short(d / "pytorch_model.bin"), "{d}/pytorch_model.bin is corrupt or truncated; copy or download it again"),
        ({}, lambda d: cut_short(d / "model.safetensors"), "{d}/model.safetensors is corrupt or truncated (its tensors end at byte "),
        (
            {},
            lambda d: edit_json(d / "config.json", tie_word_embeddings=False),
            "{d}: config.json says that the output layer is a matrix of its",
        ),
        (
            {"tie_word_embeddings": False},
            lambda d: edit_json(d / "config.json", tie_word_embeddings=True),
            "{d}: config.json says that input and output embeddings are one matrix (tie_word_embeddings true), but lm_head.weight differs",
        ),
        (SHARDED, lambda d: edit_index(d, lambda weight_map: weight_map.pop(UNLISTED)), "model.safetensors.index.json and {d}/model-"),
        (SHARDED, lambda d: (d / INDEX).write_text("{}"), "{d}/model.safetensors.index.json has no weight_map; copy or download it again"),
    ],
)
def test_what_is_missing_or_broken_is_said(
    make_opt: OPTMaker, saved: dict[str, Any], spoil: Callable[[Path], object], sentence: str
) -> None:
    directory = make_opt(**saved)
    spoil(directory)
    with pytest.raises(ValueError, match=f"^{re.escape(sentence.replace('{d}', str(directory)))}"):
        _ = HFCheckpoint.open(directory).tie_word_embeddings


@pytest.mark.parametrize("form", ["zip", "legacy", "plain pickle"])
def test_unsafe_pickle_is_refused_and_not_run(make_opt: OPTMaker, tmp_path: Path, form: str) -> None:
    directory = make_opt()
    (directory / "model.safetensors").unlink()
    path, proof = directory / "pytorch_model.bin", tmp_path / "proof"
    content = {"model.decoder.embed_tokens.weight": RunsCode(proof)}
    if form == "plain pickle":
        path.write_bytes(pickle.dumps(content, protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    message = f"{path} asks to run posix.system when it is loaded, which is not safe; convert it to safetensors where you trust its source"
    with refused(message):
        HFCheckpoint.open(directory)
    assert describe(directory).problems == [message] and not proof.exists()


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, "a has the unknown dtype F99"),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, "a has the shape (-1,)"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "a (F32, shape (2,)) cannot lie at bytes 0 to 4"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, "a (F32, shape (1,)) cannot lie at bytes -4 to 0"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, "a (F32, shape (1,)) cannot lie at bytes 4 to 8"),
    ],
)
def test_lying_safetensors_header(tmp_path: Path, header: dict[str, object], complaint: str) -> None:
    text = json.dumps(header).encode()
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    with refused(f"{tmp_path / 'x'} is corrupt or truncated ({complaint}); copy or download it again"):
        read_safetensors(tmp_path / "x")


@pytest.fixture
def sharded(make_opt: OPTMaker) -> Path:
    return make_opt(saving={"max_shard_size": "30KB"})


def edit_index(directory: Path, edit: Callable[[dict[str, str]], object]) -> None:
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    edit(index["weight_map"])
    path.write_text(json.dumps(index))


@pytest.mark.parametrize("name", ["../elsewhere/model.safetensors", "/etc/passwd", "a/b", ""])
def test_index_that_leads_out_of_the_folder(sharded: Path, name: str) -> None:
    edit_index(sharded, lambda weight_map: weight_map.update({next(iter(weight_map)): name}))
    index = sharded / "model.safetensors.index.json"
    with refused(f"{index} names the file {name!r}, which is not inside its folder; do not trust it"):
        HFCheckpoint.open(sharded)


def test_one_file_goes_before_an_index(sharded: Path, make_opt: OPTMaker) -> None:
    """As in transformers: a folder that was saved twice has both."""
    shutil.copy(make_opt("single", seed=1) / "model.safetensors", sharded)
    assert HFCheckpoint.open(sharded).weight_files == ("model.safetensors",)


@pytest.mark.parametrize(("num_rows", "size"), [(1, 3), (700, 4096), (5, 2_000_000)])
def test_rows_that_are_made_in_place_give_the_same_file(tmp_path: Path, num_rows: int, size: int) -> None:
    """Rows end in the midst of a buffer, and some are longer than one."""
    values = np.arange(num_rows * size, dtype=np.int32).reshape(num_rows, size)
    whole = LazyTensor("matrix", values.shape, "float32", lambda: values)
    in_place = replace(whole, filler=lambda: lambda start, rows: np.copyto(rows, values[start : start + len(rows)]))
    digests = [write_safetensors(tmp_path / name, [tensor]) for name, tensor in (("whole", whole), ("in_place", in_place))]
    assert digests == [digest_file(tmp_path / "whole")] * 2
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "in_place").read_bytes()
