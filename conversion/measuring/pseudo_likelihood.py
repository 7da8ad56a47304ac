"""Pseudo bits per byte: how well a masked language model predicts each token from all others (Salazar et al. 2020).

One position at a time is hidden behind the mask token, and the negative log-likelihoods of what stood there are added up, in bits per UTF-8
byte of the text, unknown tokens charged as in `conversion.measuring.bits_per_byte`.  A model that sees what comes behind a token finds it much more
easily, and the sum is not a likelihood of the text: the figure compares masked models with each other, never with causal ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conversion.measuring.bits_per_byte import DocumentScore, DocumentScores, Memory, encode_text
from data_prep.tokenizers.frame import Frame, frame_of

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

_BATCH_TOKENS = 8192
_LOGIT_BYTES = 512 << 20  # of one batch's logits in float32


class PseudoScore(DocumentScores):
    """What a masked model makes of one text."""

    @property
    def pseudo_bits_per_byte(self) -> float:
        """Of the whole text."""
        return self._bits_per_byte()

    def figures(self) -> dict[str, Any]:
        """All figures of the text as a whole, for JSON."""
        return {"pseudo_bits_per_byte": self.pseudo_bits_per_byte, "pseudo_nats": self.nats, **self._counts()}


@dataclass(frozen=True)
class PseudoWindow:
    """Tokens that a model sees at once, in their frame, and the places from `first` to before `end` that are scored."""

    token_ids: tuple[int, ...]
    first: int
    end: int


def pseudo_windows(token_ids: Sequence[int], *, frame: Frame, window_tokens: int) -> Iterator[PseudoWindow]:
    """Cover a document with overlapping windows that score every token once, with a quarter of a window on both sides where there is as much.

    Raises:
        ValueError: if the tokens around a text leave no place in a window.
    """
    front, room = len(frame.front), window_tokens - len(frame)
    if room < 1:
        raise ValueError(f"--context-length is {window_tokens}, which leaves no place between {len(frame)} special tokens")
    margin, scored, begin = room // 4, 0, 0
    while scored < len(token_ids):
        end = min(begin + room, len(token_ids))
        upto = end if end == len(token_ids) else end - margin
        yield PseudoWindow((*frame.front, *token_ids[begin:end], *frame.back), front + scored - begin, front + upto - begin)
        scored = upto
        begin = max(0, min(scored - margin, len(token_ids) - room))


def score_documents_by_filling_in(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    documents: Sequence[str],
    *,
    window_tokens: int,
    text_name: str = "the text",
    memory: Memory | None = None,
) -> PseudoScore:
    """Score documents apart from each other.

    Args:
        text_name: how an error names the text.
        memory: of this text, model and settings; what it has is not recomputed.

    Raises:
        ValueError: if there are no documents, the tokenizer has no mask token, or a log-likelihood is not finite.
    """
    if not documents:
        raise ValueError(f"{text_name} holds no documents")
    mask_id = require_mask(tokenizer, owner=f"the model that should score {text_name}")
    frame = frame_of(tokenizer)
    scores, number = [], 0
    for index, text in enumerate(documents):
        ids, hidden = encode_text(tokenizer, text)
        nats = 0.0
        for window in pseudo_windows(ids, frame=frame, window_tokens=window_tokens):
            value = memory.get(number) if memory is not None else None
            if value is None:
                value = pseudo_nats(model, window, mask_id=mask_id)
                if not math.isfinite(value):
                    raise ValueError(
                        f"the log-likelihood of document {index + 1} of {text_name} is not finite: the model's logits are broken;"
                        " check the checkpoint with `python -m conversion.verify`"
                    )
                if memory is not None:
                    memory.keep({number: value})
            nats, number = nats + value, number + 1
        scores.append(DocumentScore(nats, len(ids), len(text.encode()), hidden))
    return PseudoScore(tuple(scores), window_tokens)


def require_mask(tokenizer: PreTrainedTokenizerFast, *, owner: str) -> int:
    """The id of the mask token.

    Raises:
        ValueError: if there is none.
    """
    if tokenizer.mask_token_id is None:
        raise ValueError(f"the tokenizer of {owner} has no mask token, behind which each token is hidden; set its mask_token (<mask>)")
    return int(tokenizer.mask_token_id)


def pseudo_nats(model: PreTrainedModel, window: PseudoWindow, *, mask_id: int) -> float:
    """Negative log-likelihood of each scored token with it alone hidden, added up; passes of one window are of one length, without padding."""
    import torch

    ids = torch.tensor(window.token_ids, device=model.device)
    places = torch.arange(window.first, window.end, device=model.device)
    vocab_size = int(model.config.get_text_config().vocab_size)
    rows = max(1, min(_BATCH_TOKENS // len(ids), _LOGIT_BYTES // (4 * vocab_size)))
    total = 0.0
    with torch.inference_mode():
        for chosen in places.split(rows):
            batch = ids.repeat(len(chosen), 1)
            batch[torch.arange(len(chosen)), chosen] = mask_id
            logits = _logits_at(model, batch, chosen).float()
            total += float(torch.nn.functional.cross_entropy(logits, ids[chosen], reduction="none").double().sum())
    return total


def _logits_at(model: PreTrainedModel, batch: Tensor, places: Tensor) -> Tensor:
    """(rows, vocabulary): of one place in each row; a head of its own sees that place alone, as logits of all are the most of the work."""
    import torch

    rows = torch.arange(len(places), device=batch.device)
    head: Any = getattr(model, "lm_head", None) or getattr(model, "cls", None)
    if head is None:
        return model(input_ids=batch).logits[rows, places]
    hidden = model.base_model(input_ids=batch).last_hidden_state
    found: Tensor = head(hidden[rows, places])
    return found
