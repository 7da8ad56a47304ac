"""One rank of `benchmarks.slurm`: `recipes.train` with the time of each stage of its start written down by rank 0.

MARKS=marks.json srun ... python -m benchmarks.slurm_rank ARGUMENTS OF recipes.train
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

MARKS = {"srun, task.sh, interpreter": (time.time(), time.process_time())}  # of the clock, and of the cores: the latter bear other load


def mark(name: str) -> None:
    MARKS.setdefault(name, (time.time(), time.process_time()))


def watch_engine() -> None:
    """Import the engine and have its trainer say where it is."""
    mark("checks")
    from recipes.training import engine

    mark("imports")
    from lightning.pytorch.callbacks import Callback
    from torch import distributed

    class Watch(Callback):
        def on_train_start(self, trainer: object, module: object) -> None:
            mark("model, optimizer, weights")

        def on_train_batch_end(self, *arguments: object) -> None:
            mark("first step")

    init, trainer = distributed.init_process_group, engine.nl.Trainer

    def init_process_group(*arguments: object, **keywords: object) -> None:
        init(*arguments, **keywords)
        mark("process group")

    distributed.init_process_group = init_process_group
    engine.nl.Trainer = lambda **keywords: trainer(**{**keywords, "callbacks": [*keywords["callbacks"], Watch()]})


def main() -> None:
    from recipes import train

    launch = train.must_launch

    def must_launch(recipe: object) -> bool:
        watch_engine()  # called right before the engine is imported
        return launch(recipe)

    train.must_launch = must_launch
    train.main(sys.argv[1:])
    mark("end")
    if os.environ["RANK"] == "0":
        Path(os.environ["MARKS"]).write_text(json.dumps(MARKS))


if __name__ == "__main__":
    main()
