"""vLLM as lm-eval sees it; runs in an environment of its own, as vLLM pins torch and transformers (see docs/evaluation.md)."""

from __future__ import annotations

from typing import Any

from lm_eval.models.vllm_causallms import VLLM

from eval.running.encoding import FinishedTexts


class VllmModel(VLLM):
    """lm-eval's own backend; log-likelihoods that are not numbers end the run, and texts that reached the last token allowed are known."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._ends = FinishedTexts()
        self._sampling_seed: int | None = None
        self.cache_hook: Any = self._ends

    @property
    def finished(self) -> dict[str, bool]:
        """Prompt -> whether its last text ended with a stop string or the end of text."""
        return self._ends.by_prompt

    def start_sampling(self, seed: int) -> None:
        """Seed what samples the next texts."""
        self._sampling_seed = seed

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation, and whether it is the greedy one.

        Raises:
            ValueError: if one is not a number.
        """
        answers = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        if any(score != score for score, _ in answers):
            raise ValueError("the model's logits are not finite; check the checkpoint with `python -m conversion.verify`")
        return answers

    def _model_generate(self, requests: Any = None, generate: bool = False, sampling_params: Any = None) -> Any:
        if generate and sampling_params is not None and self._sampling_seed is not None:
            for number, params in enumerate(sampling_params):
                if params.temperature > 0:
                    params.seed = self._sampling_seed + number
        outputs = super()._model_generate(requests, generate=generate, sampling_params=sampling_params)
        if generate:
            self._ends.coming += [output.outputs[0].finish_reason == "stop" for output in outputs]
        return outputs
