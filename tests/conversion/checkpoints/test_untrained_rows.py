"""The end of a text that nothing has trained, and values that are not numbers: found where checkpoints are looked at and converted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from common.artifacts import Manifest
from conversion import hf_to_nemo
from conversion.checkpoints.untrained_rows import end_of_text_ids, untrained
from conversion.formats.lazy_tensor import LazyTensor
from conversion.inspection import describe
from recipes.rules.checkpoint_checks import checkpoint_warnings
from recipes.rules.compose import compose_recipe
from recipes.rules.inputs import RunInputs
from tests.conversion.conftest import OPTMaker
from tests.conversion.folders import edit_json, edited_tensors

TABLE = "model.decoder.embed_tokens.weight"
EOS = 2  # of OPT's configuration
DRAWN = torch.randn(256, generator=torch.Generator().manual_seed(3)) * 0.02


def wide_opt(make_opt: OPTMaker, row: torch.Tensor | None, *, tied: bool = True, dtype: torch.dtype = torch.float32) -> Path:
    """A tiny OPT whose end of text has a given row, in the output layer where that is a matrix of its own."""
    directory = make_opt(hidden_size=256, word_embed_proj_dim=256, num_hidden_layers=1, tie_word_embeddings=tied, dtype=dtype)
    if row is not None:
        with edited_tensors(directory) as state:
            state[TABLE if tied else "lm_head.weight"][EOS] = row.to(dtype)
    return directory


def sentence(name: str, what: str) -> str:
    return (
        f"token {EOS} ends a text, but its row in {name} {what}: it was never trained, so the model neither generates nor"
        " understands it; train on documents that end with it, or choose another end-of-text token"
    )


@pytest.mark.some(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("row", "what"), [(torch.zeros(256), "is zero"), (DRAWN, "still has its random initial value")])
def test_found_by_inspection_conversion_and_the_checks_of_a_run(
    make_opt: OPTMaker, tmp_path: Path, row: torch.Tensor, what: str, dtype: torch.dtype, capsys: pytest.CaptureFixture[str]
) -> None:
    hf_dir = wide_opt(make_opt, row, dtype=dtype)
    assert sentence(TABLE, what) in describe(hf_dir, deep=True).notes
    assert hf_to_nemo.main(["--input", str(hf_dir), "--output", str(tmp_path / "nemo")]) == 0
    assert f"warning: {sentence(TABLE, what)}\n" in capsys.readouterr().err
    in_engine = sentence("embedding.word_embeddings.weight", what)
    assert in_engine in describe(tmp_path / "nemo", deep=True).notes
    recipe = compose_recipe("demo_adapt", [f"model.checkpoint={tmp_path / 'nemo'}"])
    model = json.loads((tmp_path / "nemo/context/model.json").read_text())["config"]

    def told(eos_id: int) -> list[str]:
        data = Manifest(stage="data_prep.to_megatron", facts={"eos_token_id": eos_id})
        return checkpoint_warnings(recipe, RunInputs("opt", model, Manifest(stage="conversion.hf_to_nemo"), (data,)))

    assert told(EOS) == [in_engine]
    assert told(EOS + 1) == []


def test_an_output_layer_of_its_own(make_opt: OPTMaker) -> None:
    assert sentence("lm_head.weight", "is zero") in describe(wide_opt(make_opt, torch.zeros(256), tied=False), deep=True).notes


def test_trained_rows_and_new_models_are_not_found(make_opt: OPTMaker, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    hf_dir = wide_opt(make_opt, None)
    assert not [note for note in describe(hf_dir, deep=True).notes if "ends a text" in note]
    assert hf_to_nemo.main(["--input", str(hf_dir), "--output", str(tmp_path / "nemo")]) == 0
    assert "warning" not in capsys.readouterr().err
    new = LazyTensor.of("new", torch.randn(400, 256, generator=torch.Generator().manual_seed(1)) * 0.02)
    assert untrained(new, [5], init_std=0.02) == {}  # every row is as it was drawn
    assert untrained(new, [999], init_std=0.02) == {}


def test_ends_of_text_are_those_of_configs_and_tokenizer(make_opt: OPTMaker) -> None:
    hf_dir = make_opt()
    edit_json(hf_dir / "config.json", eos_token_id=[7, 8])
    (hf_dir / "generation_config.json").write_text(json.dumps({"eos_token_id": 9}))
    named = json.loads((hf_dir / "tokenizer_config.json").read_text())["eos_token"]
    [added] = [e["id"] for e in json.loads((hf_dir / "tokenizer.json").read_text())["added_tokens"] if e["content"] == named]
    assert end_of_text_ids(hf_dir) == [7, 8, 9, added]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_not_converted(make_opt: OPTMaker, tmp_path: Path, value: float, dtype: torch.dtype) -> None:
    hf_dir = make_opt(dtype=dtype)
    name = "model.decoder.layers.1.self_attn.k_proj.weight"
    with edited_tensors(hf_dir) as state:
        state[name][3, 5] = value
        state["model.decoder.layers.2.fc1.weight"][0, 0] = torch.finfo(dtype).max  # large, but a number
    with pytest.raises(
        ValueError, match=f"^{hf_dir}: {name} holds values that are NaN or infinite, with which the model gives no numbers;"
    ):
        hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
    assert not (tmp_path / "nemo").exists()


def test_the_largest_numbers_are_converted(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir = make_opt()
    with edited_tensors(hf_dir) as state:
        state["model.decoder.layers.2.fc1.weight"][0, :2] = torch.tensor([1, -1]) * torch.finfo(torch.float32).max
    hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
