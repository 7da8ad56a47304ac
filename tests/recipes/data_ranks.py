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
    sizes: list[int],
    drawn: list[int],
    passes: float,
    sequence_length: int,
    batch: int,
    start: int,
    stop: int,
    index: str,
    tensor_parallel_size: int,
) -> list[list[int]]:
    """The first token of each sample that this rank gets, by step, of a run that is entered at the first and left at the last step."""
    from megatron.core import parallel_state

    from nemo_patches.tokenizer import EndOfDocument
    from recipes.blend import Blend
    from recipes.training.passes import PassesDataModule

    data = PassesDataModule(
        [Path(prefix) for prefix in prefixes],
        Blend(tuple(sizes), tuple(drawn), passes),
        paths={"train": prefixes[:1], "validation": prefixes[:1], "test": prefixes[:1]},
        seq_length=sequence_length,
        tokenizer=EndOfDocument(vocab_size=2000, eos_id=1999, identity="test"),
        micro_batch_size=MICRO_BATCH,
        global_batch_size=batch,
        num_workers=0,
        pin_memory=False,
        seed=1,
        index_mapping_dir=index,
        init_consumed_samples=start * batch,
    )
    data.create_attention_mask = False
    trainer: Any = SimpleNamespace(max_steps=stop, val_check_interval=1, limit_val_batches=1, limit_test_batches=0, global_step=start)
    data.trainer = trainer
    data.setup()
    loader = iter(data.data_sampler.transform_dataloader(data.train_dataloader()))
    micro_batches = batch // (MICRO_BATCH * parallel_state.get_data_parallel_world_size())
    steps = [list(islice(loader, micro_batches)) for _ in range(start, stop)]
    return [[int(row[0]) for micro in step for row in micro["tokens"]] for step in steps]
