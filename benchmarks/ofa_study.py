"""OFA's dimensions on real text: a small English RoBERTa gets the words of five languages, and is trained on masked text of all of them.

    python -m benchmarks.ofa_study --data DATA --output STUDY --seeds 1 2 3
    python -m benchmarks.ofa_study --data DATA --output STUDY --seeds 1 --layers 2 --hidden-size 192 --heads 6 --dimensions 100 50 25

DATA holds `text/{en,sl,it,hr,sr}/*.jsonl.gz` (`group` names what must not be on both sides) and `parallel/gnome_help.en-*.tsv.gz`.  As in the
paper: the source's vocabulary is joined with that of a tokenizer of all languages (`--vocabulary union`), new tokens get rows by OFA from vectors
of words of all languages in one space, at full size and as coordinates of several sizes, or drawn rows.  One source serves all seeds, which decide
the drawn rows, and the order and masks of training: the models of a seed are trained on the same samples.  The paper's vectors, ColexNet+, are
taken from parallel text; here words that occur in the same translated segments are (skip-gram over shuffled segments), in ColexNet+'s form.

Every step is a command of the project; what exists is used again, so the study can be stopped and continued, and grows by seeds and dimensions.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean

from benchmarks.commands import last_checkpoint, made, require_same_settings
from common.tables import markdown_table
from conversion.measuring.intervals import t_interval

LANGUAGES = {"en": "eng", "sl": "slv", "it": "ita", "hr": "hrv", "sr": "srp"}
VOCAB_SIZES = {"en": 4000, "all": 6000}
DRAWN = "new rows drawn"
TRAINING = (
    "data.sequence_length=128",
    "parallel.devices_per_node=1",
    "parallel.tensor_parallel_size=1",
    "schedule.global_batch_size=16",
    "schedule.micro_batch_size=16",
    "schedule.warmup_steps=20",
    "+objective=masked",
)

_HELDOUT_EVERY = 12  # every twelfth group
_TRAIN_BYTES = {"en": 6_000_000}
_OTHERS_BYTES = 1_500_000
_HELDOUT_BYTES = 30_000
_VECTOR_SIZE, _VECTOR_EPOCHS = 64, 8


@dataclass(frozen=True)
class Settings:
    """What all models of a study share.

    Attributes:
        precision: of products and activations; the optimizer's weights are float32.
        source_steps: of English, before the transfer.
    """

    hidden_size: int = 768
    layers: int = 1
    heads: int = 12
    precision: str = "bf16"
    learning_rate: float = 5e-4
    source_steps: int = 400
    steps: int = 40
    validate_every: int = 20
    validation_batches: int = 1

    def shape(self) -> tuple[str, ...]:
        """For conversion.new_model."""
        sizes = {"num-layers": self.layers, "hidden-size": self.hidden_size, "num-attention-heads": self.heads}
        sizes |= {"ffn-size": 4 * self.hidden_size, "max-positions": 128}
        return tuple(word for name, size in sizes.items() for word in (f"--{name}", str(size)))

    def training(self) -> tuple[str, ...]:
        """For recipes.train."""
        rate = self.learning_rate
        rates = (f"schedule.learning_rate={rate}", f"schedule.min_learning_rate={rate / 10}")
        return (*TRAINING, f"precision={self.precision}", *rates)


@dataclass(frozen=True)
class Arm:
    """Where the new rows come from, and the size of their coordinates; None if they are whole."""

    method: str
    factorised_size: int | None = None

    @property
    def name(self) -> str:
        """In folders."""
        return self.method if self.factorised_size is None else f"{self.method}_{self.factorised_size}"


@dataclass(frozen=True)
class Study:
    """Where things lie, and how to make each that is not there yet."""

    data: Path
    output: Path
    settings: Settings

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
        overrides = (f"model.checkpoint={nemo}", f"data.train=[{','.join(map(str, data))}]", f"seed={seed}")
        overrides += (*self.settings.training(), *options)
        return last_checkpoint(folder / "run", num_steps=steps, log_every=10, overrides=overrides)

    def source(self) -> Path:
        """A RoBERTa of English."""
        folder, tokenizer = self.output / "source", self.tokenizer("en", ["en"])
        data = made(self.output / "data_source", "data_prep.to_megatron", "--input", self.text("en", "train"), "--tokenizer", tokenizer)
        options = ("--model-type", "roberta", "--tokenizer", tokenizer, "--seed", "1")
        new = made(folder / "new", "conversion.new_model", *self.settings.shape(), *options)
        nemo = made(folder / "nemo", "conversion.hf_to_nemo", "--input", new)
        last = self.train(folder, nemo, [data], seed=1, steps=self.settings.source_steps)
        return made(folder / "hf", "conversion.nemo_to_hf", "--input", last)

    def start(self, arm: Arm, seed: int) -> Path:
        """The source with the words of all languages; the seed decides the rows that are drawn."""
        vectors = ("--vectors", self.vectors()) if arm.method == "ofa" else ()
        union = ("--vocabulary", "union", "--tokenizer", self.tokenizer("all", list(LANGUAGES)), "--output-layer", "tied")
        factorised = () if arm.factorised_size is None else ("--factorised-size", str(arm.factorised_size))
        options = ("--source", self.source(), *union, "--method", arm.method, *vectors, *factorised, "--seed", str(seed))
        return made(self.output / f"start_{arm.name}_{seed}", "conversion.transfer", *options)

    def arm(self, arm: Arm, seed: int) -> list[dict[str, float]]:
        """The figures of one model: a line of metrics for each validation."""
        folder, settings, drawn = self.output / f"arm_{arm.name}_{seed}", self.settings, seed if arm.method == "random" else 1
        hf = self.start(arm, drawn)
        nemo = made(self.output / f"nemo_{arm.name}_{drawn}", "conversion.hf_to_nemo", "--input", hf)
        data = {part: self.data_sets(hf, part) for part in ("train", "heldout")}
        sets = ",".join(f"{language}:{path}" for language, path in data["heldout"].items())
        shares = [f"data.languages=[{','.join(LANGUAGES)}]", f"data.shares={{{','.join(f'{language}: 0.2' for language in LANGUAGES)}}}"]
        when = [f"run.validate_every_steps={settings.validate_every}", f"run.validation_batches={settings.validation_batches}"]
        factors = [] if arm.factorised_size is None else [f"+model.factors={hf / 'factors.safetensors'}"]
        train, overrides = list(data["train"].values()), [*shares, f"data.validation={{{sets}}}", *when, *factors]
        self.train(folder, nemo, train, seed=seed, steps=settings.steps, options=overrides)
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


def table(found: Mapping[str, Sequence[Sequence[Mapping[str, float]]]], step: int) -> str:
    """Bits per byte of masked text by arm and language, the mean of the seeds; behind them the mean of the languages, and its distance to drawn rows."""
    bits = {
        name: [
            [record[f"validation_masked_bits_per_byte_{each}"] for each in LANGUAGES]
            for run in runs
            for record in run
            if record["step"] == step
        ]
        for name, runs in found.items()
    }
    means = {name: [fmean(of_seed) for of_seed in of_seeds] for name, of_seeds in bits.items()}
    rows = []
    for name, of_seeds in bits.items():
        apart = [] if name == DRAWN else [a - b for a, b in zip(means[name], means[DRAWN], strict=True)]
        rows.append(
            [name, *(f"{fmean(column):.3f}" for column in zip(*of_seeds, strict=True)), told(means[name], ".3f"), told(apart, "+.3f")]
        )
    return markdown_table(["rows", *LANGUAGES, "mean", "against drawn rows"], rows)


def told(values: Sequence[float], form: str) -> str:
    """The mean over seeds with Student's interval of 95 %; of one seed no interval."""
    if len(values) < 2:
        return "".join(f"{value:{form}}" for value in values)
    mean = t_interval(values)
    return f"{mean.value:{form}} [{mean.low:{form}}, {mean.high:{form}}]"


def main() -> None:
    """Make what is missing and print the tables."""
    arguments = _parser().parse_args()
    settings = Settings(**{field.name: getattr(arguments, field.name) for field in fields(Settings)})
    study = Study(arguments.data, arguments.output.resolve(), settings)
    require_same_settings(study.output, asdict(settings))
    arms = {DRAWN: Arm("random"), f"OFA, all {settings.hidden_size}": Arm("ofa")}
    arms |= {f"OFA, {size}": Arm("ofa", size) for size in arguments.dimensions}
    for language in LANGUAGES:
        study.split_text(language)
    found: dict[str, list[list[dict[str, float]]]] = {name: [] for name in arms}
    for seed in arguments.seeds:
        for name, arm in arms.items():
            found[name].append(study.arm(arm, seed))
        for step in range(settings.validate_every, settings.steps + 1, settings.validate_every):
            title = f"Pseudo-perplexity of held-out text in bits per byte after {step} steps, seeds up to {seed}"
            print(f"\n{title}\n\n{table(found, step)}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of real text")
    parser.add_argument("--output", type=Path, required=True, help="everything is made here, and found again")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="of drawn rows and of training")
    parser.add_argument("--dimensions", type=int, nargs="+", default=[400, 200, 100], help="of the coordinates (default: the paper's)")
    for field in fields(Settings):
        of = type(field.default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=of, default=field.default, help="default: %(default)s")
    return parser


if __name__ == "__main__":
    main()
