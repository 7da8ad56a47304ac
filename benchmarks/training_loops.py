"""The trainings that ours are measured with and beside: sizes and inputs, a bare loop of Megatron-core, Hugging Face's Trainer.

`benchmarks.all` runs and times the loops:

    python -m benchmarks.training_loops {bare,trainer} INPUTS OUTPUT JSON
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.commands import opt_inputs

OVERRIDES = ("run.log_every_steps=10", "run.keep_optimizer_in_last_checkpoint=false")


@dataclass(frozen=True)
class Size:
    """A model and the batch that it is trained with."""

    num_layers: int
    hidden_size: int
    num_heads: int
    vocab_rows: int
    sequence_length: int
    micro_batch_size: int
    accumulation_steps: int
    precision: str
    steps: int

    @property
    def step_tokens(self) -> int:
        """Tokens of one optimizer step."""
        return self.sequence_length * self.micro_batch_size * self.accumulation_steps


SIZES = {
    "cpu": Size(6, 256, 4, 4096, 256, 2, 4, "32", 10),
    "gpu": Size(24, 2048, 32, 80_000, 2048, 4, 4, "bf16", 24),
}


def prepare(size: Size, base: Path) -> None:
    """Tokenizer, data and checkpoint for the project's loop, by its own commands."""
    shape: list[str | int] = [
        *("--num-layers", size.num_layers, "--hidden-size", size.hidden_size, "--num-attention-heads", size.num_heads),
        *("--ffn-size", 4 * size.hidden_size, "--max-positions", size.sequence_length, "--untied"),
    ]
    opt_inputs(base, *shape, vocab_size=1500)


def config_of(size: Size) -> dict[str, Any]:
    """The model's, in Megatron-core's words."""
    return {
        "num_layers": size.num_layers,
        "hidden_size": size.hidden_size,
        "ffn_hidden_size": 4 * size.hidden_size,
        "num_attention_heads": size.num_heads,
        "max_position_embeddings": size.sequence_length,
        "share_embeddings_and_output_weights": False,
    }


def recipe_overrides(size: Size, inputs: Path) -> list[str]:
    """What makes the demo's recipe the benchmark's."""
    return [
        f"model.checkpoint={inputs / 'nemo'}",
        f"data.train=[{inputs / 'data'}]",
        f"model.pad_vocabulary_to_multiple_of={size.vocab_rows}",
        f"data.sequence_length={size.sequence_length}",
        f"precision='{size.precision}'",
        "parallel.devices_per_node=1",
        "parallel.tensor_parallel_size=1",
        f"schedule.micro_batch_size={size.micro_batch_size}",
        f"schedule.global_batch_size={size.micro_batch_size * size.accumulation_steps}",
        f"schedule.max_steps={size.steps}",
        "schedule.warmup_steps=2",
        f"run.checkpoint_every_steps={size.steps + 1}",  # only the last step saves, which is not timed
    ]


def bare(size: Size, inputs: Path, output: Path) -> None:
    """The same model, optimizer and batch in the shortest loop that Megatron-core allows: random tokens, nothing logged."""
    from nemo_patches.cpu_device import present_cpu_as_device
    from nemo_patches.quiet import quiet_imports

    with quiet_imports():
        on_cpu = present_cpu_as_device()
        import nemo.collections.llm  # noqa: F401
        import torch
        from megatron.core import parallel_state
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from megatron.core.pipeline_parallel import get_forward_backward_func
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

        from conversion.families import family_of
        from nemo_patches.engine_model import causal_forward_step

    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT=os.environ.get("MASTER_PORT", "29653"))
    torch.distributed.init_process_group("gloo" if on_cpu else "nccl")
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    half = size.precision == "bf16"
    dtype = torch.bfloat16 if half else torch.float32
    model = json.loads((inputs / "nemo" / "context" / "model.json").read_text(encoding="utf-8"))["config"]
    config = family_of("opt", source="benchmark").engine_config(
        model, padded_vocab_size=size.vocab_rows, bf16=half, params_dtype=dtype, pipeline_dtype=dtype, autocast_dtype=dtype
    )
    device = torch.device("cpu" if on_cpu else "cuda")
    engine = config.configure_model(tokenizer=None).to(device=device, dtype=dtype)
    settings = DistributedDataParallelConfig(
        use_distributed_optimizer=True,
        grad_reduce_in_fp32=half,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        check_for_nan_in_grad=True,
    )
    replica = DistributedDataParallel(config, settings, engine)
    adam = OptimizerConfig(
        optimizer="adam", lr=1e-3, adam_beta2=0.95, weight_decay=0.01, clip_grad=1.0, bf16=half, use_distributed_optimizer=True
    )
    optimizer = get_megatron_optimizer(adam, [replica])
    config.no_sync_func, config.finalize_model_grads_func, config.grad_scale_func = (
        replica.no_sync,
        finalize_model_grads,
        optimizer.scale_loss,
    )
    run_passes = get_forward_backward_func()

    def forward(batches: Iterator[dict[str, torch.Tensor]], module: torch.nn.Module) -> tuple[torch.Tensor, Any]:
        losses = causal_forward_step(module, next(batches))
        return losses, lambda output: (output.mean(), {"loss": output.mean().detach()})

    replica.train()
    batches = _random_batches(size, model["vocab_size"], device)
    for _ in range(size.steps):
        replica.zero_grad_buffer()
        optimizer.zero_grad()
        run_passes(
            forward_step_func=forward,
            data_iterator=batches,
            model=[replica],
            num_microbatches=size.accumulation_steps,
            seq_length=size.sequence_length,
            micro_batch_size=size.micro_batch_size,
            forward_only=False,
        )
        optimizer.step()


def _random_batches(size: Size, vocab_size: int, device: Any) -> Iterator[dict[str, Any]]:
    import torch

    generator = torch.Generator().manual_seed(0)
    positions = torch.arange(size.sequence_length, device=device).repeat(size.micro_batch_size, 1)
    while True:
        tokens = torch.randint(0, vocab_size, (size.micro_batch_size, size.sequence_length + 1), generator=generator).to(device)
        yield {"tokens": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous(), "position_ids": positions}


def trainer(size: Size, inputs: Path, output: Path) -> None:
    """The same model and batch with transformers' Trainer and its defaults, torch's attention; nothing saved or reported."""
    import torch
    from transformers import OPTConfig, OPTForCausalLM, Trainer, TrainingArguments

    class Samples(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return size.steps * size.micro_batch_size * size.accumulation_steps

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            tokens = torch.randint(0, size.vocab_rows, (size.sequence_length,), generator=torch.Generator().manual_seed(index))
            return {"input_ids": tokens, "labels": tokens}

    config = OPTConfig(
        vocab_size=size.vocab_rows,
        hidden_size=size.hidden_size,
        word_embed_proj_dim=size.hidden_size,
        ffn_dim=4 * size.hidden_size,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        max_position_embeddings=size.sequence_length,
        dropout=0.0,
        tie_word_embeddings=False,
        use_cache=False,
        attn_implementation="sdpa",
    )
    arguments = TrainingArguments(
        output_dir=str(output),
        per_device_train_batch_size=size.micro_batch_size,
        gradient_accumulation_steps=size.accumulation_steps,
        max_steps=size.steps,
        learning_rate=1e-3,
        weight_decay=0.01,
        adam_beta2=0.95,
        max_grad_norm=1.0,
        bf16=size.precision == "bf16",
        use_cpu=not torch.cuda.is_available(),
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    Trainer(model=OPTForCausalLM(config), args=arguments, train_dataset=Samples()).train()


LOOPS = {"bare": bare, "trainer": trainer}


def as_arguments(loop: str, inputs: Path, output: Path, size: Size) -> list[str]:
    """The words of the command that runs a loop."""
    return ["-m", "benchmarks.training_loops", loop, str(inputs), str(output), json.dumps(asdict(size))]


if __name__ == "__main__":
    name, inputs_dir, output_dir, sizes = sys.argv[1:]
    LOOPS[name](Size(**json.loads(sizes)), Path(inputs_dir), Path(output_dir))
