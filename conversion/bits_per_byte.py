"""Bits per byte: how well a model predicts a text, in a unit that does not depend on its tokenizer.

The negative log-likelihood of all tokens of the text, in bits, divided by the UTF-8 bytes of the text as it was given.  Losses and
perplexities per token compare models of one tokenizer only; bits per byte compares any two models on the same file.  A token that
stands for characters outside the vocabulary does not say which ones they were, so 8 bits are added for each byte that it hides, as if
those were sent as they are; without that a tokenizer that knows fewer letters would look better.

lm-eval has the metric too (`loglikelihood_rolling`, see `eval/tasks/heldout_text`).  This module exists beside it because lm-eval scores
the BOS of tokenizers that add one, after a second BOS; because its windows leave the first token of every later window with a context of
one token; and because it keeps neither the number of tokens nor the documents' own figures, which intervals need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

START_TOKEN_RULES = ("auto", "bos", "eos")  # or any token
# How models call the end of a document.  Those tuned on chats name the end of a turn as their EOS and keep this one beside it.
_DOCUMENT_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<turn|>", "<|end|>")
DEFAULT_WINDOW_TOKENS = 2048  # the position table of OPT: the largest window that all models compared in the papers have
_BATCH_TOKENS = 8192
_LOGIT_BYTES = 512 << 20  # of one batch's logits in float32; a vocabulary of 256,000 allows 524 tokens


@dataclass(frozen=True)
class StartToken:
    """The one token before every document, and why it is that one."""

    id: int
    token: str
    reason: str


@dataclass(frozen=True)
class DocumentScore:
    """Negative log-likelihood in nats, tokens and UTF-8 bytes of one document, and how many of the bytes unknown tokens hide."""

    nats: float
    num_tokens: int
    text_bytes: int
    unknown_bytes: int


@dataclass(frozen=True)
class TextScore:
    """What a model makes of one text.

    Attributes:
        window_tokens: most tokens that the model saw at once, the start token among them.
    """

    documents: tuple[DocumentScore, ...] = field(repr=False)
    window_tokens: int

    @property
    def nats(self) -> float:
        """Negative log-likelihood of the text."""
        return math.fsum(document.nats for document in self.documents)

    @property
    def num_tokens(self) -> int:
        """Scored tokens; start tokens are not scored."""
        return sum(document.num_tokens for document in self.documents)

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of the documents, without what separates them."""
        return sum(document.text_bytes for document in self.documents)

    @property
    def unknown_bytes(self) -> int:
        """UTF-8 bytes that unknown tokens hide; each is charged with 8 bits."""
        return sum(document.unknown_bytes for document in self.documents)

    @property
    def bits_per_byte(self) -> float:
        """Bits per UTF-8 byte."""
        return (self.nats / math.log(2) + 8 * self.unknown_bytes) / self.text_bytes

    @property
    def perplexity_per_token(self) -> float:
        """exp(nats per token): comparable between models of the same tokenizer only; infinite above exp(709)."""
        nats_per_token = self.nats / max(self.num_tokens, 1)
        return math.exp(nats_per_token) if nats_per_token < 709 else math.inf

    def figures(self) -> dict[str, Any]:
        """All figures of the text as a whole, for JSON."""
        return {
            "bits_per_byte": self.bits_per_byte,
            "perplexity_per_token": self.perplexity_per_token,
            "nats": self.nats,
            "num_tokens": self.num_tokens,
            "text_bytes": self.text_bytes,
            "num_documents": len(self.documents),
            "unknown_bytes": self.unknown_bytes,
            "window_tokens": self.window_tokens,
        }


def choose_start_token(tokenizer: PreTrainedTokenizerFast, rule: str = "auto") -> StartToken:
    """The token that every document is conditioned on: the one that stood there in training.

    `auto` takes the token that the tokenizer itself puts in front of a text (OPT: `</s>`; Llama, Gemma: BOS).  Where it puts none, the
    model was trained on packed documents, and what stood before a document is the end of the one before: EOS (GPT-2; GaMS, whose `<s>`
    was never trained), or `<|endoftext|>` and its like where EOS ends a turn of a chat (SmolLM2 and Qwen 2.5 Instruct: `<|im_end|>`).
    `bos` and `eos` take that token whatever the tokenizer does, and any other rule is the token itself.

    Raises:
        ValueError: if there is no such token, or if the tokenizer puts several in front.
    """
    if rule != "auto":
        return _named_start_token(tokenizer, rule, f"--start-token {rule}")
    added = _added_in_front(tokenizer)
    if len(added) > 1:
        tokens = " ".join(tokenizer.convert_ids_to_tokens(added))
        raise ValueError(f"the tokenizer puts {len(added)} tokens before a text ({tokens}); choose with --start-token bos or eos")
    if added:
        return StartToken(added[0], str(tokenizer.convert_ids_to_tokens(added[0])), "auto: the tokenizer puts it before every text")
    packed = "auto: the tokenizer puts nothing before a text, so training was packed and the last document's end stood there"
    if tokenizer.eos_token in _TURN_ENDS:
        document_end = next((token for token in _DOCUMENT_ENDS if _id_of(tokenizer, token) is not None), None)
        if document_end is not None:
            return _named_start_token(tokenizer, document_end, f"{packed}; {tokenizer.eos_token} ends a turn, not a document")
    return _named_start_token(tokenizer, "eos", packed)


def _named_start_token(tokenizer: PreTrainedTokenizerFast, rule: str, reason: str) -> StartToken:
    token = {"bos": tokenizer.bos_token, "eos": tokenizer.eos_token}.get(rule, rule)
    if token is None:
        other = "eos" if rule == "bos" else "bos"
        raise ValueError(f"the tokenizer has no {rule} token to put before a document; choose --start-token {other}")
    token_id = _id_of(tokenizer, str(token))
    if token_id is None:
        raise ValueError(
            f"--start-token is {rule!r}; expected {', '.join(START_TOKEN_RULES)} or a token of the tokenizer's, which has none so called"
        )
    return StartToken(token_id, str(token), reason)


def _id_of(tokenizer: PreTrainedTokenizerFast, token: str) -> int | None:
    """The id of a token by its spelling in the tokenizer's files; never that of the unknown token in its place."""
    return tokenizer.get_vocab().get(token)


def _added_in_front(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    special = tokenizer("a", add_special_tokens=True)["input_ids"]
    for front in range(len(special) - len(plain) + 1):
        if special[front : front + len(plain)] == plain:
            return special[:front]
    raise ValueError("the tokenizer splits a text differently when it adds special tokens; choose with --start-token bos or eos")


@dataclass(frozen=True)
class Window:
    """Tokens of one pass through the model, the start token first, and how many of the last ones it scores."""

    token_ids: list[int]
    num_scored: int


def split_windows(token_ids: Sequence[int], *, start_id: int, window_tokens: int, overlap_tokens: int | None = None) -> Iterator[Window]:
    """Cover a document with overlapping windows that score every token once.

    Every window begins with the start token: models that were trained with one in front of every sequence predict badly without it.
    The last token of a window is only predicted, so a window's pass has at most `window_tokens` positions.

    Args:
        window_tokens: positions of the model, at least 2 for documents of more than one token.
        overlap_tokens: least number of document tokens before a scored token, where the document has as many; half the window if None.
    """
    overlap_tokens = window_tokens // 2 if overlap_tokens is None else overlap_tokens
    assert window_tokens >= 1 and 0 <= overlap_tokens < window_tokens
    scored = 0
    while scored < len(token_ids):
        # The first window has no tokens before it, so it scores all it holds.
        end = min(scored + (window_tokens - overlap_tokens if scored else window_tokens), len(token_ids))
        begin = max(0, end - window_tokens)
        yield Window([start_id, *token_ids[begin:end]], end - scored)
        scored = end


def choose_window_tokens(num_positions: int | None, wanted: int | None = None) -> int:
    """Window length for a model: as wanted, else the smaller of its position table and 2048.

    Args:
        num_positions: positions that the model has, None if there is no limit.

    Raises:
        ValueError: if more is wanted than the model has, or less than 2.
    """
    if wanted is None:
        return min(num_positions or DEFAULT_WINDOW_TOKENS, DEFAULT_WINDOW_TOKENS)
    if wanted < 2:
        raise ValueError(f"--context-length is {wanted}; it must be at least 2")
    if num_positions is not None and wanted > num_positions:
        raise ValueError(f"--context-length is {wanted}, but the model has {num_positions} positions; use {num_positions} or less")
    return wanted


class Memory(Protocol):
    """What outlives a killed process: scores of windows by their number, which text, model and settings alone decide."""

    def get(self, window: int) -> float | None:
        """What a window scored before; None if it was not."""
        ...

    def keep(self, nats: Mapping[int, float]) -> None:
        """Remember what some windows score."""
        ...


def score_documents(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    documents: Sequence[str],
    *,
    start_token: StartToken,
    window_tokens: int,
    text_name: str = "the text",
    memory: Memory | None = None,
    encode: Callable[[str], tuple[list[int], int]] | None = None,
) -> TextScore:
    """Score documents apart from each other, each after one start token.

    Args:
        text_name: how an error names the text.
        memory: of this text, model and settings; what it holds is not computed again.
        encode: in place of `encode_text` with the tokenizer, such as one that remembers.

    Raises:
        ValueError: if there are no documents, or if a log-likelihood is not finite.
    """
    if not documents:
        raise ValueError(f"{text_name} holds no documents")
    encoded = [encode(document) if encode else encode_text(tokenizer, document) for document in documents]
    windows: list[Window] = []
    owners: list[int] = []
    for index, (ids, _) in enumerate(encoded):
        for window in split_windows(ids, start_id=start_token.id, window_tokens=window_tokens):
            windows.append(window)
            owners.append(index)
    nats = [0.0] * len(documents)
    for index, value in zip(owners, _window_nats(model, windows, memory)):
        if not math.isfinite(value):
            raise ValueError(
                f"the log-likelihood of document {index + 1} of {text_name} is not finite: the model's logits are broken;"
                " check the checkpoint with `python -m conversion.verify`"
            )
        nats[index] += value
    scores = (DocumentScore(n, len(ids), len(text.encode()), hidden) for n, (ids, hidden), text in zip(nats, encoded, documents))
    return TextScore(tuple(scores), window_tokens)


def encode_text(tokenizer: PreTrainedTokenizerFast, text: str) -> tuple[list[int], int]:
    """Token ids without special tokens, and the number of bytes that unknown tokens hide."""
    # verbose=False: the tokenizer would warn of texts longer than the model, which the windows take care of.
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids = encoded["input_ids"]
    # GPT-2's tokenizer calls its end of text "unknown" as well, but spells every byte and never uses it so.
    unknown_id = None if tokenizer.unk_token_id == tokenizer.eos_token_id else tokenizer.unk_token_id
    hidden = sum(len(text[begin:end].encode()) for token, (begin, end) in zip(ids, encoded["offset_mapping"]) if token == unknown_id)
    return ids, hidden


def _window_nats(model: PreTrainedModel, windows: Sequence[Window], memory: Memory | None = None) -> list[float]:
    """Negative log-likelihood of each window's scored tokens, summed in float64."""
    import torch

    nats = [0.0] * len(windows)
    with torch.inference_mode():
        # Batches are cut before what is remembered is left out, so that an interruption changes no last digit.
        for batch in _batches(windows, vocab_size=int(model.config.get_text_config().vocab_size)):
            known = [None if memory is None else memory.get(index) for index in batch]
            if all(value is not None for value in known):
                for index, value in zip(batch, known):
                    nats[index] = value or 0.0
                continue
            input_ids, mask = _right_padded([windows[index].token_ids[:-1] for index in batch])
            logits = model(input_ids=input_ids.to(model.device), attention_mask=mask.to(model.device)).logits
            for row, index in enumerate(batch):
                window = windows[index]
                last = len(window.token_ids) - 1
                targets = torch.tensor(window.token_ids[-window.num_scored :], device=logits.device)
                # In float32 whatever the weights are in: a log-softmax in bfloat16 is off by several percent.
                losses = torch.nn.functional.cross_entropy(logits[row, last - window.num_scored : last].float(), targets, reduction="none")
                nats[index] = float(losses.double().sum())
            if memory is not None and all(math.isfinite(nats[index]) for index in batch):
                memory.keep({index: nats[index] for index in batch})
    return nats


def _batches(windows: Sequence[Window], *, vocab_size: int) -> Iterator[list[int]]:
    """Indices of windows of like length, longest first, so that little is padded and memory runs out at once or never."""
    most_tokens = min(_BATCH_TOKENS, _LOGIT_BYTES // (4 * vocab_size))
    batch: list[int] = []
    for index in sorted(range(len(windows)), key=lambda i: -len(windows[i].token_ids)):
        longest = len(windows[batch[0]].token_ids) if batch else 0
        if batch and longest * (len(batch) + 1) > most_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _right_padded(rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Token ids and mask, both (rows, longest).  Padding stands right: OPT counts its positions from the mask."""
    import torch

    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return ids, mask
