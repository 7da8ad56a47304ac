"""Hugging Face folders made to do harm: programs in place of tokenizers and models, links out of the folder, small files that cost much."""

from __future__ import annotations

import io
import pickle
import re
import shutil
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from common.artifacts import MANIFEST_NAME
from conversion import hf_to_nemo, nemo_to_hf
from conversion.checkpoints.hf_checkpoint import HFCheckpoint
from conversion.checkpoints.hf_model import inspect_checkpoint
from conversion.checkpoints.vocabulary_edit import Tables, append, untie
from conversion.edit_vocabulary import edit
from conversion.inspection import describe
from data_prep.tokenizers.files import load_tokenizer
from tests.conversion.conftest import OPTMaker
from tests.conversion.folders import edit_json, there_and_back
from tests.refusals import refused


def test_a_tokenizer_that_is_a_program_is_refused(make_opt: OPTMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, without a question to whoever sits before the terminal, and without the program."""
    hf_dir = make_opt()
    proof = tmp_path / "proof"
    (hf_dir / "own.py").write_text(f"open({str(proof)!r}, 'w')\nclass Own: pass\n")
    edit_json(hf_dir / "tokenizer_config.json", tokenizer_class="Own", auto_map={"AutoTokenizer": ["own.Own", "own.Own"]})
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question"))
    message = f"the tokenizer in {hf_dir} is a program of its own (auto_map in its configuration), which is not run; save it as"
    message += " tokenizer.json where you trust it, and leave auto_map out"
    for call in (lambda: load_tokenizer(hf_dir), lambda: edit(hf_dir, tmp_path / "out", untie, arguments={})):
        with refused(message):
            call()
    assert not proof.exists() and not (tmp_path / "out").exists()


def test_a_model_that_is_a_program_is_refused(make_opt: OPTMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hf_dir = make_opt()
    proof = tmp_path / "proof"
    (hf_dir / "own.py").write_text(f"open({str(proof)!r}, 'w')\n")
    edit_json(hf_dir / "config.json", model_type="own", auto_map={"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"})
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question"))
    with pytest.raises(ValueError, match=r"is a program of its own \(auto_map in config\.json\), which is not executed"):
        inspect_checkpoint(hf_dir, name="own")
    assert not proof.exists()


@pytest.mark.parametrize("name", ["chat_template.jinja", "generation_config.json", "tokenizer_config.json"])
def test_a_link_out_of_the_folder_is_not_followed(make_opt: OPTMaker, tmp_path: Path, name: str) -> None:
    hf_dir, secret = make_opt(), tmp_path / "secret"
    secret.write_text("{}")
    (hf_dir / name).unlink(missing_ok=True)
    (hf_dir / name).symlink_to(secret)
    said = f"^{re.escape(f'{hf_dir / name} is a link to {secret}, outside its folder; put the file itself there if it belongs to it')}$"
    calls: tuple[Callable[[], object], ...] = (
        lambda: hf_to_nemo.convert(hf_dir, tmp_path / "out"),
        lambda: edit(hf_dir, tmp_path / "out", untie, arguments={}),
    )
    for call in calls:
        with pytest.raises(ValueError, match=said):
            call()
    assert not (tmp_path / "out").exists()


def test_links_within_a_cache_of_the_hub_are_followed(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir, cache = make_opt(), tmp_path / "models--a--b"
    snapshot = cache / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for number, path in enumerate(sorted(hf_dir.iterdir())):
        shutil.move(path, cache / "blobs" / f"{number}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    there_and_back(snapshot, tmp_path)
    assert (tmp_path / "back/tokenizer.json").read_bytes() == (snapshot / "tokenizer.json").read_bytes()
    (tmp_path / "nemo/context/hf/chat_template.jinja").symlink_to("/etc/hostname")
    (tmp_path / "nemo" / MANIFEST_NAME).unlink()
    with pytest.raises(ValueError, match=r"chat_template\.jinja is a link to /etc/hostname, outside its folder"):
        nemo_to_hf.export(tmp_path / "nemo", tmp_path / "again")


# -- small files that cost much ---------------------------------------------------------------------------------------------


_BOMB_BYTES = 200 << 20


class _AsKey:
    """A dictionary with a key that cannot be made by hashing it."""

    def __init__(self, key: Any) -> None:
        self.key = key


class _Pickler(pickle._Pickler):  # type: ignore[name-defined]
    dispatch = pickle._Pickler.dispatch.copy()  # type: ignore[attr-defined]

    def save_key(self, value: _AsKey) -> None:
        self.write(pickle.EMPTY_DICT)
        self.save(value.key)
        self.save(1)
        self.write(pickle.SETITEM)

    dispatch[_AsKey] = save_key


def _pair_of_pairs() -> _AsKey:
    key: Any = ()
    for _ in range(40):
        key = (key, key)
    return _AsKey(key)


def _write_pickled(path: Path, content: bytes, *, then_zeros: int = 0) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if then_zeros else zipfile.ZIP_STORED) as archive:
        with archive.open("archive/data.pkl", "w") as stream:
            stream.write(content)
            for _ in range(then_zeros >> 20):
                stream.write(bytes(1 << 20))
        archive.writestr("archive/version", "3\n")


def _shared_tuple(path: Path) -> None:
    stream = io.BytesIO()
    _Pickler(stream, 2).dump(_pair_of_pairs())
    _write_pickled(path, stream.getvalue())


def _shared_tuple_of_old_form(path: Path) -> None:
    with path.open("wb") as stream:
        for value in (torch.serialization.MAGIC_NUMBER, torch.serialization.PROTOCOL_VERSION, {}):
            pickle.dump(value, stream, protocol=2)
        _Pickler(stream, 2).dump(_pair_of_pairs())
        pickle.dump([], stream, protocol=2)


def _zip_bomb(path: Path) -> None:
    _write_pickled(path, b"\x80\x02X" + (_BOMB_BYTES).to_bytes(4, "little"), then_zeros=_BOMB_BYTES)


def _strides_of_nothing(path: Path) -> None:
    torch.save({"w": torch.zeros(1).expand(1 << 30)}, path)


def _one_hash(path: Path) -> None:
    """Keys that a dictionary cannot tell apart by their hash."""
    _write_pickled(path, pickle.dumps({number * ((1 << 61) - 1): None for number in range(2000)}, 2))


COSTLY = {
    "shared tuple": _shared_tuple,
    "shared tuple of the old form": _shared_tuple_of_old_form,
    "zip bomb": _zip_bomb,
    "strides of nothing": _strides_of_nothing,
    "keys of one hash": _one_hash,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", COSTLY)
def test_small_weights_that_cost_much_are_refused(make_opt: OPTMaker, tmp_path: Path, kind: str) -> None:
    hf_dir = make_opt(saving={"safe_serialization": False})
    COSTLY[kind](hf_dir / "pytorch_model.bin")
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is corrupt or truncated"):
        hf_to_nemo.convert(hf_dir, tmp_path / "out")
    assert describe(hf_dir).problems
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 << 20


def test_appended_rows_are_made_in_pieces(make_opt: OPTMaker) -> None:
    """A hundred million of them are a matter of the disk, not of memory."""
    tables = append(Tables.of(HFCheckpoint.open(make_opt())), num_rows=100_000_000, method="mean", seed=0)
    for tensor in tables.row_tensors:
        assert tensor.shape[0] == 100_000_301 and tensor.blocks is not None
        pieces = tensor.blocks()
        assert [len(next(pieces)) for _ in range(4)] == [301, 4096, 4096, 4096]


# -- configurations of nonsense ---------------------------------------------------------------------------------------------


def test_shards_of_no_bytes_are_refused(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_to_nemo.convert(make_opt(), tmp_path / "nemo")
    with pytest.raises(ValueError, match=r"^--max-shard-bytes is -5; expected at least 1, such as 5000000000$"):
        nemo_to_hf.main(["--input", str(tmp_path / "nemo"), "--output", str(tmp_path / "out"), "--max-shard-bytes", "-5"])
