"""What the ranks of test_stand_ins.py do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing

from conversion.measuring.engine_forward import forward, load_model
from nemo_patches.engine_model import USE_TE
from nemo_patches.stand_ins import stands_in


def logits(tensor_parallel_size: int, directories: list[str], output: str) -> dict[str, Any]:
    """Save the logits of each checkpoint, and tell what kind of layers gave them.

    Every checkpoint is loaded as a stock NeMo does too: all that the model asks for has to be there.
    """
    found: dict[str, Any] = {"uses": USE_TE, "stands in": stands_in()}
    seen = []
    for directory in map(Path, directories):
        with torch.no_grad():
            model = load_model(directory, tensor_parallel_size=tensor_parallel_size)
            seen.append(forward(model, torch.arange(2 * 24).reshape(2, 24) * 7 % 97)["logits"])
        weights = str(directory / "weights")
        wanted = model.sharded_state_dict(prefix="module.", metadata=dist_checkpointing.load_content_metadata(weights))
        dist_checkpointing.load({"model": wanted}, weights, strict="raise_unexpected")
        found[directory.name] = sorted({type(module).__name__ for module in model.modules()})
        found[f"{directory.name} extra"] = sorted(name for name in wanted if name.endswith("_extra_state"))
    if torch.distributed.get_rank() == 0:
        torch.save(seen, output)
    return json.loads(json.dumps(found))
