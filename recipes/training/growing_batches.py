"""Steps that have more and more samples, through NeMo's sampler."""

from __future__ import annotations

import dataclasses
from typing import Any

from megatron.core import parallel_state
from megatron.core.num_microbatches_calculator import get_current_global_batch_size, reconfigure_num_microbatches_calculator
from nemo.lightning.data import add_megatron_sampler
from nemo.lightning.megatron_parallel import MegatronStep
from nemo.lightning.pytorch.plugins import MegatronDataSampler
from torch.utils.data import DataLoader

from recipes.numbers.batches import Batches


class GrowingBatches(MegatronDataSampler):
    """Tells Megatron before each step how many micro batches it has.

    NeMo's own ramp-up ends the training wherever the size changes, and follows a count of samples that a resume at another size
    of step gets wrong.  Ranks read micro batch after micro batch in the order of the data, so the size of a step moves no sample.
    """

    def __init__(self, batches: Batches, **arguments: Any) -> None:
        # NeMo checks that the data has so many samples for each step, and sets the first step up with it.
        super().__init__(global_batch_size=batches.size(0), **arguments)
        self._batches = batches

    def transform_dataloader(self, dataloader: DataLoader[Any], consumed_samples: int = 0) -> DataLoader[Any]:
        """See NeMo's class; the data ends with its last sample, which need not be that of a whole number of full batches."""
        transformed: DataLoader[Any] = add_megatron_sampler(
            dataloader,
            micro_batch_size=self.micro_batch_size,
            global_batch_size=None,  # type: ignore[arg-type]  # which the sampler allows
            consumed_samples=self.init_consumed_samples if getattr(dataloader, "mode", "train") == "train" else 0,
            dataloader_type=self.dataloader_type,
            rank=parallel_state.get_data_parallel_rank(),
            world_size=parallel_state.get_data_parallel_world_size(),
        )
        return transformed

    def compute_consumed_samples(self, steps_since_resume: int = 0) -> int:
        """Of the whole run; a checkpoint has it."""
        return self._batches.samples(self.init_global_step + steps_since_resume)

    def on_megatron_step_start(self, step: MegatronStep) -> MegatronStep:
        """Set the size of the step that begins."""
        assert step.trainer is not None
        size = self._batches.size(step.trainer.global_step)
        if size != get_current_global_batch_size():
            reconfigure_num_microbatches_calculator(
                rank=parallel_state.get_data_parallel_rank(),
                rampup_batch_size=None,  # type: ignore[arg-type]  # which it allows
                global_batch_size=size,
                micro_batch_size=self.micro_batch_size,
                data_parallel_size=parallel_state.get_data_parallel_world_size(),
            )
        return dataclasses.replace(super().on_megatron_step_start(step), num_microbatches=self.num_microbatches)
