"""Data commands that are killed before each of their file operations: the output is whole or not there, and the same command goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from data_prep.artifacts import MANIFEST_NAME, check_files, read_manifest, staged_directory, write_manifest
from data_prep.clean import clean
from data_prep.cleaning.filter_settings import read_filters
from data_prep.cleaning.problem_runs import ProblemRuns
from data_prep.cleaning.shard import CleanRules
from data_prep.collect import collect
from data_prep.dedup import dedup
from data_prep.deduplication.decisions import DocumentMethods
from data_prep.deduplication.similar_documents import SimilarSettings
from data_prep.join_megatron import join_megatron
from data_prep.mixture import mixture
from data_prep.question_answers import question_answers
from data_prep.reading.corpora import Corpus
from data_prep.reading.documents import Documents
from data_prep.reading.sources import Source
from data_prep.to_megatron import to_megatron
from data_prep.tokenizers.files import load_tokenizer
from data_prep.train_tokenizer import train_tokenizer
from tests.data_prep.conftest import SLOVENE_TEXT
from tests.every_step import end_of, kill_before, run_to_the_end

COMMANDS = ("collect", "clean", "to_megatron", "the shared mechanism")
MORE_COMMANDS = ("clean with filters", "mixture", "dedup", "dedup by ranges", "train_tokenizer", "join_megatron", "question_answers")


_ALL_METHODS = DocumentMethods(same=True, similar=SimilarSettings(0.8))


@dataclass(frozen=True)
class Inputs:
    """Small texts in two files, a tokenizer, and two datasets made of them."""

    corpus: Corpus
    pairs: Path
    tokenizer: Path
    datasets: tuple[Path, ...]

    def command(self, name: str) -> Callable[[Path], object]:
        """What makes an output."""
        load = lambda: load_tokenizer(self.tokenizer)  # noqa: E731
        return {
            "collect": lambda output: collect([Source(self.corpus)], output),
            "clean": lambda output: clean([self.corpus], output, rules=CleanRules(ProblemRuns("sl"))),
            # Which reads its corpus twice.
            "clean with filters": lambda output: clean([self.corpus], output, rules=CleanRules(filters=read_filters("web"))),
            "dedup": lambda output: dedup([self.corpus], output),
            "dedup by ranges": lambda output: dedup([self.corpus], output, methods=_ALL_METHODS, passes=2, memory_bytes=1 << 20),
            "train_tokenizer": lambda output: train_tokenizer(Documents([SLOVENE_TEXT]), output, vocab_size=400),
            "mixture": lambda output: mixture([self.corpus], {"t": self.tokenizer}, output),
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
        "a": ["Dober dan, svet.", "Druga vrstica \u2026 \u2026 \u2026 \u2026 \u2026 konec."],
        "b": ["Tretja in zadnja vrstica."],
    }.items():
        paths.append(directory / f"{name}.jsonl")
        paths[-1].write_text(
            "".join(json.dumps({"id": f"{name}{i}", "text": text}) + "\n" for i, text in enumerate(texts)), encoding="utf-8"
        )
    pairs = directory / "pairs.jsonl"
    pairs.write_text(json.dumps({"question": "Kdo?", "answer": "Jaz."}) + "\n")
    tokenizer = load_tokenizer(tokenizer_dir)
    datasets = tuple(directory / f"data_{path.stem}" for path in paths)
    for path, dataset in zip(paths, datasets):
        to_megatron([path], tokenizer, dataset)
    return Inputs(Corpus("c", tuple(paths)), pairs, tokenizer_dir, datasets)


def _content(output: Path) -> dict[str, bytes]:
    """All files; what depends on the moment of reading (the manifest names times of nothing, the counts those of files) is equal too."""
    manifest = read_manifest(output)
    assert manifest is not None
    check_files(output, manifest)
    files = {path.relative_to(output).as_posix(): path.read_bytes() for path in output.rglob("*") if path.is_file()}
    assert set(files) == {*manifest.files, MANIFEST_NAME}
    return files


@pytest.mark.parametrize("name", [*COMMANDS, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_COMMANDS)])
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
