"""What each stage costs, measured on a sample: all stages one after the other on two amounts of it, and the line through both."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from common.artifacts import digest_file, written_aside
from common.meter import Measured, measure
from common.plain_files import read_json
from data_prep.reading.documents import Documents
from data_prep.sharing.scanning import Reading
from data_prep.sharing.shards import JsonLinesWriter
from data_prep.tokenizers.files import load_tokenizer

BUNDLED = Path(__file__).with_name("rates.json")
FORMAT = 2
# What is run, each on the text that another one leaves; only those that something is run on leave any.
COMMANDS = {
    "collect": "",
    "clean": "collect",
    "clean --filters web": "collect",
    "dedup": "clean",
    "dedup --similar-documents": "clean",
    "train_tokenizer": "dedup",
    "mixture": "dedup",
    "to_megatron": "mixture",
}
STAGES = tuple(COMMANDS)
INSTEAD = {"clean --filters web": "clean", "dedup --similar-documents": "dedup"}  # take the place of a stage
LEAST_MEMORY_GIB = 0.0625  # that dedup takes for its tasks
FILES = 4  # of a sample
_SHORT_WORDS = 10  # as `web` counts them
_LEAST_BYTES_A_WORD = 260.0  # of two tables, that of a file and that of all
_POLL_SECONDS = 0.005  # a sample of a few MB leaves its hashes on disk for some hundredths of a second


@dataclass(frozen=True)
class StageRate:
    """What a stage costs, as a line over the GB (10**9 bytes of UTF-8) of text that it reads.

    Attributes:
        start_seconds, seconds_per_gb: of a processor.
        peak_bytes: of memory of the largest process, on the whole sample; of `dedup` with the least that `--memory` may be.
        output_per_byte: bytes on disk that are written for a byte of text, compressed as the input is.
        scratch_per_byte: on disk meanwhile, beside the output.
        kept_per_byte: text that is left for the next stage.
    """

    stage: str
    start_seconds: float
    seconds_per_gb: float
    peak_bytes: float
    output_per_byte: float
    scratch_per_byte: float
    kept_per_byte: float


@dataclass(frozen=True)
class Rates:
    """Rates of all stages that were measured.

    Attributes:
        digest_seconds_per_gb: of bytes on disk, which the process that leads reads alone, input and output of each stage once.
        disk_per_byte: of the input for a byte of its text.
        documents_per_byte, lines_per_byte, short_lines_per_byte: of text; the last are different ones of fewer than ten words.
        sample_bytes: of text, of which `peak_bytes` are.
        distinct_words: of the sample, and by which power of the text they grow (Heaps 1978).
        bytes_a_word: that `train_tokenizer` holds of each.
        command, machine, sample: how, where and on what they were measured.
    """

    stages: tuple[StageRate, ...]
    digest_seconds_per_gb: float
    disk_per_byte: float
    documents_per_byte: float
    lines_per_byte: float
    short_lines_per_byte: float
    sample_bytes: int
    distinct_words: tuple[int, float]
    bytes_a_word: float
    command: str
    machine: str
    sample: str

    @classmethod
    def read(cls, path: Path) -> Rates:
        """Those of a file that `--measure` wrote.

        Raises:
            ValueError: if it is of another form.
        """
        try:
            content = read_json(path)
            if content.pop("format") != FORMAT:
                raise ValueError("another format")
            stages = tuple(StageRate(**stage) for stage in content.pop("stages"))
            content["distinct_words"] = tuple(content["distinct_words"])
            return cls(stages, **content)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path} holds no rates of data_prep.plan ({error}); make them with --measure") from error

    def write(self, path: Path) -> None:
        """Write them."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1, ensure_ascii=False)
        with written_aside(path) as file:
            file.write(f"{text}\n".encode())


@dataclass(frozen=True)
class Amount:
    """A stage on some text, measured."""

    text_bytes: int
    kept_bytes: int
    output_bytes: int
    scratch_bytes: int
    measured: Measured


def measure_rates(paths: Sequence[Path], tokenizer: Path, work: Path, *, megabytes: float, command: str) -> Rates:
    """Run all stages on a quarter and on the whole of a sample, one worker, and draw the line through both.

    Args:
        work: empty folder for samples and outputs, on the disk that is to be used; its content is removed.

    Raises:
        ValueError: if there is less text than that.
        RuntimeError: if a stage fails, with its last words.
    """
    small, large = work / "quarter", work / "whole"
    whole = write_sample(paths, large, int(megabytes * 1e6))  # first, as it may be more than there is
    sizes = [write_sample(paths, small, int(megabytes * 0.25e6)), whole]
    amounts = [run_stages(directory, size, tokenizer) for directory, size in zip((small, large), sizes)]
    files = sorted((large / "sample").iterdir())
    on_disk = sum(path.stat().st_size for path in files)
    start = time.process_time()
    for path in files:
        digest_file(path)
    digest_seconds = time.process_time() - start
    few, many = (_words(sorted((directory / "sample").iterdir())) for directory in (small, large))
    num_documents, num_lines, num_short = _lines(files)
    for directory in (small, large):
        shutil.rmtree(directory)
    peaks = [amount["train_tokenizer"].measured.peak_bytes for amount in amounts]
    return Rates(
        tuple(line(stage, amounts[0][stage], amounts[1][stage]) for stage in STAGES),
        digest_seconds_per_gb=digest_seconds / on_disk * 1e9,
        disk_per_byte=on_disk / whole,
        documents_per_byte=num_documents / whole,
        lines_per_byte=num_lines / whole,
        short_lines_per_byte=num_short / whole,
        sample_bytes=whole,
        distinct_words=(many, min(1.0, max(0.0, math.log(many / few) / math.log(whole / sizes[0])))),
        bytes_a_word=max(_LEAST_BYTES_A_WORD, (peaks[1] - peaks[0]) / max(many - few, 1)),
        command=command,
        machine=_machine(),
        sample=f"{whole / 1e6:.1f} MB of text from {', '.join(path.name for path in paths)}",
    )


def _words(paths: Sequence[Path]) -> int:
    """Distinct words, as `train_tokenizer` counts them."""
    return len(set().union(*(text.split() for text in Documents(paths))))


def _lines(paths: Sequence[Path]) -> tuple[int, int, int]:
    """Documents, lines with text, and different short lines."""
    num_documents = num_lines = 0
    short = set[int]()
    for text in Documents(paths):
        lines = [line for line in text.split("\n") if line]
        num_documents, num_lines = num_documents + 1, num_lines + len(lines)
        short |= {hash(line) for line in lines if line.count(" ") < _SHORT_WORDS}
    return num_documents, num_lines, len(short)


def write_sample(paths: Sequence[Path], directory: Path, wanted_bytes: int) -> int:
    """Write so much text in four files, from all files in turn, so that a sample is not all of one source; returns its bytes."""
    (directory / "sample").mkdir(parents=True)
    readers = deque(iter(Documents([path])) for path in paths)
    written = 0
    with ExitStack() as files:
        writers = [files.enter_context(JsonLinesWriter(directory / f"sample/{number}.jsonl.zst")) for number in range(FILES)]
        number = 0
        while readers:
            if (text := next(readers[0], None)) is None:
                readers.popleft()
                continue
            readers.rotate(-1)
            writers[number % FILES].write({"id": str(number), "text": text})
            number += 1
            written += len(text.encode())
            if written >= wanted_bytes:
                return written
    raise ValueError(
        f"the files hold {written / 1e6:.1f} MB of text, but the sample is to be {wanted_bytes / 1e6:.1f} MB; give more or a smaller --megabytes"
    )


def run_stages(directory: Path, text_bytes: int, tokenizer: Path) -> dict[str, Amount]:
    """Run all stages, each on what the one before left, which goes when nothing more is run on it."""
    amounts: dict[str, Amount] = {}
    for stage in STAGES:
        before = COMMANDS[stage]
        amounts[stage] = run_stage(directory, stage, amounts[before].kept_bytes if before else text_bytes, tokenizer)
        for done in finished(stage):
            shutil.rmtree(directory / done)
    return amounts


def finished(stage: str) -> list[str]:
    """Stages whose output is of no more use when this one is done."""
    left = STAGES[STAGES.index(stage) + 1 :]
    return [done for done in {stage, COMMANDS[stage]} - {""} if done not in map(COMMANDS.get, left)]


def run_stage(directory: Path, stage: str, text_bytes: int, tokenizer: Path) -> Amount:
    """Run one on the output of the one before, which lies in the directory under its name as `sample` does, with one worker.

    Args:
        text_bytes: that it reads.

    Raises:
        RuntimeError: if it fails, with its last words.
    """
    sample = [str(path) for path in sorted((directory / "sample").iterdir())]
    before, output = directory / COMMANDS[stage], directory / stage
    corpora = ["--corpora", str(before / "corpora.yaml")]
    arguments: dict[str, list[str]] = {
        "collect": ["--input", f"text={sample[0]}", *sample[1:]],
        "clean": corpora,
        "dedup": [*corpora, "--passes", "2", "--memory", str(LEAST_MEMORY_GIB)],
        "mixture": [*corpora, "--tokenizer", f"tokens={tokenizer}"],
        "train_tokenizer": [*corpora, "--vocab-size", str(_vocab_size(tokenizer))],
        "to_megatron": ["--input", *map(str, _files(before / "train")), "--tokenizer", str(tokenizer)],
    }
    name, *options = stage.split()
    words = [sys.executable, "-m", f"data_prep.{name}", *arguments[name], *options, "--workers", "1", "--output", str(output)]
    with _Scratch(output) as scratch:
        measured = measure(words, environment={"OMP_NUM_THREADS": "1"})
    kept = [path for folder in ("text", "train") for path in _files(output / folder)]
    return Amount(text_bytes, text_size(kept) if kept else text_bytes, _size(output), max(0, scratch.largest - _size(output)), measured)


@cache
def _vocab_size(tokenizer: Path) -> int:
    """Of a tokenizer: the one that is trained is to be as large as the one that counts."""
    return len(load_tokenizer(tokenizer))


def text_size(paths: Sequence[Path]) -> int:
    """Bytes of UTF-8 of the documents of some shards."""
    reading = Reading()
    return sum(len(text) for path in paths for block in reading.blocks(path) for text in block.texts())


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*.jsonl*") if path.is_file())


def _size(directory: Path) -> int:
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(root, name)).st_size
    return total


class _Scratch:
    """Looks again and again how large the hidden directory of an unfinished output is."""

    def __init__(self, output: Path) -> None:
        self._place = output.parent / f".{output.name}.unfinished"
        self.largest = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            self.largest = max(self.largest, _size(self._place))

    def __enter__(self) -> _Scratch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()


def line(stage: str, small: Amount, large: Amount) -> StageRate:
    """Through two amounts; what falls with the amount is noise, and counts as not growing."""
    seconds = _slope(small, large, [amount.measured.cpu_seconds for amount in (small, large)])
    return StageRate(
        stage,
        start_seconds=max(0.0, large.measured.cpu_seconds - seconds * large.text_bytes),
        seconds_per_gb=seconds * 1e9,
        peak_bytes=large.measured.peak_bytes,
        output_per_byte=large.output_bytes / large.text_bytes,
        scratch_per_byte=large.scratch_bytes / large.text_bytes,
        kept_per_byte=large.kept_bytes / large.text_bytes,
    )


def _slope(small: Amount, large: Amount, values: Sequence[float]) -> float:
    if large.text_bytes <= small.text_bytes:
        raise ValueError("the whole sample leaves no more text than a quarter of it, so it is mostly copies; measure on other text")
    return max(0.0, values[1] - values[0]) / (large.text_bytes - small.text_bytes)


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.0f}"
