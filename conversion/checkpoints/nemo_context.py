"""The files by which NeMo 2 itself opens a checkpoint: `io.json` (what `nemo.lightning.io.load_context` builds) and `model.yaml`.

They name NeMo's own classes, so a stock NeMo loads the model without this project; a family that NeMo does not know is named by
`nemo_patches`, which must then be importable.  Only what the model is stands there, nothing of a run.  Written as text, without NeMo.

`io.json` is the format of fiddle's serialization (version 0.0.1): a graph of calls, each with a reference to what is called.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conversion.checkpoints.hf_files import GENERATION_CONFIG_NAME
from conversion.families.family import Family
from data_prep.tokenizers.files import tokenizer_files

IO_NAME = "io.json"
YAML_NAME = "model.yaml"
TOKENIZER_DIR = "hf"  # relative to the context

ACTIVATIONS = {"silu": "torch.nn.functional:silu", "gelu_tanh": "nemo.collections.llm.fn.activation:openai_gelu"}
ENGINE_ALONE = ("post_norms", "scale_embeddings")  # NeMo's classes do this of themselves


@dataclass(frozen=True)
class Name:
    """A Python object by `module:name`."""

    target: str


@dataclass(frozen=True)
class Call:
    """A function or class, by `module:name`, and its arguments: calls, names, tuples, mappings and plain values."""

    target: str
    arguments: Mapping[str, Any]


def write_context(directory: Path, family: Family, config: Mapping[str, Any], *, hf_dtype: str) -> None:
    """Write both files.

    Args:
        directory: `context`, which holds the `hf` folder already.
        config: Megatron's configuration.
    """
    model = model_call(family, config, hf_dtype=hf_dtype, hf_dir=directory / TOKENIZER_DIR)
    strategy = Call("nemo.lightning.pytorch.strategies.megatron_strategy:MegatronStrategy", {"ckpt_save_optimizer": False})
    trainer = Call("nemo.lightning.pytorch.trainer:Trainer", {"accelerator": "cpu", "devices": 1, "strategy": strategy})
    context = Call("nemo.lightning.io.pl:TrainerContext", {"model": model, "trainer": trainer, "extra": {}})
    (directory / IO_NAME).write_text(json.dumps(fiddle_graph(context), indent=1) + "\n", encoding="utf-8")
    note = ""
    if family.nemo is None or family.nemo(config) is None:
        lacks = f"no {'' if family.nemo is None else 'such '}{family.model_type}"
        note = f"# NeMo has {lacks}: this needs the directory nemo_patches of Scion on PYTHONPATH.\n"
    (directory / YAML_NAME).write_text(note + "\n".join(yaml_lines(model)) + "\n", encoding="utf-8")


def model_call(family: Family, config: Mapping[str, Any], *, hf_dtype: str, hf_dir: Path) -> Call:
    """The Lightning module with its configuration and tokenizer."""
    tokenizer = None
    if tokenizer_files(hf_dir):
        arguments = {"pretrained_model_name": TOKENIZER_DIR}
        tokenizer = Call("nemo.collections.common.tokenizers.huggingface.auto_tokenizer:AutoTokenizer", arguments)
    classes = family.nemo(config) if family.nemo else None
    if classes is None:
        engine = Call(family.engine, {"model": dict(config)})
        return Call("nemo.collections.llm.gpt.model.base:GPTModel", {"config": engine, "tokenizer": tokenizer})
    fields = {**_fields(classes.fields or config), **_precision(hf_dtype), "generation_config": _generation_config(hf_dir)}
    return Call(f"{classes.module}:{classes.model}", {"config": Call(f"{classes.module}:{classes.config}", fields), "tokenizer": tokenizer})


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of NeMo's configuration for that of Megatron."""
    fields = {key: value for key, value in config.items() if key not in (*ENGINE_ALONE, "max_position_embeddings")}
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    return {
        **fields,
        "seq_length": config["max_position_embeddings"],
        "activation_func": Name(ACTIVATIONS[config["activation_func"]]),
        # Both are matters of speed and cannot be built without TransformerEngine.
        "apply_rope_fusion": False,
        "persist_layer_norm": False,
    }


def _precision(hf_dtype: str) -> dict[str, Any]:
    return {"fp16": hf_dtype == "float16", "bf16": hf_dtype == "bfloat16", "params_dtype": Name(f"torch:{hf_dtype}")}


def _generation_config(hf_dir: Path) -> Call | None:
    if not (hf_dir / GENERATION_CONFIG_NAME).is_file():
        return None
    kind = Name("transformers.generation.configuration_utils:GenerationConfig")
    arguments = {"auto_cls": kind, "pretrained_model_name_or_path": TOKENIZER_DIR}
    return Call("nemo.lightning.io.artifact.hf_auto:from_pretrained", arguments)


# -- io.json --------------------------------------------------------------------------------------------------------------

_TUPLE, _DICT = "builtins:tuple", "builtins:dict"
_CONFIG, _METADATA = "fiddle._src.config:Config", "fiddle._src.config:BuildableTraverserMetadata"
_NOTHING: dict[str, Any] = {"type": {"type": "pyref", "module": "builtins", "name": "tuple"}, "items": [], "metadata": None}


def fiddle_graph(root: Call) -> dict[str, Any]:
    """A call as fiddle serializes its `Config`: all calls by key, the root by reference."""
    objects: dict[str, Any] = {}
    reference = _encode(root, "<root>", objects)
    return {"root": reference, "objects": objects, "refcounts": dict.fromkeys(objects, 1), "version": "0.0.1"}


def _encode(value: Any, path: str, objects: dict[str, Any]) -> Any:
    """One value; calls, tuples and mappings are put into `objects`, and what is given back refers to them.

    Args:
        path: where it is in the graph, by which NeMo finds a part such as `model.tokenizer`.
    """
    match value:
        case Name():
            return {**_reference_to(value.target), "paths": [path]}
        case Call():
            items = [[f"Attr(name='{key}')", _encode(item, f"{path}.{key}", objects)] for key, item in value.arguments.items()]
            described: dict[str, Any] = {"type": _reference_to(_CONFIG), "items": items, "metadata": _about(value), "paths": [path]}
        case tuple():
            items = [[f"Index(index={index})", _encode(item, f"{path}[{index}]", objects)] for index, item in enumerate(value)]
            described = {"type": _reference_to(_TUPLE), "items": items, "metadata": None, "paths": [path]}
        case Mapping():
            items = [[f"Key(key={key!r})", _encode(item, f"{path}[{key!r}]", objects)] for key, item in value.items()]
            described = {"type": _reference_to(_DICT), "items": items, "metadata": _plain_tuple(value), "paths": [path]}
        case _:
            return {"type": "leaf", "value": value, "paths": [path]}
    key = f"object_{len(objects) + 1}"
    objects[key] = described
    return {"type": "ref", "key": key}


def _about(call: Call) -> dict[str, Any]:
    """Fiddle's metadata of a call: what is called, and the names of the arguments; no tags, no history."""
    empty = {"type": _reference_to(_DICT), "items": [], "metadata": _NOTHING}
    about = {
        "fn_or_cls": _reference_to(call.target),
        "argument_names": _plain_tuple(call.arguments),
        "argument_tags": empty,
        "argument_history": empty,
    }
    items = [[f"Attr(name='{key}')", value] for key, value in about.items()]
    return {"type": _reference_to(_METADATA), "items": items, "metadata": _reference_to(_METADATA)}


def _plain_tuple(names: Mapping[str, Any]) -> dict[str, Any]:
    return {**_NOTHING, "items": [[f"Index(index={index})", name] for index, name in enumerate(names)]}


def _reference_to(target: str) -> dict[str, Any]:
    module, _, name = target.partition(":")
    return {"type": "pyref", "module": module, "name": name}


# -- model.yaml -----------------------------------------------------------------------------------------------------------


def yaml_lines(value: Call, indent: str = "") -> list[str]:
    """A call as NeMo writes it for people and for its exporters: `_target_`, then the arguments."""
    lines = [f"{indent}_target_: {_dotted(value.target)}"]
    for key, item in value.arguments.items():
        if isinstance(item, Call):
            lines += [f"{indent}{key}:", *yaml_lines(item, indent + "  ")]
        elif isinstance(item, Name):
            lines += [f"{indent}{key}:", f"{indent}  _call_: false", f"{indent}  _target_: {_dotted(item.target)}"]
        else:
            lines.append(f"{indent}{key}: {json.dumps(item)}")  # JSON is YAML
    return lines


def _dotted(target: str) -> str:
    return target.replace(":", ".")
