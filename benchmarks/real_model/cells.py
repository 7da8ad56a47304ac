"""Cells of the study: one model each, made, scored, trained on and scored again; a JSON file for each."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.real_model.material import HELPER_STEPS, Study
from benchmarks.real_model.training import WAYS, seconds_now, trained_steps
from common.plain_files import read_json, write_json
from conversion.checkpoints.hf_model import load_model
from conversion.comparing.comparison import TrainingOptions, made_rows, put_rows, with_rows
from conversion.embeddings.checkpoint import Transfer

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

LAPT = "lapt"
STREAMS = 32  # that torch has of a GPU; of more cells beside each other two would share one
DRAWN = ("random-all", "random")  # of which every seed is another model before training
Figures = dict[str, dict[str, Any]]  # tokens of training -> what was measured
_HELPER_OF = "+helper-"  # between a method and its helper's steps, in names of files


@dataclass(frozen=True)
class Cell:
    """A model: how it is made and trained.

    Attributes:
        vocabulary: `replace-SIZE` or `expand-TOKENS`; None for the source's own, whose method is `lapt`.
        helper_steps: of training of the helper that the method reads.
    """

    language: str
    vocabulary: str | None
    method: str
    way: str = "plain"
    seed: int = 1
    helper_steps: int = HELPER_STEPS

    @property
    def made_by(self) -> str:
        """The method, with the steps of its helper where these are not the usual ones."""
        return self.method if self.helper_steps == HELPER_STEPS else f"{self.method}{_HELPER_OF}{self.helper_steps}"

    def path(self, output: Path) -> Path:
        """Of its figures."""
        return output / "cells" / f"{self.language}.{self.vocabulary or 'own'}.{self.made_by}.{self.way}.{self.seed}.json"

    def rows_path(self, output: Path) -> Path:
        """Of its rows before training, where they are made ahead."""
        return output / "rows" / f"{self.path(output).stem}.safetensors"

    @classmethod
    def of(cls, path: Path) -> Cell:
        """That of a file."""
        language, vocabulary, made_by, way, seed = path.name.removesuffix(".json").split(".")
        method, _, steps = made_by.partition(_HELPER_OF)
        return cls(language, None if vocabulary == "own" else vocabulary, method, way, int(seed), int(steps or HELPER_STEPS))

    @property
    def untrained(self) -> Cell:
        """The cell that has the same rows before training."""
        return replace(self, way="plain", seed=self.seed if self.method in DRAWN else 1)


def measure(study: Study, cell: Cell, budgets: Sequence[int], how: TrainingOptions, *, keep_state: bool = False) -> None:
    """Measure the cell before training and after so many tokens, unless that is known.

    Args:
        keep_state: keep what the last of these left of model and optimizer (12 bytes a parameter), so that larger budgets go on from there.
    """
    path = cell.path(study.output)
    found: Figures = read_json(path) if path.exists() else {}
    wanted = [budget for budget in budgets if str(budget) not in found]
    if "0" in found and not wanted:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if "0" not in found:
        found["0"] = _before_training(study, cell)
        write_json(path, found)
    if not wanted:
        return
    of_step = how.batch_size * how.sequence_length
    with study.alone:
        model, rows, new_ids = _to_train(study, cell, max(wanted), how)
    steps = trained_steps(
        model,
        rows,
        how,
        WAYS[cell.way],
        new_ids=new_ids,
        state=path.with_suffix(".state"),
        before=min(wanted) // of_step,
        kept=keep_state,
        alone=study.alone,
    )
    for step, seconds in steps:
        if step * of_step in wanted:
            with study.alone:
                trained = copy.deepcopy(model).to(getattr(torch, study.precision))
                trained.set_attn_implementation(study.scored_model.config._attn_implementation)
                found[str(step * of_step)] = _scored(study, cell, trained, seconds)
            write_json(path, found)
            _tell(cell, step * of_step, found)


def _to_train(study: Study, cell: Cell, tokens: int, how: TrainingOptions) -> tuple[PreTrainedModel, Tensor, Tensor]:
    """The model in float32, the (rows, tokens) that it is trained on, and the ids of tokens that the source lacks."""
    rows = study.training_rows(cell.language, cell.vocabulary, cell.way, cell.seed, tokens // how.sequence_length, how.sequence_length)
    model = load_model(study.checkpoint, device=study.device, dtype="float32")
    # On a CPU the plain attention takes less than half of the fused one's time, at this length.
    model.set_attn_implementation("eager" if model.device.type == "cpu" else "sdpa")
    new_ids = torch.empty(0, dtype=torch.int64)
    if cell.vocabulary is not None:
        model = grafted(study, cell, model)
        new_ids = torch.from_numpy(study.case(cell.language, cell.vocabulary).inputs.new_ids)
    if study.compiled:
        for layer in model.get_decoder().layers:
            layer.compile()
    return model, rows, new_ids


def measure_together(
    study: Study, cells: Sequence[tuple[Cell, Sequence[int]]], how: TrainingOptions, *, together: int, keep_state: bool = False
) -> None:
    """Measure cells, so many of them beside each other on one GPU, which a small model's step does not fill; each thread has a stream of its own.

    What a cell makes and is scored by is done by one at a time, while the others train on.
    """

    def take_stream() -> None:
        torch.cuda.set_stream(torch.cuda.Stream(study.device))

    with ThreadPoolExecutor(together, initializer=take_stream) as threads:
        for done in [threads.submit(measure, study, *job, how, keep_state=keep_state) for job in cells]:
            done.result()


def _before_training(study: Study, cell: Cell) -> dict[str, Any]:
    """Scores of the rows as they are made, and the seconds of deciding and making them."""
    same = cell.untrained.path(study.output)
    if same.exists():
        return dict(read_json(same)["0"])
    with study.alone:
        start = seconds_now(study.scored_model.device)
        model = study.scored_model if cell.vocabulary is None else grafted(study, cell, study.scored_model)
        figures = _scored(study, cell, model, seconds_now(model.device) - start)
    _tell(cell, 0, {"0": figures})
    return figures


def grafted(study: Study, cell: Cell, model: PreTrainedModel) -> PreTrainedModel:
    """The model with the cell's rows, which are made now unless `make_rows` has made them."""
    path = cell.rows_path(study.output)
    if not path.exists():
        return put_rows(model, transfer_of(study, cell))
    assert cell.vocabulary is not None
    return with_rows(model, load_file(path), input_name=study.case(cell.language, cell.vocabulary).layers.input)


def make_rows(study: Study, cell: Cell) -> None:
    """Make the cell's rows, for those that measure it later; several processes may make rows of different cells beside each other."""
    path = cell.rows_path(study.output)
    if path.exists() or cell.vocabulary is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file(made_rows(transfer_of(study, cell)), partial)
    partial.rename(path)


def transfer_of(study: Study, cell: Cell) -> Transfer:
    """The decided transfer of a cell."""
    assert cell.vocabulary is not None
    case = study.case(cell.language, cell.vocabulary, cell.helper_steps)
    if output_layer := WAYS[cell.way].output_layer:
        case = replace(case, output_layer=output_layer)
    request = study.request(cell.language, cell.vocabulary, cell.helper_steps)
    return Transfer.of(case, replace(request, method=cell.method, seed=cell.seed))


def _scored(study: Study, cell: Cell, model: PreTrainedModel, seconds: float) -> dict[str, Any]:
    scores = study.scorer(cell.language, cell.vocabulary)(model, study.heldout(cell.language))
    return {
        "bits_per_byte": {name: score.bits_per_byte for name, score in scores.items()},
        "documents": {
            name: [(document.nats / math.log(2) + 8 * document.unknown_bytes, document.text_bytes) for document in score.documents]
            for name, score in scores.items()
        },
        "seconds": seconds,
    }


def _tell(cell: Cell, tokens: int, found: Figures) -> None:
    figures = found[str(tokens)]
    told = ", ".join(f"{name} {value:.3f}" for name, value in figures["bits_per_byte"].items())
    print(f"{cell.path(Path()).stem}, {tokens:,} tokens: {told} ({figures['seconds']:.0f} s)", flush=True)


def equal_bytes(study: Study, language: str, vocabulary: str, tokens: int, of_step: int) -> int:
    """How many tokens of the source's vocabulary hold as much text as so many of another, in whole steps."""
    share = study.bytes_per_token(language, vocabulary) / study.bytes_per_token(language, None)
    return round(tokens * share / of_step) * of_step


_SPOKEN, _ROUNDS = 48, 3


def measure_speed(study: Study, language: str, vocabularies: Sequence[str]) -> None:
    """Write the tokens per CPU second of greedy generation by each vocabulary, in float32 on one thread: medians of rounds in turns."""
    path = study.output / "speed" / f"{language}.json"
    found: dict[str, Any] = read_json(path) if path.exists() else {}
    if {"own", *vocabularies} <= set(found):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    source = load_model(study.checkpoint, device="cpu", dtype="float32")
    names: list[str | None] = [None, *vocabularies]
    models = [source if name is None else put_rows(source, transfer_of(study, Cell(language, name, "mean"))) for name in names]
    text = study.heldout(language)[0].documents
    seconds: dict[str, list[float]] = {}
    for _ in range(_ROUNDS):
        for name, model in zip(names, models):
            prompt = torch.tensor([study.tokenizer_of(language, name).backend_tokenizer.encode(text[0]).ids[:16]])
            start = time.process_time()
            model.generate(prompt, do_sample=False, min_new_tokens=_SPOKEN, max_new_tokens=_SPOKEN, pad_token_id=0)
            seconds.setdefault(name or "own", []).append(time.process_time() - start)
    for name in names:
        tokenizer = study.tokenizer_of(language, name).backend_tokenizer
        num_tokens = sum(len(one.ids) for one in tokenizer.encode_batch(text, add_special_tokens=False))
        rate = _SPOKEN / median(seconds[name or "own"])
        found[name or "own"] = {"tokens_per_second": rate, "characters_per_token": sum(map(len, text)) / num_tokens}
    write_json(path, found)


def figures_of(path: Path) -> Figures:
    """What a cell has measured."""
    figures: Figures = json.loads(path.read_text(encoding="utf-8"))
    return figures
