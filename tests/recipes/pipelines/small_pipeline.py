"""A pipeline with an axis of methods, one of steps, and a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def content(work_dir: Path) -> dict[str, Any]:
    return {
        "name": "small",
        "work_dir": str(work_dir),
        "axes": {"method": ["mean", "focus"], "step": [5, 10]},
        "options": {"method": {"focus": "--text 'c d.txt'"}},
        "stages": {
            "tokenizer": {"command": "data_prep.train_tokenizer --input 'a b.txt' --vocab-size 300", "output": "tokenizer"},
            "transfer": {
                "command": "conversion.transfer --tokenizer {tokenizer} --method {method} {method_options}",
                "output": "{method}/hf",
            },
            "train": {
                "train": {"recipe": "demo_adapt", "overrides": "model.checkpoint={transfer} data.train=[x]"},
                "output": "{method}/run",
            },
            "export": {"command": "conversion.nemo_to_hf --input {train}/checkpoints/step_{step:07}", "output": "{method}/hf_{step}"},
            "report": {"command": "eval.harness --model source={tokenizer} {export}", "output": "report"},
        },
    }
