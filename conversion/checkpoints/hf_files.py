"""The files of a Hugging Face model folder: its config, and which files hold its weights; found without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.own_files import is_plain_name

CONFIG_NAME = "config.json"
GENERATION_CONFIG_NAME = "generation_config.json"
# How images become the input of a vision tower.
PROCESSOR_NAMES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json", "chat_template.json")
WEIGHTS_NAMES = ("model.safetensors", "pytorch_model.bin")

# Where config.json is silent, the default of the architecture's config class in transformers speaks; all others tie.
_UNTIED_BY_DEFAULT = (
    "afmoe", "apertus", "arcee", "aria_text", "bamba", "bitnet", "blt", "chameleon", "code_llama", "codegen", "cwm", "dbrx", "deepseek_v2",
    "deepseek_v3", "deepseek_v32", "deepseek_v4", "diffllama", "doge", "dots1", "emu3_text_model", "exaone4", "exaone_moe", "falcon_h1",
    "flex_olmo", "fuyu", "git", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm4v_moe_text", "glm4v_text", "glm_moe_dsa", "glm_ocr_text",
    "gpt_neox", "gpt_oss", "gptj", "granite", "granitemoe", "granitemoehybrid", "granitemoeshared", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe",
    "hy_v3", "hyperclovax", "jais2", "jamba", "laguna", "llama", "llama4", "llama4_text", "longcat_flash", "mamba2", "mellum", "minimax",
    "minimax_m2", "minimax_m3_vl_text", "ministral", "ministral3", "mistral", "mistral4", "mixtral", "mllama_text_model", "moshi", "nanochat",
    "nemotron", "nemotron_h", "olmo", "olmo2", "olmo3", "olmo_hybrid", "olmoe", "open-llama", "persimmon", "phi", "phi3", "phi4_multimodal",
    "phimoe", "qwen2", "qwen2_5_vl_text", "qwen2_moe", "qwen2_vl_text", "qwen3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next",
    "qwen3_omni_moe_text", "qwen3_vl_text", "reformer", "rembert", "rwkv", "seed_oss", "solar_open", "stablelm", "xlstm",
)  # fmt: skip


@dataclass(frozen=True)
class WeightFiles:
    """The files that hold the weights of a folder.

    Attributes:
        index: name of the index, or None where one file holds all.
        places: file name -> names of the tensors that the index places in it; None where there is no index.
    """

    index: str | None
    places: dict[str, list[str] | None]

    @property
    def names(self) -> tuple[str, ...]:
        """All files, the index first."""
        return (*([self.index] if self.index else []), *self.places)


def find_weights(directory: Path) -> WeightFiles:
    """The weight files of a folder: a whole file goes before an index, safetensors before pickles.

    Raises:
        ValueError: if there are none, or the index is corrupt or leads out of its folder.
    """
    for name in WEIGHTS_NAMES:
        if (directory / name).is_file():
            return WeightFiles(None, {name: None})
        if (directory / f"{name}.index.json").is_file():
            return _read_index(directory, f"{name}.index.json")
    raise ValueError(f"{directory} holds no weights; expected {' or '.join(WEIGHTS_NAMES)}, or an index with its shards")


def _read_index(directory: Path, index_name: str) -> WeightFiles:
    weight_map = read_json(directory / index_name, expected="").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{directory / index_name} has no weight_map; copy or download it again")
    places: dict[str, list[str] | None] = {}
    for tensor_name, file_name in sorted(weight_map.items(), key=lambda item: str(item[1])):
        if not is_plain_name(file_name):
            raise ValueError(f"{directory / index_name} names the file {file_name!r}, which is not inside its folder; do not trust it")
        listed = places.setdefault(file_name, [])
        assert listed is not None
        listed.append(tensor_name)
    return WeightFiles(index_name, places)


def require_shard(directory: Path, files: WeightFiles, file_name: str) -> None:
    """Refuse a shard that is not there.

    Raises:
        ValueError: saying how many tensors it should hold.
    """
    listed = files.places[file_name]
    if listed is not None and not (directory / file_name).is_file():
        raise ValueError(f"{directory / file_name} is missing; {files.index} places {len(listed)} tensors in it; copy or download it again")


def require_listed(directory: Path, files: WeightFiles, file_name: str, found: set[str]) -> None:
    """Refuse a shard that holds other tensors than the index says.

    Raises:
        ValueError: naming them.
    """
    listed = files.places[file_name]
    if listed is not None and (unequal := sorted(found ^ set(listed))):
        raise ValueError(f"{files.index} and {directory / file_name} disagree about {', '.join(unequal)}; copy or download both again")


def read_json(path: Path, *, expected: str) -> dict[str, Any]:
    """A JSON object from a file.

    Args:
        expected: ends the sentence that says that the file is missing.

    Raises:
        ValueError: if it is missing or something else.
    """
    if not path.is_file():
        raise ValueError(f"{path.parent} has no {path.name}; {expected}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); copy or download it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}; expected a JSON object")
    return content


def tied_by_config(config: Mapping[str, Any]) -> bool:
    """Whether config.json says that input embedding and output layer are one matrix."""
    text_config = language_part(config) or config
    default = config.get("tie_word_embeddings", text_config.get("model_type") not in _UNTIED_BY_DEFAULT)
    return bool(text_config.get("tie_word_embeddings", default))


def language_part(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The configuration of the language model inside a multimodal one; None for models of language alone."""
    part = config.get("text_config")
    return dict(part) if isinstance(part, dict) else None


def with_language_values(config: Mapping[str, Any], **values: Any) -> dict[str, Any]:
    """A config.json with other values of its language model, where such values stand."""
    part = language_part(config)
    if part is None:
        return {**config, **values}
    # transformers 4 asks the language model's part whether it is tied, transformers 5 the whole.
    tied = {key: value for key, value in values.items() if key == "tie_word_embeddings"}
    return {**config, **tied, "text_config": {**part, **values}}


def with_vocabulary(config: Mapping[str, Any], *, rows: int, old_rows: int, **values: Any) -> dict[str, Any]:
    """A config.json with another number of rows per token, wherever it says their number, and with other values of its language model."""
    part = language_part(config) or config
    changed = {key: rows for key in ("vocab_size_per_layer_input", "embedding_size") if part.get(key) == old_rows}
    if PADDED_TO in part:
        changed[PADDED_TO] = 1
    found = with_language_values(config, vocab_size=rows, **changed, **values)
    return {**found, "vocab_size": rows} if config.get("vocab_size") == old_rows else found


def is_multimodal(config: Mapping[str, Any]) -> bool:
    """Whether a model has more than a language model."""
    return language_part(config) is not None or config.get("model_type") in _LANGUAGE_AND_VISION


def multimodal_sentence(config: Mapping[str, Any]) -> str:
    """What a multimodal model is, and which commands work on it."""
    inner = (language_part(config) or {}).get("model_type", "an unnamed type")
    sentence = (
        f"a multimodal model of the type {config.get('model_type', '(none)')}, whose language model ({inner}) stands in text_config of its"
        " config.json"
    )
    kept = "what is beside it is kept as it is"
    if config.get("model_type") in _LANGUAGE_AND_VISION:
        return f"{sentence}; {kept}"
    return f"{sentence}; transfer, edits and merges change that alone and {kept}, and the engine has no such models"


def require_language_model(config: Mapping[str, Any], *, source: str) -> None:
    """Refuse a model that has more than a language model, unless the engine has it.

    Raises:
        ValueError: saying what it is.
    """
    if is_multimodal(config) and config.get("model_type") not in _LANGUAGE_AND_VISION:
        raise ValueError(
            f"{source} is {multimodal_sentence(config)}: save the language model alone as a checkpoint of its own"
            " (`python -m conversion.extract_language_model`) and give that"
        )


# In configurations of Mamba and OLMo's own classes: rows are as many as a multiple of this, or as `embedding_size` says.
PADDED_TO = "pad_vocab_size_multiple"


def rows_of_vocabulary(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Numbers of rows that token matrices may have by a language model's configuration; none where it does not say."""
    size, multiple = config.get("vocab_size"), config.get(PADDED_TO)
    if not isinstance(size, int):
        return ()
    padded = -(-size // multiple) * multiple if isinstance(multiple, int) and multiple > 0 else size
    embedded = config.get("embedding_size")
    return (size, padded, *([embedded] if isinstance(embedded, int) and embedded >= size else []))


# Types with more than a language model whose language model the engine has.
_LANGUAGE_AND_VISION = ("gemma3", "mistral3")

# The scaling of rotary positions that transformers 4 takes where config.json says nothing of it.
DEFAULT_ROPE_SCALING = {
    "apertus": {
        "rope_type": "llama3",
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "gpt_oss": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "ministral3": {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}

# What transformers 5 takes of a Ministral 3 where config.json says nothing of it.
MINISTRAL3_DEFAULTS: dict[str, Any] = {
    "vocab_size": 131072,
    "num_hidden_layers": 34,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "rope_scaling": DEFAULT_ROPE_SCALING["ministral3"],
    "sliding_window": None,
}


def in_words_of_both(config: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """A config.json with what transformers 5 says in words of its own also in those of transformers 4: rotary positions, numbers of experts.

    Either version then reads the same from it; left as it is, 4 would use its defaults silently.

    Raises:
        ValueError: if it has both and they disagree, or two types of rotary positions: each version would read another model.
    """
    part = language_part(config)
    settings = config if part is None else part
    _require_one_rope_type(settings, source)
    rotary = "rope_parameters" if settings.get("rope_parameters") else "rope_scaling"
    added: dict[str, Any] = {}
    for where, older in ((rotary, _rotary_words(settings)), ("num_local_experts", _expert_words(settings))):
        if wrong := [key for key, value in older.items() if key in settings and settings[key] != value]:
            keys = " and ".join(f'"{key}": {json.dumps(older[key])}' for key in wrong)
            raise ValueError(
                f"{source} has a config.json whose {where}, which transformers 5 reads, contradicts its other keys, which transformers 4 reads;"
                f" add {keys} if {where} is right, otherwise correct {where}"
            )
        added |= {key: value for key, value in older.items() if key not in settings}
    return with_language_values(config, **added) if added else dict(config)


def _require_one_rope_type(config: Mapping[str, Any], source: str) -> None:
    """Refuse `type` beside another `rope_type`: most classes of transformers 4 go by the former, those of 5 by the latter."""
    for key in ("rope_scaling", "rope_parameters"):
        settings = _mapping(config.get(key))
        for rope in (settings, *map(_mapping, settings.values())):  # of layers with a window and of those without, where they differ
            older, newer = rope.get("type"), rope.get("rope_type")
            if None not in (older, newer) and older != newer:
                raise ValueError(
                    f"{source} has a config.json whose {key} says type {older!r} and rope_type {newer!r}, of which each version of"
                    " transformers reads one; keep the one that the model was trained with"
                )


def _rotary_words(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the words of transformers 5 in a configuration are in those of 4; empty where it has none."""
    scaling, parameters = _mapping(config.get("rope_scaling")), _mapping(config.get("rope_parameters"))
    older: dict[str, Any] = {}
    if any(isinstance(value, dict) for value in parameters.values()) and config.get("model_type") not in _TWO_ROTATIONS:
        return {}  # of a class that transformers 4 does not have, and 5 would take its words for these
    if "sliding_attention" in parameters:  # a base for layers with a window, and another for those without
        older["rope_local_base_freq"] = _mapping(parameters["sliding_attention"]).get("rope_theta")
        parameters = _mapping(parameters.get("full_attention"))
    older["rope_theta"] = parameters.get("rope_theta", scaling.get("rope_theta"))
    older["partial_rotary_factor"] = parameters.get("partial_rotary_factor")
    others = {key: value for key, value in parameters.items() if key not in older}
    older = {key: value for key, value in older.items() if value is not None}
    if others and (others != {"rope_type": "default"} or config.get("model_type") in DEFAULT_ROPE_SCALING):
        older["rope_scaling"] = others
    return older


# Types whose layers with a window rotate otherwise, for which transformers 4 has words of its own.
_TWO_ROTATIONS = (None, "gemma3_text", "gemma3n_text", "modernbert")


def _expert_words(config: Mapping[str, Any]) -> dict[str, Any]:
    """The number of experts by its older key; transformers 4 would ignore the newer one and build as many as its default says."""
    num_experts = config.get("num_local_experts")
    return {"num_experts": num_experts} if config.get("model_type") == "qwen3_moe" and num_experts is not None else {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def load_config(directory: Path) -> PretrainedConfig:
    """What the installed transformers is to load a model by: given to `from_pretrained` as `config`, which would read the file alone.

    Raises:
        ValueError: if the file is missing or means different models to different versions.
        Exception: of any kind, from transformers, for a file that it does not know.
    """
    from transformers import AutoConfig

    content = read_json(directory / CONFIG_NAME, expected="expected a Hugging Face checkpoint folder")
    add_missing_class(content.get("model_type"))
    translated = in_words_of_both(content, source=str(directory))
    config = AutoConfig.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    return config if translated == content else type(config).from_dict(_with_floats(translated))


def add_missing_class(model_type: Any) -> None:
    """Have transformers load Ministral 3, of which version 4 has no class, and predict the next token also beside a vision tower."""
    if model_type not in ("ministral3", "mistral3"):
        return
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, Mistral3Config, Mistral3ForConditionalGeneration

    AutoModelForCausalLM.register(Mistral3Config, Mistral3ForConditionalGeneration, exist_ok=True)
    if "ministral3" not in CONFIG_MAPPING:
        from conversion.checkpoints.ministral3_model import register

        register(MINISTRAL3_DEFAULTS)


def _with_floats(value: Any) -> Any:
    """What a config.json says, with the infinite numbers that transformers 5 writes as `{"__float__": "Infinity"}`."""
    if isinstance(value, dict):
        return float(value["__float__"]) if value.keys() == {"__float__"} else {key: _with_floats(item) for key, item in value.items()}
    return [_with_floats(item) for item in value] if isinstance(value, list) else value
