"""The whole way without a pretrained model: train a tiny English OPT, graft Slovene onto it with three methods, compare them.

It runs the commands of the README one after the other and prints each as it would be typed, with the seconds it took.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common import command
from recipes.demos.steps import TEXT, Steps, require_new

METHODS = ("random-all", "mean", "focus")
VOCAB_SIZE = 1500
ADAPT_STEPS = 100
CHECKPOINT_EVERY = 25
MODEL_SHAPE = ("--num-layers", "4", "--hidden-size", "128", "--num-attention-heads", "4", "--ffn-size", "512", "--max-positions", "128")


class Demo(Steps):
    """The stages of the tiny demo."""

    def prepare(self, language: str) -> tuple[Path, Path]:
        """Tokenizer and data of one of the two languages."""
        name = {"en": "English", "sl": "Slovene"}[language]
        text = TEXT / f"{language}.train.txt"
        tokenizer, data = self.output / language / "tokenizer", self.output / language / "data"
        size = str(VOCAB_SIZE)
        self.run(f"{name} tokenizer", "data_prep.train_tokenizer", "--input", text, "--vocab-size", size, "--output", tokenizer)
        self.run(f"{name} text to Megatron's format", "data_prep.to_megatron", "--input", text, "--tokenizer", tokenizer, "--output", data)
        return tokenizer, data

    def english_model(self) -> Path:
        """A tiny OPT that knows some English: the stand-in for the model that a user would download."""
        tokenizer, data = self.prepare("en")
        out = self.output / "en"
        new, nemo, run, trained_hf = out / "untrained_hf", out / "untrained_nemo", out / "run", out / "hf"
        shape = (*MODEL_SHAPE, "--tokenizer", tokenizer, "--seed", str(self.seed))
        self.run("a tiny OPT with random weights", "conversion.new_model", *shape, "--output", new)
        self.run("to NeMo", "conversion.hf_to_nemo", "--input", new, "--output", nemo)
        self.train("train it on English, tensor parallel 2", "demo_pretrain", nemo, data, run)
        trained = sorted((run / "checkpoints").glob("step_*"))[-1]
        self.run("back to Hugging Face", "conversion.nemo_to_hf", "--input", trained, "--output", trained_hf)
        self.run("same logits in both formats?", "conversion.verify", trained_hf, trained)
        return trained_hf

    def graft(self, source: Path, tokenizer: Path, data: Path, method: str) -> list[Path]:
        """Transfer, train on Slovene, export every checkpoint; gives the exported models in order of steps."""
        out = self.output / method
        text = ("--text", str(TEXT / "sl.train.txt")) if method == "focus" else ()
        self.run(
            f"{method}: new embeddings",
            "conversion.transfer",
            "--source",
            source,
            "--tokenizer",
            tokenizer,
            "--method",
            method,
            "--output-layer",
            "tied",
            "--seed",
            str(self.seed),
            *text,
            "--output",
            out / "hf_0",
        )
        self.run(f"{method}: to NeMo", "conversion.hf_to_nemo", "--input", out / "hf_0", "--output", out / "nemo")
        self.train(
            f"{method}: train on Slovene, tensor parallel 2",
            "demo_adapt",
            out / "nemo",
            data,
            out / "run",
            f"schedule.max_steps={ADAPT_STEPS}",
            f"run.checkpoint_every_steps={CHECKPOINT_EVERY}",
        )
        models = [out / "hf_0"]
        for step in range(CHECKPOINT_EVERY, ADAPT_STEPS + 1, CHECKPOINT_EVERY):
            models.append(out / f"hf_{step}")
            checkpoint = out / f"run/checkpoints/step_{step:07d}"
            self.run(f"{method}: step {step} back to Hugging Face", "conversion.nemo_to_hf", "--input", checkpoint, "--output", models[-1])
        return models

    def compare(self, source: Path, models: Sequence[Path]) -> None:
        """Bits per byte of every model on held-out text, as table and plot, beside those of the English source."""
        held_out = (f"sl={TEXT / 'sl.heldout.txt'}", f"en={TEXT / 'en.heldout.txt'}")
        results = self.output / "results"
        self.run(
            "bits per byte of every checkpoint on held-out text",
            "eval.harness",
            "--model",
            f"source={source}",
            *models,
            "--text",
            *held_out,
            "--tasks",
            "completion_sl",
            "completion_en",
            "--output",
            results,
        )
        self.run("table and plot", "eval.learning_curves", "--results", results, "--output", self.output / "report")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo."""
    parser = command.parser(__doc__, prog="recipes.demo_tiny", example="python -m recipes.demo_tiny --output demo_tiny_output")
    parser.add_argument("--output", required=True, type=Path, help="directory for everything that the demo makes")
    parser.add_argument("--seed", type=int, default=42, help="seed of weights, transfer and data order")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="transfer methods to compare")
    arguments = parser.parse_args(argv)
    output = require_new(arguments.output)
    demo = Demo(output, arguments.seed)
    source = demo.english_model()
    tokenizer, data = demo.prepare("sl")
    models = [model for method in arguments.methods for model in demo.graft(source, tokenizer, data, method)]
    demo.compare(source, models)
    demo.print_seconds(page=output / "report" / "learning_curves.html")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
