"""OFA's dimensions on real text: a small English RoBERTa gets the words of five languages, and is trained on masked text of all of them.

    python -m benchmarks.ofa_study --data DATA --output STUDY --seeds 1

DATA holds `text/{en,sl,it,hr,sr}/*.jsonl.gz` (`group` names what must not be on both sides) and `parallel/gnome_help.en-*.tsv.gz`.  As in the
paper: the source's vocabulary is joined with that of a tokenizer of all languages (`--vocabulary union`), new tokens get rows by OFA from vectors
of words of all languages in one space, at full size and as coordinates of three sizes, or drawn rows; each model is trained on the same samples.
The paper's 100, 200 and 400 of 768 dimensions are as large a part of this model's: 25, 50 and 100 of 192.  Its vectors, ColexNet+, are taken
from parallel text; here words that occur in the same translated segments are (skip-gram over shuffled segments), in ColexNet+'s form.

Every step is a command of the project; what exists is used again, so the study can be stopped and continued.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from benchmarks.commands import last_checkpoint, made
from data_prep.tables import markdown_table

LANGUAGES = {"en": "eng", "sl": "slv", "it": "ita", "hr": "hrv", "sr": "srp"}
VOCAB_SIZES = {"en": 4000, "all": 6000}
SHAPE = ("--num-layers", "2", "--hidden-size", "192", "--num-attention-heads", "6", "--ffn-size", "768", "--max-positions", "128")
# Share of the dimensions as in the paper: 400, 200 and 100 of 768.
ARMS = {"random": None, "OFA, all 192": None, "OFA, 100": 100, "OFA, 50": 50, "OFA, 25": 25}
SOURCE_STEPS, STEPS, VALIDATE_EVERY = 240, 40, 20
TRAINING = (
    "data.sequence_length=128",
    "parallel.devices_per_node=1",
    "parallel.tensor_parallel_size=1",
    "schedule.global_batch_size=16",
    "schedule.micro_batch_size=16",
    "schedule.learning_rate=1e-3",
    "schedule.min_learning_rate=1e-4",
    "schedule.warmup_steps=20",
    "+objective=masked",
)

_HELDOUT_EVERY = 12  # every twelfth group
_TRAIN_BYTES = {"en": 6_000_000}
_OTHERS_BYTES = 1_500_000
_HELDOUT_BYTES = 30_000
_VECTOR_SIZE, _VECTOR_EPOCHS = 64, 8


@dataclass(frozen=True)
class Study:
    """Where things lie, and how to make each that is not there yet."""

    data: Path
    output: Path

    def text(self, language: str, part: str) -> Path:
        """The `train` or `heldout` text of a language."""
        return self.output / "text" / f"{language}.{part}.jsonl"

    def split_text(self, language: str) -> None:
        """Whole groups to training or held-out text, up to a size."""
        if self.text(language, "heldout").exists():
            return
        self.text(language, "train").parent.mkdir(parents=True, exist_ok=True)
        groups: dict[str, int] = {}
        sizes, limits = {"train": 0, "heldout": 0}, {"train": _TRAIN_BYTES.get(language, _OTHERS_BYTES), "heldout": _HELDOUT_BYTES}
        lines: dict[str, list[str]] = {"train": [], "heldout": []}
        for document in documents(self.data / "text" / language):
            part = "heldout" if groups.setdefault(document["group"], len(groups)) % _HELDOUT_EVERY == 0 else "train"
            text = document["text"][:8000] if part == "heldout" else document["text"]
            if sizes[part] < limits[part]:
                lines[part].append(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                sizes[part] += len(text.encode())
        for part in ("train", "heldout"):  # in this order: the second says that both are there
            self.text(language, part).write_text("".join(lines[part]), encoding="utf-8")

    def vectors(self) -> Path:
        """Vectors of words of all languages in one space, in the form of ColexNet+."""
        path = self.output / "words.vec"
        if not path.exists():
            from gensim.models import Word2Vec

            model = Word2Vec(
                list(shuffled_segments(self.data / "parallel")),
                vector_size=_VECTOR_SIZE,
                window=12,
                min_count=3,
                sg=1,
                epochs=_VECTOR_EPOCHS,
                seed=1,
                workers=1,
            )
            model.wv.save_word2vec_format(str(path.with_suffix(".partial")))
            path.with_suffix(".partial").rename(path)
        return path

    def tokenizer(self, name: str, languages: Sequence[str]) -> Path:
        """A byte-level tokenizer as RoBERTa's, trained on some languages."""
        texts = [self.text(language, "train") for language in languages]
        options = ("--vocab-size", str(VOCAB_SIZES[name]), "--model", "byte-level", "--mask-token")
        return made(self.output / f"tokenizer_{name}", "data_prep.train_tokenizer", "--input", *texts, *options)

    def train(self, folder: Path, nemo: Path, data: Sequence[Path], *, seed: int, steps: int, options: Sequence[str] = ()) -> Path:
        """A run on masked text, to its last checkpoint."""
        overrides = (f"model.checkpoint={nemo}", f"data.train=[{','.join(map(str, data))}]", f"seed={seed}", *TRAINING, *options)
        return last_checkpoint(folder / "run", num_steps=steps, log_every=10, overrides=overrides)

    def source(self, seed: int) -> Path:
        """A RoBERTa of English."""
        folder, tokenizer = self.output / f"source_{seed}", self.tokenizer("en", ["en"])
        data = made(self.output / "data_source", "data_prep.to_megatron", "--input", self.text("en", "train"), "--tokenizer", tokenizer)
        options = ("--model-type", "roberta", "--tokenizer", tokenizer, "--seed", str(seed))
        new = made(folder / "new", "conversion.new_model", *SHAPE, *options)
        nemo = made(folder / "nemo", "conversion.hf_to_nemo", "--input", new)
        last = self.train(folder, nemo, [data], seed=seed, steps=SOURCE_STEPS)
        return made(folder / "hf", "conversion.nemo_to_hf", "--input", last)

    def arm(self, name: str, seed: int) -> list[dict[str, float]]:
        """The figures of one model: a line of metrics for each validation."""
        folder, source = self.output / f"arm_{seed}_{name.replace(', ', '_').replace(' ', '_')}", self.source(seed)
        size = ARMS[name]
        method = ("--method", "random") if name == "random" else ("--method", "ofa", "--vectors", self.vectors())
        union = ("--vocabulary", "union", "--tokenizer", self.tokenizer("all", list(LANGUAGES)), "--output-layer", "tied")
        factorised = () if size is None else ("--factorised-size", str(size))
        options = ("--source", source, *union, *method, *factorised, "--seed", str(seed))
        hf = made(folder / "hf", "conversion.transfer", *options)
        nemo = made(folder / "nemo", "conversion.hf_to_nemo", "--input", hf)
        data = {part: self.data_sets(hf, part) for part in ("train", "heldout")}
        sets = ",".join(f"{language}:{path}" for language, path in data["heldout"].items())
        shares = [f"data.languages=[{','.join(LANGUAGES)}]", f"data.shares={{{','.join(f'{language}: 0.2' for language in LANGUAGES)}}}"]
        validation = [f"data.validation={{{sets}}}", f"run.validate_every_steps={VALIDATE_EVERY}", "run.validation_batches=1"]
        factors = [] if size is None else [f"+model.factors={hf / 'factors.safetensors'}"]
        self.train(folder, nemo, list(data["train"].values()), seed=seed, steps=STEPS, options=[*shares, *validation, *factors])
        records = map(json.loads, (folder / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines())
        return [record for record in records if "validation_masked_bits_per_byte_en" in record]

    def data_sets(self, tokenizer: Path, part: str) -> dict[str, Path]:
        """Language -> data set; the tokenizer of all arms is the same."""
        return {
            language: made(
                self.output / f"data_{part}" / language,
                "data_prep.to_megatron",
                *("--input", self.text(language, part), "--tokenizer", tokenizer),
            )
            for language in LANGUAGES
        }


def documents(folder: Path) -> Iterator[dict[str, str]]:
    """All documents of a language, file by file in the order of names."""
    for path in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def shuffled_segments(folder: Path) -> Iterator[list[str]]:
    """The words of each segment and of its translation in an order that is drawn, as keys of ColexNet+."""
    draw = random.Random(1)
    for path in sorted(folder.glob("gnome_help.en-*.tsv.gz")):
        with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE):
                words = [
                    f"{LANGUAGES[language]}:${word}$"
                    for language in row
                    if language in LANGUAGES
                    for word in "".join(c if c.isalpha() else " " for c in row[language].lower()).split()
                ]
                draw.shuffle(words)
                yield words


def table(found: dict[str, list[list[dict[str, float]]]], step: int) -> str:
    """Bits per byte of masked text by arm and language, mean and spread over seeds."""
    rows = []
    for name, runs in found.items():
        cells = []
        for language in [*LANGUAGES, "mean"]:
            values = []
            for records in runs:
                record = next(record for record in records if record["step"] == step)
                of = {each: record[f"validation_masked_bits_per_byte_{each}"] for each in LANGUAGES}
                values.append(mean(of.values()) if language == "mean" else of[language])
            cells.append(f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else ""))
        rows.append([name, *cells])
    return markdown_table(["rows", *LANGUAGES, "mean"], rows)


def main() -> None:
    """Make what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of real text")
    parser.add_argument("--output", type=Path, required=True, help="everything is made here")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="one source model each")
    arguments = parser.parse_args()
    study = Study(arguments.data, arguments.output.resolve())
    for language in LANGUAGES:
        study.split_text(language)
    found: dict[str, list[list[dict[str, float]]]] = {name: [] for name in ARMS}
    for seed in arguments.seeds:
        for name in ARMS:
            found[name].append(study.arm(name, seed))
    for step in range(VALIDATE_EVERY, STEPS + 1, VALIDATE_EVERY):
        print(f"\nPseudo-perplexity of held-out text in bits per byte after {step} steps\n\n{table(found, step)}")


if __name__ == "__main__":
    main()
