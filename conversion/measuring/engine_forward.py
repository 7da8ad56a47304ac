"""Run checkpoints in the engine and save the output of each layer: the other half of `conversion.measuring.observation`.

Started by it under torchrun, on CPU processes.  One start serves several checkpoints and tensor parallel sizes, as importing NeMo
takes longest.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.plain_files import read_json
from nemo_patches.whole_experts import has_biased_experts

if TYPE_CHECKING:
    from conversion.formats.lazy_tensor import LazyTensor


def main(argv: list[str]) -> None:
    """The argument is a folder with `task.json` and `batch.safetensors`, into which the results go."""
    from conversion.measuring.observation import in_float64
    from nemo_patches.quiet import quiet_imports

    work_dir = Path(argv[0])
    with quiet_imports():
        from nemo_patches.cpu_device import present_cpu_as_device

        present_cpu_as_device()
        import torch
        from safetensors.torch import load_file, save_file

    torch.distributed.init_process_group("gloo")
    task = read_json(work_dir / "task.json")
    batch = load_file(work_dir / "batch.safetensors")
    for size in task["tensor_parallel_sizes"]:
        layout = None
        for number, directory in enumerate(task["directories"]):
            if layout != (layout := {"tensor_parallel_size": size, "cuts_experts": cuts_experts(Path(directory))}):
                set_layout(**layout)
            with torch.inference_mode():
                model = load_model(Path(directory), tensor_parallel_size=size)
                seen = {"whole": forward(model, batch["ids"]), "padded": forward(model, batch["ids"], batch["real"])}
                if task["rounding"] and number == 0 and size == task["tensor_parallel_sizes"][0]:
                    with in_float64(model):
                        seen["float64"] = forward(model, batch["ids"])
            if torch.distributed.get_rank() == 0:
                for kind, tensors in seen.items():
                    save_file(tensors, work_dir / f"{kind}_{number}_{size}.safetensors")
        torch.distributed.barrier()


def cuts_experts(checkpoint_dir: Path) -> bool:
    """Whether tensor-parallel ranks have a part of each expert of a checkpoint, as of all else; see `set_layout`."""
    return not has_biased_experts(read_json(checkpoint_dir / "context" / "model.json")["config"])


def set_layout(
    *, tensor_parallel_size: int, pipeline_parallel_size: int = 1, context_parallel_size: int = 1, cuts_experts: bool = True
) -> None:
    """Give Megatron a layout, in place of one that it may have."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_parallel_size,
        pipeline_parallel_size,
        context_parallel_size=context_parallel_size,
        expert_tensor_parallel_size=None if cuts_experts else 1,
    )
    model_parallel_cuda_manual_seed(1, force_reset_rng=True)


def load_model(checkpoint_dir: Path, *, tensor_parallel_size: int, pipeline_parallel_size: int = 1, **overrides: Any) -> Any:
    """The engine's model in float32, its vocabulary padded as in training, loaded by Megatron's own reader; this rank's part.

    Adapters and factors of a table are the model's own parts, folded into the weights once they are loaded, and rounded as those are: an
    export is. A second head, which no export has, is left out.

    Args:
        checkpoint_dir: folder of one checkpoint, of NeMo, Megatron-LM or Megatron-Bridge, with the `context` that this project adds.
        overrides: further fields of Megatron's configuration.
    """
    import torch
    from megatron.core import dist_checkpointing

    from conversion.families import family_of
    from conversion.formats.dist_checkpoint import read_dist_checkpoint
    from conversion.formats.dist_metadata import read_dist_metadata
    from conversion.formats.loading_safety import read_as_data, require_safe
    from conversion.inspection.places import locate
    from nemo_patches.extra_state import with_no_extra_state, without_extra_state

    weights = locate(checkpoint_dir).weights
    require_safe(weights)
    read_as_data()
    description = read_json(checkpoint_dir / "context" / "model.json")
    prefix = read_dist_metadata(weights).prefix
    saved = read_dist_checkpoint(weights, prefix=prefix)
    multiple = math.lcm(128, tensor_parallel_size)
    config = family_of(description["family"], source=str(checkpoint_dir)).engine_config(
        description["config"],
        padded_vocab_size=math.ceil(description["config"]["vocab_size"] / multiple) * multiple,
        tensor_model_parallel_size=tensor_parallel_size,
        pipeline_model_parallel_size=pipeline_parallel_size,
        pipeline_dtype=torch.float32,
        **_trained_parts(saved, checkpoint_dir / "context"),
        **overrides,
    )
    model = config.configure_model(tokenizer=None).eval()
    expected = model.sharded_state_dict(prefix=prefix, metadata=dist_checkpointing.load_content_metadata(str(weights)))
    loaded = dist_checkpointing.load({"model": without_extra_state(expected)}, str(weights))["model"]
    loaded = with_no_extra_state(loaded, expected)
    model.load_state_dict({name.removeprefix(prefix): value for name, value in loaded.items()})
    _fold(model, saved)
    return model


def _trained_parts(saved: Mapping[str, LazyTensor], context_dir: Path) -> dict[str, Any]:
    """What the engine's configuration has to say of adapters and factors that a checkpoint has."""
    from conversion.checkpoints.factors import PRIMITIVES
    from conversion.checkpoints.lora import read_lora
    from nemo_patches.lora import LoRA

    parts: dict[str, Any] = {}
    if any(".lora." in name for name in saved):
        rank, alpha = read_lora(context_dir)
        parts["lora"] = LoRA(rank=rank, alpha=alpha, dropout=0.0, seed=0)
    if PRIMITIVES in saved:
        parts["factorised_size"] = saved[PRIMITIVES].shape[0]
    return parts


def _fold(model: Any, saved: Mapping[str, LazyTensor]) -> None:
    from conversion.checkpoints.factors import PRIMITIVES
    from nemo_patches.lora import Adapted

    for layer in model.decoder.layers:
        for name, module in layer.named_modules():
            if isinstance(module, Adapted):
                module.fold(saved[f"decoder.layers.{layer.layer_number - 1}.{name}.weight"].dtype)
    if PRIMITIVES in saved:
        model.embedding.word_embeddings.fold(saved[PRIMITIVES].dtype)
        model.output_layer.input_size = model.config.hidden_size


def forward(model: Any, ids: Any, real: Any = None) -> dict[str, Any]:
    """What each layer gives for token ids (batch, length): `embedding`, `layer 0` ... `logits` -> (batch, length, features).

    Args:
        real: (batch, length), False at padding; None where there is none.
    """
    import torch
    from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

    seen: dict[str, torch.Tensor] = {}

    def keep(name: str, hidden: torch.Tensor) -> None:
        seen[name] = hidden.transpose(0, 1).contiguous()  # Megatron puts the sequence first

    hooks = [
        model.decoder.layers[0].register_forward_pre_hook(
            lambda module, args, kwargs: keep("embedding", kwargs["hidden_states"] if kwargs else args[0]), with_kwargs=True
        )
    ]
    for number, layer in enumerate(model.decoder.layers):
        hooks.append(layer.register_forward_hook(lambda module, args, output, name=f"layer {number}": keep(name, output[0])))
    if real is None:
        positions, padding = torch.arange(ids.shape[1]).expand_as(ids), None
    else:  # padding has no position: the first real token is token 0
        positions, padding = (real.cumsum(1) - 1).clamp(min=0), ~real[:, None, None]
    logits = gather_from_tensor_model_parallel_region(model(ids, positions, padding))
    for hook in hooks:
        hook.remove()
    return {**seen, "logits": logits[..., : model.config.real_vocab_size].contiguous()}


if __name__ == "__main__":
    main(sys.argv[1:])
