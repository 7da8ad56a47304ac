"""Stages around training: plan, rehearsal, submission, start-up, steps, saves."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from benchmarks.training_loops import OVERRIDES, SIZES, Size, as_arguments, config_of, recipe_overrides
from benchmarks.whole.case import Case, Contender, empty_python, ours, products, script
from benchmarks.whole.material import Material
from recipes.numbers.arithmetic import flops_per_token

RANKS = 2
_ENGINE = "import of NeMo's llm collection"


def plan_case(material: Material, peers: str) -> Case:
    """Of a published run."""
    words = ("--recipe", "gams/focus", "--gpu", "a100-64gb")
    whole = Contender("Scion", "ours", lambda output: [sys.executable, "-m", "recipes.plan", *words])
    return Case("plan", 1, "recipe", (whole, empty_python()))


def rehearse_case(material: Material, peers: str) -> Case:
    """One of the 64 ranks of a published run at its real size."""
    whole = Contender("Scion", "ours", lambda output: [sys.executable, "-m", "recipes.rehearse", "--recipe", "gams/focus", "--rank", "0"])
    return Case("rehearse", 1, "rank", (whole, script(_ENGINE, "limit", "import_nemo.py")), most_rounds=3)


def submit_case(material: Material, peers: str) -> Case:
    """The plan and the job script; nothing is sent."""
    inputs = material.training
    words = (
        "demo_adapt",
        "--cluster",
        "vega",
        "--account",
        "b25",
        f"model.checkpoint={inputs / 'nemo'}",
        f"data.train=[{inputs / 'data'}]",
    )
    return Case("slurm.submit", 1, "run", (ours("slurm.submit", *words), empty_python()))


def training_cases(material: Material, peers: str) -> list[Case]:
    """What stands before the first step and after the last, and ten steps with it."""
    size, inputs = SIZES["cpu"], material.training
    one = [*recipe_overrides(size, inputs), *OVERRIDES, "schedule.max_steps=1", "schedule.warmup_steps=0", "run.checkpoint_every_steps=1"]
    many = [*recipe_overrides(size, inputs), *OVERRIDES]
    run = ("recipes.train", "--recipe", "demo_adapt")
    stock = script(_ENGINE, "limit", "import_nemo.py", remark="nothing else is done")
    tokens = size.step_tokens * size.steps
    operations = tokens * flops_per_token(config_of(size), vocab_size=size.vocab_rows, sequence_length=size.sequence_length)
    loops = {
        "bare": ("a bare loop of Megatron-core", "random tokens; logs, checks and saves nothing"),
        "trainer": ("Hugging Face's Trainer", "random tokens; saves nothing"),
    }
    others = [Contender(name, "peer", partial(_loop, loop, inputs, size), remark=remark) for loop, (name, remark) in loops.items()]
    limit = products(operations, size.micro_batch_size * size.sequence_length, size.hidden_size, 4 * size.hidden_size)
    return [
        Case("train, one step", 1, "run", (ours(*run, *one), stock)),
        Case(f"train, {size.steps} steps", tokens / 1e3, "thousand tokens", (ours(*run, *many), *others, limit)),
    ]


def _loop(loop: str, inputs: Path, size: Size, output: Path) -> list[str | Path]:
    return [sys.executable, *as_arguments(loop, inputs, output, size)]


def saving_case(material: Material, peers: str) -> Case:
    """For how long a save stops a training on two processes; each training tells of three saves."""
    names = {
        "ours": ("Scion", "ours"),
        "beside": ("Scion, asynchronous", "ours"),
        "nemo": ("NeMo's ModelCheckpoint", "peer"),
        "cached": ("writing the same bytes", "limit"),
        "direct": ("writing the same bytes directly", "limit"),
    }
    contenders = tuple(
        script(name, role, "stopped_by_a_save.py", contender, material.saving, str(RANKS), tells_seconds=True)  # type: ignore[arg-type]
        for contender, (name, role) in names.items()
    )
    return Case(f"a save, {RANKS} ranks", material.saving_gigabytes, "GB", contenders, most_rounds=2)
