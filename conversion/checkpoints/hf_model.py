"""A Hugging Face folder as a model to run: checked without loading it, then loaded as it is."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.artifacts import combined_digest, read_manifest, require_same_tokenizer
from common.quiet_library import quiet_transformers
from conversion.checkpoints.adapter import adapter_digest, add_adapter, find_base, is_adapter
from conversion.checkpoints.hf_files import load_config
from conversion.checkpoints.token_names import POSITIONS_FROM_PAD
from data_prep.tokenizers.files import TOKENIZER_FILES, load_tokenizer, rows_needed, save_tokenizer, tokenizer_digest
from data_prep.tokenizers.frame import require_own_front

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

DTYPES = ("float32", "bfloat16", "float16")
_WITH_A_DECODER = ("bart", "mbart", "mvp")  # transformers fills their masks too, but they write
_SEES_AHEAD = 1e-3  # of the largest logit


@dataclass(frozen=True)
class Checkpoint:
    """A model folder that passed all checks that need no weights in memory.

    Attributes:
        name: how results call it; also the name of its folder of results.
        digest: identity of weights, config and tokenizer, wherever the folder lies.
        vocab_size: rows of the embedding matrix, by the config.
        num_positions: tokens that the model can see at once; None where its config names no limit.
        stage: the command that wrote the folder, and `facts` what its manifest says; None and {} without manifest.
        adapter: folder of a LoRA adapter that is added to the weights of `directory`.
    """

    name: str
    directory: Path
    digest: str
    tokenizer: PreTrainedTokenizerFast
    tokenizer_digest: str
    model_type: str
    vocab_size: int
    num_positions: int | None
    tie_word_embeddings: bool
    stage: str | None
    facts: dict[str, Any]
    adapter: Path | None = None


def inspect_checkpoint(directory: Path, *, name: str, base: Path | None = None) -> Checkpoint:
    """Check a folder against its manifest and its tokenizer against its embedding matrix.

    Args:
        directory: a model, or a LoRA adapter as PEFT saves it.
        base: the model of an adapter; None for what the adapter's config names.

    Raises:
        ValueError: if the folder or a part of it is missing, edited after its manifest was written, or of another tokenizer.
    """
    from conversion.checkpoints.hf_checkpoint import HFCheckpoint

    if not directory.is_dir():
        raise ValueError(f"the model folder {directory} does not exist")
    if is_adapter(directory):
        return _with_adapter(inspect_checkpoint(find_base(directory, base), name=name), directory)
    weights = HFCheckpoint.open(directory)
    digest = weights.digest()
    # transformers would go by the config alone, and leave out an output layer that was trained apart.
    tied = weights.tie_word_embeddings
    config = _read_config(directory).get_text_config()  # the language model's part, for models that also see
    manifest = read_manifest(directory)
    facts = dict(manifest.facts) if manifest is not None else {}
    tokenizer = load_tokenizer(directory)
    digest_of_tokenizer = tokenizer_digest(tokenizer)
    require_same_tokenizer(
        digest_of_tokenizer, facts.get("tokenizer_digest"), found_in=str(directory), expected_by=f"the manifest of {directory}"
    )
    require_own_front(tokenizer, facts, source=str(directory))
    vocab_size = int(config.vocab_size)
    if (largest_id := rows_needed(tokenizer) - 1) >= vocab_size:
        raise ValueError(
            f"the tokenizer in {directory} has ids up to {largest_id}, but the embedding matrix has {vocab_size} rows:"
            " it is the tokenizer of another model; copy the right one there"
        )
    return Checkpoint(
        name=name,
        directory=directory,
        digest=combined_digest({"weights": digest, "tokenizer": digest_of_tokenizer}),
        tokenizer=tokenizer,
        tokenizer_digest=digest_of_tokenizer,
        model_type=str(config.model_type),
        vocab_size=vocab_size,
        num_positions=_num_positions(config),
        tie_word_embeddings=tied,
        stage=manifest.stage if manifest is not None else None,
        facts=facts,
    )


def _with_adapter(base: Checkpoint, directory: Path) -> Checkpoint:
    """A base model with an adapter, whose folder may have a tokenizer and a manifest of its own."""
    manifest = read_manifest(directory)
    tokenizer, digest = base.tokenizer, base.tokenizer_digest
    if any((directory / name).is_file() for name in TOKENIZER_FILES):
        tokenizer = load_tokenizer(directory)
        digest = tokenizer_digest(tokenizer)
        if (largest_id := rows_needed(tokenizer) - 1) >= base.vocab_size:
            raise ValueError(
                f"the tokenizer in {directory} has ids up to {largest_id}, but its base model {base.directory} has {base.vocab_size} rows:"
                " it is the tokenizer of another model; give the right base with --base"
            )
    facts = dict(manifest.facts) if manifest is not None else {}
    require_own_front(tokenizer, facts, source=str(directory))
    return replace(
        base,
        digest=combined_digest({"base": base.digest, "adapter": adapter_digest(directory), "tokenizer": digest}),
        tokenizer=tokenizer,
        tokenizer_digest=digest,
        stage=manifest.stage if manifest is not None else None,
        facts=facts,
        adapter=directory,
    )


def _read_config(directory: Path) -> PretrainedConfig:
    try:
        return load_config(directory)
    except Exception as error:  # anything from OSError to KeyError, by what is wrong in the file
        if "trust_remote_code" in str(error):
            raise ValueError(
                f"the model in {directory} is a program of its own (auto_map in config.json), which is not executed; expected an architecture"
                " that transformers knows"
            ) from error
        raise ValueError(
            f"{directory / 'config.json'} is not a model config that transformers knows: {' '.join(str(error).split())}"
        ) from error


def _num_positions(config: PretrainedConfig) -> int | None:
    rows = getattr(config, "max_position_embeddings", None)
    if rows is None or config.model_type not in POSITIONS_FROM_PAD:
        return rows
    return int(rows) - int(config.pad_token_id or 0) - 1


def load_model(checkpoint: Checkpoint, *, device: str, dtype: str, masked: bool = False) -> PreTrainedModel:
    """The model in evaluation mode; nothing is downloaded, no tensor is left to chance.

    Args:
        masked: whether the caller fills in tokens of a masked model; without it such a model is refused.

    Raises:
        ValueError: if the device is not there, or if the weights cannot be read, do not have every tensor of the model, or are of a model whose predictions see the tokens
            that they predict.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    from conversion.checkpoints.hf_checkpoint import HFCheckpoint

    require_device(device)

    quiet_transformers()
    arguments: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, "output_loading_info": True}
    # With an adapter the sum is made in float32 and rounded once, as in our exports.
    arguments["dtype"] = torch.float32 if checkpoint.adapter is not None else getattr(torch, dtype)
    arguments["config"] = _read_config(checkpoint.directory)
    if getattr(arguments["config"].get_text_config(), "attn_logit_softcapping", None):
        arguments["attn_implementation"] = "eager"  # the others silently leave out the logit caps of Gemma 2
    if renamed := HFCheckpoint.open(checkpoint.directory).renamed:  # transformers would tie it to a random one
        arguments["key_mapping"] = {f"^{re.escape(stored)}$": name for stored, name in renamed.items()}
    try:
        library: Any = AutoModelForMaskedLM if masked else AutoModelForCausalLM
        loaded: Any = library.from_pretrained(str(checkpoint.directory), **arguments)
    except Exception as error:  # from OSError to SafetensorError and RuntimeError, by what is wrong
        raise ValueError(f"the model in {checkpoint.directory} cannot be loaded: {error}") from error
    model, loading = loaded
    # transformers fills what it does not find with random numbers and goes on.
    if missing := sorted(loading["missing_keys"]):
        raise ValueError(
            f"the weights in {checkpoint.directory} lack {len(missing)} tensors of the model, first {missing[0]}; export it again"
        )
    if checkpoint.adapter is not None:
        model = add_adapter(model, checkpoint.adapter).to(getattr(torch, dtype))
    model = model.to(device).eval()
    if not masked:
        _require_causal(model, checkpoint)
    return model


@contextlib.contextmanager
def whole_folder(checkpoint: Checkpoint, dtype: str) -> Iterator[Path]:
    """The model's folder; of an adapter one with the whole model, which is there until the end of the block."""
    if checkpoint.adapter is None:
        yield checkpoint.directory
        return
    with tempfile.TemporaryDirectory(prefix="scion-merged-") as folder:
        load_model(checkpoint, device="cpu", dtype=dtype).save_pretrained(folder)
        save_tokenizer(checkpoint.tokenizer, Path(folder))
        yield Path(folder)


def is_masked(model_type: str) -> bool:
    """Whether models of a type see the tokens behind each: RoBERTa, BERT and their like, by transformers' own table."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    return model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and model_type not in _WITH_A_DECODER


def _require_causal(model: PreTrainedModel, checkpoint: Checkpoint) -> None:
    """Refuse a masked model, which transformers loads as if it were causal: another last token must not change the first prediction."""
    import torch

    ids = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 9]], device=model.device).remainder(checkpoint.vocab_size)
    with torch.inference_mode():
        first = model(input_ids=ids).logits[:, 0].float()
    # A causal mask adds exact zeros; what is left is the rounding of kernels that work on the batch in another order.
    if float((first[0] - first[1]).abs().max()) > _SEES_AHEAD * float(first.abs().max()):
        raise ValueError(
            f"the model in {checkpoint.directory} ({checkpoint.model_type}) sees the tokens that it should predict, as masked language models do,"
            " so its scores would be meaningless; give a causal model, or score this one by pseudo-likelihood (pseudo bits per"
            f" byte): `python -m eval.harness --model {checkpoint.directory} --text NAME=FILE --output results/`"
        )


def require_device(device: str) -> str:
    """The device, if this machine has it.

    Raises:
        ValueError: if it is not a device that models run on, or is not there.
    """
    import torch

    try:
        found = torch.device(device)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ValueError(f"--device {device} is not a device that models run on; expected cpu, cuda or cuda:1")
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found.type == "cuda" and (found.index or 0) >= num_gpus:
        there = f"torch sees {num_gpus} GPU{'s' * (num_gpus != 1)} here"
        raise ValueError(f"--device {device} is not available: {there}; give {'cuda:0' if num_gpus else 'cpu'}")
    return device


def default_device() -> str:
    """`cuda` where there is one, else `cpu`."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def be_quiet_and_offline() -> None:
    """No network, no chatter of the libraries, no spinning threads; must run before they are imported."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    os.environ.update(offline)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Threads that wait by spinning make small models ten times slower where other work shares the processors.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
