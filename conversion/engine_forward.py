"""Run a NeMo checkpoint in the engine and save what each layer gives: the other half of `conversion.verify`.

Started by it under torchrun, on CPU processes.  One start serves several tensor parallel sizes, as importing NeMo takes longest.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any


def main(argv: list[str]) -> None:
    """Arguments: checkpoint folder, safetensors file with `ids`, output folder, tensor parallel sizes."""
    from nemo_patches.cpu_device import present_cpu_as_device
    from nemo_patches.quiet import quiet_imports

    checkpoint_dir, ids_path, output_dir = map(Path, argv[:3])
    with quiet_imports():
        present_cpu_as_device()
        import torch
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
        from safetensors.torch import load_file, save_file

    torch.distributed.init_process_group("gloo")
    ids = load_file(ids_path)["ids"]
    for size in map(int, argv[3:]):
        parallel_state.destroy_model_parallel()
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)
        model_parallel_cuda_manual_seed(1)
        with torch.inference_mode():
            seen = forward(load_model(checkpoint_dir, tensor_parallel_size=size), ids)
        if torch.distributed.get_rank() == 0:
            save_file(seen, output_dir / f"tensor_parallel_{size}.safetensors")
        torch.distributed.barrier()


def load_model(checkpoint_dir: Path, *, tensor_parallel_size: int) -> Any:
    """The engine's model in float32, its vocabulary padded as in training, loaded by Megatron's own reader."""
    from megatron.core import dist_checkpointing

    from conversion.families import family_of

    description = json.loads((checkpoint_dir / "context" / "model.json").read_text(encoding="utf-8"))
    module_name, _, function_name = family_of(description["family"], source=str(checkpoint_dir)).engine.partition(":")
    multiple = math.lcm(128, tensor_parallel_size)
    padded_vocab_size = math.ceil(description["config"]["vocab_size"] / multiple) * multiple
    config = getattr(importlib.import_module(module_name), function_name)(description["config"], padded_vocab_size=padded_vocab_size)
    model = config.configure_model(tokenizer=None).eval()
    wanted = {"state_dict": model.sharded_state_dict(prefix="module.")}
    loaded = dist_checkpointing.load(wanted, str(checkpoint_dir / "weights"))["state_dict"]
    model.load_state_dict({name.removeprefix("module."): value for name, value in loaded.items()})
    return model


def forward(model: Any, ids: Any) -> dict[str, Any]:
    """What each layer gives for token ids (batch, length), in the order of `conversion.verify`: (batch, length, features)."""
    import torch
    from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

    seen: dict[str, torch.Tensor] = {}

    def keep(name: str, hidden: torch.Tensor) -> None:
        seen[name] = hidden.transpose(0, 1).float().contiguous()  # Megatron puts the sequence first

    model.decoder.layers[0].register_forward_pre_hook(
        lambda module, args, kwargs: keep("embedding", kwargs["hidden_states"] if kwargs else args[0]), with_kwargs=True
    )
    for number, layer in enumerate(model.decoder.layers):
        layer.register_forward_hook(lambda module, args, output, name=f"layer {number}": keep(name, output[0]))
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    logits = gather_from_tensor_model_parallel_region(model(ids, positions, None))
    real = model.config.real_vocab_size
    return {**seen, "logits": logits[..., :real].float().contiguous()}


if __name__ == "__main__":
    main(sys.argv[1:])
