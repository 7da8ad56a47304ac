"""Transfers compared by bits per byte of held-out text: before any training, and after a few steps on request.

The body of the model is loaded once; each transfer only puts its rows into it.  Nothing is written.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from conversion.comparing.decision import SCREENING_ERROR, DecisionRule, Standing, spread_order
from conversion.embeddings.checkpoint import Transfer
from conversion.measuring.bits_per_byte import (
    DocumentScore,
    TextScore,
    choose_start_token,
    choose_window_tokens,
    encode_text,
    score_documents,
)
from conversion.measuring.significance import Difference, paired_difference
from data_prep.reading.named_texts import Text
from data_prep.tokenizers.frame import document_front

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

SOURCE = "source"  # the model as it was given, with its own vocabulary

_WARMUP_SHARE = 0.1
_BETAS = (0.9, 0.95)
_WEIGHT_DECAY = 0.01
_CLIP_NORM = 1.0


@dataclass(frozen=True)
class TrainingOptions:
    """A short continued training, the same batches for every method: AdamW, linear warmup over a tenth, then constant.

    It ranks methods; real training is `recipes.train`.

    Attributes:
        learning_rate: the highest.
        batch_size: rows of a step, `sequence_length` tokens each.
        mixed_precision: products in bfloat16, weights and optimizer in float32.
    """

    num_steps: int = 0
    learning_rate: float = 1e-4
    batch_size: int = 8
    sequence_length: int = 256
    mixed_precision: bool = False

    def __post_init__(self) -> None:
        limits = (("--steps", self.num_steps, 0), ("--batch-size", self.batch_size, 1), ("--sequence-length", self.sequence_length, 2))
        for name, value, least in limits:
            if value < least:
                raise ValueError(f"{name} is {value}; expected {least} or more")
        if not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise ValueError(f"--learning-rate is {self.learning_rate}; expected a number above 0")


@dataclass(frozen=True)
class Measurement:
    """One model at one step.

    Attributes:
        scores: text -> what the model makes of it.
        screened: products were in bfloat16, as the method was significantly behind by then.
        seconds: that planning and making the rows took (at step 0) or the training (later).
    """

    method: str
    seed: int
    step: int
    scores: Mapping[str, TextScore] = field(repr=False)
    seconds: float = 0.0
    screened: bool = False


@dataclass(frozen=True)
class Planned:
    """A decided transfer, and how long deciding took."""

    transfer: Transfer
    seconds: float


def put_rows(model: PreTrainedModel, transfer: Transfer) -> PreTrainedModel:
    """A model with the transfer's token rows and the given model's body; the body's tensors are shared, not copied."""
    return with_rows(model, made_rows(transfer), input_name=transfer.layers.input)


def made_rows(transfer: Transfer) -> dict[str, Tensor]:
    """What a transfer puts in the place of the source's token matrices, (num_tokens, hidden_size), and biases, (num_tokens,), by name."""
    return {tensor.name: tensor.read() for tensor in transfer.tensors() if transfer.checkpoint.tensors.get(tensor.name) is not tensor}


def with_rows(model: PreTrainedModel, rows: Mapping[str, Tensor], *, input_name: str) -> PreTrainedModel:
    """A model of the given one's body, which is shared, with `made_rows`.

    Args:
        rows: as `made_rows` gives them.
        input_name: of the input embeddings among them; the only other matrix, if any, is the output layer.
    """
    new = _shallow_copy(model)
    rows = dict(rows)
    dtype, device = model.dtype, model.device

    def parameter(name: str) -> torch.nn.Parameter:
        return torch.nn.Parameter(rows.pop(name).to(device=device, dtype=dtype))

    biases = [name for name in rows if rows[name].dim() == 1]
    # Any: torch types the attributes of modules as tensors or modules.
    embedding: Any = new.get_input_embeddings()
    head: Any = new.get_output_embeddings()
    embedding.weight = parameter(input_name)
    embedding.num_embeddings = len(embedding.weight)
    embedding.padding_idx = None
    for name in biases:
        head.bias = parameter(name)
    head.weight = parameter(next(iter(rows))) if rows else embedding.weight
    head.out_features = len(head.weight)
    new.config = copy.deepcopy(model.config)
    config = new.config.get_text_config()
    config.vocab_size = len(embedding.weight)
    config.tie_word_embeddings = head.weight is embedding.weight
    assert not rows, f"rows without a place in the model: {list(rows)}"
    return new


def _shallow_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Modules of their own over the same parameters and buffers."""
    shared: dict[int, object] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


class TextScorer:
    """Scores texts with models of one tokenizer, each text encoded once for all of them."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *, start_token: str = "auto") -> None:
        self._tokenizer = tokenizer
        self._start_token = choose_start_token(tokenizer, start_token)
        self._encode = cache(lambda text: encode_text(tokenizer, text))

    def __call__(self, model: PreTrainedModel, texts: Sequence[Text]) -> dict[str, TextScore]:
        """Text -> bits per byte and all that belongs to it.

        Raises:
            ValueError: if the model gives no finite likelihood.
        """
        window_tokens = choose_window_tokens(getattr(model.config.get_text_config(), "max_position_embeddings", None))
        return {
            text.name: score_documents(
                model.eval(),
                self._tokenizer,
                text.documents,
                start_token=self._start_token,
                window_tokens=window_tokens,
                text_name=str(text.path),
                encode=self._encode,
            )
            for text in texts
        }


Scores = dict[tuple[str, int], dict[str, TextScore]]  # (method, seed) -> text -> what the model makes of it


@dataclass(frozen=True)
class Race:
    """Transfers that are measured on the same texts.

    Attributes:
        plans: (method, seed) -> the decided transfer.
        say: takes lines that tell how far it is.
    """

    plans: Mapping[tuple[str, int], Planned]
    scorer: TextScorer
    texts: Sequence[Text]
    rule: DecisionRule
    say: Callable[[str], None] = lambda line: None

    def compare(self, model: PreTrainedModel, screened: tuple[Scores, list[str]] | None = None) -> list[Measurement]:
        """Measure transfers before any training, in rounds over the texts' documents, in the order of `texts`.

        A method that is significantly worse than the best on the first text is dropped from further rounds, and the rounds end when all remaining
        methods are tied.  So the number of documents that a method is scored on depends on its rounds.

        Args:
            screened: what `screen` gave for them, which has read the rounds: those that are left, and at least two, are measured on the same documents.
        """
        if screened is None:
            scores, _ = self._rounds(model, screens=False)
            return [Measurement(*key, 0, found, self.plans[key].seconds) for key, found in scores.items()]
        (rough, left), name = screened, self.texts[0].name
        exact = self._measured_again(model, [key for key in self.plans if key[0] in left], rough)
        shifts = [exact[key][name].bits_per_byte - rough[key][name].bits_per_byte for key in exact]
        error = max(shifts) - min(shifts)
        self.say(f"in bfloat16 the differences between these were off by at most {error:.4f} bits per byte")
        if error > SCREENING_ERROR:
            self.say("too much: the others are measured again as well")
            exact |= self._measured_again(model, [key for key in self.plans if key not in exact], rough)
        return [
            Measurement(*key, 0, exact.get(key, found), self.plans[key].seconds, screened=key not in exact) for key, found in rough.items()
        ]

    def screen(self, model: PreTrainedModel) -> tuple[Scores, list[str]]:
        """The rounds of `compare` read by the model in bfloat16, which drops a method only where it is behind by more than that can do.

        Returns:
            All scores, and the methods that are left, the nearest of the others among them where it is one alone.
        """
        scores, alive = self._rounds(model, screens=True)
        if len(alive) == 1 and len({method for method, _ in self.plans}) > 1:
            values = {key[0]: found[self.texts[0].name].bits_per_byte for key, found in scores.items() if key[0] not in alive}
            alive.append(min(values, key=lambda method: values[method]))
        return scores, alive

    def _rounds(self, model: PreTrainedModel, *, screens: bool) -> tuple[Scores, list[str]]:
        """Scores of all plans, in rounds, and the methods that are left at the end."""
        scores: Scores = {}
        alive = list(dict.fromkeys(method for method, _ in self.plans))
        ends = self.rule.round_ends(len(self.texts[0].documents))
        done = 0
        for look, end in enumerate(ends, start=1):
            part = [text for text in (_documents_between(text, done, end, ends[-1]) for text in self.texts) if text.documents]
            size = sum(len(text.documents) for text in part)
            for key in (key for key in self.plans if key[0] in alive):
                start = time.monotonic()
                found = self.scorer(put_rows(model, self.plans[key].transfer), part)
                scores[key] = {name: _together(scores.get(key, {}).get(name), score) for name, score in found.items()}
                self._say_scores(f"round {look} of at most {len(ends)}, {size} documents", key, scores[key], start)
            done = end
            measured = [Measurement(*key, 0, found, self.plans[key].seconds) for key, found in scores.items() if key[0] in alive]
            standing = standing_of(measured, self.texts[0].name, 0, looks=len(ends), tie=self.rule.tie)
            last = look == len(ends) or not standing.open
            if last and not screens:
                break
            if dropped := standing.far_behind if screens else standing.significantly_worse:
                alive = [method for method in alive if method not in dropped]
                self.say(
                    f"after {end} documents {standing.best} is ahead; significantly worse, and not measured further: {', '.join(dropped)}"
                )
            if last:
                break
        return scores, alive

    def _measured_again(self, model: PreTrainedModel, keys: Sequence[tuple[str, int]], screened: Scores) -> Scores:
        """Scores of plans on the documents that they were screened on."""
        exact: Scores = {}
        for key in keys:
            start = time.monotonic()
            sizes = {name: len(score.documents) for name, score in screened[key].items()}
            part = [replace(text, documents=text.documents[: sizes[text.name]]) for text in self.texts if text.name in sizes]
            exact[key] = self.scorer(put_rows(model, self.plans[key].transfer), part)
            self._say_scores(f"in {str(model.dtype).removeprefix('torch.')}", key, exact[key], start)
        return exact

    def _say_scores(self, what: str, key: tuple[str, int], scores: Mapping[str, TextScore], start: float) -> None:
        figures = ", ".join(f"{name} {score.bits_per_byte:.3f}" for name, score in scores.items())
        self.say(f"{what}: {key[0]}, seed {key[1]}: {figures} ({time.monotonic() - start:.1f} s)")

    def train_and_measure(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, training: TrainingOptions, training_text: Sequence[str]
    ) -> Iterator[Measurement]:
        """Measure every transfer on all documents after a short training, on the same batches for all."""
        batches = pack(tokenizer, training_text, training)
        for (method, seed), planned in self.plans.items():
            start = time.monotonic()
            trained = train(copy.deepcopy(put_rows(model, planned.transfer)), batches, training, seed=seed)
            seconds = time.monotonic() - start
            yield Measurement(method, seed, training.num_steps, self.scorer(trained, self.texts), seconds)


def _documents_between(text: Text, done: int, end: int, of: int) -> Text:
    """As large a part of the text as documents `done` to `end` are of the first text's; all parts together are the text."""
    begin, stop = (-(-count * len(text.documents) // of) for count in (done, end))
    return replace(text, documents=text.documents[begin:stop])


def _together(earlier: TextScore | None, later: TextScore) -> TextScore:
    return later if earlier is None else replace(later, documents=(*earlier.documents, *later.documents))


def pack(tokenizer: PreTrainedTokenizerFast, documents: Sequence[str], options: TrainingOptions) -> Tensor:
    """Documents, each between what its tokenizer puts in front and EOS, one after the other and cut into rows: (num_rows, sequence_length) int64.

    Raises:
        ValueError: if the text does not fill one batch, or if the tokenizer has no EOS.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError("the target tokenizer has no EOS token to end documents with; training after the transfer needs one")
    front = document_front(tokenizer)
    ids = [
        token
        for text_ids in tokenizer(list(documents), add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
        for token in (*front, *text_ids, tokenizer.eos_token_id)
    ]
    num_rows = len(ids) // options.sequence_length
    if num_rows < options.batch_size:
        raise ValueError(
            f"the training text has {len(ids):,} tokens, which is less than one batch of"
            f" {options.batch_size} x {options.sequence_length}; give more --text or a smaller batch"
        )
    return torch.tensor(ids[: num_rows * options.sequence_length]).view(num_rows, options.sequence_length)


def train(model: PreTrainedModel, rows: Tensor, options: TrainingOptions, *, seed: int) -> PreTrainedModel:
    """The model after `options.num_steps` of `training_steps`, ready to be measured; rows (num_rows, sequence_length) token ids."""
    for _ in training_steps(model, rows, options, seed=seed):
        pass
    return model.eval()


def training_steps(model: PreTrainedModel, rows: Tensor, options: TrainingOptions, *, seed: int) -> Iterator[int]:
    """Train all parameters that require a gradient; yields the number of each step once it is taken.

    Args:
        rows: (num_rows, sequence_length) token ids, drawn without repetition until all were seen.
        seed: decides the order of rows and the dropout.

    Raises:
        ValueError: if the loss is not finite.
    """
    order = torch.Generator().manual_seed(seed)
    optimizer = adamw(model, options)
    warmup = max(1, round(_WARMUP_SHARE * options.num_steps))
    queue = torch.empty(0, dtype=torch.int64)
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        for step in range(1, options.num_steps + 1):
            while len(queue) < options.batch_size:
                queue = torch.cat([queue, torch.randperm(len(rows), generator=order)])
            batch, queue = rows[queue[: options.batch_size]], queue[options.batch_size :]
            take_step(model, optimizer, batch, options, warmup_steps=warmup, step=step)
            yield step


def adamw(model: PreTrainedModel, options: TrainingOptions) -> torch.optim.AdamW:
    """The optimizer of all parameters."""
    return torch.optim.AdamW(model.parameters(), lr=options.learning_rate, betas=_BETAS, weight_decay=_WEIGHT_DECAY, fused=True)


def take_step(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, batch: Tensor, options: TrainingOptions, *, warmup_steps: int, step: int
) -> None:
    """One step on (batch_size, sequence_length) token ids.

    Args:
        step: its number, from 1.

    Raises:
        ValueError: if the loss is not finite.
    """
    model.train()
    for group in optimizer.param_groups:
        group["lr"] = options.learning_rate * min(1.0, step / warmup_steps)
    require_finite(update(model, optimizer, batch.to(model.device), options), step)


def update(model: PreTrainedModel, optimizer: torch.optim.Optimizer, batch: Tensor, options: TrainingOptions, **inputs: Any) -> Tensor:
    """Change the weights by what (batch_size, sequence_length) token ids on the model's device say; nothing waits for a GPU.

    Args:
        inputs: further ones of the model.

    Returns:
        The loss before the change, a scalar.
    """
    with torch.autocast(model.device.type, torch.bfloat16, enabled=options.mixed_precision):
        loss: Tensor = model(input_ids=batch, labels=batch, **inputs).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP_NORM)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def require_finite(loss: Tensor, step: int) -> None:
    """Refuse to go on from a step that broke the model, by its loss, a scalar.

    Raises:
        ValueError: if the loss is not finite.
    """
    if not torch.isfinite(loss):
        raise ValueError(f"the loss is {loss.item()} at step {step}; train with a lower --learning-rate")


def mean_bits_per_byte(measurements: Sequence[Measurement], text: str) -> float:
    """Mean over seeds."""
    return float(np.mean([measurement.scores[text].bits_per_byte for measurement in measurements]))


def difference_between(ours: Sequence[Measurement], theirs: Sequence[Measurement], text: str) -> Difference:
    """How many bits per byte one method needs more than another on the same documents, which are the units of its interval and test.

    Where one was scored on fewer, these are the first of the other's.  The mean over seeds is taken per document first, so both speak of
    other documents of the kind, not of other seeds.
    """
    both = min(len(m.scores[text].documents) for m in (*ours, *theirs))
    first, second = (np.mean([_document_bits(m.scores[text].documents[:both]) for m in group], axis=0) for group in (ours, theirs))
    return paired_difference(first, second, [document.text_bytes for document in ours[0].scores[text].documents[:both]])


def standing_of(measurements: Sequence[Measurement], text: str, step: int, *, looks: int, tie: float) -> Standing:
    """Where the methods stand on a text: the best is the lowest of those that were scored on most documents."""
    groups: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        if measurement.method != SOURCE and measurement.step == step:
            groups.setdefault(measurement.method, []).append(measurement)
    most = max(len(group[0].scores[text].documents) for group in groups.values())
    values = {method: mean_bits_per_byte(group, text) for method, group in groups.items()}
    best = min((method for method in groups if len(groups[method][0].scores[text].documents) == most), key=lambda method: values[method])
    behind = {method: difference_between(group, groups[best], text) for method, group in groups.items() if method != best}
    return Standing.of(values, best, behind, looks=looks, tie=tie)


def _document_bits(documents: Sequence[DocumentScore]) -> np.ndarray:
    return np.array([document.nats / math.log(2) + 8 * document.unknown_bytes for document in documents])


def sample_documents(text: Text, max_bytes: int) -> Text:
    """The same text with whole documents from all over it, of about so many bytes together; at least one.  So is every beginning of it.

    Raises:
        ValueError: if less than one byte is asked for.
    """
    if max_bytes < 1:
        raise ValueError(f"--heldout-bytes is {max_bytes}; expected at least 1")
    total = sum(len(document.encode()) for document in text.documents)
    if total <= max_bytes:
        return _spread(text)
    # A document is taken whenever the share of bytes taken so far falls behind the share wanted.
    kept: list[str] = []
    taken = seen = 0
    for document in text.documents:
        size = len(document.encode())
        seen += size
        if taken + size <= max_bytes * seen / total or not kept:
            kept.append(document)
            taken += size
    return _spread(replace(text, documents=kept))


def _spread(text: Text) -> Text:
    return replace(text, documents=[text.documents[place] for place in spread_order(len(text.documents))])
