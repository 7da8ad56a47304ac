"""A loaded Hugging Face model as lm-eval sees it: its answers, with as few tokens read and as few logits made as they take."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from transformers import LogitsProcessor, LogitsProcessorList

from eval.running.beginnings import Stem, most_together, stems_of
from eval.running.encoding import Encoder, FinishedTexts, Pair

_LOGIT_BYTES = 512 << 20  # of one batch's logits in float32


def require_numbers(logits: torch.Tensor) -> None:
    """Refuse logits, of any shape, that are not numbers, which lm-eval would score as wrong answers.

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
    """lm-eval's own backend, which reads a beginning that several requests share once and makes the logits of what is scored alone.

    Log-likelihoods are those of lm-eval's own loop but for rounding, as those of another batch size are.  Logits that are not numbers end
    the run, and texts that reached the last token allowed are known.

    Args:
        encoder: of the tokenizer; its own if None.
        arguments: of lm-eval's.

    Attributes:
        encoder: None where the arguments say otherwise than the tokenizer what stands before a text.
    """

    def __init__(self, *, encoder: Encoder | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        description = arguments.keys() & {"add_bos_token", "prefix_token_id"}
        self.encoder = None if description else encoder or Encoder(self.tokenizer)
        self._going_on: dict[tuple[int, ...], _Read] = {}
        self._ends = FinishedTexts()
        self.cache_hook: Any = self._ends
        # A model with a state in place of keys and values cannot be taken up in the middle.
        self._shares = not getattr(self.model, "_is_stateful", False)

    @property
    def finished(self) -> dict[str, bool]:
        """Prompt -> whether its last text ended with a stop string or the end of text."""
        return self._ends.by_prompt

    def start_sampling(self, seed: int) -> None:
        """Seed what samples the next texts."""
        torch.manual_seed(seed)

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, left_truncate_len: int | None = None, **named: Any
    ) -> list[int]:
        """Token ids of a text."""
        if self.encoder is None or named or left_truncate_len:
            ids: list[int] = super().tok_encode(string, add_special_tokens, left_truncate_len, **named)
            return ids
        return self.encoder.tok_encode(string, add_special_tokens)

    def score(self, pairs: Sequence[Pair], *, going_on: Sequence[str] = ()) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation, and whether it is the greedy one.

        Args:
            going_on: prompts, contexts here, from which the next texts are generated, so that what was read of them is kept until then.

        Raises:
            ValueError: if logits are not numbers, or there is nothing to score.
        """
        if not all(context and continuation for context, continuation in pairs):
            raise ValueError("a request has no token in its context or in what comes after it, so that there is nothing to score")
        asked = [(context, continuation[-self.max_length :]) for context, continuation in pairs]
        # As lm-eval has it: too long a context loses its beginning, and the last token is only predicted.
        inputs = [tuple([*context, *continuation][-(self.max_length + 1) :][:-1]) for context, continuation in asked]
        scored: dict[tuple[int, ...], int] = {}  # sequence -> how many of its last positions
        for ids, (_, continuation) in zip(inputs, asked, strict=True):
            scored[ids] = max(len(continuation), scored.get(ids, 0))
        sequences = list(scored)
        counts = list(scored.values())
        requests: dict[int, list[int]] = {}
        numbers = {ids: number for number, ids in enumerate(sequences)}
        for request, ids in enumerate(inputs):
            requests.setdefault(numbers[ids], []).append(request)
        answers: list[tuple[float, bool]] = [(0.0, False)] * len(pairs)
        stems = (
            stems_of(sequences, most=most_together(self.batch_size))
            if self._shares
            else [Stem(len(ids), (n,)) for n, ids in enumerate(sequences)]
        )
        prompts = {tuple(self.tok_encode(prompt)) for prompt in going_on} if self._shares else set()
        self._going_on = {}
        for batch in self._batches(stems, sequences, counts):
            for sequence, logits in self._logits(batch, sequences, counts, prompts):
                require_numbers(logits)
                likelihoods = torch.nn.functional.log_softmax(logits, dim=-1, dtype=self.softmax_dtype)
                best = likelihoods.argmax(dim=-1)
                for request in requests[sequence]:
                    expected = torch.tensor(asked[request][1], device=logits.device)
                    found = likelihoods[-len(expected) :].gather(1, expected.unsqueeze(1)).sum()
                    answers[request] = float(found), bool(torch.equal(best[-len(expected) :], expected))
        return answers

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """lm-eval calls this with what it has tokenized."""
        return self.score([(context, continuation) for _, context, continuation in requests])

    def _batches(self, stems: Sequence[Stem], sequences: Sequence[Sequence[int]], counts: Sequence[int]) -> Iterator[list[Stem]]:
        """Stems of like length, as many as the batch size says and as their logits have room."""
        most = max(1, _LOGIT_BYTES // (4 * self.model.config.get_text_config().vocab_size))
        batch: list[Stem] = []
        taken = 0
        for stem in sorted(stems, key=lambda stem: -stem.length):
            size = max(stem.length - len(sequences[member]) + counts[member] for member in stem.members)
            unlike = batch and stem.length != batch[0].length and batch[0].length >= self._window
            if batch and (len(batch) >= self.batch_size or taken + size > most or unlike):
                yield batch
                batch, taken = [], 0
            batch.append(stem)
            taken += max(size, 1)
        if batch:
            yield batch

    @property
    def _window(self) -> float:
        """Positions from which on keys are forgotten, so that padding, which is not, has no place among them."""
        config = self.model.config.get_text_config()
        window = getattr(config, "sliding_window", None)
        return float("inf") if window is None or getattr(config, "use_sliding_window", True) is False else window

    def _logits(
        self, batch: Sequence[Stem], sequences: Sequence[Sequence[int]], counts: Sequence[int], prompts: Collection[tuple[int, ...]]
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Number of each sequence and (scored positions, vocabulary) logits."""
        firsts = [len(ids) - count for ids, count in zip(sequences, counts, strict=True)]  # scored position of each sequence
        rows = [sequences[stem.members[0]][: stem.length] for stem in batch]
        expected = [range(min(min(firsts[member] for member in stem.members), stem.length), stem.length) for stem in batch]
        parts = any(len(sequences[member]) > stem.length for stem in batch for member in stem.members)
        read_on = {
            prompt: row for prompt in prompts for row, ids in enumerate(rows) if 1 < len(prompt) <= len(ids) + 1 and _begins(ids, prompt)
        }
        logits, cache = self._pass(rows, expected, keeps=parts or bool(read_on))
        of_row = logits.split([len(positions) for positions in expected])
        self._going_on |= {prompt: _Read(cache, row) for prompt, row in read_on.items()}
        left: dict[int, list[tuple[int, int]]] = {}  # length of a stem -> row and sequence
        for row, (stem, positions) in enumerate(zip(batch, expected, strict=True)):
            for member in stem.members:
                if len(sequences[member]) == stem.length:
                    yield member, of_row[row][firsts[member] - positions.start :]
                else:
                    left.setdefault(stem.length, []).append((row, member))
        for length, several in left.items():
            for begin in range(0, len(several), self.batch_size):
                some = several[begin : begin + self.batch_size]
                rests = [sequences[member][length:] for _, member in some]
                scored = [range(max(firsts[member] - length, 0), len(rest)) for (_, member), rest in zip(some, rests, strict=True)]
                logits, _ = self._pass(rests, scored, cache=_rows_of(cache, [row for row, _ in some], length))
                for (row, member), found in zip(some, logits.split([len(positions) for positions in scored]), strict=True):
                    first = firsts[member] - expected[row].start
                    yield member, torch.cat([of_row[row][first:], found]) if firsts[member] < length else found

    def _pass(
        self, rows: Sequence[Sequence[int]], expected: Sequence[range], *, cache: Any = None, keeps: bool = False
    ) -> tuple[torch.Tensor, Any]:
        """(wanted positions of all rows, vocabulary) logits, and the keys and values; rows are padded on the right, which no token sees."""
        longest = max(map(len, rows))
        ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=self.device)
        places = [row * longest + position for row, positions in enumerate(expected) for position in positions]
        index = torch.tensor(places, dtype=torch.long, device=self.device)
        with torch.inference_mode(), _only(self.model, index) as is_cut:
            output = self.model(input_ids=ids, past_key_values=cache, use_cache=keeps or cache is not None)
        logits = output.logits.flatten(0, 1)
        return logits if is_cut else logits[index], output.past_key_values if keeps else None

    def _model_generate(self, context: torch.Tensor, max_length: int, stop: list[str], **generation_kwargs: Any) -> torch.Tensor:
        generation_kwargs["logits_processor"] = LogitsProcessorList([_RequireNumbers()])
        if generation_kwargs.get("num_beams", 1) > 1:
            # lm-eval looks for stop strings in one row of each prompt, which with beams are the rows of other prompts.
            ends: dict[str, Any] = {"stop_strings": stop, "tokenizer": self.tokenizer, "pad_token_id": self.tokenizer.pad_token_id}
            output = self.model.generate(input_ids=context, max_length=max_length, **ends, **generation_kwargs)
        else:
            if (cache := self._read_before(context, generation_kwargs)) is not None:
                generation_kwargs["past_key_values"] = cache
            output = super()._model_generate(context, max_length, stop, **generation_kwargs)
        for row in output[:, context.shape[1] :].tolist():
            text = str(self.tok_decode(row, skip_special_tokens=False))
            self._ends.coming.append(self.eot_token_id in row or any(end in text for end in stop))
        return output

    def _read_before(self, context: torch.Tensor, generation_kwargs: Mapping[str, Any]) -> Any:
        """Keys and values of all prompts but for their last tokens, where all were read; rows are padded on the left."""
        if not self._going_on or generation_kwargs.get("do_sample"):
            return None
        masks = generation_kwargs["attention_mask"].bool()
        prompts = [tuple(ids[mask].tolist()) for ids, mask in zip(context, masks, strict=True)]
        if any(prompt not in self._going_on for prompt in prompts):
            return None
        return _left_padded([self._going_on[prompt] for prompt in prompts], [len(prompt) - 1 for prompt in prompts])


@dataclass(frozen=True)
class _Read:
    """A row of what was read: keys and values of all its tokens."""

    cache: Any
    row: int


def _begins(ids: Sequence[int], prompt: Sequence[int]) -> bool:
    """Whether all of a prompt but its last token is read."""
    return tuple(ids[: len(prompt) - 1]) == tuple(prompt[:-1])


def _left_padded(reads: Sequence[_Read], lengths: Sequence[int]) -> Any:
    """The first tokens of some rows, ended at the same place; None where a layer has forgotten some."""
    longest = max(lengths)
    whole = copy.copy(reads[0].cache)
    whole.layers = []
    for number, layer in enumerate(reads[0].cache.layers):
        own = copy.copy(layer)
        for name in ("keys", "values"):
            tensors = [getattr(read.cache.layers[number], name)[read.row] for read in reads]
            if any(tensor.shape[1] < length for tensor, length in zip(tensors, lengths, strict=True)):
                return None
            begins = [tensor[:, :length] for tensor, length in zip(tensors, lengths, strict=True)]
            setattr(own, name, torch.stack([torch.nn.functional.pad(begin, (0, 0, longest - begin.shape[1], 0)) for begin in begins]))
        if hasattr(own, "cumulative_length"):
            own.cumulative_length = longest
        whole.layers.append(own)
    return whole


@contextlib.contextmanager
def _only(model: Any, index: torch.Tensor) -> Iterator[bool]:
    """The output layer sees the places of a flattened batch that are wanted, and no others; False where a model has none of its own."""
    head = model.get_output_embeddings()
    if head is None:
        yield False
        return
    hook = head.register_forward_pre_hook(lambda module, given: (given[0].flatten(0, 1)[index].unsqueeze(0), *given[1:]))
    try:
        yield True
    finally:
        hook.remove()


def _rows_of(cache: Any, rows: Sequence[int], length: int) -> Any:
    """Keys and values of some rows up to a length, for a pass that adds its own."""
    chosen = copy.copy(cache)
    chosen.layers = []
    for layer in cache.layers:
        own = copy.copy(layer)
        own.keys, own.values = (tensor[list(rows), :, :length] for tensor in (layer.keys, layer.values))
        if hasattr(own, "cumulative_length"):  # of a layer that forgets
            own.cumulative_length = length
        chosen.layers.append(own)
    return chosen
