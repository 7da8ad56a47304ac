"""Data commands that are killed before each of their file operations: the output is whole or not there, and the same command goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.artifacts import MANIFEST_NAME, check_files, read_manifest, staged_directory, write_manifest
from data_prep import corpus_report
from data_prep.clean import clean
from data_prep.cleaning.filter_settings import read_filters
from data_prep.cleaning.problem_runs import ProblemRuns
from data_prep.cleaning.shard import CleanRules
from data_prep.collect import collect
from data_prep.dedup import dedup
from data_prep.deduplication.decisions import DocumentMethods
from data_prep.deduplication.similar_documents import SimilarSettings
from data_prep.join_megatron import join_megatron
from data_prep.mixing.plan import Budget
from data_prep.mixture import MixtureRules, mixture
from data_prep.question_answers import question_answers
from data_prep.reading.corpora import Corpus
from data_prep.reading.documents import Documents
from data_prep.reading.sources import Source
from data_prep.to_megatron import to_megatron
from data_prep.tokenizers.files import load_tokenizer
from tests.data_prep.conftest import SLOVENE_TEXT
from tests.data_prep.trained import train_tokenizer
from tests.every_step import end_of, kill_before, run_to_the_end

MORE_COMMANDS = (
    "clean",
    "to_megatron",
    "clean with filters",
    "mixture",
    "mixture by weight",
    "dedup",
    "dedup beside protected texts",
    "dedup by ranges",
    "dedup with spans",
    "train_tokenizer",
    "join_megatron",
    "question_answers",
    "corpus_report",
)


_SPAN = "ena dva tri štiri pet šest sedem osem"
_BY_WEIGHT = MixtureRules((Budget.parse("corpus:c=40"),), weight_keys=(("c", "score"),), validation_share=0)
_ALL_METHODS = DocumentMethods(same=True, similar=SimilarSettings(0.8))


@dataclass(frozen=True)
class Inputs:
    """Small texts in two files, a tokenizer, and two datasets made of them."""

    corpus: Corpus
    pairs: Path
    tokenizer: Path
    datasets: tuple[Path, ...]
    cleaned: Path

    def command(self, name: str) -> Callable[[Path], object]:
        """What makes an output."""
        load = lambda: load_tokenizer(self.tokenizer)  # noqa: E731
        return {
            "collect": lambda output: collect([Source(self.corpus)], output),
            "clean": lambda output: clean([self.corpus], output, rules=CleanRules(ProblemRuns("sl"))),
            # Which reads its corpus twice.
            "clean with filters": lambda output: clean([self.corpus], output, rules=CleanRules(filters=read_filters("web"))),
            "dedup": lambda output: dedup([self.corpus], output),
            "dedup beside protected texts": lambda output: dedup(
                [self.corpus], output, against=[self.pairs], against_n=3, against_shortest=2
            ),
            "dedup by ranges": lambda output: dedup([self.corpus], output, methods=_ALL_METHODS, passes=2, memory_bytes=1 << 20),
            "dedup with spans": lambda output: dedup([self.corpus], output, substrings=8),
            "train_tokenizer": lambda output: train_tokenizer(Documents([SLOVENE_TEXT]), output, vocab_size=400),
            "mixture": lambda output: mixture([self.corpus], {"t": self.tokenizer}, output),
            "mixture by weight": lambda output: mixture([self.corpus], {"t": self.tokenizer}, output, rules=_BY_WEIGHT),
            "corpus_report": lambda output: corpus_report.main(["--clean", str(self.cleaned), "--output", str(output)]),
            "to_megatron": lambda output: to_megatron(self.corpus.paths, load(), output),
            "join_megatron": lambda output: join_megatron(self.datasets, output),
            "question_answers": lambda output: question_answers([self.pairs], self.tokenizer, output),
            "the shared mechanism": _stage,
        }[name]


def _stage(output: Path) -> None:
    with staged_directory(output) as staging:
        (staging / "inner").mkdir()
        (staging / "inner/a").write_text("a")
        write_manifest(staging, stage="s", facts={})


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Inputs:
    directory = tmp_path_factory.mktemp("inputs")
    paths = []
    for name, texts in {
        "a": ["Dober dan, svet.", "Druga vrstica \u2026 \u2026 \u2026 \u2026 \u2026 konec.", f"Najprej {_SPAN} in dalje."],
        "b": ["Tretja in zadnja vrstica.", f"Drugje pa stoji {_SPAN} kar pomeni nekaj drugega."],
    }.items():
        paths.append(directory / f"{name}.jsonl")
        paths[-1].write_text(
            "".join(json.dumps({"id": f"{name}{i}", "text": text, "score": i + 1}) + "\n" for i, text in enumerate(texts)), encoding="utf-8"
        )
    pairs = directory / "pairs.jsonl"
    pairs.write_text(json.dumps({"question": "Kdo?", "answer": "Jaz."}) + "\n")
    tokenizer = load_tokenizer(tokenizer_dir)
    datasets = tuple(directory / f"data_{path.stem}" for path in paths)
    for path, dataset in zip(paths, datasets):
        to_megatron([path], tokenizer, dataset)
    corpus = Corpus("c", tuple(paths))
    clean([corpus], directory / "cleaned")
    return Inputs(corpus, pairs, tokenizer_dir, datasets, directory / "cleaned")


def _content(output: Path) -> dict[str, bytes]:
    """All files; what depends on the moment of reading (the manifest names times of nothing, the counts those of files) is equal too."""
    manifest = read_manifest(output)
    assert manifest is not None
    check_files(output, manifest)
    files = {
        path.relative_to(output).as_posix(): path.read_bytes().replace(str(output).encode(), b"OUTPUT")
        for path in output.rglob("*")
        if path.is_file()
    }  # named by arguments
    assert set(files) == {*manifest.files, MANIFEST_NAME}
    return files


@pytest.mark.parametrize(
    "name",
    [
        "the shared mechanism",
        pytest.param("collect", marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.long) for name in MORE_COMMANDS),
    ],
)
def test_killed_at_every_step(name: str, inputs: Inputs, tmp_path: Path) -> None:
    command = inputs.command(name)
    steps = run_to_the_end(lambda: command(tmp_path / "expected"), tmp_path)
    assert len(steps) > 8 and sum("os.rename" in step for step in steps) >= 2, steps
    expected = _content(tmp_path / "expected")
    renamed = 0
    for step, what in enumerate(steps):
        place = tmp_path / f"step_{step:03d}"
        output = place / "out"
        place.mkdir()
        kill_before(lambda: command(output), place, step)  # noqa: B023 used at once
        if output.exists():
            assert _content(output) == expected, f"before {what}: what has its name is not whole"
            assert "exists and is not empty" in str(end_of(lambda: command(output), place))  # noqa: B023
            renamed += 1
        else:
            assert (error := end_of(lambda: command(output), place)) is None, f"before {what}: cannot go on: {error}"  # noqa: B023
            assert _content(output) == expected, f"before {what}: another output"
        assert [path.name for path in place.iterdir()] == ["out"], f"before {what}: something stays for ever"
    last_rename = max(step for step, what in enumerate(steps) if what.startswith("os.rename"))
    assert renamed == len(steps) - 1 - last_rename, "the output has its name from the last rename on, and not before"
