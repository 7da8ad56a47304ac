from __future__ import annotations

import json
import os
import re
import shutil
import stat
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from common.artifacts import read_manifest
from conversion import change_layout, hf_to_nemo, nemo_to_hf
from conversion.inspection import describe
from conversion.layouts.moving import MEGATRON_BRIDGE, MEGATRON_LM, NEMO
from recipes.rules.compose import compose_recipe
from recipes.rules.inputs import read_inputs
from tests.conversion.folders import manifest_of
from tests.conversion.tiny_families import ITERATION, SAMPLES, TRAINED_LENGTH, save_tiny_model
from tests.gloo import run_on_gloo
from tests.refusals import refused

OTHERS = (MEGATRON_LM, MEGATRON_BRIDGE)
NAMES = ("opt", "llama2", "qwen3")


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    """Folders hf/NAME, nemo/NAME, and LAYOUT/NAME, the last of them copied, not linked."""
    directory = tmp_path_factory.mktemp("layouts")
    for name in NAMES:
        save_tiny_model(name, directory / "hf" / name, tokenizer_dir=tokenizer_dir)
        hf_to_nemo.convert(directory / "hf" / name, directory / "nemo" / name)
        for layout in OTHERS:
            copy = layout == MEGATRON_BRIDGE and name == "opt"
            change_layout.change(directory / "nemo" / name, directory / layout / name, layout=layout, copy=copy)
    return directory


@pytest.fixture(scope="module")
def megatron_run(moved: Path) -> list[list[str]]:
    """Differences that each rank found in what Megatron-core loads; it also saved the OPT model in `trained/{stacked,per_layer}`."""
    folders = [[str(moved / MEGATRON_LM / name / "release"), str(moved / MEGATRON_BRIDGE / name / "iter_0000000")] for name in NAMES]
    return run_on_gloo(
        "tests.conversion.layout_functions:load_as_megatron_does",
        world_size=2,
        directory=moved / "gloo",
        nemo_dirs=[str(moved / "nemo" / name) for name in NAMES],
        iteration_dirs=folders,
        output_dir=str(moved / "trained"),
    )


@pytest.mark.slow
def test_megatron_core_loads_both_layouts_at_tensor_parallel_2(megatron_run: list[list[str]]) -> None:
    """The checkpoint has all that the model asks for, and nothing else but objects for TransformerEngine."""
    assert megatron_run == [[], []]


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", ["stacked", "per_layer", "common_among_objects"])
def test_a_run_of_megatron_lm_comes_back(moved: Path, megatron_run: list[list[str]], tmp_path: Path, kind: str) -> None:
    """Saved by Megatron-core from two ranks, with optimizer state, padded rows and either layout of layers."""
    run = moved / "trained" / kind
    found = describe(run)
    assert (found.format, found.step, found.consumed_samples) == ("Megatron-LM", ITERATION, SAMPLES)
    assert (found.consumed_tokens, found.optimizer_state, found.padded_vocab_size) == (SAMPLES * TRAINED_LENGTH, True, 384)
    assert not found.problems
    manifest = change_layout.change(run, tmp_path / "nemo", layout=NEMO, context_of=moved / "nemo/opt")
    assert manifest.facts["step"] == ITERATION
    assert_comes_back(tmp_path / "nemo", moved / "hf/opt", tmp_path / "hf")


@pytest.mark.parametrize("layout", OTHERS)
@pytest.mark.parametrize("name", NAMES)
def test_there_and_back_bit_for_bit(moved: Path, tmp_path: Path, layout: str, name: str) -> None:
    change_layout.change(moved / layout / name, tmp_path / "nemo", layout=NEMO)
    assert_comes_back(tmp_path / "nemo", moved / "hf" / name, tmp_path / "hf")
    for path in (moved / "nemo" / name / "context").rglob("*"):
        if path.is_file():
            assert (tmp_path / "nemo/context" / path.relative_to(moved / "nemo" / name / "context")).read_bytes() == path.read_bytes()


def test_what_nemo_itself_has_saved_can_be_exported(moved: Path, tmp_path: Path) -> None:
    """Its context says nothing that this project needs, so the checkpoint that the training began with says it."""
    saved = tmp_path / "saved"
    shutil.copytree(moved / "nemo/llama2/weights", saved / "weights")
    (saved / "context").mkdir()
    shutil.copyfile(moved / "nemo/llama2/context/model.yaml", saved / "context/model.yaml")
    with pytest.raises(ValueError, match=r"`python -m conversion\.change_layout --to nemo --context` adds them$"):
        nemo_to_hf.export(saved, tmp_path / "hf")
    change_layout.change(saved, tmp_path / "nemo", layout=NEMO, context_of=moved / "nemo/llama2")
    nemo_to_hf.export(tmp_path / "nemo", tmp_path / "hf")
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "hf" / name).read_bytes() == (moved / "hf/llama2" / name).read_bytes()


def test_what_other_programs_have_trained_can_be_trained_on(moved: Path, megatron_run: list[list[str]], tmp_path: Path) -> None:
    """A run takes it as a checkpoint of its own; the tokenizer is that of the context."""
    change_layout.change(moved / "trained/stacked", tmp_path / "nemo", layout=NEMO, context_of=moved / "nemo/opt")
    for folder in (tmp_path / "nemo", moved / MEGATRON_LM / "opt"):
        recipe = compose_recipe("demo_adapt", [f"model.checkpoint={folder}", f"data.train=[{tmp_path}/none]"])
        with pytest.raises(ValueError) as error:  # there is no data set here
            read_inputs(recipe)
        layout = f"{folder} is in the layout megatron-lm; convert it to NeMo's with `python -m conversion.change_layout"
        assert (str(folder) in str(error.value)) == (layout in str(error.value)) == (folder.parent.name == MEGATRON_LM)
    facts, of_context = (manifest_of(folder).facts for folder in (tmp_path / "nemo", moved / "nemo/opt"))
    assert facts["tokenizer_digest"] == of_context["tokenizer_digest"] is not None


def test_from_one_to_the_other(moved: Path, tmp_path: Path) -> None:
    change_layout.change(moved / MEGATRON_BRIDGE / "llama2", tmp_path / "lm", layout=MEGATRON_LM)
    change_layout.change(tmp_path / "lm", tmp_path / "bridge", layout=MEGATRON_BRIDGE)
    change_layout.change(tmp_path / "bridge", tmp_path / "nemo", layout=NEMO)
    assert_comes_back(tmp_path / "nemo", moved / "hf/llama2", tmp_path / "hf")


def assert_comes_back(nemo_dir: Path, original: Path, output_dir: Path) -> None:
    nemo_to_hf.export(nemo_dir, output_dir)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (output_dir / name).read_bytes() == (original / name).read_bytes()


# -- what lies beside the weights -----------------------------------------------------------------------------------------


def test_arguments_of_megatron_lm(moved: Path) -> None:
    assert (moved / MEGATRON_LM / "llama2/latest_checkpointed_iteration.txt").read_text() == "release"
    torch.serialization.add_safe_globals([__import__("argparse").Namespace])
    common = torch.load(moved / MEGATRON_LM / "llama2/release/common.pt", weights_only=True)
    arguments = vars(common["args"])
    assert common["checkpoint_version"] == 3.0
    expected = {
        "num_layers": 4,
        "num_attention_heads": 8,
        "num_query_groups": 8,
        "group_query_attention": False,
        "kv_channels": 4,
        "swiglu": True,
        "normalization": "RMSNorm",
        "position_embedding_type": "rope",
        "untie_embeddings_and_output_weights": True,
        "vocab_size": 283,
        "padded_vocab_size": 283,
        "params_dtype": torch.float32,
        "no_save_optim": True,
        "tensor_model_parallel_size": 1,
    }
    assert {key: arguments[key] for key in expected} == expected
    assert Path(arguments["tokenizer_model"]) == moved / MEGATRON_LM / "llama2/release/context/hf"


def test_what_megatron_lm_cannot_express_is_said(moved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("opt", "llama2"):
        arguments = ["--input", str(moved / "nemo" / name), "--to", "megatron-lm", "--output", str(tmp_path / name)]
        assert change_layout.main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{tmp_path / 'opt'}: opt for megatron-lm, step 0, 3 data files shared with the input, in ")
    assert captured.err == (
        "note: Megatron-LM's own options have no activation relu; the weights are right, but give them to a model that has it\n"
    )


def test_run_config_of_megatron_bridge(moved: Path) -> None:
    folder = moved / MEGATRON_BRIDGE / "qwen3/iter_0000000"
    content = yaml.safe_load((folder / "run_config.yaml").read_text())
    model = content["model"]
    assert model["_target_"] == "megatron.bridge.models.gpt_provider.GPTModelProvider"
    assert model["activation_func"] == {"_target_": "torch.nn.functional.silu", "_call_": False}
    assert (model["seq_length"], model["kv_channels"], model["qk_layernorm"], model["vocab_size"]) == (64, 12, True, 307)
    assert model["params_dtype"] == {"_target_": "torch.float32", "_call_": False}
    assert content["checkpoint"]["save_optim"] is False
    assert (folder / "tokenizer/tokenizer.json").read_bytes() == (moved / "hf/qwen3/tokenizer.json").read_bytes()
    state = torch.load(moved / MEGATRON_BRIDGE / "qwen3/latest_train_state.pt", weights_only=True)
    assert state["step"] == 0 and state["step"].dtype == torch.int32
    assert (moved / MEGATRON_BRIDGE / "qwen3/latest_checkpointed_iteration.txt").read_text() == "0"


def test_inspection_of_both(moved: Path) -> None:
    for layout, name in ((MEGATRON_LM, "Megatron-LM"), (MEGATRON_BRIDGE, "Megatron-Bridge")):
        found = describe(moved / layout / "qwen3")
        assert (found.format, found.vocab_size, found.tie_word_embeddings, found.step) == (name, 307, False, 0)
        assert found.provenance["stage"] == "conversion.change_layout"
        assert found.parameters == sum(tensor.numel() for tensor in load_file(moved / "hf/qwen3/model.safetensors").values())
        assert not found.problems and not found.notes


# -- data files -----------------------------------------------------------------------------------------------------------


def test_linked_files_take_no_room_and_copies_are_their_own(moved: Path) -> None:
    original = moved / "nemo/opt/weights"
    for name in ("__0_0.distcp", "__0_1.distcp"):
        assert os.path.samefile(original / name, moved / MEGATRON_LM / "opt/release" / name)
        copied = moved / MEGATRON_BRIDGE / "opt/iter_0000000" / name
        assert not os.path.samefile(original / name, copied) and copied.stat().st_mode & stat.S_IRGRP
    source, linked, copied_ = (read_manifest(moved / folder) for folder in ("nemo/opt", f"{MEGATRON_LM}/opt", f"{MEGATRON_BRIDGE}/opt"))
    assert source and linked and copied_
    assert linked.files["release/__0_0.distcp"] == source.files["weights/__0_0.distcp"]
    assert all(record.digest for record in copied_.files.values())


def test_copying_leaves_the_optimizer_behind(moved: Path, megatron_run: list[list[str]], tmp_path: Path) -> None:
    run = moved / "trained/stacked"
    change_layout.change(run, tmp_path / "nemo", layout=NEMO, context_of=moved / "nemo/opt", copy=True)
    size = sum(path.stat().st_size for path in (tmp_path / "nemo/weights").glob("*.distcp"))
    assert size < 0.6 * sum(path.stat().st_size for path in run.rglob("*.distcp"))
    assert_comes_back(tmp_path / "nemo", moved / "hf/opt", tmp_path / "hf")


def test_copies_where_nothing_can_be_linked(moved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "copy_file_range", refuse)
    assert change_layout.change(moved / "nemo/opt", tmp_path / "lm", layout=MEGATRON_LM).facts["linked_files"] == 0
    change_layout.change(tmp_path / "lm", tmp_path / "nemo", layout=NEMO)
    assert_comes_back(tmp_path / "nemo", moved / "hf/opt", tmp_path / "hf")


# -- refusals -------------------------------------------------------------------------------------------------------------


def test_nothing_says_what_model_it_is(moved: Path, megatron_run: list[list[str]], tmp_path: Path) -> None:
    folder = moved / "trained/stacked" / f"iter_{ITERATION:07d}"
    message = (
        f"{folder} has no context/model.json, so its model is unknown; give a NeMo checkpoint of the same model with"
        " --context (`python -m conversion.hf_to_nemo` makes one of its Hugging Face checkpoint)"
    )
    with refused(message):
        change_layout.change(moved / "trained/stacked", tmp_path / "nemo", layout=NEMO)
    assert not list(tmp_path.iterdir())


def test_context_of_another_model(moved: Path, megatron_run: list[list[str]], tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"/iter_0000030 has 27 tensors that its model family does not know: decoder.final_layernorm.bias, "
    ):
        config = json.loads((moved / "nemo/opt/context/model.json").read_text())
        shutil.copytree(moved / "nemo/opt/context", tmp_path / "other/context")
        metadata = {**config, "family": "llama"}
        (tmp_path / "other/context/model.json").write_text(json.dumps(metadata))
        change_layout.change(moved / "trained/stacked", tmp_path / "nemo", layout=NEMO, context_of=tmp_path / "other")


def test_rotary_positions_that_megatron_bridge_does_not_have(tmp_path: Path) -> None:
    hf_to_nemo.convert(save_tiny_model("llama3", tmp_path / "hf"), tmp_path / "nemo")
    message = (
        "the rotary positions of this model have low_freq_factor 2.0, high_freq_factor 5.0, old_context_len 16, but Megatron-Bridge has"
        " low_freq_factor 1.0, high_freq_factor 4.0, old_context_len 8192 for all models; it would compute something else"
    )
    with refused(message):
        change_layout.change(tmp_path / "nemo", tmp_path / "bridge", layout=MEGATRON_BRIDGE)
    assert not (tmp_path / "bridge").exists()


def test_hugging_face_and_damaged_inputs(moved: Path, tmp_path: Path) -> None:
    message = f"{moved / 'hf/opt'} is a Hugging Face checkpoint; convert it with `python -m conversion.hf_to_nemo` first"
    with refused(message):
        change_layout.change(moved / "hf/opt", tmp_path / "out", layout=NEMO)
    shutil.copytree(moved / "nemo/opt", tmp_path / "nemo")
    path = tmp_path / "nemo/weights/__0_0.distcp"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path / 'nemo'))} cannot be used: .*: truncated or edited; "):
        change_layout.change(tmp_path / "nemo", tmp_path / "out", layout=MEGATRON_LM)
    assert not (tmp_path / "out").exists()
