"""Largest difference of float32 logits between Hugging Face and the engine, for a tiny random model of every family.

The models are those of `tests/conversion/tiny_families.py`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from common import command


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table of docs/families.md."""
    parser = command.parser(__doc__, prog="benchmarks.family_parity", example="python -m benchmarks.family_parity")
    parser.parse_args(argv)

    from conversion import hf_to_nemo
    from conversion.families import language_config
    from conversion.measuring.observation import observe_engine, observe_hf, token_batch
    from tests.conversion.tiny_families import CASES, SEQUENCE_LENGTH, save_tiny_model

    rows = [language_config({**case.config, "model_type": case.model_type})["vocab_size"] for case in CASES.values()]
    batch = token_batch([], vocab_size=min(rows), length=SEQUENCE_LENGTH)
    with tempfile.TemporaryDirectory() as temporary:
        work_dir = Path(temporary)
        for name in CASES:
            save_tiny_model(name, work_dir / "hf" / name)
            hf_to_nemo.convert(work_dir / "hf" / name, work_dir / "nemo" / name)
        engine = observe_engine([work_dir / "nemo" / name for name in CASES], batch, tensor_parallel_sizes=(1, 2), timeout_seconds=600)
        print("| model | whole, TP 1 | whole, TP 2 | padded, TP 1 | padded, TP 2 | largest logit |\n|---|---|---|---|---|---|")
        for name, by_size in zip(CASES, engine, strict=True):
            hf = observe_hf(work_dir / "hf" / name, batch)
            pairs = [(hf.whole, by_size[size].whole) for size in (1, 2)] + [(hf.padded, by_size[size].padded) for size in (1, 2)]
            differences = [float((a["logits"] - b["logits"]).abs().max()) for a, b in pairs]
            cells = " | ".join(f"{difference:.1e}" for difference in differences)
            print(f"| {name} | {cells} | {float(hf.whole['logits'].abs().max()):.1f} |")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
