"""What runs on the ranks of `test_change_layout`: Megatron-core's own reader and writer, with the names that Megatron-LM uses."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor

from conversion.measuring.engine_forward import load_model
from tests.conversion.tiny_families import ITERATION, SAMPLES, TRAINED_LENGTH


def load_as_megatron_does(nemo_dirs: list[str], iteration_dirs: list[list[str]], output_dir: str, tensor_parallel_size: int) -> list[str]:
    """Load each folder into the emptied model of its NeMo checkpoint, and say what differs; save the first as Megatron-LM would."""
    differences = []
    for number, (nemo_dir, folders) in enumerate(zip(nemo_dirs, iteration_dirs, strict=True)):
        model = load_model(Path(nemo_dir), tensor_parallel_size=tensor_parallel_size)
        expected = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        if number == 0:
            for kind, single in (("stacked", False), ("per_layer", True)):
                _save(model, Path(output_dir) / kind, one_key_per_layer=single)
            _save(model, Path(output_dir) / "common_among_objects", one_key_per_layer=False, common_among_objects=True)
        for folder in folders:
            common = dist_checkpointing.load_common_state_dict(folder)
            metadata = dist_checkpointing.load_content_metadata(preloaded_state_dict=common)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(7.0)
            wanted = {"model": model.sharded_state_dict(metadata=metadata)}
            loaded, not_asked_for, not_there = dist_checkpointing.load(wanted, folder, strict="return_all")
            differences += [f"{folder}: {name}" for name in {*not_asked_for, *not_there} if not name.endswith("._extra_state")]
            model.load_state_dict(loaded["model"])
            real_rows = model.config.real_vocab_size
            for name, parameter in model.named_parameters():
                rows = slice(max(real_rows - torch.distributed.get_rank() * parameter.shape[0], 0) if _is_table(name) else None)
                if not torch.equal(parameter[rows], expected[name][rows]):
                    differences.append(f"{folder}: {name}")
    return differences


def _is_table(name: str) -> bool:
    return name.endswith(("word_embeddings.weight", "output_layer.weight"))


def _save(model: Any, directory: Path, *, one_key_per_layer: bool, common_among_objects: bool = False) -> None:
    """As Megatron-LM saves a run: the tracker, and weights, optimizer and arguments in a folder of the iteration.

    Args:
        common_among_objects: what is not sharded is an object, in place of a file, as Megatron-core 0.19 keeps it.
    """
    content = {"singleton_local_shards": one_key_per_layer}
    weights = model.sharded_state_dict(metadata=content)
    moments = {
        name: replace(weight, key=f"optimizer.state.exp_avg.{weight.key}", data=torch.ones_like(weight.data))
        for name, weight in weights.items()
        if isinstance(weight, ShardedTensor)
    }
    folder = directory / f"iter_{ITERATION:07d}"
    if torch.distributed.get_rank() == 0:
        folder.mkdir(parents=True)
        (directory / "latest_checkpointed_iteration.txt").write_text(str(ITERATION))
    torch.distributed.barrier()
    arguments = Namespace(
        num_layers=model.config.num_layers,
        hidden_size=model.config.hidden_size,
        seq_length=TRAINED_LENGTH,
        consumed_train_samples=SAMPLES,
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=1,
        params_dtype=torch.float32,
    )
    state = {"args": arguments, "checkpoint_version": 3.0, "iteration": ITERATION, "model": weights, "optimizer": moments}
    if common_among_objects:
        common = {key: state[key] for key in ("args", "checkpoint_version", "iteration")} | {"content_metadata": content}
        state["common_state"] = ShardedObject("common_state", common, (1,), (0,), replica_id=torch.distributed.get_rank())
    dist_checkpointing.save(state, str(folder), content_metadata=content)
    if common_among_objects and torch.distributed.get_rank() == 0:
        (folder / "common.pt").unlink()
