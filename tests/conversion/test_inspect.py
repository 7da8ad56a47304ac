from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import OPTConfig, OPTForCausalLM

from common.artifacts import write_manifest
from conversion import hf_to_nemo, inspect
from conversion.inspection import describe
from tests.conversion.conftest import VOCAB_SIZE, OPTMaker
from tests.conversion.folders import edit_json, edited_tensors, manifest_of
from tests.processes import ROOT
from tests.refusals import refused

HUNDRED_GB = 100_000_000_000


def num_parameters(hf_dir: Path) -> int:
    return sum(tensor.numel() for tensor in load_file(hf_dir / "model.safetensors").values())


@pytest.mark.parametrize("saving", [{}, {"max_shard_size": "20KB"}, {"safe_serialization": False}])
@pytest.mark.parametrize("tied", [True, False])
def test_hugging_face(make_opt: OPTMaker, saving: dict[str, object], tied: bool) -> None:
    directory = make_opt(saving=saving, dtype=torch.bfloat16, tie_word_embeddings=tied)
    found = describe(directory)
    assert (found.format, found.architecture) == ("Hugging Face", "OPTForCausalLM")
    assert found.sizes["num_hidden_layers"] == 3 and found.sizes["ffn_dim"] == 48
    reference = make_opt("reference", tie_word_embeddings=tied)
    assert found.parameters == num_parameters(reference)
    assert found.embedding_parameters == VOCAB_SIZE * 32 * (1 if tied else 2)
    assert found.dtypes == {"bfloat16": 2 * found.parameters} and found.weight_bytes == 2 * found.parameters
    assert (found.vocab_size, found.padded_vocab_size, found.tokenizer_size) == (VOCAB_SIZE, VOCAB_SIZE, 280)
    assert found.tie_word_embeddings is tied
    assert found.optimizer_state is None
    assert not found.problems
    # The library saves pickles with both names of a tied matrix.
    assert found.notes == (["the one matrix of input and output stands under two names"] if tied and "safe_serialization" in saving else [])


def test_check_up_of_a_tokenizer(make_opt: OPTMaker, capsys: pytest.CaptureFixture[str]) -> None:
    """The class in Python reads vocab.json and merges.txt, of which a line is lost here."""
    directory = make_opt()
    assert inspect.main([str(directory), "--tokenizer", "--other-python", sys.executable]) == 0
    assert capsys.readouterr().out.count("the same on ") == 3
    model = json.loads((directory / "tokenizer.json").read_text())["model"]
    config = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(
        json.dumps({**config, "tokenizer_class": "GPT2Tokenizer", "unk_token": config["eos_token"]})
    )
    (directory / "vocab.json").write_text(json.dumps(model["vocab"]))
    (directory / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{' '.join(merge)}\n" for merge in model["merges"][1:]))
    found = describe(directory, tokenizer=True)
    assert [problem[:51] for problem in found.problems] == ["the slow class gives other ids than our commands fo"]
    assert found.tokenizer["tokenizer.json alone"].startswith("the same") and found.tokenizer["tokens that no text reaches"] == 0


def test_nemo_of_this_project(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir = make_opt(tie_word_embeddings=False)
    manifest = hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
    found = describe(tmp_path / "nemo")
    assert (found.format, found.architecture) == ("NeMo 2", "opt")
    assert found.parameters == num_parameters(hf_dir) - 2 * 32  # the two position rows kept aside are not weights of the engine
    assert (found.vocab_size, found.padded_vocab_size, found.tokenizer_size) == (VOCAB_SIZE, VOCAB_SIZE, 280)
    assert (found.tie_word_embeddings, found.optimizer_state) == (False, False)
    assert found.layout == "3 files of 1 ranks, layers stacked"
    assert found.provenance["stage"] == "conversion.hf_to_nemo"
    assert found.provenance["inputs"] == manifest.inputs
    assert found.provenance["tokenizer_digest"] == manifest.facts["tokenizer_digest"]
    assert not found.problems


def test_text_and_json_of_the_command(make_opt: OPTMaker, capsys: pytest.CaptureFixture[str]) -> None:
    directory = make_opt()
    assert inspect.main([str(directory)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"vocabulary +301 rows, tokenizer of 280 tokens\n +input and output +one matrix \(tied\)\n", text)
    assert text.endswith("  no problem found\n")
    assert inspect.main([str(directory), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["parameters"] == describe(directory).parameters and content["step"] is None
    (directory / "model.safetensors").unlink()
    assert inspect.main([str(directory)]) == 1
    assert capsys.readouterr().out.endswith(
        f"  PROBLEM: {directory} holds no weights; expected model.safetensors or pytorch_model.bin, or an index with its shards\n  1 problem\n"
    )


def test_no_checkpoint(tmp_path: Path) -> None:
    message = (
        f"{tmp_path} holds no checkpoint; expected config.json (Hugging Face), weights/ (NeMo 2), metadata.json or"
        " latest_checkpointed_iteration.txt (Megatron-LM and Megatron-Bridge), or checkpoints/ (a run of `python -m recipes.train`)"
    )
    with refused(message):
        describe(tmp_path)
    with pytest.raises(ValueError, match=r"^the checkpoint folder .* does not exist$"):
        describe(tmp_path / "none")


def test_newest_of_a_run_with_what_it_has_seen(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_to_nemo.convert(make_opt(), tmp_path / "nemo")
    for step in (20, 40):
        folder = tmp_path / f"run/checkpoints/step_{step:07d}"
        shutil.copytree(tmp_path / "nemo", folder)
        torch.save({"global_step": step, "PreTrainingDataModule": {"consumed_samples": step * 16}}, folder / "weights/common.pt")
        arguments = {"data": {"sequence_length": 128}}
        write_manifest(folder, stage="recipes.train", facts={"step": step}, arguments=arguments, hash_files=False)
    (tmp_path / "run/checkpoints/.step_0000060.partial").mkdir()
    found = describe(tmp_path / "run")
    assert found.path == str(tmp_path / "run/checkpoints/step_0000040")
    assert (found.step, found.consumed_samples, found.consumed_tokens) == (40, 640, 640 * 128)
    assert found.notes == [
        f"{tmp_path / 'run'} holds 2 checkpoints; this is the newest",
        f"{tmp_path / 'run/checkpoints/.step_0000060.partial'} is left over from interrupted work",
    ]


# -- health ---------------------------------------------------------------------------------------------------------------


def problems(directory: Path) -> str:
    found = describe(directory)
    assert len(found.problems) == 1, found.problems
    return found.problems[0]


def test_truncated_and_missing_distcp(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_to_nemo.convert(make_opt(), tmp_path / "nemo")
    (tmp_path / "nemo/scion.json").unlink()
    path = tmp_path / "nemo/weights/__0_1.distcp"
    size = path.stat().st_size
    os.truncate(path, size - 1)
    assert problems(tmp_path / "nemo") == f"{path} is truncated: it has {size - 1} bytes, its checkpoint needs {size}; copy it again"
    path.unlink()
    assert problems(tmp_path / "nemo") == f"{path} is missing: the checkpoint is not complete"


def test_lost_layer_and_wrong_sizes(make_opt: OPTMaker) -> None:
    directory = make_opt()
    with edited_tensors(directory) as state:
        lost = state.pop("model.decoder.layers.1.fc1.bias")
    assert problems(directory) == f"{directory} lacks 1 tensor that its configuration asks for: model.decoder.layers.1.fc1.bias"
    with edited_tensors(directory) as state:
        state["model.decoder.layers.1.fc1.bias"] = lost
    edit_json(directory / "config.json", num_hidden_layers=2)
    assert problems(directory).startswith(f"{directory} has 16 tensors that its model family does not know: model.decoder.layers.2.")
    edit_json(directory / "config.json", num_hidden_layers=3, vocab_size=279)
    assert describe(directory).problems == [
        f"the tokenizer in {directory} needs 280 rows, but the model has 279: they do not belong together; put the model's own tokenizer there,"
        " or give the model new rows with `python -m conversion.transfer`",
        f"{directory} has 1 tensor of another shape than its configuration asks for: model.decoder.embed_tokens.weight is 301 x 32, expected"
        " 279 x 32",
    ]
    edit_json(directory / "config.json", vocab_size=VOCAB_SIZE, tie_word_embeddings=False)
    assert problems(directory) == (
        f"{directory}: config.json says that the output layer is a matrix of its own (tie_word_embeddings false), but the weights have no"
        " lm_head.weight; restore the matrix (true is right only for a model that was trained with one)"
    )


def test_leftovers(make_opt: OPTMaker, tmp_path: Path) -> None:
    directory = make_opt()
    shutil.copy(directory / "model.safetensors", directory / "model-00001-of-00002.safetensors")
    (tmp_path / ".hf.partial-0123abcd").mkdir()
    (directory / ".scion.json.partial").touch()
    found = describe(directory)
    assert not found.problems
    assert found.notes == [
        f"{directory / '.scion.json.partial'} is left over from interrupted work",
        f"{tmp_path / '.hf.partial-0123abcd'} is left over from interrupted work",
        "weights that nothing reads lie beside model.safetensors: model-00001-of-00002.safetensors",
    ]


def test_deep_finds_nan_and_edits(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir = make_opt()
    assert "every one is a finite number" in describe(hf_dir, deep=True).notes[-1]
    marks, no_numbers = torch.tensor([1.5e30, 2.5e30]), torch.tensor([float("nan"), float("inf")])
    with edited_tensors(hf_dir) as state:
        state["model.decoder.layers.1.fc1.bias"][3:5] = marks
    hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
    with edited_tensors(hf_dir) as state:
        state["model.decoder.layers.1.fc1.bias"][3:5] = no_numbers
    assert not describe(hf_dir).problems
    assert describe(hf_dir, deep=True).problems == ["model.decoder.layers.1.fc1.bias has 2 values that are NaN or infinite"]
    # Conversion refuses them, so they come into the NeMo folder as a training would bring them: with a manifest that knows them.
    old, new = (values.numpy().tobytes() for values in (marks, no_numbers))
    [path] = (path for path in (tmp_path / "nemo/weights").glob("*.distcp") if old in path.read_bytes())
    path.write_bytes(path.read_bytes().replace(old, new))
    manifest = manifest_of(tmp_path / "nemo")
    write_manifest(tmp_path / "nemo", stage=manifest.stage, facts=manifest.facts)
    assert describe(tmp_path / "nemo", deep=True).problems == ["decoder.layers.1.mlp.linear_fc1.bias has 2 values that are NaN or infinite"]
    path = tmp_path / "nemo/weights/__0_0.distcp"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    sentence = f"{path} was edited after {manifest.stage} wrote it: its digest is not that of its manifest; make {tmp_path / 'nemo'} again"
    assert sentence in describe(tmp_path / "nemo", deep=True).problems


# -- time -----------------------------------------------------------------------------------------------------------------


def sparse_hf(directory: Path) -> Path:
    """A valid folder of 100 GB that takes no room: the file is a header and a hole."""
    directory.mkdir()
    sizes = {"hidden_size": 8192, "ffn_dim": 32768, "num_hidden_layers": 32, "num_attention_heads": 64, "word_embed_proj_dim": 8192}
    with torch.device("meta"):
        model = OPTForCausalLM(OPTConfig(**sizes))
    header: dict[str, object] = {}
    position = 0
    for name, parameter in model.named_parameters():  # the one matrix of both ends once
        end = position + 4 * parameter.numel()
        header[name] = {"dtype": "F32", "shape": list(parameter.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + position)
    (directory / "config.json").write_text(json.dumps({"model_type": "opt", **sizes}))
    return directory


def sparse_nemo(directory: Path, make_opt: OPTMaker) -> Path:
    hf_to_nemo.convert(make_opt(tokenizer=None), directory)
    path = directory / "weights/.metadata"
    metadata = pickle.loads(path.read_bytes())
    for info in metadata.storage_data.values():
        info.offset *= 400_000
    path.write_bytes(pickle.dumps(metadata))
    for number in range(2):
        os.truncate(directory / f"weights/__0_{number}.distcp", HUNDRED_GB // 2)
    (directory / "scion.json").unlink()
    return directory


@pytest.mark.parametrize("form", ["hf", "nemo"])
def test_a_second_for_a_hundred_gigabytes(make_opt: OPTMaker, tmp_path: Path, form: str) -> None:
    directory = sparse_hf(tmp_path / "large") if form == "hf" else sparse_nemo(tmp_path / "large", make_opt)
    command = [sys.executable, "-m", "conversion.inspect", str(directory), "--json"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    content = json.loads(process.stdout.read())
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    assert content["total_bytes"] >= HUNDRED_GB and not content["problems"]
    # Processor time, as the clock's depends on what else runs; looking at metadata waits for nothing.
    assert usage.ru_utime + usage.ru_stime < 1


# Keys of the file that NeMo 2.7.3 wrote for `TrainerContext(model=LlamaModel(...), ...).io_dump(..., yaml_attrs=["model"])`.
STOCK_MODEL = """
_target_: nemo.collections.llm.gpt.model.llama.LlamaModel
config:
  _target_: nemo.collections.llm.gpt.model.llama.Llama32Config1B
  activation_func:
    _call_: false
    _target_: torch.nn.functional.silu
  num_layers: 3
  hidden_size: 32
  kv_channels: null
  num_attention_heads: 4
  num_query_groups: 2
  seq_length: 8192
  vocab_size: null
model_context_managers: []
"""


def test_stock_nemo(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_to_nemo.convert(make_opt(), tmp_path / "nemo")
    (tmp_path / "nemo/scion.json").unlink()
    shutil.rmtree(tmp_path / "nemo/context")
    (tmp_path / "nemo/context").mkdir()
    (tmp_path / "nemo/context/model.yaml").write_text(STOCK_MODEL)
    torch.save({"global_step": 7, "MockDataModule": {"consumed_samples": 70}}, tmp_path / "nemo/weights/common.pt")
    found = describe(tmp_path / "nemo")
    assert found.architecture == "nemo.collections.llm.gpt.model.llama.Llama32Config1B"
    assert found.sizes == {"num_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "num_query_groups": 2, "seq_length": 8192}
    assert (found.vocab_size, found.padded_vocab_size) == (None, VOCAB_SIZE)
    assert (found.step, found.consumed_samples, found.consumed_tokens) == (7, 70, 70 * 8192)
    assert not found.problems
