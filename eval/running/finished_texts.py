"""Which generated texts ended by themselves, and which only because they reached the last token allowed."""

from __future__ import annotations

from typing import Any


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
