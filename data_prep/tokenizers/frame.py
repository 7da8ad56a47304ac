"""The tokens that a tokenizer itself puts around a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class Frame:
    """Tokens that a tokenizer puts before and after a text."""

    front: tuple[int, ...]
    back: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.front) + len(self.back)


def frame_of(tokenizer: PreTrainedTokenizerFast) -> Frame:
    """What the tokenizer itself puts around a text: `<s>` and `</s>` for RoBERTa and XLM-R.

    Raises:
        ValueError: if it cuts a text otherwise when it adds them.
    """
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    framed = tokenizer("a", add_special_tokens=True)["input_ids"]
    for front in range(len(framed) - len(plain) + 1):
        if framed[front : front + len(plain)] == plain:
            return Frame(tuple(framed[:front]), tuple(framed[front + len(plain) :]))
    raise ValueError("the tokenizer splits a text differently when it adds special tokens; export it again with its post-processor")
