"""What a run says about itself: a line of JSON per logged step, the same to TensorBoard and Weights & Biases, a short line to stderr."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger, WandbLogger
from megatron.core import parallel_state
from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.transformer.moe.moe_utils import (
    clear_aux_losses_tracker,
    get_moe_layer_wise_logging_tracker,
    reduce_aux_losses_tracker_across_ranks,
)
from nemo.lightning.megatron_parallel import MaskedTokenLossReduction
from numpy.typing import NDArray
from torch import Tensor

from nemo_patches.cpu_device import present_cpu_as_device
from nemo_patches.second_head import SecondHead, second_head_of
from recipes.numbers.batches import Batches
from recipes.numbers.steps import weights_of
from recipes.rules.inputs import RunInputs
from recipes.rules.languages import seen_languages
from recipes.rules.schema import Recipe
from recipes.training.freezing import is_of_tables, parameters_by_name
from recipes.training.loggers import MetricsFile
from recipes.training.masking import MaskedSamples
from recipes.training.passes import OrderedSamples

ON_CPU = present_cpu_as_device()
_ROWS = {"new_row_norm": "embedding.word_embeddings.weight", "new_output_row_norm": "output_layer.weight"}


class Metrics(Callback):
    """Writes `metrics.jsonl`; what is written where is in docs/training.md.

    NeMo's own printer calls a collective on rank 0 alone, and hangs a run of several processes.

    Args:
        new_rows: those of the vocabulary tables that the transfer has made.
    """

    def __init__(self, file: MetricsFile, *, every_steps: int, max_steps: int, rates: Rates, new_rows: range) -> None:
        self._file, self._every, self._max_steps, self._rates, self._new_rows = file, every_steps, max_steps, rates, new_rows
        self._last_time, self._last_step = time.monotonic(), 0
        self._learning_rates: dict[bool, float] = {}  # of the tables, if they have their own, and of the others
        self._first_time, self._first_step = 0.0, -1  # of the first line: what comes before it is the start, and no pace
        self._unsent: list[tuple[Logger, Mapping[str, Any]]] = []
        self._seen: NDArray[np.int64] | None = None  # tokens in the first so many samples, where samples differ

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget what an interrupted run logged after the checkpoint that this one resumes from."""
        self._last_time, self._last_step = time.monotonic(), trainer.global_step
        get_moe_layer_wise_logging_tracker().clear()  # of an earlier training of this process, with its layers and process groups
        if trainer.is_global_zero:
            self._file.forget(last_step=trainer.global_step or -1)  # the validation of step 0 is measured again
        data = trainer.datamodule._train_ds  # type: ignore[attr-defined]
        if isinstance(data, MaskedSamples):
            data = data.samples
        if isinstance(data, OrderedSamples):
            self._seen = data.tokens_seen(self._rates.positions_per_sample)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Note the learning rate that the step will use; afterwards the optimizer holds that of the next."""
        groups = trainer.optimizers[0].param_groups
        self._learning_rates = {is_of_tables(group): group["lr"] for group in groups}
        for head in _second_heads(trainer):
            head.take_first_losses()  # of the step before, if nothing was logged then

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the step that ended; every rank takes part."""
        step = trainer.global_step
        if (step % self._every and step != self._max_steps) or step == self._last_step:
            return
        logged = trainer.callback_metrics
        loss = float(logged["reduced_train_loss"])  # waits for the device, so the time behind it is that of finished steps
        now = time.monotonic()
        new_seconds = now - self._last_time
        seconds_per_step = new_seconds / (step - self._last_step)
        tokens, new_tokens = self._tokens(step), self._tokens(step) - self._tokens(self._last_step)
        positions = self._rates.positions(step) - self._rates.positions(self._last_step)
        tokens_per_second = new_tokens / new_seconds
        norms, first_head = mean_row_norms(trainer, self._new_rows), first_head_loss(trainer)
        balance = expert_balance(trainer, num_samples=self._rates.batches.samples(step) - self._rates.batches.samples(self._last_step))
        self._last_time, self._last_step = time.monotonic(), step
        if self._first_step < 0:
            self._first_time, self._first_step = now - seconds_per_step, step - 1
        if not trainer.is_global_zero:
            return
        samples = self._rates.batches.samples
        pace = (now - self._first_time) / (samples(step) - samples(self._first_step))
        seconds_left = (samples(self._max_steps) - samples(step)) * pace
        memory = memory_gib()
        rate = self._learning_rates.get(False, self._learning_rates.get(True, 0.0))
        record = {
            "step": step,
            "loss": loss if math.isfinite(loss) else None,
            **({} if first_head is None else {"first_head_loss": first_head if math.isfinite(first_head) else None}),
            **({} if balance is None else {"expert_balance": balance if math.isfinite(balance) else None}),
            "learning_rate": rate,
            **({"embedding_learning_rate": self._learning_rates[True]} if True in self._learning_rates else {}),
            "gradient_norm": float(logged["grad_norm"]) if "grad_norm" in logged else None,
            **{name: norm if math.isfinite(norm) else None for name, norm in norms.items()},
            **({"batch_size": self._rates.batches.size(step - 1)} if self._rates.batches.ramp_steps else {}),
            "tokens": tokens,
            "bytes": round(tokens * self._rates.bytes_per_token),
            "tokens_per_second": round(tokens_per_second, 1),
            "seconds_per_step": round(seconds_per_step, 4),
            "memory_gib": round(memory, 3),
            **({} if ON_CPU else {"reserved_gib": round(torch.cuda.max_memory_reserved() / 2**30, 3)}),
            **self._rates.of_work(positions / new_seconds),
        }
        self._write(trainer, record)
        print(
            f"step {step}/{self._max_steps}  loss {loss:.4f}  learning rate {rate:.2e}"
            f"  {tokens_per_second:,.0f} tokens/s  {seconds_per_step:.3g} s/step  {memory:.1f} GiB  {seconds_left:.0f} s left",
            file=sys.stderr,
            flush=True,
        )

    def _tokens(self, step: int) -> int:
        """Seen in the first so many steps."""
        if self._seen is None:
            return self._rates.positions(step)
        return int(self._seen[self._rates.batches.samples(step)])

    def write_validation(
        self, trainer: Trainer, losses: Mapping[str, float], *, seconds: float, masked_shares: Mapping[str, float] | None = None
    ) -> None:
        """Log losses on held-out text, also in bits per byte, which compares runs with different vocabularies.

        Args:
            losses: nats per predicted token, by language; the language `all` is left out of the names.
            masked_shares: which share of the tokens was predicted, where they were masked ones; these are no figures of a causal model, and
                have names of their own.
            seconds: that the measurement took, which are not counted as training.
        """
        record: dict[str, Any] = {"step": trainer.global_step}
        for language, loss in losses.items():
            suffix = "" if language == "all" else f"_{language}"
            bits = loss / math.log(2) / self._rates.held_out_bytes_per_token[language]
            kind, share = ("", 1.0) if masked_shares is None else ("masked_", masked_shares[language])
            record[f"validation_{kind}loss{suffix}"] = loss
            record[f"validation_{kind}bits_per_byte{suffix}"] = bits * share
        text = "  ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in record.items() if name != "step")
        self._write(trainer, {name: value if math.isfinite(value) else None for name, value in record.items()})
        print(f"step {trainer.global_step}/{self._max_steps}  {text}", file=sys.stderr, flush=True)
        self._last_time += seconds

    def _write(self, trainer: Trainer, record: Mapping[str, Any]) -> None:
        if not self._file.append(record):
            return
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                self._unsent.append((logger, record))
            else:
                _log(logger, record)

    def saved(self, step: int) -> None:
        """Note that a checkpoint of a step is complete.

        What Weights & Biases gets cannot be taken back, so it gets what no interruption can undo any more.
        """
        for logger, record in self._unsent:
            if record["step"] <= step:
                _log(logger, record)
        self._unsent = [(logger, record) for logger, record in self._unsent if record["step"] > step]


def _log(logger: Logger, record: Mapping[str, Any]) -> None:
    logger.log_metrics({name: value for name, value in record.items() if value is not None and name != "step"}, step=record["step"])


def gather_parameters(trainer: Trainer) -> None:
    """Give every rank the parameters after the last step; with overlapped communication the next forward pass would."""
    if trainer.strategy.ddp_config.overlap_param_gather:  # type: ignore[attr-defined]
        trainer.strategy.megatron_parallel.force_param_sync()  # type: ignore[attr-defined]


def mean_row_norms(trainer: Trainer, rows: range) -> dict[str, float]:
    """Mean length of rows of the token table, and of the output layer where it is a matrix of its own; every rank takes part."""
    gather_parameters(trainer)
    sums = torch.zeros(len(_ROWS), dtype=torch.float64, device="cuda")
    rank = parallel_state.get_tensor_model_parallel_rank()
    if parallel_state.get_data_parallel_rank(with_context_parallel=True) == 0:
        for chunk in trainer.strategy.megatron_parallel:  # type: ignore[attr-defined]
            stage = dict(parameters_by_name(chunk))
            for index, name in enumerate(_ROWS.values()):
                if name in stage and _is_first_copy(name):
                    first = rank * stage[name].shape[0]
                    shard = stage[name].detach()[max(rows.start - first, 0) : max(rows.stop - first, 0)]
                    sums[index] += shard.float().norm(dim=1).sum().double()
    torch.distributed.all_reduce(sums)
    return {key: float(total) / len(rows) for key, total in zip(_ROWS, sums, strict=True) if float(total)}


def first_head_loss(trainer: Trainer) -> float | None:
    """Mean over the tokens of the step that count of what the first of two heads loses, None where there is one; every rank takes part."""
    noted = torch.zeros(2, dtype=torch.float64, device="cuda")  # sum and number
    for head in _second_heads(trainer):
        noted += head.take_first_losses().to(noted)
    torch.distributed.all_reduce(noted)
    return float(noted[0] / noted[1]) if float(noted[1]) else None


def expert_balance(trainer: Trainer, *, num_samples: int) -> float | None:
    """How evenly tokens went to experts: 1 where all are equally busy and more where some are more, up to their number over the chosen ones.

    Mean over layers and micro batches since the last call of what `recipes.rules.layout_checks` has the weight of; None where that loss is not
    computed; every rank takes part.

    Args:
        num_samples: trained on since, on all ranks.
    """
    tracker = get_moe_layer_wise_logging_tracker()
    if not tracker:
        return None
    reduce_aux_losses_tracker_across_ranks()
    [losses] = (noted["values"] for noted in tracker.values())  # (num_layers)
    micro_batches = num_samples / trainer.datamodule.micro_batch_size / parallel_state.get_data_parallel_world_size()  # type: ignore[attr-defined]
    mean = float(losses.mean()) / micro_batches
    clear_aux_losses_tracker()
    return mean


def _second_heads(trainer: Trainer) -> Iterator[SecondHead]:
    """Those of this rank: one on the last stage, where two tokens are predicted."""
    for chunk in trainer.strategy.megatron_parallel:  # type: ignore[attr-defined]
        if (head := second_head_of(chunk)) is not None:
            yield head


def memory_gib() -> float:
    """The most memory that this rank has used: of its device, or where there is none of the process."""
    if ON_CPU:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # in KiB
    return torch.cuda.max_memory_allocated() / 2**30


def _is_first_copy(name: str) -> bool:
    """A table that is the output layer's too is on two pipeline stages."""
    return not name.startswith("embedding.") or parallel_state.is_pipeline_first_stage()


@dataclass(frozen=True)
class Rates:
    """What turns steps into tokens, bytes and work.

    Attributes:
        positions_per_sample: that the model computes: tokens, and what fills up answers.
        batches: samples of each step over all ranks.
        bytes_per_token: of the training text.
        held_out_bytes_per_token: of each held-out text, by language.
        flops_per_token: forward and backward.
        num_devices: that share the work.
        peak_flops: of one device in the run's precision; None where it is not known.
    """

    positions_per_sample: int
    batches: Batches
    bytes_per_token: float
    held_out_bytes_per_token: Mapping[str, float]
    flops_per_token: float
    num_devices: int
    peak_flops: float | None

    def positions(self, steps: int) -> int:
        """In the first so many steps over all ranks."""
        return self.batches.samples(steps) * self.positions_per_sample

    def of_work(self, positions_per_second: float) -> dict[str, float]:
        """TFLOP/s of one device, and which share of the possible that is (MFU, Chowdhery et al. 2022, appendix B)."""
        flops = positions_per_second * self.flops_per_token / self.num_devices
        shares = {} if self.peak_flops is None else {"mfu": round(flops / self.peak_flops, 4)}
        return {"tflops_per_device": round(flops / 1e12, 6), **shares}


def new_rows(facts: Mapping[str, Any], *, vocab_size: int) -> range:
    """Rows of the token table that a transfer has made: those after the old ones where it expanded a vocabulary, else all.

    Args:
        facts: of the checkpoint's manifest, which `conversion.transfer` began.
    """
    vocabulary = facts.get("vocabulary") or {}
    return range(vocab_size - vocabulary.get("num_new_tokens", vocab_size), vocab_size)


LANGUAGES = "languages"  # the key of a checkpoint's facts


def samples_of_each(samples: Any, number: int, *, num_data_sets: int) -> NDArray[np.int64]:
    """(num_data_sets,), of the first so many samples of a run how many are of each data set."""
    if isinstance(samples, MaskedSamples):
        return samples_of_each(samples.samples, number, num_data_sets=num_data_sets)
    if isinstance(samples, OrderedSamples):
        which = samples.data_sets[:number]
    elif isinstance(samples, BlendedDataset):
        which = samples.dataset_index[:number]
    else:
        assert num_data_sets == 1
        return np.array([number], dtype=np.int64)
    return np.bincount(which, minlength=num_data_sets).astype(np.int64)


@dataclass(frozen=True)
class LanguageFacts:
    """What a checkpoint says of the languages of its run."""

    recipe: Recipe
    inputs: RunInputs

    def __call__(self, trainer: Any, number: int) -> Mapping[str, Any]:
        """Facts after so many samples; none where the recipe does not say which language a data set is in."""
        data, train = self.recipe.data, self.inputs.train
        if not data.languages:
            return {}
        seen = samples_of_each(trainer.datamodule._train_ds, number, num_data_sets=len(train))
        tokens = [manifest.facts["num_tokens"] for manifest in train]
        weights = weights_of(data, train)
        return {LANGUAGES: seen_languages(data.languages, tokens, weights, seen.tolist(), sequence_length=data.sequence_length)}


FactsOfSamples = Callable[[Any, int], Mapping[str, Any]]


class StepLoss(MaskedTokenLossReduction):  # type: ignore[misc]
    """NeMo's mean over the tokens of a step that count, which asks the GPU for the number of tokens of every micro batch."""

    def reduce(self, losses_reduced_per_micro_batch: Sequence[dict[str, Any]]) -> Tensor:
        """The mean in nats, a scalar on the device; every rank of the last pipeline stage takes part."""
        if not losses_reduced_per_micro_batch:
            return torch.zeros((), device="cuda")
        total: Tensor = torch.stack([sums["loss_sum_and_ub_size"] for sums in losses_reduced_per_micro_batch]).sum(dim=0)
        torch.distributed.all_reduce(total, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
        return total[0] / total[1]
