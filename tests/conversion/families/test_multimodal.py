"""A model that also sees: what is covered loses nothing of the rest, and what is not is refused by what it is."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from conversion import edit_vocabulary, extract_language_model, hf_to_nemo, nemo_to_hf, transfer
from conversion.checkpoints.hf_checkpoint import HFCheckpoint
from conversion.checkpoints.hf_model import inspect_checkpoint, load_model
from conversion.checkpoints.nemo_checkpoint import copy_context
from conversion.inspection import describe
from conversion.layouts.moving import MEGATRON_BRIDGE, NEMO, change
from conversion.measuring.bits_per_byte import choose_start_token, score_documents
from conversion.verify import Side
from eval.running.generation import Settings, transformers_generator
from tests.conversion.embedding_fixtures import demo_text, sentencepiece_like
from tests.conversion.folders import edited_tensors, there_and_back
from tests.conversion.tiny_families import save_tiny_model

SENTENCE = (
    "a multimodal model of the type llava, whose language model (llama) stands in text_config of its config.json; transfer, edits and merges"
    " change that alone and what is beside it is kept as it is, and the engine has no such models"
)
PROCESSOR = {"preprocessor_config.json": b'{"size":  {"height": 28}}', "processor_config.json": b'{"image_seq_length": 4}\n'}
NEWER_NAMES = {"language_model.model.": "model.language_model.", "language_model.lm_head.": "lm_head."}


@pytest.fixture
def unknown(tmp_path: Path, tokenizer_dir: Path) -> Path:
    """The names and configuration of such a checkpoint; only the vision tower has a second layer."""
    directory = tmp_path / "seeing"
    directory.mkdir()
    text = {"model_type": "llama", "vocab_size": 300, "hidden_size": 8, "num_hidden_layers": 1, "tie_word_embeddings": True}
    config = {"model_type": "llava", "text_config": text, "vision_config": {"num_hidden_layers": 2}}
    (directory / "config.json").write_text(json.dumps(config))
    tensors = {
        "language_model.model.embed_tokens.weight": torch.ones(300, 8),
        "language_model.model.layers.0.mlp.up_proj.weight": torch.ones(8, 8),
        "vision_tower.encoder.layers.0.mlp.weight": torch.ones(8, 8),
        "vision_tower.encoder.layers.1.mlp.weight": torch.ones(8, 8),
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    for path in tokenizer_dir.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    return directory


def test_inspection_finds_no_problem(unknown: Path) -> None:
    found = describe(unknown)
    assert found.problems == []
    rows = "rows per token: language_model.model.embed_tokens.weight"
    assert found.notes == [f"this is {SENTENCE}; the sizes are those of its language model", rows]
    assert (found.vocab_size, found.sizes["num_hidden_layers"], found.tie_word_embeddings) == (300, 1, True)


def test_conversion_refuses_what_is_not_covered(unknown: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'{unknown} is {SENTENCE}: save the language model alone')}"):
        hf_to_nemo.main(["--input", str(unknown), "--output", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model.", "model.text_model."])
def test_the_language_model_alone(prefix: str, tmp_path: Path, tokenizer_dir: Path) -> None:
    """Mistral Small 3.1: a plain Mistral stands in it, under the names of either version of transformers; or under those of Idefics 3."""
    directory = save_tiny_model("mistral", tmp_path / "plain")
    expected, config = load_file(directory / "model.safetensors"), json.loads((directory / "config.json").read_text())
    head = prefix.removesuffix("model.") if prefix.startswith("language_model.") else ""
    names = {name: prefix + name.removeprefix("model.") if name.startswith("model.") else head + name for name in expected}
    seeing = tmp_path / "seeing"
    shutil.copytree(tokenizer_dir, seeing)
    tensors = {names[name]: tensor for name, tensor in expected.items()} | {"vision_tower.layers.0.weight": torch.ones(2, 2)}
    save_file(tensors, seeing / "model.safetensors", metadata={"format": "pt"})
    (seeing / "config.json").write_text(json.dumps({"model_type": "mistral3", "vision_config": {}, "text_config": config}))
    assert extract_language_model.main(["--input", str(seeing), "--output", str(tmp_path / "alone")]) == 0
    found = load_file(tmp_path / "alone/model.safetensors")
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
    ids = torch.arange(20)[None]
    models = (AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in (directory, tmp_path / "alone"))
    assert torch.equal(*(model(ids).logits for model in models))
    with pytest.raises(ValueError, match=r"has no text_config in its config.json: it is not a multimodal model"):
        extract_language_model.extract(directory, tmp_path / "none")
    unknown = {name.replace(prefix, "another."): tensor for name, tensor in tensors.items()}
    save_file(unknown, seeing / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"has no input embeddings whose names begin with language_model\.model\., "):
        extract_language_model.extract(seeing, tmp_path / "none")


# -- Gemma 3 --------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["published", "newer"])
def seeing(request: pytest.FixtureRequest, tmp_path: Path, tokenizer_dir: Path) -> Path:
    """A tiny Gemma 3 with its vision tower and processor, in the names of the published files or of a newer transformers; or another model."""
    name = "gemma3" if request.param in ("published", "newer") else request.param
    directory = save_tiny_model(name, tmp_path / "seeing", tokenizer_dir=tokenizer_dir)
    for name, content in PROCESSOR.items():
        (directory / name).write_bytes(content)
    if request.param == "newer":
        rename(directory)
    return directory


def rename(directory: Path) -> None:
    def newer(name: str) -> str:
        return next((new + name.removeprefix(old) for old, new in NEWER_NAMES.items() if name.startswith(old)), f"model.{name}")

    state = load_file(directory / "model.safetensors")
    save_file({newer(name): state[name] for name in sorted(state, key=newer)}, directory / "model.safetensors", metadata={"format": "pt"})


def same_files(first: Path, second: Path) -> bool:
    """Whether two folders have the same bytes, but for what says where they come from."""
    names = {path.name for folder in (first, second) for path in folder.iterdir()} - {"scion.json", "README.md"}
    return all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


def test_it_is_found_healthy(seeing: Path) -> None:
    found = describe(seeing)
    assert found.problems == []
    assert found.notes[0].endswith(
        "stands in text_config of its config.json; what is beside it is kept as it is; the sizes are those of its language model"
    )
    assert (found.vocab_size, found.sizes["num_hidden_layers"], found.tie_word_embeddings) == (311, 4, True)


def test_a_missing_layer_of_its_language_model_is_found(seeing: Path) -> None:
    with edited_tensors(seeing) as state:
        [lost] = [name for name in state if name.endswith("layers.2.self_attn.k_norm.weight")]
        del state[lost]
    assert any("k_norm" in problem for problem in describe(seeing).problems)
    with pytest.raises(ValueError, match=f"lacks 1 tensor that its configuration asks for: {re.escape(lost)}$"):
        hf_to_nemo.convert(seeing, seeing.parent / "nemo")


def test_there_and_back_whole(seeing: Path, tmp_path: Path) -> None:
    """By way of Megatron-Bridge's folder too: tower, projector and the processor's files come back bit for bit."""
    hf_to_nemo.convert(seeing, tmp_path / "nemo")
    change(tmp_path / "nemo", tmp_path / "bridge", layout=MEGATRON_BRIDGE)
    change(tmp_path / "bridge", tmp_path / "again", layout=NEMO)
    for source in ("nemo", "again"):
        nemo_to_hf.export(tmp_path / source, tmp_path / f"{source}_back")
        assert same_files(seeing, tmp_path / f"{source}_back"), source
    assert list(Side.open(tmp_path / "nemo").tensors) == list(Side.open(tmp_path / "again").tensors)
    kept = load_file(tmp_path / "nemo/context/hf/kept.safetensors")
    assert kept and all("vision_tower" in name or "multi_modal_projector" in name for name in kept)


def test_the_export_in_another_dtype_says_so(seeing: Path, tmp_path: Path) -> None:
    hf_to_nemo.convert(seeing, tmp_path / "nemo")
    nemo_to_hf.export(tmp_path / "nemo", tmp_path / "back", dtype="bfloat16")
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (seeing, tmp_path / "back"))
    assert after == {**before, "dtype": "bfloat16"}
    assert {tensor.dtype for tensor in load_file(tmp_path / "back/model.safetensors").values()} == {torch.bfloat16}


def test_published_files_leave_out_the_size_of_the_vocabulary(tmp_path: Path, tokenizer_dir: Path) -> None:
    """And much else: what the class of transformers says is meant. The transfer once called such a model broken."""
    directory = save_tiny_model("gemma3", tmp_path / "hf", tokenizer_dir=tokenizer_dir, vocab_size=262208)
    config = json.loads((directory / "config.json").read_text())
    del config["text_config"]["vocab_size"]
    (directory / "config.json").write_text(json.dumps(config))
    assert describe(directory).problems == []
    assert Side.open(directory).vocab_size == 262208
    options = ["--vocabulary", "keep", "--output-layer", "tied"]
    assert transfer.main(["--source", str(directory), "--output", str(tmp_path / "out"), *options]) == 0
    assert hf_to_nemo.convert(directory, tmp_path / "nemo").facts["vocab_size"] == 262208


@pytest.mark.parametrize("seeing", ["published", "newer", "mistral3"], indirect=True)
def test_transfer_to_another_vocabulary(seeing: Path, tmp_path: Path) -> None:
    """Rows change, the tower does not; ids follow in both configs, and a token of an image that is gone is one that no text has."""
    target_dir = tmp_path / "target"
    sentencepiece_like(demo_text("sl")[:30_000], num_tokens=400, specials={"bos": "<s>", "eos": "</s>"}).save_pretrained(str(target_dir))
    arguments = ["--source", str(seeing), "--tokenizer", str(target_dir), "--method", "mean", "--output", str(tmp_path / "out")]
    assert transfer.main(arguments) == 0
    rows = len(AutoTokenizer.from_pretrained(str(target_dir)))
    before, after = (load_file(folder / "model.safetensors") for folder in (seeing, tmp_path / "out"))
    [table] = [name for name in before if name.endswith("embed_tokens.weight")]
    assert list(after) == list(before) and after[table].shape == (rows, 32)
    assert all(torch.equal(after[name], before[name]) for name in before if name != table)
    config = json.loads((tmp_path / "out/config.json").read_text())
    text = config["text_config"]
    assert (text["vocab_size"], text["tie_word_embeddings"], config["tie_word_embeddings"]) == (rows, True, True)
    assert "vocab_size" not in config
    assert config["image_token_index"] == rows
    assert not (tmp_path / "out/processor_config.json").exists()
    assert describe(tmp_path / "out").problems == []
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(str(tmp_path / "out"))
        assert model(torch.arange(10, 30)[None]).logits.shape[-1] == rows


def test_untying_goes_into_both_places(seeing: Path, tmp_path: Path) -> None:
    """transformers 4 asks the language model's part, transformers 5 the whole."""
    assert edit_vocabulary.main(["--input", str(seeing), "--untie", "--output", str(tmp_path / "out")]) == 0
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["tie_word_embeddings"], config["text_config"]["tie_word_embeddings"]) == (False, False)
    checkpoint = HFCheckpoint.open(tmp_path / "out")
    assert not checkpoint.tie_word_embeddings
    assert checkpoint.output_name == ("lm_head.weight" if "lm_head.weight" in checkpoint.tensors else "language_model.lm_head.weight")
    model, loading = AutoModelForCausalLM.from_pretrained(str(tmp_path / "out"), output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    assert model.get_output_embeddings().weight.data_ptr() != model.get_input_embeddings().weight.data_ptr()
    assert (tmp_path / "out/processor_config.json").read_bytes() == PROCESSOR["processor_config.json"]


def test_checkpoints_of_a_run_share_the_tower(seeing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hf_to_nemo.convert(seeing, tmp_path / "nemo")
    tower = "hf/kept.safetensors"
    copy_context(tmp_path / "nemo/context", tmp_path / "step/context")
    assert (tmp_path / "step/context" / tower).samefile(tmp_path / "nemo/context" / tower)
    assert not (tmp_path / "step/context/hf/config.json").samefile(tmp_path / "nemo/context/hf/config.json")
    copy_context(tmp_path / "nemo/context", tmp_path / "step/context")  # of a run that is begun again

    def refuse(*_: object) -> None:
        raise OSError("Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    copy_context(tmp_path / "nemo/context", tmp_path / "elsewhere/context")
    assert (tmp_path / "elsewhere/context" / tower).read_bytes() == (tmp_path / "nemo/context" / tower).read_bytes()


def test_it_is_evaluated_as_a_language_model(seeing: Path) -> None:
    """Its positions and rows are those of `text_config`; the figures are those of its language model alone."""
    checkpoint = inspect_checkpoint(seeing, name="seeing")
    assert (checkpoint.vocab_size, checkpoint.num_positions, checkpoint.model_type) == (311, 64, "gemma3_text")
    model = load_model(checkpoint, device="cpu", dtype="float32")
    tokenizer = checkpoint.tokenizer
    start = choose_start_token(tokenizer)
    found = score_documents(model, tokenizer, ["A document of more than one window." * 9], start_token=start, window_tokens=48)
    with torch.no_grad():
        ids = torch.tensor([[start.id, *tokenizer("A document", add_special_tokens=False)["input_ids"]]])
        logits = model(ids).logits[0, :-1].log_softmax(-1)
    expected = -logits.gather(1, ids[0, 1:, None]).sum()
    assert found.num_tokens > 100 and found.bits_per_byte > 0
    short = score_documents(model, tokenizer, ["A document"], start_token=start, window_tokens=48)
    assert short.nats == pytest.approx(float(expected), rel=1e-5)
    generate = transformers_generator(model, tokenizer, Settings(60), batch_size=2)
    with pytest.raises(ValueError, match="64"):
        generate(["A document of more than one window."], 1)


# -- Ministral 3 and Mistral Small 3.1 ------------------------------------------------------------------------------------

SMALL = {"model_type": "mistral", "rope_scaling": None, "sliding_window": 8}


@pytest.mark.parametrize("names", ["published", "newer"])
@pytest.mark.parametrize("inner", ["ministral3", "mistral"])
def test_mistrals_beside_a_tower(inner: str, names: str, tmp_path: Path, tokenizer_dir: Path) -> None:
    """There and back whole; evaluated as the language model that can be extracted."""
    whole = save_tiny_model("mistral3", tmp_path / "hf", tokenizer_dir=tokenizer_dir, **(SMALL if inner == "mistral" else {}))
    if names == "newer":
        rename(whole)
    there_and_back(whole, tmp_path)
    assert same_files(whole, tmp_path / "back")
    config = json.loads((tmp_path / "nemo/context/model.json").read_text())["config"]
    assert ("query_temperature_beta" in config, "window_size" in config) == (inner == "ministral3", inner == "mistral")
    extract_language_model.extract(whole, tmp_path / "alone")
    checkpoints = [inspect_checkpoint(folder, name="x") for folder in (whole, tmp_path / "alone")]
    assert [checkpoint.model_type for checkpoint in checkpoints] == [inner, inner]
    models = (load_model(checkpoint, device="cpu", dtype="float32") for checkpoint in checkpoints)
    with torch.no_grad():
        assert torch.equal(*(model(torch.arange(40)[None]).logits for model in models))


def test_other_language_models_beside_its_tower_are_refused(tmp_path: Path) -> None:
    directory = save_tiny_model("mistral3", tmp_path / "hf")
    config = json.loads((directory / "config.json").read_text())
    config["text_config"]["model_type"] = "mistral4"
    (directory / "config.json").write_text(json.dumps(config))
    sentence = (
        "has model_type 'mistral4' in its config.json (expected 'ministral3'): language models of other types are not supported beside"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(f'{directory} {sentence}')}"):
        hf_to_nemo.convert(directory, tmp_path / "nemo")
    assert not (tmp_path / "nemo").exists()
