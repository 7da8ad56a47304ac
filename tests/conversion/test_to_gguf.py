"""GGUF by llama.cpp's own script: the rule of words is found and told, and what is read back is held to the checkpoint.

The script itself is not ours to bring along: SCION_LLAMA_CPP names llama.cpp's folder for the test that runs it.  The others run a script that
asks as it does and hands over a file that was prepared.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Regex, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from common.artifacts import read_manifest
from conversion import from_gguf
from conversion.gguf.tokenizer import WORD_RULES, read_tokenizer, word_rule_of
from conversion.to_gguf import export
from data_prep.reading.documents import Documents
from data_prep.tokenizers.sentencepiece_backend import ADVERSARIAL_TEXTS
from tests.conversion.embedding_fixtures import demo_text
from tests.conversion.folders import manifest_of
from tests.conversion.gguf_files import write_gguf
from tests.conversion.test_from_gguf import GRANTED, NEWER, tiny_tokenizer
from tests.conversion.tiny_families import save_tiny_model, tiny_model
from tests.data_prep.trained import train_tokenizer
from tests.processes import ROOT

SCRIPT = """
import pathlib, shutil, sys

class Model:
    def get_vocab_base_pre(self, tokenizer):
        raise NotImplementedError("BPE pre-tokenizer was not recognized")

def main():
    folder = pathlib.Path(__file__).parent
    (folder / "rule").write_text(Model().get_vocab_base_pre(None))
    shutil.copyfile(folder / "prepared.gguf", sys.argv[sys.argv.index("--outfile") + 1])
"""


def _checkpoint(directory: Path, **changes: Any) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A tiny Llama with a byte-level tokenizer, and the metadata of that tokenizer."""
    model, metadata = tiny_model("llama2", vocab_size=280, intermediate_size=64), tiny_tokenizer(**changes)
    model.save_pretrained(directory)
    names = {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if "." not in key}
    read_tokenizer(names | {key: value for key, value in metadata.items() if "." in key}, "here").save_pretrained(directory)
    return model, metadata


def _llama_cpp(directory: Path, model: Any, metadata: dict[str, Any]) -> Path:
    directory.mkdir()
    (directory / "convert_hf_to_gguf.py").write_text(SCRIPT)
    write_gguf(directory / "prepared.gguf", model, tokenizer=metadata)
    return directory


@pytest.mark.parametrize("name", WORD_RULES)
def test_a_rule_is_told_by_the_words_that_it_makes(name: str) -> None:
    metadata = {f"tokenizer.ggml.{key}": value for key, value in tiny_tokenizer(pre=name).items()}
    backend = read_tokenizer(metadata, "here").backend_tokenizer
    assert word_rule_of(backend, ADVERSARIAL_TEXTS) == name
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\p{L}+"), "isolated"), pre_tokenizers.ByteLevel(use_regex=False)]
    )
    assert word_rule_of(backend, ADVERSARIAL_TEXTS) is None


def test_a_file_that_says_the_same_is_kept(tmp_path: Path) -> None:
    model, metadata = _checkpoint(tmp_path / "hf", **{"tokenizer.chat_template": "{{ messages[0]['content'] }}"})
    (tmp_path / "hf/README.md").write_text("the card\n")
    llama_cpp = _llama_cpp(tmp_path / "llama.cpp", model, metadata)
    manifest = export(tmp_path / "hf", tmp_path / "gguf", llama_cpp=llama_cpp, kind="f32", texts=["čez drn in strn"])
    assert (llama_cpp / "rule").read_text() == "gpt-2"
    assert sorted(path.name for path in (tmp_path / "gguf").iterdir()) == ["README.md", "gguf-f32.gguf", "scion.json"]
    num_tensors = len(model.state_dict())
    assert manifest.facts["checked"][:2] == [f"{num_tensors} tensors bit for bit", "sizes and constants"]
    assert manifest.facts["checked"][2].startswith("token ids of ") and manifest.facts["checked"][3] == "chat template"
    assert read_manifest(tmp_path / "gguf") == manifest


def test_a_file_that_says_something_else_is_not_kept(tmp_path: Path) -> None:
    model, metadata = _checkpoint(tmp_path / "hf")
    with torch.no_grad():
        model.get_parameter("model.layers.1.self_attn.q_proj.weight")[3, 5] += 1e-3
    llama_cpp = _llama_cpp(tmp_path / "weights", model, metadata)
    sentence = r"layers\.1\.self_attn\.q_proj\.weight differs from that of .*hf by more than f32 rounds"
    with pytest.raises(ValueError, match=sentence):
        export(tmp_path / "hf", tmp_path / "gguf", llama_cpp=llama_cpp, kind="f32")
    tiny = tiny_model("llama2", vocab_size=280, intermediate_size=64)
    for folder, wrong, sentence in (
        ("merges", {"merges": metadata["merges"][:2]}, r"cuts .* into the ids"),
        ("start", {"add_bos_token": True}, r"with special tokens"),
        ("template", {"tokenizer.chat_template": "x"}, r"has another chat template"),
    ):
        with pytest.raises(ValueError, match=sentence):
            llama_cpp = _llama_cpp(tmp_path / folder, tiny, metadata | wrong)
            export(tmp_path / "hf", tmp_path / "gguf", llama_cpp=llama_cpp, kind="f32", texts=[demo_text("en")[:2000]])
    assert not (tmp_path / "gguf").exists()


def test_what_cannot_be_made_is_said_in_a_sentence(tmp_path: Path) -> None:
    _checkpoint(tmp_path / "hf")
    with pytest.raises(ValueError, match=r"convert_hf_to_gguf.py does not exist; give the folder of llama.cpp"):
        export(tmp_path / "hf", tmp_path / "gguf", llama_cpp=tmp_path)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "hf/tokenizer.json"))
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\p{L}+"), "isolated"), pre_tokenizers.ByteLevel(use_regex=False)]
    )
    tokenizer.save_pretrained(tmp_path / "hf")
    (tmp_path / "convert_hf_to_gguf.py").write_text(SCRIPT)
    with pytest.raises(ValueError, match=r"has a pre-tokenization rule that is neither in llama.cpp's list nor one of those known here"):
        export(tmp_path / "hf", tmp_path / "gguf", llama_cpp=tmp_path)
    (tmp_path / "convert_hf_to_gguf.py").write_text("def main():\n    raise SystemExit('no such model')\n")
    with pytest.raises(ValueError, match=r"convert_hf_to_gguf.py failed with exit code 1:\n    no such model"):
        export(tmp_path / "hf", tmp_path / "gguf", llama_cpp=tmp_path)
    with pytest.raises(
        ValueError, match=r"/seeing has more than a language model, which llama\.cpp has in a file of its own: save the lang"
    ):
        export(save_tiny_model("mistral3", tmp_path / "seeing"), tmp_path / "gguf", llama_cpp=tmp_path)
    train_tokenizer(Documents([ROOT / "recipes/demo_text/sl.heldout.txt"]), tmp_path / "unigram", vocab_size=400, kind="unigram")
    shutil.copyfile(tmp_path / "unigram/tokenizer.json", tmp_path / "hf/tokenizer.json")
    with pytest.raises(ValueError, match=r"is a Unigram model, which llama.cpp would cut by the merges of a BPE model"):
        export(tmp_path / "hf", tmp_path / "gguf", llama_cpp=tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["byte-level", "bpe"])
def test_the_known_converter_takes_our_tokenizers(kind: str, tmp_path: Path) -> None:
    """A Llama with a tokenizer of ours: read back by us and by transformers it computes the same logits, bit for bit."""
    if "SCION_LLAMA_CPP" not in os.environ:
        pytest.skip("SCION_LLAMA_CPP does not name the folder of llama.cpp's sources")
    train_tokenizer(Documents([ROOT / "recipes/demo_text/sl.train.txt"]), tmp_path / "tokenizer", vocab_size=1500, kind=kind)
    tiny_model("llama2", vocab_size=1504, intermediate_size=64).save_pretrained(tmp_path / "hf")
    for path in (tmp_path / "tokenizer").iterdir():
        shutil.copyfile(path, tmp_path / "hf" / path.name)
    (tmp_path / "hf/scion.json").unlink()
    texts = (ROOT / "recipes/demo_text/sl.train.txt").read_text(encoding="utf-8").splitlines()
    llama_cpp = Path(os.environ["SCION_LLAMA_CPP"])
    export(tmp_path / "hf", tmp_path / "gguf", llama_cpp=llama_cpp, kind="f32", texts=texts)
    from_gguf.convert(tmp_path / "gguf/gguf-f32.gguf", tmp_path / "back", dtype_name="float32")
    ids = torch.arange(40)[None] * 31 % 1500
    expected = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()(ids).logits
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float32).eval()(ids).logits
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "gguf", gguf_file="gguf-f32.gguf", dtype=torch.float32).eval()(ids).logits
    assert torch.equal(ours, expected) and torch.equal(theirs, expected)
    manifest = manifest_of(tmp_path / "gguf")
    assert json.dumps(manifest.facts["word_rule"]) in ('"gpt-2"', '"default"', "null")


@pytest.mark.long
@pytest.mark.parametrize("family", ["llama2", *(family for family in NEWER if family != "yarn")])
def test_the_known_converter_takes_every_family(family: str, tmp_path: Path) -> None:
    """Gemma 2 alone it takes with no tokenizer but SentencePiece's."""
    if "SCION_LLAMA_CPP" not in os.environ:
        pytest.skip("SCION_LLAMA_CPP does not name the folder of llama.cpp's sources")
    metadata = {f"tokenizer.ggml.{key}": value for key, value in tiny_tokenizer().items()}
    sizes = {"intermediate_size": 64, "vocab_size": 280} | ({"moe_intermediate_size": 32} if family == "qwen3_moe" else {})
    tiny_model(family, **sizes, **GRANTED.get(family, {})).save_pretrained(tmp_path / "hf")
    read_tokenizer(metadata, "here").save_pretrained(tmp_path / "hf")
    for kind in ("f32", "bf16"):
        export(tmp_path / "hf", tmp_path / kind, llama_cpp=Path(os.environ["SCION_LLAMA_CPP"]), kind=kind)
    from_gguf.convert(tmp_path / "f32/f32-f32.gguf", tmp_path / "back", dtype_name="float32")
    ids = torch.arange(40)[None] * 31 % 280
    before, after = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32).eval()(ids).logits for name in ("hf", "back")
    )
    assert torch.allclose(before, after, atol=1e-5 if "gemma" in family else 0, rtol=0)
