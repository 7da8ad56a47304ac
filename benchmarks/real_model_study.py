"""Transfer methods on a real pretrained model: bits per byte of held-out news before and after continued pretraining, beside training without a new vocabulary.

    python -m benchmarks.real_model_study --source smollm2/ --data DATA --output STUDY --languages sl it hr --vocabularies replace-16000 expand-2000
    python -m benchmarks.real_model_study --source smollm2/ --data DATA --output STUDY --languages sl --tokens 51200 204800

DATA holds `text/LANG/*.jsonl.gz`, `parallel/` and `dictionaries/`.  Held-out text are the stories of NTREX, which no tokenizer and no method saw,
in the target language and in English.  Each cell (language, vocabulary, method, way of training, seed) is a JSON file of its own, so that a study of
days can be stopped and continued, and grows by the same command with more of everything; cells made with other settings are refused.  `lapt` trains
the source with its own vocabulary on the same number of tokens (equal compute, which is less text).  CPU seconds are of one thread.
"""

from __future__ import annotations

import argparse
import copy
import csv
import gzip
import json
import math
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from conversion.hf_model import be_quiet_and_offline

be_quiet_and_offline()

import torch  # noqa: E402 (after the environment is set)

from conversion.comparison import TextScorer, TrainingOptions, pack, put_rows, training_steps  # noqa: E402
from conversion.embeddings.case import TransferCase, read_case  # noqa: E402
from conversion.embeddings.checkpoint import Transfer  # noqa: E402
from conversion.embeddings.parallel_text import ParallelText  # noqa: E402
from conversion.embeddings.request import TransferRequest, refusal_of  # noqa: E402
from conversion.embeddings.settings import VocabularyOptions  # noqa: E402
from conversion.hf_model import inspect_checkpoint, load_model  # noqa: E402
from conversion.significance import paired_difference  # noqa: E402
from data_prep.plain_files import read_json, write_json  # noqa: E402
from data_prep.reading.documents import Documents  # noqa: E402
from data_prep.reading.named_texts import Text  # noqa: E402
from data_prep.tables import markdown_table  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
DICTIONARIES = {"sl": "muse_nc.en-sl.txt.gz", "it": "muse_nc.en-it.txt.gz", "hr": "muse_nc.en-hr.txt.gz"}
METHODS = ("random-all", "random", "mean", "merge", "align", "focus", "wechsel", "ofa-aligned", "trans-tokenization")
LAPT = "lapt"
# Ways to train: share of English in the batches, and the share of the steps in which only embeddings and head are trained.
WAYS = {"plain": (0.0, 0.0), "replay-25": (0.25, 0.0), "replay-50": (0.5, 0.0), "embeddings-first": (0.0, 0.5)}


@dataclass(frozen=True)
class Study:
    """Where things lie, and how to make each that is not there yet."""

    source: Path
    data: Path
    output: Path
    text_bytes: int
    heldout_bytes: int

    def run(self, output: Path, module: str, *arguments: str | Path) -> Path:
        """One command, unless its output is there; gives the output."""
        if not output.exists():
            words = ["-m", module, *map(str, arguments), "--output", str(output)]
            print(f"   python {shlex.join(words)}", file=sys.stderr, flush=True)
            subprocess.run([sys.executable, *words], cwd=ROOT, check=True)
        return output

    def require_same(self, settings: Mapping[str, Any]) -> None:
        """Refuse to put cells beside others that were made with other settings."""
        path = self.output / "settings.json"
        if not path.exists():
            self.output.mkdir(parents=True, exist_ok=True)
            write_json(path, settings)
        elif (found := read_json(path)) != settings:
            other = [f"{key} {found.get(key)}, now {value}" for key, value in settings.items() if found.get(key) != value]
            raise SystemExit(f"{self.output} holds a study with {'; '.join(other)}; choose another --output or the same settings")

    def text(self, language: str) -> Path:
        """Documents of all the language's corpora at even distances, about `text_bytes` of them."""
        path = self.output / "text" / f"{language}.jsonl"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            documents = list(_paragraphs(self.data / "text" / language))
            random.Random(0).shuffle(documents)
            wanted, kept = self.text_bytes, []
            for document in documents:
                if wanted <= 0:
                    break
                kept.append(json.dumps({"text": document}, ensure_ascii=False) + "\n")
                wanted -= len(document.encode())
            partial = path.with_suffix(".partial")
            partial.write_text("".join(kept), encoding="utf-8")
            partial.rename(path)
        return path

    def heldout(self, language: str) -> Text:
        """Stories of NTREX at even distances, about `heldout_bytes` of them."""
        stories: dict[str, list[str]] = {}
        with gzip.open(self.data / "parallel/ntrex128.tsv.gz", "rt", encoding="utf-8") as lines:
            for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
                stories.setdefault(row["doc"], []).append(row[language])
        texts = ["\n".join(lines) for lines in stories.values()]
        mean_bytes = sum(len(text.encode()) for text in texts) / len(texts)
        step = max(1, round(len(texts) * mean_bytes / self.heldout_bytes))
        return Text(language, Path("ntrex"), texts[::step], "")

    def request(self, language: str, vocabulary: str) -> TransferRequest:
        """Everything that the methods may read."""
        kind, _, size = vocabulary.partition("-")
        tokenizer = None
        if kind == "replace":
            folder = self.output / f"tokenizer_{language}_{size}"
            tokenizer = self.run(folder, "data_prep.train_tokenizer", "--input", self.text(language), "--vocab-size", size)
        return TransferRequest(
            self.source,
            tokenizer,
            "mean",
            VocabularyOptions(kind, int(size) if kind == "expand" else None),
            text=Documents([self.text(language)], text_key="text"),
            source_text=Documents([self.text("en")], text_key="text"),
            dictionary=self.data / "dictionaries" / DICTIONARIES[language],
            parallel=ParallelText(self.data / "parallel" / f"gnome_help.en-{language}.tsv.gz", ("en", language)),
        )

    @cached_property
    def checkpoint(self) -> Any:
        """The source."""
        return inspect_checkpoint(self.source, name="source")

    @cached_property
    def model(self) -> Any:
        """The source in float32."""
        return load_model(self.checkpoint, device="cpu", dtype="float32")


def _paragraphs(folder: Path) -> Iterator[str]:
    """Documents of a language in pieces of whole paragraphs, of corpora that anyone may use."""
    for path in sorted(folder.glob("*.jsonl.gz")):
        if "_nc" in path.name:
            continue
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                piece = ""
                for paragraph in json.loads(line)["text"].split("\n\n"):
                    piece = f"{piece}\n\n{paragraph}" if piece else paragraph
                    if len(piece) > 3000:
                        yield piece
                        piece = ""
                if piece:
                    yield piece


Figures = dict[str, dict[str, Any]]  # tokens of training -> what was measured


@dataclass
class Cell:
    """One model: how it was made, and what was measured of it."""

    language: str
    vocabulary: str
    method: str
    way: str
    seed: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.language}.{self.vocabulary}.{self.method}.{self.way}.{self.seed}"


def measure(
    study: Study, cell: Cell, case: TransferCase | None, request: TransferRequest, budgets: Sequence[int], training: TrainingOptions
) -> None:
    """Make and train one model and write its figures, unless they are there for all these budgets."""
    path = study.output / "cells" / f"{cell.name}.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if {str(budget) for budget in (0, *budgets)} <= set(found):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [study.heldout(cell.language), study.heldout("en")]
    start = time.process_time()
    if case is None:
        tokenizer, model = study.checkpoint.tokenizer, copy.deepcopy(study.model)
    else:
        transfer = Transfer.of(case, replace(request, method=cell.method, seed=cell.seed))
        tokenizer, model = case.target.tokenizer, copy.deepcopy(put_rows(study.model, transfer))
    made = time.process_time() - start
    scorer = TextScorer(tokenizer)
    training_text = list(Documents([study.text(cell.language)], text_key="text"))
    sample = training_text[:200]
    bytes_per_token = sum(len(t.encode()) for t in sample) / sum(
        len(e.ids) for e in tokenizer.backend_tokenizer.encode_batch(sample, add_special_tokens=False)
    )

    def write(tokens: int, seconds: float) -> None:
        scores = scorer(model, texts)
        found[str(tokens)] = {
            "bits_per_byte": {name: score.bits_per_byte for name, score in scores.items()},
            "documents": {name: [(d.nats, d.text_bytes) for d in score.documents] for name, score in scores.items()},
            "cpu_seconds": seconds,
            "bytes_per_token": bytes_per_token,
        }
        write_json(path, found)
        told = ", ".join(f"{name} {score.bits_per_byte:.3f}" for name, score in scores.items())
        print(f"{cell.name}, {tokens:,} tokens: {told} ({seconds:.0f} CPU s)", flush=True)

    write(0, made)
    if not budgets:
        return
    of_step = training.batch_size * training.sequence_length
    options = replace(training, num_steps=max(budgets) // of_step)
    rows = pack(tokenizer, training_text, options)
    english, first = WAYS[cell.way]
    if english:
        more = pack(tokenizer, list(Documents([study.text("en")], text_key="text")), options)
        wanted = round(len(rows) * english / (1 - english))
        rows = torch.cat([rows, more.repeat(-(-wanted // len(more)), 1)[:wanted]])
    tables = {id(layer.weight) for layer in (model.get_input_embeddings(), model.get_output_embeddings())}
    _set_body(model, tables, trained=first == 0)
    start = time.process_time()
    measuring = 0.0
    for step in training_steps(model, rows, options, seed=cell.seed):
        if step == round(first * options.num_steps):
            _set_body(model, tables, trained=True)
        if step * of_step in budgets:
            begin = time.process_time()
            write(step * of_step, begin - start - measuring)
            measuring += time.process_time() - begin


def _set_body(model: Any, tables: set[int], *, trained: bool) -> None:
    for parameter in model.parameters():
        parameter.requires_grad_(trained or id(parameter) in tables)


def table(output: Path, language: str, vocabulary: str) -> str:
    """Bits per byte by method and budget, mean over seeds; at the last budget beside `lapt`, story by story."""
    groups: dict[tuple[str, str], list[Figures]] = {}
    for path in sorted((output / "cells").glob(f"{language}.*.json")):
        _, kind, method, way, _ = path.name.removesuffix(".json").split(".")
        if kind == vocabulary or method == LAPT:
            groups.setdefault((method, way), []).append(json.loads(path.read_text(encoding="utf-8")))
    budgets = sorted({int(budget) for cells in groups.values() for cell in cells for budget in cell})
    last = {key: [cell for cell in cells if str(budgets[-1]) in cell] for key, cells in groups.items()}
    lapt = last.get((LAPT, "plain"), [])
    header = [
        "method",
        "trained",
        *(f"{name}, {b:,} tokens" for b in budgets for name in (language, "en")),
        "against lapt",
        "CPU s to make",
    ]
    rows = []
    for (method, way), cells in sorted(groups.items(), key=lambda item: _mean(item[1], budgets[-1], language)):
        figures = [_told(_mean(cells, budget, name)) for budget in budgets for name in (language, "en")]
        against = _against(last[method, way], lapt, budgets[-1], language) if lapt and last[method, way] and method != LAPT else ""
        rows.append([method, way, *figures, against, f"{sum(cell['0']['cpu_seconds'] for cell in cells) / len(cells):.0f}"])
    return markdown_table(header, rows, text_columns=2)


def _mean(cells: Sequence[Figures], budget: int, text: str) -> float:
    values = [cell[str(budget)]["bits_per_byte"][text] for cell in cells if str(budget) in cell]
    return sum(values) / len(values) if values else math.inf


def _told(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "–"


def _against(ours: Sequence[Figures], theirs: Sequence[Figures], budget: int, text: str) -> str:
    """Difference in bits per byte with its 95 % interval over stories."""
    bits = [[[nats / math.log(2) for nats, _ in cell[str(budget)]["documents"][text]] for cell in cells] for cells in (ours, theirs)]
    first, second = ([sum(story) / len(story) for story in zip(*cells)] for cells in bits)
    difference = paired_difference(first, second, [size for _, size in ours[0][str(budget)]["documents"][text]])
    return f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"


def main() -> None:
    """Measure what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="model folder with its tokenizer")
    parser.add_argument("--data", type=Path, required=True, help="folder of real text and dictionaries")
    parser.add_argument("--output", type=Path, required=True, help="everything is made here, and found again")
    parser.add_argument("--languages", nargs="+", choices=tuple(DICTIONARIES), default=["sl"])
    parser.add_argument("--vocabularies", nargs="+", default=["replace-16000"], help="replace-SIZE or expand-TOKENS")
    parser.add_argument("--methods", nargs="+", default=[LAPT, *METHODS])
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=["plain"], help="of training")
    parser.add_argument("--tokens", nargs="+", type=int, default=[], help="measure after so many tokens of training")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--text-bytes", type=int, default=3_000_000)
    parser.add_argument("--heldout-bytes", type=int, default=24_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    training = TrainingOptions(learning_rate=arguments.learning_rate, mixed_precision=True)
    of_step = training.batch_size * training.sequence_length
    if odd := [tokens for tokens in arguments.tokens if tokens < of_step or tokens % of_step]:
        raise SystemExit(f"--tokens {' '.join(map(str, odd))}: expected multiples of the {of_step} tokens of a step")
    study = Study(arguments.source, arguments.data, arguments.output.resolve(), arguments.text_bytes, arguments.heldout_bytes)
    study.require_same(
        {"source": study.checkpoint.digest, "heldout_bytes": study.heldout_bytes, "text_bytes": study.text_bytes, **asdict(training)}
    )
    for language in arguments.languages:
        for vocabulary in arguments.vocabularies:
            request = study.request(language, vocabulary)
            case = read_case(request)
            for method in arguments.methods:
                if method != LAPT and (refusal := refusal_of(request, method)):
                    print(f"{method}: {refusal}", file=sys.stderr)
                    continue
                for way in arguments.ways if arguments.tokens else ["plain"]:
                    for seed in arguments.seeds:
                        cell = Cell(language, "own" if method == LAPT else vocabulary, method, way, seed)
                        measure(study, cell, None if method == LAPT else case, request, arguments.tokens, training)
            print(
                f"\n{language}, {vocabulary}: bits per byte of held-out news\n\n{table(study.output, language, vocabulary)}\n", flush=True
            )


if __name__ == "__main__":
    main()
