"""Vocabularies of models that the engine does not have: their token matrices are found and changed, all else stays bit for bit."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from conversion import edit_vocabulary, hf_to_nemo, merge, transfer, verify
from conversion.checkpoints.hf_checkpoint import HFCheckpoint
from conversion.embeddings.layers import find_token_layers
from conversion.inspection import describe
from tests.conversion.embedding_fixtures import byte_level, demo_text, sentencepiece_like
from tests.conversion.new_families import NEW, save_plain

WEIGHTS, SPECIALS = "model.safetensors", {"bos": "</s>", "eos": "</s>", "pad": "<pad>"}
PADDING, PLACES = 3, ("bos", "eos", "pad")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_level(demo_text("en")[:20_000], num_tokens=320, specials=SPECIALS)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("any") / "target"
    sentencepiece_like(demo_text("sl")[:20_000], num_tokens=280, specials={"bos": "<s>", "eos": "</s>"}).save_pretrained(str(directory))
    return directory


def told(directory: Path) -> dict[str, Any]:
    config = json.loads((directory / "config.json").read_text())
    found: dict[str, Any] = config.get("text_config", config)
    return found


@pytest.mark.parametrize("name", NEW)
def test_another_vocabulary(name: str, tokenizer: Any, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = save_plain(name, tmp_path / "source", tokenizer), tmp_path / "out"
    assert transfer.main(["--source", str(source), "--tokenizer", str(target), "--method", "mean", "--output", str(out)]) == 0
    before, after = load_file(source / WEIGHTS), load_file(out / WEIGHTS)
    rows = len(json.loads((target / "tokenizer.json").read_text())["model"]["vocab"])
    assert {key: tensor.shape for key, tensor in after.items() if key in NEW[name].tokens} == {
        key: (rows, width) for key, width in NEW[name].tokens.items()
    }
    assert all(torch.equal(after[key], before[key]) for key in NEW[name].others) and list(after) == list(before)
    report = json.loads((out / "transfer.json").read_text())
    copied = {entry["id"]: entry["sources"][0][0] for entry in report["tokens"] if entry["origin"] in ("copied", "special")}
    for key in NEW[name].tokens:
        assert len(copied) > 20 and torch.equal(after[key][list(copied)], before[key][list(copied.values())])
    assert [told(out)[key] for key in NEW[name].rows] == [rows] * len(NEW[name].rows)
    config = json.loads((out / "config.json").read_text())
    if "text_config" in config:  # tokens of images are gone, and any id that no text has will do
        assert {value for key, value in config.items() if key.endswith(("_token_id", "_token_index")) and key[:3] not in PLACES} == {rows}
    assert verify.main([str(source), str(out), "--other-vocabulary"]) == 0
    assert f"all else: {len(NEW[name].others)} tensors equal bit for bit" in capsys.readouterr().out
    changed = {**after, (key := next(iter(NEW[name].others))): after[key] + 1}
    save_file(changed, out / WEIGHTS, metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps({**config, "extra": 1}))
    assert verify.main([str(source), str(out), "--other-vocabulary"]) == 1
    shown = capsys.readouterr().out
    assert f"DIFFERENT  all else: {key}\n" in shown and "DIFFERENT  configuration: extra\n" in shown


@pytest.mark.parametrize("name", NEW)
def test_edits_merges_and_inspection(name: str, tokenizer: Any, tmp_path: Path) -> None:
    source, other = (save_plain(name, tmp_path / str(seed), tokenizer, seed=seed) for seed in (0, 1))
    found = describe(source)
    assert found.problems == [] and f"rows per token: {', '.join(NEW[name].tokens)}" in found.notes
    assert found.padded_vocab_size == len(tokenizer) + PADDING
    before, second = load_file(source / WEIGHTS), load_file(other / WEIGHTS)
    assert edit_vocabulary.main(["--input", str(source), "--append-rows", "5", "--output", str(tmp_path / "longer")]) == 0
    after = load_file(tmp_path / "longer" / WEIGHTS)
    for key in before:
        assert torch.equal(after[key][: len(before[key])], before[key]), key
        assert len(after[key]) - len(before[key]) == (5 if key in NEW[name].tokens else 0)
    assert [told(tmp_path / "longer")[key] for key in NEW[name].rows] == [len(tokenizer) + PADDING + 5] * len(NEW[name].rows)
    assert verify.main([str(source), str(tmp_path / "longer"), "--other-vocabulary"]) == 0
    weights = ["--method", "linear", "--models", f"{source}:0.5", f"{other}:0.5", "--output", str(tmp_path / "merged")]
    assert merge.main(weights) == 0
    merged = load_file(tmp_path / "merged" / WEIGHTS)
    assert all(torch.equal(merged[key], ((before[key].float() + second[key].float()) / 2).bfloat16()) for key in before)
    with pytest.raises(ValueError, match=r"transfer, edit"):
        hf_to_nemo.convert(source, tmp_path / "nemo")


def test_swapped_tokens_have_a_vector_per_layer_too(tokenizer: Any, tmp_path: Path) -> None:
    source, text = save_plain("gemma4", tmp_path / "source", tokenizer), tmp_path / "sl.txt"
    text.write_text(demo_text("sl")[:20_000])
    options = ["--vocabulary", "swap", "--new-tokens", "20", "--text", str(text), "--method", "mean"]
    assert transfer.main(["--source", str(source), *options, "--output", str(tmp_path / "out")]) == 0
    before, after = load_file(source / WEIGHTS), load_file(tmp_path / "out" / WEIGHTS)
    swapped = [int(line.split("\t")[0]) for line in (tmp_path / "out/swapped_tokens.tsv").read_text().splitlines()[1:]]
    assert len(swapped) == 20
    for key in before:
        rows = (before[key] != after[key]).reshape(len(before[key]), -1).any(1).nonzero()[:, 0].tolist()
        assert rows == (sorted(swapped) if key in NEW["gemma4"].tokens else []), key


# -- where the matrices are ------------------------------------------------------------------------------------------------


def changed(directory: Path, add: Mapping[str, tuple[int, ...]], drop: tuple[str, ...] = (), **config: Any) -> Path:
    tensors = {key: tensor for key, tensor in load_file(directory / WEIGHTS).items() if key not in drop}
    save_file(tensors | {key: torch.ones(shape) for key, shape in add.items()}, directory / WEIGHTS, metadata={"format": "pt"})
    said = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**said, **config}))
    return directory


def test_layers_that_predict_further_tokens_have_matrices_of_their_own(tokenizer: Any, tmp_path: Path) -> None:
    rows = len(tokenizer) + PADDING
    extra = {"model.layers.4.embed_tokens.weight": (rows, 32), "model.layers.4.shared_head.head.weight": (rows, 32)}
    layers = find_token_layers(HFCheckpoint.open(changed(save_plain("mixtral", tmp_path / "a", tokenizer), extra)))
    assert layers.by_token == ("model.embed_tokens.weight", "lm_head.weight", *extra)


def test_names_that_no_table_has(tokenizer: Any, tmp_path: Path) -> None:
    """Two matrices of the vocabulary's size of which one is called a head; one of the layers is none of them; rows may be padded."""
    rows = len(tokenizer) + PADDING
    drop = ("model.embed_tokens.weight", "lm_head.weight")
    names = {"net.tok.weight": (rows, 32), "net.head.weight": (rows, 32)}
    source = changed(save_plain("mixtral", tmp_path / "a", tokenizer), names | {"net.blocks.0.table": (40, 32)}, drop)
    layers = find_token_layers(HFCheckpoint.open(source))
    assert (layers.input, layers.output, layers.num_rows) == ("net.tok.weight", "net.head.weight", rows)
    changed(source, {}, vocab_size=rows - 1, embedding_size=rows)  # by the table's rows, since no matrix has as many as vocab_size
    changed(source, {"model.embed_tokens.weight": (rows, 32)}, (*names, "net.blocks.0.table"), tie_word_embeddings=True)
    assert edit_vocabulary.main(["--input", str(source), "--append-rows", "2", "--output", str(tmp_path / "out")]) == 0
    assert (told(tmp_path / "out")["vocab_size"], told(tmp_path / "out")["embedding_size"]) == (rows + 2, rows + 2)


REFUSED: dict[str, tuple[str, dict[str, Any], tuple[str, ...], dict[str, Any], str]] = {
    "two embeddings": ("mixtral", {"encoder.embed_tokens.weight": ("rows", 32)}, (), {}, "found .*encoder.embed_tokens.weight"),
    "two of one shape": (
        "mixtral",
        {"a.weight": ("rows", 32), "b.weight": ("rows", 32)},
        ("model.embed_tokens.weight", "lm_head.weight"),
        {},
        "found a.weight, b.weight$",
    ),
    "another matrix of that size": (
        "mixtral",
        {"copy.table": ("rows", 7)},
        (),
        {},
        "copy.table has a row per token too, but nothing is known",
    ),
    "fewer vectors per layer": (
        "gemma4_text",
        {"model.embed_tokens_per_layer.weight": (100, 16)},
        (),
        {"vocab_size_per_layer_input": 100},
        "has vocab_size_per_layer_input 100 in its config.json and 100 rows in model.embed_tokens_per_layer.weight",
    ),
    "ids behind the vocabulary": ("gemma4", {}, (), {"audio_config": {"vocab_offset": 400}}, "has vocab_offset 400 in audio_config"),
    "no size": ("mixtral", {}, (), {"vocab_size": None}, "config.json has no vocab_size; add it there"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_sure_is_refused_by_name(case: str, tokenizer: Any, target: Path, tmp_path: Path) -> None:
    name, add, drop, config, sentence = REFUSED[case]
    shapes = {key: tuple(len(tokenizer) + PADDING if size == "rows" else size for size in shape) for key, shape in add.items()}
    source, out = changed(save_plain(name, tmp_path / "source", tokenizer), shapes, drop, **config), tmp_path / "out"
    copy = shutil.copytree(source, tmp_path / "copy")
    for main, options in (
        (transfer.main, ["--source", str(source), "--tokenizer", str(target), "--method", "mean"]),
        (edit_vocabulary.main, ["--input", str(source), "--append-rows", "1"]),
        (merge.main, ["--method", "linear", "--models", f"a={source}:1", f"b={copy}:1"]),
    ):
        with pytest.raises(ValueError, match=sentence):
            main([*options, "--output", str(out)])
    assert not out.exists()
    assert any(re.search(sentence, note) for note in describe(source).notes)


def test_vectors_per_layer_are_not_learned(tokenizer: Any, target: Path, tmp_path: Path) -> None:
    source, text = save_plain("gemma4_text", tmp_path / "source", tokenizer), tmp_path / "sl.txt"
    text.write_text(demo_text("sl")[:5000])
    options = ["--source", str(source), "--tokenizer", str(target), "--output", str(tmp_path / "out"), "--text", str(text)]
    with pytest.raises(ValueError, match=r"has model.embed_tokens_per_layer.weight beside them; choose a method that does not learn"):
        transfer.main([*options, "--method", "next-token"])
