"""Conversion against the real engine: Megatron's own reader and writer, and its logits."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from conversion import hf_to_nemo, nemo_to_hf, verify
from conversion.dist_checkpoint import read_dist_checkpoint
from tests.conversion.conftest import VOCAB_SIZE, OPTMaker, tiny_opt
from tests.gloo import run_on_gloo


def test_logits_are_those_of_hugging_face_at_tensor_parallel_1_and_2(
    make_opt: OPTMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hf_dir = make_opt(tie_word_embeddings=False)
    hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
    assert verify.main([str(hf_dir), str(tmp_path / "nemo"), "--tensor-parallel-size", "1", "2"]) == 0
    report = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in report] == [
        "same       names",
        "same       shapes",
        "same       values",
        "same       token ids",
        "same       logits, Hugging Face against NeMo at tensor parallel 1",
        "same       logits, Hugging Face against NeMo at tensor parallel 2",
    ]


@pytest.fixture(scope="module")
def engine_run(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    """A folder with a tied and an untied checkpoint in both formats, and what the engine made of them at tensor parallel 2."""
    directory = tmp_path_factory.mktemp("engine")
    for name, tied in (("tied", True), ("untied", False)):
        tiny_opt(tie_word_embeddings=tied).save_pretrained(directory / f"hf_{name}")
        shutil.copytree(tokenizer_dir, directory / f"hf_{name}", dirs_exist_ok=True)
        hf_to_nemo.convert(directory / f"hf_{name}", directory / f"nemo_{name}")
    save_file({"ids": verify.token_batch([], vocab_size=VOCAB_SIZE, length=24)}, directory / "ids.safetensors")
    run_on_gloo(
        "tests.conversion.engine_functions:run",
        world_size=2,
        directory=directory / "gloo",
        tied_dir=str(directory / "nemo_tied"),
        untied_dir=str(directory / "nemo_untied"),
        ids_path=str(directory / "ids.safetensors"),
        output_dir=str(directory),
    )
    return directory


def test_logits_of_a_tied_model(engine_run: Path) -> None:
    """Also at the last position of the table, and for ids from the whole vocabulary."""
    ids = load_file(engine_run / "ids.safetensors")["ids"]
    expected = verify._observe_hf(engine_run / "hf_tied", ids)
    found = load_file(engine_run / "tied.safetensors")
    assert found.keys() == expected.keys() == {"embedding", "layer 0", "layer 1", "layer 2", "logits"}
    for name in expected:
        assert (found[name] - expected[name]).abs().max() <= verify.TOLERANCE, name


@pytest.mark.parametrize("layout", ["stacked", "per_layer"])
def test_what_the_engine_saves_comes_back_bit_for_bit(engine_run: Path, tmp_path: Path, layout: str) -> None:
    """Tables padded with other values than zero, optimizer state beside the weights, layers stacked or with keys of their own."""
    shutil.copytree(engine_run / layout, tmp_path / "trained")
    shutil.copytree(engine_run / "nemo_untied/context", tmp_path / "trained/context")
    tensors = read_dist_checkpoint(tmp_path / "trained/weights", prefix="module.")
    assert tensors["output_layer.weight"].shape == (384, 32)
    assert tensors["output_layer.weight"].read()[-1, 0] == 9.0
    nemo_to_hf.export(tmp_path / "trained", tmp_path / "back")
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "back" / name).read_bytes() == (engine_run / "hf_untied" / name).read_bytes()
