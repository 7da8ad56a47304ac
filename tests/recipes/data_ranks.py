"""What ranks do in tests of the training data."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MICRO_BATCH = 2


def steps_seen(
    *,
    prefixes: list[str],
    sequence_length: int,
    batch: int,
    start: int,
    stop: int,
    end: int,
    index: str,
    tensor_parallel_size: int,
    blend: tuple[list[int], list[int], float] | None = None,
    weights: list[float] | None = None,
    ramp_up: list[int] | None = None,
) -> list[list[dict[str, Any]]]:
    """The samples that this rank gets, by step, of a run that is entered at the first and left at the last step.

    Args:
        end: steps of the whole run.
        batch: samples of a step; of a full one where batches grow.
        ramp_up: first size, increment and samples of batches that grow.
        blend: of passes over the data; otherwise Megatron's own order with these weights.

    Returns:
        Token ids of each sample, those of its label too, and the documents that it is said to be of.
    """
    from megatron.core import parallel_state
    from nemo.collections.llm.gpt.data.pre_training import PreTrainingDataModule

    from nemo_patches.tokenizer import EndOfDocument
    from recipes.numbers.blend import Blend
    from recipes.rules.schema import RampUpRecipe, ScheduleRecipe
    from recipes.training.growing_batches import GrowingBatches
    from recipes.training.nonfinite import documents_of
    from recipes.training.passes import PassesDataModule

    ramp = RampUpRecipe(*ramp_up) if ramp_up else None
    schedule = ScheduleRecipe(global_batch_size=batch, micro_batch_size=MICRO_BATCH, learning_rate=1.0, ramp_up=ramp)
    batches = schedule.batches
    settings: dict[str, Any] = {
        "seq_length": sequence_length,
        "tokenizer": EndOfDocument(vocab_size=2000, eos_id=1999, identity="test"),
        "micro_batch_size": MICRO_BATCH,
        "global_batch_size": batch,
        "num_workers": 0,
        "pin_memory": False,
        "seed": 1,
        "index_mapping_dir": index,
        "init_consumed_samples": batches.samples(start),
        "num_train_samples": batches.samples(end),
    }
    data: PreTrainingDataModule
    if blend is not None:
        sizes, drawn, passes = blend
        one = dict.fromkeys(("train", "validation", "test"), prefixes[:1])
        data = PassesDataModule(list(map(Path, prefixes)), Blend(tuple(sizes), tuple(drawn), passes), paths=one, **settings)
    else:
        assert weights is not None
        weighted = [word for weight, prefix in zip(weights, prefixes, strict=True) for word in (str(weight), prefix)]
        data = PreTrainingDataModule(paths=dict.fromkeys(("train", "validation", "test"), weighted), **settings)
    if ramp is not None:
        data.data_sampler = GrowingBatches(
            batches, seq_len=sequence_length, micro_batch_size=MICRO_BATCH, init_consumed_samples=batches.samples(start)
        )
    data.create_attention_mask = False
    trainer: Any = SimpleNamespace(max_steps=end, val_check_interval=1, limit_val_batches=1, limit_test_batches=0, global_step=start)
    data.trainer = trainer
    data.setup()
    loader = iter(data.data_sampler.transform_dataloader(data.train_dataloader()))
    replicas, replica = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    steps = []
    for step in range(start, stop):
        found = []
        for number, micro in enumerate(islice(loader, batches.size(step) // (MICRO_BATCH * replicas))):
            first = batches.samples(step) + (number * replicas + replica) * MICRO_BATCH
            for place, (tokens, labels) in enumerate(zip(micro["tokens"], micro["labels"], strict=True)):
                documents = documents_of(data._train_ds, [first + place])
                found.append({"tokens": [*tokens.tolist(), int(labels[-1])], "documents": documents})
        steps.append(found)
    return steps
