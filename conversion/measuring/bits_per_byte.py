"""Bits per byte: how well a model predicts text, in a unit that does not depend on its tokenizer.

The negative log-likelihood of all tokens of the text, in bits, divided by the UTF-8 bytes of the text as it was given.  Losses and
perplexities per token compare models of one tokenizer only; bits per byte compares any two models on the same file.  A token that
stands for characters outside the vocabulary does not say which ones they were, so 8 bits are added for each byte that it hides, as if
those were sent as they are; without that a tokenizer that knows fewer letters would look better.

lm-eval has the metric too (`loglikelihood_rolling`, see `eval/tasks/heldout_text`).  This module exists beside it because lm-eval scores
the BOS of tokenizers that add one, after a second BOS; because its windows leave the first token of every later window with a context of
one token; and because it keeps neither the number of tokens nor the documents' own figures, which intervals need.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from data_prep.tokenizers.frame import frame_of

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
_WHOLE_LOGIT_BYTES = 5 << 29  # of one window's: those of a longer one, and the scores of its attention, are made block by block
_BLOCK_TOKENS = 2048  # at most
_AS_TEXT = {"add_special_tokens": False, "split_special_tokens": True}  # as training data, whatever tokenizer_config.json says
POSITIONS = (0, 4_096, 16_384, 65_536)  # tokens of a document at which the parts begin that are scored apart too


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
class PartScore:
    """What a model makes of the same part of all long documents: whether what came before helps.

    Attributes:
        first, end: tokens of a document, counted from 0; no end where the last part is meant.
        num_documents: that reach the part.
    """

    first: int
    end: int | None
    num_documents: int
    nats: float
    text_bytes: int
    unknown_bytes: int

    @property
    def bits_per_byte(self) -> float:
        """As of a whole text."""
        return (self.nats / math.log(2) + 8 * self.unknown_bytes) / self.text_bytes

    @property
    def name(self) -> str:
        """For a table, for example: tokens 4,096 to 16,384."""
        return f"tokens {self.first:,} to {self.end:,}" if self.end is not None else f"tokens from {self.first:,} on"


@dataclass(frozen=True)
class DocumentScores:
    """Sums over the documents of a text.

    Attributes:
        window_tokens: most tokens that the model saw at once, those around a text among them.
    """

    documents: tuple[DocumentScore, ...] = field(repr=False)
    window_tokens: int

    @property
    def nats(self) -> float:
        """Negative log-likelihood of the text, or of a masked model its pseudo-likelihood."""
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

    def _bits_per_byte(self) -> float:
        return (self.nats / math.log(2) + 8 * self.unknown_bytes) / self.text_bytes

    def _counts(self) -> dict[str, int]:
        return {
            "num_tokens": self.num_tokens,
            "text_bytes": self.text_bytes,
            "num_documents": len(self.documents),
            "unknown_bytes": self.unknown_bytes,
            "window_tokens": self.window_tokens,
        }


@dataclass(frozen=True)
class TextScore(DocumentScores):
    """What a model makes of one text.

    Attributes:
        parts: of the documents of more tokens than the first part has, by position; none where there is no such document.
    """

    parts: tuple[PartScore, ...] = ()

    @property
    def bits_per_byte(self) -> float:
        """Bits per UTF-8 byte."""
        return self._bits_per_byte()

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
            **self._counts(),
            **({"parts": {part.name: {**asdict(part), "bits_per_byte": part.bits_per_byte} for part in self.parts}} if self.parts else {}),
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
    added = list(frame_of(tokenizer).front)
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


@dataclass(frozen=True)
class Window:
    """Tokens of one pass through the model, the start token first, and how many of the last ones it scores.

    Attributes:
        first_scored: number of the first of those in the document.
    """

    token_ids: list[int]
    num_scored: int
    first_scored: int = 0

    @property
    def lengths(self) -> list[int]:
        """Of the pieces of its scored tokens that lie in different parts of the document."""
        end = self.first_scored + self.num_scored
        cuts = [self.first_scored, *(edge for edge in POSITIONS if self.first_scored < edge < end), end]
        return [after - before for before, after in itertools.pairwise(cuts)]


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
        yield Window([start_id, *token_ids[begin:end]], end - scored, scored)
        scored = end


def choose_window_tokens(num_positions: int | None, requested: int | None = None) -> int:
    """Window length for a model: as requested, else the smaller of its position table and 2048.

    Args:
        num_positions: positions that the model has, None if there is no limit.

    Raises:
        ValueError: if more is requested than the model has, or less than 2.
    """
    if requested is None:
        return min(num_positions or DEFAULT_WINDOW_TOKENS, DEFAULT_WINDOW_TOKENS)
    if requested < 2:
        raise ValueError(f"--context-length is {requested}; it must be at least 2")
    if num_positions is not None and requested > num_positions:
        raise ValueError(f"--context-length is {requested}, but the model has {num_positions} positions; use {num_positions} or less")
    return requested


class Memory(Protocol):
    """What outlives a killed process: scores of windows by their number, which text, model and settings alone decide.

    Numbers below 0 are those of pieces of windows.
    """

    def get(self, window: int) -> float | None:
        """What a window scored before; None if it was not."""
        ...

    def keep(self, nats: Mapping[int, float]) -> None:
        """Remember what some windows score."""
        ...


Nats = tuple[float, Sequence[float]]  # of a window's scored tokens, and of its pieces


class WindowScorer(Protocol):
    """What scores batches of windows: a model here, or processes that share them.

    Attributes:
        vocab_size: rows of the model's embedding matrix.
    """

    vocab_size: int

    def window_nats(self, batches: Sequence[Sequence[Window]]) -> Iterator[tuple[int, list[Nats]]]:
        """Number of each batch, and the negative log-likelihood of each of its windows, in any order."""
        ...


class _Here:
    """A model in this process."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model, self.vocab_size = model, _vocab_size(model)

    def window_nats(self, batches: Sequence[Sequence[Window]]) -> Iterator[tuple[int, list[Nats]]]:
        """As they stand."""
        for number, batch in enumerate(batches):
            yield number, batch_nats(self._model, batch)


def score_documents(
    model: PreTrainedModel | WindowScorer,
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
        model: or what scores its windows elsewhere.
        text_name: how an error names the text.
        memory: of this text, model and settings; what it has is not recomputed.
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
    found: dict[tuple[int, int], float] = {}  # nats by document and part
    scorer = cast("WindowScorer", model) if hasattr(model, "window_nats") else _Here(cast("PreTrainedModel", model))
    for index, window, (value, pieces) in zip(owners, windows, _window_nats(scorer, windows, memory)):
        if not math.isfinite(value):
            raise ValueError(
                f"the log-likelihood of document {index + 1} of {text_name} is not finite: the model's logits are broken;"
                " check the checkpoint with `python -m conversion.verify`"
            )
        nats[index] += value
        begin = window.first_scored
        for length, piece in zip(window.lengths, pieces, strict=True):
            key = (index, bisect_right(POSITIONS, begin) - 1)
            found[key] = found.get(key, 0.0) + piece
            begin += length
    scores = (DocumentScore(n, len(ids), len(text.encode()), hidden) for n, (ids, hidden), text in zip(nats, encoded, documents))
    long = {index: documents[index] for index, (ids, _) in enumerate(encoded) if len(ids) > POSITIONS[1]}
    return TextScore(tuple(scores), window_tokens, _part_scores(tokenizer, long, found))


def _part_scores(
    tokenizer: PreTrainedTokenizerFast, documents: Mapping[int, str], nats: Mapping[tuple[int, int], float]
) -> tuple[PartScore, ...]:
    """The parts of long documents; the first is theirs alone, so that all parts are of the same documents as far as these reach."""
    parts: dict[int, list[PartScore]] = {}
    for index, text in documents.items():
        for part, (num_bytes, hidden) in enumerate(_bytes_of_parts(tokenizer, text)):
            end = POSITIONS[part + 1] if part + 1 < len(POSITIONS) else None
            parts.setdefault(part, []).append(PartScore(POSITIONS[part], end, 1, nats[index, part], num_bytes, hidden))
    return tuple(
        PartScore(
            found[0].first,
            found[0].end,
            len(found),
            math.fsum(one.nats for one in found),
            sum(one.text_bytes for one in found),
            sum(one.unknown_bytes for one in found),
        )
        for _, found in sorted(parts.items())
    )


def _bytes_of_parts(tokenizer: PreTrainedTokenizerFast, text: str) -> Iterator[tuple[int, int]]:
    """UTF-8 bytes of each part of a document, and how many of them unknown tokens hide."""
    encoded = tokenizer(text, **_AS_TEXT, return_offsets_mapping=True, verbose=False)
    ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
    edges = [edge for edge in POSITIONS if edge < len(ids)]
    characters = [0, *(offsets[edge][0] for edge in edges[1:]), len(text)]
    for edge, after, begin, end in zip(edges, [*edges[1:], len(ids)], characters, characters[1:]):
        yield len(text[begin:end].encode()), _hidden_bytes(tokenizer, text, ids[edge:after], offsets[edge:after])


def encode_text(tokenizer: PreTrainedTokenizerFast, text: str) -> tuple[list[int], int]:
    """Token ids without special tokens, which text that spells one is not either, and the number of bytes that unknown tokens hide."""
    # verbose=False: the tokenizer would warn of texts longer than the model, which the windows take care of.
    encoded = tokenizer(text, **_AS_TEXT, return_offsets_mapping=True, verbose=False)
    ids = encoded["input_ids"]
    return ids, _hidden_bytes(tokenizer, text, ids, encoded["offset_mapping"])


def _hidden_bytes(tokenizer: PreTrainedTokenizerFast, text: str, ids: Sequence[int], offsets: Sequence[tuple[int, int]]) -> int:
    # GPT-2's tokenizer calls its end of text "unknown" as well, but spells every byte and never uses it so.
    unknown_id = None if tokenizer.unk_token_id == tokenizer.eos_token_id else tokenizer.unk_token_id
    return sum(len(text[begin:end].encode()) for token, (begin, end) in zip(ids, offsets) if token == unknown_id)


def _window_nats(scorer: WindowScorer, windows: Sequence[Window], memory: Memory | None = None) -> list[Nats]:
    """Negative log-likelihood of each window's scored tokens, and of its pieces."""
    found: list[Nats] = [(0.0, ())] * len(windows)
    keys = _piece_keys(windows)
    left: list[list[int]] = []
    # Batches are cut before what is remembered is left out, so that an interruption changes no last digit.
    for batch in _batches(windows, vocab_size=scorer.vocab_size):
        known = {index: _remembered(memory, index, keys[index]) for index in batch}
        if any(value is None for value in known.values()):
            left.append(batch)
            continue
        for index, value in known.items():
            assert value is not None
            found[index] = value
    for number, values in scorer.window_nats([[windows[index] for index in batch] for batch in left]):
        batch = left[number]
        for index, nats in zip(batch, values, strict=True):
            found[index] = nats
        if memory is not None and all(math.isfinite(total) for total, _ in values):
            pieces_of_batch = {key: piece for index in batch for key, piece in zip(keys[index], found[index][1])}
            memory.keep({index: found[index][0] for index in batch} | pieces_of_batch)
    return found


def batch_nats(model: PreTrainedModel, windows: Sequence[Window]) -> list[Nats]:
    """Negative log-likelihood of each window's scored tokens, and of its pieces, summed in float64; the windows go through together."""
    import torch

    found: list[Nats] = []
    with torch.inference_mode():
        for window, losses in zip(windows, _losses(model, windows), strict=True):
            total, lengths = float(losses.sum()), window.lengths
            found.append((total, [float(piece.sum()) for piece in losses.split(lengths)] if len(lengths) > 1 else [total]))
    return found


def _piece_keys(windows: Sequence[Window]) -> list[list[int]]:
    """By what the pieces of each window are remembered: numbers below 0; none where a window is one piece."""
    keys, after = [], -1
    for window in windows:
        number = len(window.lengths) if len(window.lengths) > 1 else 0
        keys.append(list(range(after, after - number, -1)))
        after -= number
    return keys


def _remembered(memory: Memory | None, index: int, keys: Sequence[int]) -> tuple[float, Sequence[float]] | None:
    if memory is None or (total := memory.get(index)) is None:
        return None
    pieces = [piece for key in keys if (piece := memory.get(key)) is not None]
    if len(pieces) < len(keys):
        return None
    return total, pieces or [total]


def _losses(model: PreTrainedModel, windows: Sequence[Window]) -> Iterator[Tensor]:
    """(scored tokens,) losses of each window of a batch in float64, from float32: a log-softmax in bfloat16 is off by several percent."""
    import torch

    if len(windows) == 1 and _is_long(windows[0], vocab_size=_vocab_size(model)):
        yield _losses_by_blocks(model, windows[0])
        return
    input_ids, mask = _right_padded([window.token_ids[:-1] for window in windows])
    logits = model(input_ids=input_ids.to(model.device), attention_mask=mask.to(model.device)).logits
    for row, window in enumerate(windows):
        last = len(window.token_ids) - 1
        targets = torch.tensor(window.token_ids[-window.num_scored :], device=logits.device)
        losses = torch.nn.functional.cross_entropy(logits[row, last - window.num_scored : last].float(), targets, reduction="none")
        yield losses.double()


def _is_long(window: Window, *, vocab_size: int) -> bool:
    """Whether a window is more than its logits should be made of at once."""
    return len(window.token_ids) > _BATCH_TOKENS + 1 or 4 * vocab_size * (len(window.token_ids) - 1) > _WHOLE_LOGIT_BYTES


def _losses_by_blocks(model: PreTrainedModel, window: Window) -> Tensor:
    """Of one long window: block after block of its tokens, each of which sees the keys and values of those before.

    Neither logits nor masks nor scores of attention are ever made for more than a block of tokens; the keys and values of all are kept.
    """
    import torch
    from transformers import DynamicCache

    ids = torch.tensor([window.token_ids], device=model.device)
    num_positions = ids.shape[1] - 1
    first = num_positions - window.num_scored
    size = _block_tokens(model, num_positions)
    cache, losses = DynamicCache(config=model.config), []
    for begin in range(0, num_positions, size):
        end = min(begin + size, num_positions)
        seen = torch.ones((1, end), dtype=torch.long, device=model.device)  # OPT counts its positions from the mask
        logits = model(input_ids=ids[:, begin:end], attention_mask=seen, past_key_values=cache, use_cache=True).logits
        if end > first:
            scored = logits[0, max(first - begin, 0) :].float()
            targets = ids[0, max(first, begin) + 1 : end + 1]
            losses.append(torch.nn.functional.cross_entropy(scored, targets, reduction="none").double())
    return torch.cat(losses)


def _block_tokens(model: PreTrainedModel, num_positions: int) -> int:
    """Tokens of a block, by what its logits take in float32 and, where attention is plain, its scores; else its mask."""
    config = model.config.get_text_config()
    rows = config.num_attention_heads if config._attn_implementation == "eager" else 1
    return max(16, min(_BLOCK_TOKENS, _LOGIT_BYTES // (4 * max(_vocab_size(model), rows * num_positions))))


def _vocab_size(model: PreTrainedModel) -> int:
    return int(model.config.get_text_config().vocab_size)


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
