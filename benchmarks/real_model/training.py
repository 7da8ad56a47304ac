"""Ways to train a grafted model on, in steps that a killed study goes on from."""

from __future__ import annotations

import itertools
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from benchmarks.real_model.recorded import RecordedStep
from conversion.checkpoints.hf_model import require_device
from conversion.comparing.comparison import TrainingOptions, adamw, take_step

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

WARMUP_STEPS = 10  # of all budgets alike, so that a longer one goes through the same models
_SAVE_SECONDS = 1200
_ENCODED_AT_ONCE = 100  # documents


@dataclass(frozen=True)
class Way:
    """How a model is trained on; the rate is constant behind the warm-up.

    Attributes:
        english: share of English rows in the text.
        embeddings_first: tokens for which only embeddings and output layer are trained.
        new_rows: what the rate of new tokens' rows is multiplied by.
        output_layer: as `conversion.transfer --output-layer`; None as the source has it.
    """

    english: float = 0.0
    embeddings_first: float = 0
    new_rows: float = 1
    output_layer: str | None = None

    @property
    def needs_new_rows(self) -> bool:
        """Whether it says nothing of a model that keeps its vocabulary."""
        return self.new_rows != 1 or self.output_layer is not None


WAYS = {
    "plain": Way(),
    "replay-25": Way(english=0.25),
    "replay-50": Way(english=0.5),
    "embeddings-first-10k": Way(embeddings_first=10_240),
    "embeddings-first-50k": Way(embeddings_first=51_200),
    "embeddings-only": Way(embeddings_first=math.inf),
    "new-rows-x3": Way(new_rows=3),
    "new-rows-x10": Way(new_rows=10),
    "copied": Way(output_layer="copied"),
}


def training_rows(
    tokenizer: PreTrainedTokenizerFast, target: Sequence[str], english: Sequence[str], way: Way, *, num_rows: int, length: int, seed: int
) -> Tensor:
    """(num_rows, length) token ids, in the order in which they are learned from; fewer rows are the first of more."""
    is_english = [math.floor((row + 1) * way.english) > math.floor(row * way.english) for row in range(num_rows)]
    sides = [
        iter(_packed(tokenizer, documents, count, length, seed=seed)) if count else iter(())
        for documents, count in ((target, num_rows - sum(is_english)), (english, sum(is_english)))
    ]
    return torch.stack([next(sides[side]) for side in is_english])


def _packed(tokenizer: PreTrainedTokenizerFast, documents: Sequence[str], num_rows: int, length: int, *, seed: int) -> Tensor:
    """Documents in the seed's order, each ended by EOS, cut into rows; begun again where they end."""
    order = list(documents)
    random.Random(seed).shuffle(order)
    endless = itertools.cycle(order)
    ids: list[int] = []
    while len(ids) < num_rows * length:
        some = list(itertools.islice(endless, _ENCODED_AT_ONCE))
        for one in tokenizer.backend_tokenizer.encode_batch(some, add_special_tokens=False):
            ids += [*one.ids, tokenizer.eos_token_id]
    return torch.tensor(ids[: num_rows * length]).view(num_rows, length)


def trained_steps(
    model: PreTrainedModel,
    rows: Tensor,
    how: TrainingOptions,
    way: Way,
    *,
    new_ids: Tensor,
    state: Path,
    before: float = math.inf,
    kept: bool = False,
    alone: AbstractContextManager[Any] | None = None,
) -> Iterator[tuple[int, float]]:
    """Train in place on all rows; yields the number of each step once it is taken, and the seconds of all steps so far (`seconds_now`).

    Args:
        state: file that keeps weights and optimizer now and then, from which a killed run goes on.
        before: the first step that is to be measured; a state of a later one is of no use.
        kept: whether the state at the end is kept, so that a longer run goes on from it; gone otherwise.
        alone: held while steps are recorded on a GPU, where other threads train beside this one.
    """
    optimizer = adamw(model, how)
    tables = list({id(layer.weight): layer.weight for layer in (model.get_input_embeddings(), model.get_output_embeddings())}.values())
    done, seconds = _resume(state, model, optimizer, before=before)
    recorded = RecordedStep(model, optimizer, how, warmup_steps=WARMUP_STEPS, alone=alone) if model.device.type == "cuda" else None
    saved, step = time.monotonic(), done
    for step, batch in enumerate(rows.split(how.batch_size)[done:], start=done + 1):
        start = seconds_now(model.device)
        _set_body(model, tables, trained=(step - 1) * batch.numel() >= way.embeddings_first)
        before = [table.detach()[new_ids].clone() for table in tables] if way.new_rows != 1 else []
        if recorded is None:
            take_step(model, optimizer, batch, how, warmup_steps=WARMUP_STEPS, step=step)
        else:
            recorded(batch, step)
        # The length of Adam's step does not depend on the gradient's, so a rate of a row's own is its step made longer.
        with torch.no_grad():
            for table, old in zip(tables, before):
                table[new_ids] += (way.new_rows - 1) * (table[new_ids] - old)
        seconds += seconds_now(model.device) - start
        yield step, seconds
        if time.monotonic() - saved > _SAVE_SECONDS:
            _save(state, model, optimizer, step, seconds)
            saved = time.monotonic()
    if kept:
        _save(state, model, optimizer, step, seconds)
    else:
        state.unlink(missing_ok=True)


def chosen_device(name: str) -> torch.device:
    """The device of `--device`; one that is not there ends the study with its sentence."""
    try:
        return torch.device(require_device(name))
    except ValueError as error:
        raise SystemExit(str(error)) from error


def seconds_now(device: torch.device) -> float:
    """Of the process on a CPU, of all its threads; by the clock on a GPU."""
    return time.process_time() if device.type == "cpu" else time.perf_counter()


def _set_body(model: PreTrainedModel, tables: Sequence[Any], *, trained: bool) -> None:
    of_tables = {id(table) for table in tables}
    for parameter in model.parameters():
        parameter.requires_grad_(trained or id(parameter) in of_tables)


def _save(state: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer, step: int, seconds: float) -> None:
    partial = state.with_suffix(".partial")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "seconds": seconds}, partial)
    os.replace(partial, state)


def _resume(state: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer, *, before: float) -> tuple[int, float]:
    """Steps that were taken, and their seconds."""
    if not state.exists() or (kept := torch.load(state, weights_only=True, mmap=True))["step"] >= before:
        return 0, 0.0
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    return kept["step"], kept["seconds"]
