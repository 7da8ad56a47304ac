"""Stages at three sizes of their input, each size a case of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from benchmarks import training
from benchmarks.training_loops import OVERRIDES, recipe_overrides
from benchmarks.whole.case import Case, Contender, ours
from benchmarks.whole.material import GROWN, Material

TARGETS = (16_000, 64_000, 256_000)
_STEPS = (2, 10, 40)
_RANKS = (1, 2, 4)
_GPUS = (8, 64, 512)
_HELD_OUT = (5, 20, 80)  # kB


Sizes = Iterator[tuple[float, Contender]]


@dataclass(frozen=True)
class Growing:
    """A stage.

    Attributes:
        sizes: amounts of work, and the command that does each.
        wanted: amounts that are not measured, with their names.
        needs_model: whether a real model's folder is needed.
    """

    name: str
    unit: str
    sizes: Callable[[Material], Sizes]
    wanted: tuple[tuple[str, float], ...] = ()
    needs_model: bool = False

    def cases(self, material: Material) -> Iterator[Case]:
        """One for each size."""
        for amount, contender in self.sizes(material):
            yield Case(self.name, amount, self.unit, (contender,))


def _conversion(module: str) -> Callable[[Material], Sizes]:
    def sizes(material: Material) -> Sizes:
        for shape in GROWN:
            grown = replace(material, shape=shape)
            source = grown.checkpoint("bfloat16") if module == "hf_to_nemo" else grown.nemo_checkpoint("bfloat16")
            yield grown.checkpoint_gigabytes("bfloat16"), ours(f"conversion.{module}", "--input", source)

    return sizes


def _transfer(method: str) -> Callable[[Material], Sizes]:
    def sizes(material: Material) -> Sizes:
        text = ("--text", material.learned) if method == "focus" else ()
        for tokens in TARGETS:
            words = ("--source", material.real_model, "--tokenizer", material.target_tokenizer(tokens, TARGETS), "--method", method, *text)
            yield tokens / 1000, ours("conversion.transfer", *words)

    return sizes


def _harness(material: Material) -> Sizes:
    for kilobytes in _HELD_OUT:
        text = material.held_out_of(kilobytes * 1000)
        words = ("--model", f"model={material.real_model}", "--text", f"text={text}", "--device", "cpu")
        yield material.text_bytes(text) / 1000, ours("eval.harness", *words)


def _steps(material: Material) -> Sizes:
    size = training.SIZES["cpu"]
    for steps in _STEPS:
        yield steps * size.step_tokens / 1000, _training(material, f"schedule.max_steps={steps}", f"run.checkpoint_every_steps={steps}")


def _ranks(material: Material) -> Sizes:
    for ranks in _RANKS:
        one = ("schedule.max_steps=1", "schedule.warmup_steps=0", "run.checkpoint_every_steps=1")
        yield ranks, _training(material, *one, f"parallel.devices_per_node={ranks}")


def _training(material: Material, *more: str) -> Contender:
    overrides = [*recipe_overrides(training.SIZES["cpu"], material.training), *OVERRIDES, "schedule.warmup_steps=1", *more]
    return ours("recipes.train", "--recipe", "demo_adapt", *overrides)


def _of_gpus(module: str, *words: str) -> Callable[[Material], Sizes]:
    def sizes(material: Material) -> Sizes:
        for gpus in _GPUS:
            command = (sys.executable, "-m", module, "--recipe", "gams/focus", *words, "--gpus", str(gpus))
            yield gpus, Contender("Scion", "ours", lambda output, command=command: list(command))

    return sizes


_WEIGHTS = (("30 GB", 30.0), ("1 TB", 1000.0))
_MILLION = (("a million tokens", 1000.0),)
GROWING = {
    "hf_to_nemo": Growing("hf_to_nemo", "GB", _conversion("hf_to_nemo"), _WEIGHTS),
    "nemo_to_hf": Growing("nemo_to_hf", "GB", _conversion("nemo_to_hf"), _WEIGHTS),
    "mean": Growing("transfer --method mean", "thousand target tokens", _transfer("mean"), _MILLION, needs_model=True),
    "focus": Growing("transfer --method focus", "thousand target tokens", _transfer("focus"), _MILLION, needs_model=True),
    "steps": Growing("train, more steps", "thousand tokens", _steps, _MILLION),
    "ranks": Growing("train, one step, more ranks", "ranks", _ranks, (("512 ranks", 512.0),)),
    "plan": Growing("plan", "GPUs", _of_gpus("recipes.plan", "--gpu", "a100-64gb")),
    "rehearse": Growing("rehearse", "GPUs", _of_gpus("recipes.rehearse", "--rank", "0", "schedule.micro_batch_size=2")),
    "harness": Growing("harness --text", "kB of text", _harness, (("1 MB", 1000.0),), needs_model=True),
}
