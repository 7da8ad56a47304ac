"""A vector for each sentence: the mean of what a layer of a model gives for its tokens, those that begin and end it included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from common.quiet_library import quiet_transformers
from conversion.checkpoints.hf_files import load_config
from conversion.checkpoints.hf_model import Checkpoint, is_masked, require_device
from conversion.families import FAMILIES

if TYPE_CHECKING:
    from eval.protocols.sentence_retrieval import Vectors


class SentenceEncoder:
    """A model whose layers give vectors of sentences; its head is left out.

    Args:
        layer: counted from 1; 0 is the embeddings.

    Raises:
        ValueError: if the model has fewer layers, or cannot be loaded whole.
    """

    def __init__(self, checkpoint: Checkpoint, *, layer: int, device: str, dtype: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

        require_device(device)
        quiet_transformers()
        library: Any = AutoModelForMaskedLM if is_masked(checkpoint.model_type) else AutoModelForCausalLM
        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, "dtype": getattr(torch, dtype)}
        config = load_config(checkpoint.directory)
        model, notes = library.from_pretrained(str(checkpoint.directory), config=config, output_loading_info=True, **options)
        if missing := sorted(notes["missing_keys"]):
            raise ValueError(
                f"the weights in {checkpoint.directory} lack {len(missing)} tensors of the model, first {missing[0]}; export it again"
            )
        num_layers = model.config.num_hidden_layers
        if layer > num_layers:
            raise ValueError(
                f"--layer is {layer}, but the model in {checkpoint.directory} has {num_layers} layers; expected 0 to {num_layers}"
            )
        self._model, self._layer, self._device = model.base_model.to(device).eval(), layer, device
        if checkpoint.model_type in FAMILIES and FAMILIES[checkpoint.model_type].masked:
            # What lies above says nothing here; after the last layer of these there is no norm that another would get.
            self._model.encoder.layer = self._model.encoder.layer[: max(layer, 1)]
        self._tokenizer = checkpoint.tokenizer
        self._longest = checkpoint.num_positions or 512

    def vectors(self, sentences: Sequence[str], *, batch_size: int) -> Vectors:
        """(len(sentences), hidden_size) float32; a sentence longer than the model's positions is cut."""
        import torch

        # The longest first, so that a batch has sentences of a length and what does not fit shows at once.
        order = sorted(range(len(sentences)), key=lambda index: -len(sentences[index]))
        found: list[Any] = [None] * len(sentences)
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        with torch.inference_mode():
            for first in range(0, len(order), batch_size):
                numbers = order[first : first + batch_size]
                batch = self._tokenizer(
                    [sentences[number] for number in numbers],
                    padding=True,
                    truncation=True,
                    max_length=self._longest,
                    return_tensors="pt",
                    return_token_type_ids=False,
                ).to(self._device)
                hidden = self._model(**batch, output_hidden_states=True).hidden_states[self._layer].float()
                real = batch["attention_mask"].unsqueeze(-1).float()
                for number, mean in zip(numbers, ((hidden * real).sum(1) / real.sum(1)).cpu().numpy(), strict=True):
                    found[number] = mean
        return np.stack(found)
