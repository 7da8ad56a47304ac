"""Token ids of requests as lm-eval makes them, each text encoded once: for all choices of a question, all tasks, all checkpoints of a tokenizer.

Beside it lm-eval's cache hook, by which a generated text says whether it ended by itself or only at the last token allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from lm_eval.api.model import TemplateLM

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Pair = tuple[Sequence[int], Sequence[int]]  # of a context, and of what comes after it


class Encoder:
    """What lm-eval's backends do with a tokenizer, by lm-eval's own code.

    Attributes:
        prefix_token_id: what stands before a continuation without context.
    """

    backend = "causal"  # lm-eval's word for models that read a context and its continuation as one

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        start_id = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        self.prefix_token_id: Any = start_id
        self._start = None if start_id is None else str(tokenizer.decode(start_id))
        self._known: dict[tuple[str, bool | None], list[int]] = {}

    def tok_encode(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Token ids: special tokens in front unless told otherwise, but no second start token."""
        key = text, add_special_tokens
        if (ids := self._known.get(key)) is None:
            if add_special_tokens is None:
                add_special_tokens = self._start is None or not text.startswith(self._start)
            ids = self._known[key] = list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))
        return ids

    def pairs(self, requests: Sequence[Any]) -> list[Pair]:
        """Of requests for log-likelihoods."""
        found: list[Pair] = cast("Any", TemplateLM).loglikelihood(self, requests, disable_tqdm=True)
        return found

    def _encode_pair(self, context: str, continuation: str) -> Pair:
        found: Pair = cast("Any", TemplateLM)._encode_pair(self, context, continuation)
        return found

    def _loglikelihood_tokens(self, requests: Sequence[tuple[Any, Sequence[int], Sequence[int]]], disable_tqdm: bool = False) -> list[Pair]:
        """lm-eval calls this with what it has encoded."""
        return [(context, continuation) for _, context, continuation in requests]


class FinishedTexts:
    """lm-eval's cache hook, called for each generated text in the order of its batch: remembers which ones ended by themselves.

    Attributes:
        coming: whether each row of the last batch ended; the backend appends them.
        by_prompt: what was learned.
    """

    def __init__(self) -> None:
        self.coming: list[bool] = []
        self.by_prompt: dict[str, bool] = {}

    def add_partial(self, kind: str, request: tuple[Any, ...], answer: Any) -> None:
        """Called by the backend for each answer."""
        if kind == "generate_until":
            self.by_prompt[request[0]] = self.coming.pop(0)
