"""A loaded Hugging Face model as lm-eval sees it."""

from __future__ import annotations

from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from transformers import LogitsProcessor, LogitsProcessorList

from eval.running.finished_texts import FinishedTexts


def require_numbers(logits: torch.Tensor) -> None:
    """Refuse logits, of any shape, that are no numbers, which lm-eval would score as wrong answers.

    Raises:
        ValueError: if one is NaN or positive infinity; -inf is how a model may rule out padded rows of its vocabulary.
    """
    if bool(torch.isnan(logits).any()) or bool(torch.isposinf(logits).any()):
        raise ValueError("the model's logits are not finite; check the checkpoint with `python -m conversion.verify`")


class _RequireNumbers(LogitsProcessor):
    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        require_numbers(scores)
        return scores


class LocalModel(HFLM):
    """lm-eval's own backend; logits that are no numbers end the run, and texts that reached the last token allowed are known."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._ends = FinishedTexts()
        self.cache_hook: Any = self._ends

    @property
    def finished(self) -> dict[str, bool]:
        """Prompt -> whether its last text ended with a stop string or the end of text."""
        return self._ends.by_prompt

    def start_sampling(self, seed: int) -> None:
        """Seed what samples the next texts."""
        torch.manual_seed(seed)

    def _model_call(self, inps: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        logits = super()._model_call(inps, *args, **kwargs)
        require_numbers(logits)
        return logits

    def _model_generate(self, context: torch.Tensor, max_length: int, stop: list[str], **generation_kwargs: Any) -> torch.Tensor:
        generation_kwargs["logits_processor"] = LogitsProcessorList([_RequireNumbers()])
        if generation_kwargs.get("num_beams", 1) > 1:
            # lm-eval looks for stop strings in one row of each prompt, which with beams are the rows of other prompts.
            ends: dict[str, Any] = {"stop_strings": stop, "tokenizer": self.tokenizer, "pad_token_id": self.tokenizer.pad_token_id}
            output = self.model.generate(input_ids=context, max_length=max_length, **ends, **generation_kwargs)
        else:
            output = super()._model_generate(context, max_length, stop, **generation_kwargs)
        for row in output[:, context.shape[1] :].tolist():
            text = str(self.tok_decode(row, skip_special_tokens=False))
            self._ends.coming.append(self.eot_token_id in row or any(end in text for end in stop))
        return output
