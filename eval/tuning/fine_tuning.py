"""Fine-tune an encoder on labelled rows and label others: a head of its own on the encoder, a plain loop, and the seed alone decides."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.progress import Progress
from common.quiet_library import quiet_transformers
from conversion.checkpoints.hf_model import Checkpoint, is_masked
from data_prep.tokenizers.frame import frame_of
from eval.protocols.zero_shot import FineTuning, Labelled, Prediction, Task, headline_value
from eval.tuning.word_pieces import Passage, WordCutter

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

_NO_LABEL = -100  # of places that have no label, by the convention of torch's cross_entropy
_LONGEST_UNKNOWN = 512  # tokens of a model whose config names no limit


@dataclass(frozen=True)
class Cuts:
    """What did not fit: sentences that were cut into several passages, words and texts that lost their end."""

    sentences: int = 0
    words: int = 0
    texts: int = 0


class Reader:
    """Rows as passages of token ids with their labels.

    Args:
        max_tokens: of a passage; fewer where the model has fewer positions.
    """

    def __init__(self, checkpoint: Checkpoint, task: Task, *, max_tokens: int) -> None:
        self._tokenizer, self._task = checkpoint.tokenizer, task
        self.max_tokens = min(max_tokens, checkpoint.num_positions or _LONGEST_UNKNOWN)

    def passages(self, rows: Labelled) -> tuple[list[Passage], Cuts]:
        """Of all rows, in their order; of a text one, whose label stands for all of it."""
        if self._task.of_words:
            cutter = WordCutter(self._tokenizer, max_tokens=self.max_tokens)
            found = cutter.passages(rows.inputs)
            return found, Cuts(sentences=cutter.cut_sentences, words=cutter.cut_words)
        frame = frame_of(self._tokenizer)
        room, cut = self.max_tokens - len(frame), 0
        found = []
        texts = [text for (text,) in rows.inputs]
        for number, ids in enumerate(
            self._tokenizer(texts, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
        ):
            cut += len(ids) > room
            found.append(Passage(number, 0, (*frame.front, *ids[:room], *frame.back), (0,)))
        return found, Cuts(texts=cut)


def require_encoder(checkpoint: Checkpoint) -> None:
    """Refuse what is not an encoder.

    Raises:
        ValueError: for a causal model, or one whose tokenizer has no padding token.
    """
    if not is_masked(checkpoint.model_type):
        raise ValueError(
            f"the model in {checkpoint.directory} ({checkpoint.model_type}) is causal, so a word would be labelled without the words after it; give an"
            " encoder, such as RoBERTa, XLM-R or BERT"
        )
    if checkpoint.tokenizer.pad_token_id is None:
        raise ValueError(f"the tokenizer in {checkpoint.directory} has no padding token, which batches need; set its pad_token (<pad>)")


def new_tagger(checkpoint: Checkpoint, task: Task, names: Sequence[str], *, seed: int, device: str) -> PreTrainedModel:
    """The encoder with a new head, whose weights the seed decides.

    Raises:
        ValueError: if the folder lacks tensors of the encoder.
    """
    import torch

    torch.manual_seed(seed)
    model, notes = _library(task).from_pretrained(
        str(checkpoint.directory),
        num_labels=len(names),
        id2label=dict(enumerate(names)),
        label2id={name: number for number, name in enumerate(names)},
        local_files_only=True,
        trust_remote_code=False,
        dtype=torch.float32,
        output_loading_info=True,
    )
    # The head is new, and so is BERT's pooler where the folder is of a masked model.
    prefix = f"{model.base_model_prefix}."
    missing = sorted(name for name in notes["missing_keys"] if name.startswith(prefix) and not name.startswith(f"{prefix}pooler."))
    if missing:
        raise ValueError(
            f"the weights in {checkpoint.directory} lack {len(missing)} tensors of the model, first {missing[0]}; export it again"
        )
    return _quiet(model, device)


def load_tagger(folder: Path, task: Task, *, device: str) -> PreTrainedModel:
    """What `fine_tune` returned, as saved."""
    import torch

    return _quiet(_library(task).from_pretrained(str(folder), local_files_only=True, dtype=torch.float32), device)


def _library(task: Task) -> Any:
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    quiet_transformers()
    return AutoModelForTokenClassification if task.of_words else AutoModelForSequenceClassification


def _quiet(model: Any, device: str) -> Any:
    return model.to(device).eval()


def fine_tune(
    model: PreTrainedModel,
    task: Task,
    settings: FineTuning,
    reader: Reader,
    names: Sequence[str],
    *,
    train: Labelled,
    dev: Labelled,
    seed: int,
    micro_batch_size: int,
    label: str,
    kept: KeptState | None = None,
) -> list[float]:
    """Train in place and leave the weights of the epoch that is best on development rows, the earlier of equals.

    Adam without weight decay, the rate falling in a line from its value to 0.  The loss is the mean over the labels of a step, however it
    is shared among micro batches.

    Args:
        label: of the progress.
        kept: saved state of this training, which resumes from it, to the same weights; None starts anew and keeps nothing.

    Returns:
        the headline on development rows after each epoch.

    Raises:
        ValueError: if the loss is not finite, or the state that was kept cannot be read.
    """
    passages, _ = reader.passages(train)
    training = _Training(model, settings, num_passages=len(passages), seed=seed)
    if kept is not None and (state := kept.read()) is not None:
        training.go_on_from(state)
        print(f"{label} resumes after step {training.step} of {training.num_steps}", file=sys.stderr, flush=True)
    with Progress(label, total=training.num_steps - training.step, unit="steps") as progress:
        while training.step < training.num_steps:
            model.train()
            batch = [passages[number] for number in training.batch()]
            loss = _gradients(model, task, train, batch, names, micro_batch_size=micro_batch_size)
            if not loss < float("inf"):
                raise ValueError(
                    f"the loss of {task.name} is {loss} in epoch {training.epoch} with seed {seed}; lower --learning-rate or check the model"
                )
            training.take_step()
            progress.advance(1)
            if training.is_between_epochs:
                model.eval()
                predicted = predict(model, task, reader, names, dev, batch_size=micro_batch_size)
                training.end_epoch(headline_value(task, dev, predicted, names))
            if kept is not None and kept.is_due:
                kept.keep(training.state())
    model.eval()
    model.load_state_dict(training.best)
    return training.by_epoch


class _Training:
    """A model on its way through the epochs: everything that decides its next steps.

    Attributes:
        step: that were taken.
        by_epoch: headlines on development rows.
        best: weights of the best epoch so far.
    """

    def __init__(self, model: PreTrainedModel, settings: FineTuning, *, num_passages: int, seed: int) -> None:
        import torch

        self._model, self._settings, self._num_passages = model, settings, num_passages
        self._steps_of_epoch = -(-num_passages // settings.global_batch_size)
        self.num_steps = settings.epochs * self._steps_of_epoch
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, eps=1e-8, weight_decay=0.0)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, lambda step: max(0.0, 1 - step / self.num_steps))
        torch.manual_seed(seed)  # of dropout, whatever was drawn before
        order = torch.Generator().manual_seed(seed)
        self._orders = [torch.randperm(num_passages, generator=order) for _ in range(settings.epochs)]
        self.step, self.by_epoch = 0, list[float]()
        self.best: dict[str, Tensor] = {}

    @property
    def epoch(self) -> int:
        """Of the next step, from 1."""
        return self.step // self._steps_of_epoch + 1

    @property
    def is_between_epochs(self) -> bool:
        """Whether the last step was an epoch's last."""
        return self.step % self._steps_of_epoch == 0

    def batch(self) -> list[int]:
        """Numbers of the next step's passages."""
        first = self.step % self._steps_of_epoch * self._settings.global_batch_size
        numbers: list[int] = self._orders[self.epoch - 1][first : first + self._settings.global_batch_size].tolist()
        return numbers

    def take_step(self) -> None:
        """By the gradients that are there."""
        import torch

        if self._settings.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.max_grad_norm)
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.step += 1

    def end_epoch(self, headline: float) -> None:
        """Keep the weights if they are better than any before."""
        if headline > max(self.by_epoch, default=-1.0):
            self.best = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._model.state_dict().items()}
        self.by_epoch.append(headline)

    def state(self) -> dict[str, Any]:
        """For `go_on_from` of another process."""
        import torch

        return {
            "step": self.step,
            "by_epoch": self.by_epoch,
            "best": self.best,
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "dropout": torch.get_rng_state(),
            "dropout on GPU": torch.cuda.get_rng_state(self._model.device) if self._model.device.type == "cuda" else None,
        }

    def go_on_from(self, state: Mapping[str, Any]) -> None:
        """Stand where a training of the same model, rows, settings and seed stood."""
        import torch

        self.step, self.by_epoch, self.best = state["step"], list(state["by_epoch"]), dict(state["best"])
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["dropout"])
        if state["dropout on GPU"] is not None and self._model.device.type == "cuda":
            torch.cuda.set_rng_state(state["dropout on GPU"], self._model.device)


def _gradients(
    model: PreTrainedModel, task: Task, rows: Labelled, batch: Sequence[Passage], names: Sequence[str], *, micro_batch_size: int
) -> float:
    """Gradients of a step; returns its loss."""
    import torch

    number = {name: index for index, name in enumerate(names)}
    num_labels = sum(len(passage.places) for passage in batch)
    total = 0.0
    for first in range(0, len(batch), micro_batch_size):
        part = batch[first : first + micro_batch_size]
        ids, mask = _padded(part, pad_id=_pad_id(model), device=model.device)
        logits = model(input_ids=ids, attention_mask=mask).logits
        expected = torch.full(ids.shape if task.of_words else ids.shape[:1], _NO_LABEL, device=model.device)
        for row, passage in enumerate(part):
            labels = rows.labels[passage.sentence]
            for index, place in enumerate(passage.places):
                label = number[labels[passage.first_word + index]]
                if task.of_words:
                    expected[row, place] = label
                else:
                    expected[row] = label
        loss = (
            torch.nn.functional.cross_entropy(logits.flatten(0, -2), expected.flatten(), ignore_index=_NO_LABEL, reduction="sum")
            / num_labels
        )
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total


def predict(
    model: PreTrainedModel, task: Task, reader: Reader, names: Sequence[str], rows: Labelled, *, batch_size: int
) -> list[Prediction]:
    """The likeliest label of each word, or of each text; sentences that were cut are whole again."""
    import torch

    passages, _ = reader.passages(rows)
    found: list[Prediction] = [[""] * len(labels) for labels in rows.labels]
    with torch.inference_mode():
        for numbers in _batches(passages, batch_size):
            part = [passages[number] for number in numbers]
            ids, mask = _padded(part, pad_id=_pad_id(model), device=model.device)
            best = model(input_ids=ids, attention_mask=mask).logits.argmax(-1).tolist()
            for passage, labels in zip(part, best, strict=True):
                for index, place in enumerate(passage.places):
                    found[passage.sentence][passage.first_word + index] = names[labels[place] if task.of_words else labels]
    return found


def _batches(passages: Sequence[Passage], batch_size: int) -> Iterator[list[int]]:
    """Numbers of passages of like length, longest first, so that little is padded and memory runs out at once or never."""
    order = sorted(range(len(passages)), key=lambda number: -len(passages[number].token_ids))
    for first in range(0, len(order), batch_size):
        yield order[first : first + batch_size]


def _padded(passages: Sequence[Passage], *, pad_id: int, device: Any) -> tuple[Tensor, Tensor]:
    """Token ids and mask, both (passages, longest); RoBERTa counts its positions from what is not a padding token."""
    import torch

    longest = max(len(passage.token_ids) for passage in passages)
    ids = torch.full((len(passages), longest), pad_id)
    mask = torch.zeros((len(passages), longest), dtype=torch.long)
    for row, passage in enumerate(passages):
        ids[row, : len(passage.token_ids)] = torch.tensor(passage.token_ids)
        mask[row, : len(passage.token_ids)] = 1
    return ids.to(device), mask.to(device)


def _pad_id(model: PreTrainedModel) -> int:
    return int(model.config.pad_token_id or 0)


class KeptState:
    """A file with what a training stands at; complete or absent, also after the machine went down.

    Args:
        path: whose folder is made with the first state.
        every_seconds: from one state to the next at least, or from the beginning to the first; 0 keeps one behind every step.
    """

    def __init__(self, path: Path, *, every_seconds: float) -> None:
        self._path, self._every_seconds = path, every_seconds
        self._last = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it is time to keep a state."""
        return time.monotonic() - self._last >= self._every_seconds

    def keep(self, state: Mapping[str, Any]) -> None:
        """Put a state in place of the one before; tensors may be on any device."""
        import torch

        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f".{self._path.name}.partial")
        with partial.open("wb") as stream:
            torch.save(dict(state), stream)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(self._path)
        self._last = time.monotonic()

    def read(self) -> dict[str, Any] | None:
        """The last state that was kept, its tensors in main memory; None if there is none.

        Raises:
            ValueError: if the file is not what `keep` wrote.
        """
        import pickle

        import torch

        if not self._path.is_file():
            return None
        try:
            return dict(torch.load(self._path, map_location="cpu", weights_only=True))
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            raise ValueError(f"{self._path} is not a complete training state; remove it to start the training again") from error

    def remove(self) -> None:
        """Of a training that ended."""
        self._path.unlink(missing_ok=True)
