"""What a step of masked training costs beside one of causal training of the same shape, in processor seconds, taken in turns.

    python -m benchmarks.masked_steps --sequence-length 128 512

Both models are the engine's, of as many layers, as wide, with biases, learned positions, GELU and a tied head: an OPT and a RoBERTa.  A step is masking
(where there is any), both passes and Adam on one process.  What the encoder has besides is a dense layer before its head, and twice the scores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from common.tables import markdown_table

WARMUP = 2


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--vocab-size", type=int, default=16_000)
    parser.add_argument("--sequence-length", type=int, nargs="+", default=[128])
    parser.add_argument("--tokens", type=int, default=2048, help="of a step")
    parser.add_argument("--steps", type=int, default=10, help="of each that count")
    arguments = parser.parse_args()
    start_engine()
    rows = [[str(length), *row(arguments, length)] for length in arguments.sequence_length]
    print(markdown_table(["tokens of a sample", "causal, s", "masked, s", "masked beside causal", "of the ratio: lowest", "highest"], rows))


def start_engine() -> None:
    """A world of one process."""
    from nemo_patches.cpu_device import present_cpu_as_device
    from nemo_patches.quiet import quiet_imports

    with quiet_imports():
        present_cpu_as_device()
        import torch

    from conversion.measuring.engine_forward import set_layout

    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": os.environ.get("MASTER_PORT", "29611")}
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    set_layout(tensor_parallel_size=1)


def row(arguments: argparse.Namespace, length: int) -> list[str]:
    """Median seconds of both, and the ratio of neighbours."""
    steps = {kind: make_step(kind, arguments, length) for kind in ("causal", "masked")}
    seconds: dict[str, list[float]] = {kind: [] for kind in steps}
    for number in range(WARMUP + arguments.steps):
        for kind, step in steps.items():
            start = time.process_time()
            step(number)
            seconds[kind].append(time.process_time() - start)
    counted = {kind: values[WARMUP:] for kind, values in seconds.items()}
    ratios = [masked / causal for causal, masked in zip(counted["causal"], counted["masked"], strict=True)]
    medians = {kind: statistics.median(values) for kind, values in counted.items()}
    return [
        f"{medians['causal']:.3f}",
        f"{medians['masked']:.3f}",
        f"{statistics.median(ratios) - 1:+.1%}",
        f"{min(ratios) - 1:+.1%}",
        f"{max(ratios) - 1:+.1%}",
    ]


def make_step(kind: str, arguments: argparse.Namespace, length: int) -> Callable[[int], None]:
    """A step of one of the two: the number of the step decides the masks."""
    import numpy as np
    import torch

    from conversion.families import FAMILIES
    from recipes.rules.masking import MaskVocabulary, mask_sample
    from recipes.rules.schema import MaskingRecipe

    size, vocab_size = arguments.tokens // length, arguments.vocab_size
    model = engine_model(FAMILIES["opt" if kind == "causal" else "roberta"], arguments, length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    text = np.random.default_rng(1).integers(5, vocab_size, size=(size, length + 1))
    ids = np.arange(vocab_size)
    vocabulary = MaskVocabulary(4, ids >= 5, ids % 3 == 0)
    positions = torch.arange(length).expand(size, -1)

    def step(number: int) -> None:
        if kind == "masked":
            masked = [
                mask_sample(tokens[:-1], vocabulary, MaskingRecipe(), seed=1, number=number * size + place)
                for place, tokens in enumerate(text)
            ]
            seen, counts = (torch.from_numpy(np.stack(part)) for part in zip(*masked, strict=True))
            labels = torch.from_numpy(text[:, :-1].copy())
        else:
            seen, labels = torch.from_numpy(text[:, :-1].copy()), torch.from_numpy(text[:, 1:].copy())
            counts = torch.ones_like(seen, dtype=torch.bool)
        losses = model(seen, positions, None, labels=labels)
        ((losses * counts).sum() / counts.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def engine_model(family: Any, arguments: argparse.Namespace, length: int) -> Any:
    """A model with weights that the engine draws, without dropout."""
    width = arguments.hidden_size
    shape = {"vocab_size": arguments.vocab_size, "hidden_size": width, "num_hidden_layers": arguments.layers}
    sizes = {"num_attention_heads": width // 64, "max_position_embeddings": length + 2, "tie_word_embeddings": True}
    ffn = (
        {"ffn_dim": 4 * width, "word_embed_proj_dim": width}
        if family.model_type == "opt"
        else {"intermediate_size": 4 * width, "pad_token_id": 1}
    )
    model = family.megatron_config({**shape, **sizes, **ffn}, tied=True, source="the benchmark")
    model["activation_func"] = "gelu"  # OPT has ReLU, which costs less than what this is to measure
    return family.engine_config(model).configure_model(tokenizer=None).train()


if __name__ == "__main__":
    main()
