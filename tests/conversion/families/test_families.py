from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, AutoConfig, OPTConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from conversion import hf_to_nemo
from conversion.checkpoints.hf_checkpoint import HFCheckpoint
from conversion.checkpoints.hf_files import DEFAULT_ROPE_SCALING, in_words_of_both, load_config
from conversion.checkpoints.hf_model import inspect_checkpoint
from conversion.families import FAMILIES, OTHERS, family_of
from conversion.inspection import describe
from conversion.layouts import megatron_bridge
from conversion.layouts.megatron_bridge import run_config
from conversion.layouts.megatron_lm import not_expressible
from conversion.measuring.observation import observe_hf, token_batch
from conversion.verify import Side
from nemo_patches.rotations import slow_by_length, yarn_frequencies
from recipes.planner.parameters import count_parameters
from recipes.rules.base_models import base_model
from tests.conversion.folders import edited_tensors, there_and_back
from tests.conversion.tiny_families import CASES, LLAMA3_ROPE, PUBLISHED, SIZES, save_tiny_model
from tests.refusals import refused


def opt_config(**changes: Any) -> dict[str, Any]:
    return {**OPTConfig().to_dict(), **changes}


def refuse(config: dict[str, Any], sentence: str, *, family: str = "opt") -> None:
    with refused(sentence):
        FAMILIES[family].megatron_config(config, tied=True, source="models/x")


def test_opt_in_megatrons_words() -> None:
    config = opt_config(num_hidden_layers=24, hidden_size=2048, word_embed_proj_dim=2048, ffn_dim=8192, num_attention_heads=32)
    assert FAMILIES["opt"].megatron_config(config, tied=False, source="models/x") == {
        "num_layers": 24,
        "hidden_size": 2048,
        "ffn_hidden_size": 8192,
        "num_attention_heads": 32,
        "num_query_groups": 32,
        "max_position_embeddings": 2048,
        "vocab_size": 50272,
        "init_method_std": 0.02,
        "layernorm_epsilon": 1e-5,
        "share_embeddings_and_output_weights": False,
    }


def _in_megatrons_words(model_type: str, config: dict[str, Any]) -> dict[str, Any]:
    found = FAMILIES[model_type].megatron_config(config, tied=False, source="models/x")
    return {"kv_channels": found["hidden_size"] // found["num_attention_heads"], **found}  # Megatron's own default


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize("missing", ["absent", "null"])
def test_a_missing_key_means_what_transformers_means(model_type: str, missing: str) -> None:
    """Each key of the class, one at a time, is left out or null; what the class makes of that is told in full."""
    kind = CONFIG_MAPPING[model_type]
    [case, *_] = (case for case in CASES.values() if case.model_type == model_type)
    for config in ({**SIZES, **copy.deepcopy(case.config)}, {}):  # transformers 5 writes into what it is given
        whole = {**kind(**config).to_dict(), "model_type": model_type}
        compared = 0
        for key in (name for name in whole if name != "model_type"):
            said = copy.deepcopy({name: value for name, value in whole.items() if name != key} | ({key: None} if missing == "null" else {}))
            try:
                meant = kind(**said).to_dict()
            except StrictDataclassError:  # of transformers 5, which has types for its keys
                compared += 1
                continue
            except (TypeError, ValueError, AttributeError):
                continue  # the library has no meaning for it either
            try:
                found = _in_megatrons_words(model_type, said)
            except ValueError:
                if missing == "absent":  # what it means is not a model that is covered
                    with pytest.raises(ValueError):
                        _in_megatrons_words(model_type, meant)
                continue
            assert found == _in_megatrons_words(model_type, meant), key
            compared += 1
        assert compared >= 20


def test_an_empty_config_means_what_transformers_means() -> None:
    for model_type in FAMILIES:
        whole = CONFIG_MAPPING[model_type]().to_dict()
        assert _in_megatrons_words(model_type, {"model_type": model_type}) == _in_megatrons_words(model_type, whole)


@pytest.mark.parametrize("name", ["qwen2-7b", "qwen3-8b"])
@pytest.mark.parametrize(
    "said",
    [
        {"max_window_layers": 5},
        {"max_window_layers": 0},
        {"max_window_layers": 100},
        {"sliding_window": None},
        {"use_sliding_window": False},
        {"layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"] * 9},
    ],
)
def test_windows_of_qwen_are_those_of_transformers(name: str, said: dict[str, Any]) -> None:
    config = {**PUBLISHED[name], "num_hidden_layers": 36, "use_sliding_window": True, "sliding_window": 100, **said}
    meant = AutoConfig.for_model(**config).layer_types
    found = FAMILIES[config["model_type"]].megatron_config(config, tied=False, source="x")
    windows = found.get("window_attn_skip_freq", [int("window_size" in found)] * 36)
    assert windows == [int(kind == "sliding_attention") for kind in meant]
    assert found.get("window_size", [99, 0]) == [99, 0]


@pytest.mark.parametrize("attention", [True, False, None])
@pytest.mark.parametrize("mlp", [True, False, None])
def test_biases_of_llama(attention: bool | None, mlp: bool | None) -> None:
    """With those of the attention, those of the feed-forward part or none; null is false, as for transformers."""
    config = {**PUBLISHED["llama-2-7b"], "attention_bias": attention, "mlp_bias": mlp}
    if mlp and not attention:
        sentence = "mlp_bias is true in config.json and attention_bias is not: models with biases in the feed-forward layers alone are not supported"
        refuse(config, sentence, family="llama")
        return
    found = FAMILIES["llama"].megatron_config(config, tied=False, source="x")
    switches = (found.get("add_qkv_bias", False), found.get("add_proj_bias", False), found["add_bias_linear"])
    assert switches == (bool(attention), bool(attention), bool(mlp))
    assert not attention or ("add_proj_bias" in not_expressible(found) and "biases" in str(megatron_bridge.refused(found)))


def test_llama_3_1_in_megatrons_words() -> None:
    """With all four numbers of its rotary positions; as transformers 4 writes them, and so that 4 and 5 read them."""
    said = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    earlier = {**PUBLISHED["llama-3.1-8b"], "rope_theta": 500000.0, "rope_scaling": said}
    found = FAMILIES["llama"].megatron_config(earlier, tied=False, source="models/x")
    expected = {"rotary_base": 500000.0, "scale_factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "old_context_len": 8192}
    expected |= {"num_query_groups": 8, "layernorm_epsilon": 1e-5, "init_method_std": 0.02, "max_position_embeddings": 131072}
    assert {key: found[key] for key in expected} == expected
    both = {**earlier, "rope_parameters": {**said, "rope_theta": 500000.0}}
    assert FAMILIES["llama"].megatron_config(both, tied=False, source="models/x") == found


ROTATIONS_OF_5 = {
    "base": ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, {"rope_theta": 5e5}),
    "scaling": (
        {"rope_parameters": {**LLAMA3_ROPE, "rope_theta": 5e3}},
        {"rope_theta": 5e3, "rope_scaling": LLAMA3_ROPE},
    ),
    "by its older name": (
        {"rope_scaling": {**LLAMA3_ROPE, "rope_theta": 5e3}},
        {"rope_theta": 5e3, "rope_scaling": LLAMA3_ROPE},
    ),
}


@pytest.mark.parametrize("name", ROTATIONS_OF_5)
def test_rotary_positions_in_the_words_of_transformers_5(name: str, tmp_path: Path) -> None:
    """Every command reads them, whichever version is installed, and what is written says them in the words of both."""
    said, older = ROTATIONS_OF_5[name]
    model = save_tiny_model("llama2", tmp_path / "hf") / "config.json"
    config = {key: value for key, value in json.loads(model.read_text()).items() if not key.startswith("rope")}
    model.write_text(json.dumps({**config, **older}))
    ids = token_batch([], vocab_size=283, length=24)
    expected = observe_hf(tmp_path / "hf", ids).whole["logits"]
    model.write_text(json.dumps({**config, **said}))
    assert HFCheckpoint.open(tmp_path / "hf").config == {**config, **older, **said}
    assert torch.equal(observe_hf(tmp_path / "hf", ids).whole["logits"], expected)
    assert describe(tmp_path / "hf").problems == []
    family = FAMILIES["llama"]
    same = (family.megatron_config({**config, **words}, tied=False, source="x") for words in (older, said))
    assert next(same) == next(same)
    there_and_back(tmp_path / "hf", tmp_path)
    assert json.loads((tmp_path / "back/config.json").read_text()) == {**config, **older, **said}


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, '"rope_theta": 500000.0'),
        ({"rope_parameters": LLAMA3_ROPE}, f'"rope_scaling": {json.dumps(LLAMA3_ROPE)}'),
        (
            {"rope_parameters": {**LLAMA3_ROPE, "rope_theta": 5e5}},
            f'"rope_theta": 500000.0 and "rope_scaling": {json.dumps(LLAMA3_ROPE)}',
        ),
        ({"rope_scaling": {**LLAMA3_ROPE, "rope_theta": 5e5}}, '"rope_theta": 500000.0'),
    ],
)
def test_rotary_positions_that_two_versions_would_read_differently(said: dict[str, Any], advice: str, tmp_path: Path) -> None:
    """Such a folder is refused wherever one is opened: no command may take one value and evaluation another."""
    where = next(iter(said))
    sentence = (
        f"has a config.json whose {where}, which transformers 5 reads, contradicts its other keys, which transformers 4 reads;"
        f" add {advice} if {where} is right, otherwise correct {where}"
    )
    older = {"rope_theta": 10000.0, "rope_scaling": None}
    refuse({**PUBLISHED["llama-2-7b"], **older, **said}, f"models/x {sentence}", family="llama")
    save_tiny_model("llama2", tmp_path / "hf")
    path = tmp_path / "hf/config.json"
    config = {key: value for key, value in json.loads(path.read_text()).items() if key != "rope_parameters"}
    path.write_text(json.dumps({**config, **older, **said}))
    for look in (HFCheckpoint.open, lambda directory: inspect_checkpoint(directory, name="x"), Side.open, load_config):
        with refused(f"{path.parent} {sentence}"):
            look(path.parent)
    assert f"{path.parent} {sentence}" in describe(path.parent).problems


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_two_types_of_rotary_positions_are_refused(key: str) -> None:
    rope = {"type": "linear", "rope_type": "dynamic", "factor": 2.0}
    for family, told in (("llama", rope), ("gemma3_text", {"full_attention": rope, "sliding_attention": {"rope_type": "default"}})):
        with pytest.raises(ValueError, match=rf"whose {key} says type 'linear' and rope_type 'dynamic', of which each version"):
            FAMILIES[family].megatron_config({**PUBLISHED["llama-2-7b"], key: told}, tied=False, source="x")


def test_swish_is_another_word_for_silu() -> None:
    config = {**PUBLISHED["llama-2-7b"], "hidden_act": "swish"}
    assert FAMILIES["llama"].megatron_config(config, tied=False, source="x")["activation_func"] == "silu"


def test_layers_without_rotations_are_told_one_by_one() -> None:
    """As transformers reads them: the list, of which more than the layers may be there, or every n-th."""
    config = PUBLISHED["smollm3-3b"]
    listed = FAMILIES["smollm3"].megatron_config({**config, "no_rope_layers": [0, 1] * 20}, tied=True, source="x")
    assert listed["no_rope_freq"] == [1, 0] * 18
    counted = FAMILIES["smollm3"].megatron_config({**config, "no_rope_layers": None, "no_rope_layer_interval": 3}, tied=True, source="x")
    assert counted["no_rope_freq"] == [0, 0, 1] * 12
    sentence = "no_rope_layers in config.json has 3 numbers, 0, 2; expected 1 (rotates) or 0 for each of the 36 layers"
    refuse({**config, "no_rope_layers": [0, 2, 0]}, sentence, family="smollm3")
    sentence = "no_rope_layer_interval in config.json is 0; expected every how many layers one does not rotate, above 0"
    refuse({**config, "no_rope_layers": None, "no_rope_layer_interval": 0}, sentence, family="smollm3")
    refuse(
        {**config, "layer_types": ["sliding_attention"] * 36},
        "layer_types in config.json names others than full_attention: models with windows are not supported",
        family="smollm3",
    )


def test_the_first_llama_2_files_say_less() -> None:
    megatron = FAMILIES["llama"].megatron_config(PUBLISHED["llama-2-7b"], tied=False, source="models/x")
    assert (megatron["num_query_groups"], megatron["rotary_base"]) == (32, 10000.0)
    assert "scale_factor" not in megatron


def test_windows_do_not_count_the_token_itself() -> None:
    assert FAMILIES["mistral"].megatron_config(PUBLISHED["mistral-7b"], tied=False, source="x")["window_size"] == [4095, 0]
    without = {**PUBLISHED["mistral-7b"], "sliding_window": None}
    assert "window_size" not in FAMILIES["mistral"].megatron_config(without, tied=False, source="x")
    gemma = FAMILIES["gemma2"].megatron_config(PUBLISHED["gemma-2-9b"], tied=True, source="x")
    assert (gemma["window_size"], gemma["window_attn_skip_freq"], gemma["kv_channels"]) == ([4095, 0], 2, 256)


_BIASES, _ROTATION, _ACTIVATION = {"attention_bias": True}, {"partial_rotary_factor": 0.5}, {"hidden_act": "gelu"}
# Of a published model, or of OPT's defaults: keys, each with a value that the engine has not.
REQUIRED: dict[str, dict[str, Any]] = {
    "opt": {"do_layer_norm_before": False, "enable_bias": False, "layer_norm_elementwise_affine": False, "activation_function": "gelu"}
    | {"_remove_final_layer_norm": True},
    "llama-2-7b": _ACTIVATION | _ROTATION,
    "mistral-7b": {"hidden_act": "relu", "layer_types": ["full_attention"]},
    "gemma-2-9b": {"hidden_activation": "gelu", "use_bidirectional_attention": True} | _BIASES,
    "qwen3-8b": _BIASES,
    "smollm3-3b": {"use_sliding_window": True} | _BIASES,
    "olmo-2-7b": _ACTIVATION | _ROTATION | _BIASES,
    "olmo-3-7b": _ACTIVATION | _ROTATION | _BIASES,
    "apertus-8b": {"hidden_act": "silu", "mlp_bias": True, "post_norm": True, "qk_norm": False} | _ROTATION | _BIASES,
    "granite-3.3-2b": {"mlp_bias": True} | _ACTIVATION | _ROTATION | _BIASES,
    "qwen3-30b-a3b": {"use_sliding_window": True, "decoder_sparse_step": 2, "mlp_only_layers": [0]} | _ACTIVATION | _ROTATION | _BIASES,
    "phi-4": _ACTIVATION,
    "gpt-oss-20b": {"swiglu_limit": 9.0, "attention_bias": False} | _ACTIVATION,
    "gemma-3-1b": {"use_bidirectional_attention": True, "final_logit_softcapping": 30.0} | _BIASES,
}
EITHER = ["full_attention", "sliding_attention"]
GIVES, ROPE = "models/x has a config.json that gives Megatron", "rope_scaling in config.json is of the type"
# What is changed, and how the sentence about it begins.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("opt", {"hidden_size": 1024, "word_embed_proj_dim": 512}, "word_embed_proj_dim (512) differs from hidden_size (1024) in config.json"),
    ("opt", {"num_attention_heads": 7}, "models/x has a hidden size of 768 and 7 attention heads in 7 groups, which do not divide"),
    *(("opt", {"num_hidden_layers": value}, f"{GIVES} num_layers {value!r}; expected numbers above 0") for value in ("many", 0, -3, None)),
    ("mistral-7b", {"rms_norm_eps": None}, f"{GIVES} layernorm_epsilon None"),
    ("mistral-7b", {"rope_theta": "x"}, f"{GIVES} rotary_base 'x'"),
    ("mistral-7b", {"sliding_window": 0}, f"{GIVES} window_size [-1, 0]"),
    ("mistral-7b", {"num_hidden_layers": 10**9}, "models/x has num_hidden_layers 1000000000 in its config.json; expected at most 10000"),
    ("mistral-7b", {"sliding_window": "4096"}, "models/x has a value of another type than expected in its config.json (unsupported"),
    *(
        (
            "llama-2-7b",
            {"rope_scaling": {key: "longrope", "factor": 2.0}},
            f"{ROPE} 'longrope', which is not supported; known are default, ",
        )
        for key in ("rope_type", "type")
    ),
    ("smollm3-3b", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, f"{ROPE} 'yarn', which is not supported beside layers"),
    ("olmo-3-7b", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, f"{ROPE} 'llama3'"),
    ("gemma-3-1b", {"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}, f"{ROPE} 'yarn'"),
    # The order that NeMo has: the window on the second, the fourth and so on.
    (
        "gemma-2-9b",
        {"layer_types": EITHER * 21},
        "layer_types in config.json does not alternate between sliding_attention and full_attention",
    ),
    *(
        (name, {"layer_types": EITHER * (layers // 2)}, "layer_types in config.json does not repeat so many sliding_attention and one full")
        for name, layers in (("olmo-3-7b", 32), ("gemma-3-1b", 26), ("gpt-oss-20b", 24))
    ),
    *(
        (
            "qwen2-7b",
            {"layer_types": EITHER * 14, **said},
            "layer_types in config.json names sliding_attention, which has no length: set use_",
        )
        for said in ({}, {"use_sliding_window": True, "sliding_window": None})
    ),
    *(
        (
            "qwen2-7b",
            {"layer_types": types},
            "layer_types in config.json does not say full_attention or sliding_attention for each of the 28",
        )
        for types in (["full_attention"] * 27, ["chunked_attention"] * 28)
    ),
    *(
        (name, {"sliding_window": None}, "sliding_window is null in config.json, but ")
        for name in ("gemma-2-9b", "olmo-3-7b", "gemma-3-1b", "gpt-oss-20b")
    ),
    ("gpt-oss-20b", {"num_local_experts": 0}, f"{GIVES} num_moe_experts 0"),
    (
        "gpt-oss-20b",
        {"quantization_config": {"quant_method": "gptq"}},
        "models/x has a quantization_config of gptq in its config.json: quantised",
    ),
    *(
        (name, {key: value}, f"models/x has {key} {value!r} in its config.json (expected ")
        for name, of in REQUIRED.items()
        for key, value in of.items()
    ),
]


@pytest.mark.parametrize(("name", "changes", "beginning"), REFUSED)
def test_what_is_not_covered_is_refused_by_name(name: str, changes: dict[str, Any], beginning: str) -> None:
    config = {**(opt_config() if name == "opt" else PUBLISHED[name]), **changes}
    configs = [config]
    if config["model_type"] == "gemma3_text":  # also where they stand in `text_config`
        configs.append({"model_type": "gemma3", "text_config": config})
    for said in configs:
        with pytest.raises(ValueError, match=f"^{re.escape(beginning)}"):
            FAMILIES[said["model_type"]].megatron_config(said, tied=True, source="models/x")


@pytest.mark.parametrize(
    ("rope", "base"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 1e6),
        ({"type": "yarn", "factor": 16.0, "beta_fast": 16, "beta_slow": 2, "attention_factor": 1.5}, 1e4),
        ({"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.8, "beta_fast": None, "truncate": False}, 1e4),
        ({"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 4096}, 5e5),
    ],
)
def test_yarn_is_that_of_transformers(rope: dict[str, Any], base: float) -> None:
    config = AutoConfig.for_model(**{**PUBLISHED["qwen2-7b"], "rope_theta": base, "rope_scaling": rope})
    expected, scale = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    megatron = FAMILIES["qwen2"].megatron_config(config.to_dict(), tied=False, source="x")
    plain = 1.0 / base ** (torch.arange(0, 128, 2).float() / 128)
    found = yarn_frequencies(
        plain,
        base=base,
        factor=megatron["yarn_factor"],
        positions=megatron["yarn_old_context_len"],
        turns=(megatron["yarn_beta_fast"], megatron["yarn_beta_slow"]),
        truncate=megatron["yarn_truncate"],
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    assert megatron["yarn_attention_factor"] == pytest.approx(scale, rel=1e-12)
    assert not torch.allclose(found, plain, rtol=1e-2)


def test_phi_3_in_megatrons_words() -> None:
    """The share of a head that rotates also where transformers 5 says it; the window that does not count the token itself."""
    config = {**PUBLISHED["phi-4"], "sliding_window": 2047}
    whole = FAMILIES["phi3"].megatron_config(config, tied=False, source="x")
    assert whole["window_size"] == [2046, 0] and "rotary_percent" not in whole
    of_5 = {key: value for key, value in config.items() if not key.startswith("rope")}
    rope = {"rope_type": "default", "rope_theta": 250000, "partial_rotary_factor": 0.75}
    for said in ({**config, "partial_rotary_factor": 0.75}, {**of_5, "rope_parameters": rope}):
        assert FAMILIES["phi3"].megatron_config(said, tied=False, source="x") == {**whole, "rotary_percent": 0.75}
    with pytest.raises(ValueError, match=re.escape("has partial_rotary_factor 0.75 in its config.json (expected 1.0)")):
        FAMILIES["llama"].megatron_config({**of_5, "rope_parameters": rope}, tied=False, source="x")
    for share in (0, 0.001, 0.9, 1.5):
        refuse(
            {**config, "partial_rotary_factor": share},
            f"partial_rotary_factor in config.json is {share}, of the 128 dimensions of a head; expected a share of them that is an even number",
            family="phi3",
        )


@pytest.mark.parametrize("kind", ["longrope", "su"])
@pytest.mark.parametrize("most", [131072, 4096])
def test_longrope_is_that_of_transformers(kind: str, most: int) -> None:
    """Phi-3-mini's and Phi-4-mini's: a factor for each rotation, others beyond the first positions, and what both are multiplied with."""
    scaling = {"type": kind, "short_factor": [1.0 + 0.1 * i for i in range(48)], "long_factor": [2.0 + 0.5 * i for i in range(48)]}
    published = {**PUBLISHED["phi-4"], "max_position_embeddings": most, "partial_rotary_factor": 0.75, "rope_scaling": scaling}
    config = AutoConfig.for_model(**copy.deepcopy(published))
    megatron = FAMILIES["phi3"].megatron_config(published, tied=False, source="x")
    assert "longrope_positions" in not_expressible(megatron) and "length of a sample" in str(megatron_bridge.refused(megatron))
    rotary = torch.nn.Identity()
    rotary.inv_freq = 1.0 / 250000 ** (torch.arange(0, 96, 2).float() / 96)
    factors = {key: megatron[f"longrope_{key}_factor"] for key in ("short", "long")}
    slow_by_length(rotary, **factors, positions=megatron["longrope_positions"])
    for length in (4097, 4096, 5000):
        expected, scale = ROPE_INIT_FUNCTIONS["longrope"](config, torch.device("cpu"), seq_len=length)
        rotary(length)
        torch.testing.assert_close(rotary.inv_freq, expected, rtol=1e-6, atol=0)
        assert megatron["longrope_attention_factor"] == pytest.approx(scale, rel=1e-12)
    sentence = "rope_scaling in config.json has 47 numbers as long_factor; expected one for each of the 48 rotations of a head"
    refuse({**published, "rope_scaling": {**scaling, "long_factor": [1.0] * 47}}, sentence, family="phi3")
    with pytest.raises(ValueError, match=r"gives Megatron longrope_long_factor .*; expected numbers above 0"):
        FAMILIES["phi3"].megatron_config({**published, "rope_scaling": {**scaling, "long_factor": ["x"] * 48}}, tied=False, source="x")
    sentence = "rope_scaling in config.json is of the type 'linear', which is not supported; known are default, longrope, su"
    refuse({**published, "rope_scaling": {"type": "linear", "factor": 2.0}}, sentence, family="phi3")


def test_dynamic_positions_are_plain_ones_within_those_of_the_model() -> None:
    dynamic = {**PUBLISHED["llama-2-7b"], "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    plain, found = (FAMILIES["llama"].megatron_config(config, tied=False, source="x") for config in (PUBLISHED["llama-2-7b"], dynamic))
    assert found == plain


def test_yarn_is_not_handed_to_others_in_words_that_they_do_not_have() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = FAMILIES["qwen2"].megatron_config({**PUBLISHED["qwen2-7b"], "rope_scaling": rope}, tied=False, source="x")
    assert not_expressible(config) == ["yarn_factor"]
    with pytest.raises(ValueError, match=r"are YaRN's, which Megatron-Bridge configures differently; they are not supported"):
        run_config(config, dtype="bfloat16", has_tokenizer=False)


def test_olmo_2_rotates_as_transformers_lets_it() -> None:
    config = {**PUBLISHED["olmo-2-7b"], "rope_scaling": {"type": "linear", "factor": 4.0}}
    assert FAMILIES["olmo2"].megatron_config(config, tied=False, source="x")["seq_len_interpolation_factor"] == 4.0
    sentence = "rope_scaling in config.json is of the type 'yarn', which is not supported; known are default, linear, dynamic"
    refuse({**config, "rope_scaling": {"type": "yarn", "factor": 4.0}}, sentence, family="olmo2")


def test_olmo_3_in_megatrons_words() -> None:
    found = FAMILIES["olmo3"].megatron_config(PUBLISHED["olmo-3-7b"], tied=False, source="x")
    assert (found["window_size"], found["window_attn_skip_freq"], found["rotary_base_local"]) == ([4095, 0], 4, 500000)
    assert (found["yarn_factor"], found["yarn_attention_factor"], found["rope_scaling_factor"]) == (8.0, 1.2079441541679836, 1.0)
    assert (found["pre_norms"], found["post_norms"], found["norms_of_all_heads"]) == (False, True, True)
    linear = {**PUBLISHED["olmo-3-7b"], "layer_types": None, "rope_scaling": {"rope_type": "linear", "factor": 3.0}}
    found = FAMILIES["olmo3"].megatron_config(linear, tied=False, source="x")
    assert (found["window_attn_skip_freq"], found["rope_scaling_factor"]) == (4, 3.0)
    assert "seq_len_interpolation_factor" not in found, "it would slow down layers with a window too"


@pytest.mark.parametrize("key", ["embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"])
def test_multipliers_of_granite(key: str) -> None:
    published = PUBLISHED["granite-3.3-2b"]
    found = FAMILIES["granite"].megatron_config(published, tied=True, source="x")
    assert found[key] == published[key] != 1.0
    without = {name: value for name, value in published.items() if name != key}
    assert FAMILIES["granite"].megatron_config(without, tied=True, source="x")[key] == 1.0
    for value in (None, 0.0, "12"):
        sentence = f"models/x has a config.json that gives Megatron {key} {value!r}; expected numbers above 0"
        refuse({**published, key: value}, sentence, family="granite")


@pytest.mark.parametrize("normalised", [True, False])
def test_shares_of_experts_in_megatrons_words(normalised: bool) -> None:
    """Megatron takes the softmax of the chosen ones, whose shares add up to 1, or chooses from the softmax of all."""
    config = {**PUBLISHED["qwen3-30b-a3b"], "norm_topk_prob": normalised}
    found = FAMILIES["qwen3_moe"].megatron_config(config, tied=False, source="x")
    assert found["moe_router_pre_softmax"] is not normalised
    assert (found["num_moe_experts"], found["moe_router_topk"], found["moe_ffn_hidden_size"]) == (128, 8, 768)
    assert not_expressible(found) == ["num_moe_experts"]
    with pytest.raises(
        ValueError, match=r"^this model has experts \(num_moe_experts\), which are not converted to Megatron-Bridge: export it with"
    ):
        run_config(found, dtype="bfloat16", has_tokenizer=False)
    for key in ("num_experts", "num_experts_per_tok", "moe_intermediate_size"):
        words = {"num_experts": "num_moe_experts", "num_experts_per_tok": "moe_router_topk", "moe_intermediate_size": "moe_ffn_hidden_size"}
        refuse(
            {**config, key: 0},
            f"models/x has a config.json that gives Megatron {words[key]} 0; expected numbers above 0",
            family="qwen3_moe",
        )


def test_gpt_oss_in_megatrons_words() -> None:
    found = FAMILIES["gpt_oss"].megatron_config(PUBLISHED["gpt-oss-20b"], tied=False, source="x")
    assert (found["window_size"], found["window_attn_skip_freq"]) == ([127, 0], 2)
    assert (found["num_moe_experts"], found["moe_router_topk"], found["moe_ffn_hidden_size"]) == (32, 4, 2880)
    assert (found["softmax_type"], found["glu_linear_offset"], found["activation_func_clamp_value"]) == ("learnable", 1.0, 7.0)
    assert (found["yarn_truncate"], found["yarn_attention_factor"]) == (False, pytest.approx(0.1 * math.log(32) + 1))
    assert not found["moe_router_pre_softmax"] and found["add_bias_linear"]


@pytest.mark.parametrize(
    ("name", "words", "keys"),
    [
        ("olmo-2-7b", "norms over all heads of queries", "post_norms norms_of_all_heads"),
        ("olmo-3-7b", "norms over all heads of queries", "window_size post_norms norms_of_all_heads rotary_base_local yarn_factor"),
        ("apertus-8b", "the activation xIELU", "activation xielu"),
        ("granite-3.3-2b", "multipliers of", "embedding_multiplier attention_multiplier residual_multiplier logits_scaling"),
    ],
)
def test_what_others_would_compute_otherwise_is_not_handed_to_them(name: str, words: str, keys: str) -> None:
    published = PUBLISHED[name]
    config = FAMILIES[published["model_type"]].megatron_config(published, tied=False, source="x")
    assert " ".join(not_expressible(config)) == keys
    with pytest.raises(
        ValueError, match=rf"^this model has {words}.*, which Megatron-Bridge's has not; it would compute something else: export it"
    ):
        run_config(config, dtype="bfloat16", has_tokenizer=False)


def test_numbers_of_xielu_that_the_engine_would_not_compute_with(tmp_path: Path) -> None:
    """They are not parameters, but numbers that transformers takes from the checkpoint."""
    hf_dir = save_tiny_model("apertus", tmp_path / "hf")
    name = "model.layers.2.mlp.act_fn.beta"
    with edited_tensors(hf_dir) as state:
        for constant in [constant for constant in state if constant.endswith(("act_fn.beta", "act_fn.eps"))]:
            del state[constant]
    hf_to_nemo.convert(hf_dir, tmp_path / "without")  # then they are those of the class
    with edited_tensors(hf_dir) as state:
        state[name] = torch.tensor(0.75)
    with refused(f"{hf_dir} has {name} 0.75; expected 0.5, with which the engine computes"):
        hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
    assert not (tmp_path / "nemo").exists()


def test_rotations_that_a_class_would_put_in_the_place_of_those_of_transformers_5() -> None:
    """Apertus, gpt-oss and SmolLM3 have other defaults than most."""
    apertus, gpt_oss, smollm3 = (
        {key: value for key, value in PUBLISHED[name].items() if key not in ("rope_theta", "rope_scaling")}
        for name in ("apertus-8b", "gpt-oss-20b", "smollm3-3b")
    )
    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    for config, slower in ((apertus, "scale_factor"), (gpt_oss, "yarn_factor")):
        found = FAMILIES[config["model_type"]].megatron_config({**config, **plain}, tied=False, source="x")
        assert found["rotary_base"] == 1e4 and slower not in found
        read = AutoConfig.for_model(**in_words_of_both({**config, **plain}, source="x"))
        words = in_words_of_both(read.to_dict(), source="x")
        assert words["rope_theta"] == 1e4 and words["rope_scaling"]["rope_type"] == "default"
    assert FAMILIES["smollm3"].megatron_config({**smollm3, **plain}, tied=True, source="x")["rotary_base"] == 1e4
    scaled = {"rope_parameters": {**DEFAULT_ROPE_SCALING["apertus"], "rope_theta": 12000000.0}}
    assert FAMILIES["apertus"].megatron_config({**apertus, **scaled}, tied=False, source="x")["scale_factor"] == 8.0


@pytest.mark.parametrize("model_type", ["bloom", "granitemoehybrid", "gemma3n", "gemma3n_text", "llama4", "mixtral", "qwen2_moe", ""])
def test_unknown_model_types_and_relatives(model_type: str) -> None:
    sentence = f"models/x is of the model type {model_type or '(none)'}, which is not supported; known are {', '.join(FAMILIES)}; {OTHERS}"
    with refused(sentence):
        family_of(model_type, source="models/x")


def test_gemma_3_in_megatrons_words() -> None:
    """From the files that were published, which leave most of it to the class of transformers."""
    shape = {"num_layers": 48, "hidden_size": 3840, "ffn_hidden_size": 15360, "num_attention_heads": 16, "num_query_groups": 8}
    found = FAMILIES["gemma3"].megatron_config(PUBLISHED["gemma-3-12b"], tied=True, source="x")
    assert {key: found[key] for key in shape} == shape
    assert (found["kv_channels"], found["vocab_size"], found["max_position_embeddings"]) == (256, 262208, 131072)
    assert (found["window_size"], found["window_attn_skip_freq"], found["query_pre_attn_scalar"]) == ([1023, 0], 6, 256)
    assert (found["rotary_base"], found["rotary_base_local"], found["rope_scaling_factor"]) == (1e6, 1e4, 8.0)
    smallest = FAMILIES["gemma3_text"].megatron_config(PUBLISHED["gemma-3-1b"], tied=True, source="x")
    assert (smallest["window_size"], smallest["vocab_size"], smallest["rope_scaling_factor"]) == ([511, 0], 262144, 1.0)


# Embeddings and the rest in millions: table 1 of the technical report (Kamath et al. 2025).
@pytest.mark.parametrize(("size", "tables", "others"), [("1b", 302, 698), ("4b", 675, 3209), ("12b", 1012, 10759), ("27b", 1416, 25600)])
def test_published_sizes_of_gemma_3(size: str, tables: int, others: int) -> None:
    """The report counts 262,144 rows and rounds the smallest to a quarter of a thousand, of which 1 percent is left."""
    _, model = base_model(f"gemma-3-{size}")
    count = count_parameters(model, vocab_size=model["vocab_size"])
    assert round(count.outside_tables / 1e6) == others
    assert count.total - count.outside_tables == pytest.approx(tables * 1e6, rel=0.01)


def test_gemma_3_in_the_words_of_transformers_5() -> None:
    """A base for each kind of layer, in a mapping; also where it stands in `text_config`."""
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    older = {"rope_theta": 1e6, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    config = {key: value for key, value in PUBLISHED["gemma-3-1b"].items() if not key.startswith("rope")}
    expected = FAMILIES["gemma3_text"].megatron_config({**config, **older}, tied=True, source="x")
    assert expected["rotary_base_local"] == 2e4
    for words in ({}, older):
        said = {**config, **words, "rope_parameters": rope}
        assert FAMILIES["gemma3_text"].megatron_config(said, tied=True, source="x") == expected
        both = {"model_type": "gemma3", "text_config": said}
        assert in_words_of_both(both, source="x") == {"model_type": "gemma3", "text_config": {**said, **older}}
    with pytest.raises(ValueError, match=r'add "rope_local_base_freq": 20000\.0 if rope_parameters is right'):
        in_words_of_both({**config, **older, "rope_local_base_freq": 1e4, "rope_parameters": rope}, source="x")


def test_experts_in_the_words_of_transformers_5() -> None:
    """Their number has another key there, over which 4 passes, building 128; gpt-oss has that key in both."""
    config = {"model_type": "qwen3_moe", "num_local_experts": 6}
    both = {**config, "num_experts": 6}
    assert in_words_of_both(config, source="x") == in_words_of_both(both, source="x") == both
    assert AutoConfig.for_model(**both).num_experts == 6
    with pytest.raises(ValueError, match='add "num_experts": 6 if num_local_experts is right'):
        in_words_of_both({**config, "num_experts": 8}, source="x")
    gpt_oss = {"model_type": "gpt_oss", "num_local_experts": 6}
    assert in_words_of_both(gpt_oss, source="x") == gpt_oss


def test_gemma_3_as_megatron_bridge_has_it() -> None:
    """Its provider's own words, by which it makes both rotations and the windows' pattern."""
    config = FAMILIES["gemma3"].megatron_config(PUBLISHED["gemma-3-12b"], tied=True, source="x")
    model = run_config(config, dtype="bfloat16", has_tokenizer=False)["model"]
    assert model["_target_"] == "megatron.bridge.models.gemma.gemma3_provider.Gemma3ModelProvider"
    expected = {
        "rotary_base": [1e4, 1e6],
        "rope_scaling_factor": 8.0,
        "window_size": 1023,
        "interleaved_attn_pattern": [5, 1],
        "softmax_scale": 1 / 16,
        "vocab_size": 262208,
        "kv_channels": 256,
    }
    assert {key: model[key] for key in expected} == expected
    assert not {"rotary_base_local", "window_attn_skip_freq", "query_pre_attn_scalar", "post_norms", "scale_embeddings"} & set(model)
    assert not_expressible(config) == ["activation gelu_tanh", "window_size", "post_norms", "scale_embeddings", "rotary_base_local"]
