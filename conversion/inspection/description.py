"""What is known of a checkpoint folder, gathered by the readers of each format and shown as text or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.artifacts import Manifest, read_manifest, wrong_sizes
from conversion.formats.dtypes import DTYPE_BYTES


@dataclass
class Description:
    """All fields that stay None or empty are unknown.

    Attributes:
        format: Hugging Face, NeMo 2, Megatron-LM or Megatron-Bridge.
        architecture: model type or class.
        sizes: of the model, in the words of its format.
        parameters: numbers in the weights; one matrix that is stored twice counts once, rows that pad the vocabulary do not count.
        dtypes: dtype -> bytes of weights in it.
        vocab_size: real rows; `padded_vocab_size`: rows of the table.
        tokenizer_size: tokens of the tokenizer in the folder.
        step, consumed_samples, consumed_tokens: of the training.
        tokenizer: what its check-up found.
        provenance: from the manifest.
        problems: what makes the folder unfit for use; notes: what is worth knowing.
    """

    path: str
    format: str
    architecture: str | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    parameters: int | None = None
    embedding_parameters: int | None = None
    dtypes: dict[str, int] = field(default_factory=dict)
    weight_bytes: int = 0
    total_bytes: int = 0
    layout: str | None = None
    vocab_size: int | None = None
    padded_vocab_size: int | None = None
    tokenizer_size: int | None = None
    tie_word_embeddings: bool | None = None
    optimizer_state: bool | None = None
    step: int | None = None
    consumed_samples: int | None = None
    consumed_tokens: int | None = None
    tokenizer: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Take a command's refusal within for a problem, unless it is named already."""
        try:
            yield
        except ValueError as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))

    def count(self, tensors: Iterable[tuple[int, str]]) -> None:
        """Add up tensors, each given by its number of values and its dtype."""
        self.parameters = 0
        for num_values, dtype in tensors:
            self.parameters += num_values
            self.dtypes[dtype] = self.dtypes.get(dtype, 0) + num_values * DTYPE_BYTES[dtype]
        self.weight_bytes = sum(self.dtypes.values())

    def to_json(self) -> str:
        """Every field, the unknown ones as null or empty."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)

    def to_text(self) -> str:
        """A line per known field."""
        rows = [
            ("format", self.format),
            ("architecture", self.architecture),
            ("sizes", ", ".join(f"{key} {value}" for key, value in self.sizes.items())),
            ("parameters", self._parameters()),
            ("dtypes", ", ".join(f"{dtype} ({_size(nbytes)})" for dtype, nbytes in self.dtypes.items())),
            ("on disk", _size(self.total_bytes) + (f", {self.layout}" if self.layout else "")),
            ("vocabulary", self._vocabulary()),
            ("input and output", {True: "one matrix (tied)", False: "two matrices (untied)", None: None}[self.tie_word_embeddings]),
            ("optimizer state", {True: "yes", False: "no", None: None}[self.optimizer_state]),
            ("trained", self._trained()),
            *((f"tokenizer: {key}", _shown(value)) for key, value in self.tokenizer.items()),
            *((f"provenance: {key}", _shown(value)) for key, value in self.provenance.items()),
        ]
        width = max(len(name) for name, value in rows if value)
        lines = [self.path, *(f"  {name:<{width}}  {value}" for name, value in rows if value)]
        lines += [f"  note: {note}" for note in self.notes]
        lines += [f"  PROBLEM: {problem}" for problem in self.problems]
        return "\n".join([*lines, f"  {_verdict(len(self.problems))}"])

    def _parameters(self) -> str:
        if self.parameters is None:
            return ""
        if self.embedding_parameters is None:
            return f"{self.parameters:,}"
        return f"{self.parameters:,}, of them {self.embedding_parameters:,} of input and output embeddings"

    def _vocabulary(self) -> str:
        parts = []
        if self.vocab_size is not None:
            parts.append(f"{self.vocab_size:,} rows")
        if self.padded_vocab_size is not None and self.padded_vocab_size != self.vocab_size:
            parts.append(f"padded to {self.padded_vocab_size:,}" if parts else f"{self.padded_vocab_size:,} rows, padding included")
        if self.tokenizer_size is not None:
            parts.append(f"tokenizer of {self.tokenizer_size:,} tokens")
        return ", ".join(parts)

    def _trained(self) -> str:
        parts = [(self.step, "steps"), (self.consumed_samples, "samples"), (self.consumed_tokens, "tokens")]
        return ", ".join(f"{value:,} {unit}" for value, unit in parts if value is not None)


def _shown(value: Any) -> str:
    return ", ".join(f"{key} {_shown(item)}" for key, item in value.items()) if isinstance(value, dict) else str(value)


def _verdict(num_problems: int) -> str:
    return {0: "no problem found", 1: "1 problem"}.get(num_problems, f"{num_problems} problems")


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.2f} MB"


_SHOWN_FACTS = ("method", "head", "seed", "tokenizer_digest")


def check_manifest(description: Description, directory: Path) -> Manifest | None:
    """Take provenance from the manifest of a folder, if it has one, and compare names and sizes of files with it."""
    try:
        manifest = read_manifest(directory)
    except ValueError as error:
        description.problems.append(str(error))
        return None
    if manifest is None:
        return None
    description.provenance |= {
        "stage": manifest.stage,
        "inputs": manifest.inputs,
        "commit": manifest.commit,
        "versions": manifest.versions,
        **{key: manifest.facts[key] for key in _SHOWN_FACTS if manifest.facts.get(key) is not None},
    }
    description.problems += wrong_sizes(directory, manifest)
    return manifest


def find_leftovers(description: Description, directory: Path) -> None:
    """Note what interrupted work left in a folder or beside it, and how large the folder is."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    description.total_bytes = sum(path.stat().st_size for path in files)
    left_over = [path for path in files if path.name.endswith((".partial", ".tmp", ".incomplete", ".lock"))]
    directory = directory.resolve()
    left_over += [*directory.parent.glob(f".{directory.name}.partial*"), *directory.parent.glob(".step_*.partial")]
    description.notes += [f"{path} is left over from interrupted work" for path in left_over]


def count_tokens(tokenizer_json: Path) -> int | None:
    """Tokens of a `tokenizer.json`, or None if there is none that can be read."""
    try:
        content = json.loads(tokenizer_json.read_text(encoding="utf-8"))
        vocabulary = content["model"]["vocab"]
        tokens = set(vocabulary) if isinstance(vocabulary, dict) else {token for token, _ in vocabulary}
        return len(tokens | {token["content"] for token in content["added_tokens"]})
    except (OSError, ValueError, KeyError, TypeError):
        return None
