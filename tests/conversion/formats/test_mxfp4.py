"""gpt-oss as it is published: every number of MXFP4 is read as transformers reads it, and comes back in bfloat16."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from conversion import hf_to_nemo, nemo_to_hf, verify
from conversion.formats.lazy_tensor import LazyTensor
from conversion.formats.mxfp4 import with_whole_numbers
from conversion.inspection import describe
from tests.conversion.folders import edit_json, edited_tensors
from tests.conversion.tiny_families import save_tiny_model, tiny_model

EXPERTS = re.compile(r"(.*\.mlp\.experts\.(?:gate_up|down)_proj)")


def _parts(shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random blocks and scales of a matrix (experts, inputs, outputs)."""
    experts, inputs, outputs = shape
    blocks = torch.randint(256, (experts, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8)
    return blocks, torch.randint(119, 127, (experts, outputs, inputs // 32), generator=generator, dtype=torch.uint8)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny gpt-oss in the form of the published files."""
    directory = save_tiny_model("gpt_oss", tmp_path_factory.mktemp("mxfp4") / "hf", intermediate_size=64)
    generator = torch.Generator().manual_seed(3)
    state: dict[str, Tensor] = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        if EXPERTS.fullmatch(name):
            state[f"{name}_blocks"], state[f"{name}_scales"] = _parts(tuple(tensor.shape), generator)
        else:
            state[name] = tensor.bfloat16()
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    edit_json(directory / "config.json", dtype="bfloat16", quantization_config=quantization)
    return directory


def test_all_numbers_are_those_of_transformers() -> None:
    """All 256 bytes, at scales from the smallest normal bfloat16 to a large one."""
    blocks = torch.arange(256, dtype=torch.uint8).repeat(4).reshape(2, 4, 8, 16)
    scales = torch.arange(4, 4 + 64, dtype=torch.uint8).reshape(2, 4, 8) * 3
    parts = {"a_blocks": LazyTensor.of("a_blocks", blocks), "a_scales": LazyTensor.of("a_scales", scales)}
    [whole] = with_whole_numbers(parts, source="x").values()
    assert (whole.name, whole.shape, whole.dtype_name) == ("a", (2, 256, 4), "bfloat16")
    assert torch.equal(whole.read(), convert_moe_packed_tensors(blocks, scales))
    assert torch.equal(whole.row_range("b", 1, 2).read(), whole.read()[1:])


def test_a_published_model_comes_back_whole(published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hf_to_nemo.main(["--input", str(published), "--output", str(tmp_path / "nemo")]) == 0
    assert f"note: {published} is in MXFP4; each of its numbers is kept, in bfloat16" in capsys.readouterr().err
    nemo_to_hf.export(tmp_path / "nemo", tmp_path / "back")
    state, back = load_file(published / "model.safetensors"), load_file(tmp_path / "back/model.safetensors")
    for name, tensor in back.items():
        expected = convert_moe_packed_tensors(state[f"{name}_blocks"], state[f"{name}_scales"]) if EXPERTS.fullmatch(name) else state[name]
        assert torch.equal(tensor, expected), name
    config = json.loads((tmp_path / "back/config.json").read_text())
    assert "quantization_config" not in config and config["dtype"] == "bfloat16"
    assert hf_to_nemo.main(["--input", str(tmp_path / "back"), "--output", str(tmp_path / "again")]) == 0
    assert "MXFP4" not in capsys.readouterr().err, "an export is whole"


def test_inspect_counts_weights_and_not_the_bytes_that_say_them(published: Path) -> None:
    found = describe(published)
    assert found.parameters == sum(parameter.numel() for parameter in tiny_model("gpt_oss", intermediate_size=64).parameters())
    assert set(found.dtypes) == {"bfloat16", "uint8"} and not found.problems


def test_infinite_numbers_are_found_and_refused(published: Path, tmp_path: Path) -> None:
    """A scale of 2^127, with which most of the numbers are beyond bfloat16."""
    hf_dir, name = tmp_path / "hf", "model.layers.1.mlp.experts.gate_up_proj"
    shutil.copytree(published, hf_dir)
    with edited_tensors(hf_dir) as state:
        state[f"{name}_scales"][2, 3, 0] = 254
    with pytest.raises(ValueError, match=f"^{re.escape(f'{hf_dir}: {name} holds values that are NaN or infinite')}"):
        hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
    assert not (tmp_path / "nemo").exists()
    [problem] = describe(hf_dir, deep=True).problems
    assert re.fullmatch(rf"{re.escape(name)} has \d+ values that are NaN or infinite", problem)


@pytest.mark.slow
def test_the_engine_gives_the_logits_of_transformers(published: Path, tmp_path: Path) -> None:
    """Which makes the numbers whole itself where there is no GPU."""
    hf_to_nemo.convert(published, tmp_path / "nemo")
    assert verify.main([str(published), str(tmp_path / "nemo")]) == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda state, name: state.pop(f"{name}_scales"),
            "has only one of {name}_blocks and {name}_scales, the two parts of a matrix in MXFP4",
        ),
        (
            lambda state, name: state.update({f"{name}_scales": state[f"{name}_scales"][:, 1:].contiguous()}),
            "expected uint8 (experts, outputs, blocks, 16) and (experts, outputs, blocks)",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(published: Path, tmp_path: Path, change: Callable[..., object], sentence: str) -> None:
    name = "model.layers.0.mlp.experts.down_proj"
    shutil.copytree(published, tmp_path / "hf")
    with edited_tensors(tmp_path / "hf") as state:
        change(state, name)
    with pytest.raises(ValueError, match=re.escape(sentence.format(name=name))):
        hf_to_nemo.convert(tmp_path / "hf", tmp_path / "nemo")
    assert not (tmp_path / "nemo").exists()
