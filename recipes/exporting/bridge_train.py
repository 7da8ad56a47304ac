"""Train with Megatron-Bridge's own loop what `config.yaml` beside this file says; `python -m recipes.export` put both here.

    torchrun --nproc-per-node=8 train.py [section.key=value ...]

Nothing of the project that wrote it is needed.  `parameters.json` has what the configuration has no words for: the names of parameters that
are frozen for the whole run, and how many rows of the vocabulary are real.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

# The norms before a layer's linear parts are parts of these with TransformerEngine, and modules of their own without it.
_NAMES_IN_CHECKPOINT = {
    ".input_layernorm.": ".self_attention.linear_qkv.layer_norm_",
    ".pre_mlp_layernorm.": ".mlp.linear_fc1.layer_norm_",
}


def main() -> None:
    """Read what lies beside this file, and train."""
    from megatron.bridge.training.config import ConfigContainer
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    here = Path(__file__).resolve().parent
    known = json.loads((here / "parameters.json").read_text(encoding="utf-8"))
    config = ConfigContainer.from_yaml(str(here / "config.yaml"))
    if sys.argv[1:]:
        config = process_config_with_overrides(config, cli_overrides=sys.argv[1:])
    config.model.register_pre_wrap_hook(partial(prepare, frozen=set(known["frozen"]), vocab_size=known["vocab_size"]))
    use_compiled_helpers()
    pretrain(config, forward_step)


def prepare(chunks: list[Any], *, frozen: set[str], vocab_size: int) -> list[Any]:
    """Freeze parameters, and take padding rows out of the softmax, before the model is wrapped.

    Args:
        chunks: the model's parts on this rank.
        frozen: names in the checkpoint.
        vocab_size: rows of the vocabulary that are tokens.
    """
    for chunk in chunks:
        for name, parameter in named_as_in_checkpoint(chunk):
            if name in frozen:
                parameter.requires_grad_(False)
        output = getattr(chunk, "output_layer", None)
        if output is not None:
            rows = chunk.vocab_size // chunk.config.tensor_model_parallel_size
            first_row = chunk.pg_collection.tp.rank() * rows
            output.register_forward_hook(partial(mask_padding, real_columns=max(vocab_size - first_row, 0)))
    return chunks


def named_as_in_checkpoint(model: Any) -> Iterator[tuple[str, Any]]:
    """The parameters of a part of the model with their names in the checkpoint, layers counted over the whole model."""
    layers = {f"decoder.layers.{i}.": f"decoder.layers.{layer.layer_number - 1}." for i, layer in enumerate(model.decoder.layers)}
    for name, parameter in model.named_parameters():
        for local, whole in layers.items():
            if name.startswith(local):
                name = whole + name.removeprefix(local)
                break
        for local, saved in _NAMES_IN_CHECKPOINT.items():
            name = name.replace(local, saved)
        if name == "output_layer.weight" and model.share_embeddings_and_output_weights:
            name = "embedding.word_embeddings.weight"  # the copy that the last pipeline stage has of a shared table
        yield name, parameter


def mask_padding(module: Any, inputs: Any, output: tuple[Any, Any], *, real_columns: int) -> tuple[Any, Any]:
    """Give padding rows probability zero and gradient zero; otherwise each would add exp(logit) to every softmax."""
    import torch

    logits, bias = output
    if real_columns < logits.shape[-1]:
        logits[..., real_columns:] = torch.finfo(logits.dtype).min
    return logits, bias


def use_compiled_helpers() -> None:
    """Have Bridge take the compiled helpers of Megatron-core's wheel, which lacks the Makefile with which it would compile them again."""
    import megatron.core.datasets
    from megatron.bridge.training import initialize

    folder = Path(megatron.core.datasets.__file__).parent
    if any(folder.glob("helpers_cpp*.so")) and not (folder / "Makefile").exists():
        initialize.compile_helpers = lambda: None


if __name__ == "__main__":
    main()
