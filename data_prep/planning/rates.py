"""What each stage costs, measured on a sample: all stages one after the other on two amounts of it, and the line through both."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from data_prep.artifacts import digest_file
from data_prep.meter import Measured, measure
from data_prep.plain_files import read_json
from data_prep.reading.documents import Documents
from data_prep.reading.shards import JsonLinesWriter

BUNDLED = Path(__file__).with_name("rates.json")
FORMAT = 1
STAGES = ("collect", "clean", "dedup", "mixture", "to_megatron")
LEAST_MEMORY_GIB = 0.0625  # that dedup takes for its tasks
_TEXT = {"collect": "text", "clean": "text", "dedup": "text", "mixture": "train"}
_FILES = 4
_POLL_SECONDS = 0.1


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
        documents_per_byte: of text.
        command, machine, sample: how, where and on what they were measured.
    """

    stages: tuple[StageRate, ...]
    digest_seconds_per_gb: float
    disk_per_byte: float
    documents_per_byte: float
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
            return cls(stages, **content)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path} holds no rates of data_prep.plan ({error}); make them with --measure") from error

    def write(self, path: Path) -> None:
        """Write them."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1, ensure_ascii=False)
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(text + "\n", encoding="utf-8")
        os.replace(partial, path)


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
    whole = _sample(paths, large, int(megabytes * 1e6))  # first, as it may be more than there is
    sizes = [_sample(paths, small, int(megabytes * 0.25e6)), whole]
    amounts = [_chain(directory, size, tokenizer) for directory, size in zip((small, large), sizes)]
    files = sorted((large / "sample").iterdir())
    on_disk = sum(path.stat().st_size for path in files)
    start = time.process_time()
    for path in files:
        digest_file(path)
    digest_seconds = time.process_time() - start
    num_documents = sum(1 for _ in Documents(files))
    for directory in (small, large):
        shutil.rmtree(directory)
    return Rates(
        tuple(line(stage, amounts[0][stage], amounts[1][stage]) for stage in STAGES),
        digest_seconds_per_gb=digest_seconds / on_disk * 1e9,
        disk_per_byte=on_disk / sizes[1],
        documents_per_byte=num_documents / sizes[1],
        command=command,
        machine=_machine(),
        sample=f"{sizes[1] / 1e6:.1f} MB of text from {', '.join(path.name for path in paths)}",
    )


def _sample(paths: Sequence[Path], directory: Path, wanted_bytes: int) -> int:
    """Write so much text in four files, from all files in turn, so that a sample is not all of one source; returns its bytes."""
    (directory / "sample").mkdir(parents=True)
    readers = deque(iter(Documents([path])) for path in paths)
    written = 0
    with ExitStack() as files:
        writers = [files.enter_context(JsonLinesWriter(directory / f"sample/{number}.jsonl.zst")) for number in range(_FILES)]
        number = 0
        while readers:
            if (text := next(readers[0], None)) is None:
                readers.popleft()
                continue
            readers.rotate(-1)
            writers[number % _FILES].write({"id": str(number), "text": text})
            number += 1
            written += len(text.encode())
            if written >= wanted_bytes:
                return written
    raise ValueError(
        f"the files hold {written / 1e6:.1f} MB of text, but the sample is to be {wanted_bytes / 1e6:.1f} MB; give more or a smaller --megabytes"
    )


def _chain(directory: Path, text_bytes: int, tokenizer: Path) -> dict[str, Amount]:
    """Run all stages, each on what the one before left."""
    sample = [str(path) for path in sorted((directory / "sample").iterdir())]
    amounts: dict[str, Amount] = {}
    arguments: dict[str, Callable[[], list[str]]] = {
        "collect": lambda: ["--input", f"text={sample[0]}", *sample[1:]],
        "clean": lambda: ["--corpora", str(directory / "collect/corpora.yaml")],
        "dedup": lambda: ["--corpora", str(directory / "clean/corpora.yaml"), "--passes", "2", "--memory", str(LEAST_MEMORY_GIB)],
        "mixture": lambda: ["--corpora", str(directory / "dedup/corpora.yaml"), "--tokenizer", f"tokens={tokenizer}"],
        "to_megatron": lambda: ["--input", *map(str, _files(directory / "mixture/train")), "--tokenizer", str(tokenizer)],
    }
    for stage in STAGES:
        output = directory / stage
        words = [sys.executable, "-m", f"data_prep.{stage}", *arguments[stage](), "--workers", "1", "--output", str(output)]
        with _Scratch(output) as scratch:
            measured = measure(words, environment={"OMP_NUM_THREADS": "1"})
        kept = text_bytes if stage == "to_megatron" else sum(len(text.encode()) for text in Documents(_files(output / _TEXT[stage])))
        amounts[stage] = Amount(text_bytes, kept, _size(output), max(0, scratch.largest - _size(output)), measured)
        text_bytes = kept
    return amounts


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
