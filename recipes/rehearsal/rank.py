"""One rank of a run, from its first line to a resumed step, on a simulated GPU.

Model, optimizer, data and callbacks are made by the functions that `recipes.train` calls.  What differs: tensors have no values
(`nemo_patches.fake_devices`), checkpoints no numbers (`nemo_patches.fake_storage`), a few steps are taken, each of as many micro batches as
fill the pipeline, and loader processes are left out.
"""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import accumulate, cycle, takewhile
from pathlib import Path
from typing import Any

from common.lease import Fence, take_lease, this_process
from nemo_patches.core import apply
from nemo_patches.fake_devices import FakeGpuKind, World, present_fake_gpus, simulated_rank
from nemo_patches.quiet import quiet_imports
from recipes.planner.hardware import Gpu
from recipes.rehearsal.account import Account
from recipes.rehearsal.inputs import with_stand_ins
from recipes.rules.inputs import RunInputs
from recipes.rules.masking import predicted_share
from recipes.rules.schema import FreezeRule, Recipe
from recipes.runs.run_dir import CHECKPOINTS_NAME
from recipes.runs.stopping import StopSignals
from recipes.runs.watchdog import watching

present_fake_gpus()  # before NeMo keeps an unpatched name

with quiet_imports():
    import torch
    import torch.distributed as distributed
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.moe.experts import SequentialMLP
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
    from torch import Tensor
    from torch.distributed.checkpoint.storage import WriteResult

    from nemo_patches import documents, fake_storage, masked_positions
    from nemo_patches.fake_devices.tensors import experts_of_a_token
    from nemo_patches.fake_storage import NOWHERE
    from recipes.training import engine
    from recipes.training.assembly import RunCallbacks, make_callbacks
    from recipes.training.masking import MaskedSamples
    from recipes.training.shard_files import ShardFile, WrittenFile

apply(fake_storage.PATCHES)
documents.document_starts = lambda position_ids: _starts(position_ids)
SequentialMLP.forward = lambda experts, tokens, counts, shares, forward=SequentialMLP.forward: forward(
    experts, tokens, _Evenly(len(tokens), experts.num_local_experts), shares
)
# To recomputed attention Megatron hands the type of its mask as a tensor, which is 0 here: no mask.
AttnMaskType._missing_ = classmethod(lambda cls, value: cls.causal)

_DOCUMENTS = (400, 60, 30, 700, 120, 1500)  # tokens, in turn: where documents really end, no tensor without values says
STEPS = 2  # before the save; the first allocates the optimizer's state, the second has all that stays
_CAPABILITIES = {"a100": (8, 0), "h100": (9, 0), "h200": (9, 0), "gh200": (9, 0), "b200": (10, 0)}


@dataclass(frozen=True)
class RehearsedRank:
    """What came of it.

    Attributes:
        stage: pipeline stage, counted from 0.
        micro_batches: of a rehearsed step; the run has `all_micro_batches`.
        account: of the first part, which starts, trains, validates and saves at once.
        resumed: of the second part, which resumes, trains and saves beside the training.
        host_gib: most memory of this process.
    """

    rank: int
    stage: int
    micro_batches: int
    all_micro_batches: int
    account: Account
    resumed: Account
    seconds: float
    processor_seconds: float
    host_gib: float


def rehearse_rank(
    recipe: Recipe, inputs: RunInputs, rank: int, gpu: Gpu, directory: Path, *, keep: Path | None = None, resume: Path | None = None
) -> RehearsedRank:
    """Play a rank of a run that `check_run` has found right.

    Args:
        gpu: what the GPUs say that they are.
        directory: for what the run writes; it is left empty.
        keep: where the described checkpoint goes.
        resume: what another process has kept of this rank and is resumed from, in place of this one's own checkpoint.
    """
    start, processor = time.monotonic(), time.process_time()
    masked_positions.predicted_places = partial(_some_places, share=predicted_share(recipe))
    experts_of_a_token[0] = inputs.model.get("moe_router_topk", 0)
    MoEAuxLossAutoScaler.main_loss_backward_scale = None  # which Megatron keeps, on the device of another rank
    all_micro_batches = recipe.accumulation_steps
    micro_batches = min(all_micro_batches, recipe.parallel.pipeline_parallel_size + 1)
    batch = micro_batches * recipe.schedule.micro_batch_size * recipe.parallel.data_parallel_size
    short = _shortened(recipe, batch, STEPS, asynchronous=False)
    short, inputs = with_stand_ins(short, inputs, directory / "inputs", num_samples=(STEPS + 2) * batch)
    world = World(
        rank=rank,
        size=recipe.parallel.world_size,
        devices_per_node=recipe.parallel.devices_per_node,
        gpu=FakeGpuKind(gpu.name, int(gpu.memory_gib * 2**30), _CAPABILITIES.get(gpu.name.partition("-")[0], (8, 0))),
    )
    run_dir = directory / "run"
    first, second = Account(), Account()
    _train(short, inputs, world, first, run_dir=run_dir, resume_from=None)
    [saved] = [path for path in (run_dir / CHECKPOINTS_NAME).iterdir() if (path / "weights").is_dir()]
    if keep is not None:
        shutil.copytree(saved, keep)
    further = replace(short, schedule=replace(short.schedule, max_steps=STEPS + 1), run=replace(short.run, asynchronous_save=True))
    _train(further, inputs, world, second, run_dir=run_dir, resume_from=resume or saved)
    shutil.rmtree(directory)
    layout = recipe.parallel
    return RehearsedRank(
        rank=rank,
        stage=rank // (world.size // layout.pipeline_parallel_size),
        micro_batches=micro_batches,
        all_micro_batches=all_micro_batches,
        account=first,
        resumed=second,
        seconds=time.monotonic() - start,
        processor_seconds=time.process_time() - processor,
        host_gib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    )


def _shortened(recipe: Recipe, batch: int, steps: int, *, asynchronous: bool) -> Recipe:
    """The recipe for a few steps; what is frozen at first is released after one of them."""

    def rule(given: FreezeRule) -> FreezeRule:
        return given if given.until_step is None else replace(given, until_step=1)

    schedule = replace(
        recipe.schedule,
        global_batch_size=batch,
        max_steps=steps,
        train_tokens=None,
        epochs=None if recipe.schedule.epochs is None else 1.0,
        warmup_steps=0,
        constant_steps=0,
        decay_style="fixed",
        hold_steps=None,
        decay_steps=None,
        wsd_decay_style=None,
        ramp_up=None,
    )
    run = replace(
        recipe.run,
        checkpoint_every_steps=steps,
        validate_every_steps=None if recipe.run.validate_every_steps is None else steps,
        validation_batches=1,
        log_every_steps=steps,  # as most steps are, the first is none that is logged
        keep_optimizer_in_last_checkpoint=True,
        keep_checkpoints=None,
        asynchronous_save=asynchronous,
        stop_signals=(),
        wandb_project=None,
        hang_factor=None,
    )
    data = replace(recipe.data, num_workers=0, epochs=())
    return replace(recipe, schedule=schedule, run=run, data=data, freeze=tuple(map(rule, recipe.freeze)))


def _train(recipe: Recipe, inputs: RunInputs, world: World, account: Account, *, run_dir: Path, resume_from: Path | None) -> None:
    """As `recipes.training.engine.train`, with every phase in the account."""
    with simulated_rank(world, account), take_lease(run_dir, this_process("recipes.rehearse")) as lease:
        fence, watchdog = Fence(lease.path, lease.token), watching(recipe.run, rank=world.rank)
        made = make_callbacks(recipe, inputs, run_dir=run_dir, signals=StopSignals(()), fence=fence, watchdog=watchdog)
        callbacks = _Watched.of(made, account)
        trainer = engine.make_trainer(recipe, inputs, callbacks, run_dir=run_dir, start_from_weights=resume_from is None)
        data = engine.make_data(recipe, inputs, index_dir=run_dir / "index")
        data.build = _seen_whole(data, _as_first_rank(data.build))  # type: ignore[method-assign]
        model = engine.make_model(recipe, inputs, callbacks.nonfinite)
        trainer.strategy.selective_restore = _in_phase(account, "load", trainer.strategy.selective_restore)
        trainer.strategy.load_checkpoint = _in_phase(account, "load", trainer.strategy.load_checkpoint)
        checkpoint_io = trainer.strategy.unwrapped_checkpoint_io
        checkpoint_io.write, checkpoint_io.copies.start = _described, _at_once
        checkpoint_io.told_digests = lambda number: {}  # no other rank is there to tell
        try:
            trainer.fit(model, data, ckpt_path=str(resume_from / "weights") if resume_from else None)
        finally:
            engine.finish(trainer.loggers)


def _at_once(copy: Callable[[], None]) -> Callable[[], None]:
    """One thread alone may touch tensors without values."""
    copy()
    return lambda: None


def _starts(position_ids: Tensor) -> list[int]:
    """Where the documents of a micro batch begin: long ones, of which a kernel takes each alone, and short ones, which share one."""
    assert position_ids.device.type == "cpu", "the bounds of documents are read before a batch goes to the GPU"
    num_samples, length = position_ids.shape
    starts = list(takewhile(lambda start: start < length, accumulate(cycle(_DOCUMENTS), initial=0)))
    return [sample * length + start for sample in range(num_samples) for start in starts]


def _some_places(loss_mask: Tensor, *, share: float) -> Tensor:
    """As many places of a micro batch as are predicted on average: which, a mask without values does not say."""
    return torch.arange(max(1, round(share * loss_mask.numel())), device="cuda")


@dataclass(frozen=True)
class _Evenly:
    """Tokens of each expert, as many as of every other: which one a router would choose, tensors without values do not say."""

    num_tokens: int
    num_experts: int

    def tolist(self) -> list[int]:
        """How many tokens each has."""
        each, more = divmod(self.num_tokens, self.num_experts)
        return [each + (number < more) for number in range(self.num_experts)]


def _as_first_rank(build: Callable[..., None]) -> Callable[..., None]:
    """Megatron has rank 0 write its indices, and others wait for the files."""

    def alone(*arguments: Any, **options: Any) -> None:
        kept = distributed.is_initialized, distributed.get_rank
        # An index of one data set asks the former, that of a blend the latter.
        distributed.is_initialized, distributed.get_rank = lambda: False, lambda *_: 0
        try:
            build(*arguments, **options)
        finally:
            distributed.is_initialized, distributed.get_rank = kept

    return alone


class _SeenWhole(MaskedSamples):
    """Masked samples of which nothing is hidden: which tokens are, their values say, and there are none."""

    def __init__(self, masked: MaskedSamples) -> None:
        self.samples = masked.samples

    def __getitem__(self, number: int) -> Mapping[str, Tensor]:
        found: Mapping[str, Tensor] = self.samples[number]
        return {**found, "labels": found["tokens"].clone()}


def _seen_whole(data: Any, build: Callable[..., None]) -> Callable[..., None]:
    """A data module's `build`, after which masked samples are seen whole."""

    def built(*arguments: Any, **options: Any) -> None:
        build(*arguments, **options)
        if isinstance(data._train_ds, MaskedSamples):
            data._train_ds = _SeenWhole(data._train_ds)

    return built


def _in_phase(account: Account, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **options: Any) -> Any:
        with account.phase(name):
            return function(*arguments, **options)

    return run


class _Steps(Callback):
    """Tells an account when the steps begin, what is there before, and when they end."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Name what the build has allocated."""
        account = self._account
        chunks = list(trainer.strategy.megatron_parallel)  # type: ignore[attr-defined]
        account.call((parameter for chunk in chunks for parameter in chunk.parameters()), "parameters")
        kinds = ("buffers", "expert_parallel_buffers")
        buffers = [buffer for chunk in chunks for kind in kinds for buffer in getattr(chunk, kind, ()) if hasattr(buffer, "grad_data")]
        account.call((buffer.param_data for buffer in buffers if buffer.param_data is not None), "parameters")
        account.call((buffer.grad_data for buffer in buffers), "gradients")
        for optimizer in trainer.optimizers:
            whole = optimizer.mcore_optimizer  # type: ignore[attr-defined]
            whole.step = _in_phase(account, "optimizer", whole.step)
        account.enter("forward")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Note what the first step has needed."""
        self._account.after_first_step = self._account.after_first_step or self._account.peak

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What follows is Lightning's clearing up."""
        self._account.enter("end")


@dataclass(frozen=True)
class _Watched(RunCallbacks):
    """The callbacks of a run, in an account's phases."""

    steps: _Steps

    @classmethod
    def of(cls, callbacks: RunCallbacks, account: Account) -> _Watched:
        callbacks.checkpoints.save = _in_phase(account, "save", callbacks.checkpoints.save)  # type: ignore[method-assign]
        callbacks.metrics.on_train_batch_end = _in_phase(account, "log", callbacks.metrics.on_train_batch_end)  # type: ignore[method-assign]
        if (validation := callbacks.validation) is not None:
            validation.on_train_batch_end = _in_phase(account, "validation", validation.on_train_batch_end)  # type: ignore[method-assign]
        return cls(**{field.name: getattr(callbacks, field.name) for field in fields(RunCallbacks)}, steps=_Steps(account))

    def in_order(self) -> list[Callback]:
        return [self.steps, *super().in_order()]


def _described(directory: Path, file: ShardFile) -> WrittenFile:
    """What a checkpoint says of a file that is not written, as tensors have no values."""
    return WrittenFile("", [WriteResult(index=item.index, size_in_bytes=0, storage_data=NOWHERE) for item, _ in file.records])
