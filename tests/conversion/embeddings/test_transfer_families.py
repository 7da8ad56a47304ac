"""The command on tiny random models of each family, saved and loaded by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from conversion.checkpoints.hf_checkpoint import HFCheckpoint
from conversion.checkpoints.hf_files import tied_by_config
from conversion.checkpoints.token_names import TOKEN_NAMES
from conversion.transfer import main
from data_prep.tokenizers.files import load_tokenizer
from tests.conversion.embedding_fixtures import byte_level, demo_text, sentencepiece_like, unigram
from tests.conversion.folders import edited_tensors
from tests.refusals import refused

PADDING = 5
_LLAMA = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
_NEOX = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 96}
_BERT = _NEOX | {"max_position_embeddings": 98, "type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
# Of the families with names of their own for what has a row per token: model class, sizes, whether the library ties by default.
FAMILIES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 24, "n_layer": 2, "n_head": 2, "n_positions": 96}, True),
    "gpt_neox": ("GPTNeoXForCausalLM", _NEOX, False),
    "bloom": ("BloomForCausalLM", {"hidden_size": 24, "n_layer": 2, "n_head": 2}, True),
    "llama": ("LlamaForCausalLM", _LLAMA, False),
    "gemma2": ("Gemma2ForCausalLM", _LLAMA | {"head_dim": 12, "query_pre_attn_scalar": 12}, True),
    "falcon": ("FalconForCausalLM", {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}, True),
    "phi": ("PhiForCausalLM", _LLAMA | {"num_key_value_heads": 2}, False),  # whose head has a bias
    "roberta": ("RobertaForMaskedLM", _BERT, True),
    "xlm-roberta": ("XLMRobertaForMaskedLM", _BERT, True),
    "bert": ("BertForMaskedLM", _BERT, True),
}
MASKED = ("roberta", "xlm-roberta", "bert")
UNTIED_NAMES = {"roberta": "lm_head.decoder.weight", "bert": "cls.predictions.decoder.weight"}
ROBERTA_SPECIALS = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}


def source_tokenizer(family: str) -> PreTrainedTokenizerFast:
    if family in MASKED:
        return byte_level(demo_text("en"), num_tokens=500, specials=ROBERTA_SPECIALS)
    return byte_level(demo_text("en"), num_tokens=500, specials={"bos": "</s>", "eos": "</s>", "pad": "<pad>"})


def save_model(family: str, directory: Path, *, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    class_name, sizes, _ = FAMILIES[family]
    tokenizer = source_tokenizer(family)
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=len(tokenizer) + PADDING, **(sizes | changes))
    model = getattr(transformers, class_name)(config)
    for parameter in model.parameters():
        parameter.data.normal_(mean=0.02, std=0.2)
    model.to(dtype).save_pretrained(directory)
    tokenizer.save_pretrained(str(directory))
    return directory


def load(directory: Path, family: str, **options: Any) -> Any:
    return (AutoModelForMaskedLM if family in MASKED else AutoModelForCausalLM).from_pretrained(str(directory), **options).eval()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Specials in RoBERTa's order, so that it serves all."""
    directory = tmp_path_factory.mktemp("families") / "target"
    sentencepiece_like(demo_text("sl")[:30_000], num_tokens=400, specials=ROBERTA_SPECIALS).save_pretrained(str(directory))
    return directory


def transfer(source: Path, output: Path, target: Path, *options: str) -> None:
    main(["--source", str(source), "--tokenizer", str(target), "--method", "mean", "--output", str(output), *options])


@pytest.mark.some(6)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str, target: Path, tmp_path: Path) -> None:
    source = save_model(family, tmp_path / "source")
    checkpoint = HFCheckpoint.open(source)
    assert checkpoint.tie_word_embeddings == FAMILIES[family][2]
    transfer(source, tmp_path / "out", target)
    before, after = load_file(source / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    num_old, num_new = len(source_tokenizer(family)) + PADDING, len(load_tokenizer(target))
    assert list(after) == list(before)
    per_token = [name for name, tensor in before.items() if num_old in tensor.shape]
    assert [name for name, tensor in after.items() if num_new in tensor.shape] == per_token
    assert all(torch.equal(after[name], before[name]) for name in before if name not in per_token)
    report = json.loads((tmp_path / "out" / "transfer.json").read_text())
    copied = {entry["id"]: entry["sources"][0][0] for entry in report["tokens"] if entry["origin"] in ("copied", "special")}
    assert len(copied) > 100
    for name in per_token:
        assert torch.equal(after[name][list(copied)], before[name][list(copied.values())])
    model = load(tmp_path / "out", family)
    output = model.get_output_embeddings().weight
    assert (output.data_ptr() == model.get_input_embeddings().weight.data_ptr()) == FAMILIES[family][2]
    with torch.no_grad():
        logits = model(torch.arange(4, 30)[None]).logits
    assert logits.shape[-1] == num_new and torch.isfinite(logits).all()


@pytest.mark.some(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_expansion_leaves_the_logits_of_old_tokens(family: str, tmp_path: Path) -> None:
    source = save_model(family, tmp_path / "source")
    (tmp_path / "sl.txt").write_text(demo_text("sl")[:20_000])
    options = ["--vocabulary", "expand", "--new-tokens", "20", "--text", str(tmp_path / "sl.txt"), "--method", "mean"]
    main(["--source", str(source), "--output", str(tmp_path / "out"), *options])
    num_old = len(source_tokenizer(family))
    ids = torch.arange(5, 35)[None]
    with torch.no_grad():
        expected, found = (load(directory, family)(ids).logits for directory in (source, tmp_path / "out"))
    assert found.shape[-1] == num_old + 20
    # The product may sum in blocks of another shape.
    torch.testing.assert_close(found[..., :num_old], expected[..., :num_old], atol=1e-5, rtol=0)


@pytest.mark.some(3)
@pytest.mark.parametrize("family", ["gpt2", "bloom", "gemma2", "falcon", "roberta", "bert"])
def test_output_layer_of_its_own_gets_the_name_of_the_family(family: str, target: Path, tmp_path: Path) -> None:
    source = save_model(family, tmp_path / "source")
    transfer(source, tmp_path / "out", target, "--output-layer", "random")
    model = load(tmp_path / "out", family)
    name = HFCheckpoint.open(tmp_path / "out").output_name
    assert name == UNTIED_NAMES.get(family, "lm_head.weight")
    drawn = load_file(tmp_path / "out" / "model.safetensors")[name]
    assert torch.equal(model.get_output_embeddings().weight, drawn)
    assert not torch.equal(drawn, model.get_input_embeddings().weight)


@pytest.mark.parametrize("family", ["gpt_neox", "roberta"])
def test_untied_and_tied_against_the_default(family: str, target: Path, tmp_path: Path) -> None:
    tied = not FAMILIES[family][2]
    source = save_model(family, tmp_path / "source", tie_word_embeddings=tied)
    assert HFCheckpoint.open(source).tie_word_embeddings == tied
    transfer(source, tmp_path / "out", target)
    model = load(tmp_path / "out", family)
    assert (model.get_output_embeddings().weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()) == tied


def test_files_that_hold_a_tied_matrix_twice(target: Path, tmp_path: Path) -> None:
    """As RoBERTa's published files do; the bias comes under two names too."""
    source = save_model("roberta", tmp_path / "source")
    with edited_tensors(source) as tensors:
        tensors["lm_head.decoder.weight"] = tensors["roberta.embeddings.word_embeddings.weight"].clone()
        tensors["lm_head.decoder.bias"] = tensors["lm_head.bias"].clone()
    assert "lm_head.decoder.weight" not in HFCheckpoint.open(source).untied_tensors()
    transfer(source, tmp_path / "out", target)
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert "lm_head.decoder.weight" not in after and torch.equal(after["lm_head.bias"], after["lm_head.decoder.bias"])
    assert len(after["lm_head.bias"]) == len(load_tokenizer(target))


def test_masked_model_still_finds_the_mask(target: Path, tmp_path: Path) -> None:
    source = save_model("roberta", tmp_path / "source")
    transfer(source, tmp_path / "out", target)
    before, after = (
        load_file(folder / "model.safetensors")["roberta.embeddings.word_embeddings.weight"] for folder in (source, tmp_path / "out")
    )
    tokenizers = load_tokenizer(source), load_tokenizer(tmp_path / "out")
    for role in ("mask", "cls", "sep", "pad", "bos", "eos"):
        ids = [getattr(tokenizer, f"{role}_token_id") for tokenizer in tokenizers]
        assert (ids[0] is None and ids[1] is None) or torch.equal(before[ids[0]], after[ids[1]])


def test_another_padding_id_is_refused_where_positions_count_from_it(tmp_path: Path) -> None:
    source = save_model("roberta", tmp_path / "source")
    unigram(demo_text("sl")[:20_000], num_tokens=300).save_pretrained(str(tmp_path / "target"))
    with refused(
        f"{source} is a roberta model, which counts positions from its padding token, id 1, but the target tokenizer has it at 2;"
        " give a tokenizer with the padding token at 1"
    ):
        transfer(source, tmp_path / "out", tmp_path / "target")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_dtype_is_kept(dtype: torch.dtype, target: Path, tmp_path: Path) -> None:
    source = save_model("llama", tmp_path / "source", dtype=dtype)
    transfer(source, tmp_path / "out", target)
    before, after = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "out"))
    assert {name: tensor.dtype for name, tensor in after.items()} == {name: tensor.dtype for name, tensor in before.items()}


def test_quantised_matrices_are_refused(target: Path, tmp_path: Path) -> None:
    source = save_model("llama", tmp_path / "source")
    with edited_tensors(source) as tensors:
        tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.int8)
    with refused(
        f"{source}: lm_head.weight is of type int8; expected float16, bfloat16, float32, float64: give the model as it was before it was quantised"
    ):
        transfer(source, tmp_path / "out", target)


def test_tables_agree_with_the_library() -> None:
    """For every type of causal language model that the library knows."""
    wrong = []
    for model_type in (*FAMILIES, *MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        try:
            tied = bool(CONFIG_MAPPING[model_type]().tie_word_embeddings)
        except ValueError:  # of several models, whose configurations have to be given
            continue
        if tied_by_config({"model_type": model_type}) != tied:
            wrong.append(model_type)
    assert not wrong
    assert len({row.input for row in TOKEN_NAMES}) == len(TOKEN_NAMES)
