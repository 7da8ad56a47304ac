"""What the commands work on: real text of the user's, and small models and data that the project's own commands make of it once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks import conversion, training
from benchmarks.commands import made
from common.meter import ROOT
from data_prep.reading.documents import Documents

PEERS_OF_CONVERSION = ROOT / "benchmarks" / "conversion_peers.py"
VOCAB_SIZE = 16_000
_HELD_OUT_BYTES = 20_000


@dataclass(frozen=True)
class Material:
    """Inputs of all cases, made where they are first asked for.

    Attributes:
        work: folder for them.
        text: files with real documents.
        megabytes: of text that the stages of data take.
        shape: of the checkpoint to convert, see `benchmarks.conversion.SHAPES`.
        language: of the text, as datatrove calls it.
        model: Hugging Face folder of a real model, for transfer and evaluation; None leaves these out.
    """

    work: Path
    text: tuple[Path, ...]
    megabytes: float
    shape: str
    language: str
    model: Path | None

    @cached_property
    def documents(self) -> Path:
        """JSON Lines, zstd: the first documents of the text."""
        return self._written("text.jsonl.zst", self.megabytes * 1e6)

    @cached_property
    def held_out(self) -> Path:
        """A few of them, for bits per byte."""
        return self._written("held_out.jsonl.zst", _HELD_OUT_BYTES)

    @cached_property
    def text_megabytes(self) -> float:
        """MB of UTF-8 in `documents`."""
        return self._bytes(self.documents) / 1e6

    @cached_property
    def held_out_kilobytes(self) -> float:
        """kB of UTF-8 in `held_out`."""
        return self._bytes(self.held_out) / 1e3

    @cached_property
    def tokenizer(self) -> Path:
        """Of the text."""
        arguments = ("--input", self.documents, "--vocab-size", str(VOCAB_SIZE))
        return made(self.work / "tokenizer", "data_prep.train_tokenizer", *arguments)

    @cached_property
    def checkpoint(self) -> Path:
        """Hugging Face folder of the shape in bfloat16, of random weights."""
        folder = self.work / self.shape
        if not folder.exists():
            partial = self.work / f".{self.shape}"
            conversion.make_checkpoint(partial, conversion.SHAPES[self.shape], dtype="bfloat16", tokenizer_dir=None)
            partial.rename(folder)
        return folder

    @cached_property
    def checkpoint_gigabytes(self) -> float:
        """GB of its weights."""
        return sum(path.stat().st_size for path in self.checkpoint.glob("*.safetensors")) / 1e9

    @cached_property
    def nemo_checkpoint(self) -> Path:
        """The same for NeMo."""
        return made(self.work / f"{self.shape}.nemo", "conversion.hf_to_nemo", "--input", self.checkpoint)

    @property
    def is_llama(self) -> bool:
        """Whether the published converters know the shape."""
        return conversion.SHAPES[self.shape]["model_type"] == "llama"

    @cached_property
    def checkpoint_by_nemo(self) -> Path:
        """The same as NeMo's own importer writes it."""
        folder = self.work / f"{self.shape}.by_nemo"
        if not folder.exists():
            partial = folder.with_name(f".{folder.name}")
            subprocess.run([sys.executable, PEERS_OF_CONVERSION, "NeMo", "import", self.checkpoint, partial], cwd=ROOT, check=True)
            partial.rename(folder)
        return folder

    @cached_property
    def training(self) -> Path:
        """Folder with `nemo` and `data` of the small model whose training is started."""
        folder = self.work / "training"
        if not (folder / "nemo").exists():
            training.prepare(training.SIZES["cpu"], folder)
        return folder

    def _written(self, name: str, most_bytes: float) -> Path:
        """Documents until there are so many bytes; in a process of its own, as one that is measured inherits its parent's peak."""
        path = self.work / name
        if not path.exists():
            arguments = [sys.executable, "-m", "benchmarks.whole.write_text", str(path), str(int(most_bytes)), *map(str, self.text)]
            subprocess.run(arguments, cwd=ROOT, check=True)
        return path

    @staticmethod
    def _bytes(path: Path) -> int:
        documents = Documents([path])
        for _ in documents:
            pass
        return documents.text_bytes


def write_text(path: Path, most_bytes: int, inputs: Sequence[Path]) -> None:
    """The first documents of the inputs, taken in turns, as JSON Lines in zstd."""
    import pyarrow

    partial = path.with_name(f".partial.{path.name}")
    size = 0
    streams = [iter(Documents([source])) for source in inputs]
    with pyarrow.CompressedOutputStream(str(partial), "zstd") as output:
        while streams and size < most_bytes:
            for stream in list(streams):
                if (text := next(stream, None)) is None:
                    streams.remove(stream)
                    continue
                size += len(text.encode())
                output.write(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n")
    if size < most_bytes:
        partial.unlink()
        raise ValueError(f"--text holds {size / 1e6:.1f} MB, expected {most_bytes / 1e6:.1f}; give more files, or a smaller --megabytes")
    partial.rename(path)
