"""What runs on the ranks of `test_engine`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from safetensors.torch import load_file, save_file

from conversion.engine_forward import forward, load_model

PADDING = 9.0


def run(tied_dir: str, untied_dir: str, ids_path: str, output_dir: str, tensor_parallel_size: int) -> None:
    """Both tests in one start of the engine: what the layers of the tied model give, and what it saves of the untied one."""
    ids = load_file(ids_path)["ids"]
    with torch.inference_mode():
        seen = forward(load_model(Path(tied_dir), tensor_parallel_size=tensor_parallel_size), ids)
    if torch.distributed.get_rank() == 0:
        save_file(seen, Path(output_dir) / "tied.safetensors")
    _save_as_training_does(load_model(Path(untied_dir), tensor_parallel_size=tensor_parallel_size), Path(output_dir), tensor_parallel_size)


def _save_as_training_does(model: Any, output_dir: Path, tensor_parallel_size: int) -> None:
    """Padded tables, optimizer state, both layouts of keys."""
    rows = model.config.vocab_size // tensor_parallel_size
    real_rows = max(model.config.real_vocab_size - parallel_state.get_tensor_model_parallel_rank() * rows, 0)
    with torch.no_grad():
        for table in (model.embedding.word_embeddings.weight, model.output_layer.weight):
            table[real_rows:] = PADDING
    for layout, single in (("stacked", False), ("per_layer", True)):
        weights = model.sharded_state_dict(prefix="module.", metadata={"singleton_local_shards": single})
        moments = {
            name: replace(weight, key=f"optimizer.state.exp_avg.{weight.key}", data=torch.ones_like(weight.data))
            for name, weight in weights.items()
            if isinstance(weight, ShardedTensor)
        }
        directory = output_dir / layout / "weights"
        if torch.distributed.get_rank() == 0:
            directory.mkdir(parents=True)
        torch.distributed.barrier()
        dist_checkpointing.save({"state_dict": weights, "optimizer": moments, "step": 7}, str(directory))
