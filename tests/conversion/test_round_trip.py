"""HF -> NeMo -> HF by the two commands: every byte comes back, nothing wrong goes through, nothing is left behind."""

from __future__ import annotations

import errno
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import processors
from transformers import AutoTokenizer

from common.artifacts import read_manifest, write_manifest
from conversion import hf_to_nemo, nemo_to_hf
from conversion.checkpoints.hf_model import inspect_checkpoint
from conversion.formats.large_file import LargeFileWriter
from conversion.measuring.bits_per_byte import choose_start_token
from data_prep.tokenizers.files import load_tokenizer, read_tokenizer_files, save_tokenizer, tokenizer_digest
from tests.conftest import Inputs
from tests.conversion.conftest import VOCAB_SIZE, OPTMaker
from tests.conversion.folders import edit_json, edited_tensors
from tests.conversion.tiny_families import tiny_model
from tests.processes import run_command
from tests.refusals import refused


def there_and_back(hf_dir: Path, tmp_path: Path, *flags: str) -> Path:
    nemo_dir, back_dir = tmp_path / "nemo", tmp_path / "back"
    assert hf_to_nemo.main(["--input", str(hf_dir), "--output", str(nemo_dir)]) == 0
    assert nemo_to_hf.main(["--input", str(nemo_dir), "--output", str(back_dir), *flags]) == 0
    return back_dir


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_every_byte_comes_back(make_opt: OPTMaker, tmp_path: Path, tied: bool, dtype: torch.dtype) -> None:
    hf_dir = make_opt(dtype=dtype, tie_word_embeddings=tied)
    back_dir = there_and_back(hf_dir, tmp_path)
    names = {path.name for path in hf_dir.iterdir()}
    assert {path.name for path in back_dir.iterdir()} == names | {"scion.json", "README.md"}
    expected = {name: (hf_dir / name).read_bytes() for name in names} | read_tokenizer_files(hf_dir)  # where transformers 5 wrote them
    for name in names:
        assert (back_dir / name).read_bytes() == expected[name], name


@pytest.mark.parametrize(
    "name", ["llama3", "mistral", "gemma2", "qwen2", "qwen3", "smollm3", "gemma3_text", "olmo2", "olmo3", "apertus", "granite", "phi3"]
)
def test_a_model_without_its_head_comes_back_under_its_own_names(inputs: Inputs, tmp_path: Path, name: str) -> None:
    """As `AutoModel` saves them, whose names lack the beginning `model.`; the head is the table, or else it is missing.

    OPT's published files are such, and come back under the names of the whole model.
    """
    for is_tied in (True, False):
        hf_dir = tmp_path / f"hf_{is_tied}"
        tiny_model(name, tie_word_embeddings=is_tied).model.save_pretrained(hf_dir)
        shutil.copytree(inputs.tokenizer, hf_dir, dirs_exist_ok=True)
    back_dir = there_and_back(tmp_path / "hf_True", tmp_path)
    assert (back_dir / "model.safetensors").read_bytes() == (tmp_path / "hf_True/model.safetensors").read_bytes()
    with pytest.raises(ValueError, match=r"lm_head\.weight"):
        hf_to_nemo.convert(tmp_path / "hf_False", tmp_path / "untied")


@pytest.mark.parametrize("vocab_size", [281, 384, 1000])
def test_any_vocabulary_size(make_opt: OPTMaker, tmp_path: Path, vocab_size: int) -> None:
    hf_dir = make_opt(vocab_size=vocab_size, tie_word_embeddings=False)
    back_dir = there_and_back(hf_dir, tmp_path)
    assert (back_dir / "model.safetensors").read_bytes() == (hf_dir / "model.safetensors").read_bytes()


def test_manifests_say_what_the_next_stage_must_know(make_opt: OPTMaker, tmp_path: Path, tokenizer_dir: Path) -> None:
    hf_dir = make_opt()
    transferred = write_manifest(hf_dir, stage="conversion.transfer", facts={"method": "focus", "head": "tied", "seed": 3})
    there_and_back(hf_dir, tmp_path)
    nemo, back = read_manifest(tmp_path / "nemo"), read_manifest(tmp_path / "back")
    assert nemo is not None and back is not None
    facts = {
        "model_type": "opt",
        "vocab_size": VOCAB_SIZE,
        "tie_word_embeddings": True,
        "tokenizer_digest": tokenizer_digest(AutoTokenizer.from_pretrained(tokenizer_dir)),
        "method": "focus",
        "head": "tied",
        "seed": 3,
    }
    assert (nemo.stage, nemo.facts, nemo.inputs) == ("conversion.hf_to_nemo", facts, {"hf": transferred.digest})
    assert (back.stage, back.inputs) == ("conversion.nemo_to_hf", {"nemo": nemo.digest})
    assert back.facts == {**facts, "changed_config_keys": []}
    assert nemo.files["weights/__0_0.distcp"].digest is not None


def test_a_known_tokenizer_is_not_loaded_again(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir = make_opt()
    write_manifest(hf_dir, stage="conversion.transfer", facts={"tokenizer_digest": "xxh3:known"})
    assert hf_to_nemo.convert(hf_dir, tmp_path / "nemo").facts["tokenizer_digest"] == "xxh3:known"


# -- export ---------------------------------------------------------------------------------------------------------------


def test_another_dtype_changes_that_key_alone(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir = make_opt()
    back_dir = there_and_back(hf_dir, tmp_path, "--dtype", "bfloat16")
    original, exported = load_file(hf_dir / "model.safetensors"), load_file(back_dir / "model.safetensors")
    assert original.keys() == exported.keys()
    assert all(torch.equal(exported[name], original[name].to(torch.bfloat16)) for name in original)
    before, after = (json.loads((directory / "config.json").read_text()) for directory in (hf_dir, back_dir))
    assert {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)} == {"dtype"}
    assert after["dtype"] == "bfloat16"


def test_a_dtype_that_cannot_hold_the_values(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir = make_opt()
    with edited_tensors(hf_dir) as state:
        state["model.decoder.layers.1.fc1.bias"][3] = 1e5
    message = "model.decoder.layers.1.fc1.bias has values of up to 1e+05, which torch.float16 cannot hold; choose another --dtype"
    with refused(message):
        there_and_back(hf_dir, tmp_path, "--dtype", "float16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "nemo"]


def test_config_follows_what_training_changed(make_opt: OPTMaker, tmp_path: Path) -> None:
    """A checkpoint whose weights became bfloat16 and whose matrices were untied is told so in config.json, all else kept."""
    hf_dir = make_opt(tie_word_embeddings=False)
    hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
    changes = {"tie_word_embeddings": True, "unknown_key": [1.50, "ž"]}
    config = edit_json(tmp_path / "nemo/context/hf/config.json", **changes) | changes
    edit_json(tmp_path / "nemo/context/model.json", hf_dtype="float16")
    (tmp_path / "nemo/scion.json").unlink()
    nemo_to_hf.export(tmp_path / "nemo", tmp_path / "back")
    assert json.loads((tmp_path / "back/config.json").read_text()) == {**config, "tie_word_embeddings": False, "dtype": "float32"}


# -- refusals -------------------------------------------------------------------------------------------------------------


def nothing_new(tmp_path: Path, *expected: str) -> None:
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(expected)


def test_unsupported_variant_by_the_command(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir = make_opt(do_layer_norm_before=False)
    finished = run_command("conversion.hf_to_nemo", "--input", hf_dir, "--output", tmp_path / "nemo", log_dir=tmp_path / "logs")
    assert finished.code == 2
    assert finished.stderr.endswith(
        f"error: {hf_dir} has do_layer_norm_before False in its config.json (expected True):"
        " post-LayerNorm models such as opt-350m are not supported, the engine has no such layer\n"
    )
    nothing_new(tmp_path, "hf", "logs")


def test_folders_that_are_no_nemo_checkpoint(tmp_path: Path, make_opt: OPTMaker) -> None:
    with refused(f"the checkpoint folder {tmp_path / 'none'} does not exist"):
        nemo_to_hf.export(tmp_path / "none", tmp_path / "back")
    hf_dir = make_opt()
    message = (
        f"{hf_dir} is not a NeMo checkpoint of this project; expected weights/, context/model.json and context/hf/config.json,"
        " as written by `python -m conversion.hf_to_nemo` or `python -m recipes.train`; to one that NeMo itself has saved,"
        " `python -m conversion.change_layout --to nemo --context` adds them"
    )
    with refused(message):
        nemo_to_hf.export(hf_dir, tmp_path / "back")


def test_full_disk_leaves_nothing(make_opt: OPTMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hf_dir = make_opt()
    room = 40_000

    def write(self: LargeFileWriter, data: memoryview) -> int:
        nonlocal room
        room -= len(memoryview(data).cast("B"))
        if room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(self, data)

    original = LargeFileWriter.write
    monkeypatch.setattr(LargeFileWriter, "write", write)
    with pytest.raises(ValueError, match=rf"^the disk is full while writing {re.escape(str(tmp_path / 'out'))}: .*; nothing was kept;"):
        hf_to_nemo.convert(hf_dir, tmp_path / "out")
    nothing_new(tmp_path, "hf")


def test_two_conversions_to_one_place(make_opt: OPTMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both write aside; one is renamed, the other is refused, and what is there is whole."""
    hf_dir, write = make_opt(), hf_to_nemo.write_manifest

    def the_other_first(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(hf_to_nemo, "write_manifest", write)
        hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
        return write(*arguments, **options)

    monkeypatch.setattr(hf_to_nemo, "write_manifest", the_other_first)
    with refused(f"the output directory {tmp_path / 'nemo'} is no longer empty: another process wrote into it"):
        hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
    nemo_to_hf.export(tmp_path / "nemo", tmp_path / "back")
    assert (tmp_path / "back/model.safetensors").read_bytes() == (hf_dir / "model.safetensors").read_bytes()
    nothing_new(tmp_path, "hf", "nemo", "back")


def test_an_export_begins_texts_as_its_training_data_did(make_opt: OPTMaker, tokenizer_dir: Path, tmp_path: Path) -> None:
    """The tokenizer puts `<pad>` before a text, but the documents had nothing there; bits per byte and generation go by the tokenizer."""
    tokenizer = load_tokenizer(tokenizer_dir)
    pad = tokenizer.pad_token_id
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="<pad> $A", special_tokens=[("<pad>", pad)])
    hf = make_opt()
    save_tokenizer(tokenizer, hf)
    write_manifest(hf, stage="conversion.nemo_to_hf", facts={"tokenizer_digest": tokenizer_digest(tokenizer), "document_front": []})
    with pytest.raises(ValueError, match="was trained on documents with nothing in front, but its tokenizer puts <pad> there"):
        inspect_checkpoint(hf, name="m")
    found = inspect_checkpoint(there_and_back(hf, tmp_path), name="m").tokenizer
    assert found("Good morning").input_ids == tokenizer("Good morning", add_special_tokens=False).input_ids
    assert choose_start_token(found).token == "</s>"


def test_a_run_means_its_newest_checkpoint(make_opt: OPTMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hf_to_nemo.convert(make_opt(seed=1), tmp_path / "run/checkpoints/step_0000010")
    hf_to_nemo.convert(make_opt("second", seed=2), tmp_path / "run/checkpoints/step_0000020")
    nemo_to_hf.export(tmp_path / "run", tmp_path / "back")
    assert (tmp_path / "back/model.safetensors").read_bytes() == (tmp_path / "second/model.safetensors").read_bytes()
    assert f"its newest checkpoint is {tmp_path / 'run/checkpoints/step_0000020'}" in capsys.readouterr().err
