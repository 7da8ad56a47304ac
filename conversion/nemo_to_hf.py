"""Convert a NeMo 2 checkpoint, trained or not, to a Hugging Face checkpoint that transformers, lm-eval and vLLM load.

Reads only the weights, from a checkpoint of any parallel layout, with or without optimizer state.  Rows that pad the vocabulary
are removed.  config.json is that of the source model, byte for byte unless a key in CHANGEABLE_KEYS changed (keys that only transformers 5 reads
get those of version 4 beside them).  Tokenizer, chat template and generation config are copied from the source byte for byte, unless
--chat-template gives another template, or the training data used another beginning-of-text rule than the tokenizer, which then adopts it.
README.md is a model card with the origin of the model from the manifests.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import command
from common.artifacts import Manifest, check_files, digest_files, read_manifest, staged_directory, write_manifest
from common.background import Background
from common.options import add_option, add_options, values_of
from common.progress import Progress
from conversion.checkpoints.model_card import CARD_NAME, CardOptions, consumed_tokens, model_card, read_corpora, read_results
from conversion.checkpoints.summary import summary

if TYPE_CHECKING:
    from conversion.checkpoints.nemo_checkpoint import NeMoCheckpoint
    from conversion.formats.lazy_tensor import Bits, LazyTensor

STAGE = "conversion.nemo_to_hf"
CHANGEABLE_KEYS = ("vocab_size", "tie_word_embeddings", "torch_dtype", "dtype")
LANGUAGE_PART = "text_config"  # in which the first two are changed where there is one
DTYPES = ("float32", "float16", "bfloat16")


def export(
    input_dir: Path,
    output_dir: Path,
    *,
    dtype: str | None = None,
    max_shard_bytes: int | None = None,
    card: CardOptions | None = None,
    chat_template: Path | None = None,
    keep_factors: bool = False,
) -> Manifest:
    """Write the Hugging Face checkpoint of a NeMo checkpoint, of a run that of its newest.

    Args:
        dtype: one of DTYPES for all weights; by default each keeps its own.
        max_shard_bytes: by default as the transformers library.
        card: what the model card says besides what the manifests do.
        chat_template: Jinja file for the tokenizer, see `conversion.checkpoints.chat_template`; by default the source's.
        keep_factors: write coordinates and primitives in place of their product, for `conversion.checkpoints.factorised_model`.

    Raises:
        ValueError: if the input is missing, corrupt, edited or not complete; if a value does not fit the dtype; if the output
            exists or the disk is full.
    """
    from common.allocation import return_freed_memory
    from conversion.checkpoints.chat_template import add_chat_template
    from conversion.checkpoints.factors import FACTORISED_NAME, TABLE
    from conversion.checkpoints.hf_checkpoint import DEFAULT_MAX_SHARD_BYTES, copy_companions, copy_config, write_hf_weights
    from conversion.checkpoints.hf_files import CONFIG_NAME
    from conversion.checkpoints.nemo_checkpoint import NeMoCheckpoint
    from conversion.families import family_of
    from conversion.families.mapping import hf_name_of, map_to_hf
    from conversion.formats.lazy_tensor import counted
    from conversion.formats.safetensors_file import write_safetensors
    from data_prep.tokenizers.files import load_tokenizer, tokenizer_digest, tokenizer_files
    from data_prep.tokenizers.frame import FRONT, set_front

    return_freed_memory()
    nemo = NeMoCheckpoint.open(newest_of_run(input_dir))
    manifest = read_manifest(nemo.directory)
    if manifest is not None:
        check_files(nemo.directory, manifest, contents=False)
    family = family_of(nemo.family, source=str(nemo.directory))
    table = family.table_of(nemo.tensors)
    tensors = sorted(map_to_hf(table, nemo.tensors, nemo.config, source=str(nemo.directory)), key=_by_layer)
    if keep_factors:
        tensors = _with_factors(nemo, tensors, hf_name_of(table, TABLE))
    if dtype is not None:
        tensors = [tensor if tensor.dtype_name == dtype else _cast(tensor, dtype) for tensor in tensors]
    config, changes = _config(nemo, tensors)
    facts = {key: value for key, value in (manifest.facts if manifest else {}).items() if key != "padded_vocab_size"}
    facts |= {
        "model_type": nemo.family,
        "vocab_size": nemo.config["vocab_size"],
        "tie_word_embeddings": nemo.config["share_embeddings_and_output_weights"],
        "changed_config_keys": sorted(changes),
    }
    if keep_factors:
        facts["factorised_size"] = nemo.factors["primitives"].shape[0]
    if (tokens := consumed_tokens(manifest)) is not None:
        facts["consumed_tokens"] = tokens
    card_text = model_card(
        name=Path(output_dir).name,
        config={**config, **changes, "vocab_size": nemo.config["vocab_size"]},
        num_parameters=sum(math.prod(tensor.shape) for tensor in tensors),
        facts=facts,
        source=manifest,
        options=card or CardOptions(),
        # A chat template's own tokens must be special in what users send, so with one the switch is off.
        splits_special_tokens=chat_template is None and _splits_special_tokens(nemo.hf_dir / "tokenizer_config.json"),
    )
    total = sum(tensor.nbytes for tensor in tensors)
    with staged_directory(output_dir, required_bytes=total) as staging:
        source_digest = Background(partial(_digest, nemo, manifest), yields=True)  # reads the whole input, so it runs beside the conversion
        with Progress("converting", total=total, unit="B", is_bytes=True) as progress:
            shard_bytes = max_shard_bytes or DEFAULT_MAX_SHARD_BYTES
            weights = counted(tensors, progress.advance)
            if keep_factors:
                digests = {FACTORISED_NAME: write_safetensors(staging / FACTORISED_NAME, list(weights))}
            else:
                digests = write_hf_weights(staging, weights, max_shard_bytes=shard_bytes)
        if changes:
            text = json.dumps({**config, **changes}, indent=2, ensure_ascii=False) + "\n"
            (staging / CONFIG_NAME).write_text(text, encoding="utf-8")
        else:
            copy_config(nemo.hf_dir, staging)
        (staging / CARD_NAME).write_text(card_text, encoding="utf-8")
        copy_companions(nemo.hf_dir, staging)
        if FRONT in facts and tokenizer_files(staging):
            set_front(staging, facts[FRONT])
            facts["tokenizer_digest"] = tokenizer_digest(load_tokenizer(staging))
        if chat_template is not None:
            add_chat_template(staging, chat_template)
        return write_manifest(
            staging,
            stage=STAGE,
            facts=facts,
            arguments={"input": str(input_dir), "dtype": dtype, "max_shard_bytes": max_shard_bytes}
            | ({"chat_template": str(chat_template)} if chat_template is not None else {})
            | ({"keep_factors": True} if keep_factors else {}),
            inputs={"nemo": source_digest.result()},
            known_digests=digests,
        )


def newest_of_run(path: Path) -> Path:
    """The newest checkpoint in the directory of a run, said on stderr; any other path as it is."""
    from conversion.inspection.places import NEMO, locate

    if not (path / "checkpoints").is_dir() or (place := locate(path)).format != NEMO:
        return path
    print(f"{path} is a run; its newest checkpoint is {place.directory}", file=sys.stderr)
    return place.directory


def _with_factors(nemo: NeMoCheckpoint, tensors: Sequence[LazyTensor], table: str) -> list[LazyTensor]:
    """The tensors with the factors of the token table in its place."""
    from conversion.checkpoints.factors import factor_names

    if not nemo.factors:
        raise ValueError(
            f"{nemo.directory} has a token table of one matrix, no factors that could be kept; leave out --keep-factors, or train with model.factors"
        )
    factors = [nemo.factors[part].renamed(name) for part, name in factor_names(table).items()]
    place = next(number for number, tensor in enumerate(tensors) if tensor.name == table)
    return [*tensors[:place], *factors, *tensors[place + 1 :]]


def _by_layer(tensor: LazyTensor) -> list[tuple[int, str]]:
    """Sort key of names: numbers in them by value."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in tensor.name.split(".")]


def _cast(tensor: LazyTensor, dtype_name: str) -> LazyTensor:
    import torch

    from conversion.formats.lazy_tensor import bits_of

    dtype = getattr(torch, dtype_name)

    def cast(bits: Bits) -> Bits:
        values = torch.from_numpy(bits).view(tensor.dtype)
        found = values.to(dtype)
        if not found.isfinite().all() and values.isfinite().all():
            raise ValueError(
                f"{tensor.name} has values of up to {values.abs().max():.3g}, which {dtype} cannot hold; choose another --dtype"
            )
        return bits_of(found)

    rows = tensor.rows
    cast_rows = None if rows is None else lambda start, stop: cast(rows(start, stop))
    return replace(tensor, dtype_name=dtype_name, bits=lambda: cast(tensor.bits()), rows=cast_rows)


def _splits_special_tokens(config_path: Path) -> bool:
    """Whether a tokenizer_config.json takes text that spells a special token for text."""
    from common.plain_files import read_json

    return config_path.is_file() and bool(read_json(config_path).get("split_special_tokens"))


def _config(nemo: NeMoCheckpoint, tensors: Sequence[LazyTensor]) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json of the source, and the values in it that no longer hold."""
    from conversion.checkpoints.hf_files import CONFIG_NAME, in_words_of_both, read_json, tied_by_config, with_language_values
    from conversion.families import language_config

    config = read_json(nemo.hf_dir / CONFIG_NAME, expected="expected the source's config")
    config = in_words_of_both(config, source=str(nemo.hf_dir))
    values: dict[str, Any] = {}
    if language_config(config).get("vocab_size") != nemo.config["vocab_size"]:
        values["vocab_size"] = nemo.config["vocab_size"]
    if tied_by_config(config) != nemo.config["share_embeddings_and_output_weights"]:
        values["tie_word_embeddings"] = nemo.config["share_embeddings_and_output_weights"]
    changed = with_language_values(config, **values)
    dtype = tensors[0].dtype_name
    if dtype != nemo.hf_dtype:
        changed["dtype" if "dtype" in config else "torch_dtype"] = dtype
    # Not by != alone: a number that is none differs from itself.
    changes = {key: value for key, value in changed.items() if key not in config or (value is not config[key] and value != config[key])}
    assert set(changes) <= {*CHANGEABLE_KEYS, LANGUAGE_PART}
    return config, changes


def _digest(nemo: NeMoCheckpoint, manifest: Manifest | None) -> str:
    """Identity of the checkpoint; where it has a manifest with digests, the files are checked against them."""
    if manifest is None:
        files = sorted(path for path in nemo.directory.rglob("*") if path.is_file())
        return digest_files(nemo.directory, [path.relative_to(nemo.directory).as_posix() for path in files])
    check_files(nemo.directory, manifest)
    return manifest.digest


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and convert."""
    parser = command.parser(__doc__, example=f"python -m {STAGE} --input work/run/step_0000500 --output work/hf/opt-sl")
    add_option(
        parser, "--input", "NeMo checkpoint folder (weights/ and context/), or a run, of which the newest is used", type=Path, required=True
    )
    add_option(parser, "--output", "folder to write", type=Path, required=True)
    add_option(parser, "--dtype", "dtype of all weights (default: each keeps its own)", choices=DTYPES)
    add_option(parser, "--max-shard-bytes", "maximum size of a weights file in bytes (default: 5 GB)", type=int)
    add_options(parser, CardOptions)
    add_option(
        parser, "--chat-template JINJA", "chat template of a model tuned on conversations, for example recipes/tuning/chat.jinja", type=Path
    )
    add_option(
        parser,
        "--keep-factors",
        "write a factorised embedding (OFA) as its two factors, not as their product; load it with conversion.checkpoints.factorised_model",
        False,
    )
    arguments = parser.parse_args(argv)
    if arguments.keep_factors and (arguments.dtype is not None or arguments.max_shard_bytes is not None):
        raise ValueError("--keep-factors writes one file of the weights as they are; leave out --dtype and --max-shard-bytes")
    if arguments.max_shard_bytes is not None and arguments.max_shard_bytes < 1:
        raise ValueError(f"--max-shard-bytes is {arguments.max_shard_bytes}; expected at least 1, such as 5000000000")
    start = time.monotonic()
    read = {"results": read_results(arguments.results), "corpora": read_corpora(arguments.corpora)}
    card = CardOptions(**values_of(arguments, CardOptions) | read)
    manifest = export(
        arguments.input,
        arguments.output,
        dtype=arguments.dtype,
        max_shard_bytes=arguments.max_shard_bytes,
        card=card,
        chat_template=arguments.chat_template,
        keep_factors=arguments.keep_factors,
    )
    print(summary(arguments.output, manifest, seconds=time.monotonic() - start))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
