"""Every transfer method on real text: small models trained here, bits per byte of held-out novels before training and after a few steps.

    python -m benchmarks.transfer_study --data DATA --output STUDY --seeds 1 2 3

DATA holds `text/{en,sl,it}/eltec_novels.jsonl.gz` (one chapter a line: `group` names the novel) and `dictionaries/`.  Everything is
made by the project's own commands: a tokenizer per language, an English OPT per seed (the source), a Slovene, an Italian and a
three-language OPT (helpers and encoder), then `conversion.transfer_compare` per language and source.  What exists already is used
again, so the study can be continued.  No novel is in both training and held-out text.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from benchmarks.commands import last_checkpoint, made
from common.tables import markdown_table

TARGETS = ("sl", "it")
NAMES = {"sl": "Slovene", "it": "Italian"}
DICTIONARIES = {"sl": "muse_nc.en-sl.txt.gz", "it": "muse_nc.en-it.txt.gz"}
VOCAB_SIZES = {"en": 6000, "sl": 8000, "it": 8000, "all": 12000}
SHAPE = ("--num-layers", "4", "--hidden-size", "192", "--num-attention-heads", "6", "--ffn-size", "768", "--max-positions", "256")
TRAINING = (
    "data.sequence_length=256",
    "parallel.devices_per_node=2",
    "parallel.tensor_parallel_size=1",
    "schedule.global_batch_size=32",
    "schedule.micro_batch_size=16",
    "schedule.learning_rate=3e-3",
    "schedule.min_learning_rate=3e-4",
    "schedule.warmup_steps=50",
)
SOURCE_STEPS = 300
HELPER_STEPS = 200
HELDOUT_BYTES = 40_000

_HELDOUT_EVERY = 12  # every twelfth novel
_PIECE_CHARACTERS = 1500
_TRAIN_BYTES = 14_000_000
_SAMPLE_BYTES = 4_000_000  # what the methods learn from: text is dear where transfer is wanted


@dataclass(frozen=True)
class Study:
    """Where things lie, and how to make each that is not there yet."""

    data: Path
    output: Path
    num_steps: int

    def text(self, language: str, part: str) -> Path:
        """The `train`, `sample` (the first part of it) or `heldout` text of a language."""
        return self.output / "text" / f"{language}.{part}.jsonl"

    def split_text(self, language: str) -> None:
        """Whole novels to training or held-out text; held-out chapters are cut into pieces of paragraphs."""
        if self.text(language, "heldout").exists():
            return
        self.text(language, "train").parent.mkdir(parents=True, exist_ok=True)
        groups: dict[str, int] = {}
        taken = 0
        with (
            gzip.open(self.data / "text" / language / "eltec_novels.jsonl.gz", "rt", encoding="utf-8") as chapters,
            open(self.text(language, "train"), "w", encoding="utf-8") as train,
            open(self.text(language, "sample"), "w", encoding="utf-8") as sample,
            open(self._partial(language), "w", encoding="utf-8") as held,
        ):
            for chapter in map(json.loads, chapters):
                number = groups.setdefault(chapter["group"], len(groups))
                if number % _HELDOUT_EVERY == 0:
                    held.writelines(json.dumps({"text": piece}) + "\n" for piece in pieces(chapter["text"]))
                elif taken < _TRAIN_BYTES:
                    line = json.dumps({"text": chapter["text"]}) + "\n"
                    train.write(line)
                    if taken < _SAMPLE_BYTES:
                        sample.write(line)
                    taken += len(chapter["text"].encode())
        self._partial(language).rename(self.text(language, "heldout"))

    def _partial(self, language: str) -> Path:
        return self.text(language, "heldout").with_suffix(".partial")

    def model(self, name: str, languages: Sequence[str], *, seed: int, num_steps: int = HELPER_STEPS) -> Path:
        """A small OPT trained on the text of some languages, exported."""
        folder = self.output / name
        vocabulary = "all" if len(languages) > 1 else languages[0]
        texts = [self.text(language, "train") for language in languages]
        tokenizer = self.tokenizer(vocabulary, texts)
        data = made(self.output / f"data_{vocabulary}", "data_prep.to_megatron", "--input", *texts, "--tokenizer", tokenizer)
        new = made(folder / "new", "conversion.new_model", *SHAPE, "--tokenizer", tokenizer, "--seed", str(seed))
        nemo = made(folder / "nemo", "conversion.hf_to_nemo", "--input", new)
        overrides = (f"model.checkpoint={nemo}", f"data.train=[{data}]", f"seed={seed}", *TRAINING)
        last = last_checkpoint(folder / "run", num_steps=num_steps, log_every=50, overrides=overrides)
        return made(folder / "hf", "conversion.nemo_to_hf", "--input", last)

    def source(self, seed: int) -> Path:
        """An English model."""
        return self.model(f"source_{seed}", ["en"], seed=seed, num_steps=SOURCE_STEPS)

    def tokenizer(self, name: str, texts: Sequence[Path]) -> Path:
        """A tokenizer trained on some texts."""
        size = ("--vocab-size", str(VOCAB_SIZES[name]))
        return made(self.output / f"tokenizer_{name}", "data_prep.train_tokenizer", "--input", *texts, *size)

    def compare(self, language: str, seed: int) -> Path:
        """All methods from one source into one language."""
        source = self.source(seed)
        helper = self.model(f"helper_{language}", [language], seed=7)
        encoder = self.model("encoder", ["en", *TARGETS], seed=7)
        return made(
            self.output / f"comparison_{language}_{seed}",
            "conversion.transfer_compare",
            "--source",
            source,
            "--tokenizer",
            self.output / f"tokenizer_{language}",
            "--text",
            self.text(language, "sample"),
            "--source-text",
            self.text("en", "sample"),
            "--dictionary",
            self.data / "dictionaries" / DICTIONARIES[language],
            "--parallel",
            self.data / "parallel" / f"gnome_help.en-{language}.tsv.gz",
            "--parallel-columns",
            "en",
            language,
            "--helper",
            helper,
            "--encoder",
            encoder,
            "--heldout",
            f"{language}={self.text(language, 'heldout')}",
            f"en={self.text('en', 'heldout')}",
            "--heldout-bytes",
            str(HELDOUT_BYTES),
            "--every-document",
            "--seeds",
            str(seed),
            "--steps",
            str(self.num_steps),
            "--learning-rate",
            "1e-3",
            "--sequence-length",
            "256",
            "--batch-size",
            "8",
        )


def pieces(text: str) -> Iterator[str]:
    """A chapter as runs of whole paragraphs of at least some length."""
    piece = ""
    for paragraph in text.split("\n\n"):
        piece = f"{piece}\n\n{paragraph}" if piece else paragraph
        if len(piece) >= _PIECE_CHARACTERS:
            yield piece
            piece = ""


def table(comparisons: Sequence[Path], text: str) -> str:
    """Mean and spread over sources per method, and in how many of them the method was below `random-all`."""
    found: dict[str, dict[int, list[float]]] = {}
    for path in comparisons:
        for entry in json.loads((path / "comparison.json").read_text(encoding="utf-8"))["measurements"]:
            by_step = found.setdefault(entry["method"], {})
            by_step.setdefault(entry["step"], []).append(entry["texts"][text]["bits_per_byte"])
    steps = sorted({step for values in found.values() for step in values})
    header = ["method", *(cell for step in steps for cell in (f"step {step}", "below random-all"))]
    rows = []
    for method in sorted(found, key=lambda name: mean(found[name][max(found[name])])):
        cells = []
        for step in steps:
            values = found[method].get(step)
            if values is None:
                cells += ["", ""]
                continue
            below = sum(value < other for value, other in zip(values, found["random-all"][step], strict=True))
            cells.append(f"{mean(values):.3f} ± {stdev(values) if len(values) > 1 else 0:.3f}")
            cells.append("" if method in ("random-all", "source") else f"{below} of {len(values)}")
        rows.append([method, *cells])
    return markdown_table(header, rows)


def main() -> None:
    """Make what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of real text and dictionaries")
    parser.add_argument("--output", type=Path, required=True, help="everything is made here")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="one source model each")
    parser.add_argument("--steps", type=int, default=30, help="of training after each transfer; 0 for zero-shot figures alone")
    parser.add_argument("--only-models", action="store_true", help="stop before the comparisons")
    arguments = parser.parse_args()
    study = Study(arguments.data, arguments.output.resolve(), arguments.steps)
    for language in ("en", *TARGETS):
        study.split_text(language)
    if arguments.only_models:
        for seed in arguments.seeds:
            study.source(seed)
        for language in TARGETS:
            study.model(f"helper_{language}", [language], seed=7)
        study.model("encoder", ["en", *TARGETS], seed=7)
        return
    for language in TARGETS:
        comparisons = [study.compare(language, seed) for seed in arguments.seeds]
        print(f"\nBits per byte of held-out {NAMES[language]} novels, mean ± standard deviation of {len(comparisons)} sources\n")
        print(table(comparisons, language))


if __name__ == "__main__":
    main()
