from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentencepiece import SentencePieceProcessor
from transformers import AutoModelForCausalLM, AutoTokenizer

from common.artifacts import read_manifest
from conversion.checkpoints.hf_checkpoint import HFCheckpoint
from conversion.from_gguf import main
from conversion.gguf.file import GGUFFile
from conversion.gguf.rounding import smallest_steps
from tests.conftest import Inputs
from tests.conversion.embedding_fixtures import byte_level, demo_text
from tests.conversion.folders import manifest_of
from tests.conversion.gguf_files import write_gguf
from tests.conversion.tiny_families import tiny_model

# llama.cpp has no OPT, and no head of an encoder.
FAMILIES = ["llama2", "mistral", "gemma2", "qwen2", "qwen3"]
NEWER = ["yarn", "qwen3_moe", "gemma3_text", "smollm3", "olmo2", "olmo3", "apertus", "granite", "gpt_oss", "ministral3"]
# What llama.cpp takes for granted of an architecture, and its files do not say.
GRANTED = {
    "gemma3_text": {"sliding_window_pattern": 6, "num_hidden_layers": 7, "query_pre_attn_scalar": 12, "rope_local_base_freq": 10000.0},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]},
    "apertus": {"rope_scaling": None},
}
EVEN_ROWS = {"intermediate_size": 64, "vocab_size": 280}  # quantized rows are of 32 values or a multiple; as many rows as tokens


def tiny_tokenizer(**changes: Any) -> dict[str, Any]:
    """The metadata of a byte-level tokenizer that is small enough for every tiny model."""
    tokenizer = byte_level(demo_text("en")[:5000], num_tokens=280, specials={"bos": "<s>", "eos": "</s>"})
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    kinds = [3 if token in ("<s>", "</s>") else 1 for token in tokens]
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in model["merges"]]
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    return {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": kinds, "merges": merges, **ids, **changes}


def convert(path: Path, output: Path, *options: str) -> HFCheckpoint:
    assert main(["--input", str(path), "--output", str(output), *options]) == 0
    return HFCheckpoint.open(output)


@pytest.mark.some(6)
@pytest.mark.parametrize("family", FAMILIES + NEWER)
def test_every_family_comes_back_bit_for_bit_and_computes_the_same(family: str, tmp_path: Path) -> None:
    model = tiny_model(family, **GRANTED.get(family, {}))
    write_gguf(tmp_path / "model.gguf", model, tokenizer=tiny_tokenizer())
    checkpoint = convert(tmp_path / "model.gguf", tmp_path / "hf", "--dtype", "float32")
    expected = {
        name: tensor for name, tensor in model.state_dict().items() if not (model.config.tie_word_embeddings and name == "lm_head.weight")
    }
    assert set(checkpoint.names()) == set(expected)
    for name, tensor in expected.items():
        # Gemma's norms are stored plus one, which costs their last bits.
        assert torch.allclose(checkpoint.tensor(name), tensor, atol=2.4e-7 if "gemma" in family and "norm" in name else 0, rtol=0), name
    ids = torch.arange(40)[None] % 250
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()
    assert type(loaded) is type(model)
    if family == "gemma2":  # the file has no key for the scale of the queries: it follows from the size of the model
        assert loaded.config.query_pre_attn_scalar == model.config.head_dim
    elif family == "gemma3_text":
        assert torch.allclose(loaded(ids).logits, model(ids).logits, atol=1e-5)
    else:
        model.save_pretrained(tmp_path / "source")  # Apertus's class rounds its constants where it is made
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "source", dtype=torch.float32).eval()
        assert torch.equal(loaded(ids).logits, again(ids).logits)


def test_all_parts_of_a_file_are_read(tmp_path: Path) -> None:
    model = tiny_model("llama2")
    write_gguf(tmp_path / "whole.gguf", model, tokenizer=tiny_tokenizer())
    write_gguf(tmp_path / "parts.gguf", model, tokenizer=tiny_tokenizer(), tensors_of_a_part=8)
    first, *others = sorted(tmp_path.glob("parts-*.gguf"))
    expected, found = convert(tmp_path / "whole.gguf", tmp_path / "a"), convert(others[0], tmp_path / "b")
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    assert found.config == expected.config and set(read_manifest(tmp_path / "b").inputs) == {part.name for part in (first, *others)}
    others[0].unlink()
    with pytest.raises(ValueError, match=f"^{first} is one of {len(others) + 1} parts, and {others[0].name} is not beside it; copy"):
        convert(first, tmp_path / "c")


def test_parts_of_experts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for family, key, sentence in (
        ("qwen3_moe", "expert_count", r"blk\.0\.ffn_.*_exps\.weight have the shape \(6, .*expected those of 5 experts"),
        ("gpt_oss", "expert_count", r"have the shape \(6, .*expected those of 5 experts"),
    ):
        write_gguf(tmp_path / "model.gguf", tiny_model(family), tokenizer=tiny_tokenizer(), metadata={key: 5})
        with pytest.raises(ValueError, match=sentence):
            main(["--input", str(tmp_path / "model.gguf"), "--output", str(tmp_path / "hf")])
        assert not (tmp_path / "hf").exists()


def test_windows_are_where_the_file_or_llama_cpp_has_them(tmp_path: Path) -> None:
    for pattern, expected in (({}, "ssfs"), ({"attention.sliding_window_pattern": [True, False, True, False]}, "sfsf")):
        write_gguf(tmp_path / "model.gguf", tiny_model("olmo3"), tokenizer=tiny_tokenizer(), metadata=pattern)
        checkpoint = convert(tmp_path / "model.gguf", tmp_path / f"hf_{expected}")
        assert "".join(kind[0] for kind in checkpoint.config["layer_types"]) == expected


@pytest.mark.some(6)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "F16"])
def test_quantized_values_are_those_that_transformers_reads(family: str, kind: str, tmp_path: Path) -> None:
    head_dim = {"head_dim": 128} if family == "qwen3" else {}  # their reader takes the default, whatever the file says
    write_gguf(tmp_path / "model.gguf", tiny_model(family, **EVEN_ROWS, **head_dim), kind=kind, tokenizer=tiny_tokenizer())
    checkpoint = convert(tmp_path / "model.gguf", tmp_path / "hf", "--dtype", "float32")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32).state_dict()
    for name in checkpoint.names():
        assert torch.equal(checkpoint.tensor(name), theirs[name]), name


def test_llama_3_positions_are_found_from_their_factors(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = tiny_model("llama3", rope_theta=500000.0, rope_scaling=dict(scaling), max_position_embeddings=131072, head_dim=64)
    write_gguf(tmp_path / "model.gguf", model, tokenizer=tiny_tokenizer())
    checkpoint = convert(tmp_path / "model.gguf", tmp_path / "hf", "--dtype", "float32")
    assert checkpoint.config["rope_scaling"] == scaling
    other = tiny_model("llama3", rope_scaling={**scaling, "high_freq_factor": 9.0}, rope_theta=500000.0, head_dim=64)
    write_gguf(tmp_path / "other.gguf", other, tokenizer=tiny_tokenizer())
    with pytest.raises(ValueError, match=r"rope_freqs\.weight.* that are not those of Llama 3\.1"):
        main(["--input", str(tmp_path / "other.gguf"), "--output", str(tmp_path / "no")])
    assert not (tmp_path / "no").exists()


def test_dtype_and_what_was_lost_are_in_the_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("llama2", **EVEN_ROWS), kind="Q4_1", tokenizer=tiny_tokenizer())
    checkpoint = convert(tmp_path / "model.gguf", tmp_path / "hf")
    assert {str(checkpoint.dtype(name)) for name in checkpoint.names()} == {"torch.bfloat16"}
    assert checkpoint.config["torch_dtype"] == "bfloat16"
    manifest = manifest_of(tmp_path / "hf")
    lost = manifest.facts["quantization"]
    assert lost["F32"]["rounding_share"] is None
    assert lost["Q4_1"]["bits_per_weight"] == 5.0
    # 16 steps over the range of 32 values of one normal distribution, about 4 deviations wide, beside a root mean square that 0.1 adds to.
    assert 0.05 < lost["Q4_1"]["rounding_share"] < 0.11
    assert "Q4_1: 30 tensors, 5.0 bits a weight" in capsys.readouterr().out


def test_the_rounding_share_is_what_rounding_costs() -> None:
    generator = np.random.default_rng(0)
    weights = generator.normal(size=(4096, 32))
    low, high = weights.min(1, keepdims=True), weights.max(1, keepdims=True)
    step = (high - low) / 15
    rounded = low + np.round((weights - low) / step) * step
    measured = np.sqrt(((weights - rounded) ** 2).mean())
    assert np.sqrt((smallest_steps(rounded) ** 2).mean() / 12) == pytest.approx(measured, rel=0.06)
    assert smallest_steps(np.ones((2, 32))).tolist() == [0, 0]


_WHOLE, _THREES, _ONES = ["inNe", "Ġ12345", "Ġ12", "/", "Ċ"], ["Ġ", "123", "45", "Ġ", "12", "/Ċ"], ["Ġ", *"12345", "Ġ", *"12"]


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        *((pre, _WHOLE) for pre in ("gpt-2", "olmo")),
        *((pre, ["inNe", *_ONES, "/", "Ċ"]) for pre in ("smollm", "refact")),
        *((pre, ["inNe", *_THREES]) for pre in ("llama-bpe", "dbrx", "smaug-bpe")),
        ("qwen2", ["inNe", *_ONES, "/Ċ"]),
        ("gpt-4o", ["in", "Ne", *_THREES]),
        ("tekken", ["in", "Ne", *_ONES, "/Ċ"]),
    ],
)
def test_byte_level_tokenizers_are_whole(pre: str, words: list[str], tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(pre=pre, **{"tokenizer.chat_template": "{{ messages[0]['content'] }}"})
    write_gguf(tmp_path / "model.gguf", tiny_model("llama2"), tokenizer=tokenizer)
    convert(tmp_path / "model.gguf", tmp_path / "hf")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "hf")
    text = "  two  spaces\n\nnew line 12345 don't, <s> c\u030cs\u030cz\u030c čšž 漢字"
    ids = loaded(text, add_special_tokens=False).input_ids
    expected = "  two  spaces\n\nnew line 12345 don't, <s> čšž čšž 漢字" if pre == "qwen2" else text
    assert loaded.decode(ids) == expected
    assert loaded.bos_token_id in ids
    assert loaded(text).input_ids == ([loaded.bos_token_id, *ids] if pre in ("llama-bpe", "tekken") else ids)
    assert [word for word, _ in loaded.backend_tokenizer.pre_tokenizer.pre_tokenize_str("inNe 12345 12/\n")] == words
    assert loaded.apply_chat_template([{"role": "user", "content": "hej"}], tokenize=False) == "hej"
    assert (loaded.bos_token, loaded.eos_token, loaded.model_max_length) == ("<s>", "</s>", 64)


def sentencepiece_metadata(model: SentencePieceProcessor) -> dict[str, Any]:
    ids = range(model.get_piece_size())
    kinds = [2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1 for i in ids]
    roles = {"bos_token_id": model.bos_id(), "eos_token_id": model.eos_id(), "unknown_token_id": model.unk_id()}
    return {
        "model": "llama", "tokens": [model.id_to_piece(i) for i in ids], "scores": [model.get_score(i) for i in ids], "token_type": kinds, **roles
    }  # fmt: skip


def test_sentencepiece_tokenizers_give_the_ids_of_sentencepiece(inputs: Inputs, tmp_path: Path) -> None:
    model = SentencePieceProcessor(model_file=str(inputs.tokenizer / "tokenizer.model"))
    tokenizer = sentencepiece_metadata(model)
    write_gguf(tmp_path / "model.gguf", tiny_model("llama2", vocab_size=model.get_piece_size()), tokenizer=tokenizer)
    convert(tmp_path / "model.gguf", tmp_path / "hf")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "hf")
    for text in (demo_text("sl")[:3000], " two  spaces 12345", "\n\n漢字"):
        assert loaded(text).input_ids == [model.bos_id(), *model.encode(text)]
    assert loaded.bos_token == model.id_to_piece(model.bos_id())


def test_another_tokenizer_may_be_given(inputs: Inputs, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("llama2", vocab_size=601))
    with pytest.raises(ValueError, match=r"holds no tokenizer \(tokenizer\.ggml\.tokens\); give a folder that has it by --tokenizer"):
        main(["--input", str(tmp_path / "model.gguf"), "--output", str(tmp_path / "hf")])
    convert(tmp_path / "model.gguf", tmp_path / "hf", "--tokenizer", str(inputs.tokenizer))
    write_gguf(tmp_path / "small.gguf", tiny_model("llama2"))
    with pytest.raises(ValueError, match=r"the tokenizer needs 601 rows, but .* has 283"):
        main(["--input", str(tmp_path / "small.gguf"), "--output", str(tmp_path / "no"), "--tokenizer", str(inputs.tokenizer)])


@pytest.mark.parametrize(
    ("changes", "metadata", "sentence"),
    [
        ({"pre": "falcon"}, {}, "has the pre-tokenization rule 'falcon'"),
        ({"model": "bert"}, {}, "has a tokenizer of the kind 'bert'; known are gpt2 and llama"),
        ({"merges": ["a bcd"]}, {}, "has 1 merges of what are not two tokens"),
        ({"token_type": [1, 1]}, {}, "with 2 types"),
        ({"eos_token_id": 100000}, {}, "names eos_token 100000"),
        ({"model": "llama"}, {}, "has no score for each of its"),
        ({}, {"expert_count": 8}, "is a mixture of 8 experts"),
        ({}, {"rope.scaling.type": "longrope"}, "scales its rotary positions by the type 'longrope'"),
        ({}, {"rope.scaling.type": "yarn"}, "has no length that its YaRN begins from"),
        ({}, {"rope.scaling.finetuned": False}, "does without rotary positions"),
        ({}, {"block_count": 3}, r"has blk\.\*\.attn_q.* which llama does not have"),
        ({}, {"block_count": 5}, r"lacks blk\.\*\.attn_q"),
    ],
)
def test_what_is_not_covered_is_refused_by_name(changes: dict[str, Any], metadata: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("llama2"), tokenizer=tiny_tokenizer(**changes), metadata=metadata)
    with pytest.raises(ValueError, match=sentence):
        main(["--input", str(tmp_path / "model.gguf"), "--output", str(tmp_path / "hf")])
    assert not (tmp_path / "hf").exists()


def test_damaged_and_hostile_files_are_refused_before_work_is_done_for_them(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, tiny_model("llama2"), tokenizer=tiny_tokenizer())
    whole = path.read_bytes()
    hostile = {
        "text": b"hello world",
        "empty": b"",
        "version": whole[:4] + struct.pack("<I", 99) + whole[8:],
        "tensors": whole[:8] + struct.pack("<Q", 1 << 60) + whole[16:],
        "keys": whole[:16] + struct.pack("<Q", 1 << 60) + whole[24:],
        "long_list": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, 4, 1 << 60),
        "long_texts": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, 8, 1 << 60),
        "lists_in_lists": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, 9, 1),
        **{f"cut_{place}": whole[:place] for place in (9, 24, 100, 2000, len(whole) // 2, len(whole) - 1)},
    }
    for name, content in hostile.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"is not a GGUF file|version 99|is corrupt or truncated"):
            GGUFFile.open(path)
        assert not (tmp_path / "hf").exists(), name


def test_types_that_cannot_be_dequantized_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, tiny_model("llama2"), tokenizer=tiny_tokenizer())
    name = b"token_embd.weight"
    data = bytearray(path.read_bytes())
    place = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name) + 4 + 2 * 8
    data[place : place + 4] = struct.pack("<I", 26)  # I32, of the same width
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"1 tensors of types that cannot be dequantized, such as token_embd\.weight \(I32\); take a file"):
        GGUFFile.open(path)
