"""A loaded Hugging Face model as lm-eval sees it."""

from __future__ import annotations

from typing import Any

import torch
from lm_eval.models.huggingface import HFLM


class LocalModel(HFLM):
    """lm-eval's own backend; logits that are no numbers end the run, where lm-eval would score them as wrong answers."""

    def _model_call(self, inps: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        logits = super()._model_call(inps, *args, **kwargs)
        # -inf is how a model may rule out padded rows of its vocabulary.
        if bool(torch.isnan(logits).any()) or bool(torch.isposinf(logits).any()):
            raise ValueError("the model's logits are not finite; check the checkpoint with `python -m conversion.verify`")
        return logits
