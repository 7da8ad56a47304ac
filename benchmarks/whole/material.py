"""What the commands work on: real text of the user's, and small models and data that the project's own commands make of it once."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks import saving, training_loops
from benchmarks.commands import made, opt_inputs, require_same_settings
from benchmarks.meter import ROOT
from benchmarks.whole.random_checkpoint import SHAPES
from data_prep.reading.documents import Documents
from recipes.runs.run_dir import checkpoint_name

PEERS_OF_CONVERSION = ROOT / "benchmarks" / "conversion_peers.py"
VOCAB_SIZE = 16_000
_HELD_OUT_BYTES = 5_000
_LEARNED_BYTES = 2_000_000


@dataclass(frozen=True)
class Material:
    """Inputs of all cases, made where they are first asked for.

    Attributes:
        work: folder for them.
        text: files with real documents.
        megabytes: of text that the stages of data take.
        shape: of the checkpoint to convert, see `random_checkpoint.SHAPES`.
        language: of the text, as datatrove calls it.
        model: Hugging Face folder of a real model.
        gguf_file: a file of the same model.
        source_text: files with documents in the model's language.
        dictionary: of words, for `wechsel`.
        dtypes: of the checkpoint to convert.

    What is None leaves out what needs it.
    """

    work: Path
    text: tuple[Path, ...]
    megabytes: float
    shape: str
    language: str
    model: Path | None = None
    gguf_file: Path | None = None
    source_text: tuple[Path, ...] | None = None
    dictionary: Path | None = None
    dtypes: tuple[str, ...] = ("bfloat16",)

    def require_same_inputs(self) -> None:
        """Refuse a folder whose inputs were made otherwise: what is there is not made again."""
        of = {"text": [str(path) for path in self.text], "megabytes": self.megabytes, "model": str(self.model)}
        self.work.mkdir(parents=True, exist_ok=True)
        require_same_settings(self.work, of)

    @cached_property
    def documents(self) -> Path:
        """JSON Lines, zstd: the first documents of the text."""
        return self._written("text.jsonl.zst", self.megabytes * 1e6)

    @cached_property
    def held_out(self) -> Path:
        """A few of them, for bits per byte."""
        return self._written(f"held_out.{_HELD_OUT_BYTES}.jsonl.zst", _HELD_OUT_BYTES)

    @cached_property
    def held_out_lines(self) -> Path:
        """The same as plain JSON Lines, which lm-eval's task reads."""
        path = self.work / "held_out.jsonl"
        if not path.exists():
            self._rewritten(self.held_out, path)
        return path

    @cached_property
    def gzipped(self) -> Path:
        """`documents` as .jsonl.gz, as corpora come."""
        path = self.work / "text.jsonl.gz"
        if not path.exists():
            self._rewritten(self.documents, path)
        return path

    @cached_property
    def learned(self) -> Path:
        """What a transfer learns from, in the target's language."""
        return self._written("learned.jsonl.zst", min(_LEARNED_BYTES, self.megabytes * 1e6))

    @cached_property
    def learned_source(self) -> Path:
        """As much in the source's."""
        assert self.source_text is not None
        return self._written("learned_source.jsonl.zst", min(_LEARNED_BYTES, self.megabytes * 1e6), self.source_text)

    @cached_property
    def plain_dictionary(self) -> Path:
        """The dictionary without compression."""
        assert self.dictionary is not None
        path = self.work / "dictionary.txt"
        opened = gzip.open if self.dictionary.suffix == ".gz" else open
        if not path.exists():
            with opened(self.dictionary, "rt", encoding="utf-8") as stream:
                path.write_text(stream.read(), encoding="utf-8")
        return path

    @cached_property
    def text_megabytes(self) -> float:
        """MB of UTF-8 in `documents`."""
        return self.text_bytes(self.documents) / 1e6

    @cached_property
    def held_out_kilobytes(self) -> float:
        """kB of UTF-8 in `held_out`."""
        return self.text_bytes(self.held_out) / 1e3

    @cached_property
    def tokenizer(self) -> Path:
        """Of the text."""
        arguments = ("--input", self.documents, "--vocab-size", str(VOCAB_SIZE))
        return made(self.work / "tokenizer", "data_prep.train_tokenizer", *arguments)

    @property
    def real_model(self) -> Path:
        """The user's."""
        assert self.model is not None, "stages that need it are left out"
        return self.model

    @property
    def gguf(self) -> Path:
        """The user's."""
        assert self.gguf_file is not None, "stages that need it are left out"
        return self.gguf_file

    @cached_property
    def helper(self) -> Path:
        """A model with the text's tokenizer, for methods that take one: the real model after `focus`."""
        words = ("--source", self.real_model, "--tokenizer", self.tokenizer, "--method", "focus", "--text", self.learned)
        return made(self.work / "helper", "conversion.transfer", *words)

    @cached_property
    def nemo_model(self) -> Path:
        """The real model for NeMo."""
        return made(self.work / "model.nemo", "conversion.hf_to_nemo", "--input", self.real_model)

    def checkpoint(self, dtype: str, seed: int = 0) -> Path:
        """Hugging Face folder of the shape, of random weights."""
        folder = self.work / f"{self.shape}.{dtype}{f'.{seed}' if seed else ''}"
        if not folder.exists():
            partial = self.work / f".{folder.name}"
            shutil.rmtree(partial, ignore_errors=True)
            words: list[str | Path] = ["-m", "benchmarks.whole.random_checkpoint", partial, self.shape, dtype, self.tokenizer, str(seed)]
            subprocess.run([sys.executable, *words], cwd=ROOT, check=True)
            partial.rename(folder)
        return folder

    def checkpoint_gigabytes(self, dtype: str) -> float:
        """GB of its weights."""
        return sum(path.stat().st_size for path in self.checkpoint(dtype).glob("*.safetensors")) / 1e9

    def nemo_checkpoint(self, dtype: str) -> Path:
        """The same for NeMo."""
        return made(self.work / f"{self.shape}.{dtype}.nemo", "conversion.hf_to_nemo", "--input", self.checkpoint(dtype))

    @property
    def is_llama(self) -> bool:
        """Whether the published converters know the shape."""
        return SHAPES[self.shape]["model_type"] == "llama"

    @cached_property
    def checkpoint_by_nemo(self) -> Path:
        """The same as NeMo's own importer writes it."""
        folder = self.work / f"{self.shape}.by_nemo"
        if not folder.exists():
            partial = folder.with_name(f".{folder.name}")
            shutil.rmtree(partial, ignore_errors=True)
            subprocess.run([sys.executable, PEERS_OF_CONVERSION, "import", self.checkpoint("bfloat16"), partial], cwd=ROOT, check=True)
            partial.rename(folder)
        return folder

    @cached_property
    def training(self) -> Path:
        """Folder with `nemo` and `data` of the small model whose training is started."""
        folder = self.work / "training"
        if not (folder / "nemo").exists():
            training_loops.prepare(training_loops.SIZES["cpu"], folder)
        return folder

    @cached_property
    def saving(self) -> Path:
        """Folder with the inputs of a training that saves, and `weights` as it saved them once."""
        folder = self.work / "saving"
        if not (folder / "weights").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            opt_inputs(folder, *saving.SHAPE, vocab_size=8000)
            saving.stopped_seconds("ours", folder, folder / "once", 2)
            (folder / "once" / "run" / "checkpoints" / checkpoint_name(saving.EVERY) / "weights").rename(folder / "weights")
            shutil.rmtree(folder / "once")
        return folder

    @cached_property
    def saving_gigabytes(self) -> float:
        """GB of what is saved."""
        return sum(path.stat().st_size for path in (self.saving / "weights").rglob("*") if path.is_file()) / 1e9

    def _written(self, name: str, most_bytes: float, inputs: Sequence[Path] | None = None) -> Path:
        """Documents until there are so many bytes; in a process of its own, as one that is measured inherits its parent's peak."""
        path = self.work / name
        if not path.exists():
            arguments = [
                sys.executable,
                "-m",
                "benchmarks.whole.write_text",
                str(path),
                str(int(most_bytes)),
                *map(str, inputs or self.text),
            ]
            subprocess.run(arguments, cwd=ROOT, check=True)
        return path

    @staticmethod
    def _rewritten(source: Path, path: Path) -> None:
        import pyarrow

        partial = path.with_name(f".partial.{path.name}")
        with (
            pyarrow.CompressedInputStream(str(source), "zstd") as stream,
            (gzip.open if path.suffix == ".gz" else open)(partial, "wb") as file,
        ):
            file.write(stream.read())
        partial.rename(path)

    @staticmethod
    def text_bytes(path: Path) -> int:
        """Of UTF-8 in a file of documents."""
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
