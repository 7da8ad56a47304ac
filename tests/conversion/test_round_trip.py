"""HF -> NeMo -> HF by the two commands: every byte comes back, nothing wrong goes through, nothing is left behind."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import stat
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import processors
from transformers import AutoTokenizer, OPTForCausalLM

from common.artifacts import read_manifest, write_manifest
from conversion import hf_to_nemo, nemo_to_hf
from conversion.checkpoints.hf_model import inspect_checkpoint
from conversion.checkpoints.nemo_checkpoint import NeMoCheckpoint
from conversion.formats.large_file import LargeFileWriter
from conversion.measuring.bits_per_byte import choose_start_token
from data_prep.tokenizers.files import load_tokenizer, read_tokenizer_files, save_tokenizer, tokenizer_digest
from tests.conftest import Inputs
from tests.conversion.conftest import VOCAB_SIZE, OPTMaker
from tests.conversion.tiny_families import tiny_model
from tests.processes import Group, run_command


def expect(message: str) -> str:
    return f"^{re.escape(message)}$"


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


def test_from_pickles_and_shards_to_shards(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir = make_opt(saving={"safe_serialization": False, "max_shard_size": "20KB"}, dtype=torch.float16)
    back_dir = there_and_back(hf_dir, tmp_path, "--max-shard-bytes", "20000")
    loaded = OPTForCausalLM.from_pretrained(back_dir).state_dict()
    original = OPTForCausalLM.from_pretrained(hf_dir).state_dict()
    assert len(list(back_dir.glob("model-*.safetensors"))) > 2
    assert all(torch.equal(loaded[name], original[name]) for name in original)


def test_position_rows_0_and_1_are_kept_aside(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir = make_opt()
    hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
    table = load_file(hf_dir / "model.safetensors")["model.decoder.embed_positions.weight"]
    tensors = NeMoCheckpoint.open(tmp_path / "nemo").tensors
    assert torch.equal(tensors["embedding.position_embeddings.weight"].read(), table[2:])
    assert torch.equal(tensors["kept.position_rows"].read(), table[:2])


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


def test_outputs_are_readable_by_the_group(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir = make_opt()
    before = os.umask(0o077)
    try:
        there_and_back(hf_dir, tmp_path)
    finally:
        os.umask(before)
    for path in (*(tmp_path / "nemo").rglob("*"), *(tmp_path / "back").rglob("*")):
        wanted = stat.S_IRGRP | stat.S_IXGRP if path.is_dir() else stat.S_IRGRP
        assert path.stat().st_mode & wanted == wanted, path


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
    state = load_file(hf_dir / "model.safetensors")
    state["model.decoder.layers.1.fc1.bias"][3] = 1e5
    save_file(state, hf_dir / "model.safetensors", metadata={"format": "pt"})
    message = "model.decoder.layers.1.fc1.bias has values of up to 1e+05, which torch.float16 cannot hold; choose another --dtype"
    with pytest.raises(ValueError, match=expect(message)):
        there_and_back(hf_dir, tmp_path, "--dtype", "float16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "nemo"]


def test_config_follows_what_training_changed(make_opt: OPTMaker, tmp_path: Path) -> None:
    """A checkpoint whose weights became bfloat16 and whose matrices were untied is told so in config.json, all else kept."""
    hf_dir = make_opt(tie_word_embeddings=False)
    hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
    config_path, model_path = tmp_path / "nemo/context/hf/config.json", tmp_path / "nemo/context/model.json"
    config = {**json.loads(config_path.read_text()), "tie_word_embeddings": True, "unknown_key": [1.50, "ž"]}
    config_path.write_text(json.dumps(config))
    model_path.write_text(json.dumps({**json.loads(model_path.read_text()), "hf_dtype": "float16"}))
    (tmp_path / "nemo/scion.json").unlink()
    nemo_to_hf.export(tmp_path / "nemo", tmp_path / "back")
    assert json.loads((tmp_path / "back/config.json").read_text()) == {**config, "tie_word_embeddings": False, "dtype": "float32"}


# -- refusals -------------------------------------------------------------------------------------------------------------


def nothing_new(tmp_path: Path, *expected: str) -> None:
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(expected)


def test_tokenizer_with_more_tokens_than_rows(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir = make_opt(vocab_size=279)
    message = (
        f"the tokenizer in {hf_dir} needs 280 rows, but the model has 279: they do not belong together;"
        " put the model's own tokenizer there, or give the model new rows with `python -m conversion.transfer`"
    )
    with pytest.raises(ValueError, match=expect(message)):
        hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
    nothing_new(tmp_path, "hf")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_edited_input_is_refused(make_opt: OPTMaker, tmp_path: Path, name: str) -> None:
    hf_dir = make_opt()
    write_manifest(hf_dir, stage="conversion.transfer", facts={"tokenizer_digest": "xxh3:known"})
    content = (hf_dir / name).read_bytes()
    (hf_dir / name).write_bytes(content.replace(b"0", b"1") if name.endswith("json") else content[:-4] + b"abcd")
    message = rf"^{re.escape(str(hf_dir / name))} was edited after conversion\.transfer wrote it"
    if name == "config.json":  # whatever it now says, the manifest is asked too
        message = ".*"
    with pytest.raises(ValueError, match=message):
        hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
    nothing_new(tmp_path, "hf")


def test_edited_nemo_weights_are_refused(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_to_nemo.convert(make_opt(), tmp_path / "nemo")
    path = tmp_path / "nemo/weights/__0_0.distcp"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))} was edited after conversion\.hf_to_nemo wrote it"):
        nemo_to_hf.export(tmp_path / "nemo", tmp_path / "back")
    nothing_new(tmp_path, "hf", "nemo")


def test_missing_file_of_the_manifest(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir = make_opt()
    write_manifest(hf_dir, stage="conversion.transfer", facts={})
    path = hf_dir / "tokenizer.json"
    size = path.stat().st_size
    path.unlink()
    message = f"{path} is missing; its manifest lists it with {size} bytes; make {hf_dir} again"
    with pytest.raises(ValueError, match=expect(message)):
        hf_to_nemo.convert(hf_dir, tmp_path / "nemo")


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
    with pytest.raises(ValueError, match=expect(f"the checkpoint folder {tmp_path / 'none'} does not exist")):
        nemo_to_hf.export(tmp_path / "none", tmp_path / "back")
    hf_dir = make_opt()
    message = (
        f"{hf_dir} is not a NeMo checkpoint of this project; expected weights/, context/model.json and context/hf/config.json,"
        " as written by `python -m conversion.hf_to_nemo` or `python -m recipes.train`; to one that NeMo itself has saved,"
        " `python -m conversion.change_layout --to nemo --context` adds them"
    )
    with pytest.raises(ValueError, match=expect(message)):
        nemo_to_hf.export(hf_dir, tmp_path / "back")


def test_output_that_exists(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir = make_opt()
    message = f"the output directory {hf_dir} exists and is not empty; remove it or choose another --output"
    with pytest.raises(ValueError, match=expect(message)):
        hf_to_nemo.convert(hf_dir, hf_dir)


@pytest.mark.parametrize("direction", ["hf_to_nemo", "nemo_to_hf"])
def test_full_disk_leaves_nothing(make_opt: OPTMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direction: str) -> None:
    source, convert = make_opt(), hf_to_nemo.convert
    if direction == "nemo_to_hf":
        convert(source, tmp_path / "nemo")
        source, convert = tmp_path / "nemo", nemo_to_hf.export
    before = {path.name for path in tmp_path.iterdir()}
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
        convert(source, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == before


# -- interruption ---------------------------------------------------------------------------------------------------------

# A conversion that is slow enough to be hit: each tensor takes 20 ms more.
SLOW = """
import sys, time
from pathlib import Path
import conversion.formats.lazy_tensor as lazy_tensor
from common import command
read = lazy_tensor._read_and_report
lazy_tensor._read_and_report = lambda *arguments: (time.sleep({seconds}), read(*arguments))[1]
from conversion.{module} import main
command.run(lambda _: main(["--input", sys.argv[1], "--output", sys.argv[2]]))
"""


@pytest.mark.some(1)
@pytest.mark.parametrize(("how", "left_over"), [(signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGKILL, True)])
def test_killed_midway(make_opt: OPTMaker, tmp_path: Path, how: signal.Signals, left_over: bool) -> None:
    hf_dir = make_opt(tokenizer=None)
    output = tmp_path / "out" / "nemo"
    # A second for each tensor: a busy machine may be late to see that it has begun.
    group = Group(["-c", SLOW.format(module="hf_to_nemo", seconds=1), str(hf_dir), str(output)], log_dir=tmp_path / "logs")
    group.wait_until(lambda: any((tmp_path / "out").glob(".nemo.partial-*/weights/*.distcp")), timeout_seconds=60)
    time.sleep(0.1)
    os.kill(group.process.pid, how)
    assert group.wait(timeout_seconds=60).code != 0
    assert not output.exists()
    assert [path.name.startswith(".nemo.partial-") for path in output.parent.iterdir()] == ([True] if left_over else [])


def test_two_conversions_to_one_place(make_opt: OPTMaker, tmp_path: Path) -> None:
    """Both write aside; one is renamed, the other is refused, and what is there is whole."""
    hf_dir = make_opt(tokenizer=None)
    output = tmp_path / "nemo"
    groups = [
        Group(["-c", SLOW.format(module="hf_to_nemo", seconds=0.02), str(hf_dir), str(output)], log_dir=tmp_path / f"logs{number}")
        for number in range(2)
    ]
    first, second = sorted((group.wait(timeout_seconds=60) for group in groups), key=lambda finished: finished.code)
    assert (first.code, second.code) == (0, 2)
    assert "no longer empty" in second.stderr
    nemo_to_hf.export(output, tmp_path / "back")
    assert (tmp_path / "back/model.safetensors").read_bytes() == (hf_dir / "model.safetensors").read_bytes()
    assert not list(tmp_path.glob(".*"))


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
