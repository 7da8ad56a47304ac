"""Make a new model with random weights and the vocabulary of a tokenizer, for training from scratch.

The weights are initialised by the transformers library and depend on the seed only.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import command
from common.artifacts import Manifest, staged_directory, write_manifest
from common.options import add_option
from common.progress import show
from conversion.checkpoints.token_names import POSITIONS_FROM_PAD

if TYPE_CHECKING:
    from conversion.families.family import Family

STAGE = "conversion.new_model"
DEFAULT_MODEL_TYPE = "opt"


def make(tokenizer_dir: Path, output_dir: Path, *, seed: int, config: dict[str, Any]) -> Manifest:
    """Write a Hugging Face checkpoint of a new model.

    Args:
        tokenizer_dir: a Hugging Face tokenizer; the rows that it needs become the vocabulary, its special ids those of the model.
        config: `model_type` (by default OPT) and other fields of config.json; what is absent has the library's default.

    Raises:
        ValueError: if the model type is not supported, the tokenizer cannot be loaded, or the sizes do not fit each other.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, GenerationConfig

    from conversion.checkpoints.hf_checkpoint import copy_companions, write_hf_weights, write_json
    from conversion.checkpoints.hf_files import CONFIG_NAME, add_missing_class, in_words_of_both, read_json
    from conversion.checkpoints.token_names import output_name
    from conversion.families import FAMILIES, family_of
    from conversion.families.mapping import Duplicate
    from conversion.formats.lazy_tensor import LazyTensor
    from data_prep.tokenizers.files import load_tokenizer, rows_needed, tokenizer_digest

    family = family_of(config.get("model_type", DEFAULT_MODEL_TYPE), source="the new model")
    if family.language_part is not None:
        text_only = next(name for name, other in FAMILIES.items() if other.language_part is None and other.defaults is family.defaults)
        raise ValueError(
            f"a new model of the type {family.model_type} would have a vision tower that is not trained here; give --model-type"
            f" {text_only}, a text-only model"
        )
    add_missing_class(family.model_type)
    tokenizer = load_tokenizer(tokenizer_dir)
    of_tokenizer = {
        "vocab_size": rows_needed(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    fields = {key: value for key, value in config.items() if key != "model_type"} | of_tokenizer
    if "word_embed_proj_dim" in family.defaults:
        fields["word_embed_proj_dim"] = fields["hidden_size"]
    hf_config = AutoConfig.for_model(family.model_type, **fields)
    tied = bool(hf_config.tie_word_embeddings)
    family.megatron_config(hf_config.to_dict(), tied=tied, source="the new model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = (AutoModelForMaskedLM if family.masked else AutoModelForCausalLM).from_config(hf_config)
    state = model.state_dict()
    twice = {rule.hf for rule in family.table if isinstance(rule, Duplicate)} | ({output_name(state)} if tied else set())
    tensors = [LazyTensor.of(name, tensor) for name, tensor in state.items() if name not in twice]
    with staged_directory(output_dir, required_bytes=sum(tensor.nbytes for tensor in tensors)) as staging:
        model.config.dtype = torch.float32
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(staging)
        write_json(staging / CONFIG_NAME, in_words_of_both(read_json(staging / CONFIG_NAME, expected=""), source="the new model"))
        GenerationConfig.from_model_config(hf_config).save_pretrained(staging)
        copy_companions(tokenizer_dir, staging)
        digests = write_hf_weights(staging, tensors)
        return write_manifest(
            staging,
            stage=STAGE,
            facts={
                "model_type": family.model_type,
                "vocab_size": rows_needed(tokenizer),
                "tie_word_embeddings": tied,
                "tokenizer_digest": tokenizer_digest(tokenizer),
                "seed": seed,
            },
            arguments={"tokenizer": str(tokenizer_dir), "config": config},
            inputs={"tokenizer": tokenizer_digest(tokenizer)},
            known_digests=digests,
        )


# Flag -> key of config.json, or, where a family has a word of its own for it, that.
SIZES = {
    "num_layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "ffn_size": ("intermediate_size", "ffn_dim"),
    "num_attention_heads": ("num_attention_heads",),
    "num_key_value_heads": ("num_key_value_heads",),
    "max_positions": ("max_position_embeddings",),
}
NOT_REQUIRED = ("ffn_size", "num_key_value_heads")


def sizes_of(family: Family) -> dict[str, str]:
    """Flag -> key of config.json, of the sizes that the models of a family have."""
    return {flag: key for flag, keys in SIZES.items() for key in keys if key in family.defaults}


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and make the model."""
    parser = command.parser(
        __doc__,
        example=f"python -m {STAGE} --tokenizer work/tokenizer-en --num-layers 4 --hidden-size 128 --num-attention-heads 4 --ffn-size 512 \\\n"
        "      --max-positions 128 --seed 1 --output work/opt-tiny",
    )
    add_option(parser, "--tokenizer", "folder of a Hugging Face tokenizer", type=Path, required=True)
    add_option(parser, "--model-type", "model family, such as llama or gemma2 (default: that of --hf-config, else opt)")
    add_option(parser, "--hf-config", "config.json to start from, for example that of opt-125m; options override it", type=Path)
    add_option(parser, "--num-layers", "number of layers", type=int)
    add_option(parser, "--hidden-size", "width of the hidden states", type=int)
    add_option(parser, "--num-attention-heads", "number of attention heads", type=int)
    add_option(
        parser, "--num-key-value-heads", "number of key-value heads for grouped-query attention (default: one per attention head)", type=int
    )
    add_option(parser, "--ffn-size", "width of the feed-forward layers (default: 4 times the hidden size)", type=int)
    add_option(parser, "--max-positions", "maximum sequence length in tokens", type=int)
    add_option(parser, "--untied", "give the output layer its own matrix (untied embeddings)", False)
    add_option(parser, "--seed", "random seed", 0)
    add_option(parser, "--output", "folder to write", type=Path, required=True)
    arguments = parser.parse_args(argv)
    show(f"{arguments.output}: initialising a new model for {arguments.tokenizer}")
    config = _config(arguments)
    manifest = make(arguments.tokenizer, arguments.output, seed=arguments.seed, config=config)
    model_type, rows = manifest.facts["model_type"], manifest.facts["vocab_size"]
    print(f"{arguments.output}: new {model_type}, vocabulary of {rows} rows, seed {arguments.seed}")
    return command.DONE


def _config(arguments: argparse.Namespace) -> dict[str, Any]:
    """config.json from file and flags."""
    from conversion.checkpoints.hf_files import read_json
    from conversion.families import family_of

    config = read_json(arguments.hf_config, expected="--hf-config takes the config.json of a model") if arguments.hf_config else {}
    model_type = arguments.model_type or config.get("model_type", DEFAULT_MODEL_TYPE)
    if config.get("model_type", model_type) != model_type:
        raise ValueError(
            f"--hf-config {arguments.hf_config} is the configuration of a model of type {config['model_type']}, not {model_type}"
        )
    sizes = sizes_of(family_of(model_type, source="the new model"))
    if "num_key_value_heads" not in sizes and arguments.num_key_value_heads is not None:
        raise ValueError(f"--num-key-value-heads is given, but a model of the type {model_type} has a key and a value for each head")
    config |= {key: value for flag, key in sizes.items() if (value := getattr(arguments, flag)) is not None}
    if model_type in POSITIONS_FROM_PAD and arguments.max_positions is not None:
        config["max_position_embeddings"] += 2  # rows of the table for padding
    if missing := [f"--{flag.replace('_', '-')}" for flag, key in sizes.items() if key not in config and flag not in NOT_REQUIRED]:
        raise ValueError(f"the sizes of the new model are not complete: give {', '.join(missing)}, or a config.json with --hf-config")
    config.setdefault(sizes["ffn_size"], 4 * config["hidden_size"])
    if "num_key_value_heads" in sizes:
        config.setdefault("num_key_value_heads", config["num_attention_heads"])
    if arguments.untied:
        config["tie_word_embeddings"] = False
    return {**config, "model_type": model_type}


if __name__ == "__main__":
    command.run(main)
